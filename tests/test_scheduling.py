# SPDX-License-Identifier: Apache-2.0
"""Batchers, ensembles and configs of the kinds that public reports complain of: exact answers."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from _functions import FP32, row

from tritonffi import InvalidArgumentError, QueueFullError, TritonError, UnavailableError


@pytest.fixture
def ensemble(server):
    """Loads an ensemble of steps, until the test is over."""
    names = []

    def load(name, inputs, outputs, steps, **more):
        def entries(given):
            return [{"data_type": "TYPE_FP32", "dims": [-1], **entry} for entry in given]

        config = {
            "platform": "ensemble",
            "input": entries(inputs),
            "output": entries(outputs),
            "ensemble_scheduling": {
                "step": [
                    {"model_name": model, "model_version": -1, "input_map": into, "output_map": out}
                    for model, into, out in steps
                ]
            },
            **more,
        }
        names.append(name)
        return server.load(name, config)

    yield load
    for name in names:
        server.unload(name)


def named(*names):
    """Tensors of an ensemble."""
    return [{"name": name} for name in names]


@pytest.mark.parametrize(
    "batching",
    [
        {"preserve_ordering": True},
        {"preferred_batch_size": [3], "max_queue_delay_microseconds": 100},
        {"default_queue_policy": {"default_timeout_microseconds": 60_000_000}},
        {"priority_levels": 3, "default_priority_level": 2},
    ],
)
def test_every_request_gets_its_own_answer(load, batching):
    """Of many shapes, from several instances: nobody gets rows or columns of another's."""
    config = {"dynamic_batching": batching, "instance_group": [{"kind": "KIND_CPU", "count": 3}]}
    model = load(lambda x: {"y": x * 2}, max_batch_size=8, config=config)
    inputs = [np.full((1 + n % 3, 1 + n % 5), n, np.float32) for n in range(200)]
    for value, response in zip(
        inputs, model.map(({"x": value} for value in inputs), in_flight=50), strict=True
    ):
        assert response["y"].tobytes() == (value * 2).tobytes()
        assert response["y"].shape == value.shape


def test_each_priority_has_a_queue_of_its_own(load):
    """With its own length and its own patience."""
    go = threading.Event()
    entered = threading.Event()

    def function(x):
        entered.set()
        assert go.wait(30)
        return {"y": x}

    policies = {
        "1": {"max_queue_size": 1},
        "2": {"timeout_action": "REJECT", "default_timeout_microseconds": 1},
    }
    batching = {
        "priority_levels": 2,
        "default_priority_level": 2,
        "priority_queue_policy": policies,
    }
    model = load(function, max_batch_size=1, config={"dynamic_batching": batching})
    try:
        first = model.submit({"x": row(1)}, priority=1)
        assert entered.wait(30)
        pending = [first]

        def fill():
            while True:  # one in the queue, and perhaps one ahead of it
                pending.append(model.submit({"x": row(2)}, priority=1))

        with pytest.raises(QueueFullError):
            fill()
        assert len(pending) in (2, 3)
        late = [model.submit({"x": row(5)}) for _ in range(2)]
    finally:
        go.set()
    for inference in pending:
        inference.result()
    for inference in late:
        with pytest.raises(UnavailableError, match="timeout expired"):
            inference.result()


def test_a_reshape_takes_an_axis_away(load):
    """What the function sees has the shape that the config gives it: here one number a row."""
    seen = []

    def function(x):
        seen.append(x.shape)
        return {"y": x + 1}

    reshape = {"reshape": {"shape": []}}
    config = {"input": [{"name": "x", **reshape}], "output": [{"name": "y", **reshape}]}
    one = ("FP32", [1])
    model = load(function, x=one, y=one, max_batch_size=4, config=config)
    assert model.infer({"x": [[1.0], [2.0]]})["y"].tolist() == [[2], [3]]
    assert seen == [(2,)]


@pytest.mark.parametrize("data", ["zero_data", "random_data"])
def test_a_warm_up_leaves_out_what_is_optional(load, data):
    """And gives texts without a letter."""
    calls = []

    def function(x, z=None):
        calls.append((x.tolist(), z))
        return {"y": x}

    tensor = {"data_type": "TYPE_STRING", "dims": [2], data: True}
    config = {
        "input": [{"name": "z", "optional": True}],
        "model_warmup": [{"name": "w", "batch_size": 1, "count": 2, "inputs": {"x": tensor}}],
    }
    text = ("BYTES", [-1])
    load(function, inputs={"x": text, "z": FP32}, y=text, config=config)
    assert calls == [([b"", b""], None)] * 2


