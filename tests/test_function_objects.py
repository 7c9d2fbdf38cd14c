# SPDX-License-Identifier: Apache-2.0
"""Objects and classes as models: one object for all instances, or one for each."""

from __future__ import annotations

import sys
import threading
import time

import numpy as np
import pytest
from _functions import FP32, Held, Loader, row, workers
from conftest import counters

from tritonffi import InternalError, Server, _functions

TWO = {"instance_group": [{"count": 2}]}


class Scale:
    """Multiplies by what its model's config says, and counts its calls."""

    def __init__(self):
        """Have nothing yet."""
        self.events = []
        self.factor = None

    def initialize(self, config):
        """Read the config."""
        self.factor = float(config["parameters"]["factor"]["string_value"])
        self.events.append(("initialize", threading.current_thread().name, config["name"]))

    def __call__(self, x):
        """Multiply."""
        self.events.append(("call", threading.current_thread().name))
        return {"y": x * self.factor}

    def finalize(self):
        """Note it."""
        self.events.append(("finalize", threading.current_thread().name))


FACTOR = {"parameters": {"factor": {"string_value": "3"}}}


def test_an_object_is_initialized_called_and_finalized(load):
    """Once each but for the calls, in the instance's thread."""
    scale = Scale()
    model = load(scale, config=FACTOR)
    assert model.infer({"x": row(2)[0]})["y"].item() == 6
    load.unload()
    thread = "tritonffi: function #0"
    assert scale.events == [
        ("initialize", thread, "function"),
        ("call", thread),
        ("finalize", thread),
    ]


def test_all_instances_share_an_object(load):
    """It is initialized before the first instance is there, and finalized after the last."""
    scale = Scale()
    model = load(scale, config={**FACTOR, **TWO})
    for i in range(10):
        assert model.infer({"x": row(i)[0]})["y"].item() == 3 * i
    load.unload()
    assert [event[0] for event in scale.events] == ["initialize", *["call"] * 10, "finalize"]


def test_each_instance_has_an_object_of_a_class(load):
    """Made, initialized, called and finalized in the thread of the instance."""
    made = []
    barrier = threading.Barrier(2)

    class Met(Scale):
        def __init__(self):
            super().__init__()
            made.append(self)
            self.events.append(("made", threading.current_thread().name))

        def __call__(self, x):
            barrier.wait(30)
            return super().__call__(x)

    model = load(Met, config={**FACTOR, **TWO})
    assert len(made) == 2
    for inference in [model.submit({"x": row(i)[0]}) for i in range(4)]:
        inference.result()
    load.unload()
    for i, one in enumerate(made):
        thread = f"tritonffi: function #{i}"
        assert one.events == [
            ("made", thread),
            ("initialize", thread, "function"),
            ("call", thread),
            ("call", thread),
            ("finalize", thread),
        ]


def test_a_sequence_finds_its_state_in_the_object_of_its_instance(load):
    """Triton keeps a sequence at one instance, so its state needs no lock and no sharing."""

    class Accumulate:
        def __init__(self):
            self.totals = {}

        def __call__(self, x, context):
            request = context.request
            key = request.correlation_id
            start = 0 if request.sequence_start else self.totals[key]
            self.totals[key] = start + x.sum()
            total = self.totals.pop(key) if request.sequence_end else self.totals[key]
            return {"y": np.full((1, 1), total, np.float32)}

    model = load(
        Accumulate,
        max_batch_size=4,
        batch=False,
        config={"sequence_batching": {"oldest": {"max_candidate_sequences": 4}}, **TWO},
    )
    ids = [1, 2, 3, 4, 5, 6]
    for step in range(4):
        answers = [
            model.submit(
                {"x": row(key)},
                correlation_id=key,
                sequence_start=step == 0,
                sequence_end=step == 3,
            )
            for key in ids
        ]
        assert [a.result()["y"].item() for a in answers] == [(step + 1) * key for key in ids]


class Execute:
    """Is not callable, but has another method."""

    def execute(self, a, b, context):
        """Add, and tell the instance."""
        return {"y": a + b + 100 * context.instance}


