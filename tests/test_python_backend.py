# SPDX-License-Identifier: Apache-2.0
"""
Triton's own python backend, as the nvidia-pytriton wheel has it.

It runs where there can be a numpy below 2 for its stub and a shared libpython: Python 3.10 to 3.12.
Elsewhere the tests of running models are skipped, and those of the refusal are not.
"""

from __future__ import annotations

import os
import platform
import resource
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tritonffi import Server, TritonError, _fetch, _leftovers, _library
from tritonffi import _python_backend as backend
from tritonffi.__main__ import main

MINOR = f"3.{sys.version_info.minor}"
SHM = Path("/dev/shm")
PLAIN = [sys.executable, "-W", "error", "-c"]

CONFIG = """
backend: "python"
input {{ name: "IN" data_type: TYPE_{0} dims: [ -1 ] }}
output {{ name: "OUT" data_type: TYPE_{0} dims: [ -1 ] }}
"""
IDENTITY = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            try:
                outputs = [pb_utils.Tensor("OUT", self.f(value))]
                response = pb_utils.InferenceResponse(outputs)
            except Exception as error:
                response = pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
            responses.append(response)
        return responses

    def f(self, value):
        {}
"""


def write(folder, name, datatype, body):
    """Write a model whose output is `body` of the array `value`; return the repository."""
    model = folder / name
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(CONFIG.format(datatype))
    (model / "1" / "model.py").write_text(IDENTITY.format(body))
    return folder


def segments(pid=None):
    """Shared memory of stubs of a process, this one by default."""
    beginning = _leftovers.prefix().removesuffix(f"{os.getpid()}-")
    return sorted(SHM.glob(f"{beginning}{pid or os.getpid()}-*"))


def ask(model, value, dtype=np.float32):
    """What a model answers to one value."""
    return model.infer({"IN": np.array([value], dtype)})["OUT"].tolist()


@pytest.fixture(scope="module")
def runs(library, tmp_path_factory):
    """The python backend can run; a numpy for it is fetched where there is none."""
    if library.stubs is None:
        pytest.skip("this Triton's python backend is not that of the nvidia-pytriton wheel")
    with pytest.MonkeyPatch.context() as patch:
        problem = backend.examine(library.path, library.stubs).problem
        if problem is not None and "numpy" in problem and _fetch.packages_problem() is None:
            folder = tmp_path_factory.mktemp("server")
            _fetch.get_packages(folder, quiet=True)
            patch.setattr(_fetch, "default_directory", lambda: folder)
            problem = backend.examine(library.path, library.stubs).problem
        if problem is not None:
            pytest.skip(f"the python backend cannot run here: {problem}")
        yield


def test_arrays_go_in_and_come_out(runs, tmp_path):
    """FP32 and BYTES, exactly; an empty one too."""
    write(tmp_path, "add", "FP32", "return value + 1")
    write(tmp_path, "upper", "STRING", "return np.array([v.upper() for v in value], np.object_)")
    with Server(tmp_path) as server:
        add, upper = server.model("add"), server.model("upper")
        assert add.infer({"IN": np.arange(1000, dtype=np.float32)})["OUT"].tolist() == list(
            range(1, 1001)
        )
        assert upper.infer({"IN": [b"a", "é", b"", b"x\0"]})["OUT"].tolist() == [
            b"A",
            "é".encode(),
            b"",
            b"X\0",
        ]
        assert add.infer({"IN": np.empty(0, np.float32)})["OUT"].shape == (0,)
        for number in range(20):
            assert ask(add, number) == [number + 1]


def test_the_stub_lives_in_this_environment(runs, tmp_path, monkeypatch):
    """This Python, what this process can import, and a numpy below 2; our PATH stays as it is."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "tffi_own_module.py").write_text("VALUE = 'own'\n")
    monkeypatch.syspath_prepend(str(tmp_path / "own"))
    before = dict(os.environ)
    names = (
        "platform.python_version(), np.__version__, tffi_own_module.VALUE, "
        "pytest.__file__, shutil.which('python3'), sys.executable"
    )
    body = "import pytest, platform, shutil, sys, tffi_own_module\n"
    body += f"        return np.array([v.encode() for v in ({names})], np.object_)"
    write(tmp_path / "models", "tell", "STRING", body)
    with Server(tmp_path / "models") as server:
        told = server.model("tell").infer({"IN": [b""]})["OUT"].tolist()
    version, numpy_version, own, pytest_file, which, executable = map(bytes.decode, told)
    assert version == platform.python_version()
    assert int(numpy_version.partition(".")[0]) == 1
    assert own == "own"
    assert pytest_file == pytest.__file__
    assert which == executable
    assert dict(os.environ) == before


