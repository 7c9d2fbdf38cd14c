# SPDX-License-Identifier: Apache-2.0
"""The end of a process, forks and signals, each in a process of its own: exit code 0, no output."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

PREAMBLE = """
import os, signal, sys, threading, time, warnings
import numpy as np
import tritonffi
import _backend

def start(**options):
    return tritonffi.Server(REPOSITORY, backend_directory=BACKENDS, **options)

def gate():
    return _backend.Gate(BACKENDS + "/tffitest/libtriton_tffitest.so")
"""


@pytest.fixture
def run(library, repository, backend_directory, tmp_path):
    """Runs lines of Python after the preamble; returns what they print, if they end well."""

    def run(code, *, returncode=0, timeout=60, flags=(), **environment):
        text = (
            f"REPOSITORY = {str(repository)!r}\nBACKENDS = {str(backend_directory)!r}\n"
            + PREAMBLE
            + textwrap.dedent(code)
        )
        done = subprocess.run(
            [sys.executable, "-W", "error::ResourceWarning", *flags, "-c", text],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            cwd=tmp_path,
            env=os.environ
            | {
                "TRITONFFI_LIBRARY": str(library.path),
                "PYTHONPATH": str(Path(__file__).parent),
                "TMPDIR": str(tmp_path),
            }
            | environment,
        )
        assert done.stderr == ""
        assert done.returncode == returncode
        assert list(tmp_path.glob("tritonffi-*")) == []
        return done.stdout

    return run


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("import tritonffi", id="import alone"),
        pytest.param("server = start(); server.close()", id="closed"),
        pytest.param("server = start()", id="open"),
        pytest.param(
            "server = start(); kept = server.model('echo').infer({'INPUT0': [1.0]})",
            id="open, a response held",
        ),
        pytest.param(
            """
            server = start()
            pending = server.model('echo').submit({'INPUT0': [1.0]}, parameters={'hold': 'start'})
            gate().wait()
            """,
            id="an inference in flight",
        ),
        pytest.param(
            """
            server = start()
            pending = server.model('echo').submit({'INPUT0': [1.0]}, parameters={'hold': 'start'})
            threading.Thread(target=pending.wait, daemon=True).start()
            gate().wait()
            """,
            id="a daemon thread waits",
        ),
        pytest.param(
            """
            import asyncio
            server = start()
            model = server.model('echo')
            async def run_async():
                while True:
                    await model.async_infer({'INPUT0': [1.0]})
            def run(infer):
                while True:
                    infer({'INPUT0': [1.0]})
            runs = [(run, model.infer), (run, lambda inputs: list(model.stream(inputs)))] * 2
            for target, *arguments in (*runs, (asyncio.run, run_async())):
                threading.Thread(target=target, args=arguments, daemon=True).start()
            time.sleep(0.1)
            """,
            id="daemon threads go on and on",
        ),
        pytest.param(
            """
            server = start()
            never = threading.Event()
            model = server.load_function(
                'f', lambda a: never.wait(), inputs={'a': ('FP32', [1])},
                outputs={'b': ('FP32', [1])},
            )
            pending = model.submit({'a': [1.0]})
            """,
            id="a callable that never returns",
        ),
        pytest.param(
            "server = start()\nthreading.Thread(target=lambda: sys.exit(3)).start()",
            id="sys.exit in a thread",
        ),
        pytest.param(
            """
            server = start()
            stream = server.model('stream').stream({'INPUT0': [1], 'COUNT': [5]})
            next(stream)
            """,
            id="a stream half read",
        ),
        pytest.param(
            """
            server = start()
            echo = server.model('echo')
            maps = [echo.map([{'INPUT0': [1.0]}] * 50, ordered=o) for o in (True, False)]
            for half in maps:
                next(half)
            """,
            id="maps half read",
        ),
        pytest.param(
            """
            server = start()

            def use():
                while True:
                    server.model('echo').infer({'INPUT0': [1.0]})

            for _ in range(3):
                threading.Thread(target=use, daemon=True).start()
            server.model('echo').infer({'INPUT0': [1.0]})
            """,
            id="daemon threads at work",
        ),
        pytest.param(
            """
            import asyncio
            server = start()

            async def main():
                held = {'parameters': {'hold': 'start'}}
                coroutine = server.model('echo').async_infer({'INPUT0': [1.0]}, **held)
                loop.task = loop.create_task(coroutine)
                await asyncio.sleep(0)

            class Loop(asyncio.SelectorEventLoop):
                task = None
            loop = Loop()
            loop.run_until_complete(main())
            warnings.simplefilter('ignore', ResourceWarning)
            loop.task._log_destroy_pending = False
            """,
            id="an event loop with a task",
        ),
        pytest.param(
            """
            server = start()
            held = (server.model('echo').infer({'INPUT0': [x]}) for x in (1.0, 2.0))
            next(held)
            """,
            id="a generator that holds a response",
        ),
        pytest.param(
            "import atexit\natexit.register(start().model('echo').infer, {'INPUT0': [1.0]})",
            id="an exit handler that infers",
        ),
        pytest.param(
            """
            server = start()

            def late():
                threading.main_thread().join()
                server.model('echo').infer({'INPUT0': [1.0]})

            threading.Thread(target=late).start()
            """,
            id="a thread that outlives the main one",
        ),
        pytest.param(
            """
            servers = []
            for call in (lambda: servers.append(start()), lambda: servers[0].close()):
                thread = threading.Thread(target=call)
                thread.start()
                thread.join()
            """,
            id="started in one thread, closed in another",
        ),
    ],
)
def test_the_process_ends_silently(run, code):
    """Whatever is open: exit code 0, nothing printed, no folder left."""
    assert run(code) == ""


@pytest.mark.parametrize(
    ("flags", "environment"),
    [
        (("-X", "dev", "-W", "error"), {"PYTHONMALLOC": "debug"}),
        (("-O", "-X", "faulthandler"), {}),
    ],
)
def test_python_finds_nothing_to_complain_of(run, flags, environment):
    """Nor does its allocator, where it looks for what was written behind the end of memory."""
    code = """
    with start() as server:
        model = server.load_function(
            'f', lambda a: a, inputs={'a': ('FP32', [-1])}, outputs={'b': ('FP32', [-1])}
        )
        assert model.infer({'a': [1.0]})['b'][0] == 1
        responses = list(server.model('stream').stream({'INPUT0': [1], 'COUNT': [3]}))
    """
    assert run(code, flags=flags, **environment) == ""


USES = {
    "cv2": "assert other.getNumThreads() > 0",
    "grpc": "other.insecure_channel('localhost:1').close()",
    "onnxruntime": "assert 'CPUExecutionProvider' in other.get_available_providers()",
    "pyarrow": "assert other.array([1]).to_numpy()[0] == 1",
    "torch": "assert other.ones(3) @ other.ones(3) == 3",
}


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("module", USES)
def test_libraries_with_threads_of_their_own_may_be_there_too(run, module, order):
    """Imported before the start or after it; both work, and the process ends silently."""
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    importing = f"import {module} as other"
    code = f"""
    warnings.simplefilter('ignore')
    {importing if order == "before" else ""}
    server = start()
    assert server.model('echo').infer({{'INPUT0': [1.0]}})['OUTPUT0'][0] == 1
    {importing}
    {USES[module]}
    assert server.model('echo').infer({{'INPUT0': [2.0]}})['OUTPUT0'][0] == 2
    """
    assert run(code) == ""


FUNCTIONS = {
    "a generator": """
        def function(x):
            yield x
            entered.set()
            while True:
                time.sleep(0.01)
                yield x
        """,
    "a generator that never yields": """
        def function(x):
            yield x
            entered.set()
            threading.Event().wait()
        """,
    "a coroutine": """
        async def function(x):
            entered.set()
            await asyncio.get_running_loop().create_future()
        """,
    "an async generator": """
        async def function(x):
            yield x
            entered.set()
            await asyncio.get_running_loop().create_future()
        """,
    "a class with a busy coroutine": """
        class function:
            async def initialize(self):
                await asyncio.sleep(0)
            async def __call__(self, x):
                entered.set()
                while True:
                    pass
            async def finalize(self):
                print("never")
        """,
}


@pytest.mark.parametrize(
    ("kind", "end"),
    [
        *((kind, "pass") for kind in FUNCTIONS),
        ("a coroutine", "server.close()"),
        ("a generator that never yields", "server.close()"),
    ],
)
def test_the_process_ends_whatever_a_function_does(run, kind, end):
    """Functions of every kind that do not come to an end are left behind without a word."""
    code = f"""