@pytest.mark.parametrize("wanted", [["Y"], ["Z"], ["Z", "Y"], []])
def test_an_ensemble_gives_the_outputs_that_are_wanted(load, ensemble, wanted):
    """Also where the others come of the same step, or of one that is needed for nothing else."""
    load(lambda x: {"y": x + 1, "z": x + 2}, name="two", outputs={"y": FP32, "z": FP32})
    steps = [
        ("two", {"x": "X"}, {"y": "Y", "z": "between"}),
        ("two", {"x": "between"}, {"z": "Z"}),
    ]
    model = ensemble("both", named("X"), named("Y", "Z"), steps)
    response = model.infer({"X": [1.0]}, outputs=wanted, timeout=30)
    expected = {"Y": [2.0], "Z": [5.0]}
    assert {name: value.tolist() for name, value in response.items()} == {
        name: expected[name] for name in wanted or expected
    }


@pytest.mark.parametrize("wanted", [["OUT"], ["MID"], ["OUT", "MID"], []])
def test_an_ensemble_gives_outputs_that_go_into_steps_too(load, ensemble, wanted):
    """Triton fails where it is asked for some of them, so it is asked for all."""
    load(lambda x: {"y": x + 1}, name="before")
    load(lambda x: {"y": x * 2}, name="after")
    steps = [("before", {"x": "X"}, {"y": "MID"}), ("after", {"x": "MID"}, {"y": "OUT"})]
    model = ensemble("both", named("X"), named("MID", "OUT"), steps)
    expected = {"MID": [2.0], "OUT": [4.0]}
    prepared = model.prepare({"X": np.ones(1, np.float32)}, outputs=wanted)
    out = np.zeros(1, np.float32)
    keywords = {"outputs": wanted, "timeout": 30}
    responses = [
        model.infer({"X": [1.0]}, **keywords),
        model.infer({"X": [1.0]}, **keywords, out={(wanted or ["OUT"])[0]: out}),
        prepared.infer({"X": np.ones(1, np.float32)}),
        *model.stream({"X": [1.0]}, **keywords),
    ]
    for response in responses:
        assert {name: value.tolist() for name, value in response.items()} == {
            name: expected[name] for name in wanted or expected
        }
    assert out.tolist() == expected[(wanted or ["OUT"])[0]]


def test_a_model_of_passive_instances_is_not_asked(load, ensemble, server):
    """Triton would crash; neither is an ensemble that has it for a part."""
    passive = {"instance_group": [{"kind": "KIND_CPU", "passive": True}]}
    with pytest.raises(InvalidArgumentError, match="all instances are passive"):
        load(lambda x: {"y": x}, name="lazy", config=passive)
    both = {"instance_group": [*passive["instance_group"], {"kind": "KIND_CPU"}]}
    assert load(lambda x: {"y": x}, name="some", config=both).infer({"x": [3.0]})["y"].item() == 3
    tensor = {"data_type": "TYPE_FP32", "dims": [-1]}
    config = {
        "backend": "tffitest",
        "input": [{"name": "x", **tensor}],
        "output": [{"name": "y", **tensor}],
        **passive,
    }
    lazy = server.load("lazy", config)
    inner = ensemble("inner", named("X"), named("Y"), [("lazy", {"x": "X"}, {"y": "Y"})])
    outer = ensemble("outer", named("X"), named("Y"), [("inner", {"X": "X"}, {"Y": "Y"})])
    try:
        for model, key, part in (
            (lazy, "x", "it has"),
            (inner, "X", "its part 'lazy' has"),
            (outer, "X", "its part 'lazy' has"),
        ):
            message = f"^model {model.name!r}: {part} only passive instances"
            with pytest.raises(InvalidArgumentError, match=message):
                model.infer({key: [1.0]})
    finally:
        for model in (outer, inner, lazy):
            server.unload(model.name)


