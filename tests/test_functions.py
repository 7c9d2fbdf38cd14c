# SPDX-License-Identifier: Apache-2.0
"""Python callables as models, behind Triton's scheduler."""

from __future__ import annotations

import contextlib
import logging
import threading

import numpy as np
import pytest
from _functions import (
    BATCHED,
    BYTES,
    FP32,
    Held,
    Loader,
    batching,
    identity,
    row,
    statistics,
    workers,
)
from conftest import counters

from tritonffi import InternalError, Server


def test_a_callable_is_a_model(load, server):
    """Arrays go in by name and come out by name; metadata and config are the model's."""

    def add(a, b):
        return {"sum": a + b, "difference": a - b}

    model = load(
        add,
        inputs={"a": FP32, "b": FP32},
        outputs={"sum": FP32, "difference": FP32},
        max_batch_size=4,
        config={"parameters": {"k": {"string_value": "v"}}},
    )
    response = model.infer({"a": row(1, 2), "b": row(10, 20)})
    np.testing.assert_array_equal(response["sum"], row(11, 22), strict=True)
    np.testing.assert_array_equal(response["difference"], row(-9, -18), strict=True)
    assert model.config()["backend"] == "tritonffi"
    assert model.config()["parameters"]["k"] == {"string_value": "v"}
    assert "function" in [status.name for status in server.models() if status.state == "READY"]
    assert statistics(model) == {
        "inferences": 1,
        "executions": 1,
        "success": 1,
        "fail": 0,
        "sizes": {1: 1},
    }


def test_requests_that_wait_become_one_batch_and_are_counted_exactly(load):
    """The callable sees all rows at once, and every request gets its own back."""
    held = Held()
    inputs = [np.full((1 + i % 3, 2), i, np.float32) for i in range(1, 9)]
    rows = sum(map(len, inputs))
    model = load(held, max_batch_size=64, config={"dynamic_batching": batching(rows)})
    first = model.submit({"x": row(0, 0)})
    held.wait()
    pending = [model.submit({"x": x}) for x in inputs]
    held.may_go.set()
    np.testing.assert_array_equal(first.result()["y"], row(0, 0))
    for x, inference in zip(inputs, pending, strict=True):
        np.testing.assert_array_equal(inference.result()["y"], x, strict=True)
    assert [call.shape for call in held.calls] == [(1, 2), (rows, 2)]
    assert statistics(model) == {
        "inferences": 1 + rows,
        "executions": 2,
        "success": 9,
        "fail": 0,
        "sizes": {1: 1, rows: 1},
    }


def test_requests_of_different_shapes_are_batches_of_their_own(load):
    """Ragged requests reach the backend together; what cannot be stacked is called apart."""
    held = Held()
    ragged = {
        "dynamic_batching": batching(4),
        "input": [{"name": "x", "allow_ragged_batch": True}],
    }
    model = load(held, max_batch_size=64, config=ragged)
    first = model.submit({"x": row(0)})
    held.wait()
    inputs = [row(1, 2), row(3, 4, 5), row(6, 7), row(8, 9, 10)]
    pending = [model.submit({"x": x}) for x in inputs]
    held.may_go.set()
    first.result()
    for x, inference in zip(inputs, pending, strict=True):
        np.testing.assert_array_equal(inference.result()["y"], x, strict=True)
    assert [call.shape for call in held.calls] == [(1, 1), (2, 2), (2, 3)]
    assert statistics(model)["sizes"] == {1: 1, 2: 2}


def test_without_a_batch_axis_each_request_is_a_call(load):
    """The array has the shape that was sent, and one inference is counted for it."""
    model = load(identity, x=("FP32", [-1, -1]), y=("FP32", [-1, -1]))
    for shape in ((2, 3), (0, 3), (0, 0)):
        x = np.ones(shape, np.float32)
        np.testing.assert_array_equal(model.infer({"x": x})["y"], x, strict=True)
    assert statistics(model)["sizes"] == {1: 3}


def test_a_batch_may_have_no_rows(load):
    """Triton takes such a request where it has no bytes, and drops its batch axis on the way."""
    shapes = []

    def function(x):
        shapes.append(x.shape)
        return {"y": x}

    model = load(function, **BATCHED)
    assert model.infer({"x": np.ones((0, 0), np.float32)})["y"].shape == (0, 0)
    assert model.infer({"x": np.ones((2, 0), np.float32)})["y"].shape == (2, 0)
    assert shapes == [(0, 0), (2, 0)]


