# SPDX-License-Identifier: Apache-2.0
"""
The rules of the house that a reader relies on, read from the source itself.

Which file is it? The C name alone answers that, because one C type belongs to one module. What may
use what? Imports point one way. And what is declared is what the library has: no more, no less.
"""

import ast
import inspect
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

import tritonffi

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "tritonffi"
MODULES = sorted(PACKAGE.glob("*.py"))

# Each module may import those before it, and none after it.
ORDER = [
    "_native",
    "_interpreter",
    "_closing",
    "_forks",
    "_errors",
    "_limits",
    "_numbers",
    "_enums",
    "_call",
    "_lock_file",
    "_fetch",
    "_elf",
    "_leftovers",
    "_stub_records",
    "_stub_execute",
    "_python_backend",
    "_library",
    "_log",
    "_log_settings",
    "_bytes",
    "_lists",
    "_bfloat16",
    "_tensor",
    "_config_text",
    "_batch_strategy",
    "_config_checks",
    "_options",
    "_steps",
    "_spec",
    "_statistics",
    "_metrics_text",
    "_metrics",
    "_cuda",
    "_lent",
    "_memory_pool",
    "_input",
    "_output",
    "_terms",
    "_response",
    "_trace_record",
    "_trace",
    "_submission",
    "_waiting",
    "_completion",
    "_inference",
    "_request",
    "_place",
    "_template",
    "_stream",
    "_asyncio",
    "_map",
    "_async_map",
    "_function_config",
    "_function_errors",
    "_function_context",
    "_function_inputs",
    "_function_results",
    "_calling",
    "_function_loop",
    "_function_target",
    "_function_serving",
    "_functions",
    "_rest",
    "_users",
    "capi",
    "_process",
    "_index",
    "_stub_deaths",
    "_model_files",
    "_start",
    "_loaded",
    "_lifecycle",
    "_sequence",
    "_starter",
    "_prepared",
    "_reader",
    "_model",
    "_turns",
    "_mending",
    "_load_input",
    "_graph",
    "_loading",
    "_repository",
    "_server",
    "__init__",
    "__main__",
]

# Where the functions of a C type are called: the longest beginning of the C name decides. The
# server is one C type and three subjects: its life, its repository, and its models.
OWNERS = {
    "TRITONSERVER_ApiVersion": ["_library"],
    "TRITONSERVER_Error": ["_call", "_start"],
    "TRITONSERVER_Message": ["_call"],
    "TRITONSERVER_Parameter": ["_call"],
    # Log settings are options in C, but of the process and not of a server.
    "TRITONSERVER_ServerOptionsSetLog": ["_log", "_log_settings"],
    "TRITONSERVER_Log": ["_log_settings"],
    "TRITONSERVER_ServerOptionsNew": ["_start", "_log"],
    "TRITONSERVER_ServerOptionsDelete": ["_start", "_log"],
    "TRITONSERVER_ServerOptions": ["_options"],
    # Requests are made and submitted in csrc/inference.c; these are never submitted.
    "TRITONSERVER_InferenceRequest": ["_rest"],
    "TRITONSERVER_ServerNew": ["_start"],
    "TRITONSERVER_ServerDelete": ["_process"],
    "TRITONSERVER_ServerStop": ["_lifecycle", "_start"],
    "TRITONSERVER_ServerSetExitTimeout": ["_lifecycle"],
    "TRITONSERVER_ServerModelIndex": ["_index"],
    "TRITONSERVER_ServerIsLive": ["_repository", "_server", "_start"],
    "TRITONSERVER_ServerLoadModel": ["_loading"],
    "TRITONSERVER_ServerPollModelRepository": ["_repository"],
    "TRITONSERVER_ServerRegisterModelRepository": ["_repository"],
    "TRITONSERVER_ServerUnregisterModelRepository": ["_loaded", "_repository"],
    "TRITONSERVER_ServerUnloadModel": ["_loaded", "_loading"],
    "TRITONSERVER_ServerModelConfig": ["_index", "_model", "_reader"],
    "TRITONSERVER_ServerModelStatistics": ["_index", "_model", "_server"],
    "TRITONSERVER_ServerModel": ["_model", "_reader"],
    "TRITONSERVER_Server": ["_server"],
    "TRITONSERVER_ServerMetrics": ["_metrics"],
    "TRITONSERVER_Metric": ["_metrics"],
    "TRITONSERVER_GetMetric": ["_metrics"],
    "tffi_log": ["_log"],
    "tffi_library": ["_library"],
    "tffi_can_start_threads": ["_limits"],
    "tffi_bytes": ["_bytes"],
    "tffi_buffer": ["_response", "_function_inputs", "_trace_record"],
    "tffi_counters": ["_memory_pool"],
    "tffi_copies": ["_function_inputs"],
    "tffi_pool": ["_memory_pool"],
    "tffi_dlpack": ["_lent"],
    "tffi_inference_submit": ["_template"],
    "tffi_spares": ["_template"],
    "tffi_model_changes": ["_starter"],
    "tffi_inference_consume": ["_stream"],
    "tffi_inference_wait": ["_completion"],
    "tffi_inference": ["_inference"],
    "tffi_completion": ["_completion"],
    "tffi_queue": ["_completion"],
    "tffi_queue_fd": ["_asyncio"],
    "tffi_trace_member": ["_trace_record"],
    "tffi_trace": ["_trace"],
    "tffi_function": ["_functions"],
    "tffi_batch_is_cancelled": ["_function_context"],
    "tffi_batch_cancelled": ["_function_context", "_function_serving"],
    "tffi_batch_is_running": ["_function_inputs"],
    "tffi_batch": ["_function_serving"],
}

