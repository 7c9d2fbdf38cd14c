# SPDX-License-Identifier: Apache-2.0
"""Triton's counts as typed data: exact, in seconds, and subtracted."""

from __future__ import annotations

import dataclasses
import json
import time

import _backend
import pytest
from _ensemble import ensemble

from tritonffi import (
    BatchStatistics,
    InternalError,
    InvalidArgumentError,
    MemoryUsage,
    ModelStatistics,
    NotFoundError,
    ResponseStatistics,
    Server,
    ServerStatistics,
    StatisticDuration,
)
from tritonffi._statistics import read_statistics

FP32 = {"INPUT0": ("FP32", [-1])}
HUGE = 2**64 - 1
ALL_VERSIONS = "version_policy { all {} }"

# What a decoupled model on a GPU says of itself, every number at the end of its range.
REPLY = {
    "model_stats": [
        {
            "name": "m",
            "version": "3",
            "last_inference": 1700000000123,
            "inference_count": HUGE,
            "execution_count": 2**63 + 1,
            "inference_stats": {
                "success": {"count": HUGE, "ns": HUGE - 1},
                "fail": {"count": 1, "ns": 1_500_000_000},
                "a newer one": {"count": 1, "ns": 1},
            },
            "response_stats": {
                "10": {"fail": {"count": 4, "ns": 5}, "empty_response": {"count": 6, "ns": 7}},
                "2": {
                    "compute_infer": {"count": 1, "ns": 2},
                    "compute_output": {"count": 3, "ns": 4},
                    "success": {"count": 5, "ns": 6},
                    "cancel": {"count": 7, "ns": 8},
                    "a newer one": {"count": 1, "ns": 1},
                },
            },
            "batch_stats": [
                {
                    "batch_size": 8,
                    "compute_input": {"count": 9, "ns": 10},
                    "compute_infer": {"count": 9, "ns": 18_000_000_000},
                    "compute_output": {"count": 9, "ns": 12},
                },
                {"batch_size": 1, "compute_infer": {"count": HUGE, "ns": HUGE}},
            ],
            "memory_usage": [{"type": "GPU", "id": 1, "byte_size": HUGE}],
        }
    ]
}


@pytest.fixture
def own(tmp_path, backend_directory):
    """A server of the test's own: `batched`, `failing` and two versions of `two`."""
    folder = tmp_path / "models"
    _backend.write_model(folder, "batched", FP32, max_batch_size=8, extra="dynamic_batching {}")
    _backend.write_model(folder, "failing", FP32, mode="error")
    _backend.write_model(folder, "two", FP32, versions=(1, 2), extra="version_policy: { all {} }")
    with Server(folder, backend_directory=backend_directory) as running:
        yield running


def rows(count):
    """A batch of that many rows."""
    return {"INPUT0": [[float(i)] for i in range(count)]}


def test_counts_are_exact(own):
    """Requests, rows, executions and batch sizes, for the model and in the whole."""
    model = own.model("batched")
    assert model.statistics() == ModelStatistics("batched", 1)
    assert model.statistics().last_inference is None
    assert model.statistics().mean_batch_size == 0.0
    before = time.time()
    for size in (1, 4, 4):
        model.infer(rows(size))
    counts = model.statistics()
    assert (counts.name, counts.version) == ("batched", 1)
    assert (counts.inference_count, counts.execution_count) == (9, 3)
    assert counts.mean_batch_size == 3.0
    assert (counts.success.count, counts.fail.count, counts.queue.count) == (3, 0, 3)
    assert {size: batch.executions for size, batch in counts.batches.items()} == {1: 1, 4: 2}
    assert counts.responses == {}
    assert counts.memory == ()
    assert before - 0.002 <= counts.last_inference <= time.time()
    assert own.statistics()["batched"] == counts


