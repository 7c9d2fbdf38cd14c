# SPDX-License-Identifier: Apache-2.0
"""What a type checker makes of the public API: checked by mypy, never run."""

import numpy as np
import numpy.typing as npt
from typing_extensions import assert_type

import tritonffi


def add(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> dict[str, object]:
    """A callable as a model."""
    return {"sum": a + b}


async def in_a_loop(model: tritonffi.Model) -> None:
    """What is awaited."""
    assert_type(await model.async_infer({"a": [1.0]}, timeout=1.5), tritonffi.Response)
    async with model.async_stream({"a": [1.0]}, max_pending=3) as stream:
        async for response in stream:
            assert_type(response, tritonffi.Response)
    async for response in model.async_map([{"a": [1.0]}], in_flight=2):
        assert_type(response, tritonffi.Response)


class Stateful:
    """A class as a model, called by another method."""

    def initialize(self, config: dict[str, object]) -> None:
        """Get ready."""

    async def execute(self, a: npt.NDArray[np.float32], context: tritonffi.Context) -> object:
        """Say more than outputs."""
        assert_type(context.requests, tuple[tritonffi.ContextRequest, ...])
        assert_type(context.request.correlation_id, int | str)
        assert_type(context.request.parameters, dict[str, str | int | float | bool])
        assert_type(context.request.queue_timeout, float | None)
        assert_type(context.is_cancelled(), bool)
        return tritonffi.Result({"b": a[context.request.rows]}, {"instance": context.instance})


with tritonffi.Server("models", exit_timeout=3) as server:
    assert_type(server, tritonffi.Server)
    assert_type(server.is_ready(), bool)
    assert_type(server.metrics(), str)
    assert_type(server.models(), list[tritonffi.ModelStatus])
    model = server.load_function(
        "add",
        add,
        inputs={"a": ("FP32", [-1]), "b": ("FP32", [-1])},
        outputs={"sum": ("FP32", [-1])},
        max_batch_size=64,
        config={"dynamic_batching": {}},
    )
    assert_type(model, tritonffi.Model)
    tensors = {"a": ("FP32", [-1])}
    server.load_function("one", Stateful, inputs=tensors, outputs=tensors, batch=False)
    server.load_function("all", Stateful(), inputs=tensors, outputs=tensors)
    server.load_function("none", 3, inputs=tensors, outputs=tensors)  # type: ignore[arg-type]
    response = model.infer({"a": [1.0], "b": np.ones(1)}, timeout=1.5, outputs=["sum"])
    assert_type(response, tritonffi.Response)
    assert_type(response["sum"], npt.NDArray[np.generic])
    assert_type(response["sum"].astype(np.int32, copy=False), npt.NDArray[np.int32])
    assert_type(model.inputs()["a"].shape, tuple[int, ...])
    assert_type(response.parameters, dict[str, str | int | float | bool])
    model.infer({"a": tritonffi.Chunks([[1.0], [2.0]], host_policies={"gpu_0": [[1.0, 2.0]]})})
    assert_type(model.infer(tritonffi.Raw(b"1234")), tritonffi.Response)
    assert_type(tritonffi.memory_pool.limit, int)
    assert_type(tritonffi.function_copies().lent_inputs, int)
    model.infer({"a": [1.0]}, out={"sum": np.empty(1)}, labels={"sum": 3})
    assert_type(response.labels, dict[str, list[list[tritonffi.Label]]])
    inference = model.submit(tritonffi.Request({"a": [1.0]}, request_id="x"))
    assert_type(inference, tritonffi.Inference)
    assert_type(inference.result(timeout=1), tritonffi.Response)
    assert_type(inference.done(), bool)
    assert_type(server.metrics_dict()["nv_inference_count"].value({"model": "add"}), float)
    with tritonffi.MetricFamily(tritonffi.MetricKind.COUNTER, "calls", buckets=()) as family:
        assert_type(family.metric(model="add").value(), float)
    trace = tritonffi.Trace(tritonffi.TraceLevel.TIMESTAMPS | tritonffi.TraceLevel.TENSORS)
    model.infer({"a": [1.0]}, trace=trace)
    assert_type(trace.spans["queue"].duration, float)
    assert_type(trace.record().children[0].model_name, str)
    assert_type(trace.to_chrome(), str)
    counts = model.statistics()
    assert_type(counts, tritonffi.ModelStatistics)
    assert_type(counts.queue.seconds, float)
    assert_type(counts.batches[8].executions, int)
    assert_type(counts - counts, tritonffi.ModelStatistics)
    assert_type(server.statistics()["add"], tritonffi.ModelStatistics)
    for streamed in model.stream({"a": [1.0]}, max_pending=3, timeout=1.5):
        assert_type(streamed, tritonffi.Response)
    for one in model.map([{"a": [1.0]}, tritonffi.Request({"a": [2.0]})], ordered=False):
        assert_type(one, tritonffi.Response)
    for either in model.map([{"a": [1.0]}], return_errors=True):
        assert_type(either, tritonffi.Response | Exception)
    with model.sequence(end_inputs={"a": [0.0]}) as sequence:
        assert_type(sequence, tritonffi.ModelSequence)
        assert_type(sequence.id, int | str)
        assert_type(sequence.infer({"a": [1.0]}, sequence_end=True), tritonffi.Response)
    assert_type(server.unload("add"), None)
    assert_type(server.load("made", {}, {"1/model.onnx": b""}, timeout=2), tritonffi.Model)
    assert_type(server.register_repository("more", {"folder": "name"}), None)
    assert_type(server.poll(timeout=1), None)
    model.infer({"a": [1.0]}, no_such_keyword=1)  # type: ignore[call-arg]

assert_type(tritonffi.log_settings(verbose=1, file=None), tritonffi.LogSettings)
assert_type(tritonffi.log_message(tritonffi.LogLevel.INFO, "x"), None)
assert_type(tritonffi.is_log_enabled(tritonffi.LogLevel.WARN), bool)
