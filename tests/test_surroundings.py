# SPDX-License-Identifier: Apache-2.0
"""Processes in odd surroundings, as services have them: a start, inferences and a close in each.

Each kind is taken from public reports about Triton, its clients or its bindings.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap

import pytest

from tritonffi import Server

WORK = """
import os, pathlib, resource, sys
import numpy as np
import tritonffi

def work(repository=None, backends=None):
    options = {"backend_directory": backends} if backends else {}
    with tritonffi.Server(repository, **options) as server:
        model = server.load_function(
            "f", lambda x: x + 1, inputs={"x": ("FP32", [-1])}, outputs={"y": ("FP32", [-1])}
        )
        assert model.infer({"x": [1.0]})["y"].tolist() == [2]
        if repository is not None:
            echo = server.model("echo")
            assert echo.infer({"INPUT0": [1.0]})["OUTPUT0"].tolist() == [1]
            os.chdir("/")
            server.unload("echo")
            assert server.load("echo").infer({"INPUT0": [2.0]})["OUTPUT0"].tolist() == [2]
        assert len(server.models()) >= 1 and server.metrics()
"""
PLAIN = [sys.executable, "-W", "error"]


@pytest.fixture
def run(library, tmp_path):
    """Runs lines after those above, in a process of its own, which must end well and silently."""

    def run(code="work()", *, command=PLAIN, env=None):
        clean = {"TRITONFFI_LIBRARY": str(library.path)}
        for name in ("PATH", "PYTHONPATH", "LD_PRELOAD", "ASAN_OPTIONS", "UBSAN_OPTIONS"):
            if name in os.environ:
                clean[name] = os.environ[name]
        done = subprocess.run(
            [*command, "-c", WORK + textwrap.dedent(code)],
            env=clean if env is None else os.environ | clean | env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=tmp_path,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    return run


@pytest.mark.parametrize("flags", ["-O", "-OO", "-bb", "-Xdev", "-Xutf8=0"])
def test_the_interpreters_flags(run, flags):
    """No check of ours is an assertion, and no docstring is needed."""
    run(command=[*PLAIN, flags])


@pytest.mark.parametrize(
    "env",
    [
        None,  # no HOME, no language, no user
        {"LC_ALL": "C", "HOME": "/nonexistent"},
        {"TMPDIR": "/nonexistent", "XDG_DATA_HOME": "/proc"},
        {"TMPDIR": "t m\udcff", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
        {"LD_LIBRARY_PATH": "junk", "PYTHONHASHSEED": "1"},
        {"MALLOC_ARENA_MAX": "1", "MALLOC_PERTURB_": "85"},
    ],
    ids=[
        "empty",
        "no home",
        "no temporary folder",
        "an odd temporary folder",
        "wrong libraries",
        "strict malloc",
    ],
)
def test_the_environment(run, tmp_path, env):
    """Also one in which other libraries have the names of Triton's neighbours."""
    (tmp_path / "junk").mkdir()
    (tmp_path / "t m\udcff").mkdir()
    for name in ("libtritonserver.so", "libdcgm.so.4", "libb64.so.0"):
        (tmp_path / "junk" / name).write_text("no library")
    run(env=env)


@pytest.mark.parametrize(
    "shell",
    ['exec "$@" <&- >&- 2>&-', 'exec "$@" <&-', '"$@" | true', 'ulimit -n 40; exec "$@"'],
    ids=["no streams", "no stdin", "a broken pipe", "few descriptors"],
)
def test_what_the_process_is_started_with(run, shell):
    """What Triton opens gets the numbers of the streams that are closed."""
    run(command=["bash", "-c", shell, "bash", *PLAIN])


def test_a_working_folder_that_is_gone(run):
    """As after a deployment that replaced it."""
    run("os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone'); work()")


def test_a_relative_repository(run, repository, backend_directory, tmp_path):
    """It stays the same one when the process goes elsewhere."""
    shutil.copytree(repository / "echo", tmp_path / "models" / "echo")
    run(f"work('models', {str(backend_directory)!r})")


def test_a_limit_on_memory(run):
    """What does not fit is an error of its own, and the next request is served."""
    run("""
        with tritonffi.Server() as server:
            model = server.load_function(
                "f", lambda x: x, inputs={"x": ("UINT8", [-1])}, outputs={"y": ("UINT8", [-1])}
            )
            model.infer({"x": np.zeros(8, np.uint8)})
            data = np.zeros(64 << 20, np.uint8)
            pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + (32 << 20)
            resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
            for value in (data, data[::-1]):
                try:
                    model.infer({"x": value})
                except (tritonffi.UnavailableError, MemoryError) as error:
                    assert "memory" in str(error) or "allocate" in str(error)
                else:
                    sys.exit("there was memory for it")
            del data, value
            assert model.infer({"x": np.ones(8, np.uint8)})["y"].sum() == 8
    """)


NO_MORE_FILES = """
server = tritonffi.Server()
def load(value):
    return server.load_function(
        "f", lambda x: x + value, inputs={"x": ("FP32", [-1])}, outputs={"y": ("FP32", [-1])}
    )
load(1)
held = []
try:
    while True:
        held.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    pass
"""


