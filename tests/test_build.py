# SPDX-License-Identifier: Apache-2.0
"""The build: what it compiles, what it exports, and how it is held against Triton's own header."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tritonffi import _native

ROOT = Path(__file__).parent.parent
HEADER = "triton/core/tritonserver.h"

# Only the compiler's first pass over the generated file, where all the checks are: a full build of
# every mistake below would take minutes.
COMPILE = """
import subprocess, sys, sysconfig
from build_ffi import ffibuilder
extension = ffibuilder.distutils_extension("generated", verbose=False)
command = ["cc", "-fsyntax-only", *extension.extra_compile_args]
command += [f"-D{name}={value or 1}" for name, value in extension.define_macros]
command += [f"-I{folder}" for folder in [*extension.include_dirs, sysconfig.get_path("include")]]
sys.exit(subprocess.call([*command, extension.sources[0]]))
"""


def copy_of_source(folder):
    """Copy what a build needs to `folder`."""
    shutil.copytree(ROOT / "csrc", folder / "csrc")
    for name in ("build_ffi.py", "setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "tritonffi", folder / "tritonffi", ignore=shutil.ignore_patterns("*.so"))
    return folder


def environment(**variables):
    """Give the environment of a build: ours, but for the switches of the build itself."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("TRITONFFI_")}
    return {**inherited, "TRITONFFI_WERROR": "1", **variables}


def run(source, *arguments, **variables):
    """Run Python in the folder of `source`."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=source,
        env=environment(**variables),
        capture_output=True,
        text=True,
        check=False,
    )


def build(source, **variables):
    """Build the whole extension below `source`, in a folder of its own."""
    places = ["--build-temp", str(source / "temporary"), "--build-lib", str(source / "built")]
    return run(source, "setup.py", "-q", "build_ext", *places, **variables)


def symbols(library, *options):
    """List the dynamic symbols of a library."""
    command = ["nm", "-D", *options, str(library)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return {line.split()[-1].split("@")[0] for line in lines}


@pytest.fixture(scope="module")
def own_headers(tmp_path_factory):
    """Lay our headers out as Triton's are: what a wrong declaration can be held against."""
    folder = tmp_path_factory.mktemp("include")
    (folder / HEADER).parent.mkdir(parents=True)
    for name in ("tritonserver.h", "tritonbackend.h"):
        shutil.copy(ROOT / "csrc" / name, (folder / HEADER).parent)
    return folder


@pytest.fixture(scope="module")
def real_headers():
    """Find Triton's own headers, which are not part of this project."""
    folder = os.environ.get("TRITONFFI_TEST_INCLUDE_DIR")
    if not folder:
        pytest.skip(
            "TRITONFFI_TEST_INCLUDE_DIR is not set: the folder that holds triton/core/ of a "
            "checkout of github.com/triton-inference-server/core"
        )
    return Path(folder)


def test_a_compiler_alone_builds_it_without_a_warning(tmp_path):
    """No header or library of Triton is needed, and -Werror finds nothing."""
    built = build(copy_of_source(tmp_path))
    assert built.returncode == 0, built.stdout + built.stderr
    assert [p.name for p in (tmp_path / "built/tritonffi").glob("*.so")] == ["_native.abi3.so"]


def test_the_extension_links_to_no_triton(native_file):
    """Every function of Triton comes through the import table, at run time."""
    assert {s for s in symbols(native_file, "--undefined-only") if "TRITON" in s} == set()


def test_the_extension_exports_its_backend_and_nothing_else(native_file):
    """Triton looks the entry points of a backend up by name; all else is hidden."""
    declared = (ROOT / "csrc/tritonbackend.h").read_text(encoding="utf-8")
    entry_points = set(re.findall(r"^TRITONFFI_EXPORT.*\*(\w+)\(", declared, re.MULTILINE))
    assert len(entry_points) == 8
    assert symbols(native_file, "--defined-only") == {"PyInit__native", *entry_points}


@pytest.fixture(scope="module")
def native_file():
    """Find the extension that this process runs."""
    return Path(_native.__file__)


def test_a_wrong_folder_is_one_error_that_says_what_was_looked_for(tmp_path):
    """The message names the variable, the header and the folder, and no traceback hides it."""
    wrong = tmp_path / "wrong"
    built = build(copy_of_source(tmp_path), TRITONFFI_INCLUDE_DIR=str(wrong))
    assert built.returncode == 1
    assert "Traceback" not in built.stderr
    (line,) = [s for s in built.stderr.splitlines() if "TRITONFFI_INCLUDE_DIR" in s]
    assert line.startswith(
        f"TRITONFFI_INCLUDE_DIR={wrong}: no {HEADER} in there (looked for {wrong / HEADER})"
    )


def test_right_declarations_pass_the_checks(tmp_path, own_headers):
    """The checks themselves are clean: what the mistakes below are measured by."""
    source = copy_of_source(tmp_path)
    checked = run(source, "-c", COMPILE, TRITONFFI_INCLUDE_DIR=str(own_headers))
    assert checked.returncode == 0, checked.stderr


