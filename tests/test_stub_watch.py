# SPDX-License-Identifier: Apache-2.0
"""Which dead process of Triton's python backend a load, or a start, waits for in vain."""

from __future__ import annotations

import os
import shutil
from types import SimpleNamespace

import pytest
from test_python_backend import IDENTITY, run, runs, segments, write

from tritonffi import InternalError, _stub_records
from tritonffi import _python_backend as backend

__all__ = ["runs"]  # a fixture: it is used by its name

# No process has such numbers.
DEAD, OTHER = "99999991", "99999992"


@pytest.fixture
def records(tmp_path, monkeypatch):
    """Writes what the script of a stub writes; the memory of each stub is still there."""
    monkeypatch.setattr(_stub_records, "_folders", {})
    monkeypatch.setattr(_stub_records, "_SHM", tmp_path)
    _stub_records.make_folder(tmp_path / "records")

    def write_record(pid, file, instance, folder="records"):
        words = (file, f"/region-{pid}", "1", "1", "1", "folder", "1", instance, "DEFAULT", "")
        (tmp_path / folder / pid).write_bytes(b"".join(os.fsencode(w) + b"\0" for w in words))
        (tmp_path / f"region-{pid}").touch()

    return write_record


@pytest.fixture
def stubs(monkeypatch):
    """States of stubs, and who of them lives for a model; the clock."""
    made = SimpleNamespace(states={}, living={}, now=0.0)
    monkeypatch.setattr(backend, "_stubs", lambda: iter(made.states.items()))
    monkeypatch.setattr(backend, "_living", lambda model, _: made.living.get(model, set()))
    monkeypatch.setattr(backend, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


MODEL = "/models/m/1/model.py"


@pytest.mark.parametrize(
    ("models", "file", "instance", "living", "lost"),
    [
        # The one that completes the config, whoever else lives: another version, say.
        (["m"], MODEL, "m", {"7"}, "m"),
        (["m"], MODEL, "m", set(), "m"),
        (["a", "m"], MODEL, "m", {"7"}, "m"),
        (["m"], "/tmp/folderAbC/1/model.py", "m", {"7"}, "m"),  # of files that a load brought
        ([], MODEL, "m", {"7"}, "m"),
        # That of another model, which another thread loads.
        (["m"], "/models/m_0/1/model.py", "m_0", {"7"}, None),
        (["m"], "/models/m_0/1/model.py", "m_0", set(), None),
        # An instance, at which Triton looks by itself once it has said something.
        (["m"], MODEL, "m_0", {"7"}, None),
        (["m"], MODEL, "m_0", set(), "m"),
        ([], MODEL, "m_0", {"7"}, ""),
        # One that died before it could say whose it is.
        (["m"], None, None, {"7"}, None),
        (["m"], None, None, set(), "m"),
        ([], None, None, {"7"}, ""),
    ],
)
def test_who_is_lost(stubs, records, *, models, file, instance, living, lost):
    """By what the dead stub was started for, and not by who else there is."""
    watch = backend.StubWatch(models)
    if file is not None:
        records(DEAD, file, instance)
    stubs.states = {DEAD: "Z", "7": "S"}
    stubs.living = {"m": living, "a": {"8"}}
    watch()
    stubs.now = backend.PATIENCE_S + 0.1
    if lost is None:
        watch()
        assert watch.model == ""
        return
    context = f"^model {lost!r}: a process of" if lost else "^a process of"
    with pytest.raises(InternalError, match=context):
        watch()
    assert watch.model == lost


def test_who_was_there_before_is_not_lost(stubs, records):
    """Dead or alive: the old instance may end, or be killed, in a reload."""
    records(str(os.getpid()), MODEL, "m")
    for before in "ZS":
        stubs.states = {str(os.getpid()): before, DEAD: "S"}
        watch = backend.StubWatch(["m"])
        stubs.states = {str(os.getpid()): "Z"}
        assert watch._lost() == {}
    # The number of one that is gone may be that of a new one.
    stubs.states[DEAD] = "Z"
    records(DEAD, MODEL, "m")
    assert watch._lost() == {DEAD: "m"}


def test_each_stub_is_given_its_time(stubs, records):
    """Those that complete configs one after the other end as they should."""
    for pid in (DEAD, OTHER):
        records(pid, MODEL, "m")
    watch = backend.StubWatch(["m"])
    for now, states, lost in (
        (0.0, {DEAD: "Z"}, False),
        (2.0, {OTHER: "Z"}, False),
        (4.0, {OTHER: "Z"}, False),
        (4.5, {DEAD: "Z", OTHER: "Z"}, False),
        (5.1, {DEAD: "Z", OTHER: "Z"}, True),
        (9.0, {}, False),
    ):
        stubs.now, stubs.states = now, states
        assert watch.has_lost() == lost


def test_the_newest_record_of_a_number_counts(records, tmp_path):
    """Of whatever server, as long as that is open."""
    _stub_records.make_folder(tmp_path / "later")
    records(DEAD, MODEL, "old")
    records(DEAD, MODEL, "new", folder="later")
    os.utime(tmp_path / "records" / DEAD, (1, 1))
    assert _stub_records.record_of(DEAD).instance == "new"
    shutil.rmtree(tmp_path / "later")
    assert _stub_records.record_of(DEAD).instance == "old"
    assert list(_stub_records._folders) == [tmp_path / "records"]
    assert _stub_records.record_of(OTHER) is None


def test_one_that_others_have_waited_for_is_still_dead(records, monkeypatch):
    """The kernel has forgotten it; its number, which may be another one's, gets no signal."""
    killed = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "kill", lambda *arguments: killed.append(arguments))
        assert (list(backend._stubs()), backend.is_lost()) == ([], False)
        records(DEAD, MODEL, "m_0")
        assert list(backend._stubs()) == [(DEAD, "Z")]
        assert backend.is_lost()
        watch = backend.StubWatch(["m"])
        assert watch._lost() == {}  # it was there before
        records(OTHER, MODEL, "m")
        assert watch._lost() == {OTHER: "m"}
        backend.end_stubs()
    assert killed == []


