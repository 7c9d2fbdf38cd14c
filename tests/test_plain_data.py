# SPDX-License-Identifier: Apache-2.0
"""What is plain data can be copied, sent to another process, and written down; the rest cannot."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import pickle

import pytest

from tritonffi import (
    Label,
    LogSettings,
    MetricFamily,
    MetricKind,
    Request,
    ServerOptions,
    Trace,
    TraceLevel,
)

ONE = {"INPUT0": [1.0]}
WAYS = [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))]


def traced(model):
    """What a trace with tensors and a child tells."""
    with Trace(TraceLevel.TIMESTAMPS | TraceLevel.TENSORS, context={"user": ["a"]}) as trace:
        model.infer(ONE, trace=trace.spawn_child())
    return trace.record(timeout=30)


MAKERS = {
    "ModelStatistics": lambda model: model.statistics(),
    "a difference": lambda model: model.statistics() - model.statistics(),
    "ServerStatistics": lambda model: model.server.statistics(),
    "MetricFamilySamples": lambda model: model.server.metrics_dict()["nv_inference_count"],
    "TraceRecord": traced,
    "ModelStatus": lambda model: model.server.models()[0],
    "Response": lambda model: model.infer(ONE),
    "Request": lambda _: Request(ONE, parameters={"a": 1}),
    "ServerOptions": lambda _: ServerOptions(server_id="mine"),
    "LogSettings": lambda _: LogSettings(verbose=1),
    "Label": lambda _: Label("cat", 3, 0.5),
}


@pytest.mark.parametrize("way", WAYS, ids=["copy", "deepcopy", "pickle"])
@pytest.mark.parametrize("kind", MAKERS)
def test_a_copy_says_the_same(echo, kind, way):
    """Nothing in it belongs to the process."""
    echo.infer(ONE)
    value = MAKERS[kind](echo)
    made = way(value)
    assert type(made) is type(value)
    assert repr(made) == repr(value)


ONLY_ONCE = {
    "Server": lambda model: model.server,
    "Model": lambda model: model,
    "Inference": lambda model: model.submit(ONE),
    "ResponseStream": lambda model: model.stream(ONE),
    "ResponseMap": lambda model: model.map([]),
    "CompletedMap": lambda model: model.map([], ordered=False),
    "ModelSequence": lambda model: model.sequence(),
    "Trace": lambda _: Trace(),
    "MetricFamily": lambda _: MetricFamily(MetricKind.GAUGE, "copied", "A gauge."),
}


@pytest.mark.parametrize("way", WAYS, ids=["copy", "deepcopy", "pickle"])
@pytest.mark.parametrize("kind", ONLY_ONCE)
def test_what_is_there_once_is_not_copied(echo, kind, way):
    """The error says why, and not what it found inside."""
    value = ONLY_ONCE[kind](echo)
    with pytest.raises(TypeError, match=f"^{kind} can be neither copied nor pickled: what it"):
        way(value)
    if kind not in ("Server", "Model", "Inference", "ModelSequence"):
        value.close()


@pytest.mark.parametrize("what", ["AsyncResponseStream", "AsyncResponseMap"])
def test_what_belongs_to_a_loop_is_not_copied(echo, what):
    """The same for what is made in an event loop."""

    async def main():
        made = echo.async_stream(ONE) if what == "AsyncResponseStream" else echo.async_map([])
        with pytest.raises(TypeError, match=f"^{what} can be neither copied nor pickled"):
            copy.copy(made)
        async for _ in made:
            pass

    asyncio.run(main())


@pytest.mark.parametrize("kind", sorted(MAKERS.keys() - {"ServerStatistics", "Response", "Label"}))
def test_a_dataclass_can_be_written_as_a_dict(echo, kind):
    """With what is in it."""
    echo.infer(ONE)
    value = MAKERS[kind](echo)
    assert list(dataclasses.asdict(value)) == [field.name for field in dataclasses.fields(value)]
