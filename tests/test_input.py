# SPDX-License-Identifier: Apache-2.0
"""Inputs in several pieces, as raw bytes, and in memory that numpy cannot read."""

from __future__ import annotations

import gc
import weakref

import ml_dtypes
import numpy as np
import pytest
from _lenders import CudaArray, Driver, Lender
from numpy.lib import NumpyVersion

from tritonffi import (
    Chunks,
    InternalError,
    InvalidArgumentError,
    Raw,
    Request,
    UnavailableError,
    UnsupportedError,
    _cuda,
    _lent,
)
from tritonffi._enums import MemoryType
from tritonffi._native import ffi

# numpy says since 2.1 that what it lends is read-only; before, it lends no such array.
LENDS_READ_ONLY = NumpyVersion(np.__version__) >= "2.1.0"
REPORT = {"report": True}
MASKED = np.ma.masked_array(np.float32([1, 2]), [0, 1])
ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.fixture
def driver(monkeypatch):
    """A CUDA driver that notes what it is asked."""
    made = Driver()
    monkeypatch.setattr(_cuda, "_driver", lambda: made)
    return made


def echo_of(model, value, **keywords):
    """What comes back for INPUT0."""
    return model.infer({"INPUT0": value}, **keywords)["OUTPUT0"]


def test_parts_follow_one_another(server):
    """Triton gets each part where it lies, and the model sees one array."""
    model = server.model("matrix")
    value = Chunks([ROWS[:1], ROWS[1:3], ROWS[3:]])
    response = model.infer({"INPUT0": value}, parameters=REPORT)
    assert response["OUTPUT0"].tolist() == ROWS.tolist()
    assert response.parameters["INPUT0"] == 3
    assert model.infer({"INPUT0": ROWS}, parameters=REPORT).parameters["INPUT0"] == 1


def test_parts_may_be_whatever_inputs_are(server):
    """Lists, strided arrays, arrays without rows."""
    value = Chunks([[[1, 2]], np.float32([[3, 0], [4, 0]]).T[:1], np.empty((0, 2), np.float32)])
    assert echo_of(server.model("matrix"), value).tolist() == [[1, 2], [3, 4]]


def test_texts_come_in_parts(server):
    """Each part is framed by itself."""
    value = Chunks([["a", "bc"], [b"", "é"], np.array(["x"])])
    output = echo_of(server.model("echo_bytes"), value)
    assert output.tolist() == [b"a", b"bc", b"", "é".encode(), b"x"]


def test_bytes_of_any_length_make_a_shape(server):
    """A part need not end where an element ends."""
    data = ROWS.tobytes()
    value = Chunks([data[:5], bytearray(data[5:6]), memoryview(data)[6:]], shape=(4, 3))
    assert echo_of(server.model("matrix"), value).tolist() == ROWS.tolist()
    assert echo_of(server.model("matrix"), Chunks([ROWS], shape=[2, 6])).shape == (2, 6)
    assert echo_of(server.model("matrix"), Chunks([], shape=[0, 6])).shape == (0, 6)


def test_parts_and_arrays_take_turns(server):
    """The structs of one request are used again, and nothing of the parts is left in them."""
    model = server.model("matrix")
    for _ in range(3):
        assert echo_of(model, Chunks([ROWS[:2], ROWS[2:]])).tolist() == ROWS.tolist()
        assert echo_of(model, ROWS).tolist() == ROWS.tolist()


