# SPDX-License-Identifier: Apache-2.0
"""
Each trace is released once, whatever becomes of its inference.

The fixture that every test has compares `tffi_counters.traces` before and after: a release that is
missing leaves one there. A second one would find no trace, or crash.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import _backend
import pytest
from _ensemble import ensemble
from conftest import counters

from tritonffi import (
    CancelledError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    Request,
    Server,
    Trace,
    TraceLevel,
    TritonError,
    UnavailableError,
)
from tritonffi.capi import check, ffi, lib

ONE = {"INPUT0": [1.0]}
ROW = {"INPUT0": [[1.0]]}
BOTH = TraceLevel.TIMESTAMPS | TraceLevel.TENSORS
FP32 = {"INPUT0": ("FP32", [-1])}


@pytest.fixture
def own(tmp_path, backend_directory):
    """A server of the test's own, that the test may close."""
    folder = tmp_path / "models"
    queue = "dynamic_batching { default_queue_policy { max_queue_size: 1 } }"
    _backend.write_model(folder, "narrow", FP32, max_batch_size=1, extra=queue)
    _backend.write_model(folder, "failing", FP32, max_batch_size=8, mode="error")
    _backend.write_model(folder, "batched", FP32, max_batch_size=8, extra="dynamic_batching {}")
    with Server(folder, backend_directory=backend_directory) as running:
        yield running


def names(trace):
    """The points in time that a trace passed."""
    return list(trace.timestamps)


def test_what_is_refused_before_triton_sees_it_leaves_the_trace_unused(echo):
    """Ours or Triton's validation: the trace goes with the next inference."""
    trace = Trace()
    with pytest.raises(InvalidArgumentError):
        echo.infer({"WRONG": [1.0]}, trace=trace)
    with pytest.raises(ValueError, match="NUL"):
        echo.infer(ONE, trace=trace, request_id="a\0b")
    assert counters()["traces"] == 1
    echo.infer(ONE, trace=trace)
    assert trace.wait(30)


def test_what_triton_finds_wrong_leaves_the_trace_unused(server):
    """An error of InferAsync before it has looked at the trace: no callback ran."""
    model = server.model("sequence")
    trace = Trace()
    for _ in range(2):
        with pytest.raises(NotFoundError):
            server.model("no_such_model").infer(ONE, trace=trace)
    with pytest.raises(TritonError):
        # A sequence without an id: found out by the scheduler, after the trace was taken.
        model.infer({"INPUT0": [[1]]}, trace=trace)
    assert trace.is_complete()
    with pytest.raises(InvalidArgumentError, match="the trace has been used before"):
        model.infer({"INPUT0": [[1]]}, trace=trace, correlation_id=1, sequence_start=True)


def test_a_shape_that_only_triton_refuses_leaves_the_trace_unused(echo, monkeypatch):
    """The same inference without our own check: Triton validates, and takes nothing."""
    trace = Trace()
    echo.infer(ONE)
    monkeypatch.setattr(type(echo._starter.spec()), "check_shapes", lambda *_: None)
    with pytest.raises(InvalidArgumentError):
        echo.infer({"INPUT0": [[1.0]]}, trace=trace)
    assert not trace.is_complete()
    assert repr(trace) == f"<Trace {trace.id}, not used>"
    echo.infer(ONE, trace=trace)
    assert trace.wait(30)


def test_a_full_queue_releases_the_trace(own, gate):
    """Triton has taken it, refuses the inference, and gives the trace back by the callback."""
    model = own.model("narrow")
    held = model.submit(ROW, parameters={"hold": "start"})
    gate.wait()
    waiting = model.submit(ROW)
    trace = Trace(BOTH)
    with pytest.raises(UnavailableError, match="maximum queue size"):
        model.infer(ROW, trace=trace)
    assert trace.is_complete()
    assert "REQUEST_START" in names(trace)
    assert "REQUEST_END" not in names(trace)
    gate.open()
    held.result()
    waiting.result()


def test_a_trace_serves_one_inference(echo):
    """Also where a request is said twice."""
    request = Request(ONE, trace=Trace())
    echo.infer(request)
    with pytest.raises(InvalidArgumentError, match="'echo': the trace has been used before"):
        echo.infer(request)
    assert request.trace.wait(30)


