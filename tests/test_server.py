# SPDX-License-Identifier: Apache-2.0
"""The life of a server: start, repository, load, unload, metrics, close."""

from __future__ import annotations

import gc
import json
import logging
import os
import threading
from pathlib import Path

import _backend
import numpy as np
import pytest
from _ensemble import ensemble
from _functions import Held

import tritonffi
from tritonffi import (
    CancelledError,
    ClosedError,
    InvalidArgumentError,
    ModelControlMode,
    ModelStatus,
    NotFoundError,
    Server,
    ServerOptions,
    TensorSpec,
    TritonError,
    UnavailableError,
)

FP32 = {"INPUT0": ("FP32", [-1])}
CONFIG = {
    "backend": "tffitest",
    "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
    "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
}


@pytest.fixture
def small(tmp_path, backend_directory):
    """A server of the test's own over one model, `one`; its repository is `small.folder`."""
    _backend.write_model(tmp_path / "models", "one", FP32)
    with Server(tmp_path / "models", backend_directory=backend_directory) as running:
        running.folder = tmp_path / "models"
        yield running


def test_a_started_server_is_live_and_ready(small):
    """The constructor returns when everything is loaded."""
    assert small.is_live()
    assert small.is_ready()
    assert not small.closed
    assert repr(small) == "<Server 'triton', open>"


def test_metadata_tells_name_version_and_extensions(server):
    """The version is that of the library."""
    metadata = server.metadata()
    assert metadata["name"] == "shared"
    assert metadata["version"].startswith("2.")
    assert "binary_tensor_data" in metadata["extensions"]


def test_models_is_the_index(small):
    """Every model of the repository is in it, with version and state."""
    assert small.models() == [ModelStatus("one", 1, "READY", "")]


def test_a_server_needs_no_repository(backend_directory):
    """Without one it starts, is ready, knows no model, and can load one from a config."""
    with Server(backend_directory=backend_directory) as server:
        assert server.is_ready()
        assert server.models() == []
        model = server.load("made", CONFIG)
        assert model.infer({"INPUT0": [1.0]})["OUTPUT0"].tolist() == [1.0]
        assert server.models() == [ModelStatus("made", 1, "READY", "")]
        server.unload("made")
        assert server.models()[0].state == "UNAVAILABLE"


def test_load_takes_a_config_in_place_of_the_repository_s(small):
    """The override counts until the model is unloaded, and not for a reload only."""
    assert small.model("one").config()["max_batch_size"] == 0
    model = small.load("one", CONFIG | {"max_batch_size": 4})
    assert model.config()["max_batch_size"] == 4
    assert model.infer({"INPUT0": [[1.0]]})["OUTPUT0"].tolist() == [[1.0]]
    assert small.load("one").config()["max_batch_size"] == 4
    small.unload("one")
    assert small.load("one").config()["max_batch_size"] == 0


def test_a_model_handle_follows_a_reload(small):
    """What it knew of the model's inputs is read again, and `latest` stays the latest."""
    model = small.model("one")
    assert model.infer({"INPUT0": [1.0]}).model_version == 1
    config = json.loads(json.dumps(CONFIG))
    config["input"][0]["data_type"] = config["output"][0]["data_type"] = "TYPE_INT32"
    small.load("one", config)
    assert model.infer({"INPUT0": [7]})["OUTPUT0"].dtype == np.int32
    small.unload("one")
    (small.folder / "one" / "2").mkdir()
    small.load("one")
    response = model.infer({"INPUT0": [1.0]})
    assert response.model_version == 2
    assert model.version == -1


def test_unload_returns_when_the_model_is_unloaded(small):
    """Right after it the index says so, and requests are refused."""
    model = small.model("one")
    assert model.is_ready()
    small.unload("one")
    assert small.models()[0].state == "UNAVAILABLE"
    assert not model.is_ready()
    with pytest.raises((UnavailableError, NotFoundError), match="model 'one'"):
        model.infer({"INPUT0": [1.0]})
    small.load("one")
    assert model.infer({"INPUT0": [1.0]})["OUTPUT0"].tolist() == [1.0]


