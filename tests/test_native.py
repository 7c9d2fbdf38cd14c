# SPDX-License-Identifier: Apache-2.0
"""
Our C code alone, without Python and without Triton: under threads, forks and failures.

`tests/native/` has the drivers and a library with Triton's names that does what Triton may do, in
every order. What they check of values, counters and leaks is in there; ThreadSanitizer and
AddressSanitizer watch.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from _backend import compiler

ROOT = Path(__file__).resolve().parent.parent
NATIVE = ROOT / "tests" / "native"
SANITIZERS = {
    "plain": (),
    "threads": ("-fsanitize=thread",),
    "memory": ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"),
}
TABLE = """
import build_ffi
server = build_ffi.declarations("tritonserver.h")
backend = build_ffi.declarations("tritonbackend.h")
functions = build_ffi.parse(server).functions + build_ffi.parse(backend, known=server).functions
print('#include "tritonffi.h"\\n#include "tritonbackend.h"\\n' + build_ffi.import_table(functions))
"""


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """The import table, in C, as the extension has it."""
    path = tmp_path_factory.mktemp("native") / "table.c"
    done = subprocess.run(
        [sys.executable, "-c", TABLE], cwd=ROOT, capture_output=True, text=True, check=True
    )
    path.write_text(done.stdout, encoding="utf-8")
    return path


# The versions of GCC whose analyzer was listened to. What a newer one says somebody has to read
# first: a wrong guess of a compiler's is no fault of ours.
ANALYZERS = ("11", "12")
# An allocation that is stored behind a pointer it takes for lost. That none is lost shows where
# each allocation fails once, below.
ANALYZE = ("-O2", "-fanalyzer", "-Wno-analyzer-malloc-leak")


def cc(*arguments):
    """Compile C11 with our headers."""
    flags = ("-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-pthread", "-Wall", "-Wextra", "-Werror")
    command = [*compiler(), *flags, f"-I{ROOT / 'csrc'}", f"-I{NATIVE}", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def build(table, tmp_path_factory):
    """Builds a driver and the library that it loads, and returns how to run it.

    What the drivers have in common is built once for each sanitizer.
    """
    folders = {}

    def build(name, sanitizer, *ours):
        """`ours` are more flags for the files of csrc/."""
        flags = SANITIZERS[sanitizer]
        folder = folders.get((sanitizer, ours))
        if folder is None:
            folder = folders[sanitizer, ours] = tmp_path_factory.mktemp(sanitizer)
            fake = sorted(NATIVE.glob("fake_*.c"))
            cc(*flags, "-shared", "-fPIC", *fake, "-o", folder / "libfake.so")
            for source in [*(ROOT / "csrc").glob("*.c"), NATIVE / "driver.c", table]:
                more = () if source.parent == NATIVE else ours
                cc(*flags, *more, "-c", source, "-o", folder / f"{source.stem}.o")
        sources = [*folder.glob("*.o"), *NATIVE.glob(f"{name}*.c")]
        cc(*flags, *sources, "-ldl", "-o", folder / name)
        # ThreadSanitizer of GCC before 14 does not start where addresses are random by many bits.
        bits = int(Path("/proc/sys/vm/mmap_rnd_bits").read_text())
        prefix = ["setarch", "-R"] if sanitizer == "threads" and bits > 28 else []
        assert not prefix or shutil.which("setarch")
        return [*prefix, str(folder / name), str(folder / "libfake.so")]

    return build


def run(command, *arguments):
    """Run a driver, which says what is not so."""
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, check=False, timeout=100
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture(scope="module")
def analyze():
    """Compiles with GCC's analyzer."""
    command = [*compiler(), "-dumpversion"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    version = done.stdout.strip().split(".")[0]
    known = subprocess.run(
        [*compiler(), "-fanalyzer", "-fsyntax-only", "-xc", "/dev/null"],
        capture_output=True,
        check=False,
    )
    if known.returncode != 0 or version not in ANALYZERS:
        pytest.skip(
            f"the analyzer is that of GCC {' or '.join(ANALYZERS)}, not of {command[0]} {version}"
        )
    return lambda source: cc(*ANALYZE, "-c", source, "-o", "/dev/null")


def test_the_analyzer_would_find_something(analyze, tmp_path):
    """Memory that is used after it was given back."""
    source = tmp_path / "wrong.c"
    source.write_text("#include <stdlib.h>\nint f(int *p) { free(p); return *p; }\n", "utf-8")
    with pytest.raises(AssertionError, match="analyzer-use-after-free"):
        analyze(source)


@pytest.mark.parametrize("source", sorted((ROOT / "csrc").glob("*.c")), ids=lambda path: path.name)
def test_the_analyzer_finds_nothing(analyze, source):
    """No use of what is gone, not there, or never was, on any way through one file."""
    analyze(source)


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_any_order_of_threads_is_right(build, sanitizer):
    """Final before release and after, inline, many producers, takers, cancels, closes, stops."""
    run(build("threads", sanitizer), "threads")


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_traces_are_released_once_by_any_thread(build, sanitizer):
    """Parents before children and after, children unheard of, late reports, failures."""
    run(build("traces", sanitizer))


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_an_instance_lingers_until_more_can_have_come(build, sanitizer):
    """As many in flight as before, half of them under a waiting thread, a new one, or late."""
    run(build("linger", sanitizer))


def test_a_forked_child_never_waits_for_a_thread_that_is_not_there(build):
    """300 forks while four threads hold the locks: the child lets go of all and starts anew."""
    run(build("threads", "plain"), "forks")


def test_whatever_fails_everything_is_given_back(build):
    """Each allocation of ours and each call of Triton's fails once, in all that there is."""
    out = run(build("failures", "memory", "-include", str(NATIVE / "counted.h")))
    counts = dict(line.rsplit(": ", 1) for line in out.splitlines())
    assert sum(map(int, counts.values())) > 2000
    assert {name for name, count in counts.items() if count == "0"} <= {
        f"refuse '' {kind}" for kind in ("allocations", "allocations from")
    }
