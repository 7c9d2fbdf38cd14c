# SPDX-License-Identifier: Apache-2.0
"""
Builds `tritonffi._native`: headers -> cdef and import table -> one extension.

Only the headers in csrc/ declare anything. This file reads them and generates, into the build's
own temporary C file,

1. the import table: an entry per function, born pointing at an answer, filled by csrc/library.c;
2. the functions of Triton's names, which jump through the table (so nothing links to Triton);
3. where the build is pointed at Triton's own header, a compile-time check of each declaration.

Environment:

- `TRITONFFI_INCLUDE_DIR`: a folder that holds `triton/core/tritonserver.h`. The extension is then
  compiled against that header in place of csrc/tritonserver.h. Because definitions, enumerators and
  callback types are spelled again from ours, a declaration of ours that is wrong stops the build.
  If `triton/core/tritonbackend.h` is there as well, csrc/tritonbackend.h is held against it too.
- `TRITONFFI_WERROR=1`: warnings are errors.
- `TRITONFFI_SANITIZE=1`: AddressSanitizer and UndefinedBehaviorSanitizer.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from cffi import FFI
from pycparser import c_ast, c_generator, c_parser

CSRC = Path("csrc")  # relative: setuptools wants paths below the folder of setup.py
REAL_HEADER = Path("triton/core/tritonserver.h")
REAL_BACKEND_HEADER = Path("triton/core/tritonbackend.h")

# What pycparser cannot know without the system's headers; only the spelling matters here.
TYPES = """
typedef int bool, size_t, int8_t, int16_t, int32_t, int64_t;
typedef int uint8_t, uint16_t, uint32_t, uint64_t;
"""

ERROR = "struct TRITONSERVER_Error *"


class Function(NamedTuple):
    """A declared function, in the spelling of our header."""

    name: str
    returns: str
    parameters: str
    arguments: str


class Header(NamedTuple):
    """What one of our headers declares."""

    functions: list[Function]
    exported: list[str]  # prototypes of what we define and Triton looks up
    enums: dict[str, dict[str, str]]
    callbacks: list[str]
    structs: list[str]


def declarations(*names: str) -> str:
    """The text of headers without their `#` lines: what is left is plain C for a parser."""
    lines = "\n".join((CSRC / name).read_text(encoding="utf-8") for name in names).splitlines()
    return "\n".join(line for line in lines if not line.startswith("#"))


def parse(text: str, *, known: str = "") -> Header:
    """Take a header apart; `known` is the text of the headers that it builds on."""
    header = Header([], [], {}, [], [])
    spell = c_generator.CGenerator().visit
    own = len(c_parser.CParser().parse(TYPES + without_comments(known)).ext)
    # Our mark for exported functions, in a form that a C parser knows.
    source = without_comments(text).replace("TRITONFFI_EXPORT", "extern")
    for node in c_parser.CParser().parse(TYPES + without_comments(known) + source).ext[own:]:
        inner = node.type
        if isinstance(inner, c_ast.FuncDecl):
            if "extern" in node.storage:
                header.exported.append(spell(node).removeprefix("extern "))
                continue
            parameters = [] if inner.args is None else inner.args.params
            names = [p.name for p in parameters if p.name is not None]
            header.functions.append(
                Function(
                    node.name,
                    spell(nameless(inner.type)),
                    ", ".join(spell(p) for p in parameters) or "void",
                    ", ".join(names),
                )
            )
        elif isinstance(node, c_ast.Typedef) and isinstance(inner.type, c_ast.Enum):
            header.enums[node.name] = {
                e.name: spell(e.value) for e in inner.type.values.enumerators
            }
        elif isinstance(node, c_ast.Typedef):
            header.callbacks.append(spell(node))
        elif isinstance(inner, c_ast.Struct):
            header.structs.append(inner.name)
    return header


def nameless(node: c_ast.Node) -> c_ast.Node:
    """A type as it stands in a cast: pycparser keeps the declared name in the innermost part."""
    part = node
    while not isinstance(part, c_ast.TypeDecl):
        part = part.type
    part.declname = None
    return c_ast.Typename(None, [], None, node)


def without_comments(text: str) -> str:
    """Drop comments, which pycparser leaves to a preprocessor."""
    return re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)


def import_table(functions: list[Function]) -> str:
    """
    The table, the answers it is born with, and the functions that jump through it.

    A function that returns an error object answers with one. Before a library is loaded nobody can
    make such an object, so the answer is the address of an entry in `unloaded`, which the four
    functions that take an error object recognise, then and for ever after.
    """
    names = [f.name for f in functions]
    parts = [
        '#include "imports.h"',
        '#include "internal.h"',
        f"enum {{ {', '.join(f'AT_{name}' for name in names)}, TABLE_SIZE }};",
        "const uint32_t tffi_import_count = TABLE_SIZE;",
        f"const char *const tffi_import_names[] = {{ {', '.join(map(quoted, names))} }};",
        "const bool tffi_import_required[] = { "
        + ", ".join("false" if f.returns == ERROR else "true" for f in functions)
        + " };",
        "static const char *const unloaded[] = { "
        + ", ".join(quoted(f"{name} needs Triton: no library is loaded") for name in names)
        + " };",
        "static const char *const lacking[] = { "
        + ", ".join(quoted(f"the library that is loaded has no {name}") for name in names)
        + " };",
        IMPORT_HELPERS,
    ]
    parts += [missing(f) for f in functions]
    parts.append(
        "static tffi_import table[TABLE_SIZE] = {\n"
        + ",\n".join(f"  (tffi_import)missing_{name}" for name in names)
        + "\n};"
    )
    parts.append(IMPORT_PUBLISH)
    parts.append("#pragma GCC diagnostic push")
    # A function that the header in use does not declare is one that we made up.
    parts.append('#pragma GCC diagnostic error "-Wmissing-prototypes"')
    parts += [trampoline(f) for f in functions]
    parts.append("#pragma GCC diagnostic pop")
    return "\n".join(parts)


IMPORT_HELPERS = """
static bool library_loaded;