def test_times_are_seconds_and_exact_nanoseconds(own, gate):
    """A request that is held counts for as long as it was held."""
    model = own.model("batched")
    started = time.monotonic_ns()
    held = model.submit(rows(1), parameters={"hold": "start"})
    gate.wait()
    reached = time.monotonic_ns()
    while time.monotonic_ns() - reached < 10_000_000:
        pass
    gate.release()
    held.result()
    ended = time.monotonic_ns()
    success = model.statistics().success
    assert 10_000_000 <= success.ns <= ended - started
    assert success.seconds == success.ns / 1e9
    assert success.mean == success.seconds
    assert StatisticDuration(4, 2_000_000_000) == StatisticDuration(4, ns=2_000_000_000)
    assert StatisticDuration(4, 2_000_000_000).mean == 0.5
    assert StatisticDuration().mean == 0.0


def test_failures_count_apart(own):
    """What fails is no success, and counts no inference."""
    model = own.model("failing")
    for _ in range(2):
        with pytest.raises(InternalError):
            model.infer({"INPUT0": [1.0]})
    counts = model.statistics()
    assert (counts.success.count, counts.fail.count, counts.inference_count) == (0, 2, 0)


def test_a_difference_is_what_happened_in_between(own):
    """Counts, times and batch sizes; a size that did not run in between is not there."""
    model = own.model("batched")
    model.infer(rows(2))
    before = model.statistics()
    model.infer(rows(3))
    after = model.statistics()
    between = after - before
    assert (between.inference_count, between.execution_count) == (3, 1)
    assert between.success == StatisticDuration(1, after.success.ns - before.success.ns)
    assert list(between.batches) == [3]
    assert between.batches[3] == after.batches[3]
    assert between.last_inference_ms == after.last_inference_ms
    assert between.raw == after.raw
    unchanged = after - after
    last = {"last_inference_ms": after.last_inference_ms}
    assert unchanged == dataclasses.replace(ModelStatistics("batched", 1), **last)


def test_the_whole_server_subtracts_version_by_version(own):
    """A model that came in between counts as it stands, one that went is not there."""
    own.model("batched").infer(rows(1))
    own.model("failing").statistics()
    before = own.statistics()
    own.unload("failing")
    own.model("batched").infer(rows(1))
    own.load("late", {"backend": "tffitest", **tensors()}).infer({"INPUT0": [1.0]})
    between = own.statistics() - before
    assert isinstance(between, ServerStatistics)
    assert list(between) == ["batched", "late", "two"]
    assert len(between) == 3
    assert [m.inference_count for m in between.models] == [1, 1, 0, 0]
    assert between == own.statistics() - before
    assert between != own.statistics()
    assert between != {}


def tensors():
    """The tensors of an echo model, for a config."""
    spec = {"data_type": "TYPE_FP32", "dims": [-1]}
    return {"input": [{"name": "INPUT0", **spec}], "output": [{"name": "OUTPUT0", **spec}]}


def test_every_version_is_counted_apart(own):
    """The latest is what a handle without a version, and the name, mean."""
    own.model("two", 1).infer({"INPUT0": [1.0]})
    for _ in range(2):
        own.model("two").infer({"INPUT0": [1.0]})
    assert own.model("two", 1).statistics().inference_count == 1
    latest = own.model("two").statistics()
    assert (latest.version, latest.inference_count) == (2, 2)
    assert own.statistics()["two"] == latest
    versions = [m.version for m in own.statistics().models if m.name == "two"]
    assert versions == [1, 2]
    with pytest.raises(InvalidArgumentError, match=r"'two' version 1.*'two' version 2"):
        latest - own.model("two", 1).statistics()


def test_a_reload_starts_from_nothing(own):
    """Then the difference is all that was counted since."""
    model = own.model("batched")
    for _ in range(3):
        model.infer(rows(1))
    before = model.statistics()
    own.unload("batched")
    own.load("batched")
    model.infer(rows(1))
    after = model.statistics()
    assert after.inference_count == 1
    assert after - before == after