def test_parts_live_until_triton_is_through(server, gate):
    """Every part is held, not only the last."""
    parts = [ROWS[:2].copy(), ROWS[2:].copy()]
    gone = [weakref.ref(part) for part in parts]
    inference = server.model("matrix").submit(
        {"INPUT0": Chunks(parts)}, parameters={"hold": "start"}
    )
    del parts
    gate.wait()
    gc.collect()
    assert [ref() is None for ref in gone] == [False, False]
    gate.release()
    assert inference.result()["OUTPUT0"].tolist() == ROWS.tolist()
    assert [ref() is None for ref in gone] == [True, True]


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (Chunks([]), InvalidArgumentError, "no parts"),
        (Chunks([[MASKED]]), InvalidArgumentError, "part 0: the array has masked elements"),
        (Chunks([ROWS[:, :2], [MASKED]]), InvalidArgumentError, "part 1: the array has masked"),
        (Chunks([[[1, 2]], [[1]]]), InvalidArgumentError, r"part 1: shape \[1,1\].*\[1,2\]"),
        (Chunks([[[1, 2]], 3.0]), InvalidArgumentError, "part 1: a scalar"),
        (Chunks([np.zeros((1, 2))]), InvalidArgumentError, "part 0: expected FP32.*float64"),
        (Chunks([b"1234"]), InvalidArgumentError, "part 0 is bytes: say the shape"),
        (Chunks([b"1234", b"5"], shape=(1, 1)), InvalidArgumentError, "5 bytes.*takes 4"),
        (Chunks([[1.0]]), InvalidArgumentError, r"expected shape \[-1,-1\], got \[1\]"),
        (Chunks([[[None]]]), TypeError, "part 0"),
        (Chunks([ROWS], host_policies={"a": [ROWS[1:]]}), InvalidArgumentError, "'a'.*48 bytes"),
        (Chunks([ROWS], host_policies={"a\0": [ROWS]}), ValueError, "NUL"),
    ],
)
def test_parts_that_do_not_go_together_are_refused(server, value, error, message):
    """Before Triton sees them; the message names the input and the part."""
    with pytest.raises(error, match=message) as caught:
        server.model("matrix").infer({"INPUT0": value})
    assert "model 'matrix', input 'INPUT0'" in str(caught.value)


@pytest.mark.parametrize("parts", [ROWS, b"bytes", "text", None, iter(())])
def test_parts_are_a_list(parts):
    """An array has rows, and a text letters, but nobody means those."""
    with pytest.raises(TypeError, match="Chunks: expected a list"):
        Chunks(parts)


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        ((-1, 0), InvalidArgumentError),
        ((-2, -2), InvalidArgumentError),
        ((2**63, 0), InvalidArgumentError),
        ((2**64, 0), InvalidArgumentError),
        ((1.5,), TypeError),
        (("1",), TypeError),
        ((None,), TypeError),
        (4, TypeError),
    ],
)
def test_a_shape_of_chunks_is_one(shape, kind):
    """Ints, not negative, of 64 bits: nothing is cut off."""
    with pytest.raises(kind, match=r"Chunks: (a shape is ints|this is no shape)"):
        Chunks([], shape=shape)


@pytest.mark.parametrize("shape", [(2**62, 4), (2**32, 2**32), (2**63 - 1, 2**63 - 1)])
def test_a_shape_of_more_elements_than_64_bits_count_is_refused(server, shape):
    """Its product is not one that happens to be small."""
    for name, value in (
        ("matrix", Chunks([], shape=shape)),
        ("echo_bytes", Chunks([], shape=shape)),
        ("matrix", Chunks([b"1234"], shape=shape)),
    ):
        with pytest.raises(
            InvalidArgumentError, match=r"the parts have \d byte|element.*takes \d{19}"
        ):
            server.model(name).infer({"INPUT0": value})


@pytest.mark.parametrize("shape", [(0, 2**60), (2**60, 0)])
def test_a_shape_without_elements_may_be_long(server, shape):
    """As long as numpy can have it."""
    assert echo_of(server.model("matrix"), Chunks([], shape=shape)).shape == shape
    with pytest.raises(InternalError, match=r"OUTPUT0': numpy has no array of shape \[.*\d{19}"):
        echo_of(server.model("matrix"), Chunks([], shape=(4 * shape[0], 4 * shape[1])))


def test_elements_of_texts_are_counted(server):
    """Their bytes say nothing of the shape."""
    value = Chunks([["a", "b"]], shape=(3,))
    with pytest.raises(InvalidArgumentError, match=r"2 elements.*\[3\] takes 3"):
        echo_of(server.model("echo_bytes"), value)


def test_a_host_policy_has_data_of_its_own(server):
    """The instances with that policy read them, the others the data for all."""
    model = server.model("matrix")
    value = Chunks([ROWS], host_policies={"near": [ROWS[:2] + 100, ROWS[2:] + 100]})
    for policy, expected in (("near", ROWS + 100), ("far", ROWS), ("", ROWS)):
        output = echo_of(model, value, parameters={"host_policy": policy})
        assert output.tolist() == expected.tolist()


def test_raw_bytes_get_type_and_shape_from_the_model(server):
    """Alone or by name; one axis may have any length; several parts are one."""
    model = server.model("echo_fp32")
    data = np.float32([1.5, 2.5]).tobytes()
    assert model.infer(Raw(data))["OUTPUT0"].tolist() == [1.5, 2.5]
    assert echo_of(model, Raw(data[:3], bytearray(data[3:]))).tolist() == [1.5, 2.5]
    assert model.infer(Request(Raw(memoryview(data))))["OUTPUT0"].tolist() == [1.5, 2.5]
    assert model.infer({"INPUT0": [3.0]})["OUTPUT0"].tolist() == [3.0]
    assert model.infer(Raw(b""))["OUTPUT0"].tolist() == []