def test_unload_waits_for_requests_and_its_timeout_for_nobody(small, gate):
    """A model with a request at work is not unloaded; TimeoutError says so."""
    inference = small.model("one").submit({"INPUT0": [1.0]}, parameters={"hold": "start"})
    gate.wait()
    with pytest.raises(TimeoutError, match="model 'one': still not unloaded"):
        small.unload("one", timeout=0.05)
    gate.release()
    assert inference.result()["OUTPUT0"].tolist() == [1.0]
    small.unload("one")


def test_unload_with_dependents_takes_what_triton_has_loaded_for_the_model(small):
    """Not what was loaded by its name, and a call of another model is not waited for."""
    spec = {"inputs": {"INPUT0": ("FP32", [-1])}, "outputs": {"OUTPUT0": ("FP32", [-1])}}
    small.unload("one")
    small.load_function("part", lambda x: x + 1, **spec)
    held = Held()
    slow = small.load_function("slow", lambda x: held(x)["y"], **spec)
    whole = ensemble(small, "whole", ["one", "part"], max_batch_size=0)
    assert whole.infer({"X": [1.0]})["Y"].tolist() == [2.0]
    inference = slow.submit({"INPUT0": [1.0]})
    held.wait()
    small.unload("whole", dependents=True, timeout=5)
    goes_on = not inference.is_through()
    held.may_go.set()
    assert goes_on
    ready = {model.name for model in small.models() if model.state == "READY"}
    assert ready == {"part", "slow"}  # the other one may still be going
    assert not small.model("whole").is_ready()
    assert inference.result()["OUTPUT0"].tolist() == [1.0]
    assert small.model("part").infer({"INPUT0": [1.0]})["OUTPUT0"].tolist() == [2.0]


def test_a_model_that_there_is_not_is_not_found(small):
    """Whatever is asked of it; one that is known and not loaded may be unloaded."""
    unknown = small.model("nope")
    for call in (
        unknown.metadata,
        unknown.config,
        unknown.statistics,
        unknown.batch_properties,
        unknown.transaction_properties,
        unknown.sequence,
        lambda: unknown.infer({}),
        lambda: list(unknown.map([{}])),
        lambda: small.load("nope"),
        lambda: small.unload("nope"),
        lambda: small.unload("nope", dependents=True),
    ):
        with pytest.raises(NotFoundError, match="model 'nope'"):
            call()
    assert not unknown.is_ready()
    small.load("made", CONFIG)
    for name in ("one", "made"):
        small.unload(name)
        small.unload(name)


def test_a_failed_load_tells_what_triton_logged(small):
    """The cause stands in the exception, not only in a log; the server lives on."""
    _backend.write_model(small.folder, "bad", FP32, init_error="the disk is upside down")
    with pytest.raises(TritonError, match="the disk is upside down"):
        small.load("bad")
    with pytest.raises(NotFoundError, match=r"'nope'.*\n.*\n.*not found in any model repo"):
        small.load("nope")
    broken = small.folder / "broken"
    (broken / "1").mkdir(parents=True)
    (broken / "config.pbtxt").write_text("backend: 'tffitest' nonsense: 3")
    with pytest.raises(TritonError, match=r"(?s)model 'broken'.*config.pbtxt.*stderr"):
        small.load("broken")
    assert small.model("one").infer({"INPUT0": [1.0]})["OUTPUT0"].tolist() == [1.0]


def test_a_failed_start_tells_what_triton_logged(tmp_path, backend_directory):
    """The model and the cause are named; nothing stays behind."""
    _backend.write_model(tmp_path, "bad", FP32, init_error="no such luck")
    with pytest.raises(TritonError, match=r"(?s)bad.*no such luck"):
        Server(tmp_path, backend_directory=backend_directory)


