# SPDX-License-Identifier: Apache-2.0
"""
The import table: what is answered before a library is loaded, and by a library that lacks things.

A process loads one library for good, so each test runs a Python of its own. Libraries that are too
old, of another API, or hard to load cannot be had, so these are small ones of C, made here.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tritonffi import _native

# The smallest library that is accepted: what has no error channel, errors, and the version.
MINIMUM = """
#include <stdlib.h>
#include <string.h>
#include <stdint.h>
#define TEXT(name) const char *name(int value) { (void)value; return #name; }
typedef struct { int code; char text[256]; } error;
error *TRITONSERVER_ErrorNew(int code, const char *text)
{ error *e = calloc(1, sizeof *e); e->code = code; strncpy(e->text, text, 255); return e; }
int TRITONSERVER_ErrorCode(error *e) { return e->code; }
const char *TRITONSERVER_ErrorMessage(error *e) { return e->text; }
TEXT(TRITONSERVER_ErrorCodeString)
TEXT(TRITONSERVER_DataTypeString)
TEXT(TRITONSERVER_MemoryTypeString)
TEXT(TRITONSERVER_ParameterTypeString)
TEXT(TRITONSERVER_InstanceGroupKindString)
TEXT(TRITONSERVER_InferenceTraceLevelString)
TEXT(TRITONSERVER_InferenceTraceActivityString)
int TRITONSERVER_StringToDataType(const char *text) { return (int)strlen(text); }
uint32_t TRITONSERVER_DataTypeByteSize(int type) { return (uint32_t)type; }
_Bool TRITONSERVER_LogIsEnabled(int level) { return level == 0; }
void *TRITONSERVER_ParameterNew(const char *n, int t, const void *v)
{ (void)n; (void)t; (void)v; return NULL; }
void *TRITONSERVER_ParameterBytesNew(const char *n, const void *v, uint64_t s)
{ (void)n; (void)v; (void)s; return NULL; }
void TRITONSERVER_ParameterDelete(void *p) { (void)p; }
"""
DELETE = "void TRITONSERVER_ErrorDelete(error *e) { free(e); }\n"
VERSION = """
error *TRITONSERVER_ApiVersion(uint32_t *major, uint32_t *minor)
{ *major = MAJOR; *minor = 7; return NULL; }
"""

# What every script below begins with.
PRELUDE = """
import json, sys
from tritonffi import _call, _errors
from tritonffi._native import ffi, lib

def load(path, *neighbours):
    message = ffi.new("char[]", 4096)
    names = [ffi.new("char[]", n.encode()) for n in neighbours]
    loaded = lib.tffi_library_load(
        path.encode(), ffi.new("char *[]", names), len(names), message, len(message)
    )
    return [loaded, ffi.string(message).decode()]

def names():
    pointer = ffi.new("const char *const **")
    count = lib.tffi_library_functions(pointer)
    return [ffi.string(pointer[0][i]).decode() for i in range(count)]

def path():
    return _call.string(lib.tffi_library_path())

def error(function, *arguments):
    error = function(*arguments)
    try:
        _call.check(error)
    except _errors.TritonError as e:
        return [type(e).__name__, str(e)]
    return None
"""


def run(script, *arguments):
    """Run a script in a Python of its own, and return what it prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + script, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def compile_library(path, source, *flags):
    """Make a shared library of C source."""
    command = ["cc", "-shared", "-fPIC", "-xc", "-", "-o", str(path), *flags]
    subprocess.run(command, input=source, text=True, check=True, cwd=path.parent)
    return path


@pytest.fixture(scope="module")
def old_library(tmp_path_factory):
    """Make a library with the required functions, errors and the version, and no more."""
    path = tmp_path_factory.mktemp("old") / "libtritonserver.so"
    return compile_library(path, MINIMUM + DELETE + VERSION, "-DMAJOR=1")


def test_before_a_library_is_loaded_every_function_answers_with_an_error():
    """NULL would mean success; all that can return an error object does, and says which it is."""
    answers = run("""
answers = {}
for name in names():
    function = getattr(lib, name, None)
    if function is not None:
        ctype = ffi.typeof(function)
        if ctype.result.cname == "struct TRITONSERVER_Error *":
            arguments = [0 if a.kind in ("primitive", "enum") else ffi.NULL for a in ctype.args]
            answers[name] = error(function, *arguments)
print(json.dumps(answers))
""")
    assert len(answers) == 172 - 16
    for name, answer in answers.items():
        assert answer == ["UnsupportedError", f"{name} needs Triton: no library is loaded"]


