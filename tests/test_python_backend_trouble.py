# SPDX-License-Identifier: Apache-2.0
"""Stubs of Triton's python backend that die at work, or never come to it."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_python_backend import make_stubs, run, runs, segments, write

from tritonffi import _leftovers
from tritonffi import _python_backend as backend

__all__ = ["runs"]  # a fixture: it is used by its name

LEFT = "a server is left behind, unloaded but not stopped: Triton cannot stop it after"


def test_a_stub_killed_at_work_is_an_error_and_a_reload_mends_it(runs, tmp_path):
    """At once: nobody waits for what the stub would have answered."""
    told = tmp_path / "pid"
    body = f"import os, pathlib, time; pathlib.Path({str(told)!r}).write_text(str(os.getpid()))"
    write(
        tmp_path / "models", "stuck", "INT64", f"{body}; time.sleep(600 * value[0]); return value"
    )
    body = """
        import logging
        server = Server(sys.argv[2])
        model = server.model("stuck")
        told = pathlib.Path(sys.argv[3])
        inference = model.submit({"IN": [1]})
        while not (told.exists() and told.read_text()):
            time.sleep(0.001)
        os.kill(int(told.read_text()), signal.SIGKILL)
        print(message(inference.result))
        server.load("stuck")
        print(model.infer({"IN": [0]})["OUT"].tolist())
        logging.basicConfig(stream=sys.stdout, format="%(message)s")
        server.close(timeout=2)
        print(os.getpid())
    """
    refused, again, close, pid = run(body, tmp_path / "models", told)
    assert refused == "model 'stuck': Stub process 'stuck_0' is not healthy."
    assert again == "[0]"
    assert close == f"{LEFT} requests whose python process has died"
    assert segments(pid) == []


@pytest.mark.parametrize("way", ["with", "unload", "impatient"])
def test_a_killed_stub_lets_the_server_close(runs, tmp_path, way):
    """It is left behind, with a warning; where the time is too short for that, the error says why.

    Another server of the process is none the worse for it.
    """
    write(tmp_path, "pid", "INT64", "import os; return value + os.getpid()")
    body = """
        import logging
        logging.basicConfig(stream=sys.stdout, format="%(message)s")
        way = sys.argv[3]
        begun = time.monotonic()
        with Server(sys.argv[2]) as server:
            model = server.model("pid")
            os.kill(int(model.infer({"IN": [0]})["OUT"][0]), signal.SIGKILL)
            print(message(lambda: model.infer({"IN": [0]})))
            if way == "unload":
                print(message(lambda: server.unload("pid")))
            elif way == "impatient":
                print(message(lambda: server.close(timeout=1)))
        print(time.monotonic() - begun < 15, server.closed)
        with Server(sys.argv[2]) as other:
            print(other.model("pid").infer({"IN": [0]})["OUT"][0] > 0)
        print(os.getpid())
    """
    refused, *why, left, closed, served, pid = run(body, tmp_path, way)
    assert refused == "model 'pid': Stub process 'pid_0' is not healthy."
    busy = "model 'pid' (version 1) is UNLOADING (inferences in flight: 0)"
    again = f"{busy}; close() may be called again. {backend.LOST}"
    first = {
        "with": [],
        "unload": [f"model 'pid': it does not unload. {backend.LOST}"],
        "impatient": [f"server 'triton' did not stop within 1 s: {again}"],
    }
    assert why == first[way]
    assert left == f"{LEFT} requests of 'pid' whose python process has died"
    assert (closed, served) == ("True True", "True")
    assert segments(pid) == []


@pytest.mark.parametrize("how", ["ignore", "reap"])
def test_who_waits_for_all_children_is_told_of_killed_stubs(runs, tmp_path, how):
    """Of one that Triton waits for in a load, too; close does not take its whole time."""
    write(tmp_path, "pid", "INT64", "import os; return value + os.getpid()")
    write(tmp_path, "dies", "FP32", "return value")
    (tmp_path / "dies" / "1" / "model.py").write_text("import os\nos._exit(3)\n")
    body = """
        import logging
        from tritonffi import _python_backend as backend
        backend.PATIENCE_S = 0.5
        logging.basicConfig(stream=sys.stdout, format="%(message)s")

        def reap(*_):
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                pass

        signal.signal(signal.SIGCHLD, signal.SIG_IGN if sys.argv[3] == "ignore" else reap)
        server = Server(sys.argv[2], startup_models=["pid"])
        model = server.model("pid")
        os.kill(int(model.infer({"IN": [0]})["OUT"][0]), signal.SIGKILL)
        print(message(lambda: model.infer({"IN": [0]})))
        server.load("pid")
        print(model.infer({"IN": [0]})["OUT"][0] > 0)
        start = time.monotonic()
        server.close()
        print(time.monotonic() - start < 10, server.closed)
        with Server(startup_models=[]) as other:
            other.register_repository(sys.argv[2])
            print(message(lambda: other.load("dies")).partition(" before")[0])
        print(os.getpid())
    """
    *lines, pid = run(body, tmp_path, how)
    assert lines == [
        "model 'pid': Stub process 'pid_0' is not healthy.",
        "True",
        f"{LEFT} requests whose python process has died",
        "True True",
        "model 'dies': a process of Triton's python backend has ended",
        f"{LEFT} loads of 'dies' whose python process has died",
    ]
    assert segments(pid) == []


def test_a_model_that_never_gets_ready_can_be_left(runs, tmp_path):
    """By the timeout of the load; others answer meanwhile, and close says what it waits for."""
    write(tmp_path, "add", "FP32", "return value + 1")
    write(tmp_path, "hangs", "FP32", "return value")
    file = tmp_path / "hangs" / "1" / "model.py"
    file.write_text(
        file.read_text()
        + "\n    def initialize(self, args):\n        import time; time.sleep(600)\n"
    )
    body = """
        server = Server(sys.argv[2], startup_models=["add"])
        print(message(lambda: server.load("hangs", timeout=1)))
        print(server.model("add").infer({"IN": [1.0]})["OUT"].tolist())
        print(message(lambda: server.close(timeout=1)))
        print(os.getpid())
    """
    load, answer, close, pid = run(body, tmp_path)
    assert load == "loading model 'hangs' is not over after 1 s"
    assert answer == "[2.0]"
    assert "a call of it, such as a load, is not over" in close
    assert segments(pid) == []


@pytest.mark.parametrize("how", ["load", "reload", "ensemble", "impatient"])
def test_a_load_that_will_never_be_over_holds_nobody_up(runs, tmp_path, how):
    """Neither other loads of the model, nor its unload, nor the close, which leaves it behind."""
    write(tmp_path, "dies", "FP32", "return value")
    write(tmp_path, "add", "FP32", "return value + 1")
    body = """
        import logging
        how = sys.argv[3]
        logging.basicConfig(stream=sys.stdout, format="%(message)s")
        server = Server(sys.argv[2], startup_models=["add"])
        if how == "reload":
            server.load("dies")
        model = pathlib.Path(sys.argv[2], "dies", "1", "model.py")
        model.write_text("import os\\nos._exit(3)\\n")
        tensor = {"data_type": "TYPE_FP32", "dims": [1]}
        step = {"model_name": "dies", "model_version": -1}
        step |= {"input_map": {"IN": "X"}, "output_map": {"OUT": "Y"}}
        whole = {
            "platform": "ensemble",
            "input": [{"name": "X", **tensor}],
            "output": [{"name": "Y", **tensor}],
            "ensemble_scheduling": {"step": [step]},
        }
        name, config = ("whole", whole) if how == "ensemble" else ("dies", None)
        timeout = 0.5 if how == "impatient" else None
        print(message(lambda: server.load(name, config, timeout=timeout)).partition(":")[0])
        if how != "impatient":  # as long as it may be over yet, others wait for it
            print(message(lambda: server.load(name, config)))
            print(message(lambda: server.unload(name)))
        if how == "ensemble":
            print(message(lambda: server.load("dies")))
        print(server.model("add").infer({"IN": [1.0]})["OUT"].tolist())
        start = time.monotonic()
        server.close()
        print(time.monotonic() - start < 10, server.closed)
        with Server(sys.argv[2], startup_models=["add"]) as other:
            print(other.model("add").infer({"IN": [2.0]})["OUT"].tolist())
        print(os.getpid())
    """
    first, *others, pid = run(body, tmp_path, how)
    name = "whole" if how == "ensemble" else "dies"
    again = (
        f"model {name!r}: its python process has died in a load, which Triton never ends; "
        "only another server can load it"
    )
    loads = "'dies', 'whole'" if how == "ensemble" else repr(name)
    left = f"{LEFT} loads of {loads} whose python process has died"
    if how == "impatient":
        assert first == "loading model 'dies' is not over after 0.5 s"
        again = ()
    else:
        assert first.startswith("model ")
        again = (again, again)
    if how == "ensemble":
        again = (*again, again[0].replace("whole", "dies"))
    assert others == [*again, "[2.0]", left, "True True", "[3.0]"]
    assert segments(pid) == []


@pytest.mark.parametrize("lock", [0, 2])
def test_a_stub_that_dies_with_a_lock_takes_a_model_and_not_the_process(runs, tmp_path, lock):
    """Triton's thread throws what nobody catches; the others go on, and a reload mends the model.

    The kernel writes one word into the lock of a process that dies with it. Of the three locks
    in the memory these are of the memory itself and of the queue; the other one is only tried.
    """
    write(tmp_path, "add", "FP32", "return value + 1")
    body = """
        import logging, mmap, struct, threading
        from tritonffi import _leftovers
        told = threading.Event()

        class Handler(logging.Handler):
            def emit(self, record):
                # Once: the thread that unloads the model may come upon the lock as well.
                if "with the lock" in record.getMessage() and not told.is_set():
                    print(record.levelname, record.getMessage())
                    told.set()

        logging.getLogger("tritonffi").addHandler(Handler())
        server = Server(sys.argv[2])
        model = server.model("add")
        print(model.infer({"IN": [1.0]})["OUT"].tolist())
        (segment,) = pathlib.Path("/dev/shm").glob(_leftovers.prefix() + "*")
        with segment.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
            # Shared between processes, and given on when its owner dies, glibc says: 128 + 16.
            kinds = [at for at in range(0, 1024, 8) if memory[at : at + 4] == bytes([144, 0, 0, 0])]
            assert len(kinds) == 3, kinds
            struct.pack_into("<I", memory, kinds[int(sys.argv[3])] - 16, 0x40000000)
        inference = model.submit({"IN": [2.0]})
        assert told.wait(30)
        (stub,) = server._lifecycle.stub_records("add")
        if not stub.is_dead():  # it may have come upon the lock as well
            os.kill(stub.pid, signal.SIGKILL)
        server.load("add")
        print(message(inference.result))
        print(model.infer({"IN": [3.0]})["OUT"].tolist())
        print(message(server.close), server.closed)
    """
    lines = run(body, tmp_path, str(lock))
    # The stub may come upon the lock as well, and end with these words: it has no such handler.
    ends = ("terminate called", "  what():")
    first, log, refused, again, close = [line for line in lines if not line.startswith(ends)]
    assert first == "[2.0]"
    assert log.startswith("ERROR a process of the python backend has died with the lock of the ")
    assert refused == "model 'add': Stub process 'add_0' is not healthy."
    assert (again, close) == ("[4.0]", "None True")


SERVE = """
    import glob, pathlib, tempfile
    from tritonffi import _leftovers
    made = []
    make = _leftovers.make_folder
    _leftovers.make_folder = lambda folder: made.append(folder) or make(folder)
    tempfile.tempdir = sys.argv[3]
    with Server(sys.argv[2]) as server:
        print(server.model("add").infer({"IN": [1.0]})["OUT"].tolist())
        model = pathlib.Path(sys.argv[2], "add")
        files = {"1/model.py": (model / "1" / "model.py").read_bytes()}
        config = {"backend": "python"}
        for kind in ("input", "output"):
            name = {"input": "IN", "output": "OUT"}[kind]
            config[kind] = [{"name": name, "data_type": "TYPE_FP32", "dims": [-1]}]
        given = server.load("given", config, files=files)
        print(given.infer({"IN": [2.0]})["OUT"].tolist())
    print(ascii(made[0].parent), [path for path in made if os.path.exists(path)])
