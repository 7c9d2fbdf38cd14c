# SPDX-License-Identifier: Apache-2.0
"""Outputs into the caller's own memory: every kind of it, and what is refused."""

from __future__ import annotations

import array
import asyncio
import gc
import mmap
import subprocess
import sys
import tracemalloc
import weakref

import ml_dtypes
import numpy as np
import pytest
from _backend import write_model
from conftest import counters

from tritonffi import Chunks, InternalError, InvalidArgumentError, Request, Server

THREE = np.float32([1.5, -2.0, 3.25])


class Lender:
    """An array that is offered over DLPack alone, as another library would."""

    def __init__(self, memory, *, device=None, versioned=True):
        """Lend `memory`, perhaps under the name of another device."""
        self.memory = memory
        self.device = device
        self.versioned = versioned

    def __dlpack_device__(self):
        """Say where it is."""
        return self.device or self.memory.__dlpack_device__()

    def __dlpack__(self, **keywords):
        """Lend it."""
        if not self.versioned and "max_version" in keywords:
            raise TypeError("unexpected keyword max_version")
        return self.memory.__dlpack__(**keywords)


def infer(model, out, **keywords):
    """Echo THREE into `out`."""
    return model.infer({"INPUT0": THREE}, out={"OUTPUT0": out}, **keywords)


def test_the_response_holds_the_callers_own_array(echo):
    """No buffer of ours is involved, and the object is the very one that was given."""
    out = np.full(3, 7, np.float32)
    before = counters()
    response = infer(echo, out)
    assert response["OUTPUT0"] is out
    assert counters() == before
    assert out.tolist() == THREE.tolist()


def test_a_part_of_a_larger_array_is_written_and_no_byte_beside_it(echo):
    """A row of a matrix is as good as an array of its own."""
    frame = np.full((3, 3), 9, np.float32)
    infer(echo, frame[1])
    assert frame.tolist() == [[9, 9, 9], THREE.tolist(), [9, 9, 9]]


@pytest.mark.parametrize("size", [11, 13, 0, 16])
def test_another_size_is_an_error_and_nothing_is_written(echo, size):
    """The message has the output and both sizes; the memory stays as it was."""
    out = bytearray(b"x" * size)
    with pytest.raises(InvalidArgumentError, match=rf"'echo'.*'OUTPUT0'.* 12 bytes.* {size} "):
        infer(echo, out)
    assert out == b"x" * size


@pytest.mark.parametrize(
    "make",
    [
        lambda: bytearray(12),
        lambda: memoryview(bytearray(20))[4:16],
        lambda: mmap.mmap(-1, 12),
    ],
)
def test_a_buffer_of_bytes_gets_an_array_over_it(echo, make):
    """The array has the output's type and shape, and keeps the buffer."""
    out = make()
    result = infer(echo, out)["OUTPUT0"]
    assert (result.dtype, result.shape) == (np.float32, (3,))
    assert bytes(memoryview(out)) == THREE.tobytes()
    memoryview(out)[:4] = np.float32([99]).tobytes()
    assert result.tolist() == [99, -2.0, 3.25]


def test_a_typed_buffer_must_have_the_type(echo):
    """array.array says what its elements are."""
    out = array.array("f", [0, 0, 0])
    assert infer(echo, out)["OUTPUT0"].tolist() == THREE.tolist()
    assert out.tolist() == THREE.tolist()
    with pytest.raises(InvalidArgumentError, match=r"expected FP32.*int32"):
        infer(echo, array.array("i", [0, 0, 0]))


@pytest.mark.parametrize("versioned", [True, False])
def test_dlpack_memory_is_written(echo, versioned):
    """Capsules with and without a version; the result is an array over the same memory."""
    memory = np.zeros(3, np.float32)
    lender = Lender(memory, versioned=versioned)
    result = infer(echo, lender)["OUTPUT0"]
    assert memory.tolist() == THREE.tolist()
    memory[0] = 5
    assert result.tolist() == [5, -2.0, 3.25]
    gone = weakref.ref(memory)
    del memory, lender
    gc.collect()
    assert gone() is not None
    assert result.tolist() == [5, -2.0, 3.25]
    del result
    gc.collect()
    assert gone() is None


def test_page_locked_memory_is_written(echo):
    """What says that it is CUDA's page-locked CPU memory goes to Triton as just that."""
    memory = np.zeros(3, np.float32)
    result = infer(echo, Lender(memory, device=(3, 0)))["OUTPUT0"]
    assert memory.tolist() == result.tolist() == THREE.tolist()


