# SPDX-License-Identifier: Apache-2.0
"""Traces: what they tell, of one inference, of an ensemble, of a chain of one's own."""

from __future__ import annotations

import itertools
import json
import os
import threading
import time

import numpy as np
import pytest
from _ensemble import ensemble

from tritonffi import (
    InvalidArgumentError,
    Trace,
    TraceActivity,
    TraceLevel,
    chrome_trace,
)

ONE = {"INPUT0": [1.0]}
ROW = {"INPUT0": [[1.0, 2.0]]}
BOTH = TraceLevel.TIMESTAMPS | TraceLevel.TENSORS
POINTS = [
    "REQUEST_START",
    "QUEUE_START",
    "COMPUTE_START",
    "COMPUTE_INPUT_END",
    "COMPUTE_OUTPUT_START",
    "COMPUTE_END",
    "REQUEST_END",
]
SPANS = ["request", "queue", "compute_input", "compute_infer", "compute_output"]


@pytest.fixture
def chain(server):
    """An ensemble of three steps."""
    yield ensemble(server, "chain", ["batched", "batched", "batched"])
    server.unload("chain")


def test_a_trace_tells_where_the_time_went(echo):
    """Every point once, in order, within the time that the call took."""
    before = time.monotonic_ns()
    trace = Trace()
    assert repr(trace) == f"<Trace {trace.id}, not used>"
    assert not trace.is_complete()
    echo.infer(ONE, trace=trace, request_id="mine")
    record = trace.record(timeout=30)
    after = time.monotonic_ns()
    assert trace.is_complete()
    assert repr(trace) == f"<Trace {trace.id}, over>"
    assert [event.name for event in record.events] == POINTS
    assert list(trace.timestamps) == POINTS
    times = list(trace.timestamps.values())
    assert before <= times[0] <= times[-1] <= after
    assert times == sorted(times)
    assert record.events[0].timestamp == times[0] / 1e9
    assert (record.id, record.parent_id, record.children) == (trace.id, 0, ())
    assert (record.model_name, record.model_version, record.request_id) == ("echo", 1, "mine")
    assert (record.context, record.context_text) == ({}, "")
    assert trace.record() is record
    assert trace.dropped == 0


def test_spans_are_seconds(echo):
    """Each ends where the next begins; the parts are within the whole."""
    trace = Trace()
    echo.infer(ONE, trace=trace)
    spans = trace.spans
    assert list(spans) == SPANS
    whole = spans["request"]
    assert whole.duration == (whole.end_ns - whole.start_ns) / 1e9 > 0
    assert (whole.start, whole.end) == (whole.start_ns / 1e9, whole.end_ns / 1e9)
    parts = [spans[name] for name in SPANS[1:]]
    for one, following in itertools.pairwise(parts):
        assert one.end_ns == following.start_ns
    assert whole.start_ns <= parts[0].start_ns
    assert parts[-1].end_ns <= whole.end_ns
    assert all(part.duration >= 0 for part in parts)
    assert spans["queue"].name == "queue"


def test_waiting_in_the_queue_is_seen(server, gate):
    """What waits behind a held request spends that time in its `queue` span."""
    model = server.model("echo")
    first = model.submit(ONE, parameters={"hold": "start"})
    gate.wait()
    trace = Trace()
    second = model.submit(ONE, trace=trace)
    begun = time.monotonic_ns()
    while time.monotonic_ns() - begun < 5_000_000:
        pass
    gate.release()
    first.result()
    second.result()
    assert trace.spans["queue"].duration >= 0.005
    assert trace.spans["queue"].duration > 10 * trace.spans["compute_input"].duration


@pytest.mark.parametrize("dtype", ["fp32", "int64", "bool", "fp16", "bytes", "uint8"])
def test_tensors_are_copied_as_they_went_by(server, dtype):
    """Inputs at the queue, outputs at the response; the arrays live on their own."""
    value = np.array([b"", b"a\0b"], object) if dtype == "bytes" else np.array([1, 0, 1])
    numpy_type = {"fp32": "f4", "fp16": "f2", "bytes": object}.get(dtype, dtype)
    value = value.astype(numpy_type)
    trace = Trace(TraceLevel.TENSORS)
    server.model(f"echo_{dtype}").infer({"INPUT0": value}, trace=trace)
    queued, sent = trace.tensors
    assert queued.kind is TraceActivity.TENSOR_QUEUE_INPUT
    assert sent.kind is TraceActivity.TENSOR_BACKEND_OUTPUT
    assert queued.timestamp_ns <= sent.timestamp_ns
    assert (queued.tensor.name, sent.tensor.name) == ("INPUT0", "OUTPUT0")
    del trace
    for tensor in (queued.tensor, sent.tensor):
        assert tensor.datatype == dtype.upper()
        assert tensor.shape == value.shape
        assert tensor.array.dtype == value.dtype
        assert tensor.array.tolist() == value.tolist()
        assert (tensor.memory_type.name, tensor.memory_type_id) == ("CPU", 0)