def test_a_reload_is_seen_in_any_count_that_fell():
    """More was counted in all since then, but of one batch size, or one response, less."""
    once, twice = StatisticDuration(1, 10), StatisticDuration(2, 20)
    batches = {
        1: BatchStatistics(1, compute_infer=twice),
        8: BatchStatistics(8, compute_infer=once),
    }
    before = ModelStatistics("m", 1, inference_count=10, success=twice, batches=batches)
    pairs = [
        (before, {"batches": {8: BatchStatistics(8, compute_infer=twice)}}),
        (before, {"batches": {**batches, 1: BatchStatistics(1, compute_infer=once)}}),
        (dataclasses.replace(before, queue=StatisticDuration(2, 21)), {"queue": twice}),
        (dataclasses.replace(before, cache_hit=once), {}),
        (dataclasses.replace(before, responses={3: ResponseStatistics(fail=once)}), {}),
        (dataclasses.replace(before, execution_count=3), {}),
    ]
    for then, changed in pairs:
        after = dataclasses.replace(before, inference_count=99, success=twice, **changed)
        assert after - then == after
    later = dataclasses.replace(before, inference_count=99)
    assert (later - before).inference_count == 89
    assert (later - before).batches == {}


def test_an_ensemble_and_its_parts_count_apart(server):
    """The ensemble once, the model of its steps once for each step."""
    before = server.statistics()
    model = ensemble(server, "counted", ["batched", "batched", "batched"])
    model.infer({"X": [[1.0], [2.0]]})
    between = server.statistics() - before
    assert between["counted"].inference_count == 2
    assert between["counted"].success.count == 1
    assert between["batched"].inference_count == 6
    assert between["batched"].success.count == 3
    server.unload("counted")


def test_responses_of_decoupled_models_count_by_number(own_stream):
    """Successes, errors, empty ends and cancellations, exact to 64 bits."""
    ns = 2**63 + 5

    def run(**parameters):
        inference = own_stream.submit(
            {"INPUT0": [1]}, parameters={"response_ns": str(ns)} | parameters
        )
        assert inference.wait(30)

    run(count=2, final="bare")
    responses = own_stream.statistics().responses
    sent = ResponseStatistics(
        compute_infer=StatisticDuration(1, ns),
        compute_output=StatisticDuration(1, 2),
        success=StatisticDuration(1, ns + 2),
    )
    empty = ResponseStatistics(
        compute_infer=StatisticDuration(1, ns + 2), empty_response=StatisticDuration(1, ns + 2)
    )
    assert responses == {0: sent, 1: sent, 2: empty}
    assert responses[0].success.seconds == (ns + 2) / 1e9

    before = own_stream.statistics()
    less = {"response_ns": "1000"}  # the sum of all keeps to 64 bits
    run(count=1, error_at=0, **less)
    run(count=1, error_at=0, error_code="CANCELLED", **less)
    between = own_stream.statistics() - before
    assert list(between.responses) == [0]
    assert between.responses[0].fail.count == 1
    assert between.responses[0].cancel == StatisticDuration(1, 1002)
    assert between.responses[0].success == StatisticDuration()


@pytest.fixture
def own_stream(tmp_path, backend_directory):
    """A decoupled model on a server of its own."""
    folder = tmp_path / "models"
    _backend.write_model(folder, "stream", {"INPUT0": ("INT32", [-1])}, decoupled=True)
    with Server(folder, backend_directory=backend_directory) as running:
        yield running.model("stream")


def test_what_is_not_loaded_has_no_statistics(own):
    """Triton says so."""
    own.unload("failing")
    with pytest.raises(NotFoundError, match="'failing' is not available"):
        own.model("failing").statistics()
    with pytest.raises(NotFoundError, match="version is not available for model 'two'"):
        own.model("two", 7).statistics()
    with pytest.raises(KeyError, match="failing"):
        own.statistics()["failing"]


