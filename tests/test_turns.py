# SPDX-License-Identifier: Apache-2.0
"""Loads and unloads of one model by several threads: one after the other, and none for ever."""

from __future__ import annotations

import threading
import time

import _backend
import pytest
from _functions import workers

from tritonffi import ClosedError, InvalidArgumentError, Server, UnavailableError, _repository
from tritonffi._functions import FunctionModel

FP32 = {"INPUT0": ("FP32", [-1])}
ROW = ("FP32", [1])
HELD = {
    "backend": "tffitest",
    "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
    "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
    "parameters": {"init_hold": {"string_value": "true"}},
}

ECHO = {key: value for key, value in HELD.items() if key != "parameters"}

# In a process of its own, because what is tested for is a crash.
CHURN = """
import threading
import tritonffi
tensor = ("FP32", [-1])
seen = set()
churning = [None] * 4
def churn(name, load):
    for i in range(15):
        load()
        server.unload(name)
    churning.pop()
def infer(name):
    while churning:
        try:
            server.model(name).infer({"INPUT0": [1.0]})
        except (tritonffi.UnavailableError, tritonffi.NotFoundError):
            pass
        except Exception as error:
            seen.add(repr(error))
with tritonffi.Server(REPOSITORY, backend_directory=BACKENDS, startup_models=["echo"]) as server:
    names = {"echo": lambda: server.load("echo"), "f": lambda: server.load_function(
        "f", lambda INPUT0: INPUT0, inputs={"INPUT0": tensor}, outputs={"y": tensor})}
    threads = [threading.Thread(target=churn, args=item) for item in names.items() for _ in "ab"]
    threads += [threading.Thread(target=infer, args=[name]) for name in names for _ in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print("through", *seen)
"""


@pytest.fixture
def small(tmp_path, backend_directory):
    """A server of the test's own over one model, `one`, and another that stops at the gate."""
    _backend.write_model(tmp_path / "models", "one", FP32)
    _backend.write_model(tmp_path / "models", "slow", FP32, init_hold=True)
    with Server(
        tmp_path / "models",
        backend_directory=backend_directory,
        startup_models=["one"],
        exit_timeout=20,
    ) as running:
        yield running


def start(call, *arguments, **keywords):
    """Call on a thread of its own, which has what came of it as `outcome`."""

    def run():
        try:
            thread.outcome = call(*arguments, **keywords)
        except Exception as error:  # noqa: BLE001 (the test looks at it)
            thread.outcome = error

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def join_errands(name):
    """Wait for loads whose callers have left."""
    for thread in threading.enumerate():
        if thread.name == f"tritonffi: loading model {name!r}":
            thread.join(30)


def files_of(server, name):
    """What there is in a model's folder in the private repository."""
    folder = server._lifecycle.repository / name
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def outcome(thread):
    """What came of a call."""
    thread.join(30)
    assert not thread.is_alive()
    return thread.outcome


def test_threads_that_load_and_unload_one_model_survive_a_busy_machine(on_a_busy_machine):
    """Beside eight that infer, who see nothing but that it is not there."""
    done = on_a_busy_machine(CHURN)
    assert (done.returncode, done.stdout, done.stderr) == (0, "through\n", "")


def test_a_load_waits_for_another_of_the_model_and_an_unload_for_both(small, gate):
    """Each as long as it was told to; one of another model waits for none of them."""
    first = start(small.load, "slow")
    gate.wait()
    second = start(small.load, "slow")
    with pytest.raises(TimeoutError, match="loading model 'slow' is not over"):
        small.load("slow", timeout=0.05)
    with pytest.raises(TimeoutError, match="model 'slow': other loads and unloads of it"):
        small.unload("slow", timeout=0.05)
    small.load("one")
    gate.open()
    assert outcome(first).name == outcome(second).name == "slow"
    join_errands("slow")
    small.unload("slow")
    assert not small.model("slow").is_ready()


def test_whoever_waits_for_a_load_does_not_hold_up_close(small, gate):
    """The close waits for the load that is at work alone, and the other is told."""
    first = start(small.load, "slow")
    gate.wait()
    second = start(small.unload, "slow")
    closing = start(small.close)
    assert isinstance(outcome(second), ClosedError)
    assert closing.is_alive()
    gate.open()
    assert outcome(closing) is None
    outcome(first)