def test_what_execute_raises_is_the_error(runs, tmp_path):
    """Of that request; the next one is served."""
    write(tmp_path, "check", "FP32", "return [value, 1 / 0][0] if value[0] < 0 else value")
    write(tmp_path, "divide", "FP32", "return np.float32(1) / value if value[0] else self.missing")
    with Server(tmp_path) as server:
        model = server.model("divide")
        with pytest.raises(TritonError, match="has no attribute 'missing'"):
            ask(model, 0)
        assert ask(model, 4) == [0.25]


def test_a_model_that_does_not_load_says_why(runs, tmp_path):
    """With the traceback of its module."""
    write(tmp_path, "bad", "FP32", "return value")
    (tmp_path / "bad" / "1" / "model.py").write_text("import no_such_module\n")
    with Server(tmp_path, startup_models=[]) as server:
        with pytest.raises(TritonError, match="No module named 'no_such_module'"):
            server.load("bad")
        (tmp_path / "bad" / "1" / "model.py").write_text(IDENTITY.format("return value"))
        assert ask(server.load("bad"), 2) == [2]


def test_an_idle_stub_may_be_killed(runs, tmp_path):
    """Its model unloads and loads as always, and leaves no shared memory."""
    write(tmp_path, "pid", "INT64", "import os; return np.array([os.getpid()])")
    with Server(tmp_path) as server:
        (first,) = ask(server.model("pid"), 0, np.int64)
        assert segments()
        os.kill(first, signal.SIGKILL)
        server.unload("pid", timeout=30)
        assert segments() == []
        (second,) = ask(server.load("pid"), 0, np.int64)
        assert second != first
        os.kill(second, signal.SIGKILL)
    assert segments() == []