def test_before_a_library_is_loaded_functions_without_errors_say_nothing():
    """There is no honest answer, so there is a harmless one."""
    assert run("""
print(json.dumps([
    _call.string(lib.TRITONSERVER_DataTypeString(lib.TRITONSERVER_TYPE_FP32)),
    lib.TRITONSERVER_StringToDataType(b"FP32"),
    lib.TRITONSERVER_DataTypeByteSize(lib.TRITONSERVER_TYPE_FP32),
    lib.TRITONSERVER_LogIsEnabled(lib.TRITONSERVER_LOG_ERROR),
    bool(lib.TRITONSERVER_ParameterNew(b"x", lib.TRITONSERVER_PARAMETER_STRING, b"y")),
    lib.tffi_library_has(b"TRITONSERVER_ApiVersion"),
    path(),
]))
""") == ["<no Triton library is loaded>", 0, 0, False, False, False, ""]


def test_an_answer_from_before_the_load_stays_readable(old_library):
    """No library made it, so none is asked about it, and to delete it does nothing."""
    script = """
early = lib.TRITONSERVER_ServerStop(ffi.NULL)
loaded = load(sys.argv[1])
print(json.dumps([loaded, _call.string(lib.TRITONSERVER_ErrorCodeString(early)),
                  error(lambda: early), error(lambda: early)]))
"""
    answer = ["UnsupportedError", "TRITONSERVER_ServerStop needs Triton: no library is loaded"]
    assert run(script, old_library) == [[True, ""], "Unsupported", answer, answer]


def test_a_function_that_the_library_lacks_is_unsupported_by_name(old_library):
    """An older library works as far as it goes."""
    script = """
print(json.dumps([
    load(sys.argv[1]),
    error(lib.TRITONSERVER_ServerSetExitTimeout, ffi.NULL, 1),
    lib.tffi_library_has(b"TRITONSERVER_ServerSetExitTimeout"),
    lib.tffi_library_has(b"TRITONSERVER_ApiVersion"),
    lib.tffi_library_has(b"no_such_function"),
    lib.TRITONSERVER_DataTypeByteSize(7),
]))
"""
    missing = "the library that is loaded has no TRITONSERVER_ServerSetExitTimeout"
    assert run(script, old_library) == [
        [True, ""],
        ["UnsupportedError", missing],
        False,
        True,
        False,
        7,
    ]


def test_a_library_without_a_required_function_is_refused(tmp_path):
    """The 16 functions that cannot say that they are missing must be there."""
    path = compile_library(tmp_path / "lib.so", MINIMUM + VERSION, "-DMAJOR=1")
    script = """
print(json.dumps([load(sys.argv[1]), error(lib.TRITONSERVER_ServerStop, ffi.NULL), path()]))
"""
    assert run(script, path) == [
        [False, f"{path} is no Triton library, or too old: it lacks TRITONSERVER_ErrorDelete"],
        ["UnsupportedError", "TRITONSERVER_ServerStop needs Triton: no library is loaded"],
        "",
    ]


def test_the_required_functions_are_those_without_an_error_channel(tmp_path):
    """A library of nothing is told all that it lacks: 16 names."""
    path = compile_library(tmp_path / "lib.so", "")
    loaded, message = run("print(json.dumps(load(sys.argv[1])))", path)
    assert not loaded
    beginning = f"{path} is no Triton library, or too old: it lacks "
    assert message.startswith(beginning)
    lacks = message.removeprefix(beginning).split(", ")
    errors = run("""
print(json.dumps([n for n in names() if hasattr(lib, n)
    and ffi.typeof(getattr(lib, n)).result.cname == "struct TRITONSERVER_Error *"]))
""")
    declared = [n for n in run("print(json.dumps(names()))") if n.startswith("TRITONSERVER_")]
    assert len(lacks) == 16
    assert lacks == [name for name in declared if name not in errors]


def test_another_major_version_of_the_api_is_refused(tmp_path):
    """Its functions may mean anything."""
    path = compile_library(tmp_path / "lib.so", MINIMUM + DELETE + VERSION, "-DMAJOR=2")
    script = "print(json.dumps([load(sys.argv[1]), path()]))"
    message = f"{path} speaks version 2.7 of Triton's C API, and tritonffi version 1.x"
    assert run(script, path) == [[False, message], ""]


def test_a_library_without_a_version_is_refused(tmp_path):
    """What does not tell its version is nothing that we know."""
    path = compile_library(tmp_path / "lib.so", MINIMUM + DELETE)
    message = f"{path} does not tell its API version: it lacks TRITONSERVER_ApiVersion"
    assert run("print(json.dumps(load(sys.argv[1])))", path) == [False, message]


def test_after_a_refused_library_a_good_one_can_be_loaded(tmp_path, old_library):
    """A failed try changes nothing."""
    bad = compile_library(tmp_path / "bad.so", MINIMUM + VERSION, "-DMAJOR=1")
    script = """
print(json.dumps([load(sys.argv[1])[0], load(sys.argv[2]), path()]))
"""
    assert run(script, bad, old_library) == [False, [True, ""], str(old_library)]


