# SPDX-License-Identifier: Apache-2.0
"""Several servers in one process: what they share must not hurt."""

from __future__ import annotations

import threading

import _backend
import numpy as np
import pytest

from tritonffi import InternalError, Server

FP32 = {"INPUT0": ("FP32", [-1])}
ENSEMBLE = """
name: "both"
platform: "ensemble"
max_batch_size: 0
input [ {{ name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }} ]
output [ {{ name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }} ]
ensemble_scheduling {{ step [
  {{ model_name: "{0}" model_version: -1
     input_map {{ key: "INPUT0" value: "IN" }} output_map {{ key: "OUTPUT0" value: "between" }} }},
  {{ model_name: "{0}" model_version: -1
     input_map {{ key: "INPUT0" value: "between" }} output_map {{ key: "OUTPUT0" value: "OUT" }} }}
] }}
"""


def write_ensemble(folder):
    """Write a model `part` and an ensemble `both` of it, twice; return the repository."""
    _backend.write_model(folder, "part", FP32)
    (folder / "both" / "1").mkdir(parents=True)
    (folder / "both" / "config.pbtxt").write_text(ENSEMBLE.format("part"))
    return folder


def through(server):
    """Whether the ensemble still hands 4 KB from one model to the next."""
    value = np.arange(1024, dtype=np.float32)
    return bool((server.model("both").infer({"IN": value})["OUT"] == value).all())


def test_an_ensemble_works_on_while_another_server_closes(tmp_path, backend_directory):
    """Deleting a server would take away the memory pools of all: it is put off."""
    folder = write_ensemble(tmp_path / "models")
    with Server(folder, backend_directory=backend_directory) as first:
        for _ in range(3):
            with Server(folder, backend_directory=backend_directory) as second:
                assert through(second)
            assert through(first)


def test_ensembles_in_flight_do_not_notice_a_close(tmp_path, backend_directory):
    """Requests from several threads, while servers come and go."""
    folder = write_ensemble(tmp_path / "models")
    stop, wrong = threading.Event(), []

    def work(server):
        while not stop.is_set():
            if not through(server):
                wrong.append(1)

    with Server(folder, backend_directory=backend_directory) as first:
        threads = [threading.Thread(target=work, args=(first,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(3):
                with Server(folder, backend_directory=backend_directory) as second:
                    assert through(second)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    assert wrong == []


def test_nothing_is_deleted_while_a_server_starts(tmp_path, backend_directory, gate):
    """The last one closes while another one loads its models: that one's pools stay."""
    folder = write_ensemble(tmp_path / "models")
    slow = write_ensemble(tmp_path / "slow")
    _backend.write_model(slow, "slow", FP32, init_hold=True)
    first = Server(folder, backend_directory=backend_directory)
    started = []
    thread = threading.Thread(
        target=lambda: started.append(Server(slow, backend_directory=backend_directory))
    )
    thread.start()
    gate.wait()
    first.close()
    assert first._lifecycle._folder.exists()
    gate.open()
    thread.join()
    with started[0] as second:
        assert through(second)


def test_the_same_server_many_times(tmp_path, backend_directory):
    """Restarts leave nothing behind that the next one trips over."""
    folder = write_ensemble(tmp_path / "models")
    for _ in range(5):
        with Server(folder, backend_directory=backend_directory) as server:
            assert through(server)


def test_threads_start_and_close_servers_at_once(tmp_path, backend_directory):
    """Each loads, infers, unloads and closes its own."""
    folder = write_ensemble(tmp_path / "models")
    outcomes = []

    def work():
        for _ in range(3):
            with Server(folder, backend_directory=backend_directory) as server:
                outcomes.append(through(server))
                server.unload("both")
                server.load("both")
                outcomes.append(through(server))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [True] * 18


def test_a_failed_start_does_not_hurt_the_others(tmp_path, backend_directory):
    """It is over and gone before the error is raised."""
    folder = write_ensemble(tmp_path / "models")
    _backend.write_model(tmp_path / "bad", "bad", FP32, init_error="no luck")
    with Server(folder, backend_directory=backend_directory) as server:
        with pytest.raises(InternalError, match="no luck"):
            Server(tmp_path / "bad", backend_directory=backend_directory)
        assert through(server)
