# SPDX-License-Identifier: Apache-2.0
"""Make ``c_api.md`` and ``api.md`` from the code: ``python docs/make_tables.py``.

What is known where: ``csrc/tritonserver.h`` declares the functions of C; ``tritonffi/`` and
``csrc/`` call them; the docstrings of public names say which they are; ``tests/`` use those names.
``tests/test_coverage.py`` holds these facts against each other, with the exceptions listed here.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import tritonffi
from tritonffi import capi

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

ROOT = Path(__file__).parent.parent

LINE = 100
SHORTEST = 3  # letters of a word that says something
RAW = "for `tritonffi.capi`: "
NAMES = "an enumeration in `_enums.py` has the name, of every value: "
MADE_NEW = RAW + "a request that differs in more than addresses is made new"
KNOWN = RAW + "`Request` knows what it was made with"

#: Functions without a caller in tritonffi/ and csrc/, and why. A test or an example calls each.
NOT_CALLED = {
    "TRITONSERVER_DataTypeString": NAMES + "`DataType`",
    "TRITONSERVER_StringToDataType": NAMES + "`DataType`",
    "TRITONSERVER_MemoryTypeString": "the enumeration has the name, of every value: `MemoryType`",
    "TRITONSERVER_ParameterTypeString": NAMES + "`ParameterType`",
    "TRITONSERVER_InstanceGroupKindString": NAMES + "`InstanceGroupKind`",
    "TRITONSERVER_InferenceTraceLevelString": NAMES + "`TraceLevel`",
    "TRITONSERVER_InferenceTraceActivityString": NAMES + "`TraceActivity`",
    "TRITONSERVER_InferenceTraceNew": RAW
    + "`Trace` is made with TensorNew, which can do all that this can",
    "TRITONSERVER_MessageNewFromSerializedJson": RAW + "no other function takes a message",
    "TRITONSERVER_BufferAttributesSetCudaIpcHandle": RAW + "memory of one process needs none",
    "TRITONSERVER_BufferAttributesCudaIpcHandle": RAW + "memory of one process needs none",
    "TRITONSERVER_BufferAttributesMemoryTypeId": RAW + "we know what we have set",
    "TRITONSERVER_BufferAttributesMemoryType": RAW + "we know what we have set",
    "TRITONSERVER_BufferAttributesByteSize": RAW + "we know what we have set",
    "TRITONSERVER_ResponseAllocatorDelete": RAW + "ours lives as long as the process",
    "TRITONSERVER_InferenceRequestRemoveInput": MADE_NEW,
    "TRITONSERVER_InferenceRequestRemoveAllInputs": MADE_NEW,
    "TRITONSERVER_InferenceRequestRemoveRequestedOutput": MADE_NEW,
    "TRITONSERVER_InferenceRequestRemoveAllRequestedOutputs": MADE_NEW,
    "TRITONSERVER_InferenceRequestId": KNOWN,
    "TRITONSERVER_InferenceRequestFlags": KNOWN,
    "TRITONSERVER_InferenceRequestCorrelationId": KNOWN,
    "TRITONSERVER_InferenceRequestCorrelationIdString": KNOWN,
    "TRITONSERVER_InferenceRequestPriority": RAW + "the 32 bits of PriorityUInt64",
    "TRITONSERVER_InferenceRequestPriorityUInt64": KNOWN,
    "TRITONSERVER_InferenceRequestSetPriority": RAW + "the 32 bits of SetPriorityUInt64",
    "TRITONSERVER_InferenceRequestTimeoutMicroseconds": KNOWN,
    "TRITONSERVER_InferenceRequestIsCancelled": RAW
    + "the request may be gone when it is asked, so `Inference.is_cancelled` keeps its own flag",
}

#: Functions that no docstring names, because they are a part of something: of what.
PART_OF = {
    "ApiVersion": "`Server`: checked when the library is loaded",
    "ErrorNew": "errors of callbacks and of `Server.load_function`",
    "ErrorDelete": "`TritonError`",
    "ErrorCode": "`TritonError`: its class",
    "ErrorCodeString": "`Server`: the class of the error of a failed start",
    "ErrorMessage": "`TritonError`: its text",
    "DataTypeByteSize": "`Server.load_function`: the size of outputs",
    "ParameterNew": "`Server.load`",
    "ParameterBytesNew": "`Server.load`",
    "ParameterDelete": "`Server.load`",
    "MessageDelete": "`Model.metadata` and whatever else Triton tells as JSON",
    "MessageSerializeToJson": "`Model.metadata` and whatever else Triton tells as JSON",
    "ResponseAllocatorNew": "`Response`: the memory of outputs",
    "ResponseAllocatorSetQueryFunction": "`Response`: the memory of outputs",
    "ResponseAllocatorSetBufferAttributesFunction": "`Request.out`: where the memory is",
    "BufferAttributesNew": "`Request.inputs`: memory of a GPU",
    "BufferAttributesDelete": "`Request.inputs`: memory of a GPU",
    "BufferAttributesSetByteSize": "`Request.inputs`: memory of a GPU",
    "BufferAttributesSetMemoryType": "`Request.inputs`: memory of a GPU",
    "BufferAttributesSetMemoryTypeId": "`Request.inputs`: memory of a GPU",
    "InferenceRequestAppendInputDataWithBufferAttributes": "`Request.inputs`: memory of a GPU",
    "InferenceRequestNew": "`Request`",
    "InferenceRequestDelete": "`Request`",
    "InferenceRequestRemoveAllInputData": "`Request`",
    "InferenceRequestSetReleaseCallback": "`Inference`",
    "InferenceRequestSetResponseCallback": "`Inference`",
    "InferenceRequestSetId": "`Request.request_id`",
    "InferenceRequestSetPriorityUInt64": "`Request.priority`",
    "InferenceRequestSetTimeoutMicroseconds": "`Request.queue_timeout`",
    "InferenceRequestAddInput": "`Request.inputs`",
    "InferenceRequestAddRequestedOutput": "`Request.outputs`",
    "InferenceRequestSetStringParameter": "`Request.parameters`",
    "InferenceRequestSetIntParameter": "`Request.parameters`",
    "InferenceRequestSetBoolParameter": "`Request.parameters`",
    "InferenceRequestSetDoubleParameter": "`Request.parameters`",
    "InferenceResponseDelete": "`Response`",
    "InferenceResponseError": "`Inference.result`: what it raises",
    "InferenceResponseId": "`Response.request_id`",
    "InferenceResponseModel": "`Response.model_name`, `Response.model_version`",
    "InferenceResponseParameterCount": "`Response.parameters`",
    "InferenceResponseParameter": "`Response.parameters`",
    "InferenceResponseOutputCount": "`Response`",
    "InferenceResponseOutput": "`Response`",
    "ServerOptionsDelete": "`Server`",
    "ServerSetExitTimeout": "`Server.close`: its `timeout`",
    "MetricsDelete": "`Server.metrics`",
    "MetricArgsNew": "`MetricFamily`: its `buckets`",
    "MetricArgsSetHistogram": "`MetricFamily`: its `buckets`",
    "MetricArgsDelete": "`MetricFamily`: its `buckets`",
}

#: Public names that are of Python alone. Of a class, its members are too.
OF_PYTHON = {
    "LibraryNotFoundError": "no library, no function",
    "ClosedError": "raised before Triton is asked",
    "QueueFullError": "an UnavailableError, told apart",
    "LogSettings": "what `log_settings` takes and returns",
    "AsyncResponseMap": "what `Model.async_map` returns",
    "ResponseMap": "what `Model.map` returns",
    "Inference.wake": "internal",
    "Inference.answer": "internal",
    "Inference.note_answer": "internal",
    "Inference.fail": "internal",
    "Inference.outcome": "internal",
    "Inference.has_result": "internal",
    "Inference.model_name": "as it was given",
    "Inference.request_id": "as it was given",
    "Inference.timeout": "as it was given",
    "AsyncResponseStream.aclose": "cancels, and drops what was not read",
    "Inference.check_deadline": "internal",
    "Inference.is_settled": "internal",
    "Inference.is_through": "internal",
    "Inference.orphan": "internal",
    "Inference.deliver": "internal",
    "Inference.leave": "internal",
    "Inference.end": "internal",
    "Inference.miss": "internal",
    "Inference.is_complete": "internal",
    "Inference.has": "internal",
    "Inference.enter": "internal",
    "Inference.live_token": "internal",
    "Inference.done": "waits for the callbacks",
    "Inference.result": "waits for the callbacks",
    "Inference.wait": "waits for the callbacks",
    "ResponseStream.close": "cancels, and drops what was not read",
    "MemoryPool": "memory of this package's own",
    "memory_pool": "likewise",
    "FunctionCopies": "counts of this package's own",
    "function_copies": "likewise",
    "Model": "a name and a version, which its functions take",
    "Server.model": "likewise",
    "Server.closed": "what `close` has done",
    "ServerOptions.calls": "internal",
    "ServerOptions.paths": "internal",
    "ModelStatus": "what `Server.models` returns",
    "TensorSpec": "a part of what `Model.inputs` returns",
    "BatchStatistics": "a part of `ModelStatistics`",
    "MemoryUsage": "a part of `ModelStatistics`",
    "ResponseStatistics": "a part of `ModelStatistics`",
    "StatisticDuration": "a part of `ModelStatistics`",
    "ModelStatistics.last_inference": "a part of `ModelStatistics`",
    "ModelStatistics.mean_batch_size": "a part of `ModelStatistics`",
    "Context": "read with Triton's backend API, which callables are behind",
    "ContextRequest": "likewise",
    "Result": "likewise",
    "MetricFamily.closed": "what `close` has done",
    "Metric.closed": "what `close` has done",
    "MetricFamilySamples": "what `Server.metrics_dict` returns",
    "MetricSample": "a part of `MetricFamilySamples`",
    "parse_metrics": "takes the text of `Server.metrics` apart",
    "Trace.close": "ends what Triton was never given",
    "Trace.wait": "waits for the callbacks",
    "Trace.is_complete": "what the callbacks have told",
    "Trace.spans": "what the callbacks have told",
    "Trace.timestamps": "what the callbacks have told",
    "Trace.activities": "what the callbacks have told",
    "Trace.tensors": "what the callbacks have told",
    "Trace.children": "what the callbacks have told",
    "Trace.dropped": "what the callbacks have told",
    "Trace.to_chrome": "what the callbacks have told",
    "TraceRecord": "what `Trace.record` returns",
    "TraceEvent": "a part of `TraceRecord`",
    "TraceSpan": "a part of `TraceRecord`",
    "TraceTensor": "a part of `TraceRecord`",
    "chrome_trace": "makes JSON of `TraceRecord`",
}


class Public(NamedTuple):
    """A public name."""

    name: str
    value: object
    doc: str


class Test(NamedTuple):
    """A test function, and what it mentions."""

    file: str
    name: str
    attributes: frozenset[str]
    names: frozenset[str]


def without_comments(text: str) -> str:
    """Drops what is no code in C."""
    return re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)


@cache
def header() -> str:
    """The declarations of C, without their comments."""
    return without_comments((ROOT / "csrc/tritonserver.h").read_text(encoding="utf-8"))


@cache
def declared() -> tuple[str, ...]:
    """The functions of C, in the order of the header."""
    return tuple(re.findall(r"\b(TRITONSERVER_\w+)\(", header()))


@cache
def option_setters() -> dict[str, str]:
    """The fields of `ServerOptions` by the setter that is called for them."""
    return {
        field.metadata["setter"]: f"ServerOptions.{field.name}"
        for field in dataclasses.fields(tritonffi.ServerOptions)
    }


def mentions(tree: ast.AST) -> tuple[set[str], set[str]]:
    """The attributes (and keywords), and the names (and strings) that stand in some code."""
    attributes, names = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            attributes.add(node.attr)
        elif isinstance(node, ast.keyword) and node.arg:
            attributes.add(node.arg)
        elif isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)
    return attributes, names


@cache
def callers() -> dict[str, list[str]]:
    """The files that call a function of C, by its name."""
    found = defaultdict(list)
    for path in sorted((ROOT / "tritonffi").glob("*.py")):
        attributes, names = mentions(ast.parse(path.read_text(encoding="utf-8")))
        for name in (attributes | names) & set(declared()):
            found[name].append(f"tritonffi/{path.name}")
    for path in sorted((ROOT / "csrc").glob("*.c")):
        text = without_comments(path.read_text(encoding="utf-8"))
        calls = re.findall(r"\b(TRITONSERVER_\w+)\(", text)
        for name in sorted(set(calls)):
            found[name].append(f"csrc/{path.name}")
    for name in option_setters():
        found[name].append("tritonffi/_options.py")
    return found


@cache
def public() -> tuple[Public, ...]:
    """Every public name: what `__all__` lists, and the public members of its classes."""
    found = []
    for name in tritonffi.__all__:
        value = getattr(tritonffi, name)
        if name == "__version__":
            continue
        found.append(Public(name, value, inspect.getdoc(value) or ""))
        if inspect.isclass(value):
            for attribute, member in sorted(vars(value).items()):
                function = getattr(member, "fget", None) or getattr(member, "__func__", member)
                if not attribute.startswith("_") and inspect.isfunction(function):
                    doc = inspect.getdoc(function) or ""
                    found.append(Public(f"{name}.{attribute}", function, doc))
    return tuple(found)


def c_functions(doc: str) -> list[str]:
    """The functions of C that a docstring names."""
    return list(dict.fromkeys(re.findall(r"TRITONSERVER_\w+", doc)))


@cache
def python_names() -> dict[str, list[str]]:
    """The public names by the function of C that their docstrings name."""
    found = defaultdict(list)
    for setter, option in option_setters().items():
        found[setter].append(option)
    for name, _, doc in public():
        for function in c_functions(doc):
            found[function].append(name)
    return found


@cache
def tests() -> tuple[Test, ...]:
    """Every test function of the suite, file by file."""
    found = []
    for path in sorted((ROOT / "tests").glob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                attributes, names = mentions(node)
                if node.name.startswith("test_"):
                    found.append(
                        Test(path.name, node.name, frozenset(attributes), frozenset(names))
                    )
    return tuple(found)


def find_test(function: str) -> str:
    """A test that uses a function of C: by its own name, or by a public name that it is behind."""
    part_of = PART_OF.get(function.removeprefix("TRITONSERVER_"), "")
    public_names = python_names()[function] or re.findall(r"`([A-Z][\w.]*)`", part_of)
    direct = [t for t in tests() if function in t.attributes | t.names]
    if direct:
        return f"{direct[0].file}: {direct[0].name}"
    words = [name.partition(".")[2] for name in public_names]
    return (
        find_test_of(public_names)
        or find_file([function], "tests/test_*.py", "examples/*.py")
        or find_file(words, "tests/test_*.py")
    )


def find_test_of(public_names: Iterable[str]) -> str:
    """The test that most probably is about one of the names."""
    found: list[tuple[int, str]] = []
    for name in public_names:
        owner, _, member = name.rpartition(".")
        for test in tests():
            if member in (test.attributes if owner else test.attributes | test.names):
                # Several classes may have the attribute: the names of file and test say which.
                file = test.file.removeprefix("test_").removesuffix(".py").split("_")
                score = 3 * any(alike(owner or member, word) for word in file)
                score += 2 * any(alike(member, word) for word in file)
                score += 2 * any(
                    alike(part, word) for part in member.split("_") for word in test.name.split("_")
                )
                found.append((score, f"{test.file}: {test.name}"))
    return max(found, key=lambda each: each[0])[1] if found else ""


def alike(one: str, other: str) -> bool:
    """Whether two words begin alike: metric and metrics, infer and inference."""
    size = min(len(one), len(other))
    return size >= SHORTEST and one[:size].lower() == other[:size].lower()


def find_file(words: Iterable[str], *patterns: str) -> str:
    """The first file in which one of the words stands."""
    paths = [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]
    for word in filter(None, words):
        for path in paths:
            if re.search(rf"\b{word}\b", path.read_text(encoding="utf-8")):
                return path.name if path.name.startswith("test_") else f"examples/{path.name}"
    return ""


def code(names: Iterable[str]) -> str:
    """Writes names as code."""
    return ", ".join(f"`{name}`" for name in names)


def signature(name: str, function: Callable[..., object], *, typed: bool) -> str:
    """How something is called: on one line, or typed, and on several where one is too short."""
    shown = inspect.signature(function)
    parameters = []
    separators = ""
    for parameter in shown.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not separators:
            separators = "*"
            parameters.append("*")
        text = str(parameter.replace(annotation=parameter.empty, default=parameter.empty))
        if parameter.kind is parameter.VAR_POSITIONAL:
            separators = text
        if typed and parameter.annotation is not parameter.empty:
            hint = parameter.annotation
            text += f": {getattr(hint, '__forward_arg__', hint)}"
        if parameter.default is not parameter.empty:
            equals = " = " if ": " in text else "="
            text += f"{equals}{default_text(parameter.default)}"
        parameters.append(text)
    line = f"{name}({', '.join(parameters)})"
    if not typed:
        return line
    back = "" if inspect.isclass(function) else f" -> {shown.return_annotation}"
    if len(line + back) <= LINE:
        return line + back
    return f"{name}(\n" + "".join(f"    {text},\n" for text in parameters) + f"){back}"


def default_text(value: object) -> str:
    """A default value as it is written."""
    if isinstance(value, enum.Enum):
        return str(f"{type(value).__name__}.{value.name}")
    if value is ...:
        return "..."
    return "{}" if repr(value) == "<factory>" else repr(value)  # of a dataclass: all make a dict


def class_lines(value: type) -> Iterator[str]:
    """How an object is made, or which values there are."""
    init = inspect.getdoc(value.__init__) or ""
    is_made = value.__init__ is not object.__init__ or hasattr(value, "_fields")
    is_made = is_made and value.__name__ != "Inference"
    if issubclass(value, enum.Enum):
        yield ""
        yield f"Values: {code(value.__members__)}."
    elif is_made and not issubclass(value, Exception) and not init.startswith("Leave this to"):
        yield ""
        yield "```py"
        yield signature(value.__name__, value, typed=True)
        yield "```"


def c_api() -> Iterator[str]:
    """The lines of c_api.md."""
    yield "# The functions of C and their places in Python"
    yield ""
    yield f"Made by `python docs/make_tables.py` from the code. Of each of the {len(declared())}"
    yield "functions of `tritonserver.h`: the public names whose docstrings name it, or what it is"
    yield "a part of; the files that call it; a test that uses it, or the public name. All of them"
    yield "can be called through `tritonffi.capi` as well."
    yield ""
    yield "| C: `TRITONSERVER_`… | Python | called in | a test |"
    yield "|---|---|---|---|"
    for function in declared():
        short = function.removeprefix("TRITONSERVER_")
        named = code(python_names()[function]) or PART_OF.get(short, "")
        reason = NOT_CALLED.get(function)
        python = named if reason is None else "; ".join(filter(None, (named, reason)))
        called = code(callers().get(function, ()))
        yield f"| `{short}` | {python} | {called} | {find_test(function)} |"


def api() -> Iterator[str]:
    """The lines of api.md."""
    yield "# Every public name"
    yield ""
    yield "Made by `python docs/make_tables.py`: how each is called, the first sentence of its"
    yield "docstring, and the functions of C behind it. `help(tritonffi.Model.infer)` says all:"
    yield "arguments, errors, ownership. `**keywords` are the attributes of `Request`, but for"
    yield "`inputs`; `**fields` those of `ServerOptions`."
    owner: object = None
    for name, value, doc in public():
        if OF_PYTHON.get(name) == "internal":
            continue
        owner = owner if "." in name else value
        summary = summary_of(doc)
        behind = code(c_functions(doc))
        if "." not in name:
            yield ""
            yield f"## {name}"
            yield ""
            yield summary
            if inspect.isclass(value):
                yield from class_lines(value)
            elif inspect.isfunction(value):
                yield ""
                yield "```py"
                yield signature(name, value, typed=True)
                yield "```"
            if behind:
                yield ""
                yield f"C: {behind}"
            if inspect.isclass(value) and any(p.name.startswith(f"{name}.") for p in public()):
                yield ""
                yield "| | | C |"
                yield "|---|---|---|"
        else:
            short = name.partition(".")[2]
            is_property = isinstance(inspect.getattr_static(owner, short), property)
            call = short if is_property else signature(short, value, typed=False)
            yield f"| `{call}` | {summary} | {behind} |"
    yield ""
    yield "## tritonffi.capi"
    yield ""
    yield summary_of(inspect.getdoc(capi) or "")
    yield "[The functions of C](c_api.md) has all of them."


def summary_of(doc: str) -> str:
    """The first paragraph of a docstring, on one line."""
    return doc.partition("\n\n")[0].replace("\n", " ")


PAGES = {"c_api.md": c_api, "api.md": api}


def main() -> None:
    """Writes the pages."""
    for name, lines in PAGES.items():
        (ROOT / "docs" / name).write_text("\n".join(lines()) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