@pytest.mark.parametrize(
    ("dtype", "model"), [("float16", "fp16"), ("bool", "bool"), ("int64", "int64")]
)
def test_every_type_has_its_array(server, dtype, model):
    """The dtype of the array is that of the output."""
    value = np.array([0, 1, 1], dtype)
    out = np.empty(3, dtype)
    server.model(f"echo_{model}").infer({"INPUT0": value}, out={"OUTPUT0": out})
    assert out.tolist() == value.tolist()


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.uint16])
def test_bfloat16_goes_into_both_its_types(server, dtype):
    """ml_dtypes' own, or the bits in uint16."""
    value = np.array([1, -2, 3], ml_dtypes.bfloat16)
    out = np.empty(3, dtype)
    response = server.model("echo_bf16").infer({"INPUT0": value}, out={"OUTPUT0": out})
    assert response["OUTPUT0"] is out
    assert out.tobytes() == value.tobytes()


def read_only():
    """An array that cannot be written to."""
    value = np.zeros(3, np.float32)
    value.setflags(write=False)
    return value


REFUSED = {
    "read-only array": (read_only(), "read-only"),
    "bytes": (b"x" * 12, "read-only"),
    "strided": (np.zeros((3, 2), np.float32)[:, 0], "C order"),
    "strided DLPack": (Lender(np.zeros((3, 2), np.float32)[:, 0]), "C order"),
    "unaligned": (np.frombuffer(bytearray(13), np.float32, 3, offset=1), "aligned"),
    "wrong type": (np.zeros(3, np.float64), "FP32.*float64"),
    "wrong type DLPack": (Lender(np.zeros(3, np.int32)), "FP32, got INT32"),
    "byte-swapped": (np.zeros(3, ">f4"), "FP32"),
    "objects": (np.zeros(3, object), "FP32"),
    "wrong rank": (np.zeros((1, 3), np.float32), r"\[-1\], got \[1,3\]"),
    "wrong rank DLPack": (Lender(np.zeros((1, 3), np.float32)), r"\[-1\], got \[1,3\]"),
    "another device": (Lender(np.zeros(3, np.float32), device=(10, 0)), "device type 10"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_an_output_cannot_go_into_is_refused_before_triton(echo, case):
    """The message names the model and the output."""
    out, reason = REFUSED[case]
    with pytest.raises(InvalidArgumentError, match=f"model 'echo', output 'OUTPUT0': .*{reason}"):
        infer(echo, out)


def test_read_only_dlpack_is_refused(echo):
    """By its producer, where that cannot even say that it is read-only."""
    with pytest.raises(
        (InvalidArgumentError, TypeError), match=r"'OUTPUT0': out.*(read-?only|writeable)"
    ):
        infer(echo, Lender(read_only()))


@pytest.mark.parametrize("out", [None, 3, "text", [0.0] * 3, np.ma.zeros(3, "f4")])
def test_what_is_no_memory_is_a_type_error(echo, out):
    """Lists are copied by numpy, so nobody would see the result."""
    with pytest.raises(TypeError, match="model 'echo', output 'OUTPUT0'"):
        infer(echo, out)


def test_names_are_checked(server, echo):
    """Against the model, and against the outputs that are asked for."""
    out = np.zeros(3, np.float32)
    with pytest.raises(InvalidArgumentError, match=r"no output 'nope'.*'OUTPUT0'"):
        echo.infer({"INPUT0": THREE}, out={"nope": out})
    with pytest.raises(TypeError, match="out must be a mapping"):
        echo.infer({"INPUT0": THREE}, out=[out])
    inputs = {"INPUT0": THREE, "INPUT1": [[1, 2]], "INPUT2": ["a"], "flag": [True]}
    with pytest.raises(InvalidArgumentError, match="out names output 'OUTPUT0', but outputs"):
        server.model("mixed").infer(inputs, outputs=["flag"], out={"OUTPUT0": out})


def test_bytes_and_decoupled_models_have_no_out(server):
    """BYTES have no fixed size, and several responses do not fit into one array."""
    with pytest.raises(InvalidArgumentError, match=r"'echo_bytes', output 'OUTPUT0'.*BYTES"):
        server.model("echo_bytes").infer({"INPUT0": ["a"]}, out={"OUTPUT0": bytearray(5)})
    model = server.model("stream")
    name = next(iter(output["name"] for output in model.metadata()["outputs"]))
    with pytest.raises(InvalidArgumentError, match=r"'stream'.*decoupled"):
        model.submit(
            {spec["name"]: [1] for spec in model.metadata()["inputs"]}, out={name: bytearray(4)}
        )


def test_outputs_must_not_share_memory(server):
    """Two outputs into one place would be a race."""
    memory = np.zeros(16, np.uint8)
    inputs = {"INPUT0": [1.0], "INPUT1": [[1, 2]], "INPUT2": ["a"], "flag": [True]}
    out = {"OUTPUT0": memory[12:].view("f4"), "OUTPUT1": memory.view("i8").reshape(1, 2)}
    with pytest.raises(InvalidArgumentError, match="'OUTPUT1' and 'OUTPUT0' overlaps"):
        server.model("mixed").infer(inputs, out=out)


def test_a_shape_of_the_same_size_is_still_another_one(server):
    """The response is held against the array's shape, not only its size."""
    out = np.zeros((3, 2), np.float32)
    with pytest.raises(InvalidArgumentError, match=r"'OUTPUT0'.*\[3,2\].*\[2,3\]"):
        server.model("matrix").infer({"INPUT0": np.ones((2, 3), np.float32)}, out={"OUTPUT0": out})


def test_a_missing_output_is_an_error(echo):
    """Else the caller would read what was in the array before."""
    with pytest.raises(InternalError, match=r"'echo'.*no output 'OUTPUT0'"):
        infer(echo, np.zeros(3, np.float32), parameters={"mode": "no_output"})


def test_an_empty_output_goes_into_an_empty_array(echo):
    """No bytes are a size like any other."""
    out = np.empty(0, np.float32)
    response = echo.infer({"INPUT0": np.empty(0, np.float32)}, out={"OUTPUT0": out})
    assert response["OUTPUT0"] is out


def test_only_some_outputs_go_into_memory(server):
    """The others come as always."""
    out = np.empty((1, 2), np.int64)
    inputs = {"INPUT0": [1.5], "INPUT1": [[4, 5]], "INPUT2": ["a"], "flag": [True]}
    response = server.model("mixed").infer(inputs, out={"OUTPUT1": out})
    assert response["OUTPUT1"] is out
    assert out.tolist() == [[4, 5]]
    assert response["OUTPUT0"].tolist() == [1.5]
    assert response["OUTPUT2"].tolist() == [b"a"]


def test_every_request_of_a_batch_has_its_own_memory(server):
    """The dynamic batcher runs them together, each into the row that was given."""
    model = server.model("batched")
    rows = np.zeros((8, 1, 2), np.float32)
    pending = [
        model.submit({"INPUT0": np.float32([[i, -i]])}, out={"OUTPUT0": rows[i]}) for i in range(8)
    ]
    for inference in pending:
        inference.result()
    assert rows[:, 0].tolist() == [[i, -i] for i in range(8)]


def test_the_memory_lives_as_long_as_triton_may_write_to_it(server, gate):
    """A dropped inference keeps its array until it is over."""
    out = np.zeros(3, np.float32)
    gone = weakref.ref(out)
    inference = server.model("echo").submit(
        {"INPUT0": THREE}, out={"OUTPUT0": out}, parameters={"hold": "start"}
    )
    gate.wait()
    del out, inference
    gc.collect()
    assert gone() is not None
    gate.release()
    assert server._lifecycle.queue.settle(float("inf"))
    gc.collect()
    assert gone() is None


def test_a_request_is_used_again(echo):
    """Its memory is written anew each time."""
    out = np.zeros(3, np.float32)
    value = np.zeros(3, np.float32)
    request = Request({"INPUT0": value}, out={"OUTPUT0": out})
    for i in range(3):
        value[:] = i
        assert echo.infer(request)["OUTPUT0"] is out
        assert out.tolist() == [i, i, i]


def test_the_next_request_without_out_is_not_affected(echo):
    """The memory belongs to one inference."""
    out = np.zeros(3, np.float32)
    infer(echo, out)
    other = echo.infer({"INPUT0": [7.0, 8.0, 9.0]})["OUTPUT0"]
    assert other.tolist() == [7, 8, 9]
    assert out.tolist() == THREE.tolist()


def test_functions_write_there_too(server):
    """The rows of a batch go each to its own memory, by the package's own backend."""
    model = server.load_function(
        "out_function",
        lambda x: {"y": x * 2},
        inputs={"x": ("FP32", [2])},
        outputs={"y": ("FP32", [2])},
        max_batch_size=8,
        config={"dynamic_batching": {}},
    )
    try:
        frame = np.zeros((4, 1, 2), np.float32)
        pending = [model.submit({"x": [[i, 1]]}, out={"y": frame[i]}) for i in range(4)]
        assert all(np.shares_memory(one.result()["y"], frame) for one in pending)
        assert frame[:, 0].tolist() == [[0, 2], [2, 2], [4, 2], [6, 2]]
        with pytest.raises(InvalidArgumentError, match=r"'out_function'.*'y'.* 8 bytes.* 16 "):
            model.infer({"x": [[1, 1]]}, out={"y": bytearray(16)})
    finally:
        server.unload("out_function")


ENSEMBLE = """
platform: "ensemble"
input { name: "IN" data_type: TYPE_FP32 dims: [-1] }
output { name: "OUT" data_type: TYPE_FP32 dims: [-1] }
ensemble_scheduling { step {
  model_name: "part" model_version: -1
  input_map { key: "INPUT0" value: "IN" } output_map { key: "OUTPUT0" value: "OUT" }
} }
"""


def test_ensembles_write_there_too(tmp_path, backend_directory):
    """They make the response themselves."""
    write_model(tmp_path, "part", {"INPUT0": ("FP32", [-1])})
    (tmp_path / "whole" / "1").mkdir(parents=True)
    (tmp_path / "whole" / "config.pbtxt").write_text(ENSEMBLE)
    with Server(tmp_path, backend_directory=backend_directory) as server:
        out = np.zeros(3, np.float32)
        response = server.model("whole").infer({"IN": THREE}, out={"OUT": out})
        assert response["OUT"] is out
        assert out.tolist() == THREE.tolist()
        with pytest.raises(InvalidArgumentError, match=r"12 bytes.* 16 "):
            server.model("whole").infer({"IN": THREE}, out={"OUT": bytearray(16)})


CACHED = """
import sys
import numpy as np
import tritonffi

repository, backends = sys.argv[1:]
value = np.float32([1.5, -2])
with tritonffi.Server(
    repository, backend_directory=backends, cache_config={"local": {"size": 1 << 20}}
) as server:
    model = server.model("part")
    for _ in range(3):
        out = np.zeros(2, np.float32)
        assert model.infer({"INPUT0": value}, out={"OUTPUT0": out})["OUTPUT0"] is out
        assert out.tolist() == [1.5, -2]

    assert model.statistics().cache_hit.count == 2
    try:
        model.infer({"INPUT0": value}, out={"OUTPUT0": bytearray(4)})
    except tritonffi.InvalidArgumentError as error:
        print(error)
"""


def test_cached_responses_are_written_there_too(tmp_path, backend_directory):
    """On the very thread that submits. A process has one cache, so this is another process."""
    write_model(
        tmp_path, "part", {"INPUT0": ("FP32", [-1])}, extra="response_cache { enable: true }"
    )
    done = subprocess.run(
        [sys.executable, "-c", CACHED, str(tmp_path), str(backend_directory)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "'OUTPUT0': the model gives 8 bytes, but 'out' has 4 for it" in done.stdout


def test_nothing_is_copied_in_python(echo):
    """16 MB in and out take no memory of that order in Python, and none in the pool."""
    value = np.ones(4 << 20, np.float32)
    out = np.zeros_like(value)
    before = counters()
    tracemalloc.start()
    try:
        echo.infer({"INPUT0": value}, out={"OUTPUT0": out})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < value.nbytes / 2
    assert counters() == before
    assert out.sum() == value.size


def test_every_way_of_asking_writes_there(server):
    """`map`, `stream` and `async_infer` too, with inputs in pieces, each into its own row."""
    model = server.model("batched")
    frame = np.zeros((40, 1, 2), np.float32)

    def requests():
        for i, row in enumerate(frame):
            parts = Chunks([np.float32([[i, -i]])], host_policies={"other": [[[0.0, 0.0]]]})
            yield Request({"INPUT0": parts}, out={"OUTPUT0": row}, labels={"OUTPUT0": 1})

    expected = [[[i, -i]] for i in range(40)]
    responses = list(model.map(requests(), in_flight=8))
    assert frame.tolist() == expected
    assert [response.labels["OUTPUT0"][0][0].value for response in responses] == list(range(40))

    frame[:] = 0
    for request in requests():
        assert len(list(model.stream(request))) == 1
    assert frame.tolist() == expected

    async def ask():
        await asyncio.gather(*(model.async_infer(request) for request in requests()))

    frame[:] = 0
    asyncio.run(ask())
    assert frame.tolist() == expected
