# SPDX-License-Identifier: Apache-2.0
"""Asking whether a result is there: `Inference.done` says so, and raises nothing of its own."""

from __future__ import annotations

import pytest

from tritonffi import ClosedError


def test_done_tells_that_nobody_waits_any_more(echo, gate, monkeypatch):
    """Also where the server gives up in the midst of the question."""
    inference = echo.submit({"INPUT0": [1.0]}, parameters={"hold": "start"})
    gate.wait()
    queue = inference.queue
    wait = type(queue).wait

    def given_up(self, *arguments):
        self.is_given_up = True
        return wait(self, *arguments)

    monkeypatch.setattr(type(queue), "wait", given_up)
    assert inference.done()
    monkeypatch.undo()
    with pytest.raises(ClosedError):
        inference.result()
    queue.is_given_up = False
    gate.release()
    assert inference.result()["OUTPUT0"].tolist() == [1.0]


def test_done_lets_through_what_a_handler_raises(echo, gate, monkeypatch):
    """That server is another one."""
    inference = echo.submit({"INPUT0": [1.0]}, parameters={"hold": "start"})
    gate.wait()

    def interrupted(*_):
        raise ClosedError("another server")

    monkeypatch.setattr(type(inference.queue), "wait", interrupted)
    with pytest.raises(ClosedError, match="another server"):
        inference.done()
    monkeypatch.undo()
    gate.release()
    inference.result()
