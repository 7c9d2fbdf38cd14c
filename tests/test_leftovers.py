# SPDX-License-Identifier: Apache-2.0
"""What killed processes left behind."""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile

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
    """And of nobody else: not of the living, not of other process namespaces, no other names."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    own = make()
    namespace = _leftovers.prefix().removesuffix(f"{os.getpid()}-")
    gone = [tmp_path / f"{namespace}{dead}-{letter}" for letter in "xy"]
    left = [tmp_path / name for name in (f"{namespace}1-x", f"tritonffi-1-{dead}-x", "other")]
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


def test_a_folder_is_private_and_its_name_cannot_be_foretold(tmp_path, monkeypatch):
    """Only its owner may look into it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    first, second = make(), make()
    assert first != second
    assert stat.S_IMODE(first.stat().st_mode) == 0o700