def test_a_callable_does_not_wait_for_who_waits_for_it(small):
    """It loads its own model while that is being unloaded: neither would ever be over."""
    inside, may_load = threading.Event(), threading.Event()
    loading = []

    def load_itself(x):
        inside.set()
        assert may_load.wait(30)
        loading.append(small.load_function("f", lambda x: x, inputs={"x": ROW}, outputs={"y": ROW}))
        return x

    model = small.load_function("f", load_itself, inputs={"x": ROW}, outputs={"y": ROW})
    inference = model.submit({"x": [1.0]})
    assert inside.wait(30)
    unloading = start(small.unload, "f")
    while [status.state for status in small.models() if status.name == "f"] == ["READY"]:
        time.sleep(0.001)
    may_load.set()
    with pytest.raises(UnavailableError, match="it is being loaded or unloaded"):
        inference.result()
    assert outcome(unloading) is None
    assert loading == []


def test_the_last_function_that_was_loaded_is_the_one_that_stays(small):
    """Of those that several threads load at once all others are let go, with their threads."""
    spec = {"inputs": {"x": ROW}, "outputs": {"y": ROW}}
    loads = [start(small.load_function, "f", lambda x, n=n: {"y": x * n}, **spec) for n in range(8)]
    for load in loads:
        assert outcome(load).name == "f"
    (stays,) = workers("f")
    first = small.model("f").infer({"x": [1.0]})["y"].tolist()
    assert small.model("f").infer({"x": [1.0]})["y"].tolist() == first
    small.unload("f")
    stays.join(30)
    assert not stays.is_alive()


def test_a_function_is_let_go_by_a_load_whose_caller_has_left(small, gate):
    """A model of the backend's takes its place in the background."""
    small.load_function("f", lambda x: x, inputs={"x": ROW}, outputs={"y": ROW})
    (worker,) = workers("f")
    with pytest.raises(TimeoutError):
        small.load("f", HELD, timeout=0.05)
    gate.wait()
    gate.open()
    worker.join(30)
    assert not worker.is_alive()
    assert small.model("f").infer({"INPUT0": [2.0]})["OUTPUT0"].tolist() == [2.0]


def test_a_function_that_nobody_waits_for_any_more_is_not_loaded(small, gate):
    """Its turn came when its caller had left, and it was closed: the load would fail."""
    first = start(small.load, "f", HELD)
    gate.wait()
    with pytest.raises(TimeoutError):
        small.load_function("f", lambda x: x, inputs={"x": ROW}, outputs={"y": ROW}, timeout=0.05)
    gate.open()
    assert outcome(first).name == "f"
    join_errands("f")
    assert small.model("f").infer({"INPUT0": [2.0]})["OUTPUT0"].tolist() == [2.0]
    assert small._lifecycle.failed_reloads == set()


def test_a_failed_warm_up_unloads_nothing_but_its_own_model(small, monkeypatch):
    """Another function of the name was loaded before it could be."""
    spec = {"inputs": {"x": ROW}, "outputs": {"y": ROW}}
    warm_up = {
        "name": "w",
        "batch_size": 1,
        "inputs": {"x": {"data_type": "TYPE_FP32", "dims": [1], "zero_data": True}},
    }
    loaded = FunctionModel.loaded

    def loaded_late(model):
        try:
            loaded(model)
        except ZeroDivisionError:
            small.load_function("f", lambda x: {"y": x + 1}, **spec)
            raise

    monkeypatch.setattr(FunctionModel, "loaded", loaded_late)
    with pytest.raises(ZeroDivisionError):
        small.load_function("f", lambda x: 1 / 0, config={"model_warmup": [warm_up]}, **spec)
    assert small.model("f").infer({"x": [1.0]})["y"].tolist() == [2.0]


def test_a_load_writes_its_files_in_its_turn(small, gate):
    """The one before loads with its own; the caller of this one has left, and it goes on."""
    first = start(small.load, "made", HELD, {"1/first": b"1"})
    gate.wait()
    with pytest.raises(TimeoutError):
        small.load("made", ECHO, {"2/second": b"2"}, timeout=0.05)
    assert files_of(small, "made") == ["1/first"]
    gate.open()
    assert outcome(first).name == "made"
    join_errands("made")
    assert files_of(small, "made") == ["2/second"]
    response = small.model("made").infer({"INPUT0": [2.0]})
    assert (response["OUTPUT0"].tolist(), response.model_version) == ([2.0], 2)


