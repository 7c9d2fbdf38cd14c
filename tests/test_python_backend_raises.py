# SPDX-License-Identifier: Apache-2.0
"""Models of Triton's python backend that raise: they answer with it, and can be unloaded."""

from __future__ import annotations

import _thread
import asyncio
import queue
import sys
import types
from collections import deque
from types import SimpleNamespace

import pytest
from test_python_backend import run, runs

from tritonffi import _stub_execute

__all__ = ["runs"]  # a fixture: it is used by its name

_HEAD = """\
import asyncio
import numpy as np
import triton_python_backend_utils as pb

class TritonPythonModel:
    {way} execute(self, requests):
        OUT = pb.InferenceResponse([pb.Tensor("OUT", np.ones(1, np.float32))])
        sender = requests[0].get_response_sender()
        case = int(pb.get_input_tensor_by_name(requests[0], "IN").as_numpy()[0])
"""
_CASE = """\
        if case == {case}:
            {body}
"""
_CONFIG = """
backend: "python"
input {{ name: "IN" data_type: TYPE_FP32 dims: [ 1 ] }}
output {{ name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] }}
model_transaction_policy {{ decoupled: {decoupled} }}
"""
_RAISE = "raise ValueError('h\u00e9')"
_RAISED = "ValueError: h\u00e9"
# A model's own call of `execute`, which raises for what it is given.
_OWN = """\
try:
                {}self.execute([None])
            except AttributeError:
                return [OUT]"""
# By model: what `execute` does, how many responses come, and the error's first line; None: the end.
_CASES = {
    "plain": [
        (_RAISE, 0, _RAISED),
        ("sender.send(OUT, 1); raise ValueError", 1, None),
        (f"requests.clear(); {_RAISE}", 0, _RAISED),
        (f"requests[0].set_release_flags(2); {_RAISE}", 0, _RAISED),
        (r"raise OSError('\udc80')", 0, r"OSError: \udc80"),
        ("raise SystemExit(3)", 0, "SystemExit: 3"),
        ("raise ValueError", 0, "ValueError: <EMPTY MESSAGE>"),
        (_OWN.format(""), 1, None),
        ("requests.pop(); return [OUT]", 1, None),
        ("requests[0] = None; return [OUT]", 1, None),
        ("return OUT", 0, "execute has to return a list, and returned InferenceResponse"),
        ("return [OUT, OUT]", 0, "execute returned 2 responses for 1 requests"),
        ("return ['OUT']", 0, "execute returned str in place of an InferenceResponse"),
        ("return [OUT]", 1, None),
        ("sender.send(OUT, 1); return [None]", 1, None),
    ],
    "awaited": [
        (_RAISE, 0, _RAISED),
        ("return [OUT, OUT]", 0, "execute returned 2 responses for 1 requests"),
        (_OWN.format("await "), 1, None),
        ("requests.pop(); return [OUT]", 1, None),
        ("return [OUT]", 1, None),
    ],
    "stream": [
        (_RAISE, 0, _RAISED),
        (f"sender.send(OUT); {_RAISE}", 1, _RAISED),
        ("sender.send(OUT, 1); raise ValueError", 1, None),
        ("sender.send(OUT); sender.send(flags=1)", 1, None),
    ],
    "awaited_stream": [
        (_RAISE, 0, _RAISED),
        ("sender.send(OUT); sender.send(flags=1)", 1, None),
        # What it returns nobody looks at; it may answer later.
        ("asyncio.get_running_loop().call_soon(sender.send, OUT, 1); return True", 1, None),
    ],
}


def _write(folder, name, bodies):
    (folder / name / "1").mkdir(parents=True)
    decoupled = "true" if "stream" in name else "false"
    (folder / name / "config.pbtxt").write_text(_CONFIG.format(decoupled=decoupled))
    text = _HEAD.format(way="async def" if "awaited" in name else "def")
    text += "".join(_CASE.format(case=case, body=body) for case, body in enumerate(bodies))
    (folder / name / "1" / "model.py").write_text(text)


@pytest.mark.parametrize("name", _CASES)
def test_what_a_model_raises_is_its_answer_and_it_unloads(runs, tmp_path, name):
    """Whatever it has sent, done with its requests, or returned; it counts as a failure."""
    cases = _CASES[name]
    _write(tmp_path, name, [body for body, *_ in cases])
    body = """
        import logging
        logging.getLogger("tritonffi").setLevel(logging.CRITICAL)
        name = sys.argv[3]
        with Server(sys.argv[2]) as server:
            model = server.model(name)
            for case in range(int(sys.argv[4])):
                for turn in range(2):
                    responses = 0
                    text = "over"
                    try:
                        for response in model.stream({"IN": [case]}, timeout=10):
                            responses += 1
                    except TritonError as error:
                        text = str(error).splitlines()[0]
                    print(responses, text)
            print(model.statistics().fail.count)
            server.unload(name, timeout=10)
            print("unloaded")
    """
    start = f"model '{name}': Failed to process the request(s) for model '{name}_0', message: "
    expected = []
    for _, responses, text in cases:
        expected += 2 * [f"{responses} {'over' if text is None else start + text}"]
    # Of a coroutine of a decoupled model Triton does not see what it raises.
    failed = sum("raise" in body or text is not None for body, _, text in cases)
    failed = 0 if name == "awaited_stream" else 2 * failed
    assert run(body, tmp_path, name, str(len(cases))) == [*expected, str(failed), "unloaded"]