"""


def elsewhere():
    """Where temporary files go when stubs cannot be started from the usual place."""
    return next(p for p in _leftovers._ELSEWHERE if _leftovers.trouble(Path(p)) is None)


@pytest.mark.parametrize(
    "name", [b"with space", b"'", b'"', b"a$HOME;b", b"a:b", "möwe".encode(), b"\xff"]
)
def test_a_folder_of_a_name_that_is_not_plain_is_none_for_stubs(tmp_path, name):
    """As Triton's shell would take it apart."""
    place = tmp_path / os.fsdecode(name)
    place.mkdir()
    assert _leftovers.trouble(place) == (
        "Triton's shell, or Python in the stub, does not understand its name"
    )
    assert _leftovers.trouble(tmp_path) is None


@pytest.mark.parametrize("name", [b"plain", b"m\xc3\xb6we '\"$HOME;:\xff"])
def test_the_temporary_folder_has_any_name(runs, tmp_path, name):
    """Triton writes it into a command as it is; so one that is not plain is none for its stubs."""
    write(tmp_path / "models", "add", "FP32", "return value + 1")
    temporary = tmp_path / os.fsdecode(name)
    temporary.mkdir()
    place = temporary if name == b"plain" else elsewhere()
    assert run(SERVE, tmp_path / "models", temporary) == [
        "[2.0]",
        "[3.0]",
        f"PosixPath('{place}') []",
    ]
    assert list(temporary.iterdir()) == []


