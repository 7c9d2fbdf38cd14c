# SPDX-License-Identifier: Apache-2.0
"""What server options do, seen from outside, and those that a process can have only once."""

from __future__ import annotations

import logging

import _backend
import pytest
from _program import printed

from tritonffi import (
    AlreadyExistsError,
    InternalError,
    InvalidArgumentError,
    ModelStatus,
    RateLimiterResource,
    RateLimitMode,
    Server,
    UnavailableError,
    UnsupportedError,
)

FP32 = {"INPUT0": ("FP32", [-1])}


def write(folder, *names, **fields):
    """Write models of the test backend, and return the repository."""
    for name in names:
        _backend.write_model(folder, name, FP32, **fields)
    return folder


CACHE = """
import sys
import numpy as np
from tritonffi import AlreadyExistsError, InvalidArgumentError, Server

folder, backends = sys.argv[1:]
cache = {"backend_directory": backends, "cache_config": {"local": {"size": 1 << 20}}}
with Server(folder, **cache) as server:
    model = server.model("cached")
    for value in (1, 2, 1, 1):
        output = model.infer({"INPUT0": np.array([value], np.float32)})["OUTPUT0"]
        print(output.tolist())
        output[:] = 9
    counts = model.statistics()
    print(counts.cache_hit.count, counts.cache_miss.count)
    print(counts.success.count, counts.execution_count)
    try:
        Server(folder, **cache)
    except AlreadyExistsError as error:
        print(error)
with Server(folder, **cache) as server:
    print(server.model("cached").infer({"INPUT0": [3.0]})["OUTPUT0"].tolist())
"""


def test_the_response_cache_answers_what_it_has_seen(tmp_path, backend_directory):
    """Hits are in the statistics, the model is not run for them, and arrays are not its memory.

    A second server with a cache is refused, with the way out; when no server is left there can be
    one again. That is why this has a process of its own.
    """
    folder = write(tmp_path, "cached", extra="response_cache { enable: true }")
    *answers, counted, ran, refused, way, again = printed(CACHE, folder, backend_directory)
    assert answers == ["[1.0]", "[2.0]", "[1.0]", "[1.0]"]
    assert (counted, ran) == ("2 2", "4 2")
    assert refused == "server 'triton': TritonCacheManager already holds a cache"
    assert way.startswith("A process has one response cache at a time")
    assert again == "[3.0]"


def test_two_kinds_of_cache_are_one_too_many(tmp_path):
    """Triton's own words."""
    caches = {"local": {"size": 1 << 20}, "redis": {}}
    with pytest.raises(InvalidArgumentError, match="only a single cache is currently supported"):
        Server(cache_config=caches)


def test_copying_threads_once_a_process(library):
    """Later servers say so when they want them too, and share them when they do not."""
    script = """
from tritonffi import AlreadyExistsError, Server
for count in (2, 2, 0):
    try:
        with Server(buffer_manager_thread_count=count):
            print("started")
    except AlreadyExistsError as error:
        print(str(error).splitlines()[-1])
"""
    first, second, third = printed(script)
    assert (first, third) == ("started", "started")
    assert second.startswith("Option buffer_manager_thread_count can be set once in a process")


def limited(count):
    """Text of a config for an instance that needs so much of resource R."""
    return (
        "instance_group [{ count: 1 kind: KIND_CPU rate_limiter { "
        f'resources [{{ name: "R" global: true count: {count} }}] }} }}]'
    )


@pytest.mark.parametrize("mode", [RateLimitMode.OFF, RateLimitMode.EXEC_COUNT])
def test_the_rate_limiter_lets_in_what_resources_allow(tmp_path, backend_directory, gate, mode):
    """Two models that need the one R there is run one after the other, unless it is off."""
    folder = write(tmp_path, "one", "two", extra=limited(1))
    with Server(
        folder,
        backend_directory=backend_directory,
        rate_limiter_mode=mode,
        rate_limiter_resources=[RateLimiterResource("R", 1)],
    ) as server:
        first = server.model("one").submit({"INPUT0": [1.0]}, parameters={"hold": "start"})
        gate.wait()
        second = server.model("two").submit({"INPUT0": [2.0]}, parameters={"hold": "start"})
        if mode is RateLimitMode.OFF:
            gate.wait(2)
            gate.release()
        else:
            # Whatever is staged behind `two` waits too, so nothing can be run to pass the time.
            assert second.wait(timeout=0.2) is False
            assert gate.waiting() == 1
            gate.release()
            assert first.result(timeout=30)["OUTPUT0"].tolist() == [1.0]
            gate.wait()
            gate.release()
        assert second.result(timeout=30)["OUTPUT0"].tolist() == [2.0]
        assert first.result(timeout=30)["OUTPUT0"].tolist() == [1.0]


def test_a_model_that_needs_more_than_there_is_does_not_load(tmp_path, backend_directory):
    """Triton says so when it is loaded; what is not limited has as much as the models need."""
    folder = write(tmp_path, "one", extra=limited(2))
    options = {
        "backend_directory": backend_directory,
        "rate_limiter_mode": RateLimitMode.EXEC_COUNT,
    }
    with pytest.raises(
        InternalError, match=r'count for "R" is limited to 1 .* required count is 2'
    ):
        Server(folder, rate_limiter_resources=[RateLimiterResource("R", 1)], **options)
    for resources in ([], [RateLimiterResource("R", 2)]):
        with Server(folder, rate_limiter_resources=resources, **options) as server:
            assert server.model("one").infer({"INPUT0": [1.0]})["OUTPUT0"].tolist() == [1.0]