def test_an_optional_input_goes_through_an_ensemble(load, ensemble):
    """Or is left out in its step too."""

    def function(x, z=None):
        return {"y": x if z is None else x + z}

    config = {"input": [{"name": "z", "optional": True}]}
    load(function, name="step", inputs={"x": FP32, "z": FP32}, config=config)
    inputs = [{"name": "X"}, {"name": "Z", "optional": True}]
    model = ensemble("all", inputs, named("Y"), [("step", {"x": "X", "z": "Z"}, {"y": "Y"})])
    assert model.infer({"X": [1.0]})["Y"].tolist() == [1]
    assert model.infer({"X": [1.0], "Z": [2.0]})["Y"].tolist() == [3]


def test_a_step_may_have_any_number_of_responses(load, ensemble):
    """The next steps run once for each, also for none; giving up in the middle ends them all."""

    def count(x):
        for number in range(int(x[0])):
            yield {"y": [float(number)]}

    load(count, name="count")
    load(lambda x: {"y": x * 10}, name="times")
    steps = [("count", {"x": "X"}, {"y": "between"}), ("times", {"x": "between"}, {"y": "Y"})]
    decoupled = {"model_transaction_policy": {"decoupled": True}}
    model = ensemble("tens", named("X"), named("Y"), steps, **decoupled)
    for number in (0, 1, 30):
        answers = sorted(r["Y"].item() for r in model.stream({"X": [float(number)]}))
        assert answers == [n * 10 for n in range(number)]
    with model.stream({"X": [1000.0]}) as responses:
        next(responses)


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([("one", {"x": "X"}, {"y": "other"})], "'Y'"),
        ([("one", {"x": "nowhere"}, {"y": "Y"})], "'X'"),
        ([("one", {"w": "X"}, {"y": "Y"})], "non-existing input w"),
        ([("none", {"x": "X"}, {"y": "Y"})], "none"),
        ([], "must specify 'step'"),
    ],
)
def test_a_wrong_ensemble_says_what_is_wrong(load, ensemble, steps, words):
    """Where Triton tells the log alone, the error has it all the same."""
    load(lambda x: {"y": x}, name="one")
    with pytest.raises(TritonError, match=words):
        ensemble("wrong", named("X"), named("Y"), steps)


def iterative(**more):
    """Return the config of a model that may have its requests run again."""
    tensor = {"data_type": "TYPE_FP32", "dims": [-1]}
    return {
        "backend": "tffitest",
        "input": [{"name": "INPUT0", **tensor}],
        "output": [{"name": "OUTPUT0", **tensor}],
        "sequence_batching": {"iterative_sequence": True, **more},
    }


def test_the_end_of_an_iterative_sequence_is_refused(server, ensemble):
    """Triton would lose a request that says it and is run again; also one of an ensemble."""
    again = server.load("again", iterative())
    whole = ensemble(
        "whole", named("X"), named("Y"), [("again", {"INPUT0": "X"}, {"OUTPUT0": "Y"})]
    )
    try:
        for model, key, part in ((again, "INPUT0", "it"), (whole, "X", "its part 'again'")):
            message = f"^model '{model.name}': {part} has iterative sequences, .* leave it out$"
            ended = {"correlation_id": 1, "sequence_start": True, "sequence_end": True}
            with pytest.raises(InvalidArgumentError, match=message):
                model.infer({key: [1.0]}, **ended)
            with pytest.raises(InvalidArgumentError, match=message):
                model.sequence(end_inputs={key: [1.0]})
        assert again.infer({"INPUT0": [1.0]})["OUTPUT0"].tolist() == [1]
        with again.sequence() as sequence:  # and nobody is warned that it has no end
            assert sequence.infer({"INPUT0": [2.0]})["OUTPUT0"].tolist() == [2]
    finally:
        server.unload("whole")
        server.unload("again")


def test_a_model_that_is_shown_the_end_may_have_it(server):
    """It may go by that, and be through with the request."""
    control = {"kind": "CONTROL_SEQUENCE_END", "int32_false_true": [0, 1]}
    model = server.load("shown", iterative(control_input=[{"name": "END", "control": [control]}]))
    try:
        ended = {"correlation_id": 1, "sequence_start": True, "sequence_end": True}
        assert model.infer({"INPUT0": [1.0]}, **ended)["OUTPUT0"].tolist() == [1]
    finally:
        server.unload("shown")