@pytest.mark.parametrize("given", [Execute, Execute()])
def test_execute_is_called_where_there_is_no_call(load, given):
    """With inputs by name and a context, like others."""
    model = load(given, inputs={"a": FP32, "b": FP32})
    assert model.infer({"a": [1.0], "b": [2.0]})["y"].item() == 3


def test_initialize_may_take_nothing(load):
    """And `finalize` may be missing."""
    seen = []

    class Model:
        def initialize(self):
            seen.append("initialize")

        @staticmethod
        def __call__(x):
            return x

    assert load(Model).infer({"x": row(2)[0]})["y"].item() == 2
    assert seen == ["initialize"]


def test_the_config_is_a_copy(load):
    """What is done to it changes nothing."""

    class Model:
        def initialize(self, config):
            assert config["max_batch_size"] == 3
            assert config["input"][0]["name"] == "x"
            config.clear()

        def __call__(self, x):
            return x

    model = load(Model, max_batch_size=3, config=TWO)
    assert model.infer({"x": row(2)})["y"].item() == 2


def test_other_classes_are_callables_like_others(load):
    """What they make is the result."""

    class Outputs(dict):
        def __init__(self, x):
            super().__init__(y=x * 2)

    assert load(Outputs).infer({"x": row(2)[0]})["y"].item() == 4


def test_other_classes_are_not_initialized(load):
    """Their methods are those of results."""

    class Outputs(dict):
        def __init__(self, x):
            super().__init__(y=x * 2)

        def initialize(self, config):
            self.clear()

        def finalize(self):
            self.clear()

    assert load(Outputs).infer({"x": row(2)[0]})["y"].item() == 4
    load.unload()


def test_a_class_may_generate(load):
    """Its model is decoupled."""

    class Count:
        def __call__(self, x):
            for i in range(int(x[0])):
                yield np.array([i], np.float32)

    assert [r["y"].item() for r in load(Count).stream({"x": [3.0]})] == [0, 1, 2]


@pytest.mark.parametrize("where", ["__init__", "initialize"])
@pytest.mark.parametrize("at", [1, 2])
def test_what_a_class_raises_when_it_is_loaded_is_raised_by_the_load(load, where, at):
    """Instances that were ready are finalized, and nothing stays."""
    before = counters()
    events = []

    class Fails:
        def __init__(self):
            self.enter("__init__")

        def initialize(self):
            self.enter("initialize")

        def enter(self, name):
            events.append(name)
            if events.count(where) == at and name == where:
                raise ArithmeticError("no such weights")

        def __call__(self, x):
            return x

        def finalize(self):
            events.append("finalize")

    with pytest.raises(ArithmeticError, match="no such weights") as caught:
        load(Fails, config=TWO)
    if sys.version_info >= (3, 11):
        assert caught.value.__notes__ == ["while model 'function' was initialized"]
    load.names.clear()
    assert events.count("finalize") == at - 1
    assert workers() == []
    assert counters() == before


def test_a_shared_object_that_was_not_initialized_is_not_finalized(load):
    """And is initialized once, though there would be more instances."""
    events = []

    class Fails:
        def initialize(self):
            events.append("initialize")
            raise ArithmeticError("no such weights")

        def __call__(self, x):
            return x

        def finalize(self):
            events.append("finalize")

    with pytest.raises(ArithmeticError, match="no such weights"):
        load(Fails(), config=TWO)
    load.names.clear()
    assert events == ["initialize"]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (3, "model 'function': the function must be callable, not int"),
        (type, "model 'function': type is a class of classes, which takes no inputs"),
        (type("Meta", (type,), {}), "model 'function': Meta is a class of classes"),
        (type("Model", (), {"__call__": lambda self, a: a}), "the function takes (a)"),
        (type("Model", (), {"execute": lambda self, a: a})(), "the function takes (a)"),
    ],
)
def test_what_cannot_be_called_is_refused_before_anything_is_made(load, given, text):
    """In words."""
    with pytest.raises(TypeError) as caught:
        load(given, inputs={})
    load.names.clear()
    assert text in str(caught.value)