def test_a_host_policy_is_used_by_the_instances_that_name_it(tmp_path, backend_directory):
    """The name in the model's config finds the settings; other settings are refused at once."""
    extra = 'instance_group [{ count: 1 kind: KIND_CPU host_policy: "mine" }]'
    folder = write(tmp_path, "one", extra=extra)
    policy = {"mine": {"numa-node": 0, "cpu-cores": "0-0"}}
    with Server(folder, backend_directory=backend_directory, host_policy=policy) as server:
        assert server.model("one").infer({"INPUT0": [1.0]})["OUTPUT0"].tolist() == [1.0]
        assert server.model("one").config()["instance_group"][0]["host_policy"] == "mine"
    with pytest.raises(UnsupportedError, match=r"option host_policy: .*'speed'"):
        Server(host_policy={"mine": {"speed": 1}})


def test_strict_configs_are_read_and_not_guessed(tmp_path, backend_directory):
    """Without one, a model is completed or guessed at, unless the option forbids it."""
    (tmp_path / "bare" / "1").mkdir(parents=True)
    with pytest.raises(InternalError, match="Could not determine backend for model 'bare'"):
        Server(tmp_path, backend_directory=backend_directory)
    with pytest.raises(InternalError, match=r"bare/config\.pbtxt: No such file"):
        Server(tmp_path, backend_directory=backend_directory, strict_model_config=True)


def test_variants_of_a_config_are_chosen_by_name(tmp_path, backend_directory):
    """From the model's folder `configs`; a model without that variant uses its plain config."""
    folder = write(tmp_path, "one", "two")
    (folder / "one" / "configs").mkdir()
    text = (folder / "one" / "config.pbtxt").read_text()
    variant = text.replace("max_batch_size: 0", "max_batch_size: 7")
    (folder / "one" / "configs" / "big.pbtxt").write_text(variant)
    with Server(folder, backend_directory=backend_directory, model_config_name="big") as server:
        sizes = [server.model(name).config()["max_batch_size"] for name in ("one", "two")]
    assert sizes == [7, 0]


def test_a_load_is_tried_again_as_often_as_was_said(tmp_path, backend_directory, caplog):
    """The error tells the cause once."""
    folder = write(tmp_path, "bad", init_error="no luck")
    for retries in (0, 3):
        caplog.clear()
        with (
            caplog.at_level(logging.ERROR, logger="tritonffi.server"),
            pytest.raises(InternalError) as caught,
        ):
            Server(folder, backend_directory=backend_directory, model_load_retry_count=retries)
        tried = [record for record in caplog.records if "no luck" in record.getMessage()]
        assert len(tried) == retries + 1
        assert str(caught.value).count("no luck") == 1


def test_a_start_may_do_without_the_models_that_fail(tmp_path, backend_directory):
    """With exit_on_error off the others are there, and repositories can be added."""
    folder = write(tmp_path / "models", "good")
    write(folder, "bad", init_error="no luck")
    with Server(folder, backend_directory=backend_directory, exit_on_error=False) as server:
        assert sorted(server.models(), key=lambda status: status.name) == [
            ModelStatus("bad", 1, "UNAVAILABLE", "Internal: no luck"),
            ModelStatus("good", 1, "READY", ""),
        ]
        assert server.is_live()
        assert not server.is_ready()
        server.register_repository(write(tmp_path / "more", "other"))
        assert server.load("other").infer({"INPUT0": [1.0]})["OUTPUT0"].tolist() == [1.0]


def test_a_server_that_did_not_come_up_at_all_refuses_repositories(tmp_path):
    """Triton would crash: it has no repository manager then."""
    no_size = {"local": {}}
    with Server(exit_on_error=False, cache_config=no_size, server_id="half") as server:
        for call in (server.register_repository, server.unregister_repository):
            with pytest.raises(UnavailableError, match="server 'half' is not live"):
                call(tmp_path)


ENSEMBLE = """
platform: "ensemble"
input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
ensemble_scheduling { step [ { model_name: "same" model_version: -1
  input_map { key: "INPUT0" value: "IN" } output_map { key: "OUTPUT0" value: "OUT" } } ] }
"""


def test_namespaces_let_repositories_use_one_name_twice(tmp_path, backend_directory):
    """Each ensemble finds the model beside it; without them the name is refused."""
    folders = [write(tmp_path / "a", "same"), tmp_path / "b"]
    write(tmp_path / "b", "same", mode="error", error_text="from b")
    for folder in folders:
        (folder / f"ensemble_{folder.name}" / "1").mkdir(parents=True)
        (folder / f"ensemble_{folder.name}" / "config.pbtxt").write_text(ENSEMBLE)
    with pytest.raises(InternalError, match="not unique across all model repositories"):
        Server(folders, backend_directory=backend_directory)
    with Server(folders, backend_directory=backend_directory, model_namespacing=True) as server:
        first, second = server.model("ensemble_a"), server.model("ensemble_b")
        assert first.infer({"IN": [1.0]})["OUT"].tolist() == [1.0]
        with pytest.raises(InternalError, match="from b"):
            second.infer({"IN": [1.0]})
        with pytest.raises(InvalidArgumentError, match="namespace must be provided"):
            server.model("same").infer({"INPUT0": [1.0]})


def test_several_repositories_are_one(tmp_path, backend_directory):
    """Models of all of them are loaded, and startup models are looked for in all of them."""
    folders = [write(tmp_path / "a", "one"), write(tmp_path / "b", "two", "three")]
    with Server(
        folders, backend_directory=backend_directory, startup_models=["one", "three"]
    ) as server:
        states = {status.name: status.state for status in server.models()}
        assert states == {"one": "READY", "two": "", "three": "READY"}
    with (
        pytest.raises(AlreadyExistsError, match="model 'two' is in a model repository"),
        Server(folders, backend_directory=backend_directory) as server,
    ):
        server.load_function("two", dict, inputs={}, outputs={"x": ("FP32", [1])})
