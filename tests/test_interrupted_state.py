# SPDX-License-Identifier: Apache-2.0
"""Signal handlers in the midst of what belongs to the process: its metrics, its log, its locks."""

from __future__ import annotations

from types import SimpleNamespace

from _interrupted import cut_short

from tritonffi import (
    _call,
)


def test_a_handler_may_raise_at_any_step_of_making_parameters(library, monkeypatch):
    """What was made of them is deleted, once."""
    alive = []

    def make(function):
        def new(*arguments):
            alive.append(function(*arguments))
            return alive[-1]

        return new

    lib = _call.lib
    fake = SimpleNamespace(**{name: getattr(lib, name) for name in dir(lib) if "PARAMETER" in name})
    fake.TRITONSERVER_ParameterNew = make(lib.TRITONSERVER_ParameterNew)
    fake.TRITONSERVER_ParameterBytesNew = make(lib.TRITONSERVER_ParameterBytesNew)
    fake.TRITONSERVER_ParameterDelete = alive.remove
    monkeypatch.setattr(_call, "lib", fake)

    def whole():
        values = {"s": "text", "i": 1, "b": True, "d": 0.5, "f": b"bytes"}
        with _call.parameters(values, "model 'x'") as (_, count):
            assert count == len(alive) == 5

    number = 0
    came = True
    while came:
        number += 1
        came = cut_short(number, whole)
        assert alive == []
    assert number > 30