def test_an_output_that_got_no_memory_has_no_size(server):
    """Triton tells what was there before in place of one, and no address."""
    value = np.ones(50, np.float32)
    trace = Trace(TraceLevel.TENSORS)
    with pytest.raises(InvalidArgumentError, match="the model gives 200 bytes, but 'out' has 28"):
        server.model("echo_fp32").infer(
            {"INPUT0": value}, out={"OUTPUT0": np.empty(7, np.float32)}, trace=trace
        )
    queued, sent = (event.tensor for event in trace.tensors)
    assert queued.array.tolist() == value.tolist()
    assert (sent.name, sent.shape, sent.byte_size, sent.array) == ("OUTPUT0", (50,), 0, None)


def test_tensors_have_the_batch_axis(server):
    """And the shape that the request had."""
    trace = Trace(BOTH)
    value = np.arange(6, dtype=np.float32).reshape(3, 2)
    server.model("batched").infer({"INPUT0": value}, trace=trace)
    assert list(trace.timestamps) == POINTS
    for event in trace.tensors:
        assert event.tensor.shape == (3, 2)
        assert event.tensor.byte_size == 24
        assert np.array_equal(event.tensor.array, value)


@pytest.mark.parametrize(
    ("level", "timestamps", "tensors"),
    [
        (TraceLevel.TIMESTAMPS, True, False),
        (TraceLevel.TENSORS, False, True),
        (BOTH, True, True),
        (TraceLevel.MIN, True, False),
        (TraceLevel.MAX, True, False),
        (TraceLevel.MAX | TraceLevel.TENSORS, True, True),
        (int(BOTH), True, True),
    ],
)
def test_a_level_says_what_is_recorded(echo, level, timestamps, tensors):
    """The deprecated two mean timestamps, as Triton has it."""
    trace = Trace(level)
    assert trace.report_activity("mine")
    echo.infer(ONE, trace=trace)
    assert list(trace.timestamps) == (POINTS if timestamps else [])
    assert [a.name for a in trace.activities] == (["mine"] if timestamps else [])
    assert len(trace.tensors) == (2 if tensors else 0)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"level": TraceLevel.DISABLED}, InvalidArgumentError),
        ({"level": 16}, InvalidArgumentError),
        ({"level": -1}, InvalidArgumentError),
        ({"level": True}, TypeError),
        ({"level": "TIMESTAMPS"}, TypeError),
        ({"parent_id": -1}, InvalidArgumentError),
        ({"parent_id": 1.5}, TypeError),
        ({"max_activities": 2**64}, InvalidArgumentError),
        ({"max_tensor_bytes": None}, TypeError),
        ({"context": "text"}, TypeError),
        ({"context": {"a": {1}}}, InvalidArgumentError),
        ({"context": {"a": float("nan")}}, InvalidArgumentError),
    ],
)
def test_wrong_arguments_are_refused(server, arguments, error):
    """Before anything is made."""
    with pytest.raises(error):
        Trace(**arguments)


def test_a_request_takes_a_trace_alone(echo):
    """And nothing else in its place."""
    with pytest.raises(TypeError, match="trace must be a Trace, not int"):
        echo.infer(ONE, trace=7)


def test_an_ensemble_has_a_child_for_each_step(chain):
    """With the step's model, under the ensemble's trace and within its time."""
    trace = Trace(BOTH)
    chain.infer({"X": [[1.0, 2.0]]}, trace=trace, request_id="whole")
    record = trace.record(timeout=30)
    assert record.model_name == "chain"
    assert list(record.spans) == ["request"]
    assert [c.model_name for c in record.children] == ["batched"] * 3
    assert [c.parent_id for c in record.children] == [trace.id] * 3
    ids = [c.id for c in record.children]
    assert ids == sorted(set(ids))
    whole = record.spans["request"]
    end = whole.start_ns
    for child in record.children:
        assert child.request_id == "whole"
        assert list(child.spans) == SPANS
        assert end <= child.spans["request"].start_ns
        assert child.spans["request"].start_ns <= child.spans["compute_output"].end_ns
        end = child.spans["compute_output"].end_ns
        values = [event.tensor.array.tolist() for event in child.tensors]
        assert values == [[[1.0, 2.0]], [[1.0, 2.0]]]
    assert end <= whole.end_ns
    assert trace.children is record.children