def test_a_name_that_is_not_utf_8_spoils_nothing(tmp_path, backend_directory):
    """Folders have names of any bytes. Such a model has the name that Python has for its folder."""
    name = os.fsdecode(b"caf\xe9")
    _backend.write_model(tmp_path, "one", FP32)
    (tmp_path / "one").rename(tmp_path / name)
    config = tmp_path / name / "config.pbtxt"
    config.write_text(config.read_text().replace('name: "one"', ""))
    with Server(tmp_path, backend_directory=backend_directory) as server:
        assert [(m.name, m.state) for m in server.models()] == [(name, "READY")]
        model = server.model(name)
        assert model.infer({"INPUT0": [1.0]})["OUTPUT0"].tolist() == [1]
        assert model.metadata()["name"] == name
        assert [counts.name for counts in server.statistics().models] == [name]
        samples = server.metrics_dict()["nv_inference_request_success"].samples
        assert "caf\N{REPLACEMENT CHARACTER}" in [sample.labels["model"] for sample in samples]
        server.unload(name)
        assert server.models()[0].state == "UNAVAILABLE"
        server.load(name)
        with pytest.raises(ValueError, match="cannot be written as UTF-8"):
            server.load_function("f\udce9", print, inputs={}, outputs={"y": ("FP32", [1])})


def test_a_repository_that_is_not_there_is_named(tmp_path):
    """Before Triton is started."""
    with pytest.raises(InvalidArgumentError, match="nowhere' is not a folder"):
        Server(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "config", "error"),
    [
        ("../up", CONFIG, InvalidArgumentError),
        ("", CONFIG, InvalidArgumentError),
        ("a\0b", CONFIG, ValueError),
        (3, None, TypeError),
        ("x", "{}", TypeError),
        ("x", {"a": object()}, InvalidArgumentError),
        ("x", {"no_such_field": 1}, TritonError),
        ("x", {"backend": "no_such_backend"}, TritonError),
    ],
)
def test_wrong_loads_are_refused(small, name, config, error):
    """Names are one plain path component, configs are JSON objects that Triton understands."""
    with pytest.raises(error):  # after which Triton does not call the server ready any more
        small.load(name, config)


def test_metrics_are_prometheus_text(server, echo):
    """The counters of models that ran are in it."""
    echo.infer({"INPUT0": [1.0]})
    text = server.metrics()
    assert "# TYPE nv_inference_request_success counter" in text
    assert 'nv_inference_count{model="echo",version="1"}' in text


def test_model_properties(server):
    """Batching and decoupling are told apart."""
    flags = tritonffi.ModelBatchFlag, tritonffi.ModelTxnPropertyFlag
    assert server.model("batched").batch_properties() == flags[0].FIRST_DIM
    assert server.model("echo").batch_properties() == flags[0].UNKNOWN
    assert server.model("stream").transaction_properties() == flags[1].DECOUPLED
    assert server.model("echo").transaction_properties() == flags[1].ONE_TO_ONE


def test_model_metadata_and_config(echo):
    """Both are dicts of what Triton says."""
    assert echo.metadata()["inputs"] == [{"name": "INPUT0", "datatype": "FP32", "shape": [-1]}]
    assert echo.metadata()["versions"] == ["1"]
    assert echo.inputs() == {"INPUT0": TensorSpec("INPUT0", "FP32", (-1,))}
    assert echo.outputs() == {"OUTPUT0": TensorSpec("OUTPUT0", "FP32", (-1,))}
    assert echo.config()["backend"] == "tffitest"
    assert echo.is_ready()
    assert repr(echo) == "<Model 'echo', version latest>"


@pytest.mark.parametrize(
    ("version", "error"),
    [(2**63, InvalidArgumentError), (-2, InvalidArgumentError), ("1", TypeError)],
)
def test_wrong_versions_are_refused(server, version, error):
    """A version has 63 bits, or is -1."""
    with pytest.raises(error, match="version must be"):
        server.model("echo", version)


def test_a_closed_server_says_so(tmp_path, backend_directory):
    """Every use of it or its models raises ClosedError; what was read from it stays."""
    _backend.write_model(tmp_path, "one", FP32)
    server = Server(tmp_path, backend_directory=backend_directory, server_id="short")
    model = server.model("one")
    inference = model.submit({"INPUT0": [3.0]})
    response = inference.result()
    server.close()
    server.close()
    assert server.closed
    for call in (
        server.is_live,
        server.is_ready,
        server.metadata,
        server.models,
        server.metrics,
        model.metadata,
        model.is_ready,
        lambda: model.infer({"INPUT0": [1.0]}),
        lambda: server.load("one"),
        lambda: server.unload("one"),
    ):
        with pytest.raises(ClosedError, match="server 'short' is closed"):
            call()
    assert response["OUTPUT0"].tolist() == [3.0]
    assert inference.result() is response


