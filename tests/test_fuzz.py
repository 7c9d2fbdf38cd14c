# SPDX-License-Identifier: Apache-2.0
"""Whatever is given, by any name: the right result or a clear Python error, and never a crash."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tritonffi import Chunks, Raw, Server, ServerOptions, TritonError

# What the caller may be told: these classes, with a text that says more than nothing.
ERRORS = (TritonError, TypeError, ValueError, OverflowError, MemoryError)

few = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

NASTY_TEXT = st.one_of(
    st.sampled_from(["", ".", "..", "../echo", "a/b", "\0", "echo\0", "é", "\ud800", "x" * 10_000]),
    st.text(max_size=20),
)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), NASTY_TEXT, st.binary(max_size=20)
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text(max_size=5), inner, max_size=3),
        st.tuples(inner, inner),
    ),
    max_leaves=8,
)


def attempt(call):
    """Call, and take an error that is one of ours and says something."""
    try:
        return call()
    except ERRORS as error:
        if not str(error):
            raise
        return None


@pytest.fixture(scope="module")
def still_well(server):
    """A check that the server goes on."""
    model = server.model("echo")

    def check():
        assert model.infer({"INPUT0": [7.0]})["OUTPUT0"].tolist() == [7.0]

    return check


@pytest.fixture(scope="module")
def function(server):
    """Calls a function model that returns what a callable makes."""
    made = []
    model = server.load_function(
        "returns",
        lambda a: made.pop()(),
        inputs={"a": ("FP32", [-1])},
        outputs={"b": ("FP32", [-1, -1])},
    )

    def call(make):
        made.append(make)
        return model.infer({"a": [1.0]})

    yield call
    server.unload("returns")


@few
@given(
    array=hnp.arrays(
        dtype=st.one_of(hnp.scalar_dtypes(), hnp.byte_string_dtypes()),
        shape=hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
    ),
    layout=st.tuples(st.sampled_from([1, -1, 2, -2]), st.sampled_from("CF")),
    datatype=st.sampled_from(["fp32", "int8", "uint64", "bool", "bytes", "fp16", "bf16"]),
)
def test_any_array_is_echoed_or_refused(server, still_well, array, layout, datatype):
    """Bytes come back as they went in; a dtype that differs is never cast."""
    step, order = layout
    view = np.asarray(array, order=order)
    if view.ndim:
        view = view[::step]
    response = attempt(lambda: server.model(f"echo_{datatype}").infer({"INPUT0": view}))
    if response is not None:
        output = response["OUTPUT0"]
        assert output.shape == view.shape
        if datatype == "bytes":
            assert [bytes(item) for item in view.ravel()] == output.ravel().tolist()
        else:
            assert output.tobytes() == view.astype(view.dtype.newbyteorder("=")).tobytes()
    still_well()


@few
@given(value=ANYTHING, datatype=st.sampled_from(["fp32", "int64", "bool", "bytes", "bf16"]))
def test_any_value_is_taken_or_refused(server, still_well, value, datatype):
    """Lists, dicts, texts, None, nested at will."""
    attempt(lambda: server.model(f"echo_{datatype}").infer({"INPUT0": value}))
    still_well()


SIZES = st.one_of(
    st.integers(-2, 3), st.sampled_from([2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64])
)


class Lender:
    """Offers an array of any shape and strides, over memory that may be much less."""

    def __init__(self, shape, strides, typestr):
        """Only 64 bytes are there."""
        self.memory = np.zeros(16, np.float32)
        self.__array_interface__ = {
            "shape": shape,
            "strides": strides,
            "typestr": typestr,
            "data": (self.memory.ctypes.data, False),
            "version": 3,
        }


@few
@given(
    shape=st.lists(SIZES, max_size=4).map(tuple),
    parts=st.lists(st.one_of(st.binary(max_size=16), st.lists(st.floats(width=32), max_size=4))),
    datatype=st.sampled_from(["fp32", "int64", "bytes"]),
)
def test_any_shape_of_pieces_is_taken_or_refused(server, still_well, shape, parts, datatype):
    """Negative, too many, of a product that is past 64 bits, or past the data."""
    model = server.model(f"echo_{datatype}")
    response = attempt(lambda: model.infer({"INPUT0": Chunks(parts, shape=shape)}))
    if response is not None:
        assert response["OUTPUT0"].shape == shape
    attempt(lambda: model.infer(Raw(*[part for part in parts if isinstance(part, bytes)])))
    still_well()


@few
@given(
    # None of which there may be memory for: 2**40 of one byte is too much.
    shape=st.lists(st.one_of(st.integers(-2, 3), st.sampled_from([2**40, 2**62, 2**64]))).map(
        tuple
    ),
    repeated=st.booleans(),
    kind=st.sampled_from(["<f4", ">f4", "|u1", "<i8", "|S4", "<f2", "nonsense"]),
)
def test_any_shape_that_an_object_offers_is_taken_or_refused(
    server, function, shape, repeated, kind
):
    """As an input, as `out`, and as the result of a function: never read past what there is."""
    if not repeated and 8 < math.prod(shape) < 2**62:
        return  # a lie that nobody can find out

    def lender():
        return Lender(tuple(shape), (0,) * len(shape) if repeated else None, kind)

    attempt(lambda: server.model("echo").infer({"INPUT0": lender()}))
    attempt(lambda: server.model("echo").infer({"INPUT0": [1.0]}, out={"OUTPUT0": lender()}))
    attempt(lambda: function(lambda: {"b": lender()}))


class Result(dict):
    """A mapping that does not keep to what it says."""

    def __len__(self):
        """Say something else."""
        return 7

    def __iter__(self):
        """Give what is not there."""
        yield from ("b", 3, None)


@few
@given(
    value=ANYTHING,
    wrap=st.sampled_from([lambda v: v, lambda v: {"b": v}, lambda v: Result(b=v), lambda v: [v]]),
)
def test_any_result_of_a_function_is_sent_or_refused(function, still_well, value, wrap):
    """What it returns is checked, whatever it is and whatever it does when it is looked at."""
    attempt(lambda: function(lambda: wrap(value)))
    still_well()


@few
@given(name=NASTY_TEXT, version=st.one_of(st.integers(), SCALARS))
def test_any_name_is_looked_up_or_refused(server, still_well, name, version):
    """Of models, inputs and outputs; a path is no name."""
    for call in (
        lambda: server.model(name, version).infer({"INPUT0": [1.0]}),
        lambda: server.model(name).metadata(),
        lambda: server.model(name).is_ready(),
        lambda: server.load(name),
        lambda: server.unload(name, timeout=5),
        lambda: server.model("echo").infer({name: [1.0]}),
        lambda: server.model("echo").infer({"INPUT0": [1.0]}, outputs=[name]),
    ):
        if name in ("echo", "INPUT0", "OUTPUT0"):
            continue
        attempt(call)
    still_well()


@few
@given(
    keywords=st.fixed_dictionaries(
        {},
        optional={
            "outputs": st.one_of(SCALARS, st.lists(NASTY_TEXT, max_size=3)),
            "parameters": st.one_of(SCALARS, st.dictionaries(NASTY_TEXT, ANYTHING, max_size=3)),
            "request_id": SCALARS,
            "priority": st.one_of(SCALARS, st.integers(-1, 2**64)),
            "queue_timeout": SCALARS,
            "correlation_id": st.one_of(SCALARS, st.integers(-1, 2**64)),
            "sequence_start": SCALARS,
            "sequence_end": SCALARS,
        },
    )
)
def test_any_keyword_is_taken_or_refused(server, still_well, keywords):
    """Ranges, types, NUL, nesting; what Triton gets is what was said."""
    attempt(lambda: server.model("echo").infer({"INPUT0": [1.0]}, **keywords))
    still_well()


@few
@given(config=st.one_of(ANYTHING, st.dictionaries(NASTY_TEXT, ANYTHING, max_size=4)))
def test_any_config_is_loaded_or_refused(server, still_well, config):
    """Wrong keys, wrong types, what is no JSON: an error, and the model that was there stays."""
    if config is not None:
        attempt(lambda: server.load("fuzzed", config, timeout=30))
    still_well()


@few
@given(
    options=st.dictionaries(
        st.sampled_from(sorted(ServerOptions.__dataclass_fields__)), ANYTHING, max_size=3
    )
)
def test_any_option_is_taken_or_refused(options):
    """Before anything has started."""
    attempt(lambda: ServerOptions(**options))


@few
@given(arguments=st.tuples(ANYTHING, ANYTHING), size=ANYTHING)
def test_any_function_is_declared_or_refused(server, still_well, arguments, size):
    """Descriptions of inputs and outputs of any kind."""
    inputs, outputs = arguments
    attempt(
        lambda: server.load_function(
            "fuzzed_function", lambda **x: x, inputs=inputs, outputs=outputs, max_batch_size=size
        )
    )
    attempt(lambda: server.unload("fuzzed_function", timeout=5))
    still_well()


def test_names_that_are_paths_never_leave_the_repository(tmp_path):
    """Nothing is written outside, whatever the name."""
    before = sorted(tmp_path.parent.rglob("*"))
    with Server() as server:
        for name in ("../escaped", "/tmp/escaped", "a/../../escaped", "..", "."):
            with pytest.raises(ERRORS):
                server.load(name, {"backend": "tffitest"})
    assert sorted(tmp_path.parent.rglob("*")) == before