def test_an_ensemble_in_an_ensemble_is_a_tree(server, chain):
    """Children of children stand under their own parents."""
    outer = server.load(
        "outer",
        {
            "platform": "ensemble",
            "max_batch_size": 8,
            "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [-1]}],
            "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [-1]}],
            "ensemble_scheduling": {
                "step": [
                    {
                        "model_name": "chain",
                        "model_version": -1,
                        "input_map": {"X": "X"},
                        "output_map": {"Y": "Y"},
                    }
                ]
            },
        },
    )
    trace = Trace()
    outer.infer({"X": [[1.0]]}, trace=trace)
    (middle,) = trace.children
    assert (middle.model_name, middle.parent_id) == ("chain", trace.id)
    assert [c.model_name for c in middle.children] == ["batched"] * 3
    assert {c.parent_id for c in middle.children} == {middle.id}
    server.unload("outer")


def test_own_activities_are_points_in_time(echo, gate):
    """Before, while it runs, and no more when it is over; a time may be given."""
    trace = Trace()
    assert trace.report_activity("prepared")
    assert trace.report_activity("long ago", 17)
    inference = echo.submit(ONE, trace=trace, parameters={"hold": "start"})
    gate.wait()
    assert trace.report_activity("seen ünder way")
    gate.release()
    inference.result()
    assert trace.wait()
    assert trace.report_activity("too late") is False
    names = [a.name for a in trace.activities]
    assert names == ["long ago", "prepared", "seen ünder way"]
    assert [e.name for e in trace.record().events] == [
        "long ago",
        "prepared",
        *POINTS[:4],
        "seen ünder way",
        *POINTS[4:],
    ]
    assert trace.activities[0].timestamp_ns == 17
    assert trace.activities[0].kind is TraceActivity.CUSTOM_ACTIVITY
    for name, timestamp, error in (
        (b"x", None, TypeError),
        ("a\0b", None, ValueError),
        ("x", 1.5, TypeError),
        ("x", -1, InvalidArgumentError),
    ):
        with pytest.raises(error):
            trace.report_activity(name, timestamp)


def test_a_models_own_activities_have_their_names(echo):
    """Triton keeps them in the context, where the model sees what came with the trace, too."""
    trace = Trace(context={"traceparent": "00-abc-01", "n": [1, None]})
    trace.report_activity("ours", 23)
    response = echo.infer(ONE, trace=trace, parameters={"activity": "theirs"})
    seen = json.loads(response.parameters["trace_context"])
    record = trace.record()
    theirs = record.activities[-1]
    assert [a.name for a in record.activities] == ["ours", "theirs"]
    assert record.spans["request"].start_ns <= theirs.timestamp_ns
    assert seen == {
        "traceparent": "00-abc-01",
        "n": [1, None],
        "23": "ours",
        str(theirs.timestamp_ns): "theirs",
    }
    assert dict(record.context) == seen
    assert json.loads(record.context_text) == seen


def test_a_model_without_a_trace_reports_to_nobody(echo):
    """The knob that the test above uses is harmless without a trace."""
    response = echo.infer(ONE, parameters={"activity": "theirs"})
    assert "trace_context" not in response.parameters


def test_a_chain_of_ones_own_is_one_trace(server):
    """Children go with inferences of their own; the parent needs none."""
    with Trace(BOTH, context={"job": 7}) as trace:
        trace.report_activity("begin")
        first = trace.spawn_child()
        middle = server.model("batched").infer(ROW, trace=first)["OUTPUT0"]
        assert first.wait(30)
        assert first.spans["request"].duration > 0
        assert not trace.is_complete()
        second = trace.spawn_child(context={"step": 2})
        response = server.model("echo").infer(
            {"INPUT0": middle[0]}, trace=second, parameters={"activity": "x"}
        )
        with pytest.raises(InvalidArgumentError, match="given to no inference"):
            trace.record()
    record = trace.record()
    assert json.loads(response.parameters["trace_context"])["step"] == 2
    assert [c.id for c in record.children] == [first.id, second.id]
    assert [c.model_name for c in record.children] == ["batched", "echo"]
    assert [c.parent_id for c in record.children] == [trace.id] * 2
    assert first.record() is record.children[0]
    assert len(record.children[1].tensors) == 2
    assert (record.model_name, record.model_version) == ("", 0)
    assert record.context["job"] == 7
    assert record.spans == {}
    assert [a.name for a in record.activities] == ["begin"]
    with pytest.raises(InvalidArgumentError, match="is over and has no more children"):
        trace.spawn_child()
    trace.close()


def test_a_parent_waits_for_its_children(echo, gate):
    """It is over when they are, whoever was first; a child that is dropped is over."""
    trace = Trace()
    child = trace.spawn_child()
    unused = trace.spawn_child()
    inference = echo.submit(ONE, trace=child, parameters={"hold": "start"})
    gate.wait()
    echo_trace = Trace(parent_id=trace.id)
    trace.close()
    assert not trace.is_complete()
    assert not trace.wait(0)
    with pytest.raises(TimeoutError, match=r"is not over after 0\.01 s"):
        trace.record(timeout=0.01)
    gate.release()
    inference.result()
    assert child.wait(30)
    assert not trace.is_complete()
    del unused
    assert trace.wait(30)
    assert [c.model_name for c in trace.children] == ["echo", ""]
    echo.infer(ONE, trace=echo_trace)
    assert echo_trace.record().parent_id == trace.id
    assert len(trace.children) == 2  # a parent by number alone is of another family


