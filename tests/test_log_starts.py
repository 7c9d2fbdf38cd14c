# SPDX-License-Identifier: Apache-2.0
"""What a start does to the settings of the log, which are the process's, also where it fails."""

from __future__ import annotations

import pytest

from tritonffi import (
    InternalError,
    InvalidArgumentError,
    LogLevel,
    Server,
    ServerOptions,
    UnavailableError,
    _log,
    _log_settings,
    is_log_enabled,
    log_message,
    log_settings,
)


@pytest.fixture
def settings(library):
    """The settings before the test, which are back after it."""
    before = log_settings()
    yield before
    names = ("info", "warn", "error", "verbose", "format", "file")
    log_settings(**{name: getattr(before, name) for name in names})


def unchanged(settings):
    """Say whether Triton's log is what it was: what is said, and what is so."""
    return (
        log_settings() == settings
        and is_log_enabled(LogLevel.INFO) == settings.info
        and _log.capture.in_use == (settings.file is None)
    )


def test_a_start_that_is_refused_sets_nothing(settings, tmp_path):
    """Its options did not come to Triton, and the next change does not bring them there."""
    model = tmp_path / "models" / "m"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text('backend: "python"')
    log = tmp_path / "x.log"
    with pytest.raises(InvalidArgumentError, match=r"model\.py"):
        Server(tmp_path / "models", log_file=log, log_info=not settings.info)
    assert unchanged(settings)
    log_settings(warn=settings.warn)
    assert not log.exists()


def test_a_start_with_a_file_that_cannot_be_written_sets_nothing(settings, tmp_path):
    """The log stays where it was."""
    with pytest.raises(InternalError, match="Failed to open log file"):
        Server(log_file=tmp_path / "nowhere" / "x.log", log_info=not settings.info)
    assert unchanged(settings)


def test_what_options_have_set_that_fail_is_put_back(settings, tmp_path, monkeypatch):
    """Each acts at once, and a later one may be refused."""
    apply = ServerOptions.apply

    def fail(self, options):
        apply(self, options)
        assert is_log_enabled(LogLevel.INFO) != settings.info
        raise InternalError("a later one")

    monkeypatch.setattr(ServerOptions, "apply", fail)
    log = tmp_path / "x.log"
    with pytest.raises(InternalError, match="a later one"):
        Server(log_file=log, log_info=not settings.info)
    assert unchanged(settings)
    log_message(LogLevel.ERROR, "not in that file")
    assert "not in that file" not in log.read_text()


def test_a_relative_file_stays_the_same_one(settings, tmp_path, monkeypatch):
    """The process may go elsewhere, and another setting change."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with Server(log_file="x.log", log_info=False):
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert log_settings(verbose=0).file == str(tmp_path / "x.log")
        log_message(LogLevel.ERROR, "after that")
    assert "after that" in (tmp_path / "x.log").read_text()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_signal_handler_may_start_a_server_in_the_midst_of_a_change(settings, monkeypatch):
    """The start is another thread's, which does not wait for ever for the one that waits for it."""
    monkeypatch.setattr(_log_settings, "_PATIENCE_S", 0.01)
    with _log_settings._state.lock, Server(log_info=not settings.info):
        assert log_settings().info != settings.info


def test_without_proc_it_is_named(settings, monkeypatch, tmp_path):
    """Triton would say that it cannot open a file, which nobody named; one that is named goes."""
    monkeypatch.setattr(_log.LogCapture, "_path", lambda _: "/nonexistent/fd/3")
    message = "Triton's log comes by way of /proc, which is not there"
    with pytest.raises(UnavailableError, match=f"^server 'mine': {message}"):
        Server(server_id="mine")
    with pytest.raises(UnavailableError, match=f"^log settings: {message}"):
        log_settings(file=None)
    monkeypatch.setattr(_log_settings._state, "is_set", False)
    with pytest.raises(UnavailableError, match=f"^log: {message}"):
        log_message(LogLevel.ERROR, "to nobody")
    assert log_settings(file=tmp_path / "x.log").file == str(tmp_path / "x.log")
    log_message(LogLevel.ERROR, "to a file")
    assert "to a file" in (tmp_path / "x.log").read_text()
    with Server(log_file=tmp_path / "y.log"):
        assert log_settings().file == str(tmp_path / "y.log")
    monkeypatch.undo()
