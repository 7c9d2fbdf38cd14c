# SPDX-License-Identifier: Apache-2.0
"""The processes that the benchmarks start: what is said of one that is not there, and its end."""

import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

# Last: the package that is tested is the installed one.
sys.path.append(str(Path(__file__).parent.parent))

from benchmarks import _children, _peers, functions
from benchmarks._children import Child, child, environment, last_words
from benchmarks._common import Options, Workplace
from benchmarks._load import Load
from benchmarks._measure import ContenderError
from benchmarks._versions import described, python

HARMLESS = 'E1201 04:23:10.2 5619 server.cc:241] "CudaDriverHelper has not been initialized."'
ERROR = "E1201 04:23:10.2 5619 server.cc:241] "
READY = "import json; print(json.dumps({'ready': 1}), flush=True); "


def code(text):
    """Give the command of a Python that does this."""
    return [sys.executable, "-c", text]


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (["/no/such/python"], "/no/such/python cannot be started: No such file or directory"),
        (["/tmp"], "/tmp cannot be started: Permission denied"),
        (["/bin/echo", "hello"], "/bin/echo said 'hello'"),
        (["/bin/echo", "1"], "/bin/echo said '1'"),
        (code("import no_numpy"), "exit code 1: ModuleNotFoundError: No module named 'no_numpy'"),
        (code("pass"), f"{sys.executable} ended with exit code 0"),
        (code("""print('{"skip": "I am old"}')"""), "I am old"),
    ],
)
def test_who_cannot_take_part_is_told_apart(command, why):
    """By an error that leaves others out of it."""
    with pytest.raises(ContenderError) as raised, child(command):
        pass
    assert str(raised.value).endswith(why)


def test_who_ends_between_rounds_gives_up(capsys):
    """All that it said is shown, for nobody expects it; the reason is its last line."""
    work = "import sys; sys.stdin.readline(); print('one\\ntwo', file=sys.stderr); sys.exit(3)"
    with child(code(READY + work)) as one:
        for _ in range(2):
            with pytest.raises(ContenderError, match=r"ended with exit code 3: two$"):
                one.run(Load())
    assert capsys.readouterr().err == "one\ntwo\n" * 2


def test_a_child_says_what_it_runs_on():
    """Beside its figures."""
    say = "import json; print(json.dumps({'ready': 1, 'versions': 'old'}), flush=True); input()"
    with child(code(say)) as one:
        assert one.ready == {"ready": 1}
        assert _peers.versions({"one": one}) == {"one": "old"}


def test_versions_are_of_what_is_there():
    """A package without metadata has none to tell."""
    assert described("no-such-package", Triton="2.51.0") == f"{python()}, Triton 2.51.0"


def test_an_interrupt_at_the_terminal_does_not_reach_a_child():
    """It is in a session of its own, and ends with its stdin."""
    say = "import json, os; print(json.dumps({'session': os.getsid(0)}), flush=True); input()"
    with child(code(say)) as one:
        assert one.ready["session"] not in (0, os.getsid(0))


def test_an_interrupt_leaves_no_watchdog(monkeypatch):
    """It would hold up the end of the process."""
    timers = []

    class Timer(threading.Timer):
        def start(self):
            timers.append(self)
            super().start()

    class Process:
        class stdout:  # noqa: N801 - an attribute of its
            @staticmethod
            def readline():
                raise KeyboardInterrupt

    monkeypatch.setattr(_children.threading, "Timer", Timer)
    with pytest.raises(KeyboardInterrupt):
        Child(Process, 0)
    (timer,) = timers
    assert timer.daemon
    assert not timer.is_alive()


