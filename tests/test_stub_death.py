# SPDX-License-Identifier: Apache-2.0
"""Who waits for a stub of Triton's python backend is told when it has died, also by a close."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_python_backend import run, runs, segments, write

from tritonffi import InternalError, _stub_deaths, _stub_records
from tritonffi import _python_backend as backend
from tritonffi._stub_deaths import StubDeaths

__all__ = ["runs"]  # a fixture: it is used by its name

LEFT = "a server is left behind, unloaded but not stopped: Triton cannot stop it after requests of "
REFUSED = "model 'many': Stub process 'many_0_0' is not healthy."

# Answers from a thread of its own, after the request was given back, and does not come to an end.
DECOUPLED = """
import os, threading
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            arguments = (value, request.get_response_sender())
            threading.Thread(target=self.answer, args=arguments).start()

    def answer(self, value, sender):
        tensor = pb_utils.Tensor("OUT", np.array([os.getpid()]))
        sender.send(pb_utils.InferenceResponse([tensor]))
        if value[0]:
            threading.Event().wait()
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
# Tells its stub, also by a file as soon as it is at work, and sleeps for some tenths of a second.
SLOW = """
        import os, pathlib, time
        at_work = pathlib.Path(__file__).parents[2] / f"{os.getpid()}-{value[0]}"
        at_work.touch()
        time.sleep(value[0] / 10)
        return np.array([os.getpid()])
"""

HEAD = """
    import asyncio, gc, logging, weakref
    from tritonffi import _log, _stub_deaths
    _log._CALL_S = _stub_deaths._ON_ITS_WAY_S = 0.3  # with stubs that are dead
    logging.basicConfig(stream=sys.stdout, format="%(message)s")

    def kill(pid):
        # When it does nothing, or it might have the lock of the memory: that is another story.
        states = set()
        while states != {b"S"}:
            try:
                tasks = list(pathlib.Path(f"/proc/{pid}/task").iterdir())
                stats = [(task / "stat").read_bytes() for task in tasks]
                states = {stat.rpartition(b")")[2].split()[0] for stat in stats}
            except OSError:  # a thread has ended
                continue
        os.kill(int(pid), signal.SIGKILL)

    def opened(model, count=1):
        # Which has given the requests back by then, as one that came later is answered.
        streams = [model.stream({"IN": [1]}) for _ in range(count)]
        (pid,) = {int(next(stream)["OUT"][0]) for stream in streams}
        list(model.stream({"IN": [0]}))
        return pid, *streams

    def took(call):
        start = time.monotonic()
        call()
        return time.monotonic() - start
"""


def write_many(folder):
    """Write a decoupled model that answers once, and never again where it gets anything but 0."""
    write(folder, "many", "INT64", "")
    with (folder / "many" / "config.pbtxt").open("a") as file:
        file.write(
            "model_transaction_policy { decoupled: true }\ninstance_group { kind: KIND_CPU }"
        )
    (folder / "many" / "1" / "model.py").write_text(DECOUPLED)
    return folder


def run_here(body, *arguments):
    """Run a script with what these have in common."""
    return run(HEAD + body, *arguments)


def test_open_streams_are_told_that_their_stub_has_died(runs, tmp_path):
    """All of them, the awaited ones too, though it had given the requests back; close is quick."""
    body = """
    server = Server(sys.argv[2])
    model = server.model("many")
    pid, *streams = opened(model, 3)

    async def main():
        stream = model.async_stream({"IN": [1]})
        print((await anext(stream))["OUT"][0] == pid)
        kill(pid)
        try:
            await anext(stream)
        except TritonError as error:
            print(error)

    print(took(lambda: asyncio.run(main())) < 5)
    for stream in streams:
        print(message(lambda: next(stream)))
        print(list(stream))
    print(took(server.close) < 5, server.closed)
    print(os.getpid())
    """
    same, awaited, quick, *told, left, closed, pid = run_here(body, write_many(tmp_path))
    assert (same, awaited, quick) == ("True", REFUSED, "True")
    assert told == [REFUSED, "[]"] * 3
    assert left == f"{LEFT}'many' whose python process has died"
    assert closed == "True True"
    assert segments(pid) == []