@pytest.mark.parametrize(
    ("what", "call"),
    [
        ("model 'f'", "load(2)"),
        ("model 'g'", 'server.load("g", {"backend": "none"}, {"1/x": b"x"})'),
        ("server 'other'", 'tritonffi.Server(server_id="other")'),
    ],
    ids=["a function", "files", "a server"],
)
def test_a_process_that_can_open_no_more_files(run, what, call):
    """It is told so and what to do; what is there goes on, and when it can, so does the rest."""
    run(
        f"""
resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))
{NO_MORE_FILES}
try:
    {call}
except tritonffi.UnavailableError as error:
    assert str(error).startswith({what!r} + ": Too many open files: "), error
    assert str(error).endswith(
        ". This process may open no more files: raise its limit (ulimit -n), or close what it has "
        "open"
    ), error
else:
    raise AssertionError
assert server.model("f").infer({{"x": [1.0]}})["y"].tolist() == [2]
for descriptor in held:
    os.close(descriptor)
with server:
    assert load(3).infer({{"x": [1.0]}})["y"].tolist() == [4]
"""
    )


def test_what_triton_cannot_open_is_explained_by_the_limit(run):
    """Its own words do not say why."""
    run(
        f"""
resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))
{NO_MORE_FILES}
try:
    server.load("none")
except tritonffi.NotFoundError as error:
    assert "This process may open no more files" in str(error)
else:
    raise AssertionError
for descriptor in held:
    os.close(descriptor)
server.close()
"""
    )


NO_MORE_THREADS = """
import threading

server = tritonffi.Server()
model = server.load_function(
    "f", lambda x: x + 1, inputs={"x": ("FP32", [-1])}, outputs={"y": ("FP32", [-1])}
)
taken = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + 6_000_000, resource.RLIM_INFINITY))
is_over = threading.Event()
try:
    while True:
        threading.Thread(target=is_over.wait, daemon=True).start()
except RuntimeError:
    pass
"""


@pytest.mark.parametrize("call", ["server.close()", "server.unload('f')"])
def test_a_process_that_can_start_no_more_threads(run, call):
    """It is told so, and may go on when it can; Triton would end it."""
    run(
        NO_MORE_THREADS
        + f"""
try:
    {call}
except tritonffi.UnavailableError as error:
    assert "model 'f': it cannot be let go, as this process can start no more threads" in str(error)
else:
    raise AssertionError
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
is_over.set()
{call}
"""
    )


@pytest.mark.parametrize(
    ("call", "what", "count"),
    [
        ("tritonffi.Server(server_id='second')", "server 'second'", 5),
        ("tritonffi.Server(server_id='third', model_load_thread_count=2)", "server 'third'", 3),
        ("load('g')", "model 'g'", None),
    ],
)
def test_a_start_that_needs_more_threads_than_there_can_be(run, call, what, count):
    """It is told so, and works when there can be; Triton would end the process."""
    run(
        NO_MORE_THREADS
        + f"""
def load(name):
    return server.load_function(
        name, lambda x: x + 1, inputs={{"x": ("FP32", [-1])}}, outputs={{"y": ("FP32", [-1])}}
    )
try:
    {call}
except tritonffi.UnavailableError as error:
    expected = {what!r} + ": this process can start no more threads, of which "
    expected += {"a function has one" if count is None else f"Triton needs {count}: "!r}
    assert str(error).startswith(expected), error
else:
    raise AssertionError
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
is_over.set()
{call}.close() if {count is not None} else {call}
assert model.infer({{"x": [1.0]}})["y"].tolist() == [2]
server.close()
"""
    )


def test_the_end_of_a_process_that_can_start_no_more_threads(run):
    """It ends as any other."""
    run(NO_MORE_THREADS)


@pytest.mark.parametrize(
    "name", ["with space", "möwe", "日本", "\N{GRINNING FACE}", "%s {0} $HOME"]
)
def test_names_of_folders_and_models(repository, backend_directory, tmp_path, name):
    """A path is nothing but a path, and a model has the name of its folder."""
    shutil.copytree(repository / "echo", tmp_path / name / name)
    config = tmp_path / name / name / "config.pbtxt"
    config.write_text(config.read_text().replace('name: "echo"', ""))
    with Server(tmp_path / name, backend_directory=backend_directory) as server:
        model = server.model(name)
        assert model.infer({"INPUT0": [1.0]})["OUTPUT0"].tolist() == [1]
        assert model.statistics().name == name
        labels = [s.labels for s in server.metrics_dict()["nv_inference_count"].samples]
        assert {"model": name, "version": "1"} in labels
        server.unload(name)


def test_links_and_folders_that_cannot_be_written(repository, backend_directory, tmp_path):
    """Repositories are read and nothing else; a link is as good as what it leads to."""
    real = tmp_path / "real"
    shutil.copytree(repository / "echo", real / "echo")
    config = real / "echo" / "config.pbtxt"
    config.write_text(config.read_text().replace('name: "echo"', ""))
    (real / "other").symlink_to("echo")
    (tmp_path / "link").symlink_to(real)
    folders = [real, real / "echo", *(real / "echo").glob("[0-9]*")]
    for folder in folders:
        folder.chmod(0o555)
    try:
        with Server(tmp_path / "link", backend_directory=backend_directory) as server:
            for name in ("echo", "other"):
                assert server.model(name).infer({"INPUT0": [1.0]})["OUTPUT0"].tolist() == [1]
                server.unload(name)
                server.load(name)
    finally:
        for folder in folders:
            folder.chmod(0o755)