# A kind of mistake: (what tritonserver.h says, once, and what it would say with the mistake in it).
MISTAKES = {
    "enum value": ("TYPE_BF16 = 14", "TYPE_BF16 = 15"),
    "flag value": ("TXN_DECOUPLED = 2", "TXN_DECOUPLED = 4"),
    "enumerator missing": (",\n  TRITONSERVER_ERROR_CANCELLED = 7", ""),
    "enumerator made up": ("TYPE_BF16 = 14", "TYPE_BF16 = 14,\n  TRITONSERVER_TYPE_FP8 = 15"),
    "enumerator misspelled": ("TRITONSERVER_MEMORY_GPU", "TRITONSERVER_MEMORY_CUDA"),
    "function misspelled": ("TRITONSERVER_ServerIsLive(", "TRITONSERVER_ServerIsAlive("),
    "function made up": ("\n#endif", "void TRITONSERVER_ServerPause(void);\n\n#endif"),
    "parameter missing": ("int line, ", ""),
    "parameter too many": ("(uint32_t *major, ", "(uint32_t *major, uint32_t *patch, "),
    "parameters swapped": (
        "filename, int line, const char *msg",
        "filename, const char *msg, int l",
    ),
    "too narrow": ("uint64_t timeout_us", "uint32_t timeout_us"),
    "too wide": ("int device)", "int64_t device)"),
    "wrong sign": ("unsigned int retry_count", "int retry_count"),
    "const missing": (
        "const int64_t *shape, uint64_t dim_count);",
        "int64_t *shape, uint64_t dim);",
    ),
    "const too many": ("uint32_t *major", "const uint32_t *major"),
    "level of pointer": ("struct TRITONSERVER_Metrics **metrics", "struct TRITONSERVER_Metrics *m"),
    "wrong handle": (
        "(struct TRITONSERVER_Metrics *metrics)",
        "(struct TRITONSERVER_Metric *metrics)",
    ),
    "wrong enum": ("(TRITONSERVER_MemoryType type)", "(TRITONSERVER_DataType type)"),
    "bool as int": ("bool *live", "int *live"),
    "double as float": ("double cc", "float cc"),
    "result too wide": ("uint32_t TRITONSERVER_DataTypeB", "size_t TRITONSERVER_DataTypeB"),
    "result too free": ("const char *TRITONSERVER_ErrorM", "char *TRITONSERVER_ErrorM"),
    "result made up": ("void TRITONSERVER_ErrorDelete", "bool TRITONSERVER_ErrorDelete"),
    "callback parameter": ("uint64_t timestamp_ns", "int64_t timestamp_ns"),
    "callback result": (
        "typedef void (*TRITONSERVER_InferenceTraceR",
        "typedef bool (*TRITONSERVER_InferenceTraceR",
    ),
}

BACKEND_MISTAKES = {
    "enum value": ("EXECUTION_DEVICE_BLOCKING = 1", "EXECUTION_DEVICE_BLOCKING = 2"),
    "function misspelled": ("TRITONBACKEND_RequestId(", "TRITONBACKEND_RequestName("),
    "too narrow": ("uint64_t buffer_byte_size, T", "uint32_t buffer_byte_size, T"),
    "entry point": ("uint32_t request_count);", "uint64_t request_count);"),
}


def with_mistake(folder, header, before, after):
    """Copy the source, with one wrong declaration in it."""
    source = copy_of_source(folder)
    path = source / "csrc" / header
    text = path.read_text(encoding="utf-8")
    assert text.count(before) == 1, f"the mistake has no place in {header}: {before}"
    path.write_text(text.replace(before, after), encoding="utf-8")
    return source


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_declaration_stops_the_build(tmp_path, own_headers, mistake):
    """No mistake in our header survives a build against the right one."""
    source = with_mistake(tmp_path, "tritonserver.h", *MISTAKES[mistake])
    checked = run(source, "-c", COMPILE, TRITONFFI_INCLUDE_DIR=str(own_headers))
    assert checked.returncode == 1, checked.stderr
    assert "error: " in checked.stderr


@pytest.mark.parametrize("mistake", BACKEND_MISTAKES)
def test_a_wrong_backend_declaration_stops_the_build(tmp_path, own_headers, mistake):
    """The part of the backend API is held against its header as well, where that is there."""
    source = with_mistake(tmp_path, "tritonbackend.h", *BACKEND_MISTAKES[mistake])
    checked = run(source, "-c", COMPILE, TRITONFFI_INCLUDE_DIR=str(own_headers))
    assert checked.returncode == 1, checked.stderr
    assert "error: " in checked.stderr


def test_the_build_against_tritons_header_passes_without_a_warning(tmp_path, real_headers):
    """Every declaration of ours is what Triton's own header says."""
    built = build(copy_of_source(tmp_path), TRITONFFI_INCLUDE_DIR=str(real_headers))
    assert built.returncode == 0, built.stdout + built.stderr


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_declaration_does_not_pass_tritons_header(tmp_path, real_headers, mistake):
    """What stops the build against a copy of ours stops it against the real one too."""
    source = with_mistake(tmp_path, "tritonserver.h", *MISTAKES[mistake])
    checked = run(source, "-c", COMPILE, TRITONFFI_INCLUDE_DIR=str(real_headers))
    assert checked.returncode == 1, checked.stderr
    assert "error: " in checked.stderr
