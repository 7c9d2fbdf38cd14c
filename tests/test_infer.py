# SPDX-License-Identifier: Apache-2.0
"""Inference through the real server: every data type and layout, names, checks, keywords."""

from __future__ import annotations

import gc
import sys
import threading

import numpy as np
import pytest

import tritonffi
from tritonffi import (
    CancelledError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    Request,
    UnavailableError,
)

NUMBERS = {
    "bool": [True, False, True],
    "uint8": [0, 1, 2**8 - 1],
    "uint16": [0, 1, 2**16 - 1],
    "uint32": [0, 1, 2**32 - 1],
    "uint64": [0, 1, 2**64 - 1],
    "int8": [-(2**7), 0, 2**7 - 1],
    "int16": [-(2**15), 0, 2**15 - 1],
    "int32": [-(2**31), 0, 2**31 - 1],
    "int64": [-(2**63), 0, 2**63 - 1],
    "float16": [-65504.0, 0.0, np.inf],
    "float32": [-1.5, np.nan, 3.4028234663852886e38],
    "float64": [5e-324, -0.0, -np.inf],
}
MODELS = {
    "bool": "bool",
    "float16": "fp16",
    "float32": "fp32",
    "float64": "fp64",
} | {f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}


def grid(rows=3, columns=4):
    """An FP32 matrix whose every element differs."""
    return np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)


def read_only(array):
    """The array, not writable."""
    array.flags.writeable = False
    return array


LAYOUTS = {
    "plain": grid(),
    "read-only": read_only(grid()),
    "Fortran": np.asfortranarray(grid()),
    "transposed": grid().T,
    "strided": grid(6, 8)[::2, ::3],
    "reversed": grid()[::-1, ::-1],
    "broadcast": np.broadcast_to(np.float32([1, 2, 3]), (4, 3)),
    "big-endian": grid().astype(">f4"),
    "unaligned": np.frombuffer(b"x" + grid().tobytes(), np.float32, offset=1).reshape(3, 4),
    "no rows": np.empty((0, 4), np.float32),
    "no columns": np.empty((3, 0), np.float32),
    "list": [[1.0, 2.0], [3.0, 4.5]],
    "tuple of arrays": (np.float32([1, 2]), np.float32([3, 4])),
    "memoryview": memoryview(grid()),
    "one element, odd strides": np.lib.stride_tricks.as_strided(grid(), (1, 1), (12345, 7)),
}


@pytest.mark.parametrize("dtype", NUMBERS)
def test_every_numeric_type_returns_bit_for_bit(server, dtype):
    """The largest and smallest value of each type come back exactly, and as that type."""
    array = np.array(NUMBERS[dtype], dtype)
    output = server.model(f"echo_{MODELS[dtype]}").infer({"INPUT0": array})["OUTPUT0"]
    assert output.dtype == array.dtype
    assert output.shape == array.shape
    assert output.tobytes() == array.tobytes()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_arrives_right(server, layout):
    """What is not in C order or native bytes is copied once, with the right values."""
    value = LAYOUTS[layout]
    output = server.model("matrix").infer({"INPUT0": value})["OUTPUT0"]
    expected = np.asarray(value, dtype=np.float32)
    assert output.dtype == np.float32
    assert output.dtype.isnative
    assert output.shape == expected.shape
    assert output.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([b"", b"a\0", b"\0b\0\0", b"\xff\xfe"], [b"", b"a\0", b"\0b\0\0", b"\xff\xfe"]),
        (["", "é", "日本語", "a\0b\0"], [b"", "é".encode(), "日本語".encode(), b"a\0b\0"]),
        (np.array([b"ab", "c\0", bytearray(b"d")], object), [b"ab", b"c\0", b"d"]),
        (np.array([b"x\0y", b"long one"]), [b"x\0y", b"long one"]),
        (np.array(["ü", ""]), ["ü".encode(), b""]),
        ([], []),
        (np.array([], object), []),
    ],
)
def test_bytes_return_exactly(server, value, expected):
    """Text is UTF-8; every byte counts, NUL and trailing NUL too."""
    output = server.model("echo_bytes").infer({"INPUT0": value})["OUTPUT0"]
    assert output.dtype == object
    assert output.tolist() == expected


