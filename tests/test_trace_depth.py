# SPDX-License-Identifier: Apache-2.0
"""Traces below traces: as deep as anybody likes, and with whatever number for a parent."""

from __future__ import annotations

import json

import pytest

from tritonffi import InvalidArgumentError, Trace, _trace_record

ONE = {"INPUT0": [1.0]}


def nested(depth):
    """Make a dict in a dict, and so on."""
    value = {}
    for _ in range(depth):
        value = {"a": value}
    return value


def chained(depth):
    """Make a trace with a chain of children, each of the one before, all over; return them all."""
    traces = [Trace()]
    for _ in range(depth):
        traces.append(traces[-1].spawn_child())
    for trace in reversed(traces):
        trace.close()
    return traces


def test_a_chain_of_children_may_be_deeper_than_pythons_stack(server):
    """Reading it, and writing it for Chrome, does not recurse."""
    traces = chained(1500)
    record = traces[0].record()
    found = [record]
    while found[-1].children:
        (child,) = found[-1].children
        found.append(child)
    assert [one.id for one in found] == [trace.id for trace in traces]
    assert traces[7].record() is found[7]
    rows = [event["tid"] for event in json.loads(record.to_chrome())["traceEvents"]]
    assert rows == [trace.id for trace in traces]


def test_children_are_written_right_behind_their_parents(server):
    """In the order of the tree, which is not that of the numbers."""
    top = Trace()
    first, second = top.spawn_child(), top.spawn_child()
    below = first.spawn_child()
    for trace in (below, second, first, top):
        trace.close()
    rows = [event["tid"] for event in json.loads(top.to_chrome())["traceEvents"]]
    assert rows == [top.id, first.id, below.id, second.id]


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_parent_that_is_the_trace_or_its_child_is_a_number_and_nothing_else(echo, ahead):
    """Whoever gives a number may give any; a child is made after its parent."""
    number = Trace().id + 1
    trace = Trace(parent_id=number + ahead)
    assert trace.id == number
    child = trace.spawn_child()
    echo.infer(ONE, trace=child)
    trace.close()
    record = trace.record()
    assert record.parent_id == number + ahead
    assert record.children == (child.record(),)
    assert child.record().children == ()
    assert child.spans["request"].duration > 0
    rows = {event["tid"] for event in json.loads(trace.to_chrome())["traceEvents"]}
    assert rows == {trace.id, child.id}


def test_a_context_that_is_too_deep_is_refused(server):
    """As any other that cannot be written; one that a model wrote is text."""
    with pytest.raises(InvalidArgumentError, match="context cannot be written as JSON"):
        Trace(context=nested(100_000))
    assert _trace_record._object('{"a":' * 100_000 + "1" + "}" * 100_000) == {}