@pytest.mark.parametrize("way", ["wait", "map", "close", "unload"])
def test_what_is_queued_behind_a_dead_stub_holds_nobody_up(runs, tmp_path, way):
    """Triton would take a second for each. The inputs stay: it reads them yet."""
    write(tmp_path, "slow", "INT64", SLOW)
    body = """
    way = sys.argv[3]
    server = Server(sys.argv[2])
    model = server.model("slow")
    kill(model.infer({"IN": [0]})["OUT"][0])
    start = time.monotonic()
    if way == "map":
        told = [str(error) for error in model.map([{"IN": [0]}] * 20, return_errors=True)]
    else:
        array = np.zeros(100_000, np.int64)
        alive = weakref.ref(array)
        inferences = [model.submit({"IN": array}) for _ in range(20)]
        del array
        if way == "unload":
            print(message(lambda: server.unload("slow")))
        elif way == "close":
            server.close()
        told = [message(inference.result) for inference in inferences]
        del inferences
    print(len(told), *set(told))
    server.close()
    print(time.monotonic() - start < 8, server.closed)
    del server, model
    if way != "map":
        gc.collect()
        print(alive() is not None)
    """
    lines = run_here(body, tmp_path, way)
    left = f"{LEFT}'slow' whose python process has died"
    told = "20 model 'slow': Stub process 'slow_0' is not healthy."
    rest = {
        "wait": [told, left, "True True"],
        "map": [told, left, "True True"],
        "close": [left, told, "True True"],
        "unload": [f"model 'slow': it does not unload. {backend.LOST}", told, left, "True True"],
    }
    assert lines == [*rest[way], *([] if way == "map" else ["True"])]


def test_as_long_as_one_stub_lives_its_requests_go_on(runs, tmp_path):
    """Also in a close; that of the one that was killed is told by Triton."""
    write(tmp_path, "slow", "INT64", SLOW)
    with (tmp_path / "slow" / "config.pbtxt").open("a") as file:
        file.write("instance_group { count: 2 kind: KIND_CPU }")
    body = """
    server = Server(sys.argv[2])
    model = server.model("slow")
    inferences = [model.submit({"IN": [35]}) for _ in range(2)]
    while len(at_work := list(pathlib.Path(sys.argv[2]).glob("*-35"))) < 2:
        time.sleep(0.001)
    first, second = (int(path.name.partition("-")[0]) for path in at_work)
    kill(first)
    server.close()
    answers = [message(lambda: i.result()["OUT"].tolist()) for i in inferences]
    print(str([second]) in answers)
    print(*(answer.partition("_")[0] for answer in answers if answer.startswith("model")))
    """
    left, lives, dead = run_here(body, tmp_path)
    assert left == f"{LEFT}'slow' whose python process has died"
    assert (lives, dead) == ("True", "model 'slow': Stub process 'slow")


def test_a_load_tells_who_waited_for_the_stub_that_it_replaces(runs, tmp_path):
    """The new one is none the worse for it, and unloads when it has answered."""
    body = """
    server = Server(sys.argv[2])
    model = server.model("many")
    pid, stream = opened(model)
    _stub_deaths._ON_ITS_WAY_S = 60  # so that nobody else tells it
    kill(pid)
    server.load("many")
    print(message(lambda: next(stream)))
    print([bool(response["OUT"][0] != pid) for response in model.stream({"IN": [0]})])
    print(message(lambda: server.unload("many")), model.is_ready())
    print(took(server.close) < 5)
    """
    *lines, left, quick = run_here(body, write_many(tmp_path))
    assert lines == [REFUSED, "[True]", "None False"]
    assert left == f"{LEFT}'many' whose python process has died"
    assert quick == "True"


def test_an_ensemble_over_a_dead_stub_does_not_hold_up_a_close(runs, tmp_path):
    """Nobody else tells it: another step might go on."""
    body = """
    server = Server(sys.argv[2])
    tensor = {"data_type": "TYPE_INT64", "dims": [-1]}
    step = {"model_name": "many", "model_version": -1}
    step |= {"input_map": {"IN": "IN"}, "output_map": {"OUT": "OUT"}}
    whole = server.load("whole", {
        "platform": "ensemble",
        "input": [{"name": "IN", **tensor}],
        "output": [{"name": "OUT", **tensor}],
        "ensemble_scheduling": {"step": [step]},
        "model_transaction_policy": {"decoupled": True},
    })
    pid, stream = opened(whole)
    kill(pid)
    print(took(server.close) < 8)
    print(message(lambda: next(stream)))
    """
    left, quick, told = run_here(body, write_many(tmp_path))
    assert left == f"{LEFT}'whole' whose python process has died"
    assert quick == "True"
    assert told == REFUSED.replace("many'", "whole'", 1)


