# SPDX-License-Identifier: Apache-2.0
"""Functions that take the id of the sequence as an input, as text."""

from __future__ import annotations

import threading

import pytest
from _functions import row

LONGEST = "x" * 128
TEXTS = ["abc", "é" * 64, "\N{SNOWMAN}", "1", LONGEST]
CONTROL = {
    "name": "ID",
    "control": [{"kind": "CONTROL_SEQUENCE_CORRID", "data_type": "TYPE_STRING"}],
}


def batching(strategy, **more):
    """Sequence batching that hands the id over."""
    return {"sequence_batching": {strategy: more, "control_input": [CONTROL]}}


@pytest.fixture
def seen():
    """The ids of the calls, as `keep` was given them."""
    return []


@pytest.fixture
def keep(seen):
    """A function that notes the ids that it is called with."""

    def function(x, ID):  # noqa: N803
        seen.append(ID)
        return {"y": x}

    return function


@pytest.mark.parametrize("strategy", ["direct", "oldest"])
@pytest.mark.parametrize("rows", [0, 1, 4])
def test_an_id_of_text_comes_as_its_bytes(load, keep, seen, strategy, rows):
    """Of any length, without what Triton leaves behind it, and read-only like any input."""
    model = load(keep, max_batch_size=rows, config=batching(strategy))
    value = row(7) if rows else row(7)[0]
    for text in TEXTS:
        for start, end in ((True, False), (False, True)):
            answer = model.infer(
                {"x": value}, correlation_id=text, sequence_start=start, sequence_end=end
            )
            assert answer["y"].tolist() == value.tolist()
    expected = [text.encode() for text in TEXTS for _ in range(2)]
    assert [ids.tolist() for ids in seen] == [[[text]] if rows else [text] for text in expected]
    assert all(not ids.flags.writeable for ids in seen)


@pytest.mark.parametrize("first", ["abc", LONGEST])
def test_each_sequence_of_a_call_has_its_own_id(load, first):
    """In the row of its request, also beside the longest that there may be."""
    calls = []
    entered, go = threading.Event(), threading.Event()

    def function(x, ID):  # noqa: N803
        calls.append(dict(zip(x.ravel().tolist(), ID.ravel().tolist(), strict=True)))
        entered.set()
        assert go.wait(30)
        return {"y": x}

    config = batching("oldest", max_candidate_sequences=8)
    model = load(function, max_batch_size=8, config=config)
    texts = ["first", first, "é", "b" * 127, "c", LONGEST[1:] + "y"]
    pending = []
    for n, text in enumerate(texts):
        pending.append(
            model.submit({"x": row(n)}, correlation_id=text, sequence_start=True, sequence_end=True)
        )
        assert entered.wait(30)  # those that follow wait in the queue
    go.set()
    assert [inference.result()["y"].item() for inference in pending] == [0, 1, 2, 3, 4, 5]
    assert max(map(len, calls)) > 1
    found = {number: text for call in calls for number, text in call.items()}
    assert found == {number: text.encode() for number, text in enumerate(texts)}


def test_empty_places_of_a_direct_sequence_batch_have_no_id(load):
    """They are rows that are not ready."""
    calls = []

    def function(x, ID, READY):  # noqa: N803
        calls.append((ID.tolist(), READY.ravel().tolist()))
        return {"y": x}

    ready = {"kind": "CONTROL_SEQUENCE_READY", "int32_false_true": [0, 1]}
    config = batching("direct")
    config["sequence_batching"]["control_input"].append({"name": "READY", "control": [ready]})
    model = load(function, max_batch_size=4, config=config)
    for text in ("a", "bc"):
        model.infer({"x": row(0)}, correlation_id=text, sequence_start=True)
    model.infer({"x": row(0)}, correlation_id="bc", sequence_end=True)
    assert calls[-1] == ([[b""], [b"bc"]], [0, 1])
    model.infer({"x": row(0)}, correlation_id="a", sequence_end=True)


def test_an_input_of_text_is_not_taken_for_an_id(load):
    """One that is as large as padded ids would be is read as it is framed."""
    model = load(lambda x: {"y": x}, x=("BYTES", [-1]), y=("BYTES", [-1]))
    values = [b"a", b"b" * (264 - 4 - 5)]
    assert sum(4 + len(value) for value in values) == 2 * 132
    assert model.infer({"x": values})["y"].tolist() == values


def test_an_iterative_sequence_may_end_in_a_function(load):
    """It runs each request once; and its sequences end by themselves, so nobody is warned."""
    model = load(lambda x: {"y": x + 1}, config={"sequence_batching": {"iterative_sequence": True}})
    answer = model.infer({"x": [1.0]}, correlation_id=5, sequence_start=True, sequence_end=True)
    assert answer["y"].tolist() == [2]
    with model.sequence() as sequence:
        assert sequence.infer({"x": [2.0]})["y"].tolist() == [3]
