# SPDX-License-Identifier: Apache-2.0
"""What killed processes left behind."""

from __future__ import annotations

import errno
import os
import re
import stat
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

from tritonffi import _leftovers


def make():
    """A folder of this process's."""
    folder = _leftovers.new_folder()
    _leftovers.make_folder(folder)
    return folder


@pytest.fixture
def dead():
    """The number of a process that is no more."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_folders_of_dead_processes_are_removed(tmp_path, monkeypatch, dead):
    """And of nobody else: not of the living, not of other process namespaces, no other names.

    Nor of other hosts, where the namespace looks the same and a process of the number may live.
    """
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    own = make()
    namespace = _leftovers.prefix().removesuffix(f"{os.getpid()}-")
    gone = [tmp_path / f"{namespace}{dead}-{letter}" for letter in "xy"]
    left = [tmp_path / name for name in (f"{namespace}1-x", f"tritonffi-1-{dead}-x", "other")]
    with monkeypatch.context() as patch:
        patch.setattr(_leftovers, "_HOST", "0123abcd")
        elsewhere = _leftovers.prefix()
    assert elsewhere.replace("0123abcd", _leftovers._HOST) == _leftovers.prefix()
    left.append(tmp_path / elsewhere.replace(str(os.getpid()), str(dead)))
    for folder in (*gone, *left):
        (folder / "models" / "1").mkdir(parents=True)
    link = tmp_path / f"{namespace}{dead}-link"
    link.symlink_to(tmp_path / "other")
    second = make()
    assert set(tmp_path.iterdir()) == {own, second, link, *left}
    assert (tmp_path / "other" / "models" / "1").is_dir()


def test_without_proc_nobody_is_taken_for_dead(tmp_path, monkeypatch, dead):
    """Some sandboxes have none, and a server starts there all the same."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(_leftovers, "_PROC", tmp_path / "proc")
    left = tmp_path / f"tritonffi-0-{dead}-x"
    left.mkdir()
    assert {left, make()} == set(tmp_path.iterdir())


@pytest.mark.parametrize("unknown", ["_PROC", "_BOOT"])
def test_without_proc_there_are_names_all_the_same(tmp_path, monkeypatch, unknown):
    """Which nobody removes."""
    monkeypatch.setattr(_leftovers, unknown, tmp_path / "none")
    monkeypatch.setattr(_leftovers, "_HOST", _leftovers._host())
    assert _leftovers.prefix() == f"tritonffi-0-{os.getpid()}-"


def test_a_host_is_known_by_its_boot_and_its_name(tmp_path, monkeypatch):
    """Virtual machines made of one snapshot have booted once."""
    assert _leftovers._host() == _leftovers._HOST
    hosts = set()
    monkeypatch.setattr(_leftovers, "_BOOT", tmp_path / "boot")
    for boot, name in (("a", "x"), ("a", "y"), ("b", "y")):
        (tmp_path / "boot").write_text(boot)
        monkeypatch.setattr(os, "uname", lambda name=name: SimpleNamespace(nodename=name))
        hosts.add(_leftovers._host())
        assert re.fullmatch("[0-9a-f]{8}", _leftovers._host())
    assert len(hosts) == 3


def test_who_has_ended_and_is_not_waited_for_is_dead(tmp_path):
    """As long as who started it reads what it writes, say; its number cannot be another's yet."""
    beginning = _leftovers.prefix().removesuffix(f"{os.getpid()}-")
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    left = tmp_path / f"{beginning}{process.pid}-x"
    left.mkdir()
    assert list(_leftovers.of_the_dead(tmp_path)) == [left]
    process.wait()
    assert list(_leftovers.of_the_dead(tmp_path)) == [left]


def test_who_lives_on_in_other_threads_is_not_dead(tmp_path):
    """The kernel shows a process whose first thread has ended like one that has."""
    script = """
        import ctypes, os, sys, threading

        def last():
            while open("/proc/self/stat").read().rpartition(")")[2].split()[0] != "Z":
                os.sched_yield()
            print(flush=True)
            sys.stdin.read()
            os._exit(0)

        threading.Thread(target=last).start()
        exit_thread = 93 if os.uname().machine == "aarch64" else 60
        ctypes.CDLL(None).syscall(exit_thread, 0)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    beginning = _leftovers.prefix().removesuffix(f"{os.getpid()}-")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"\n"
        (tmp_path / f"{beginning}{process.pid}-x").mkdir()
        assert list(_leftovers.of_the_dead(tmp_path)) == []
        process.stdin.close()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert len(list(_leftovers.of_the_dead(tmp_path))) == 1


def test_without_a_descriptor_nobody_is_taken_for_dead(tmp_path, monkeypatch, dead):
    """Who is, cannot be told."""
    beginning = _leftovers.prefix().removesuffix(f"{os.getpid()}-")
    left = tmp_path / f"{beginning}{dead}-x"
    left.mkdir()

    def refuse(_):
        raise OSError(errno.EMFILE, "too many")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", refuse)
        assert list(_leftovers.of_the_dead(tmp_path)) == []
    assert list(_leftovers.of_the_dead(tmp_path)) == [left]


def test_what_others_have_is_left_to_them(tmp_path, monkeypatch, dead):
    """Their processes may be hidden from this user, as if they were dead."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    beginning = _leftovers.prefix().removesuffix(f"{os.getpid()}-")
    theirs = tmp_path / f"{beginning}{dead}-x"
    theirs.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: theirs.stat().st_uid + 1)
    assert list(_leftovers.of_the_dead(tmp_path)) == []
    assert {theirs, make()} == set(tmp_path.iterdir())
    monkeypatch.undo()
    assert list(_leftovers.of_the_dead(tmp_path)) == [theirs]


def test_a_folder_is_private_and_its_name_cannot_be_foretold(tmp_path, monkeypatch):
    """Only its owner may look into it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    first, second = make(), make()
    assert first != second
    assert stat.S_IMODE(first.stat().st_mode) == 0o700