static bool is_unloaded(const struct TRITONSERVER_Error *error)
{
  uintptr_t at = (uintptr_t)error;
  return at >= (uintptr_t)unloaded && at < (uintptr_t)(unloaded + TABLE_SIZE);
}

static struct TRITONSERVER_Error *missing(uint32_t index)
{
  if (__atomic_load_n(&library_loaded, __ATOMIC_ACQUIRE) && index != AT_TRITONSERVER_ErrorNew) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNSUPPORTED, lacking[index]);
  }
  return (struct TRITONSERVER_Error *)(uintptr_t)&unloaded[index];
}
"""

IMPORT_PUBLISH = """
void tffi_imports_publish(const tffi_import *found)
{
  for (uint32_t i = 0; i < TABLE_SIZE; ++i) {
    if (found[i] != NULL) {
      __atomic_store_n(&table[i], found[i], __ATOMIC_RELEASE);
    }
  }
  __atomic_store_n(&library_loaded, true, __ATOMIC_RELEASE);
}
"""

# What the functions that take an error object say of one that no library made.
UNLOADED = {
    "TRITONSERVER_ErrorCode": "return TRITONSERVER_ERROR_UNSUPPORTED;",
    "TRITONSERVER_ErrorCodeString": 'return "Unsupported";',
    "TRITONSERVER_ErrorMessage": "return *(const char *const *)(uintptr_t)error;",
    "TRITONSERVER_ErrorDelete": "return;",
}

# What may change the models of a server: requests that wait to serve again are let go around it.
CHANGES = {
    "TRITONSERVER_ServerNew",
    "TRITONSERVER_ServerDelete",
    "TRITONSERVER_ServerStop",
    "TRITONSERVER_ServerLoadModel",
    "TRITONSERVER_ServerLoadModelWithParameters",
    "TRITONSERVER_ServerPollModelRepository",
    "TRITONSERVER_ServerUnloadModel",
    "TRITONSERVER_ServerUnloadModelAndDependents",
}


def missing(function: Function) -> str:
    """The answer that stands in the table until a library gives the function itself."""
    if function.returns == ERROR:
        body = f"return missing(AT_{function.name});"
    elif function.returns == "const char *":
        body = 'return "<no Triton library is loaded>";'
    else:
        # No error channel: a library must have it, so this is seen only before one is loaded.
        body = "" if function.returns == "void" else f"return ({function.returns})0;"
    unused = " ".join(f"(void){name};" for name in function.arguments.split(", ") if name)
    head = f"static {function.returns} missing_{function.name}({function.parameters})"
    return f"{head}\n{{ {unused} {body} }}"


def trampoline(function: Function) -> str:
    """The function itself: hidden, whatever the header in use says, and most are one jump long."""
    known = UNLOADED.get(function.name)
    first = f"if (is_unloaded(error)) {{ {known} }} " if known else ""
    back = "" if function.returns == "void" else "return "
    kind = f"{function.returns} (*)({function.parameters})"
    entry = f"__atomic_load_n(&table[AT_{function.name}], __ATOMIC_RELAXED)"
    jump = f"(({kind}){entry})({function.arguments});"
    if function.name in CHANGES:
        body = f"tffi_spares_forbid(); {ERROR}error = {jump} tffi_spares_allow(); return error;"
    else:
        body = f"{first}{back}{jump}"
    return (
        f'__attribute__((visibility("hidden"))) {function.returns} '
        f"{function.name}({function.parameters})\n"
        f"{{ {body} }}"
    )


def quoted(text: str) -> str:
    """A C string literal; our texts need no escapes."""
    return f'"{text}"'


def real_header_checks(header: Header) -> str:
    """
    Hold our enums and callback types against the header in use.

    The compiler compares functions by itself, since the table's are spelled from our types. It
    must be told to compare the rest: each value, no enumerator more than ours, and each callback
    type once more (C11 lets a typedef be repeated if it is the same type).
    """
    parts = [f"{callback};" for callback in header.callbacks]
    parts += [
        f'_Static_assert({name} == {value}, "{name} is not {value} in the header in use");'
        for enum in header.enums.values()
        for name, value in enum.items()
    ]
    parts.append('#pragma GCC diagnostic push\n#pragma GCC diagnostic error "-Wswitch"')
    for enum, values in header.enums.items():
        cases = " ".join(f"case {name}:" for name in values)
        parts.append(
            f"__attribute__((unused)) static void every_{enum}({enum} value)\n"
            f"{{ switch (value) {{ {cases} break; }} }}"
        )
    parts.append("#pragma GCC diagnostic pop")
    return "\n".join(parts)


def real_include_dir() -> Path | None:
    """Where Triton's own headers are, if the build is to be held against them."""
    value = os.environ.get("TRITONFFI_INCLUDE_DIR")
    if not value:
        return None
    folder = Path(value).absolute()
    if not (folder / REAL_HEADER).is_file():
        raise SystemExit(
            f"TRITONFFI_INCLUDE_DIR={value}: no {REAL_HEADER} in there (looked for "
            f"{folder / REAL_HEADER}). Set it to the folder that holds triton/, such as the "
            "include/ folder of a checkout of github.com/triton-inference-server/core, or unset it "
            "to build with tritonffi's own declarations."
        )
    return folder