def test_no_program_can_be_run_out_of_the_temporary_folder(runs, tmp_path):
    """It is mounted like that on hardened machines; there are others."""
    write(tmp_path / "models", "add", "FP32", "return value + 1")
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    mount = f"mount -t tmpfs -o noexec tmpfs {mounted}"
    if subprocess.run(["unshare", "-m", "sh", "-c", mount], check=False).returncode:
        pytest.skip("nothing can be mounted here")
    command = ["unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh"]
    lines = run(SERVE, tmp_path / "models", mounted, command=command)
    assert lines == ["[2.0]", "[3.0]", f"PosixPath('{elsewhere()}') []"]


def test_where_no_stub_can_be_started_is_a_problem_with_a_way_out(tmp_path, monkeypatch):
    """Triton would wait for it for ever."""
    stubs = make_stubs(tmp_path / "stubs")
    stub = backend.examine(tmp_path / "lib.so", stubs).stub

    def problem():
        return backend.examine(tmp_path / "lib.so", stubs).problem or ""

    assert "start" not in problem()
    with monkeypatch.context() as patch:
        patch.setenv("PATH", "")
        assert problem() == "Triton starts its stub with bash, which is not on PATH"
    stub.chmod(0o600)
    assert problem().startswith("its stub cannot be executed, by its mode or on a noexec mount: /")
    stub.chmod(0o700)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_NOEXEC))
    assert problem() == (
        f"its stub cannot be started from {tempfile.gettempdir()}, where temporary files go (it is "
        "mounted noexec): set TMPDIR to a folder of a plain name, out of which programs can be run"
    )
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "\udcff "))
    assert f"from {tmp_path}/\\xff , where temporary files go (Triton's shell" in problem()
    assert _leftovers.find_place() == tmp_path / "\udcff "


