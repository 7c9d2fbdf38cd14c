# SPDX-License-Identifier: Apache-2.0
"""Members of enums, and other values with a class of their own, are taken for what they hold."""

from __future__ import annotations

from enum import Enum, IntEnum

import _backend
import numpy as np
import pytest
from _functions import FP32

from tritonffi import InternalError, InvalidArgumentError, Result, ServerOptions
from tritonffi._load_input import contents_of

ONE = {"INPUT0": [1.0]}


def asked(*_arguments):
    """Fail: what a value says of itself does not matter."""
    raise AssertionError


class Code(IntEnum):
    """A number with a name."""

    OK = 7
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = asked
    __hash__ = int.__hash__


class Whole(int):
    """A number that says nothing of itself."""

    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __str__ = __repr__ = __index__ = asked
    __hash__ = int.__hash__


class Real(float):
    """The same with a fraction."""

    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __str__ = __repr__ = __float__ = asked
    __hash__ = float.__hash__


class Text(str):
    """A text that says nothing of itself."""

    __slots__ = ()
    __str__ = __format__ = __len__ = __contains__ = encode = asked


class Content(bytes):
    """Bytes that say nothing of themselves."""

    __len__ = __bytes__ = asked


class Name(str, Enum):  # of a StrEnum `str` makes what it holds
    """Texts with names, of which `str` makes others."""

    MODEL = "plain"
    FOLDER = "one"
    RENAMED = "renamed"
    X = "x"
    Y = "y"
    FILE = "1/weights.bin"


VALUES = [
    pytest.param(Whole(-(2**63)), -(2**63), id="int"),
    pytest.param(Code.OK, 7, id="IntEnum"),
    pytest.param(Real(1.5), 1.5, id="float"),
    pytest.param(Text("text"), "text", id="str"),
    pytest.param(Name.FILE, "1/weights.bin", id="str and Enum"),
]


@pytest.mark.parametrize(("value", "plain"), VALUES)
def test_a_parameter_of_a_request_is_what_it_holds(echo, value, plain):
    """Nothing of it is asked: a comparison with each number of 64 bits would never end."""
    said = echo.infer(ONE, parameters={Name.X: value}).parameters
    assert said == {"x": plain}
    assert [type(one) for one in said.values()] == [type(plain)]


@pytest.mark.parametrize(("value", "plain"), VALUES)
def test_a_parameter_of_a_result_is_what_it_holds(load, value, plain):
    """As one of a request."""
    model = load(lambda x: Result(x, {Name.X: value}))
    said = model.infer({"x": [1.0]}).parameters
    assert said == {"x": plain}
    assert [type(one) for one in said.values()] == [type(plain)]


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1])
def test_a_parameter_beyond_64_bits_is_refused(echo, load, number):
    """The message has the number."""
    words = f"parameter 'p' does not fit into 64 bits: {number}"
    with pytest.raises(InvalidArgumentError, match=words):
        echo.infer(ONE, parameters={"p": Whole(number)})
    model = load(lambda x: Result(x, {"p": Whole(number)}))
    with pytest.raises(InternalError, match=f"InvalidArgumentError: the response: {words}"):
        model.infer({"x": [1.0]})


@pytest.mark.parametrize(
    "name", [Name.MODEL, Text("plain"), np.str_("plain")], ids=["Enum", "str", "numpy"]
)
def test_the_name_of_a_function_is_what_it_holds(server, name):
    """Its folder has that name too, and all calls take it."""
    folder = server._lifecycle.repository
    before = set(folder.iterdir())
    model = server.load_function(name, lambda x: x, inputs={"x": FP32}, outputs={"y": FP32})
    try:
        assert set(folder.iterdir()) - before <= {folder / "plain"}
        assert (model.name, type(model.name)) == ("plain", str)
        again = server.model(name)
        assert type(again.name) is str
        assert again.infer({"x": [2.0]})["y"].tolist() == [2.0]
        assert model.statistics().inference_count == 1
    finally:
        server.unload(name)
    assert "plain" not in server._lifecycle.functions
    assert not model.is_ready()


def test_the_inputs_and_outputs_of_a_function_are_what_they_hold(server):
    """So are those of a request."""
    seen = []

    def function(**inputs):
        seen.extend((name, type(name)) for name in inputs)
        return {Name.Y: inputs["x"] + 1}

    server.load_function(
        "plain", function, inputs={Name.X: (Text("FP32"), [-1])}, outputs={Name.Y: FP32}
    )
    try:
        model = server.model("plain")
        response = model.infer({Name.X: [2.0]}, outputs=[Name.Y])
    finally:
        server.unload("plain")
    assert seen == [("x", str)]
    assert [(name, type(name)) for name in response] == [("y", str)]
    assert response["y"].tolist() == [3.0]


@pytest.mark.parametrize("text", [Name.X, Text("x")], ids=["Enum", "str"])
def test_the_id_of_a_request_comes_back_as_what_it_holds(echo, text):
    """With the inference, the response and each of a stream."""
    inference = echo.submit(ONE, request_id=text)
    with echo.stream(ONE, request_id=text) as stream:
        ids = [inference.request_id, inference.result().request_id, stream.request_id]
        ids += [response.request_id for response in stream]
    assert [(one, type(one)) for one in ids] == [("x", str)] * 4


def test_files_of_a_load_are_what_they_hold():
    """Paths and contents."""
    contents = contents_of("m", {}, {Name.FILE: Content(b"abc"), Text("2/a"): b""})
    assert contents == {"1/weights.bin": b"abc", "2/a": b""}
    assert {(type(path), type(content)) for path, content in contents.items()} == {(str, bytes)}


def test_a_repository_s_names_are_what_they_hold(server, tmp_path):
    """Its path, and those of its folders and models."""
    _backend.write_model(tmp_path, "one", {"INPUT0": ("FP32", [-1])})
    place = Text(tmp_path)
    server.register_repository(place, {Name.FOLDER: Name.RENAMED})
    try:
        assert server._lifecycle.registered[str(tmp_path)] == {"one": "renamed"}
        model = server.load(Name.RENAMED)
        assert type(model.name) is str
        assert model.infer(ONE)["OUTPUT0"].tolist() == [1.0]
        server.unload("renamed")
    finally:
        server.unregister_repository(place)


def test_options_are_what_they_hold():
    """Names, paths, and settings that become texts."""
    options = ServerOptions(
        Text("/models"),
        server_id=Name.MODEL,
        model_config_name=Name.X,
        startup_models=[Name.MODEL, "two"],
        log_verbose=Code.OK,
        backend_config={"": {"a": Code.OK, "b": Whole(2), "c": Real(0.5), Name.X: Name.Y}},
    )
    assert options.paths("model_repository") == ["/models"]
    assert [type(path) for path in options.paths("model_repository")] == [str]
    assert options.startup_models == ["plain", "two"]
    texts = [options.model_repository, options.server_id, options.model_config_name]
    texts += options.startup_models
    assert {type(text) for text in texts} == {str}
    calls = [arguments for _, arguments, what in options.calls() if "backend_config" in what]
    assert calls == [
        (b"", b"a", b"7"),
        (b"", b"b", b"2"),
        (b"", b"c", b"0.5"),
        (b"", b"x", b"y"),
    ]
    numbers = [arguments for _, arguments, what in options.calls() if "log_verbose" in what]
    assert numbers == [(7,)]
    assert type(numbers[0][0]) is int