@pytest.mark.parametrize(
    ("value", "where"), [([b"a", None], "1"), ([b"a", b"b", 7], "2"), (np.array([1.5]), "")]
)
def test_bytes_refuse_what_is_no_text(server, value, where):
    """None and numbers are refused with their index, never turned into text."""
    with pytest.raises((TypeError, InvalidArgumentError), match=f"'echo_bytes'.*'INPUT0'.*{where}"):
        server.model("echo_bytes").infer({"INPUT0": value})


def test_several_inputs_keep_their_types(server):
    """Inputs of four types in one request, in any order, come back under their own names."""
    response = server.model("mixed").infer(
        {
            "INPUT2": ["one", "two"],
            "flag": [True],
            "INPUT0": np.float32([1.5]),
            "INPUT1": [[1, 2], [3, 4]],
        }
    )
    assert sorted(response) == ["OUTPUT0", "OUTPUT1", "OUTPUT2", "flag"]
    assert response["OUTPUT0"].tolist() == [1.5]
    assert response["OUTPUT1"].tolist() == [[1, 2], [3, 4]]
    assert response["OUTPUT1"].dtype == np.int64
    assert response["OUTPUT2"].tolist() == [b"one", b"two"]
    assert response["flag"].tolist() == [True]


def test_an_optional_input_may_be_left_out(server):
    """The output of the input that was not given is not there either."""
    inputs = {"INPUT0": [1.0], "INPUT1": [[1, 2]], "INPUT2": ["x"]}
    assert "flag" not in server.model("mixed").infer(inputs)


def test_only_wanted_outputs_come(server):
    """`outputs` chooses; asking for another one later is a KeyError that says what there is."""
    inputs = {"INPUT0": [1.0], "INPUT1": [[1, 2]], "INPUT2": ["x"]}
    response = server.model("mixed").infer(inputs, outputs=["OUTPUT2"])
    assert list(response) == ["OUTPUT2"]
    with pytest.raises(KeyError, match=r"no output 'OUTPUT0' in the response .'OUTPUT2'."):
        response["OUTPUT0"]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "model 'echo': input 'INPUT0' is missing .it takes 'INPUT0'."),
        (
            {"INPUT0": [1.0], "x": [1.0]},
            "model 'echo': there is no input 'x' .it takes 'INPUT0'.",
        ),
        (
            {"INPUT0": np.float64([1.0])},
            "model 'echo', input 'INPUT0': expected FP32 .float32., got an array of float64",
        ),
        (
            {"INPUT0": np.zeros((1, 2), np.float32)},
            r"model 'echo', input 'INPUT0': expected shape \[-1\], got \[1,2\]",
        ),
    ],
)
def test_wrong_inputs_are_refused_by_name(echo, inputs, message):
    """Errors name the model and the input, and say what was expected and what came."""
    with pytest.raises(InvalidArgumentError, match=message):
        echo.infer(inputs)


def test_a_batch_over_the_limit_is_refused(server):
    """The model's max_batch_size is checked before Triton sees the request."""
    model = server.model("batched")
    with pytest.raises(InvalidArgumentError, match="a batch of at most 8, got 9"):
        model.infer({"INPUT0": np.zeros((9, 2), np.float32)})
    with pytest.raises(InvalidArgumentError, match="the first axis is the batch"):
        model.infer({"INPUT0": np.zeros(2, np.float32)})
    with pytest.raises(InvalidArgumentError, match="the batch is empty"):
        model.infer({"INPUT0": np.zeros((0, 2), np.float32)})
    assert model.infer({"INPUT0": np.ones((8, 2), np.float32)})["OUTPUT0"].shape == (8, 2)


@pytest.mark.parametrize("inputs", [None, [1.0], "INPUT0", 3])
def test_inputs_must_be_a_mapping(echo, inputs):
    """Anything else is a TypeError that says so."""
    with pytest.raises(TypeError, match="model 'echo': inputs must be a mapping"):
        echo.infer(inputs)


