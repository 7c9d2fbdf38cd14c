# SPDX-License-Identifier: Apache-2.0
"""Server options: every setter of the C API has its row, and wrong values are refused early."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import numpy as np
import pytest

from tritonffi import (
    InstanceGroupKind,
    LogFormat,
    ModelControlMode,
    ModelLoadDeviceLimit,
    RateLimiterResource,
    RateLimitMode,
    Server,
    ServerOptions,
    log_settings,
)
from tritonffi._start import resolved

DECLARED = (Path(__file__).parent.parent / "csrc" / "tritonserver.h").read_text()


def calls(**fields):
    """The C calls that options with these fields come to, by setter."""
    found = {}
    for setter, arguments, _ in ServerOptions(**fields).calls():
        found.setdefault(setter.removeprefix("TRITONSERVER_ServerOptions"), []).append(arguments)
    return found


def test_every_setter_of_the_c_api_has_one_row():
    """No setter is missing, none is there twice."""
    setters = re.findall(r"\b(TRITONSERVER_ServerOptions(?:Set|Add)\w+)\(", DECLARED)
    rows = [field.metadata["setter"] for field in dataclasses.fields(ServerOptions)]
    assert sorted(rows) == sorted(setters)


def test_every_attribute_is_documented():
    """The docstring has each field once."""
    documented = re.findall(r"^ {4}(\w+): ", inspect.getdoc(ServerOptions), re.MULTILINE)
    assert documented == [field.name for field in dataclasses.fields(ServerOptions)]


def test_the_two_options_that_triton_leaves_unset_are_always_set():
    """And so is the control mode, whose C default is POLL."""
    made = calls()
    assert made["SetModelLoadRetryCount"] == [(0,)]
    assert made["SetEnablePeerAccess"] == [(True,)]
    assert made["SetModelControlMode"] == [(int(ModelControlMode.EXPLICIT),)]
    assert made["SetStartupModel"] == [(b"*",)]


@pytest.mark.parametrize(
    ("field", "value", "setter", "expected"),
    [
        ("model_repository", "/a", "SetModelRepositoryPath", [(b"/a",)]),
        ("model_repository", [Path("/a"), "/b"], "SetModelRepositoryPath", [(b"/a",), (b"/b",)]),
        ("server_id", "é", "SetServerId", [("é".encode(),)]),
        ("exit_timeout", 1.2, "SetExitTimeout", [(2,)]),
        ("metrics_interval", 0.25, "SetMetricsInterval", [(250,)]),
        ("metrics_interval", 1e30, "SetMetricsInterval", [(1000,)]),
        ("log_format", LogFormat.ISO8601, "SetLogFormat", [(int(LogFormat.ISO8601),)]),
        (
            "rate_limiter_mode",
            RateLimitMode.EXEC_COUNT,
            "SetRateLimiterMode",
            [(int(RateLimitMode.EXEC_COUNT),)],
        ),
        (
            "rate_limiter_resources",
            [RateLimiterResource("r", 2)],
            "AddRateLimiterResource",
            [(b"r", 2, -1)],
        ),
        ("cuda_memory_pool_byte_size", {0: 64}, "SetCudaMemoryPoolByteSize", [(0, 64)]),
        ("cuda_virtual_address_size", {1: 8}, "SetCudaVirtualAddressSize", [(1, 8)]),
        ("response_cache_byte_size", 9, "SetResponseCacheByteSize", [(9,)]),
        ("cache_config", {"local": {"size": 5}}, "SetCacheConfig", [(b"local", b'{"size": 5}')]),
        (
            "backend_config",
            {"python": {"shm-default-byte-size": 1024, "on": True}},
            "SetBackendConfig",
            [(b"python", b"shm-default-byte-size", b"1024"), (b"python", b"on", b"true")],
        ),
        ("host_policy", {"p": {"numa-node": "0"}}, "SetHostPolicy", [(b"p", b"numa-node", b"0")]),
        ("metrics_config", {"": {"a": "b"}}, "SetMetricsConfig", [(b"", b"a", b"b")]),
        (
            "metrics_config",
            {"a": {"counter_latencies": False}},  # of no group that Triton knows
            "SetMetricsConfig",
            [(b"a", b"counter_latencies", b"false")],
        ),
        (
            "model_load_device_limits",
            [ModelLoadDeviceLimit(InstanceGroupKind.GPU, 0, 0.5)],
            "SetModelLoadDeviceLimit",
            [(int(InstanceGroupKind.GPU), 0, 0.5)],
        ),
        ("model_config_name", "v2", "SetModelConfigName", [(b"v2",)]),
        ("log_warn", False, "SetLogWarn", [(False,)]),
        ("log_error", False, "SetLogError", [(False,)]),
        ("cache_directory", Path("/c"), "SetCacheDirectory", [(b"/c",)]),
        ("buffer_manager_thread_count", 2, "SetBufferManagerThreadCount", [(2,)]),
        ("pinned_memory_pool_byte_size", 2**40, "SetPinnedMemoryPoolByteSize", [(2**40,)]),
    ],
)
def test_values_become_c_calls(field, value, setter, expected):
    """Seconds become what C wants, mappings one call an entry."""
    assert calls(**{field: value})[setter] == expected


DEEP = {}
for _ in range(100_000):
    DEEP = {"a": DEEP}


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("server_id", 3, TypeError),
        ("server_id", "a\0b", ValueError),
        ("model_repository", 3, TypeError),
        ("model_repository", [b"x"], TypeError),
        ("model_repository", "", ValueError),
        ("backend_directory", ["", "x"], ValueError),
        ("model_control_mode", 2, TypeError),
        ("model_control_mode", "EXPLICIT", TypeError),
        ("startup_models", "one", TypeError),
        ("strict_model_config", 1, TypeError),
        ("model_load_thread_count", -1, ValueError),
        ("model_load_thread_count", 1025, ValueError),
        ("buffer_manager_thread_count", 2**32, ValueError),
        ("model_load_thread_count", True, TypeError),
        ("model_load_thread_count", 1.0, TypeError),
        ("exit_timeout", -1, ValueError),
        ("exit_timeout", float("inf"), ValueError),
        ("exit_timeout", "30", TypeError),
        ("rate_limiter_resources", [("r", 1)], TypeError),
        ("cuda_memory_pool_byte_size", {"0": 1}, TypeError),
        ("cuda_memory_pool_byte_size", 64, TypeError),
        ("cache_config", {"local": 5}, TypeError),
        ("backend_config", {"python": {"x": None}}, TypeError),
        (
            "model_load_device_limits",
            [ModelLoadDeviceLimit(InstanceGroupKind.GPU, 0, 1.5)],
            ValueError,
        ),
        ("gpu_metrics", "no", TypeError),
        ("log_file", 1, TypeError),
        ("log_verbose", 2**31, ValueError),
        ("cache_config", {"local": {"size": object()}}, TypeError),
        ("cache_config", {"local": {"size": float("nan")}}, ValueError),
        ("cache_config", {"local": {"deep": DEEP}}, ValueError),
    ],
)
def test_wrong_values_are_refused_by_name(field, value, error):
    """When the options are made, before anything is started."""
    with pytest.raises(error, match=field):
        ServerOptions(**{field: value})


@pytest.mark.parametrize(
    ("field", "name", "key", "most", "beyond"),
    [
        ("host_policy", "any", "numa-node", "2147483647", "2147483648"),
        ("host_policy", "any", "cpu-cores", "0-1048576", "0-1,0-1048577"),
        ("backend_config", "python", "stub-timeout-seconds", 2**63 - 1, 2**63),
        ("backend_config", "python", "shm-default-byte-size", 2**63 - 1, 2**63),
        ("backend_config", "python", "shm-growth-byte-size", "9223372036854775807", 10**30),
        ("backend_config", "python", "shm-message-queue-size", 0, -(2**63) - 1),
        ("backend_config", "python", "thread-pool-size", 1024, 1025),
        ("metrics_config", "", "summary_quantiles", "0:0.0,0.5:1e300,x", "0.5:1e309"),
        ("metrics_config", "", "summary_quantiles", "nan:inf", "0.5:1e-310"),
        ("metrics_config", "", "summary_quantiles", "", "0.5:0x1p9999"),
    ],
)
def test_settings_that_would_end_the_process_are_refused(field, name, key, most, beyond):
    """Triton reads them with functions that throw, and lets threads be more than there are."""
    ServerOptions(**{field: {name: {key: most}}})
    with pytest.raises(ValueError, match=rf"option {field}\['{name}'\].*{beyond}"):
        ServerOptions(**{field: {name: {key: beyond}}})
    if name == "python":
        ServerOptions(**{field: {"other": {key: beyond}}})


class BytesPath:
    """A path of bytes, as those of `os.scandir` are that was given bytes."""

    def __fspath__(self):
        """Return it."""
        return b"models"


def test_a_path_may_be_of_bytes():
    """It is the same one."""
    options = ServerOptions(model_repository=BytesPath(), log_file=BytesPath())
    assert options.paths("model_repository") == [str(Path("models").absolute())]
    assert options.paths("log_file") == options.paths("model_repository")
    (path,) = [arguments for _, arguments, what in options.calls() if what == "option log_file"]
    assert path == (b"models",)


def test_paths_mean_what_they_mean_at_the_start(library, tmp_path, monkeypatch):
    """Triton gets them absolute: the process may go elsewhere before they are used again."""
    monkeypatch.chdir(tmp_path)
    names = ("log_file", "cache_directory", "repo_agent_directory")
    options = resolved(ServerOptions(**{name: name for name in names}), library, tmp_path)
    assert {name: getattr(options, name) for name in names} == {
        name: str(tmp_path / name) for name in names
    }


@pytest.mark.parametrize("value", [False, "false", np.False_])
def test_counters_that_would_stay_at_0_are_refused(value):
    """Without those of latencies Triton counts nothing at all."""
    words = r"^option metrics_config\[''\]\['counter_latencies'\] must not be false: all counters"
    with pytest.raises(ValueError, match=words):
        ServerOptions(metrics_config={"": {"summary_latencies": True, "counter_latencies": value}})


def test_every_option_can_be_applied(tmp_path):
    """A server starts with a value for each option that a machine without a GPU can take."""
    fields = {
        "server_id": "all",
        "startup_models": [],
        "strict_model_config": True,
        "model_config_name": "variant",
        "rate_limiter_mode": RateLimitMode.EXEC_COUNT,
        "rate_limiter_resources": [RateLimiterResource("r", 2, 0)],
        "pinned_memory_pool_byte_size": 1 << 20,
        "min_supported_compute_capability": 7.5,
        "exit_on_error": False,
        "strict_readiness": False,
        "exit_timeout": 3,
        "model_load_thread_count": 1,
        "model_namespacing": True,
        "enable_peer_access": False,
        "log_info": True,
        "log_verbose": 1,
        "log_format": LogFormat.ISO8601,
        "cpu_metrics": False,
        "gpu_metrics": False,
        "backend_config": {"": {"default-max-batch-size": 4}},
        "host_policy": {"p": {"numa-node": 0}},
        "metrics_config": {"": {"counter_latencies": True}},
        "model_load_device_limits": [ModelLoadDeviceLimit(InstanceGroupKind.GPU, 0, 0.5)],
        "repo_agent_directory": tmp_path,
    }
    log = log_settings()
    with Server(tmp_path, **fields) as server:
        assert server.metadata()["name"] == "all"
    log_settings(info=log.info, verbose=log.verbose, format=log.format)