def test_a_program_ends_with_whoever_started_it():
    """Also where that one is killed and can end nothing."""
    program = "import signal; print('up', flush=True); signal.pause()"
    start = (
        "import subprocess, sys; from benchmarks._children import tied; "
        f"subprocess.run(tied([sys.executable, '-c', {program!r}]))"
    )
    with subprocess.Popen(
        code(start), cwd=_children.HERE.parent, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout.readline() == "up\n"
        parent.kill()
        assert parent.stdout.read() == "", "the pipe closes when the program ends"


def test_children_know_no_proxy(monkeypatch):
    """It knows nothing of our loopback."""
    for name in ("http_proxy", "HTTPS_PROXY", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    seen = environment({"MORE": "1"})
    assert [name for name in seen if name.lower().endswith("_proxy")] == []
    assert seen["MORE"] == "1"
    assert seen["PATH"] == os.environ["PATH"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ""),
        (HARMLESS, ""),
        ("Traceback:\n  x\nImportError: no\n\n", "ImportError: no"),
        (f"{ERROR}one\n{HARMLESS}\nI1201 more", "server.cc:241] one"),
        (
            "".join(f"{ERROR}{i}\n" for i in range(5)),
            "; ".join(f"server.cc:241] {i}" for i in (2, 3, 4)),
        ),
    ],
)
def test_the_last_words_are_what_went_wrong(text, words):
    """The last errors of a log, and no error that is none."""
    assert last_words(text) == words


class Process:
    """A server that runs, or has ended."""

    def __init__(self, code=None):
        """With its exit code, if it has one."""
        self.code = code

    def poll(self):
        """Give the exit code."""
        return self.code


def test_a_server_on_the_loopback_is_asked_directly(monkeypatch, tmp_path):
    """And no proxy is, which has another loopback."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
        _peers.await_ready(Process(), server.server_port, tmp_path / "log", 10)
        thread.join()
    assert asked == ["/v2/health/ready"]


@pytest.mark.parametrize(
    ("exit_code", "why"), [(None, "not ready after 0 s"), (1, "ended with exit code 1")]
)
def test_a_server_that_is_not_ready_says_why(exit_code, why, tmp_path):
    """Slow, or at its end, with the errors of its log."""
    log = tmp_path / "log"
    log.write_text(f"{HARMLESS}\n{ERROR}no port\n", encoding="utf-8")
    with pytest.raises(ContenderError) as raised:
        _peers.await_ready(Process(exit_code), 1, log, 0)
    assert str(raised.value) == f"the tritonserver program: {why}: server.cc:241] no port"


@pytest.mark.parametrize(
    ("named", "why"),
    [
        (
            "/no/python",
            "/no/python cannot be started: No such file or directory (IT is /no/python)",
        ),
        (
            "",
            "PY cannot be started: No such file or directory (IT may name a Python that has it)",
        ),
    ],
)
def test_a_wrong_path_leaves_one_peer_out(named, why, monkeypatch, tmp_path):
    """The benchmark goes on with the others; an empty path is none."""

    @contextmanager
    def no_program(place):
        raise ContenderError("none")
        yield

    monkeypatch.setattr(_peers, "server_program", no_program)
    monkeypatch.setattr(_peers, "NVIDIA_PYTHON", "IT")
    monkeypatch.setattr(_peers.sys, "executable", "PY")
    monkeypatch.setenv("IT", named)
    skipped = {}
    place = Workplace(*(tmp_path / name for name in ("lib/so", "models", "backends", "folder")))
    with _peers.peers(place, Options(), skipped) as found:
        assert found == {}
    assert skipped == {**dict.fromkeys(_peers.NETWORK, "none"), _peers.NVIDIA: why}


def test_pytriton_has_no_python_by_an_empty_path(monkeypatch):
    """It is as good as none."""
    monkeypatch.setenv(functions.PYTRITON_PYTHON, "")
    with pytest.raises(ContenderError, match="names no Python that has pytriton"):
        functions._python_of(functions.PYTRITON)
    monkeypatch.setenv(functions.PYTRITON_PYTHON, "/a/python")
    assert functions._python_of(functions.PYTRITON) == "/a/python"
    assert functions._hint(functions.PYTRITON) == f" ({functions.PYTRITON_PYTHON} is /a/python)"
    assert functions._hint(functions.BASE) == ""