def test_where_the_backend_has_no_place_for_its_own_folder_is_a_problem(tmp_path, monkeypatch):
    """Triton would end the process."""
    stubs = make_stubs(tmp_path / "stubs")
    place = tmp_path / "tmp"
    monkeypatch.setattr(_leftovers, "BACKEND_PLACE", place)
    problem = (
        f"it makes a folder in {place}, wherever temporary files go, and cannot (No such file or "
        "directory): make room there, or let this user write to it; in a container whose file "
        "system is read-only, mount a volume or a tmpfs there"
    )
    assert backend.examine(tmp_path / "lib.so", stubs).problem == problem
    place.mkdir()
    assert "folder" not in (backend.examine(tmp_path / "lib.so", stubs).problem or "")
    assert list(place.iterdir()) == []


def test_nothing_can_be_written_to_tmp(runs, tmp_path):
    """A load says so, though temporary files go elsewhere; functions are served."""
    write(tmp_path, "add", "FP32", "return value + 1")
    mount = "mount --bind /tmp /tmp && mount -o remount,bind,ro /tmp"
    if subprocess.run(["unshare", "-m", "sh", "-c", mount], check=False).returncode:
        pytest.skip("nothing can be mounted here")
    body = """
        with Server(sys.argv[2], startup_models=[]) as server:
            print(message(lambda: server.load("add")).partition("run here: ")[2])
            tensor = ("FP32", [1])
            add = server.load_function(
                "f", lambda x: x + 1, inputs={"x": tensor}, outputs={"y": tensor}
            )
            print(add.infer({"x": [1.0]})["y"].tolist())
    """
    command = ["unshare", "-m", "sh", "-c", f'{mount} && TMPDIR=/dev/shm exec "$@"', "sh"]
    refused, answer = run(body, tmp_path, command=command)
    assert refused.startswith("it makes a folder in /tmp, wherever temporary files go, and cannot ")
    assert "(Read-only file system)" in refused
    assert answer == "[2.0]"