def test_a_model_that_has_raised_a_thousand_times_unloads(runs, tmp_path):
    """What lies in the shared memory by then does not matter (server#7481)."""
    _write(tmp_path, "plain", [_RAISE])
    body = """
        import logging
        logging.getLogger("tritonffi").setLevel(logging.CRITICAL)
        with Server(sys.argv[2]) as server:
            model = server.model("plain")
            for turn in range(1000):
                message(lambda: model.infer({"IN": [0]}))
            print(model.statistics().fail.count)
            server.unload("plain", timeout=10)
            print("unloaded")
    """
    assert run(body, tmp_path) == ["1000", "unloaded"]


def test_an_error_is_told_with_the_lines_that_led_to_it():
    """Innermost first, and none of the package's."""

    def inner():
        raise KeyError("no")

    with pytest.raises(KeyError) as caught:
        inner()
    name = "test_an_error_is_told_with_the_lines_that_led_to_it"
    first, empty, at, *lines = _stub_execute.describe(caught.value).splitlines()
    assert (first, empty, at) == ("KeyError: 'no'", "", "At:")
    line = inner.__code__.co_firstlineno + 1
    assert lines == [f"  {__file__}({line}): inner", f"  {__file__}({line + 3}): {name}"]


@pytest.mark.parametrize("raised", [RuntimeError, KeyboardInterrupt])
def test_an_error_that_cannot_be_printed_is_told_by_its_name(raised):
    """What its class raises then is no other error of the request."""

    class MuteError(Exception):
        def __str__(self):
            raise raised

    expected = f"MuteError: <unprintable: {raised.__name__}>\n\nAt:\n"
    assert _stub_execute.describe(MuteError()) == expected


class Request:
    """An InferenceRequest of a stub, and its sender."""

    def __init__(self):
        """Begin without responses."""
        self.sent = []

    def get_response_sender(self):
        """Return what has `send`."""
        return self

    def set_release_flags(self, flags):
        """Take them."""

    def send(self, response=None, flags=0):
        """Remember the error."""
        self.sent.append((response.error, flags))


@pytest.fixture
def errors(monkeypatch):
    """The texts of the errors that are made, in a stub's module of ours."""
    made = []
    names = {
        "TRITONSERVER_RESPONSE_COMPLETE_FINAL": 1,
        "TRITONSERVER_REQUEST_RELEASE_ALL": 1,
        "Logger": SimpleNamespace(log_error=lambda message: None),
        "TritonError": lambda message: made.append(message) or message,
        "InferenceResponse": type("InferenceResponse", (SimpleNamespace,), {}),
    }
    monkeypatch.setitem(sys.modules, _stub_execute._BACKEND, SimpleNamespace(**names))
    return made


def test_calls_of_a_models_own_pass():
    """With whatever arguments; what they return or raise is theirs."""

    def execute(*args, **kwargs):
        if not args:
            raise KeyError(kwargs)
        return args, kwargs

    wrapped = _stub_execute.wrapped(execute, "model_0")
    assert wrapped(1, [2], again=True) == ((1, [2]), {"again": True})
    assert wrapped(1, 2) == ((1, 2), {})
    with pytest.raises(KeyError, match="again"):
        wrapped(again=3)
    # A thread that begins in C has no frame of Python either.
    results = queue.SimpleQueue()
    _thread.start_new_thread(deque, (map(results.put, map(wrapped, [1], [2])),))
    assert results.get(timeout=10) == ((1, 2), {})


def test_a_large_error_is_made_once_for_all_requests(errors):
    """Each gets it, and its end with it."""

    def execute(model, requests):
        requests.clear()
        raise ValueError("large")

    requests = [Request() for _ in range(16)]
    given = list(requests)
    responses = _stub_execute._answered(execute, None, requests, "model_0")
    (error,) = errors
    assert error.startswith("Failed to process the request(s) for model 'model_0', message: Value")
    assert requests == given
    assert [request.sent for request in given] == 16 * [[(error, 1)]]
    assert [response.error for response in responses] == 16 * [error]


@pytest.mark.parametrize("way", [lambda function: function, types.coroutine])
def test_generators_are_awaited_where_asyncio_takes_them(errors, way):
    """Up to Python 3.11; later the stub refuses what is no list."""
    answer = sys.modules[_stub_execute._BACKEND].InferenceResponse()

    @way
    def execute(model, requests):
        yield
        return [answer] if requests.pop() is request else None

    request = Request()
    requests = [request]
    returned = _stub_execute._answered(execute, None, requests, "model_0")
    if sys.version_info >= (3, 12):
        assert request.sent == [(*errors, 1)]
        assert errors[0].endswith("execute has to return a list, and returned generator")
    else:
        assert asyncio.run(returned) == [answer]
        assert (requests, errors) == ([request], [])


def test_what_a_coroutine_returns_is_an_error_when_the_stub_looks(errors):
    """At its length, first; of a decoupled model it does not."""

    async def execute(model, requests):
        return True

    request = Request()
    returned = asyncio.run(_stub_execute._answered(execute, None, [request], "model_0"))
    assert errors == request.sent == []
    assert len(returned) == 1
    assert errors[0].endswith("message: execute has to return a list, and returned bool")
    assert request.sent == [(errors[0], 1)]
    assert [response.error for response in returned] == errors


@pytest.mark.parametrize("name", ["__setattr__", "__getattribute__"])
def test_a_class_that_refuses_to_be_changed_stays_as_it_is(name):
    """Whatever its metaclass raises."""

    def refuse(*args):
        raise KeyboardInterrupt

    def execute(self, requests):
        """Answer."""

    model = type("Meta", (type,), {name: refuse})("Model", (), {"execute": execute})
    module = types.ModuleType("model")
    loader = SimpleNamespace(exec_module=lambda module: setattr(module, "TritonPythonModel", model))
    _stub_execute._Loader(loader, "model_0").exec_module(module)
    assert module.TritonPythonModel is model
    assert type.__getattribute__(model, "execute") is execute