def test_the_same_library_again_is_success_and_another_is_refused(tmp_path, old_library):
    """Whatever it is called, one file is one library; a second one has no place in the process."""
    link = tmp_path / "link.so"
    link.symlink_to(old_library)
    hard = tmp_path / "hard.so"
    hard.hardlink_to(old_library)
    other = compile_library(tmp_path / "other.so", MINIMUM + DELETE + VERSION, "-DMAJOR=1")
    script = "print(json.dumps([load(p) for p in sys.argv[1:]]))"
    refused = f"this process has loaded {old_library} already and cannot load {other} as well"
    assert run(script, old_library, old_library, link, hard, other) == [
        [True, ""],
        [True, ""],
        [True, ""],
        [True, ""],
        [False, refused],
    ]


def test_neighbours_are_opened_in_whatever_order_they_need(tmp_path):
    """Each needs the next by its bare name, which the loader finds only if it is open already."""
    names = [f"lib{letter}-0000.so" for letter in "abcd"]
    needed = ()
    for name in reversed(names):
        soname = f"-Wl,-soname,{name}"
        compile_library(tmp_path / name, f"int {name[3]}(void);", soname, *needed)
        needed = ("-Wl,--no-as-needed", f"-L{tmp_path}", f"-l:{name}")
    source = MINIMUM + DELETE + VERSION
    path = compile_library(tmp_path / "libtritonserver.so", source, "-DMAJOR=1", *needed)
    script = "print(json.dumps([load(sys.argv[1]), load(*sys.argv[1:])]))"
    (alone, message), together = run(script, path, *(tmp_path / name for name in names))
    assert not alone
    assert "liba-0000.so: cannot open shared object file" in message
    assert together == [True, ""]


def test_a_load_that_fails_names_the_neighbours_that_failed(tmp_path):
    """The reason is often one library further."""
    broken = tmp_path / "libbroken.so"
    broken.write_bytes(b"no library")
    path = compile_library(
        tmp_path / "lib.so", "int missing(void); int f(void) {return missing();}"
    )
    script = "print(json.dumps(load(*sys.argv[1:])))"
    loaded, message = run(script, path, broken)
    assert not loaded
    assert message.startswith(f"{path} does not load: {path}: undefined symbol: missing")
    assert f"; nor do 1 of its 1 neighbours: {broken} (" in message


def test_a_message_that_does_not_fit_is_cut(tmp_path):
    """The buffer is the caller's, and its size is kept to."""
    script = """
message = ffi.new("char[]", b"x" * 31)
lib.tffi_library_load(sys.argv[1].encode(), ffi.NULL, 0, message, 8)
print(json.dumps(ffi.buffer(message)[:].decode()))
"""
    missing = tmp_path / "missing.so"
    assert run(script, missing) == str(missing)[:7] + "\0" + "x" * 23 + "\0"


def test_the_library_of_the_suite_has_every_function(library):
    """All 172 of the C API, and all that the backend part calls."""
    script = """
from tritonffi import _library
_library.load(sys.argv[1])
all_names = names()
print(json.dumps([len([n for n in all_names if n.startswith("TRITONSERVER_")]),
                  [n for n in all_names if not lib.tffi_library_has(n.encode())]]))
"""
    assert run(script, library.path) == [172, []]


def test_only_a_link_to_the_extension_is_the_extension(tmp_path):
    """A copy is a second library with a table that nobody fills: Triton would crash in it."""
    extension = Path(_native.__file__)
    link = tmp_path / "link.so"
    link.symlink_to(extension)
    copy = tmp_path / "copy.so"
    copy.write_bytes(extension.read_bytes())
    missing = tmp_path / "missing.so"
    script = """
def is_self(path):
    message = ffi.new("char[]", 4096)
    same = lib.tffi_library_is_self(path.encode(), message, len(message))
    return [same, ffi.string(message).decode()]
print(json.dumps([is_self(path) for path in sys.argv[1:]]))
"""
    first, second, third = run(script, link, copy, missing)
    assert first == [True, ""]
    assert second == [
        False,
        f"{copy} is not the extension that this process runs, {extension} (was it replaced since?)",
    ]
    assert not third[0]
    assert third[1].startswith(f"{missing} does not load: ")


def test_source_without_the_extension_says_what_to_do(tmp_path):
    """After `pip install .` a Python that is started in the clone finds the source first."""
    package = Path(_native.__file__).parent
    shutil.copytree(package, tmp_path / "tritonffi", ignore=shutil.ignore_patterns("*.so"))
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import tritonffi"],  # without what is installed
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    *_, last = done.stderr.splitlines()
    where = "is source without the extension that is built from it, and Python looks there first"
    assert last.startswith(f"ImportError: {tmp_path / 'tritonffi'} {where}: start it in another")
