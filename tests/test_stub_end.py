# SPDX-License-Identifier: Apache-2.0
"""Stubs of Triton's python backend end with the process that has started them."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap

import pytest
from test_python_backend import runs, segments, write

from tritonffi import Server, _fetch, _library, _stub_execute

__all__ = ["runs"]  # a fixture: it is used by its name


def test_who_reads_what_a_killed_process_writes_comes_to_the_end(runs, tmp_path):
    """Before that is waited for: so does `Popen.communicate`, and a stub holds the pipes open."""
    write(tmp_path, "add", "FP32", "return value + 1")
    script = """
        import pathlib, signal, sys
        from tritonffi import Server, _fetch
        _fetch.default_directory = lambda: pathlib.Path(sys.argv[1])
        server = Server(sys.argv[2])
        print(server.model("add").infer({"IN": [1.0]})["OUT"].tolist(), flush=True)
        signal.pause()
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), _fetch.default_directory(), tmp_path],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"TRITONFFI_LIBRARY": str(_library.load().path)},
    ) as process:
        assert process.stdout.readline() == b"[2.0]\n"
        assert segments(process.pid)
        process.terminate()
        assert process.communicate(timeout=30) == (b"", b"")
    assert process.returncode == -signal.SIGTERM
    with Server():
        pass  # it removes the folder, and the memory if the stub's end came before it could
    assert segments(process.pid) == []


def test_a_process_has_ended_before_it_is_waited_for():
    """And after that it is no more."""
    process = subprocess.Popen(["true"])
    _stub_execute._await_end(process.pid)
    assert process.wait() == 0
    _stub_execute._await_end(process.pid)


@pytest.mark.parametrize("missing", ["function", "call"])
def test_where_nothing_tells_of_its_end_the_parent_is_looked_for(monkeypatch, missing):
    """Its children are given to another one."""

    def refuse(_):
        raise OSError(errno.ENOSYS, "no such call")

    if missing == "call":
        monkeypatch.setattr(os, "pidfd_open", refuse, raising=False)
    else:
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    parents, slept = [7, 7, 7, 1], []
    with monkeypatch.context() as patch:
        patch.setattr(os, "getppid", lambda: parents.pop(0))
        patch.setattr(_stub_execute.time, "sleep", slept.append)
        _stub_execute._await_end(7)
    assert slept == [_stub_execute._LOOK_S] * 2
    monkeypatch.setattr(os, "getppid", lambda: 8)  # no child of it: it cannot be told
    with pytest.raises(SystemExit):
        _stub_execute._await_end(7)


def test_what_is_shared_goes_with_the_stub(monkeypatch):
    """After some time for Triton's own way to end it."""
    steps = []
    monkeypatch.setattr(_stub_execute, "_await_end", steps.append)
    monkeypatch.setattr(_stub_execute.time, "sleep", steps.append)
    monkeypatch.setattr(os, "unlink", steps.append)
    monkeypatch.setattr(os, "_exit", steps.append)
    _stub_execute.end_with(7, "/region")
    assert steps == [7, _stub_execute._GRACE_S, "/dev/shm/region", 1]