import asyncio
warnings.simplefilter("ignore", ResourceWarning)
entered = threading.Event()
{textwrap.dedent(FUNCTIONS[kind])}
server = start(exit_timeout=5)
model = server.load_function(
    "f", function, inputs={{"x": ("FP32", [-1])}}, outputs={{"y": ("FP32", [-1])}}
)
pending = model.submit({{"x": [1.0]}})
entered.wait()
{end}
"""
    assert run(code) == ""


def test_close_and_exit_are_quick(run):
    """The server is closed and the process gone in less than 0.3 s each.

    The best of five tries counts: other processes of the machine may take their time meanwhile.
    """
    for _ in range(5):
        out = run(
            """
            server = start()
            server.model('echo').infer({'INPUT0': [1.0]})
            began = time.monotonic()
            server.close()
            print(time.monotonic() - began, time.time())
            """
        )
        closing, closed_at = map(float, out.split())
        exiting = time.time() - closed_at
        if closing < 0.3 and exiting < 0.3:
            break
    assert closing < 0.3
    assert exiting < 0.3


def test_a_forked_child_is_told_and_ends(run):
    """In the child every use raises ClosedError at once; the parent goes on."""
    out = run(
        """
        server = start()
        model = server.model('echo')
        assert model.infer({'INPUT0': [1.0]})['OUTPUT0'].tolist() == [1.0]
        sys.stdout.flush()
        # From 3.12 on Python itself warns of forks in a process with threads.
        warnings.simplefilter('ignore', DeprecationWarning)
        child = os.fork()
        if child == 0:
            for call in (server.is_ready, lambda: model.infer({'INPUT0': [1.0]}), model.metadata):
                try:
                    call()
                except tritonffi.ClosedError as error:
                    assert 'forked child' in str(error), error
                else:
                    raise AssertionError('it went through')
            server.close()
            sys.exit(7)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), model.infer({'INPUT0': [2.0]})['OUTPUT0'])
        server.close()
        """
    )
    assert out == "7 [2.]\n"


def test_a_forked_child_is_told_about_what_was_in_flight(run):
    """It raises where it would wait for an inference of the parent's, and drops arrays freely."""
    out = run(
        """
        server = start()
        model = server.model('echo')
        held = [model.infer({'INPUT0': np.zeros(5000, np.float32)}) for _ in range(3)]
        pending = model.submit({'INPUT0': [1.0]}, parameters={'hold': 'start'})
        at_gate = gate()
        at_gate.wait()
        warnings.simplefilter('ignore', DeprecationWarning)
        child = os.fork()
        if child == 0:
            began = time.monotonic()
            for call in (pending.result, pending.wait):
                try:
                    call()
                except tritonffi.ClosedError as error:
                    assert 'forked child' in str(error), error
                else:
                    raise AssertionError('it went through')
            assert not pending.cancel()
            held.clear()
            assert time.monotonic() - began < 1
            try:
                start()
            except tritonffi.UnsupportedError as error:
                assert "use the 'spawn' method" in str(error), error
            else:
                raise AssertionError('it started, and would abort in the end')
            sys.exit(7)
        _, status = os.waitpid(child, 0)
        at_gate.open()
        print(os.waitstatus_to_exitcode(status), pending.result()['OUTPUT0'])
        server.close()
        """
    )
    assert out == "7 [1.]\n"


