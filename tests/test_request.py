# SPDX-License-Identifier: Apache-2.0
"""What can be said with a request beside its arrays, and what comes back beside the outputs."""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor

import _backend
import numpy as np
import pytest

from tritonffi import (
    InternalError,
    InvalidArgumentError,
    Label,
    Request,
    RequestFlag,
    Server,
    _bfloat16,
)

ONE = {"INPUT0": [1.0]}


def test_labels_come_best_first(server):
    """For each row of the batch; a class without a label, or with an empty one, has no text."""
    value = np.float32([[0.5, 2.0, -1.0, 0.75], [np.nan, 1.0, 3.0, 1.0]])
    response = server.model("classify").infer({"INPUT0": value}, labels={"OUTPUT0": 3})
    assert response.labels == {
        "OUTPUT0": [
            [Label("Äffchen", 1, 2.0), Label("", 3, 0.75), Label("cat", 0, 0.5)],
            [Label("", 2, 3.0), Label("Äffchen", 1, 1.0), Label("", 3, 1.0)],
        ]
    }
    assert response["OUTPUT0"].tobytes() == value.tobytes()


def test_more_labels_than_classes_are_all(server):
    """And they go together with memory of the caller's."""
    out = np.empty((1, 4), np.float32)
    response = server.model("classify").infer(
        {"INPUT0": np.float32([[4, 3, 2, 1]])}, labels={"OUTPUT0": 100}, out={"OUTPUT0": out}
    )
    assert [label.number for label in response.labels["OUTPUT0"][0]] == [0, 1, 2, 3]
    assert response["OUTPUT0"] is out


def test_a_model_that_does_not_batch_has_one_row(echo):
    """And one without a label file has no texts."""
    response = echo.infer({"INPUT0": [1.0, 5.0]}, labels={"OUTPUT0": 1})
    assert response.labels == {"OUTPUT0": [[Label("", 1, 5.0)]]}
    assert echo.infer({"INPUT0": [1.0]}).labels == {}


def test_what_is_not_a_number_comes_after_all_numbers(server):
    """Also after those that are as small as can be."""
    value = np.float32([[np.nan, -np.inf, np.nan, 0.0]])
    response = server.model("classify").infer({"INPUT0": value}, labels={"OUTPUT0": 4})
    assert [label.number for label in response.labels["OUTPUT0"][0]] == [3, 1, 0, 2]


def test_labels_that_are_not_utf_8_are_shown(tmp_path, backend_directory):
    """The file is the user's, of whatever encoding."""
    extra = 'output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [2] label_filename: "labels" }'
    folder = _backend.write_model(tmp_path, "cafe", {"INPUT0": ("FP32", [2])}, {}, extra=extra)
    (folder / "labels").write_bytes(b"caf\xe9\ntea\n")
    with Server(tmp_path, backend_directory=backend_directory) as server:
        response = server.model("cafe").infer({"INPUT0": [2.0, 1.0]}, labels={"OUTPUT0": 2})
    assert [label.text for label in response.labels["OUTPUT0"][0]] == ["caf\\xe9", "tea"]


def test_integers_are_compared_exactly(server):
    """Beyond the integers that floats have."""
    value = np.array([2**64 - 2, 2**64 - 1, 0], np.uint64)
    response = server.model("echo_uint64").infer({"INPUT0": value}, labels={"OUTPUT0": 3})
    assert [label.number for label in response.labels["OUTPUT0"][0]] == [1, 0, 2]
    assert response.labels["OUTPUT0"][0][0].value == 2**64 - 1


@pytest.mark.parametrize("with_package", [True, False])
@pytest.mark.parametrize("memory", [None, lambda: np.zeros(3, np.uint16), lambda: bytearray(6)])
def test_labels_of_bf16_are_of_numbers(server, monkeypatch, with_package, memory):
    """And not of bits, of which negative ones are the greatest; whatever the output is then."""
    if not with_package:
        monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    out = {} if memory is None else {"OUTPUT0": memory()}
    _bfloat16.bfloat16.cache_clear()
    try:
        response = server.model("echo_bf16").infer(
            {"INPUT0": [1.0, -3.0, 2.0]}, labels={"OUTPUT0": 3}, out=out
        )
    finally:
        monkeypatch.undo()
        _bfloat16.bfloat16.cache_clear()
    assert response.labels["OUTPUT0"] == [
        [Label("", 2, 2.0), Label("", 0, 1.0), Label("", 1, -3.0)]
    ]
    assert {type(label.value) for label in response.labels["OUTPUT0"][0]} == {float}


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        ({"nope": 1}, InvalidArgumentError, "no output 'nope'"),
        ({"OUTPUT0": 0}, InvalidArgumentError, "1 or more"),
        ({"OUTPUT0": "all"}, TypeError, "must be an int"),
        (["OUTPUT0"], TypeError, "must be a mapping"),
    ],
)
def test_labels_that_cannot_be_are_refused(echo, labels, error, message):
    """Before anything is submitted."""
    with pytest.raises(error, match=message):
        echo.submit({"INPUT0": [1.0]}, labels=labels)


