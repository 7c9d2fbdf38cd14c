# SPDX-License-Identifier: Apache-2.0
"""Libraries for custom batching of which Triton would wait for ever, and every later load too."""

from __future__ import annotations

import os
import re
import subprocess

import _backend
import pytest
from _backend import NAME, compiler

from tritonffi import InvalidArgumentError, ModelControlMode, Server
from tritonffi._batch_strategy import FUNCTIONS
from tritonffi._elf import defined

NAMES = sorted(name.decode() for name in FUNCTIONS)
TENSOR = [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1]}]
CONFIG = {"backend": NAME, "max_batch_size": 8, "input": TENSOR, "output": TENSOR}
FP32 = {"INPUT0": ("FP32", [-1])}
REFUSED = rf" has no {', '.join(NAMES[1:])}: expected all five functions for custom batching, or no"


def named(path, **config):
    """Return a config that names a library."""
    parameters = {"TRITON_BATCH_STRATEGY_PATH": {"string_value": str(path)}}
    return CONFIG | {"parameters": parameters} | config


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Builds libraries with some of the functions, which batch all that there is."""
    folder = tmp_path_factory.mktemp("strategies")

    def build(file, *names, extra=""):
        path = folder / file
        if not path.exists():
            text = "".join(f"void *{name}(void) {{ return 0; }}\n" for name in names)
            command = [*compiler(), "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)]
            subprocess.run(command, input=text + extra, text=True, check=True)
        return path

    return build


@pytest.fixture(scope="module")
def part(build):
    """A library with the first function alone."""
    return build("part.so", NAMES[0])


def test_what_a_library_defines_is_read_from_its_file(build):
    """Not what it takes from others, nor what is its own; cut anywhere, it has fewer or none."""
    extra = "static void *hidden(void) { return 0; } void *far(void);\n"
    extra += "void *near(void) { return hidden() ? far() : 0; }\n"
    content = build("several.so", *NAMES[:2], extra=extra).read_bytes()
    names = {name for name in defined(content) if not name.startswith(b"_")}
    assert names == {b"near", *(name.encode() for name in NAMES[:2])}
    for size in range(0, len(content), 97):
        assert defined(content[:size]) <= defined(content)
    assert defined(b"no library") == set()


@pytest.mark.parametrize("missing", [*NAMES, None])
def test_each_function_that_is_missing_is_named(server, build, missing):
    """With all of them, and with none, the model loads."""
    path = build(f"without_{missing}.so", *(name for name in NAMES if name != missing))
    if missing is not None:
        with pytest.raises(InvalidArgumentError) as caught:
            server.load("strategy", named(path))
        assert str(caught.value) == (
            f"model 'strategy': config: TRITON_BATCH_STRATEGY_PATH: {str(path)!r} has no "
            f"{missing}: expected all five functions for custom batching, or none"
        )
    else:
        server.load("strategy", named(path), timeout=3)
        server.unload("strategy")


@pytest.mark.parametrize("config", [{}, {"dynamic_batching": {}}])
def test_it_is_refused_however_it_is_given(server, part, monkeypatch, config):
    """By a path from the working folder, for a function, and with files."""
    monkeypatch.chdir(part.parent)
    tensors = {"a": ("FP32", [-1])}
    for path in (part, "./part.so"):
        with pytest.raises(InvalidArgumentError, match=REFUSED):
            server.load("strategy", named(path, **config))
        with pytest.raises(InvalidArgumentError, match=REFUSED):
            server.load("strategy", named(path, **config), {"1/x": b""})
        parameters = named(path)["parameters"]
        with pytest.raises(InvalidArgumentError, match=REFUSED):
            server.load_function(
                "strategy",
                lambda a: a,
                inputs=tensors,
                outputs=tensors,
                config={"parameters": parameters, **config},
            )
    for place in ("1/batchstrategy.so", "batchstrategy.so"):
        files = {"1/x": b"", place: part.read_bytes()}
        with pytest.raises(InvalidArgumentError, match=re.escape(place) + REFUSED):
            server.load("strategy", CONFIG | config, files)


def test_it_is_found_where_triton_finds_it(tmp_path, backend_directory, part, build):
    """In the folder of the version, then in that of the model, if the config names none."""
    folder = _backend.write_model(tmp_path, "m", FP32, extra="dynamic_batching {}")
    good = build("all.so", *NAMES)
    inner, outer = folder / "1" / "batchstrategy.so", folder / "batchstrategy.so"
    options = {"backend_directory": backend_directory}
    with Server(tmp_path, startup_models=[], **options) as server:
        outer.symlink_to(part)
        with pytest.raises(InvalidArgumentError, match=f"{outer}{REFUSED}"):
            server.load("m")
        for start in ({}, {"model_control_mode": ModelControlMode.POLL}):
            with pytest.raises(InvalidArgumentError, match=f"{outer}{REFUSED}"):
                Server(tmp_path, **options, **start)
        inner.symlink_to(good)
        server.load("m")
        server.unload("m")
        inner.unlink()
        server.load("m", named(good) | {"input": [], "output": []})
        server.unload("m")
        # The sequence batcher takes none.
        server.load("m", CONFIG | {"sequence_batching": {}})
        server.unload("m")


def test_files_that_are_no_libraries(server, part, tmp_path):
    """The loader would wait for a pipe, and end the process with one that is cut short."""
    pipe, short, text = (tmp_path / name for name in ("pipe", "short", "text"))
    os.mkfifo(pipe)
    short.write_bytes(part.read_bytes()[:2000])
    text.write_text("text", encoding="ascii")
    for path, why in (
        (pipe, " is no regular file: expected a library$"),
        (short, " is cut short: 2000 bytes are there, of "),
        (text, "(?s)unable to load shared library"),
        (tmp_path / "absent", "Batching library path not found"),
    ):
        with pytest.raises(Exception, match=why):
            server.load("strategy", named(path))