# Lists of declarations, one line for each thing that Triton has: long because the API is.
LONG_LISTS = ["csrc/tritonserver.h"]


def module_ids():
    """Name the modules for the output of pytest."""
    return [path.stem for path in MODULES]


def parse(path):
    """Parse a module."""
    return ast.parse(path.read_text(encoding="utf-8"))


def is_type_checking(node):
    """Tell whether a statement is `if TYPE_CHECKING:`, whose imports do not happen."""
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    )


def statements(node):
    """Walk everything that is executed some time."""
    for child in ast.iter_child_nodes(node):
        if is_type_checking(child):
            continue
        yield child
        yield from statements(child)


def imports(path):
    """List the modules of the package that a module imports, at whatever point."""
    for node in statements(parse(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "tritonffi":
                    yield alias.name.partition(".")[2] or "__init__"
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} has a relative import; ours are absolute"
            package, _, module = (node.module or "").partition(".")
            if package == "tritonffi" and module:
                yield module
            elif package == "tritonffi":
                yield from (
                    alias.name if alias.name in ORDER else "__init__" for alias in node.names
                )


def calls(path):
    """List the C functions that a module names, as `lib.x` or in a string for getattr."""
    for node in ast.walk(parse(path)):
        name = ""
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = node.attr if node.value.id == "lib" else ""
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            name = node.value
        if re.fullmatch(r"tffi_\w+|TRITONSERVER_[A-Z][a-z]\w*", name):
            yield name


def declared_functions():
    """List the functions that csrc/tritonserver.h declares."""
    text = (ROOT / "csrc/tritonserver.h").read_text(encoding="utf-8")
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    return set(re.findall(r"\b(TRITONSERVER_\w+)\(", text))


@pytest.mark.parametrize("path", MODULES, ids=module_ids())
def test_imports_point_one_way(path):
    """A module imports only what is below it, so there is no cycle to think about."""
    position = ORDER.index(path.stem)
    for name in imports(path):
        assert name in ORDER[:position], f"{path.stem} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=module_ids())
def test_a_c_type_belongs_to_one_module(path):
    """The C name says which file to open."""
    for function in calls(path):
        beginning = max((b for b in OWNERS if function.startswith(b)), key=len, default=None)
        assert beginning is not None, f"{function} has no owner in the table above"
        assert path.stem in OWNERS[beginning], f"{path.stem} calls {function}"


def test_the_tables_name_no_module_that_is_gone():
    """A table that is out of date misleads."""
    names = {path.stem for path in MODULES} | {"_native"}
    assert set(ORDER) == names
    assert {owner for owners in OWNERS.values() for owner in owners} <= names


@pytest.mark.parametrize("path", MODULES, ids=module_ids())
def test_nothing_relies_on_del(path):
    """`__del__` runs in any thread at any time, or not at all."""
    functions = [n for n in ast.walk(parse(path)) if isinstance(n, ast.FunctionDef)]
    assert "__del__" not in [f.name for f in functions]


@pytest.mark.parametrize("path", MODULES, ids=module_ids())
def test_any_comes_in_through_the_extension_alone(path):
    """What a type checker knows of nothing is what `_native` gives."""
    names = [n.id for n in ast.walk(parse(path)) if isinstance(n, ast.Name)]
    assert "Any" not in names


def test_no_number_is_typed_in_the_enumerations():
    """Every value is read from the compiled declarations."""
    with (PACKAGE / "_enums.py").open(encoding="utf-8") as file:
        numbers = [
            token.line
            for token in tokenize.generate_tokens(file.readline)
            if token.type == tokenize.NUMBER
        ]
    assert numbers == []


def test_all_public_names_are_listed_in_order():
    """`__all__` is what `tritonffi.` offers, sorted."""
    public = [
        name
        for name, value in vars(tritonffi).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    ]
    assert sorted([*public, "__version__"]) == tritonffi.__all__


@pytest.mark.parametrize("name", [n for n in tritonffi.__all__ if n != "__version__"])
def test_every_public_name_is_documented(name):
    """A class says what it is, and so does each public method of it that is ours."""
    value = getattr(tritonffi, name)
    assert (value.__doc__ or "").strip()
    if name != "memory_pool":
        assert value.__module__ == "tritonffi"  # as help and tracebacks show it
    if inspect.isclass(value):
        for attribute, member in vars(value).items():
            function = getattr(member, "fget", None) or getattr(member, "__func__", member)
            if not attribute.startswith("_") and inspect.isfunction(function):
                assert (function.__doc__ or "").strip(), f"{name}.{attribute} has no docstring"


def test_what_is_declared_is_what_the_library_exports(library):
    """172 functions, both ways."""
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", str(library.path)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    symbols = {line.split()[-1].split("@")[0] for line in listing.splitlines()}
    exported = {symbol for symbol in symbols if symbol.startswith("TRITONSERVER_")}
    assert declared_functions() == exported
    assert len(exported) == 172


# What makes a lock that its own thread cannot take again, and where that is no trouble.
PLAIN_LOCKS = {
    ("_call", "_running"): "an event: whoever releases it has not acquired it",
    ("_call", "_lock"): "over two assignments of what no finalizer has",
    ("_lifecycle", "_stopping"): "under `_closing`, which the closing thread does not enter twice",
}


def test_locks_may_be_taken_again_by_their_thread():
    """A signal handler, or the garbage collector, may come while it holds one."""
    plain = set()
    for path in MODULES:
        for node in ast.walk(parse(path)):
            if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
                continue
            if "threading.Lock()" in ast.unparse(node.value):
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                plain.add((path.stem, ast.unparse(target).removeprefix("self.")))
            assert "Condition(threading" not in ast.unparse(node.value)
    assert plain == set(PLAIN_LOCKS)


def test_files_are_short_enough_to_be_read():
    """Past 500 lines a file is two."""
    files = [p for folder in ("tritonffi", "csrc") for p in sorted((ROOT / folder).iterdir())]
    files = [p for p in files if p.suffix in (".py", ".pyi", ".c", ".h")]
    long = {
        str(p.relative_to(ROOT)): lines
        for p in files
        if (lines := len(p.read_text(encoding="utf-8").splitlines())) > 500
    }
    assert list(long) == LONG_LISTS


@pytest.mark.parametrize("folder", ["tritonffi", "csrc", "tests", "examples", "benchmarks"])
def test_every_file_says_its_licence(folder):
    """In one line, the first."""
    for path in sorted((ROOT / folder).rglob("*")):
        if path.suffix in (".py", ".pyi", ".c", ".h") and "build" not in path.parts:
            first = path.read_text(encoding="utf-8").partition("\n")[0]
            assert "SPDX-License-Identifier: Apache-2.0" in first, path


@pytest.mark.parametrize(
    ("module", "slow"),
    [
        ("tritonffi", {"asyncio", "email", "hashlib", "subprocess", "zipfile"}),
        # Each start of a server looks with it for what was fetched before.
        ("tritonffi._fetch", {"hashlib", "subprocess", "zipfile"}),
    ],
)
def test_importing_brings_only_what_everyone_needs(module, slow):
    """What takes long to import and serves a few is imported where it is used."""
    brought = f"import numpy, sys; before = set(sys.modules); import {module}"
    show = "print(*sorted(set(sys.modules) - before))"
    done = subprocess.run(
        [sys.executable, "-c", f"{brought}; {show}"], capture_output=True, text=True, check=True
    )
    assert slow & set(done.stdout.split()) == set()