def test_raw_bytes_are_a_batch_of_one(server):
    """Where the model batches."""
    data = np.float32([1, 2, 3, 4]).tobytes()
    assert server.model("batched").infer(Raw(data))["OUTPUT0"].tolist() == [[1, 2, 3, 4]]
    assert server.model("classify").infer(Raw(data))["OUTPUT0"].tolist() == [[1, 2, 3, 4]]


def test_raw_text_is_one_element(server):
    """Triton frames it."""
    model = server.model("document")
    for text in (b"", b"\0 text \0", b"x" * 100_000):
        assert model.infer(Raw(text))["OUTPUT0"].tolist() == [text]


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        ("echo_fp32", b"12345", r"5 raw bytes .*FP32 of shape \[-1\]"),
        ("classify", b"1234", r"4 raw bytes .*FP32 of shape \[4\]"),
        ("matrix", b"1234", "more than one variable-sized"),
        ("echo_bytes", b"1234", r"shape \[1\]"),
        ("mixed", b"1234", "'mixed': Raw stands for the only input, but there are 4"),
    ],
)
def test_raw_bytes_that_do_not_fit_are_refused(server, model, data, message):
    """By us where we know better, by Triton where it has rules of its own."""
    with pytest.raises(InvalidArgumentError, match=message):
        server.model(model).infer(Raw(data))
    with pytest.raises(TypeError, match="Raw takes bytes"):
        Raw("text")


@pytest.mark.parametrize("versioned", [True, False])
def test_dlpack_arrays_are_read_without_a_copy(echo, gate, versioned):
    """What is written while the request waits is what the model reads: the memory is one."""
    memory = np.float32([1, 2, 3])
    lender = Lender(memory, versioned=versioned)
    inference = echo.submit({"INPUT0": lender}, parameters={"hold": "start"})
    gate.wait()
    memory[0] = 9
    gate.release()
    assert inference.result()["OUTPUT0"].tolist() == [9, 2, 3]


def test_read_only_dlpack_is_read(echo):
    """Triton only reads it."""
    memory = np.float32([1, 2])
    memory.setflags(write=False)
    if LENDS_READ_ONLY:
        assert echo_of(echo, Lender(memory)).tolist() == [1, 2]
    else:
        with pytest.raises(TypeError, match=r"dlpack for writeable|Cannot export readonly"):
            echo_of(echo, Lender(memory))


def test_page_locked_dlpack_is_read(echo):
    """And let go when the inference is over."""
    memory = np.float32([1, 2])
    gone = weakref.ref(memory)
    inference = echo.submit({"INPUT0": Lender(memory, device=(3, 0))})
    del memory
    assert inference.result()["OUTPUT0"].tolist() == [1, 2]
    gc.collect()
    assert gone() is None


class Broken(Lender):
    """An array over DLPack whose tensor is changed before it is given away."""

    def __init__(self, memory, change, **keywords):
        """Lend `memory` after `change` was called with the tensor."""
        super().__init__(memory, **keywords)
        self.change = change

    def __dlpack__(self, **keywords):
        """Lend it, changed."""
        capsule = super().__dlpack__(**keywords)
        is_valid, pointer, _ = _lent._capsules()
        name = b"dltensor_versioned" if is_valid(capsule, b"dltensor_versioned") else b"dltensor"
        ctype = "tffi_dlpack_versioned *" if name.endswith(b"versioned") else "tffi_dlpack *"
        self.change(ffi.cast(ctype, pointer(capsule, name)).tensor)
        return capsule


class Bfloat16(Broken):
    """A BF16 array over DLPack, which numpy does not know: uint16, renamed."""

    def __init__(self, memory, **keywords):
        """Lend `memory`."""
        super().__init__(memory, lambda tensor: setattr(tensor.dtype, "code", 4), **keywords)


@pytest.mark.parametrize("versioned", [True, False])
def test_bfloat16_comes_over_dlpack(server, versioned):
    """Which only other libraries have."""
    value = np.array([1.5, -2], ml_dtypes.bfloat16)
    lender = Bfloat16(value.view(np.uint16), versioned=versioned)
    assert echo_of(server.model("echo_bf16"), lender).tobytes() == value.tobytes()
    out = np.zeros(2, np.uint16)
    server.model("echo_bf16").infer(
        {"INPUT0": value}, out={"OUTPUT0": Bfloat16(out, versioned=versioned)}
    )
    assert out.tobytes() == value.tobytes()


