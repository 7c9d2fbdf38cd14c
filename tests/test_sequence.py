# SPDX-License-Identifier: Apache-2.0
"""Sequences: correlation ids and flags, the models that want them, places that become free."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings

import _backend
import pytest

from tritonffi import InvalidArgumentError, Request, RequestFlag, Server

START = int(RequestFlag.SEQUENCE_START)
END = int(RequestFlag.SEQUENCE_END)

STATEFUL = """
sequence_batching {{
  max_sequence_idle_microseconds: {idle}
  {strategy}
  control_input {{
    name: "START" control {{ kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] }}
  }}
  control_input {{ name: "CORRID" control {{ kind: CONTROL_SEQUENCE_CORRID data_type: {kind} }} }}
}}
parameters {{ key: "report" value: {{ string_value: "true" }} }}
"""
IDS = ["UINT64", "INT64", "UINT32", "INT32", "STRING"]


@pytest.fixture
def model(server):
    """Behind the sequence batcher; a response says what the request said of itself."""
    return server.model("sequence")


@pytest.fixture(scope="module")
def typed(backend_directory, tmp_path_factory):
    """A server with models that want the correlation id as an input, of each type."""
    folder = tmp_path_factory.mktemp("sequences")
    for kind in IDS:
        for strategy in ("direct {}", "oldest { max_candidate_sequences: 4 }"):
            extra = STATEFUL.format(kind=f"TYPE_{kind}", strategy=strategy, idle=5_000_000)
            _backend.write_model(
                folder,
                f"{strategy.split()[0]}_{kind.lower()}",
                {"INPUT0": ("INT32", [1])},
                {"OUTPUT0": ("INT32", [1]), "CORRID": (kind.replace("STRING", "BYTES"), [1])},
                max_batch_size=4,
                extra=extra,
            )
    gc.collect()
    with Server(folder, backend_directory=backend_directory, server_id="typed") as running:
        yield running


def said(response):
    """Correlation id and flags, as the backend saw them."""
    return response.parameters["correlation_id"], response.parameters["flags"]


def fail(sequence):
    """Send the first request, and raise."""
    sequence.infer({"INPUT0": [[1]]})
    raise ZeroDivisionError


@pytest.mark.parametrize("key", [1, 7, 2**64 - 1, "a", "é" * 64])
def test_the_first_request_starts_and_the_last_ends(model, key):
    """The id goes with each of them."""
    with model.sequence(key) as sequence:
        assert sequence.id == key
        shown = key - 2**64 if key == 2**64 - 1 else key  # the backend reports it with a sign
        assert said(sequence.infer({"INPUT0": [[1]]})) == (shown, START)
        assert said(sequence.infer({"INPUT0": [[2]]})) == (shown, 0)
        assert said(sequence.infer({"INPUT0": [[3]]}, sequence_end=True)) == (shown, END)
    with model.sequence(key) as sequence:
        assert said(sequence.infer({"INPUT0": [[1]]}, sequence_end=True)) == (shown, START | END)


def test_fresh_ids_differ(model):
    """They are numbers, and never 0."""
    ids = [model.sequence().id for _ in range(100)]
    assert len(set(ids)) == 100
    assert all(0 < key < 2**64 for key in ids)


def test_every_kind_of_call_goes_on_with_the_sequence(model):
    """Submitted, streamed, awaited; a Request keeps what else it says."""
    sequence = model.sequence(5)
    assert said(sequence.submit({"INPUT0": [[1]]}, request_id="a").result()) == (5, START)
    (response,) = sequence.stream({"INPUT0": [[2]]})
    assert said(response) == (5, 0)

    async def main():
        response = await sequence.async_infer({"INPUT0": [[3]]})
        assert said(response) == (5, 0)
        async for response in sequence.async_stream({"INPUT0": [[3]]}):
            assert said(response) == (5, 0)

    asyncio.run(main())
    response = sequence.infer(Request({"INPUT0": [[4]]}, request_id="mine", sequence_end=True))
    assert said(response) == (5, END)
    assert response.request_id == "mine"


def test_a_sequence_that_has_ended_takes_nothing(model):
    """It would start another one of that id."""
    sequence = model.sequence(5)
    sequence.infer({"INPUT0": [[1]]}, sequence_end=True)
    with pytest.raises(InvalidArgumentError, match=r"'sequence': sequence 5 has ended"):
        sequence.infer({"INPUT0": [[1]]})


def test_a_refused_request_starts_nothing(model):
    """The next one says that it is the first."""
    sequence = model.sequence(5)
    with pytest.raises(InvalidArgumentError, match="INPUT0"):
        sequence.infer({"INPUT0": [1]}, sequence_end=True)
    assert said(sequence.infer({"INPUT0": [[1]]})) == (5, START)
    assert said(sequence.infer({"INPUT0": [[1]]}, sequence_end=True)) == (5, END)


def test_a_sequence_left_without_its_end_is_warned_of(model):
    """Unless an exception goes by, or nothing was sent."""
    with model.sequence(5):
        pass
    with pytest.warns(ResourceWarning, match=r"'sequence': sequence 5 was left without its end"):  # noqa: SIM117
        with model.sequence(5) as sequence:
            sequence.infer({"INPUT0": [[1]]})
    with pytest.raises(ZeroDivisionError), model.sequence(5) as sequence:
        fail(sequence)
    sequence.infer({"INPUT0": [[1]]}, sequence_end=True)


def test_end_inputs_are_sent_where_no_other_request_ended(model):
    """Also when an exception goes by; then what goes wrong with them is not the news."""
    zero = {"INPUT0": [[0]]}
    before = model.statistics().inference_count
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with model.sequence(5, end_inputs=zero) as sequence:
            sequence.infer({"INPUT0": [[1]]})
        assert repr(sequence) == "<ModelSequence 5 of 'sequence', ended>"
        with model.sequence(5, end_inputs=zero) as sequence:
            sequence.infer({"INPUT0": [[1]]}, sequence_end=True)
        with pytest.raises(ZeroDivisionError), model.sequence(5, end_inputs=zero) as sequence:
            fail(sequence)
        with pytest.raises(ZeroDivisionError), model.sequence(5, end_inputs={}) as sequence:
            fail(sequence)
        sequence.infer(zero, sequence_end=True)
        with model.sequence(5, end_inputs=zero):
            pass
    assert model.statistics().inference_count - before == 7


def test_end_inputs_may_be_a_request(model):
    """As the inputs of all the others may; what else it says goes with them."""
    before = model.statistics().inference_count
    last = Request({"INPUT0": [[0]]}, request_id="last", correlation_id=5)
    with model.sequence(5, end_inputs=last) as sequence:
        sequence.infer({"INPUT0": [[1]]})
    assert repr(sequence) == "<ModelSequence 5 of 'sequence', ended>"
    assert model.statistics().inference_count - before == 2
    assert not last.sequence_end


@pytest.mark.parametrize(
    ("last", "kind", "message"),
    [
        (Request({}, correlation_id=6), InvalidArgumentError, "is of sequence 6, not 5"),
        (Request({}, sequence_start=True), InvalidArgumentError, "says sequence_start"),
        ([[0]], TypeError, "must be a mapping of names to arrays, or a Request, not list"),
        (7, TypeError, "must be a mapping of names to arrays, or a Request, not int"),
    ],
)
def test_end_inputs_that_cannot_end_it_are_refused_at_once(model, last, kind, message):
    """And not at the end of the block."""
    with pytest.raises(kind, match=message):
        model.sequence(5, end_inputs=last)


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        (0, InvalidArgumentError),
        ("", InvalidArgumentError),
        (-1, InvalidArgumentError),
        (2**64, InvalidArgumentError),
        ("é" * 65, InvalidArgumentError),
        (1.5, TypeError),
        (b"a", TypeError),
        (True, TypeError),
    ],
)
def test_ids_are_checked(model, key, kind):
    """Type, range and length, before anything is sent."""
    with pytest.raises(kind):
        model.sequence(key)


def test_a_sequence_sets_its_own_keywords(model):
    """They cannot be given."""
    sequence = model.sequence(5)
    with pytest.raises(TypeError, match="a sequence sets correlation_id and sequence_start itself"):
        sequence.infer({"INPUT0": [[1]]}, correlation_id=6, sequence_start=False)
    with pytest.raises(InvalidArgumentError, match="the request is of sequence 6, not 5"):
        sequence.infer(Request({"INPUT0": [[1]]}, correlation_id=6))
    with pytest.raises(TypeError, match="a Request says all"):
        sequence.infer(Request({"INPUT0": [[1]]}), request_id="x")
    first = Request({"INPUT0": [[1]]}, sequence_start=True)
    assert said(sequence.infer(first)) == (5, START)
    with pytest.raises(InvalidArgumentError, match="says sequence_start, and sequence 5 has start"):
        sequence.infer(first)
    assert said(sequence.infer({"INPUT0": [[1]]}, sequence_end=True)) == (5, END)


@pytest.mark.parametrize("strategy", ["direct", "oldest"])
@pytest.mark.parametrize("kind", IDS)
def test_models_get_the_id_in_the_type_that_they_want(typed, kind, strategy):
    """A fresh one has that type; the largest number of it arrives."""
    model = typed.model(f"{strategy}_{kind.lower()}")
    if kind == "STRING":
        fresh, largest, wrong = str, "z" * 128, [1]
    else:
        bits = int(kind[-2:]) - (not kind.startswith("U"))
        fresh, largest = int, 2**bits - 1
        wrong = ["a", *([2**bits] if bits < 64 else [])]
    for key in (None, largest):
        sequence = model.sequence(key)
        assert type(sequence.id) is fresh
        for i in range(3):
            # A text comes with a tail, as long as the longest would be.
            wanted = ["OUTPUT0"] if kind == "STRING" and key is None else ["OUTPUT0", "CORRID"]
            response = sequence.infer({"INPUT0": [[i]]}, outputs=wanted, sequence_end=i == 2)
            assert response["OUTPUT0"].tolist() == [[i]]
            if "CORRID" in wanted:
                expected = sequence.id.encode() if kind == "STRING" else sequence.id
                assert response["CORRID"].tolist() == [[expected]]
    named = kind.replace("STRING", "BYTES")
    for key in wrong:
        with pytest.raises(
            InvalidArgumentError, match=rf"'{model.name}': correlation_id .*{named}"
        ):
            model.sequence(key)
        with pytest.raises(
            InvalidArgumentError, match=rf"'{model.name}': correlation_id .*{named}"
        ):
            model.infer({"INPUT0": [[1]]}, correlation_id=key, sequence_start=True)


def test_sequences_of_two_threads_do_not_mix(model):
    """Each keeps its id and its order."""
    seen = {}

    def work(key):
        with model.sequence(key) as sequence:
            pending = [
                sequence.submit({"INPUT0": [[key * 100 + i]]}, sequence_end=i == 49)
                for i in range(50)
            ]
            seen[key] = [p.result() for p in pending]

    threads = [threading.Thread(target=work, args=(key,)) for key in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for key, responses in seen.items():
        assert [r["OUTPUT0"].tolist() for r in responses] == [[[key * 100 + i]] for i in range(50)]
        assert [said(r) for r in responses] == [(key, START), *[(key, 0)] * 48, (key, END)]


def test_a_sequence_that_is_idle_for_too_long_is_forgotten(backend_directory, tmp_path):
    """Its place is another one's then; the next request of it must start anew."""
    extra = STATEFUL.format(kind="TYPE_UINT64", strategy="direct {}", idle=100_000)
    _backend.write_model(
        tmp_path / "models",
        "idle",
        {"INPUT0": ("INT32", [1])},
        {"OUTPUT0": ("INT32", [1]), "CORRID": ("UINT64", [1])},
        max_batch_size=1,
        extra=extra,
    )
    with Server(tmp_path / "models", backend_directory=backend_directory) as server:
        model = server.model("idle")
        idle = model.sequence(1)
        idle.infer({"INPUT0": [[1]]})
        waits = model.sequence(2)  # there is one place, so this waits until the other is forgotten
        assert waits.infer({"INPUT0": [[2]]}, sequence_end=True)["CORRID"].tolist() == [[2]]
        with pytest.raises(InvalidArgumentError, match="must specify the START flag"):
            idle.infer({"INPUT0": [[3]]})