def test_threads_may_load_a_new_model_with_files_of_their_own(small):
    """Each is loaded, and the files are those of one of them."""
    for name in ("files", "config"):
        loads = [
            start(small.load, name, ECHO, {f"1/{n}": bytes(10)} if name == "files" else None)
            for n in range(8)
        ]
        assert [outcome(load).name for load in loads] == [name] * 8
    assert len(files_of(small, "files")) == 1
    folders = small._lifecycle.repository.parent.iterdir()
    assert [folder for folder in folders if folder.name.startswith("tmp")] == []


@pytest.mark.parametrize(
    ("config", "files", "error"),
    [
        (ECHO | {"metric_tags": {"a b": "c"}}, None, InvalidArgumentError),
        (ECHO | {"metric_tags": {"a b": "c"}}, {"1/x": b""}, InvalidArgumentError),
        (ECHO | {"backend": "python"}, {"1/other.py": b""}, InvalidArgumentError),
        (ECHO, {"../x": b""}, InvalidArgumentError),
        (ECHO, {"1/x": "text"}, TypeError),
        ({"a": object()}, None, InvalidArgumentError),
    ],
)
def test_what_is_wrong_waits_for_no_turn(small, gate, config, files, error):
    """It is refused while another load of the model is at work."""
    first = start(small.load, "made", HELD, {"1/first": b"1"})
    gate.wait()
    with pytest.raises(error, match="model 'made'"):
        small.load("made", config, files)
    assert files_of(small, "made") == ["1/first"]
    gate.open()
    assert outcome(first).name == "made"


def test_a_load_that_fails_leaves_the_files_that_were_there(small):
    """The model that was loaded from them goes on, and is loaded from them again."""
    small.load("made", ECHO, {"3/first": b"1"})
    with pytest.raises(InvalidArgumentError, match="nowhere"):
        small.load("made", ECHO | {"backend": "nowhere"}, {"4/second": b"2"})
    assert files_of(small, "made") == ["3/first"]
    small.load("made", ECHO)
    assert small.model("made").infer({"INPUT0": [2.0]}).model_version == 3
    with pytest.raises(InvalidArgumentError, match="is missing"):
        small.load("made", ECHO | {"backend": "python"}, {"1/other.py": b""})
    assert files_of(small, "made") == ["3/first"]
    with pytest.raises(InvalidArgumentError, match="is missing"):
        small.load("new", ECHO | {"backend": "python"})
    assert not (small._lifecycle.repository / "new").exists()


def test_a_function_gets_its_version_in_its_turn(small, gate):
    """It has none where its caller has left before."""
    first = start(small.load, "f", HELD)
    gate.wait()
    spec = {"inputs": {"x": ROW}, "outputs": {"y": ROW}, "timeout": 0.05}
    with pytest.raises(TimeoutError):
        small.load_function("f", lambda x: x, config={"response_cache": {"enable": True}}, **spec)
    gate.open()
    assert outcome(first).name == "f"
    join_errands("f")
    assert [path.name for path in (small._lifecycle.repository / "f").iterdir()] == ["1"]


def test_of_two_loads_that_close_a_circle_together_one_is_refused(small, monkeypatch):
    """Triton would follow it without end. Both have said what they are made of when they look."""
    both = threading.Barrier(2, timeout=30)
    check = _repository.check_circles

    def late(*arguments, **keywords):
        both.wait()
        check(*arguments, **keywords)

    def ensemble(part):
        tensor = {"data_type": "TYPE_FP32", "dims": [-1]}
        step = {"model_name": part, "model_version": -1}
        maps = {"input_map": {"INPUT0": "INPUT0"}, "output_map": {"OUTPUT0": "OUTPUT0"}}
        return {
            "platform": "ensemble",
            "input": [{"name": "INPUT0", **tensor}],
            "output": [{"name": "OUTPUT0", **tensor}],
            "ensemble_scheduling": {"step": [step | maps]},
        }

    monkeypatch.setattr(_repository, "check_circles", late)
    loads = [start(small.load, name, ensemble(part)) for name, part in ("ab", "ba")]
    errors = [str(outcome(load)) for load in loads]
    assert any("ensembles contain one another" in error for error in errors)
