# SPDX-License-Identifier: Apache-2.0
"""A load replaces instances of Triton's python backend whose stub is dead, and no others."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys

import numpy as np
import pytest
from test_python_backend import IDENTITY, ask, run, runs, segments, write

from tritonffi import Server, _stub_records
from tritonffi._stub_records import StubRecord, records

__all__ = ["runs"]  # a fixture: it is used by its name

TELL = "import os; return np.array([os.getpid()])"
COMPLETE = """
    @staticmethod
    def auto_complete_config(config):
        for add, name in ((config.add_input, "IN"), (config.add_output, "OUT")):
            add({"name": name, "data_type": "TYPE_INT64", "dims": [-1]})
        config.set_max_batch_size(0)
        return config
"""
TENSOR = {"data_type": "TYPE_INT64", "dims": [-1]}
CONFIG = {
    "backend": "python",
    "input": [{"name": "IN", **TENSOR}],
    "output": [{"name": "OUT", **TENSOR}],
}


def write_unchanged(folder, name, extra=""):
    """Write a model that looks the same after a stub has imported it: nothing is cached there."""
    write(folder, name, "INT64", TELL)
    (folder / name / "1" / "__pycache__").touch()
    with (folder / name / "config.pbtxt").open("a") as file:
        file.write(extra)


def whole(*steps):
    """Make an ensemble from X to Y0, Y1 and so on."""
    return {
        "platform": "ensemble",
        "input": [{"name": "X", **TENSOR}],
        "output": [{"name": f"Y{i}", **TENSOR} for i in range(len(steps))],
        "ensemble_scheduling": {
            "step": [
                {
                    "model_name": name,
                    "model_version": -1,
                    "input_map": {takes: "X"},
                    "output_map": {gives: f"Y{i}"},
                }
                for i, (name, takes, gives) in enumerate(steps)
            ]
        },
    }


def pids(model, count=1):
    """Which stubs answer, one for each instance."""
    found = set()
    for _ in range(1000):
        found |= {*ask(model, 0, np.int64)}
        if len(found) == count:
            break
    return found


def reloads(model):
    """How often the config had to differ; None: not at all."""
    parameter = model.config()["parameters"].get("tritonffi.reload")
    return None if parameter is None else parameter["string_value"]


def test_a_load_replaces_idle_stubs_that_were_killed(runs, tmp_path):
    """Each time, of one instance of two; a living model stays as it is, config and all."""
    write_unchanged(tmp_path, "pid", "instance_group { count: 2 kind: KIND_CPU }")
    with Server(tmp_path) as server:
        model = server.model("pid")
        before = pids(model, 2)
        server.load("pid")
        assert pids(model, 2) == before
        assert reloads(model) is None
        for count in ("1", "2"):
            os.kill(min(before), signal.SIGKILL)
            server.load("pid")
            after = pids(model, 2)
            assert len(after) == 2
            assert not after & before
            assert reloads(model) == count
            before = after
        server.load("pid")
        assert pids(model, 2) == before
        assert reloads(model) == "2"
    assert segments() == []


def test_a_load_with_the_config_that_it_has_replaces_a_killed_stub(runs, tmp_path):
    """The config is the user's but for one parameter; so it is without one that was completed."""
    write_unchanged(tmp_path, "pid")
    write_unchanged(tmp_path, "auto")
    (tmp_path / "auto" / "config.pbtxt").unlink()
    (tmp_path / "auto" / "1" / "model.py").write_text(IDENTITY.format(TELL) + COMPLETE)
    parameters = {"mine": {"string_value": "x"}}
    config = {**CONFIG, "parameters": parameters}
    with Server(tmp_path, startup_models=["auto"]) as server:
        for name, given in (("pid", config), ("auto", None)):
            model = server.load(name, given)
            (before,) = pids(model)
            os.kill(before, signal.SIGKILL)
            server.load(name, given)
            (after,) = pids(model)
            assert after != before
            kept = {} if given is None else parameters
            mark = {"tritonffi.reload": {"string_value": "1"}}
            assert model.config()["parameters"] == {**kept, **mark}