def test_instances_run_in_threads_of_their_own_at_the_same_time(load):
    """Three instances are three calls that meet at a barrier."""
    barrier = threading.Barrier(3)
    threads = set()

    def meet(x):
        barrier.wait(30)
        threads.add(threading.current_thread().name)
        return {"y": x}

    model = load(meet, config={"instance_group": [{"count": 2}, {"count": 1}]})
    assert len(workers()) == 3
    for inference in [model.submit({"x": row(i)[0]}) for i in range(3)]:
        inference.result()
    assert threads == {f"tritonffi: function #{i}" for i in range(3)}


@pytest.mark.parametrize("size", [1, 1000, 1_000_000])
def test_inputs_stay_valid_however_long_the_callable_keeps_them(load, server, size):
    """Views of old batches are what they were after many later ones, and after the unload."""
    kept = []

    def keep(x):
        kept.append(x[:, ::2])
        return {"y": x[:, :1]}

    model = load(keep, max_batch_size=1)
    for i in range(20):
        model.infer({"x": np.full((1, size), i, np.float32)})
    server.unload("function")
    for i, view in enumerate(kept):
        assert view.shape == (1, (size + 1) // 2)
        assert np.all(view == i)
    # A large one is lent, until the first that is kept is noticed (test_function_lending.py).
    assert counters()["buffers"] >= (20 if size <= 1000 else 10)
    kept.clear()


def test_inputs_are_read_only(load):
    """Writing to one is the callable's error."""

    def write(x):
        x[0] = 1
        return {"y": x}

    with pytest.raises(InternalError, match="ValueError: assignment destination is read-only"):
        load(write).infer({"x": row(1)[0]})


def test_large_tensors_arrive_whole(load):
    """Several MB in a batch of two requests."""
    model = load(lambda x: {"y": x * 2}, **BATCHED)
    inputs = [np.random.default_rng(i).random((1, 1 << 20), np.float32) for i in range(2)]
    pending = [model.submit({"x": x}) for x in inputs]
    for x, inference in zip(inputs, pending, strict=True):
        np.testing.assert_array_equal(inference.result()["y"], x * 2, strict=True)


NUMBERS = {
    "BOOL": np.bool_,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
    **{f"{s}INT{n}": np.dtype(f"{s.lower()}int{n}") for s in ("", "U") for n in (8, 16, 32, 64)},
}


@pytest.mark.parametrize("datatype", NUMBERS)
def test_every_number_type_passes_both_ways(load, datatype):
    """The callable sees the dtype that was declared, and the bits come back."""
    dtypes = []

    def function(x):
        dtypes.append(x.dtype)
        return {"y": x}

    x = np.array([[0, 1], [1, 0]], NUMBERS[datatype])
    model = load(function, x=(datatype, [2]), y=(datatype, [2]), max_batch_size=2)
    np.testing.assert_array_equal(model.infer({"x": x})["y"], x, strict=True)
    assert dtypes == [np.dtype(NUMBERS[datatype])]


def test_bytes_are_cut_at_the_rows_of_each_request(load):
    """Elements of any length, with NUL and without text, over a batch of three requests."""
    held = Held()
    model = load(held, x=BYTES, y=BYTES, **BATCHED)
    first = model.submit({"x": [[b"first"]]})
    held.wait()
    inputs = [
        [["", "größe"], ["a\0", "\0"]],
        [[b"\xff\x00\xfe", b"x" * 5000]],
        [["", ""], ["", ""], ["", "end"]],
    ]
    pending = [model.submit({"x": x}) for x in inputs]
    held.may_go.set()
    assert first.result()["y"].tolist() == [[b"first"]]
    for x, inference in zip(inputs, pending, strict=True):
        expected = [[e.encode() if isinstance(e, str) else e for e in r] for r in x]
        assert inference.result()["y"].tolist() == expected
    assert [call.shape for call in held.calls] == [(1, 1), (6, 2)]
    assert {type(element) for element in held.calls[1].flat} == {bytes}
    assert not held.calls[1].flags.writeable


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (lambda x: {"y": [["a"], [b"b"]]}, [[b"a"], [b"b"]]),
        (lambda x: np.array([["a"], ["b"]]), [[b"a"], [b"b"]]),
    ],
)
def test_results_are_whatever_makes_a_tensor(load, result, expected):
    """Lists and arrays of texts, in a mapping or, for a single output, by themselves."""
    model = load(result, y=BYTES, max_batch_size=2)
    assert model.infer({"x": np.ones((2, 1), np.float32)})["y"].tolist() == expected