def test_parameters_keep_their_types(echo):
    """A bool stays a bool, integers have 64 bits, floats are doubles, text is UTF-8."""
    sent = {"yes": True, "no": False, "big": 2**63 - 1, "low": -(2**63), "pi": 0.1, "text": "é"}
    response = echo.infer({"INPUT0": [1.0]}, parameters=sent)
    assert response.parameters == sent
    assert {name: type(value) for name, value in response.parameters.items()} == {
        name: type(value) for name, value in sent.items()
    }


def test_what_a_response_does_not_say_is_empty_and_its_own(echo):
    """Parameters and labels of a response without any can be written to, and to no other's."""
    response, other = (echo.infer({"INPUT0": [1.0]}) for _ in range(2))
    response.parameters["mine"] = 1
    response.labels["OUTPUT0"] = []
    assert (response.parameters, response.labels) == ({"mine": 1}, {"OUTPUT0": []})
    assert (other.parameters, other.labels) == ({}, {})
    with pytest.raises(AttributeError, match="'Response' object has no attribute 'outputs'"):
        _ = response.outputs


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"x": 2**63}, InvalidArgumentError, "parameter 'x' does not fit into 64 bits"),
        ({"x": None}, TypeError, "parameter 'x' must be a str, bool, int or float, not NoneType"),
        ({"x": [1]}, TypeError, "not list"),
        ({1: "x"}, TypeError, "name of a parameter must be a str"),
        ("x", TypeError, "parameters must be a mapping"),
    ],
)
def test_wrong_parameters_are_refused(echo, parameters, error, message):
    """Nothing is turned into text or cut to size silently."""
    with pytest.raises(error, match=message):
        echo.infer({"INPUT0": [1.0]}, parameters=parameters)


def test_what_is_said_with_a_request_arrives(echo):
    """Id, priority, queue timeout, correlation id and sequence flags reach the backend."""
    response = echo.infer(
        {"INPUT0": [1.0]},
        request_id="r-1",
        queue_timeout=1.5,
        correlation_id="a sequence",
        sequence_start=True,
        sequence_end=True,
        parameters={"report": True},
    )
    assert response.request_id == "r-1"
    assert response.parameters["id"] == "r-1"
    assert response.parameters["correlation_id"] == "a sequence"
    assert response.parameters["flags"] == 3
    assert response.parameters["timeout_us"] == 1_500_000


def test_more_shapes_than_are_remembered(echo):
    """What was worked out for outputs of a shape is forgotten at some time, and right again."""
    for size in [*range(700), 3, 600, 3]:
        numbers = np.arange(size, dtype=np.float32)
        response = echo.infer({"INPUT0": numbers})
        assert response["OUTPUT0"].tolist() == numbers.tolist()


def test_more_parameters_than_are_remembered(echo):
    """Each response has its own, whether others had the same or not; a change of them is too."""
    for i in [*range(700), 3, 3, 600]:
        response = echo.infer({"INPUT0": [1.0]}, request_id=str(i), parameters={"report": True})
        assert response.parameters["id"] == str(i)
        response.parameters["id"] = "changed"
        response.parameters["more"] = True


def test_nothing_said_is_left_for_the_next_request(echo):
    """The structs of one request are used again, but not what went with it."""
    echo.infer({"INPUT0": [1.0]}, request_id="first", correlation_id=7, parameters={"x": 1})
    response = echo.infer({"INPUT0": [1.0]}, parameters={"report": True})
    assert response.request_id == ""
    assert response.parameters["id"] == ""
    assert response.parameters["correlation_id"] == 0