def test_cancelled_in_the_queue_or_while_running(own, gate):
    """Both come to their end, with what there is to tell."""
    model = own.model("batched")
    running, queued = Trace(BOTH), Trace(BOTH)
    first = model.submit(ROW, trace=running, parameters={"hold": "start"})
    gate.wait()
    second = model.submit(ROW, trace=queued)
    second.cancel()
    first.cancel()
    for inference in (first, second):
        with pytest.raises(CancelledError):
            inference.result()
    assert running.wait(30)
    assert queued.wait(30)
    assert "REQUEST_END" in names(running)
    assert names(queued)[:2] == ["REQUEST_START", "QUEUE_START"]


def test_a_failing_model(own):
    """An error response is a response."""
    trace = Trace(BOTH)
    with pytest.raises(InternalError):
        own.model("failing").infer(ROW, trace=trace)
    assert "REQUEST_END" in names(trace)
    assert [e.tensor.name for e in trace.tensors] == ["INPUT0"]


@pytest.mark.parametrize("order", ["final_first", "release_first"])
@pytest.mark.parametrize("final", ["last", "bare"])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_decoupled_responses(server, count, final, order):
    """None, one or several; with a bare flag at the end; the release before the last of them."""
    if count == 0 and final == "last":
        final = "bare"
    trace = Trace(BOTH)
    parameters = {"final": final, "order": order, "count": count}
    inference = server.model("stream").submit({"INPUT0": [1]}, trace=trace, parameters=parameters)
    assert inference.wait(30)
    assert trace.wait(30)
    assert "REQUEST_END" in names(trace)
    assert trace.dropped == 0


def test_an_ensemble_that_fails_half_way(own):
    """The steps that ran, and the one that failed, are there; the others never were."""
    model = ensemble(own, "broken", ["batched", "failing", "batched"])
    trace = Trace(BOTH)
    with pytest.raises(InternalError):
        model.infer({"X": [[1.0]]}, trace=trace)
    assert trace.wait(30)
    assert [c.model_name for c in trace.children] == ["batched", "failing"]
    assert [("REQUEST_END" in c.timestamps) for c in trace.children] == [True, True]


def test_an_ensemble_whose_step_is_refused(own, gate):
    """The queue of a step is full: the ensemble fails, and all traces come back."""
    model = ensemble(own, "squeezed", ["batched", "narrow"], max_batch_size=1)
    narrow = own.model("narrow")
    held = narrow.submit(ROW, parameters={"hold": "start"})
    gate.wait()
    waiting = narrow.submit(ROW)
    trace = Trace(BOTH)
    with pytest.raises(UnavailableError):
        model.infer({"X": [[1.0]]}, trace=trace)
    assert trace.wait(30)
    assert [c.model_name for c in trace.children] == ["batched", "narrow"]
    gate.open()
    held.result()
    waiting.result()


def test_a_cancelled_ensemble(own, gate):
    """While a step runs."""
    model = ensemble(own, "cancelled", ["batched", "batched"])
    trace = Trace()
    inference = model.submit({"X": [[1.0]]}, trace=trace, parameters={"hold": "start"})
    gate.wait()
    inference.cancel()
    gate.open()
    with pytest.raises((CancelledError, InternalError)):
        inference.result()
    assert trace.wait(30)
    assert trace.children[0].model_name == "batched"


def test_a_cache_hit_runs_on_the_submitting_thread(server, repository):
    """All callbacks before InferAsync returns; there is no computing to tell of."""
    cached = "response_cache { enable: true }"
    _backend.write_model(repository, "traced_cache", FP32, max_batch_size=8, extra=cached)
    model = server.load("traced_cache")
    first, second = Trace(BOTH), Trace(BOTH)
    model.infer(ROW, trace=first)
    model.infer(ROW, trace=second)
    assert model.statistics().cache_hit.count == 1
    server.unload("traced_cache")
    assert "compute_infer" in first.spans
    assert "compute_infer" not in second.spans
    assert "request" in second.spans
    assert second.tensors[-1].tensor.array.tolist() == [[1.0]]


def test_dropped_in_flight(echo, gate):
    """Trace and inference both: Triton has what it needs, and all is gone in the end."""
    echo.submit(ONE, trace=Trace(BOTH), parameters={"hold": "start"})
    gate.wait()
    assert counters()["traces"] == 1
    gate.open()


def test_the_server_closes_with_a_trace_in_flight(own, gate):
    """The inference is cancelled, and the trace is over when the server is."""
    trace = Trace(BOTH)
    own.model("batched").submit(ROW, trace=trace, parameters={"hold": "start"})
    gate.wait()
    own.close()
    assert trace.wait(30)
    assert trace.record().model_name == "batched"