def instances(count, **more):
    """The config of a model with instances."""
    group = {"name": "pid_0", "kind": "KIND_CPU", "count": count, "gpus": [], **more}
    return {"backend": "python", "instance_group": [group]}


class Waiting:
    """An inference in flight."""

    model_name = "pid"
    told = None

    def is_settled(self):
        """Return whether it was told."""
        return self.told is not None

    def live_token(self):
        """Return any."""
        return 1

    def fail(self, error):
        """Be told."""
        self.told = error


@pytest.fixture
def dead(tmp_path, monkeypatch):
    """Two dead instances of a model, and its config, at which `StubDeaths` looks."""
    monkeypatch.setattr(_stub_records, "_SHM", tmp_path)
    monkeypatch.setattr(_stub_deaths, "_ON_ITS_WAY_S", 0)
    config = {}
    monkeypatch.setattr(_stub_deaths, "config_of", lambda *_: config)
    folder = tmp_path / "records"
    folder.mkdir()
    (tmp_path / "region").touch()
    beyond = int(Path("/proc/sys/kernel/pid_max").read_text(encoding="ascii"))
    for number in (0, 1):
        words = ("model.py", "/region", "1", "1", "1", "folder", "1", f"pid_0_{number}")
        (folder / str(beyond + number)).write_bytes(b"\0".join(map(os.fsencode, words)))
    return SimpleNamespace(deaths=StubDeaths(folder), config=config)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (instances(1), True),
        (instances(2), True),
        (instances(3), False),
        (instances(1, gpus=[0, 1]), True),
        (instances(1, gpus=[0, 1, 2]), False),
        (instances(2, name="other"), False),
        ({**instances(2), "backend": "other"}, False),
        ({}, False),
    ],
)
def test_nobody_is_told_as_long_as_a_stub_may_live(dead, config, told):
    """Of one that could leave no record it is not known that it is dead."""
    dead.config.update(config)
    inference = Waiting()
    dead.deaths.look(None, [inference], is_closing=False)
    assert inference.is_settled() == told


def test_who_waits_is_told_at_the_second_look(dead, monkeypatch):
    """An answer may be on its way, and a load may have replaced the stubs meanwhile."""
    monkeypatch.setattr(_stub_deaths, "_ON_ITS_WAY_S", 1e-9)
    dead.config.update(instances(2))
    deaths, inference = dead.deaths, Waiting()
    deaths.look(None, [inference], is_closing=False)
    deaths.replaced["pid"] = deaths.records()
    deaths.look(None, [inference], is_closing=False)
    deaths.replaced.clear()
    deaths.look(None, [inference], is_closing=False)
    assert not inference.is_settled()
    assert deaths.bereaved == set()
    deaths.look(None, [inference], is_closing=False)
    assert isinstance(inference.told, InternalError)
    assert str(inference.told) == "model 'pid': Stub process 'pid_0_0' is not healthy."
    assert deaths.bereaved == {"pid"}
    told = inference.told
    deaths.look(None, [inference], is_closing=True)
    assert inference.told is told


@pytest.mark.parametrize("is_closing", [False, True])
def test_an_ensemble_is_told_in_a_close_alone(dead, monkeypatch, is_closing):
    """Of the configs that are known from before where Triton does not give them any more."""
    step = {"model_name": "pid"}
    whole = {"platform": "ensemble", "ensemble_scheduling": {"step": [step]}}
    monkeypatch.setattr(backend, "PATIENCE_S", 0)
    dead.deaths.remember({"pid": instances(2), "whole": whole})
    inference = Waiting()
    inference.model_name = "whole"
    dead.deaths.look(None, [inference], is_closing=is_closing)
    assert inference.is_settled() == is_closing