@pytest.mark.parametrize(
    ("keywords", "error"),
    [
        ({"priority": -1}, InvalidArgumentError),
        ({"priority": 1.0}, TypeError),
        ({"timeout": -1}, InvalidArgumentError),
        ({"timeout": "1"}, TypeError),
        ({"queue_timeout": float("nan")}, InvalidArgumentError),
        ({"outputs": "OUTPUT0"}, TypeError),
        ({"outputs": ["OUTPUT0", "OUTPUT0"]}, InvalidArgumentError),
        ({"outputs": ["nope"]}, InvalidArgumentError),
        ({"correlation_id": "x" * 129}, InvalidArgumentError),
        ({"correlation_id": -1}, InvalidArgumentError),
        ({"sequence_start": 1}, TypeError),
        ({"request_id": b"x"}, TypeError),
        ({"request_id": "a\0b"}, ValueError),
        ({"no_such_keyword": 1}, TypeError),
    ],
)
def test_wrong_keywords_are_refused(echo, keywords, error):
    """Wrong types are TypeErrors, wrong values InvalidArgumentErrors, before Triton is called."""
    with pytest.raises(error):
        echo.infer({"INPUT0": [1.0]}, **keywords)


def test_a_request_object_says_the_same(echo):
    """A Request may be used again, and takes no further keywords."""
    request = Request({"INPUT0": [2.5]}, request_id="again")
    for _ in range(2):
        response = echo.infer(request)
        assert response["OUTPUT0"].tolist() == [2.5]
        assert response.request_id == "again"
    with pytest.raises(TypeError, match="no further request_id"):
        echo.infer(request, request_id="other")


def test_outputs_are_views_without_a_copy(echo):
    """The memory that Triton wrote into is the array's, page-aligned, and writable."""
    output = echo.infer({"INPUT0": np.ones(4096, np.float32)})["OUTPUT0"]
    assert not output.flags.owndata
    assert output.ctypes.data % 4096 == 0
    output[0] = 5.0
    assert output[:2].tolist() == [5.0, 1.0]


def test_a_view_of_a_view_keeps_the_memory(echo):
    """Dropping response and array leaves the view's memory alone; the last view frees it."""
    view = echo.infer({"INPUT0": np.arange(5000, dtype=np.float32)})["OUTPUT0"][10:20][::2]
    gc.collect()
    for _ in range(50):
        echo.infer({"INPUT0": np.zeros(5000, np.float32)})
    assert view.tolist() == [10.0, 12.0, 14.0, 16.0, 18.0]


def test_results_come_to_their_own_inference(echo):
    """Many in flight: each result is that of its own input, in whatever order they are asked."""
    inferences = [echo.submit({"INPUT0": np.float32([i])}) for i in range(500)]
    for i in reversed(range(500)):
        assert inferences[i].result()["OUTPUT0"].tolist() == [float(i)]


def test_a_dropped_inference_leaves_nothing(echo):
    """Its completion is taken by a later call; counters are checked after every test."""
    for _ in range(20):
        echo.submit({"INPUT0": np.zeros(3000, np.float32)})
    echo.infer({"INPUT0": [1.0]})
    while echo.server._lifecycle.queue.in_flight:
        echo.infer({"INPUT0": [1.0]})


def test_result_may_be_asked_twice(echo):
    """The same response is returned, and nothing is waited for."""
    inference = echo.submit({"INPUT0": [1.0]})
    assert inference.result() is inference.result()
    assert inference.done()


def test_two_threads_may_wait_for_one_inference(echo, gate):
    """Both get the response."""
    inference = echo.submit({"INPUT0": [4.0]}, parameters={"hold": "start"})
    gate.wait()
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(inference.result()["OUTPUT0"].tolist()))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    gate.release()
    for thread in threads:
        thread.join()
    assert results == [[4.0]] * 4


@pytest.mark.parametrize("order", ["final_first", "release_first"])
def test_inputs_are_kept_until_response_and_release_were_seen(echo, gate, order):
    """Between the two, in either order, the inference is not over and its input is held."""
    memory = bytearray(np.arange(4, dtype=np.float32).tobytes())
    array = np.frombuffer(memory, np.float32)
    inference = echo.submit({"INPUT0": array}, parameters={"hold": "between", "order": order})
    del array
    gate.wait()
    assert not inference.done()
    with pytest.raises(BufferError):
        memory.clear()
    gate.release()
    assert inference.result()["OUTPUT0"].tolist() == [0.0, 1.0, 2.0, 3.0]
    memory.clear()