@pytest.mark.parametrize("is_async", [False, True])
def test_an_object_is_initialized_before_its_warm_up(load, is_async):
    """Which each instance has for itself."""
    made = []

    class Plain:
        def initialize(self):
            self.events = ["initialize"]
            made.append(self)

        def __call__(self, x, context):
            self.events.append(("warm-up" if context.is_warm_up else "request", x.shape))
            return x

    class Async(Plain):
        async def __call__(self, x, context):
            return super().__call__(x, context)

    sample = {"data_type": "TYPE_FP32", "dims": [4], "zero_data": True}
    warm_up = [{"name": "warm", "batch_size": 1, "inputs": {"x": sample}}]
    load(Async if is_async else Plain, max_batch_size=2, config={"model_warmup": warm_up, **TWO})
    assert [one.events for one in made] == [["initialize", ("warm-up", (1, 4))]] * 2


def test_a_failure_to_finalize_is_logged(load, caplog):
    """The model is unloaded all the same."""

    class Fails:
        def __call__(self, x):
            return x

        def finalize(self):
            raise ValueError("boom")

    load(Fails)
    load.unload()
    (record,) = [r for r in caplog.records if r.name == "tritonffi.functions"]
    assert record.message == "model 'function': finalize: ValueError: boom"
    assert workers() == []


def test_an_initialize_that_takes_too_long_ends_the_load(load, monkeypatch):
    """The timeout is that of the whole load; what comes later is cleared away."""
    monkeypatch.setattr(_functions, "_JOIN_TIMEOUT", 60)  # which is waited for after other failures
    may_go = threading.Event()
    finalized = threading.Event()

    class Slow:
        def initialize(self):
            assert may_go.wait(30)

        def __call__(self, x):
            return x

        def finalize(self):
            finalized.set()

    start = time.monotonic()
    with pytest.raises(TimeoutError, match="model 'function': it was not initialized in time"):
        load(Slow, timeout=0.05)
    load.names.clear()
    assert time.monotonic() - start < 10
    (worker,) = workers()
    may_go.set()
    worker.join(30)
    assert finalized.is_set()


def test_an_object_is_finalized_when_it_is_replaced_and_at_close():
    """Each at its time."""
    first, second = Scale(), Scale()
    with Server() as server:
        load = Loader(server)
        load(first, config=FACTOR)
        load(second, config=FACTOR)
        assert [event[0] for event in first.events] == ["initialize", "finalize"]
        assert [event[0] for event in second.events] == ["initialize"]
    assert [event[0] for event in second.events] == ["initialize", "finalize"]


def test_an_object_whose_call_was_given_up_is_finalized_after_it():
    """Not while it runs."""
    held = Held()

    class Slow:
        finalized = threading.Event()

        def __call__(self, x):
            return held(x)

        def finalize(self):
            self.finalized.set()

    with Server(exit_timeout=60) as server:
        model = Loader(server)(Slow)
        (worker,) = workers()
        pending = model.submit({"x": row(1)[0]})
        held.wait()
    assert not Slow.finalized.is_set()
    held.may_go.set()
    worker.join(30)
    assert Slow.finalized.is_set()
    with pytest.raises(Exception, match="before its function answered"):
        pending.result()
    held.calls.clear()


class Late:
    """Its objects have what they are called by, and it has not."""

    def __init__(self):
        """Take what they are called by."""
        self.execute = lambda x: x + 1


class Lent:
    """Its objects have any method."""

    def __getattr__(self, name):
        """Give one."""
        if name == "execute":
            return lambda x: x + 1
        raise AttributeError(name)


@pytest.mark.parametrize("kind", [Late, Lent])
def test_what_objects_get_by_themselves_is_not_known_of_a_class(load, kind):
    """The message says so; an object is called by it."""
    words = f"Class {kind.__name__} is called like a function, because it has no method __call__"
    with pytest.raises(TypeError, match=rf"the function takes \(\), .*\. {words}"):
        load(kind)
    assert load(kind()).infer({"x": row(1)[0]})["y"].item() == 2


def test_a_class_that_fails_in_a_call_keeps_its_object(load):
    """The next call finds it."""

    class Once:
        calls = 0

        def __call__(self, x):
            self.calls += 1
            if self.calls == 1:
                raise ValueError("boom")
            return x * self.calls

    model = load(Once)
    with pytest.raises(InternalError, match="ValueError: boom"):
        model.infer({"x": row(1)[0]})
    assert model.infer({"x": row(1)[0]})["y"].item() == 2