def test_a_wait_ends_when_the_trace_does(echo, gate):
    """On another thread, at the release, which is after the response."""
    trace = Trace()
    parameters = {"hold": "between", "order": "final_first"}
    inference = echo.submit(ONE, trace=trace, parameters=parameters)
    gate.wait()
    spans = []
    waiter = threading.Thread(target=lambda: spans.append(trace.spans))
    waiter.start()
    assert not trace.wait(0.02)
    assert spans == []
    gate.release()
    waiter.join(30)
    inference.result()
    assert list(spans[0]) == SPANS


def test_a_trace_that_nobody_took_has_nothing_to_tell(server):
    """Waiting for it would be for ever."""
    trace = Trace()
    with pytest.raises(InvalidArgumentError, match=f"trace {trace.id} was given to no inference"):
        trace.wait()
    with pytest.raises(InvalidArgumentError, match="given to no inference"):
        _ = trace.spans
    trace.close()
    assert trace.is_complete()
    assert trace.record().events == ()


def test_what_is_kept_is_bounded(chain):
    """More activities are counted, and tensors beyond the bound have no data."""
    trace = Trace(max_activities=10)
    chain.infer({"X": [[1.0]]}, trace=trace)
    assert trace.wait(30)

    def count(record):
        return len(record.events) + sum(map(count, record.children))

    assert count(trace.record()) == 10
    assert trace.dropped == 3 + 3 * 7 - 10

    trace = Trace(TraceLevel.TENSORS, max_tensor_bytes=20)
    value = np.ones((2, 2), np.float32)
    chain.infer({"X": value}, trace=trace)
    record = trace.record()
    events = [*record.tensors, *(e for c in record.children for e in c.tensors)]
    assert len(events) == 8
    assert [e.tensor.byte_size for e in events] == [16] * 8
    copied = [e.tensor.array for e in events if e.tensor.array is not None]
    assert len(copied) == 1
    assert np.array_equal(copied[0], value)
    assert trace.dropped == 0


def test_chrome_opens_it(chain, echo):
    """Complete events in microseconds, one row for each trace, and several traces in one file."""
    trace = Trace(BOTH)
    trace.report_activity("mine")
    chain.infer({"X": [[1.0]]}, trace=trace, request_id="id")
    other = Trace()
    echo.infer(ONE, trace=other)
    record = trace.record()
    text = json.loads(trace.to_chrome())
    assert text == json.loads(record.to_chrome())
    events = text["traceEvents"]
    assert {event["pid"] for event in events} == {os.getpid()}
    rows = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    assert rows[trace.id] == f"chain version 1, {trace.id}"
    assert list(rows) == [trace.id, *(c.id for c in record.children)]
    whole = next(e for e in events if e["ph"] == "X")
    assert whole["name"] == "chain"
    assert whole["ts"] == record.spans["request"].start_ns / 1e3
    assert whole["dur"] == pytest.approx(record.spans["request"].duration * 1e6)
    assert whole["args"] == {"request_id": "id", "parent_id": 0}
    names = [e["name"] for e in events if e["ph"] == "X" and e["tid"] == record.children[0].id]
    assert names == ["batched", *SPANS[1:]]
    points = [e for e in events if e["ph"] == "i" and e["tid"] == trace.id]
    assert [e["name"] for e in points] == [
        "mine",
        "TENSOR_QUEUE_INPUT X",
        "TENSOR_BACKEND_OUTPUT Y",
    ]
    assert points[1]["args"] == {"datatype": "FP32", "shape": [1, 1]}
    together = json.loads(chrome_trace([trace, other.record()]))["traceEvents"]
    assert together == events + json.loads(other.to_chrome())["traceEvents"]


def test_function_models_are_traced(server):
    """A Python callable is a model like any other: how long it ran is its `compute_infer`."""

    def slow(x):
        begun = time.monotonic_ns()
        while time.monotonic_ns() - begun < 3_000_000:
            pass
        return {"y": x}

    spec = ("FP32", [-1])
    model = server.load_function("traced", slow, inputs={"x": spec}, outputs={"y": spec})
    trace = Trace(BOTH)
    model.infer({"x": [1.0, 2.0]}, trace=trace)
    assert trace.spans["compute_infer"].duration >= 0.003
    assert [e.tensor.name for e in trace.tensors] == ["x", "y"]
    server.unload("traced")