@pytest.mark.parametrize("device", [(1, 0), (3, 0)])
def test_the_bits_of_bfloat16_come_over_dlpack(server, device):
    """As uint16, which an array of numpy's may hold too."""
    value = np.array([1.5, -2], ml_dtypes.bfloat16)
    lender = Lender(value.view(np.uint16), device=device)
    for data in (lender, Chunks([lender])):
        assert echo_of(server.model("echo_bf16"), data).tobytes() == value.tobytes()
    with pytest.raises(InvalidArgumentError, match="expected BF16, got an array of INT16"):
        echo_of(server.model("echo_bf16"), Lender(value.view(np.int16), device=device))


class Both(Lender):
    """An array over DLPack and over numpy's protocol."""

    def __array__(self, dtype=None, copy=None):
        """Return the array."""
        if self.memory is None:
            raise TypeError("no array")
        return self.memory


def test_an_array_does_where_its_dlpack_does_not(server):
    """The one of numpy has no BF16; and what is not in C order is copied."""
    model = server.model("echo_bf16")
    value = np.array([1.5, 0, -2], ml_dtypes.bfloat16)
    for data in (value, value[::2], value.view(np.uint16)[::2]):
        for given in (Both(data), Chunks([Both(data)])):
            assert echo_of(model, given).tobytes() == data.tobytes()
    with pytest.raises(TypeError, match="this Both does not lend its memory"):
        echo_of(model, Both(None))


@pytest.mark.parametrize(
    ("field", "value", "error", "message"),
    [
        ("data", ffi.NULL, InvalidArgumentError, "has no memory for its 8 bytes: it was freed"),
        ("shape", ffi.NULL, TypeError, "is broken: it has no shape"),
        ("ndim", -1, TypeError, "is broken: it has no shape"),
    ],
)
def test_dlpack_tensors_that_are_none_are_refused(echo, field, value, error, message):
    """As one whose storage was freed; as an input and as memory for an output."""
    pinned = {"device": (3, 0)}  # others numpy reads by itself

    def broken(**keywords):
        return Broken(np.float32([1, 2]), lambda tensor: setattr(tensor, field, value), **keywords)

    with pytest.raises(error, match=f"input 'INPUT0': this Broken {message}|Broken {message}"):
        echo.infer({"INPUT0": broken(**pinned)})
    with pytest.raises(error, match=f"output 'OUTPUT0': out.*Broken {message}"):
        echo.infer({"INPUT0": np.float32([1, 2])}, out={"OUTPUT0": broken()})


def test_a_negative_size_is_refused(echo):
    """And a device that cannot be said."""

    def turn(tensor):
        tensor.shape[0] = -2

    with pytest.raises(InvalidArgumentError, match=r"has the shape \[-2\], with a negative size"):
        echo.infer({"INPUT0": Broken(np.float32([1, 2]), turn, device=(3, 0))})
    with pytest.raises(TypeError, match="'INPUT0': this Lender does not say where it is"):
        echo.infer({"INPUT0": Lender(np.float32([1, 2]), device=((), 0))})


def test_memory_of_a_gpu_goes_to_triton_as_such(echo, driver):
    """The backend of the tests refuses it, which is how we know that it came to be seen."""
    lender = Lender(np.float32([1, 2]), device=(2, 1))
    with pytest.raises(UnsupportedError, match="an input is in GPU memory"):
        echo_of(echo, lender)
    assert set(lender.streams) == {1}
    assert ("cuDeviceGet", 1) in driver.calls
    assert ("cuStreamSynchronize", 1) in driver.calls
    assert [call[0] for call in driver.calls][-2:] == [
        "cuCtxPopCurrent_v2",
        "cuDevicePrimaryCtxRelease_v2",
    ]


@pytest.mark.parametrize("stream", [None, 1, 7])
def test_a_cuda_array_says_its_stream(echo, driver, stream):
    """It is waited for; None is nothing to wait for."""
    value = CudaArray(np.float32([1, 2]), stream=stream)
    with pytest.raises(UnsupportedError, match="an input is in GPU memory"):
        echo_of(echo, value)
    waits = [call for call in driver.calls if call[0] == "cuStreamSynchronize"]
    assert waits == ([] if stream is None else [("cuStreamSynchronize", stream)])
    assert ("cuDeviceGet", 5) in driver.calls or stream is None