def test_a_trace_outlives_the_server(own):
    """Its record and its tensors are plain data."""
    trace = Trace(BOTH)
    own.model("batched").infer({"INPUT0": [[1.0, 2.0]]}, trace=trace)
    unused = Trace()
    own.close()
    assert trace.tensors[-1].tensor.array.tolist() == [[1.0, 2.0]]
    assert unused.report_activity("still there")


def test_what_was_never_used_is_deleted(server):
    """Dropped, closed, or left with children that were never used either."""
    Trace()
    trace = Trace()
    trace.close()
    trace.close()
    parent = Trace()
    child = parent.spawn_child().spawn_child()
    del parent
    assert child.spawn_child().id > child.id


FORK = """
import os, sys, threading, tritonffi
entered, may_go = threading.Event(), threading.Event()
def held(x):
    entered.set()
    assert may_go.wait(30)
    return {"y": x}
with tritonffi.Server() as server:
    spec = ("FP32", [-1])
    model = server.load_function("held", held, inputs={"x": spec}, outputs={"y": spec})
    trace, unused = tritonffi.Trace(), tritonffi.Trace()
    family = tritonffi.MetricFamily(tritonffi.MetricKind.COUNTER, "forked_total")
    family.metric().increment()
    inference = model.submit({"x": [1.0]}, trace=trace)
    assert entered.wait(30)
    child = os.fork()
    if child == 0:
        calls = [trace.wait, trace.record, trace.spawn_child, lambda: trace.report_activity("x")]
        for call in calls:
            try:
                call()
            except (tritonffi.ClosedError, tritonffi.UnavailableError) as error:
                assert "the parent of this process" in str(error), error
            else:
                os._exit(1)
        assert "of the parent process" in repr(unused)
        trace.close()
        del calls, call, trace, unused
        tritonffi.Trace().close()
        family.metric().increment()
        os._exit(0 if family.metric().value() == 2 else 2)
    assert os.waitpid(child, 0)[1] == 0
    may_go.set()
    inference.result()
    assert trace.record(timeout=30).model_name == "held"
    assert family.metric().value() == 1
"""


def test_a_forked_child_leaves_traces_alone(library):
    """They are the parent's, who goes on with them; new ones, and metrics, work."""
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", FORK],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=os.environ | {"TRITONFFI_LIBRARY": str(library.path)},
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_ctrl_c_ends_a_wait(echo, gate):
    """On the main thread, where signal handlers run between two slices of the wait."""
    trace = Trace()
    inference = echo.submit(ONE, trace=trace, parameters={"hold": "start"})
    gate.wait()
    timer = threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        trace.wait()
    timer.join()
    gate.open()
    inference.result()
    assert trace.wait(30)


def test_many_threads(chain_server):
    """One trace for each inference, and reports from another thread, all at once."""
    model = chain_server
    failures = []

    def work():
        try:
            for _ in range(30):
                trace = Trace(BOTH)
                inference = model.submit({"X": [[1.0]]}, trace=trace)
                reporter = threading.Thread(target=trace.report_activity, args=("beside",))
                reporter.start()
                inference.result()
                reporter.join()
                record = trace.record(timeout=30)
                assert [c.model_name for c in record.children] == ["batched", "batched"]
                assert len(record.tensors) == 2
        except BaseException as error:  # noqa: BLE001 (it is looked at below)
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []


@pytest.fixture
def chain_server(server):
    """An ensemble of two steps on the shared server."""
    yield ensemble(server, "pair", ["batched", "batched"])
    server.unload("pair")


def test_the_raw_constructor_without_tensors_works_for_timestamps(server):
    """`Trace` never uses it, because with level TENSORS it crashes."""
    out = ffi.new("struct TRITONSERVER_InferenceTrace **")
    release = ffi.addressof(lib, "TRITONSERVER_InferenceTraceDelete")
    level = lib.TRITONSERVER_TRACE_LEVEL_TIMESTAMPS
    never = ffi.cast("TRITONSERVER_InferenceTraceReleaseFn_t", release)
    activity = ffi.cast("TRITONSERVER_InferenceTraceActivityFn_t", release)
    check(lib.TRITONSERVER_InferenceTraceNew(out, level, 5, activity, never, ffi.NULL))
    parent = ffi.new("uint64_t *")
    check(lib.TRITONSERVER_InferenceTraceParentId(out[0], parent))
    assert parent[0] == 5
    check(lib.TRITONSERVER_InferenceTraceDelete(out[0]))
