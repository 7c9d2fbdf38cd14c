# SPDX-License-Identifier: Apache-2.0
"""What is taken for a number: times are none, and none is too large for a message of ours."""

from __future__ import annotations

import numpy as np
import pytest

from tritonffi import (
    Chunks,
    InvalidArgumentError,
    LogSettings,
    RateLimiterResource,
    Request,
    ServerOptions,
    Trace,
    TritonError,
    memory_pool,
)
from tritonffi._function_config import function_config

ONE = {"INPUT0": [1.0]}
FP32 = {"y": ("FP32", [-1])}
SPAN = np.timedelta64(5, "ns")
DAY = np.datetime64("2020-01-01", "ns")
LONGER = 10**5000  # than Python writes
LONG = [pytest.param(LONGER, id="longer"), pytest.param(-LONGER, id="longer, negative")]


def set_limit(value):
    """Set the limit of the pool, which is for the whole process."""
    memory_pool.limit = value


INTEGERS = [
    pytest.param(lambda value: Request({}, priority=value), "priority must be", id="priority"),
    pytest.param(
        lambda value: Request({}, correlation_id=value), "correlation_id must be", id="correlation"
    ),
    pytest.param(
        lambda value: Request({}, labels={"a": value}), "labels of 'a' must be", id="labels"
    ),
    pytest.param(set_limit, "the limit must be", id="limit"),
]


@pytest.mark.parametrize("value", [SPAN, DAY, np.timedelta64(5, "s"), np.timedelta64("NaT", "s")])
@pytest.mark.parametrize(("take", "message"), INTEGERS)
def test_a_time_is_no_integer(take, message, value):
    """One of the two is among the integers of numpy, and it would lose its unit."""
    with pytest.raises(TypeError, match=f"{message} .*, not {type(value).__name__}$"):
        take(value)


@pytest.mark.parametrize("value", [SPAN, DAY])
def test_a_time_is_no_parameter(echo, value):
    """There is no kind of parameter that has a unit."""
    with pytest.raises(TypeError, match=rf"parameter 'p' must be .*, not {type(value).__name__}$"):
        echo.infer({"INPUT0": [1.0]}, parameters={"p": value})


def test_a_time_is_no_id_of_a_sequence(server):
    """Nor of one that a model remembers."""
    with pytest.raises(TypeError, match="correlation_id must be an int, not timedelta64"):
        server.model("sequence").sequence(SPAN)


@pytest.mark.parametrize("value", [-1, 2**64, *LONG])
@pytest.mark.parametrize(("take", "message"), INTEGERS)
def test_integers_beyond_64_bits_are_refused(take, message, value):
    """Whatever their length."""
    with pytest.raises(InvalidArgumentError, match=f"{message} between 0 and 2"):
        take(value)


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, *LONG])
def test_parameters_beyond_64_bits_are_refused(echo, value):
    """They have a sign."""
    with pytest.raises(InvalidArgumentError, match="parameter 'p' does not fit into 64 bits: "):
        echo.infer({"INPUT0": [1.0]}, parameters={"p": value})


@pytest.mark.parametrize("kind", [np.int8, np.uint64, np.int64])
def test_integers_of_numpy_are_taken(echo, kind):
    """As those of Python."""
    response = echo.infer({"INPUT0": [1.0]}, priority=kind(0), parameters={"p": kind(7)})
    assert response.parameters["p"] == 7


WHOLE = [
    pytest.param(lambda server, value: server.model("echo", value).version, id="version"),
    pytest.param(
        lambda server, value: ServerOptions(log_verbose=value).log_verbose, id="log_verbose"
    ),
    pytest.param(
        lambda _, value: ServerOptions(rate_limiter_resources=[RateLimiterResource("r", value)]),
        id="count",
    ),
    pytest.param(lambda _, value: LogSettings(verbose=value), id="verbose"),
    pytest.param(lambda _, value: Trace(parent_id=value).close(), id="parent_id"),
    pytest.param(lambda _, value: Trace(value).close(), id="level"),
    pytest.param(
        lambda server, value: list(server.model("echo").map([ONE] * 2, in_flight=value)),
        id="in_flight",
    ),
    pytest.param(
        lambda server, value: list(server.model("echo").stream(ONE, max_pending=value)),
        id="max_pending",
    ),
    pytest.param(lambda _, value: Chunks([b"abcd"], shape=[value]), id="shape of Chunks"),
    pytest.param(
        lambda _, value: function_config("m", {"x": ("FP32", [value])}, FP32, 0, None), id="dims"
    ),
    pytest.param(
        lambda _, value: function_config("m", FP32, FP32, value, None), id="max_batch_size"
    ),
]


@pytest.mark.parametrize("take", WHOLE)
def test_whole_numbers_are_alike_everywhere(server, take):
    """Those of numpy are taken, and a truth value is none."""
    take(server, np.int16(1))
    for value in (True, np.True_, 1.0, np.float64(1), "1"):
        with pytest.raises(
            TypeError, match=r"(must be (an int|ints|a TraceLevel)|is ints).*, not "
        ):
            take(server, value)


def test_integers_of_numpy_become_those_of_python(server):
    """Where they are kept."""
    made = function_config("m", {"x": ("FP32", [np.int8(-1), np.int64(3)])}, FP32, np.uint8(4), {})
    assert made.config["max_batch_size"] == 4
    assert made.inputs[0].shape == (-1, 3)
    kept = [made.config["max_batch_size"], *made.inputs[0].shape]
    kept.append(server.model("echo", np.int64(1)).version)
    assert {type(number) for number in kept} == {int}
    calls = ServerOptions(cuda_memory_pool_byte_size={np.int32(0): np.int64(64)}).calls()
    assert [made for setter, made, _ in calls if "CudaMemoryPool" in setter] == [(0, 64)]


@pytest.mark.parametrize("value", [*LONG, float("inf"), float("nan"), -1])
@pytest.mark.parametrize(
    "name", ["exit_timeout", "metrics_interval", "min_supported_compute_capability"]
)
def test_options_beyond_a_float_are_refused(name, value):
    """By their names."""
    with pytest.raises(ValueError, match=f"^option {name} must be finite and not negative, not "):
        ServerOptions(**{name: value})


@pytest.mark.parametrize("value", [10**400, -(10**400)])
def test_times_beyond_a_float_are_refused(echo, value):
    """Wherever seconds are taken."""
    inference = echo.submit({"INPUT0": [1.0]})
    inference.result()
    for take in (
        lambda: Request({}, timeout=value),
        lambda: Request({}, queue_timeout=value),
        lambda: inference.wait(value),
        lambda: echo.server.load("echo", timeout=value),
    ):
        with pytest.raises(TritonError, match="must be a number of seconds"):
            take()


def test_options_refuse_integers_of_any_length():
    """Settings that Triton reads as numbers, too."""
    with pytest.raises(ValueError, match="option log_verbose must be between 0 and"):
        ServerOptions(log_verbose=LONGER)
    with pytest.raises(ValueError, match=r"\['cpu-cores'\] must be at most 1048576, not 999"):
        ServerOptions(host_policy={"a": {"cpu-cores": "9" * 5000}})
    assert ServerOptions(host_policy={"a": {"cpu-cores": "0" * 5000}})


def test_options_share_no_default():
    """What is added to one object's is in no other's."""
    first = ServerOptions()
    names = [name for name, value in vars(first).items() if isinstance(value, dict)]
    assert len(names) == 6
    for name in names:
        assert getattr(first, name) is not getattr(ServerOptions(), name)
        getattr(first, name)["mine"] = {}
        assert getattr(ServerOptions(), name) == {}