def flag(name: str) -> bool:
    """Whether a switch in the environment is on."""
    return os.environ.get(name, "0") not in ("", "0")


def builder() -> FFI:
    """Put the extension together."""
    server_text = declarations("tritonserver.h")
    backend_text = declarations("tritonbackend.h")
    server = parse(server_text)
    backend = parse(backend_text, known=server_text)

    compile_args = ["-std=c11", "-O2", "-pthread", "-fvisibility=hidden"]
    compile_args += ["-Wall", "-Wextra", "-Wconversion"]
    link_args = ["-pthread"]
    if flag("TRITONFFI_WERROR"):
        compile_args.append("-Werror")
    if flag("TRITONFFI_SANITIZE"):
        sanitizers = ["-fsanitize=address,undefined", "-fno-omit-frame-pointer", "-g"]
        compile_args += sanitizers
        link_args += sanitizers

    source = ['#include "tritonffi.h"']
    macros: list[tuple[str, str | None]] = [("_GNU_SOURCE", None), ("Py_LIMITED_API", "0x030A0000")]
    include_dirs = [str(CSRC)]
    real = real_include_dir()
    if real is not None:
        macros.append(("TRITONFFI_REAL_HEADER", None))
        include_dirs.append(str(real))
        source.append(real_header_checks(server))
    if real is not None and (real / REAL_BACKEND_HEADER).is_file():
        # Triton's header is C++ in that it leaves out "struct"; these make it C.
        structs = sorted({*server.structs, *backend.structs, *OTHER_STRUCTS})
        source += [f"typedef struct {name} {name};" for name in structs]
        source.append(f"#include <{REAL_BACKEND_HEADER}>")
        source.append(real_header_checks(backend))
        source += [f"{prototype};" for prototype in backend.exported]
    else:
        source.append('#include "tritonbackend.h"')
    source.append(import_table(server.functions + backend.functions))

    ffi = FFI()
    ffi.cdef(
        server_text
        + "\n"
        + declarations("tritonffi.h", "tritonffi_function.h", "tritonffi_trace.h")
    )
    ffi.set_source(
        "tritonffi._native",
        "\n".join(source) + "\n",
        sources=sorted(str(path) for path in CSRC.glob("*.c")),
        depends=sorted(str(path) for path in CSRC.glob("*.h")),
        include_dirs=include_dirs,
        define_macros=macros,
        extra_compile_args=compile_args,
        extra_link_args=link_args,
        libraries=["dl", "pthread"],
        py_limited_api=True,
    )
    return ffi


# Types that only Triton's backend header mentions, in functions that backend.c does not use.
OTHER_STRUCTS = (
    "TRITONBACKEND_Batcher",
    "TRITONBACKEND_MemoryManager",
    "TRITONBACKEND_ModelInstanceResponseStatistics",
    "TRITONBACKEND_State",
)

ffibuilder = builder()