def test_memory_of_a_gpu_as_a_part(echo, driver):
    """Also beside memory of the CPU."""
    value = Chunks([[1.0], Lender(np.float32([2]), device=(2, 0))])
    with pytest.raises(UnsupportedError, match="an input is in GPU memory"):
        echo_of(echo, value)


def test_outputs_go_to_memory_of_a_gpu(echo, driver):
    """Triton is told so: the backend of the tests sees it and refuses."""
    out = Lender(np.zeros(2, np.float32), device=(2, 0))
    with pytest.raises(UnsupportedError, match="got GPU memory for an output"):
        echo.infer({"INPUT0": [1.0, 2.0]}, out={"OUTPUT0": out})
    with pytest.raises(InvalidArgumentError, match=r"'OUTPUT0': labels need .* memory of a GPU"):
        echo.infer({"INPUT0": [1.0, 2.0]}, out={"OUTPUT0": out}, labels={"OUTPUT0": 1})
    assert out.memory.tolist() == [0, 0]


def test_a_model_may_ask_where_an_output_will_be(echo):
    """Before it makes it: in the memory that was given, or in CPU memory."""
    memory = np.zeros(1, np.float32)
    for out, expected in (
        ({}, MemoryType.CPU * 10),
        ({"OUTPUT0": memory}, MemoryType.CPU * 10),
        ({"OUTPUT0": Lender(memory, device=(3, 2))}, MemoryType.CPU_PINNED * 10 + 2),
    ):
        response = echo.infer({"INPUT0": [1.0]}, out=out, parameters=REPORT)
        assert response.parameters["OUTPUT0"] == expected


def test_without_a_driver_there_is_no_gpu_memory(echo, monkeypatch):
    """An error that says so, and nothing is submitted."""
    monkeypatch.setattr(_cuda, "_LIBRARY", "libno-cuda.so.1")
    _cuda._driver.cache_clear()
    with pytest.raises(UnavailableError, match=r"GPU memory, but libno-cuda\.so\.1"):
        echo_of(echo, Lender(np.float32([1]), device=(2, 0)))
    with pytest.raises(UnavailableError, match=r"GPU memory, but libno-cuda\.so\.1"):
        echo_of(echo, CudaArray(np.float32([1])))


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (Lender(np.float32([1]), device=(10, 0)), InvalidArgumentError, "device type 10"),
        (Lender(np.float64([1]), device=(3, 0)), InvalidArgumentError, "FP32.*FP64"),
        (Lender(np.complex64([1]), device=(3, 0)), InvalidArgumentError, "64 bits"),
        (Lender(np.float32([[1, 2]])[:, 0], device=(3, 0)), None, None),
        (Lender(np.zeros((2, 2), "f4")[:, 0], device=(3, 0)), InvalidArgumentError, "C order"),
        (Lender(object(), device=(3, 0)), TypeError, "does not lend its memory"),
        (CudaArray(np.float32([1]), typestr="<c8"), InvalidArgumentError, "complex64"),
        (CudaArray(np.float32([1, 2]), strides=(8,)), InvalidArgumentError, "C order"),
        (CudaArray(np.float32([1]), mask=1), InvalidArgumentError, "mask"),
        (CudaArray(np.float32([1]), data=None), TypeError, "broken"),
        (CudaArray(np.float32([1]), strides=(4, 4)), TypeError, "broken"),
        (CudaArray(np.float32([1]), strides=("x",)), TypeError, "broken"),
        (CudaArray(np.float32([1]), stream="x"), TypeError, "broken"),
    ],
)
def test_what_triton_cannot_read_is_refused(echo, driver, value, error, message):
    """The message names the input."""
    if error is None:
        assert echo_of(echo, value).tolist() == [1]
        return
    with pytest.raises(error, match=f"model 'echo', input 'INPUT0'.*{message}"):
        echo_of(echo, value)


def test_an_output_without_memory_is_no_array_of_numbers(echo):
    """A model may name an output and ask for no memory: an error where it holds something."""
    with pytest.raises(
        InternalError, match=r"'echo', output 'OUTPUT0': .*8 bytes, but there are 0"
    ):
        echo.infer({"INPUT0": [1.0, 2.0]}, parameters={"mode": "no_memory"})
    response = echo.infer({"INPUT0": np.empty(0, "f4")}, parameters={"mode": "no_memory"})
    assert response["OUTPUT0"].tolist() == []