def test_lists_of_numbers_are_results_too(load):
    """They take the declared type where every value fits."""
    model = load(lambda x: x.tolist(), max_batch_size=2)
    np.testing.assert_array_equal(model.infer({"x": row(1, 2)})["y"], row(1, 2), strict=True)


def test_a_request_gets_only_the_outputs_it_asks_for(load):
    """In one batch with requests that ask for others."""
    held = Held()
    outputs = {"y": FP32, "z": FP32}
    model = load(lambda x: {**held(x), "z": -x}, outputs=outputs, **BATCHED)
    first = model.submit({"x": row(0)}, outputs=["y"])
    held.wait()
    pending = [model.submit({"x": row(1)}, outputs=wanted) for wanted in (["z"], [])]
    held.may_go.set()
    assert list(first.result()) == ["y"]
    assert [sorted(inference.result()) for inference in pending] == [["z"], ["y", "z"]]
    assert len(held.calls) == 2


def test_names_need_not_be_identifiers(load):
    """A dict of inputs, and outputs by name, for names as models have them."""
    names = ["input.1", "INPUT__0", "größe/0:0"]
    model = load(
        lambda inputs: {f"{name} out": array for name, array in inputs.items()},
        inputs=dict.fromkeys(names, FP32),
        outputs={f"{name} out": FP32 for name in names},
        max_batch_size=2,
    )
    response = model.infer({name: row(i) for i, name in enumerate(names)})
    assert {name: array.item() for name, array in response.items()} == {
        "input.1 out": 0,
        "INPUT__0 out": 1,
        "größe/0:0 out": 2,
    }


def test_optional_inputs_may_be_missing(load):
    """Requests with and without one are not stacked together."""
    held = Held()
    model = load(
        lambda a, b=None: {"y": held(a)["y"] + (100 if b is None else b)},
        inputs={"a": FP32, "b": FP32},
        max_batch_size=8,
        config={"dynamic_batching": {}, "input": [{"name": "b", "optional": True}]},
    )
    first = model.submit({"a": row(1)})
    held.wait()
    pending = [model.submit({"a": row(2), "b": row(5)}), model.submit({"a": row(3)})]
    held.may_go.set()
    assert first.result()["y"].item() == 101
    assert [inference.result()["y"].item() for inference in pending] == [7, 103]
    assert len(held.calls) == 3


def test_sequence_controls_are_inputs(load):
    """The batcher's START flag reaches the callable under the name that the config gives it."""
    control = {"kind": "CONTROL_SEQUENCE_START", "int32_false_true": [0, 1]}
    batching = {"control_input": [{"name": "START", "control": [control]}]}
    model = load(
        lambda x, START: {"y": START.astype(np.float32)},  # noqa: N803
        max_batch_size=1,
        config={"sequence_batching": batching},
    )
    flags = [(True, False), (False, False), (False, True)]
    answers = [
        model.infer({"x": row(0)}, correlation_id=7, sequence_start=start, sequence_end=end)["y"]
        for start, end in flags
    ]
    assert [answer.item() for answer in answers] == [1, 0, 0]


def test_empty_places_of_a_direct_sequence_batch_are_rows_that_are_not_ready(load):
    """They hold whatever Triton left there; READY tells which rows are requests."""
    calls = []

    def function(x, READY):  # noqa: N803
        calls.append((x[READY == 1].tolist(), READY.ravel().tolist()))
        return {"y": x}

    control = {"kind": "CONTROL_SEQUENCE_READY", "int32_false_true": [0, 1]}
    batching = {"direct": {}, "control_input": [{"name": "READY", "control": [control]}]}
    model = load(function, max_batch_size=4, config={"sequence_batching": batching})
    for sequence in (1, 2, 3):
        model.infer({"x": row(sequence)}, correlation_id=sequence, sequence_start=True)
    answer = model.infer({"x": row(30)}, correlation_id=3, sequence_end=True)
    assert answer["y"].tolist() == [[30]]
    assert calls[-1] == ([30], [0, 0, 1])
    for sequence in (1, 2):
        model.infer({"x": row(0)}, correlation_id=sequence, sequence_end=True)


