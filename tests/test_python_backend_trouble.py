# SPDX-License-Identifier: Apache-2.0
"""Stubs of Triton's python backend that die at work, or never come to it."""

from __future__ import annotations

import pytest
from test_python_backend import run, runs, segments, write

__all__ = ["runs"]  # a fixture: it is used by its name


def test_a_stub_killed_at_work_is_an_error_and_a_reload_mends_it(runs, tmp_path):
    """At once: nobody waits for what the stub would have answered."""
    told = tmp_path / "pid"
    body = f"import os, pathlib, time; pathlib.Path({str(told)!r}).write_text(str(os.getpid()))"
    write(
        tmp_path / "models", "stuck", "INT64", f"{body}; time.sleep(600 * value[0]); return value"
    )
    body = """
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
        print(message(lambda: server.close(timeout=2)))
        print(os.getpid())
    """
    refused, again, close, pid = run(body, tmp_path / "models", told)
    assert refused == "model 'stuck': Stub process 'stuck_0' is not healthy."
    assert again == "[0]"
    assert "A stub process of the python backend has died with a request." in close
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
    left = (
        "a server is left behind, unloaded but not stopped: Triton cannot stop it after loads of "
        f"{name!r} whose python process has died"
    )
    if how == "impatient":
        assert first == "loading model 'dies' is not over after 0.5 s"
        again = ()
    else:
        assert first.startswith("model ")
        again = (again, again)
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
        print(inference.done())
        server.load("add")
        print(model.infer({"IN": [3.0]})["OUT"].tolist())
        print(message(lambda: server.close(timeout=1)))
    """
    first, log, done, again, close = run(body, tmp_path, str(lock))
    assert first == "[2.0]"
    assert log.startswith("ERROR a process of the python backend has died with the lock of the ")
    assert (done, again) == ("False", "[4.0]")
    assert "model 'add'" in close