@pytest.mark.parametrize("how", ["load", "start"])
def test_another_version_that_lives_hides_nobody(runs, tmp_path, how):
    """The load of both will never be over; the server serves on, and closes."""
    write(tmp_path, "two", "FP32", "return value")
    write(tmp_path, "add", "FP32", "return value + 1")
    (tmp_path / "two" / "2").mkdir()
    (tmp_path / "two" / "2" / "model.py").write_text(IDENTITY.format("return value"))
    (tmp_path / "two" / "1" / "model.py").write_text("import os\nos._exit(3)\n")
    with (tmp_path / "two" / "config.pbtxt").open("a") as file:
        file.write("version_policy { all {} }")
    body = """
        import logging
        from tritonffi import _python_backend as backend
        backend.PATIENCE_S = 0.5
        logging.basicConfig(stream=sys.stdout, format="%(message)s")
        if sys.argv[3] == "start":
            print(message(lambda: Server(sys.argv[2])).partition(" before")[0])
        else:
            server = Server(sys.argv[2], startup_models=["add"])
            print(message(lambda: server.load("two")).partition(" before")[0])
            print(server.model("add").infer({"IN": [1.0]})["OUT"].tolist())
            print(message(server.close), server.closed)
        print(os.getpid())
    """
    first, *others, pid = run(body, tmp_path, how)
    assert first == "model 'two': a process of Triton's python backend has ended"
    left = "a server is left behind, unloaded but not stopped: Triton cannot stop it after "
    loads = f"{left}loads of 'two' whose python process has died"
    assert others == ([] if how == "start" else ["[2.0]", loads, "None True"])
    assert segments(pid) == []


def test_a_poll_sees_a_process_that_dies(runs, tmp_path):
    """It would never be over; the next is refused, the server serves on, and closes."""
    write(tmp_path / "models", "add", "FP32", "return value + 1")
    write(tmp_path, "dies", "FP32", "return value")
    (tmp_path / "dies" / "1" / "model.py").write_text("import os\nos._exit(3)\n")
    body = """
        import logging
        from pathlib import Path
        from tritonffi import _python_backend as backend
        backend.PATIENCE_S = 0.5
        logging.basicConfig(stream=sys.stdout, format="%(message)s")
        models = Path(sys.argv[2], "models")
        server = Server(models, model_control_mode=tritonffi.ModelControlMode.POLL)
        Path(sys.argv[2], "dies").rename(models / "dies")
        print(message(server.poll).partition(" before")[0])
        print(message(server.poll).partition(": ")[2])
        print(server.model("add").infer({"IN": [1.0]})["OUT"].tolist())
        print(message(server.close), server.closed)
        print(os.getpid())
    """
    gone = (
        "the python process of 'dies' has died in a poll, which Triton never ends; "
        "only another server can load it"
    )
    left = "a server is left behind, unloaded but not stopped: Triton cannot stop it after "
    *lines, pid = run(body, tmp_path)
    assert lines == [
        "model 'dies': a process of Triton's python backend has ended",
        gone,
        "[2.0]",
        f"{left}loads of 'dies' whose python process has died",
        "None True",
    ]
    assert segments(pid) == []