def test_a_load_of_another_config_or_of_files_is_made_once(runs, tmp_path):
    """That replaces the killed stub by itself; files count also where the config is the same."""
    write_unchanged(tmp_path, "pid")
    other = {**CONFIG, "parameters": {"mine": {"string_value": "x"}}}
    files = {"1/model.py": IDENTITY.format("return value - 1").encode()}
    with Server(tmp_path) as server:
        model = server.model("pid")
        (before,) = pids(model)
        os.kill(before, signal.SIGKILL)
        server.load("pid", other)
        assert reloads(model) is None
        (after,) = pids(model)
        assert after != before
        server.load("pid", other, files)
        assert reloads(model) == "1"  # and 2 after a second one
        assert pids(model) == {-1}
        (stub,) = (r for r in server._lifecycle.stub_records("pid") if not r.is_dead())
        os.kill(stub.pid, signal.SIGKILL)
        server.load("pid", other, files)
        assert reloads(model) == "2"
        assert pids(model) == {-1}


def test_a_load_replaces_a_killed_stub_of_files_under_the_config_that_came_with_them(runs):
    """Python has written its cache beside them, which counts as a change."""
    config = {**CONFIG, "parameters": {"mine": {"string_value": "x"}}}
    with Server() as server:
        model = server.load("pid", config, {"1/model.py": IDENTITY.format(TELL).encode()})
        (before,) = pids(model)
        os.kill(before, signal.SIGKILL)
        server.load("pid")
        (after,) = pids(model)
        assert after != before
        assert model.config()["parameters"]["mine"] == {"string_value": "x"}


def test_a_load_replaces_stubs_that_died_with_a_request(runs, tmp_path):
    """Each time, though the backend keeps all the old ones."""
    write_unchanged(tmp_path, "pid")
    body = """
        server = Server(sys.argv[2])
        model = server.model("pid")
        ask = lambda: model.infer({"IN": [0]})["OUT"].tolist()[0]
        seen = []
        for count in range(2):
            seen.append(ask())
            os.kill(seen[-1], signal.SIGKILL)
            print(message(ask))
            server.load("pid")
        print(ask() not in seen, model.config()["parameters"])
    """
    refused = "model 'pid': Stub process 'pid_0' is not healthy."
    last = "True {'tritonffi.reload': {'string_value': '2'}}"
    assert run(body, tmp_path) == [refused, refused, last]


def test_an_unload_with_one_lost_stub_of_two_says_so(runs, tmp_path):
    """The other one lives on, and the model is never unloaded; it can be loaded anew."""
    write_unchanged(tmp_path, "pid", "instance_group { count: 2 kind: KIND_CPU }")
    body = """
        server = Server(sys.argv[2])
        model = server.model("pid")
        ask = lambda: model.infer({"IN": [0]})["OUT"].tolist()[0]
        first = ask()
        os.kill(first, signal.SIGKILL)
        refused = ""
        while not refused.startswith("model"):
            refused = message(ask)
        print(refused.partition("_")[0])
        print(message(lambda: server.unload("pid")).partition(" The")[0])
        server.load("pid")
        print(ask() != first)
    """
    lost = "A stub process of the python backend has died with a request."
    unload = f"model 'pid': it does not unload. {lost}"
    assert run(body, tmp_path) == ["model 'pid': Stub process 'pid", unload, "True"]


def test_a_server_with_one_lost_stub_of_two_closes(runs, tmp_path):
    """As where all are lost: it is left behind, with a warning."""
    write_unchanged(tmp_path, "pid", "instance_group { count: 2 kind: KIND_CPU }")
    body = """
        import logging
        logging.basicConfig(stream=sys.stdout, format="%(message)s")
        with Server(sys.argv[2]) as server:
            model = server.model("pid")
            ask = lambda: model.infer({"IN": [0]})["OUT"].tolist()[0]
            os.kill(ask(), signal.SIGKILL)
            while not message(ask).startswith("model"):
                pass
        print(server.closed)
    """
    left, closed = run(body, tmp_path)
    assert left.endswith(" requests of 'pid' whose python process has died")
    assert closed == "True"