@pytest.mark.parametrize("loaded", ["", "tritonffi.capi"])
def test_a_child_forked_before_the_first_start_may_start_one(run, loaded):
    """Importing, and loading the library, does no harm to later forks."""
    out = run(
        f"""
        {loaded and "import " + loaded}
        child = os.fork()
        with start() as server:
            assert server.model('echo').infer({{'INPUT0': [1.0]}})['OUTPUT0'].tolist() == [1.0]
        os.write(1, b'well ')
        if child:
            _, status = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(status) == 0, status
        """
    )
    assert out == "well well "


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_multiprocessing_works_but_by_fork(run, tmp_path, method):
    """A pool of new processes has servers of its own; a forked one says what to do instead."""
    (tmp_path / "worker.py").write_text(
        PREAMBLE
        + textwrap.dedent(
            """
            def work(repository, backends, number):
                try:
                    server = tritonffi.Server(repository, backend_directory=backends)
                except tritonffi.UnsupportedError as error:
                    return "spawn" if "use the 'spawn'" in str(error) else str(error)
                with server:
                    out = server.model("echo").infer({"INPUT0": [float(number)]})["OUTPUT0"]
                return out.tolist()
            """
        )
    )
    out = run(
        f"""
        sys.path.insert(0, {str(tmp_path)!r})
        import multiprocessing, worker
        warnings.simplefilter('ignore', DeprecationWarning)
        if __name__ == '__main__':
            with start() as server:
                context = multiprocessing.get_context({method!r})
                with context.Pool(2) as pool:
                    work = [(REPOSITORY, BACKENDS, i) for i in range(2)]
                    print(pool.starmap(worker.work, work))
                print(server.model('echo').infer({{'INPUT0': [5.0]}})['OUTPUT0'].tolist())
        """
    )
    assert out == ("['spawn', 'spawn']" if method == "fork" else "[[0.0], [1.0]]") + "\n[5.0]\n"


def test_a_subinterpreter_is_refused():
    """By the import, in words."""
    code = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
script = '''
try:
    import tritonffi
except ImportError as error:
    print(error)
'''
interpreters.run_string(interpreters.create(), script)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.startswith("tritonffi does not work in a subinterpreter")
    assert done.returncode == 0