def run(body, *arguments, code=0, command=()):
    """Run a script in a process of its own, and return what it printed."""
    head = """
        import os, pathlib, signal, sys, time
        import numpy as np
        import tritonffi
        from tritonffi import Server, TritonError, _fetch, _python_backend
        _python_backend.PATIENCE_S = 1.5  # with stubs that are dead, of which these have many
        _fetch.default_directory = lambda: pathlib.Path(sys.argv[1])

        def message(call):
            start = time.monotonic()
            try:
                return str(call())
            except (TritonError, TimeoutError) as error:
                assert time.monotonic() - start < 10
                return str(error).replace("\\n", " | ")
    """
    script = textwrap.dedent(head) + textwrap.dedent(body)
    with tempfile.TemporaryFile("w+") as output:  # a pipe would stay open as long as a stub lives
        done = subprocess.run(
            [*command, *PLAIN, script, _fetch.default_directory(), *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=60,
            check=False,
            env=os.environ | {"TRITONFFI_LIBRARY": str(_library.load().path)},
        )
        output.seek(0)
        lines = output.read().splitlines()
    assert done.returncode == code, lines
    return lines


def test_a_stub_killed_with_a_request_is_an_error_and_a_reload_mends_it(runs, tmp_path):
    """The backend never lets go of the old instance: unload and close say so, and do not hang."""
    write(tmp_path, "pid", "INT64", "import os; return np.array([os.getpid()])")
    body = """
        import logging
        logging.basicConfig(stream=sys.stdout, format="%(message)s")
        server = Server(sys.argv[2])
        model = server.model("pid")
        ask = lambda: model.infer({"IN": [0]})["OUT"].tolist()[0]
        first = ask()
        os.kill(first, signal.SIGKILL)
        print(message(ask))
        print(message(lambda: server.unload("pid")))
        server.load("pid")
        print(ask() not in (first, 0))
        server.close()
        print(server.closed)
        print(os.getpid())
    """
    refused, unload, again, close, closed, pid = run(body, tmp_path)
    assert refused == "model 'pid': Stub process 'pid_0' is not healthy."
    assert unload.startswith("model 'pid': it does not unload. A stub process of the python backen")
    assert again == "True"
    assert close == (
        "a server is left behind, unloaded but not stopped: Triton cannot stop it after requests "
        "whose python process has died"
    )
    assert closed == "True"
    assert segments(pid) == []


def test_a_model_that_does_not_come_back_holds_close_for_its_timeout(runs, tmp_path):
    """The server is left, with an error; its waiting threads are not, nor is the exit."""
    write(tmp_path, "stuck", "INT64", "import time; time.sleep(600)")
    body = """
        server = Server(sys.argv[2])
        inference = server.model("stuck").submit({"IN": [0]})
        print(message(lambda: server.close(timeout=2)))
        print(message(lambda: inference.result(timeout=5)))
        print(os.getpid())
    """
    close, result, pid = run(body, tmp_path)[-3:]
    assert close.startswith("server 'triton' did not stop within 2 s: model 'stuck' ")
    assert "closed" in result
    assert segments(pid) == []


def test_shared_memory_of_a_killed_process_is_removed(runs, tmp_path):
    """By the next server that is started, in whatever process."""
    write(tmp_path, "add", "FP32", "return value + 1")
    body = """
        server = Server(sys.argv[2])
        print(server.model("add").infer({"IN": [1.0]})["OUT"].tolist())
        print(os.getpid(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    answer, pid = run(body, tmp_path, code=-signal.SIGKILL)
    assert answer == "[2.0]"
    assert segments(pid)
    with Server():
        assert segments(pid) == []


def test_stubs_of_a_killed_process_are_ended(runs, tmp_path):
    """By the next server that starts: one that does not let go of the interpreter cannot look."""
    write(tmp_path / "models", "slow", "FP32", "return value")
    told = tmp_path / "told"
    slow = tmp_path / "models" / "slow" / "1" / "model.py"
    tell = f"open({str(told)!r}, 'w').write(str(os.getpid())), ctypes.PyDLL(None).sleep(600)"
    slow.write_text(f"import ctypes, os; ({tell})\n")
    body = """
        told = pathlib.Path(sys.argv[3])
        server = Server(sys.argv[2], startup_models=[])
        print(message(lambda: server.load("slow", timeout=1)))
        while not (told.exists() and told.read_text()):
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    assert len(run(body, tmp_path / "models", told, code=-signal.SIGKILL)) <= 1
    orphan = Path("/proc", told.read_text(), "cmdline")
    assert b"tritonffi-" in orphan.read_bytes()
    with Server():
        until = time.monotonic() + 30
        while orphan.exists() and orphan.read_bytes() and time.monotonic() < until:
            os.sched_yield()
        assert not orphan.exists() or orphan.read_bytes() == b""  # or a zombie of the system's


@pytest.mark.parametrize("how", ["load", "reload", "ensemble", "start"])
def test_a_stub_that_dies_before_its_model_is_known_ends_the_waiting(runs, tmp_path, how):
    """Triton would wait for ever; others load beside it, and the process ends well."""
    write(tmp_path, "dies", "FP32", "return value")
    body = """
        model = pathlib.Path(sys.argv[2], "dies", "1", "model.py")
        dying = "import os\\nos._exit(3)\\n"
        tensor = {"data_type": "TYPE_FP32", "dims": [1]}
        if sys.argv[3] == "start":
            model.write_text(dying)
            print(message(lambda: Server(sys.argv[2])))
        else:
            server = Server(sys.argv[2], startup_models=[])
            if sys.argv[3] == "reload":
                server.load("dies")  # its process lives on beside the one that dies
            model.write_text(dying)
            if sys.argv[3] == "ensemble":
                maps = {"input_map": {"IN": "X"}, "output_map": {"OUT": "Y"}}
                step = {"model_name": "dies", "model_version": -1, **maps}
                whole = {
                    "platform": "ensemble",
                    "input": [{"name": "X", **tensor}],
                    "output": [{"name": "Y", **tensor}],
                    "ensembleScheduling": {"step": [step]},
                }
                print(message(lambda: server.load("whole", whole)))
            else:
                print(message(lambda: server.load("dies")))
            add = server.load_function(
                "add", lambda x: x + 1, inputs={"x": ("FP32", [1])}, outputs={"y": ("FP32", [1])}
            )
            print(add.infer({"x": [1.0]})["y"].tolist())
    """
    first, *others = run(body, tmp_path, how)
    name = "" if how == "start" else "model 'dies': "
    assert f"{name}a process of Triton's python backend has ended before" in first
    assert others == ([] if how == "start" else ["[2.0]"])


def test_two_servers_with_models_of_one_name(runs, tmp_path):
    """Each has its own stub; closing one leaves the other at work."""
    write(tmp_path / "a", "add", "FP32", "return value + 1")
    write(tmp_path / "b", "add", "FP32", "return value + 2")
    with Server(tmp_path / "b") as second:
        with Server(tmp_path / "a") as first:
            assert ask(first.model("add"), 1) == [2]
            assert ask(second.model("add"), 1) == [3]
        assert ask(second.model("add"), 1) == [3]


def make_stubs(folder, content=b"", version=MINOR):
    """A folder of stubs with one in it."""
    (folder / version).mkdir(parents=True)
    (folder / version / backend.STUB).write_bytes(content)
    (folder / version / backend.STUB).chmod(0o700)
    return folder


OLD = f"numpy.core.multiarray libpython{MINOR}.so.1.0".encode()


def test_a_missing_stub_is_a_problem_with_a_way_out(tmp_path):
    """The versions that are there are named, in their order."""
    stubs = make_stubs(tmp_path / "stubs", version="3.10")
    make_stubs(tmp_path / "stubs", version="3.9")
    (tmp_path / "stubs" / MINOR).mkdir(exist_ok=True)
    (tmp_path / "stubs" / MINOR / backend.STUB).unlink(missing_ok=True)
    problem = backend.examine(tmp_path / "lib.so", stubs).problem
    assert problem.startswith(f"it has no stub for Python {MINOR}: use one of 3.9, 3.10")


def test_a_missing_libpython_is_a_problem_with_a_way_out(tmp_path, monkeypatch):
    """It says what to install."""
    monkeypatch.setattr(backend, "_find_libpython", lambda: None)
    problem = backend.examine(tmp_path / "lib.so", make_stubs(tmp_path / "stubs", OLD)).problem
    assert problem.startswith(f"its stub needs libpython{MINOR}.so.1.0, which is not there: ")
    assert f"apt install libpython{MINOR}" in problem


@pytest.mark.parametrize("ours", ["1.26.4", "2.1.0"])
def test_numpy_2_is_a_problem_with_a_way_out(tmp_path, monkeypatch, ours):
    """Unless a numpy below 2 lies beside the server, or the stub was built for newer ones."""
    stubs = make_stubs(tmp_path / "pytriton" / "tritonserver" / "stubs", OLD)
    monkeypatch.setattr(backend, "_find_libpython", lambda: tmp_path / "libpython.so")
    monkeypatch.setattr(backend, "np", SimpleNamespace(__version__=ours))
    monkeypatch.setattr(_fetch, "default_directory", lambda: tmp_path / "nothing")
    found = backend.examine(tmp_path / "lib.so", stubs)
    assert found.libpython == tmp_path / "libpython.so"
    if ours.startswith("1."):
        assert (found.problem, found.packages) == (None, None)
        return
    assert found.problem.startswith(f"its stub needs a numpy below 2, and here is {ours}: ")
    way = "use Python 3.12 or older" if sys.version_info >= (3, 13) else "--with-python-backend"
    assert way in found.problem
    beside = _fetch.packages_directory(tmp_path)
    (beside / "numpy").mkdir(parents=True)
    (beside / "numpy" / "__init__.py").touch()
    found = backend.examine(tmp_path / "lib.so", stubs)
    assert (found.problem, found.packages) == (None, beside)
    (stubs / MINOR / backend.STUB).write_bytes(OLD + b" numpy._core.multiarray")
    assert backend.examine(tmp_path / "lib.so", stubs).packages is None


def test_a_bundled_libpython_needs_no_other(tmp_path, monkeypatch):
    """As the wheel has it for Python 3.13."""
    monkeypatch.setattr(backend, "_find_libpython", lambda: None)
    monkeypatch.setattr(backend, "np", SimpleNamespace(__version__="1.26.4"))
    stubs = make_stubs(tmp_path / "stubs", OLD + b"\0libpython3-419a3a08.13.so.1.0\0")
    assert backend.examine(tmp_path / "lib.so", stubs).problem is not None
    (tmp_path / "libpython3-419a3a08.13.so.1.0").touch()
    assert backend.examine(tmp_path / "lib.so", stubs).problem is None


def test_a_load_that_cannot_work_says_what_mends_it(library, tmp_path, monkeypatch):
    """At the start and later, in place of empty tensors without an error."""
    if library.stubs is None:
        pytest.skip("this Triton's python backend is not that of the nvidia-pytriton wheel")
    monkeypatch.setattr(backend, "_find_libpython", lambda: tmp_path / "libpython.so")
    monkeypatch.setattr(backend, "np", SimpleNamespace(__version__="2.1.0"))
    monkeypatch.setattr(backend, "_find_packages", lambda stubs: None)
    write(tmp_path / "models", "add", "FP32", "return value + 1")
    message = r"(?s)Triton logged.*The python backend cannot run here: its stub needs a numpy below"
    with pytest.raises(TritonError, match=message):
        Server(tmp_path / "models")
    with Server(tmp_path / "models", startup_models=[]) as server:
        with pytest.raises(TritonError, match="The python backend cannot run here: its stub needs"):
            server.load("add")
        with pytest.raises(TritonError) as caught:
            server.load("none")
        assert "python backend" not in str(caught.value)


def test_a_working_folder_that_is_gone_is_none_of_the_stub_s_paths(tmp_path, monkeypatch):
    """It stands in `sys.path` as an empty text, for programs on the command line."""
    gone = tmp_path / "gone"
    gone.mkdir()
    others = list(backend._paths(None))
    monkeypatch.chdir(gone)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    assert list(backend._paths(None)) == [str(gone), *others]
    gone.rmdir()
    assert list(backend._paths(None)) == others


def test_names_of_shared_memory_can_be_the_user_s(runs, tmp_path):
    """Then nobody cleans up but Triton."""
    write(tmp_path, "add", "FP32", "return value + 1")
    with Server(tmp_path, backend_config={"python": {"shm-default-byte-size": 1 << 21}}) as server:
        assert ask(server.model("add"), 1) == [2]
        assert all(path.stat().st_size >= 1 << 21 for path in segments())


def test_only_what_is_ours_and_dead_is_removed(tmp_path, monkeypatch):
    """Other names, users, live processes and other process namespaces are left alone."""
    monkeypatch.setattr(backend, "_SHM", tmp_path)
    namespace = _leftovers.prefix().removesuffix(f"{os.getpid()}-")
    dead = subprocess.Popen(["true"])
    dead.wait()
    names = {
        "dead": f"{namespace}{dead.pid}-x",
        "own": f"{_leftovers.prefix()}x",
        "init": f"{namespace}1-x",
        "elsewhere": f"tritonffi-1-{dead.pid}-x",
        "other": "triton_python_backend_shm_region_x",
    }
    for name in names.values():
        (tmp_path / name).touch()
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
        backend.remove_shm(own=False)
    assert {path.name for path in tmp_path.iterdir()} == set(names.values())
    backend.remove_shm(own=False)
    left = {key for key, name in names.items() if (tmp_path / name).exists()}
    assert left == {"own", "init", "elsewhere", "other"}
    backend.remove_shm(own=True)
    left = {key for key, name in names.items() if (tmp_path / name).exists()}
    assert left == {"init", "elsewhere", "other"}


def test_without_a_descriptor_nothing_is_looked_for():
    """At the end of a process that ran out of them, say; where a look is an error."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        assert not backend.is_lost()
        backend.end_stubs()
        backend.remove_shm(own=True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_get_server_puts_a_numpy_beside_the_server(tmp_path, monkeypatch, capsys):
    """The command says where; what is there already is left alone; killed runs are cleaned up."""
    monkeypatch.setattr(_fetch, "_NUMPY_END", (4, 0))
    monkeypatch.setattr(_fetch, "get_server", lambda *_, **__: tmp_path)
    left = tmp_path / "python_packages" / f".{MINOR}.partial-1"
    left.mkdir(parents=True)
    calls = []

    def pip(folder, package, otherwise, *, quiet):
        calls.append(package)
        with zipfile.ZipFile(folder / "numpy.whl", "w") as archive:
            archive.writestr("numpy/__init__.py", "")
        return folder / "numpy.whl"

    monkeypatch.setattr(_fetch, "_pip", pip)
    for _ in range(2):
        assert main(["get-server", "--with-python-backend", "--quiet"]) == 0
        packages = tmp_path / "python_packages" / MINOR
        assert f"Packages for its python backend are in {packages}" in capsys.readouterr().out
    assert calls == ["numpy>=1.22,<2"]
    assert (packages / "numpy" / "__init__.py").is_file()
    assert not left.exists()


def test_get_server_says_where_there_is_no_such_numpy(tmp_path, monkeypatch, capsys):
    """From Python 3.13 on; and pip's failure leaves nothing behind."""
    monkeypatch.setattr(_fetch, "get_server", lambda *_, **__: tmp_path)
    monkeypatch.setattr(_fetch, "_NUMPY_END", (3, 10))
    assert main(["get-server", "--with-python-backend"]) == 1
    assert (
        f"and there is none for Python {MINOR}: use Python 3.9 or older" in capsys.readouterr().err
    )
    monkeypatch.setattr(_fetch, "_NUMPY_END", (4, 0))
    monkeypatch.setattr(_fetch, "_NUMPY", "no-such-package-of-ours==1")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert main(["get-server", "--with-python-backend", "--quiet"]) == 1
    message = capsys.readouterr().err
    assert "pip could not download no-such-package-of-ours 1 (exit code 1)" in message
    assert f"unpack its wheel into {tmp_path / 'python_packages' / MINOR}" in message
    assert list(tmp_path.iterdir()) == []