def test_close_cancels_what_is_in_flight(tmp_path, backend_directory, gate):
    """Waiting threads get CancelledError, and close does not wait for more than that."""
    _backend.write_model(tmp_path, "one", FP32)
    server = Server(tmp_path, backend_directory=backend_directory)
    inference = server.model("one").submit({"INPUT0": [1.0]}, parameters={"hold": "start"})
    outcome = []

    def wait():
        try:
            outcome.append(inference.result())
        except TritonError as error:
            outcome.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    gate.wait()
    server.close()
    thread.join()
    assert isinstance(outcome[0], CancelledError)


def test_a_dropped_server_warns_and_closes(tmp_path, backend_directory):
    """ResourceWarning, and the C server is gone."""
    _backend.write_model(tmp_path, "one", FP32)
    server = Server(tmp_path, backend_directory=backend_directory, server_id="lost")
    lifecycle = server._lifecycle
    servers = [server]
    del server
    with pytest.warns(ResourceWarning, match="server 'lost' was not closed"):
        servers.clear()
    gc.collect()
    assert lifecycle.is_closed


def test_private_folders_go_with_the_last_server(tmp_path):
    """Each server has one; they go when no server of the process is left, or later ones close."""
    with Server() as server:
        folder = Path(server._lifecycle._folder)
        assert folder.stat().st_mode & 0o777 == 0o700
    # The shared server of the tests may still be open.
    assert folder.exists() == bool(_backend.running_servers())


def test_servers_live_side_by_side_and_again(tmp_path, backend_directory):
    """Closing one leaves the other at work; a third one may follow."""
    _backend.write_model(tmp_path, "one", FP32)
    first = Server(tmp_path, backend_directory=backend_directory)
    second = Server(tmp_path, backend_directory=backend_directory)
    first.close()
    assert second.model("one").infer({"INPUT0": [2.0]})["OUTPUT0"].tolist() == [2.0]
    with Server(tmp_path, backend_directory=backend_directory) as third:
        assert third.model("one").infer({"INPUT0": [3.0]})["OUTPUT0"].tolist() == [3.0]
    second.close()


def test_options_and_fields_go_together(tmp_path):
    """Fields win over the options object; an unknown one is a TypeError."""
    options = ServerOptions(server_id="from options", exit_timeout=5)
    with Server(options=options, server_id="from fields") as server:
        assert server.metadata()["name"] == "from fields"
        assert server.options.exit_timeout == 5
    with pytest.raises(TypeError, match="no_such_option"):
        Server(no_such_option=1)
    with pytest.raises(TypeError, match="options must be ServerOptions"):
        Server(options={})


def test_no_model_is_loaded_that_is_not_asked_for(tmp_path, backend_directory):
    """Startup models replace the default `*`."""
    for name in ("one", "two"):
        _backend.write_model(tmp_path, name, FP32)
    with Server(tmp_path, backend_directory=backend_directory, startup_models=["two"]) as server:
        states = {status.name: status.state for status in server.models()}
        assert states == {"one": "", "two": "READY"}


def test_control_mode_none_loads_all_and_refuses_load(tmp_path, backend_directory):
    """Triton's own refusal comes through."""
    _backend.write_model(tmp_path, "one", FP32)
    with Server(
        tmp_path, backend_directory=backend_directory, model_control_mode=ModelControlMode.NONE
    ) as server:
        assert server.model("one").infer({"INPUT0": [1.0]})["OUTPUT0"].tolist() == [1.0]
        with pytest.raises(UnavailableError, match="explicit model load"):
            server.load("one")


def test_triton_s_log_reaches_logging(small, caplog):
    """Errors arrive on the logger tritonffi.server with Triton's file and line."""
    with caplog.at_level(logging.DEBUG, logger="tritonffi.server"), pytest.raises(NotFoundError):
        small.load("nope")
    records = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert any("failed to poll model 'nope'" in record.getMessage() for record in records)
    assert all(record.filename.endswith((".cc", ".h")) for record in records)


def test_a_start_without_a_gpu_is_silent(caplog):
    """What Triton says about a missing GPU at ERROR level is DEBUG here."""
    with caplog.at_level(logging.INFO, logger="tritonffi.server"), Server():
        pass
    assert [record.getMessage() for record in caplog.records] == []