def test_the_response_cache_spares_calls(load):
    """Equal requests are answered by Triton, and counted as hits."""
    calls = []

    def function(x):
        calls.append(x)
        return {"y": x}

    model = load(function, config={"response_cache": {"enable": True}})
    for _ in range(3):
        assert model.infer({"x": row(1, 2)[0]})["y"].tolist() == [1, 2]
    counts = statistics(model)
    assert len(calls) == 1
    calls.clear()
    assert (counts["inferences"], counts["executions"], counts["success"]) == (1, 1, 3)


def test_an_ensemble_joins_functions(load, server):
    """Two functions behind one another are a model of Triton's own."""
    load(lambda x: x + 1, name="function plus", max_batch_size=4)
    load(lambda x: x * 10, name="function times", max_batch_size=4)
    steps = [
        {"model_name": "function plus", "input_map": {"x": "X"}, "output_map": {"y": "between"}},
        {"model_name": "function times", "input_map": {"x": "between"}, "output_map": {"y": "Y"}},
    ]
    tensor = {"data_type": "TYPE_FP32", "dims": [-1]}
    config = {
        "platform": "ensemble",
        "max_batch_size": 4,
        "input": [{"name": "X", **tensor}],
        "output": [{"name": "Y", **tensor}],
        "ensemble_scheduling": {"step": [{**step, "model_version": -1} for step in steps]},
    }
    ensemble = server.load("joined", config=config)
    try:
        assert ensemble.infer({"X": row(1, 2)})["Y"].tolist() == [[20, 30]]
    finally:
        server.unload("joined")


def test_two_servers_may_have_functions_of_one_name(load):
    """Each calls its own."""
    mine = load(lambda x: x + 1)
    with Server(server_id="other") as other:
        theirs = Loader(other)(lambda x: x + 2)
        x = row(0)[0]
        assert mine.infer({"x": x})["y"].item() == 1
        assert theirs.infer({"x": x})["y"].item() == 2
    assert mine.infer({"x": x})["y"].item() == 1


def test_a_function_loaded_under_an_old_name_takes_over(load):
    """Of the config nothing changed but the callable; what ran goes to its end with the old one."""
    held = Held()
    model = load(held)
    (old,) = workers()
    x = row(1)[0]
    running = model.submit({"x": x})
    held.wait()
    load(lambda x: x + 10)
    assert model.infer({"x": x})["y"].item() == 11
    held.may_go.set()
    assert running.result()["y"].item() == 1
    old.join(30)
    assert len(workers()) == 1
    assert len(held.calls) == 1


def test_unloading_ends_the_threads_and_frees_the_function(server):
    """What the callable refers to goes with it."""
    before = counters()
    server.load_function("function", identity, inputs={"x": FP32}, outputs={"y": FP32})
    assert counters()["functions"] == before["functions"] + 1
    assert [thread.name for thread in workers()] == ["tritonffi: function #0"]
    server.unload("function")
    assert workers() == []
    assert counters() == before


def test_thousands_of_inferences_leave_nothing_behind(load):
    """Buffers, batches and inferences are where they were, after failures too."""

    def function(x):
        if x[0, 0] < 0:
            raise ValueError
        return {"y": x}

    def drop(record):
        return False

    before = counters()
    model = load(function, **BATCHED)
    logging.getLogger("tritonffi.functions").addFilter(drop)
    try:
        for _ in range(100):
            for inference in [model.submit({"x": row(i - 1, 0)}) for i in range(30)]:
                with contextlib.suppress(InternalError):
                    inference.result()
    finally:
        logging.getLogger("tritonffi.functions").removeFilter(drop)
    stats = statistics(model)
    assert stats["success"] + stats["fail"] == 3000
    assert stats["fail"] >= 100
    del inference
    load.unload()
    assert counters() == before