def test_a_load_of_an_ensemble_replaces_killed_stubs_of_its_parts(runs, tmp_path):
    """Of parts of parts too; those that live stay as they are."""
    for name in ("dies", "lives"):
        write_unchanged(tmp_path, name)

    with Server(tmp_path) as server:
        server.load("inner", whole(("dies", "IN", "OUT")))
        outer = server.load("outer", whole(("inner", "X", "Y0"), ("lives", "IN", "OUT")))

        def both():
            outputs = outer.infer({"X": np.zeros(1, np.int64)})
            return outputs["Y0"].item(), outputs["Y1"].item()

        died, lives = both()
        os.kill(died, signal.SIGKILL)
        server.load("outer")
        again, living = both()
        assert again != died
        assert living == lives
        assert [reloads(server.model(name)) for name in ("dies", "lives")] == ["1", None]


def test_a_load_of_an_ensemble_keeps_the_config_of_parts_that_are_in_no_repository(runs):
    """Also where their folders have changed; those that have not stay as they are."""
    parameters = {"mine": {"string_value": "x"}}
    source = IDENTITY.format(TELL).encode()
    with Server() as server:
        part = server.load("part", {**CONFIG, "parameters": parameters}, {"1/model.py": source})
        inner = server.load("an", whole(("part", "IN", "OUT")), {"1/empty": b""})
        for name in ("part", "an"):
            (server._lifecycle.repository / name / "1" / "more").write_bytes(b"")
        outer = server.load("outer", whole(("an", "X", "Y0")))
        (living,) = pids(part)
        for model in (inner, outer):
            assert model.infer({"X": np.zeros(1, np.int64)})["Y0"].tolist() == [living]
        server.load("outer")
        assert pids(part) == {living}
        assert part.config()["parameters"] == parameters
    assert segments() == []


@pytest.fixture
def stub():
    """A process that is called as a stub is, and its record."""
    lines = "import os, time; os.close(1); time.sleep(600)"
    command = [sys.executable, "-c", lines, "tritonffi-region"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    with process.stdout as told:
        told.read()  # to the end, which says that it runs
    yield process, StubRecord(process.pid, "model.py", "tritonffi-region", "pid_0", 0)
    process.kill()
    process.wait()


def test_who_is_dead(stub, tmp_path, monkeypatch):
    """From the kill on, waited for or not; another process of the number is no stub."""
    process, record = stub
    assert not record.is_dead()
    assert record._replace(region="another").is_dead()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        assert not record.is_dead()  # nobody can look
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    process.kill()
    assert record.is_dead()
    process.wait()
    assert record.is_dead()
    monkeypatch.setattr(_stub_records, "_PROC", tmp_path)
    assert not record.is_dead()  # it cannot be told


@pytest.mark.parametrize(
    ("status", "killed"),
    [
        (b"SigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n", True),
        (b"SigPnd:\t0000000000000000\nShdPnd:\t0000000000000100\n", True),
        (b"SigPnd:\t0000000000004001\nShdPnd:\t0000000000000002\nSigBlk:\t0000000000000100", False),
        (b"", False),
    ],
)
def test_a_signal_that_has_not_arrived_counts(status, killed):
    """SIGKILL alone."""
    assert _stub_records._is_killed(status) == killed


def test_records_of_instances_that_are_no_more_are_removed(stub, tmp_path, monkeypatch):
    """Not those of the living, nor of the dead that Triton keeps; half a record is none yet."""
    monkeypatch.setattr(_stub_records, "_SHM", tmp_path)
    process, record = stub
    folder = tmp_path / "records"
    folder.mkdir()

    def write_record(pid, region):
        words = ("model.py", region, "1", "1", "1", "folder", "1", "pid_0", "DEFAULT", "")
        (folder / str(pid)).write_bytes(b"".join(os.fsencode(word) + b"\0" for word in words))

    dead = subprocess.Popen(["true"])
    dead.wait()
    write_record(process.pid, record.region)
    write_record(dead.pid, "/tritonffi-kept")
    (tmp_path / "tritonffi-kept").touch()
    (folder / "1").write_bytes(b"model.py\0trito")
    assert {r.pid for r in records(folder)} == {process.pid, dead.pid}
    assert {r.instance for r in records(folder)} == {"pid_0"}
    (tmp_path / "tritonffi-kept").unlink()
    assert [r.pid for r in records(folder)] == [process.pid]
    assert {path.name for path in folder.iterdir()} == {str(process.pid), "1"}
    assert records(tmp_path / "none") == []