@pytest.mark.parametrize("strategy", ["direct {}", "oldest { max_candidate_sequences: 4 }"])
def test_triton_keeps_implicit_state(backend_directory, tmp_path, strategy):
    """A tensor that one request leaves for the next of its sequence; each starts with zero."""
    state = f"""
    sequence_batching {{
      {strategy}
      state {{
        input_name: "STATE" output_name: "STATE" data_type: TYPE_INT32 dims: [1]
        initial_state {{ name: "zero" data_type: TYPE_INT32 dims: [1] zero_data: true }}
      }}
    }}
    """
    _backend.write_model(
        tmp_path / "models",
        "sum",
        {"INPUT0": ("INT32", [1])},
        max_batch_size=4,
        extra=state,
        state=True,
    )
    with Server(tmp_path / "models", backend_directory=backend_directory) as server:
        model = server.model("sum")
        for _ in range(2):
            with model.sequence(1) as one, model.sequence("two") as two:
                seen = []
                for i in range(1, 4):
                    for sequence, step in ((one, i), (two, 10 * i)):
                        response = sequence.infer({"INPUT0": [[step]]}, sequence_end=i == 3)
                        seen.append(response.parameters["state"])
            assert seen == [1, 10, 3, 30, 6, 60]


def test_a_callable_with_a_memory(server):
    """State by sequence; the callable sees ids and flags."""
    totals = {}

    def total(x, context):
        key = context.request.correlation_id
        totals[key] = x + (0 if context.request.sequence_start else totals[key])
        return {"total": totals[key]}

    model = server.load_function(
        "total",
        total,
        inputs={"x": ("INT32", [1])},
        outputs={"total": ("INT32", [1])},
        max_batch_size=1,
        config={"sequence_batching": {"oldest": {"max_candidate_sequences": 2}}},
    )
    with model.sequence() as one, model.sequence("two") as two:
        seen = []
        for i in range(1, 4):
            for sequence, step in ((one, i), (two, 10 * i)):
                response = sequence.infer({"x": [[step]]}, sequence_end=i == 3)
                seen.append(response["total"].item())
    assert seen == [1, 10, 3, 30, 6, 60]
    assert list(totals) == [one.id, "two"]
    server.unload("total")