@pytest.mark.parametrize("how", ["none", "broken", "start"])
def test_a_stub_that_never_came_to_be_ends_the_waiting(runs, tmp_path, how):
    """Without a shell, or with one that fails, Triton would wait for ever."""
    write(tmp_path / "models", "add", "FP32", "return value + 1")
    shell = tmp_path / "bash"
    shell.write_text("#!/bin/sh\nexit 3\n")
    shell.chmod(0o700)
    body = """
        models, path, how = sys.argv[2:]
        if how == "start":
            os.environ["PATH"] = path
            print(message(lambda: Server(models)))
            sys.exit()
        server = Server(models, startup_models=[])
        os.environ["PATH"] = "" if how == "none" else path
        print(message(lambda: server.load("add")))
        server.close()
        print(server.closed)
    """
    lines = run(body, tmp_path / "models", tmp_path, how)
    (told,) = (line for line in lines if "a process of" in line)
    assert how == "start" or lines[-1] == "True"
    name = "" if how == "start" else "model 'add': "
    assert f"{name}a process of Triton's python backend has ended before it had said" in told
    hint = " | The python backend cannot run here: Triton starts its stub with bash, which is not "
    assert (hint + "on PATH" in told) == (how == "none")


def test_the_user_s_own_children_are_no_stubs(runs, tmp_path):
    """Nobody waits for those that are dead, of a likely name or none; a load minds only its own."""
    write(tmp_path / "models", "add", "FP32", "return value + 1")
    odd = tmp_path / os.fsdecode(b"\xff) S 1")
    odd.symlink_to("/bin/sleep")
    body = """
        import subprocess, threading, warnings
        from tritonffi import _python_backend as backend
        warnings.simplefilter("ignore")  # of newer Pythons, about forks beside threads
        children = []
        done, stop = threading.Barrier(2), threading.Event()

        def leave():
            for command in (["bash", "-c", "exit 3"], ["sh", "-c", "exit 3"], ["tr", "a", "b"]):
                children.append(subprocess.Popen(command, stdin=subprocess.DEVNULL))
                os.waitid(os.P_PID, children[-1].pid, os.WEXITED | os.WNOWAIT)
            forked = os.fork()
            if not forked:
                os._exit(0)
            os.waitid(os.P_PID, forked, os.WEXITED | os.WNOWAIT)

        def stay():
            leave()
            done.wait()
            stop.wait()

        def serve(server):
            print(server.load("add").infer({"IN": [1.0]})["OUT"].tolist())
            print({state == "Z" for _, state in backend._stubs()})

        sleeps = subprocess.Popen([sys.argv[3], "600"])
        with Server(sys.argv[2]) as server:
            watch = backend.StubWatch(["add"])
            leave()
            for target in (leave, stay):
                thread = threading.Thread(target=target)
                thread.start()
                done.wait() if target is stay else thread.join()
            serve(server)
            server.unload("add")
            print(watch._lost())  # nobody
            serve(server)
            backend.end_stubs()
            print(sleeps.poll(), len(children))
            stop.set()
            sleeps.kill()
            for child in [*children, sleeps]:
                child.wait()
    """
    served = ["[2.0]", "{False}"]
    assert run(body, tmp_path / "models", odd) == [*served, "{}", *served, "None 9"]


def test_an_embedded_python_need_not_name_its_program(runs, tmp_path):
    """Then it is where the standard library says."""
    write(tmp_path, "add", "FP32", "return value + 1")
    body = """
        for name in (None, ""):
            sys.executable = sys._base_executable = name
            with Server(sys.argv[2]) as server:
                print(server.model("add").infer({"IN": [1.0]})["OUT"].tolist())
    """
    assert run(body, tmp_path) == ["[2.0]", "[2.0]"]