def test_text_has_no_labels(server):
    """BYTES cannot be compared."""
    with pytest.raises(InvalidArgumentError, match=r"'echo_bytes', output 'OUTPUT0'.*BYTES"):
        server.model("echo_bytes").infer({"INPUT0": ["a"]}, labels={"OUTPUT0": 1})


def test_labels_of_an_output_without_memory_are_an_error(echo):
    """The shape alone must not make us ask for as many labels."""
    value = np.zeros(1 << 16, np.float32)
    with pytest.raises(InternalError, match=r"'OUTPUT0'.*262144 bytes, but there are 0"):
        echo.infer({"INPUT0": value}, labels={"OUTPUT0": 1}, parameters={"mode": "no_memory"})


def test_response_parameters_keep_their_types(echo):
    """The model echoes those of the request; int and float at their limits, bool not as int."""
    parameters = {
        "text": "ü\n",
        "empty": "",
        "yes": True,
        "no": False,
        "least": -(2**63),
        "greatest": 2**63 - 1,
        "pi": 3.141592653589793,
        "huge": 1.7976931348623157e308,
    }
    response = echo.infer({"INPUT0": [1.0]}, parameters=parameters)
    assert response.parameters == parameters
    assert {name: type(value) for name, value in response.parameters.items()} == {
        name: type(value) for name, value in parameters.items()
    }


def test_a_request_is_used_by_many_threads_at_once(server):
    """It is only read: no inference writes to it, or shares C structs with another one."""
    model = server.model("batched")
    request = Request(
        {"INPUT0": np.float32([[1, 2]])}, request_id="same", parameters={"number": 7}, priority=0
    )
    with ThreadPoolExecutor(8) as pool:
        responses = list(pool.map(lambda _: model.infer(request), range(400)))
    assert {response.request_id for response in responses} == {"same"}
    assert {response.parameters["number"] for response in responses} == {7}
    assert {tuple(response["OUTPUT0"][0].tolist()) for response in responses} == {(1, 2)}
    assert len({response["OUTPUT0"].ctypes.data for response in responses}) == 400


def test_a_request_is_submitted_again_while_it_is_in_flight(echo, gate):
    """Each time a request of Triton's is made, so that none is shared."""
    value = np.float32([1, 2])
    request = Request({"INPUT0": value}, parameters={"hold": "start"})
    pending = [echo.submit(request) for _ in range(3)]
    gate.wait()
    assert pending[1].cancel()
    gate.open()
    assert [inference.is_cancelled() for inference in pending] == [False, True, False]
    assert pending[0].result()["OUTPUT0"].tolist() == [1, 2]
    assert pending[2].result()["OUTPUT0"].tolist() == [1, 2]
    assert pending[1].wait()


def test_flags_have_names(echo):
    """What a model or a trace is told of a request's flags."""
    response = echo.infer({"INPUT0": [1.0]}, sequence_end=True, parameters={"report": True})
    assert RequestFlag(response.parameters["flags"]) is RequestFlag.SEQUENCE_END


CALLS = {
    "infer": lambda model, **keywords: model.infer(ONE, **keywords),
    "submit": lambda model, **keywords: model.submit(ONE, **keywords),
    "stream": lambda model, **keywords: model.stream(ONE, **keywords),
    "async_infer": lambda model, **keywords: asyncio.run(model.async_infer(ONE, **keywords)),
    "map": lambda model, **keywords: model.map([], **keywords),
    "async_map": lambda model, **keywords: model.async_map([], **keywords),
    "sequence": lambda model, **keywords: model.sequence(7).infer(ONE, **keywords),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("name", "hint"),
    [("time_out", "; did you mean 'timeout'?"), ("output", "; did you mean 'outputs'?"), ("x", "")],
)
def test_an_unknown_keyword_is_refused_in_words_of_the_call(echo, call, name, hint):
    """Not in those of the Request that is made of it."""
    with pytest.raises(TypeError) as caught:
        CALLS[call](echo, **{name: 2})
    assert str(caught.value) == f"model 'echo': there is no keyword {name!r}{hint}"


def test_an_unknown_option_is_refused():
    """Before a server is made."""
    with pytest.raises(TypeError) as caught:
        Server(log_verbos=1)
    assert (
        str(caught.value) == "Server: there is no keyword 'log_verbos'; did you mean 'log_verbose'?"
    )