def test_errors_of_the_model_are_raised_with_its_name(echo):
    """Code and text are the model's own."""
    parameters = {"mode": "error", "error_code": "UNAVAILABLE", "error_text": "out of tea"}
    with pytest.raises(UnavailableError, match=r"model 'echo': .*out of tea"):
        echo.infer({"INPUT0": [1.0]}, parameters=parameters)
    with pytest.raises(InternalError):
        echo.infer({"INPUT0": [1.0]}, parameters={"mode": "error"})


def test_a_response_without_outputs_is_empty(echo):
    """No outputs is not an error."""
    assert dict(echo.infer({"INPUT0": [1.0]}, parameters={"mode": "no_output"})) == {}


def test_an_unknown_model_is_not_found(server):
    """The error names it."""
    with pytest.raises(NotFoundError, match="model 'nope'"):
        server.model("nope").infer({"x": [1.0]})


def test_timeout_cancels(echo, gate):
    """The request's own timeout raises TimeoutError and cancels; the model goes on."""
    inference = echo.submit({"INPUT0": [1.0]}, timeout=0.05, parameters={"hold": "start"})
    gate.wait()
    with pytest.raises(TimeoutError, match=r"model 'echo': no result within 0.05 s"):
        inference.result()
    assert inference.is_cancelled()
    gate.release()
    while not inference.is_over:
        inference.queue.wait(inference, None)
    assert echo.infer({"INPUT0": [2.0]})["OUTPUT0"].tolist() == [2.0]


def test_a_timeout_of_result_does_not_cancel(echo, gate):
    """The inference goes on and can be asked again."""
    inference = echo.submit({"INPUT0": [1.0]}, parameters={"hold": "start"})
    gate.wait()
    with pytest.raises(TimeoutError, match="it goes on"):
        inference.result(timeout=0.01)
    assert not inference.is_cancelled()
    gate.release()
    assert inference.result()["OUTPUT0"].tolist() == [1.0]


def test_cancel_makes_a_cancelled_error(echo, gate):
    """A request that is cancelled at the gate ends with CancelledError; later it is too late."""
    inference = echo.submit({"INPUT0": [1.0]}, parameters={"hold": "start"})
    gate.wait()
    assert inference.cancel()
    with pytest.raises(CancelledError, match="model 'echo'"):
        inference.result()
    assert not inference.cancel()


def test_threads_share_a_model(echo):
    """Eight threads infer at once, each with its own values."""
    failures = []

    def work(number):
        for i in range(200):
            value = float(number * 1000 + i)
            if echo.infer({"INPUT0": np.float32([value, -value])})["OUTPUT0"].tolist() != [
                value,
                -value,
            ]:
                failures.append(value)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_what_an_array_raises_is_told_with_its_input(echo):
    """As it is, where it is not what reading an array usually raises."""

    class Divided:
        def __array__(self, dtype=None, copy=None):
            raise ZeroDivisionError("by nothing")

    for value in (Divided(), [Divided()]):
        with pytest.raises(ZeroDivisionError, match="by nothing") as caught:
            echo.infer({"INPUT0": value})
        if sys.version_info >= (3, 11):
            assert caught.value.__notes__ == ["in model 'echo', input 'INPUT0'"]


def test_a_response_is_a_mapping(echo):
    """It has the ways of a dict, and says what it is."""
    response = echo.infer({"INPUT0": [1.0, 2.0]})
    assert list(response) == ["OUTPUT0"]
    assert len(response) == 1
    assert "OUTPUT0" in response
    assert response.model_name == "echo"
    assert response.model_version == 1
    assert repr(response) == "<Response of 'echo' version 1: OUTPUT0: float32[2]>"
    assert isinstance(response, tritonffi.Response)


def test_a_decoupled_model_must_answer_infer_once(server):
    """One response is returned; none or several are a clear error."""
    model = server.model("stream")
    inputs = {"INPUT0": np.int32([7])}
    assert model.infer({**inputs, "COUNT": [1]})["OUTPUT0"].tolist() == [7]
    for count in (0, 3):
        with pytest.raises(InvalidArgumentError, match=f"sent {count} responses where one"):
            model.infer({**inputs, "COUNT": [count]})