def test_64_bits_are_exact():
    """Counts and nanoseconds above 2**63 and 2**53 lose nothing on the way through JSON."""
    (model,) = read_statistics(json.loads(json.dumps(REPLY))).models
    assert model == ModelStatistics(
        name="m",
        version=3,
        last_inference_ms=1700000000123,
        inference_count=18446744073709551615,
        execution_count=9223372036854775809,
        success=StatisticDuration(18446744073709551615, 18446744073709551614),
        fail=StatisticDuration(1, 1_500_000_000),
        batches={
            1: BatchStatistics(1, compute_infer=StatisticDuration(HUGE, HUGE)),
            8: BatchStatistics(
                8,
                StatisticDuration(9, 10),
                StatisticDuration(9, 18_000_000_000),
                StatisticDuration(9, 12),
            ),
        },
        responses={
            2: ResponseStatistics(
                StatisticDuration(1, 2),
                StatisticDuration(3, 4),
                StatisticDuration(5, 6),
                cancel=StatisticDuration(7, 8),
            ),
            10: ResponseStatistics(
                fail=StatisticDuration(4, 5), empty_response=StatisticDuration(6, 7)
            ),
        },
        memory=(MemoryUsage("GPU", 1, HUGE),),
    )
    assert list(model.batches) == [1, 8]
    assert list(model.responses) == [2, 10]
    assert model.fail.seconds == 1.5
    assert model.batches[8].compute_infer.mean == 2.0
    assert model.batches[8].executions == 9
    assert model.last_inference == 1700000000.123
    assert model.raw == REPLY["model_stats"][0]
    assert model - model == ModelStatistics(
        "m", 3, last_inference_ms=1700000000123, memory=model.memory
    )
    less = dataclasses.replace(model, inference_count=HUGE - 1, responses={2: model.responses[2]})
    assert (model - less).inference_count == 1
    assert list((model - less).responses) == [10]


def test_an_older_library_tells_less():
    """What it does not know of counts as 0."""
    stats = read_statistics({"model_stats": [{"name": "m", "version": "1"}]})
    assert stats["m"] == ModelStatistics("m", 1)
    assert dict(read_statistics({})) == {}


def test_what_is_no_number_is_refused():
    """A count that is no whole number is not guessed at."""
    with pytest.raises(TypeError, match="whole number"):
        read_statistics({"model_stats": [{"name": "m", "version": "1", "inference_count": 1.5}]})


def test_readings_do_not_change(own):
    """They are data, not views."""
    own.model("batched").infer(rows(1))
    counts = own.model("batched").statistics()
    with pytest.raises(dataclasses.FrozenInstanceError):
        counts.inference_count = 7
    own.model("batched").infer(rows(1))
    assert counts.inference_count == 1


def test_namespaces_leave_out_names_that_stand_twice(tmp_path, backend_directory):
    """Triton does not find them by name; the others are counted, functions and ensembles too."""
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        _backend.write_model(folder, "same", FP32)
    _backend.write_model(folders[0], "one", FP32, versions=(1, 3), extra=ALL_VERSIONS)
    _backend.write_model(folders[1], "two", FP32)
    tensor = {"x": ("FP32", [-1])}
    with Server(folders, backend_directory=backend_directory, model_namespacing=True) as server:
        server.load_function("f", lambda x: x, inputs=tensor, outputs=tensor)
        ensemble(server, "chain", ["two"], max_batch_size=0)
        server.model("chain").infer({"X": [1.0]})
        server.model("one").infer({"INPUT0": [1.0]})
        found = server.statistics()
        assert [(m.name, m.version, m.inference_count) for m in found.models] == [
            ("chain", 1, 1),
            ("f", 1, 0),
            ("one", 1, 0),
            ("one", 3, 1),
            ("two", 1, 1),
        ]
        with pytest.raises(InvalidArgumentError, match=r"^model 'same': .* Several repositories"):
            server.model("same").statistics()
        with pytest.raises(NotFoundError, match="model 'none'"):
            server.model("none").statistics()
        server.unload("chain")
        server.unload("two")
        with pytest.raises(NotFoundError, match="model 'two'"):
            server.model("two").statistics()
        assert list(server.statistics()) == ["f", "one"]
