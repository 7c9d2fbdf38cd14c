# SPDX-License-Identifier: Apache-2.0
"""Inferences that are alike, and those that only begin so: each has the arrays of its own."""

from __future__ import annotations

import asyncio
import gc
import pickle
import random
import weakref

import _backend
import ml_dtypes
import numpy as np
import pytest

from tritonffi import InvalidArgumentError, Raw, Request, Server, TritonError

TWO = {"INPUT0": ("FP32", [-1]), "INPUT1": ("FP32", [-1])}


@pytest.fixture(scope="module")
def server(tmp_path_factory, backend_directory):
    """A server with a model of two inputs, one of seven, and one of BF16."""
    models = tmp_path_factory.mktemp("models")
    _backend.write_model(models, "two", TWO)
    _backend.write_model(models, "seven", {f"INPUT{i}": ("FP32", [-1]) for i in range(7)})
    _backend.write_model(models, "bf16", {"INPUT0": ("BF16", [-1])})
    _backend.write_model(models, "int64", {"INPUT0": ("INT64", [-1])})
    with Server(models, backend_directory=backend_directory) as server:
        yield server


def array(*numbers, dtype=np.float32):
    """Return what most inputs here are."""
    return np.array(numbers, dtype)


async def listed(responses):
    """Read an asynchronous map to its end."""
    return [response async for response in responses]


def in_order(model, items):
    """By `map`."""
    return list(model.map(items, in_flight=8, return_errors=True))


def as_completed(model, items):
    """By an unordered `map`, put into order by an id."""
    named = [
        item if isinstance(item, Request) else Request(item, request_id=str(i))
        for i, item in enumerate(items)
    ]
    found = list(model.map(named, in_flight=8, ordered=False, return_errors=True))
    refused = [outcome for outcome in found if isinstance(outcome, Exception)]
    by_id = {int(response.request_id): response for response in found if response not in refused}
    return [by_id.get(i) or refused.pop() for i in range(len(items))]


def in_a_loop(model, items):
    """By `async_map`."""

    async def main():
        return await listed(model.async_map(items, in_flight=8, return_errors=True))

    return asyncio.run(main())


def prepared(model, items):
    """By the `map` of a prepared call."""
    return in_order(model.prepare(items[0]), items)


SECOND = {
    "longer": array(2, 2, 2),
    "list": [2.0, 2.0],
    "strided": array(2, 0, 2, 0)[::2],
    "backwards": array(2, 2)[::-1],
    "big-endian": array(2, 2, dtype=">f4"),
    "wrong dtype": array(2, 2, dtype=np.int16),
    "no array": object(),
}


@pytest.mark.parametrize("second", SECOND)
@pytest.mark.parametrize("way", [in_order, as_completed, in_a_loop, prepared])
def test_what_begins_alike_takes_nothing_from_the_one_before(server, way, second):
    """The first input of the second item fits, and is not yet the first item's."""
    items = [
        {"INPUT0": array(1, 1), "INPUT1": array(1, 1)},
        {"INPUT0": array(2, 2), "INPUT1": SECOND[second]},
        {"INPUT0": array(3, 3), "INPUT1": array(3, 3)},
    ]
    first, middle, last = way(server.model("two"), items)
    for response, number in ((first, 1), (last, 3)):
        assert response["OUTPUT0"].tolist() == [number] * 2
        assert response["OUTPUT1"].tolist() == [number] * 2
    if isinstance(middle, Exception):
        assert "'two', input 'INPUT1'" in str(middle)
        assert way is prepared or second in ("wrong dtype", "no array")
    else:
        assert middle["OUTPUT0"].tolist() == [2, 2]
        assert set(middle["OUTPUT1"].tolist()) == {2}


def test_a_misspelt_name_takes_nothing_either(server):
    """Nor one name too many or too few."""
    good = {"INPUT0": array(1), "INPUT1": array(1)}
    for bad in (
        {"INPUT0": array(2), "INPUT2": array(2)},
        {"INPUT0": array(2)},
        {"INPUT0": array(2), "INPUT1": array(2), "INPUT2": array(2)},
    ):
        for way in (in_order, in_a_loop, prepared):
            first, middle, last = way(server.model("two"), [good, bad, good])
            assert first["OUTPUT0"].tolist() == last["OUTPUT0"].tolist() == [1]
            assert isinstance(middle, InvalidArgumentError)


def test_any_mixture_gives_each_its_own(server):
    """Of lengths, layouts, orders of names, keywords and errors, one after the other."""
    chance = random.Random(20261130)
    model = server.model("two")

    def tensor(number):
        values = [float(number)] * chance.choice([1, 2, 2, 2, 2, 5])
        kind = chance.choice(["array"] * 6 + ["list", "strided", "equal", "wrong"])
        if kind == "list":
            return values, False
        if kind == "strided":
            return np.repeat(array(*values), 2)[::2], False
        if kind == "equal":
            return pickle.loads(pickle.dumps(array(*values))), False
        return array(*values, dtype=np.int32 if kind == "wrong" else np.float32), kind == "wrong"

    for _ in range(40):
        items, expected = [], []
        for number in range(chance.randrange(1, 20)):
            (one, is_wrong), (two, is_wrong_too) = tensor(number), tensor(-number)
            pairs = [("INPUT0", one), ("INPUT1", two)]
            chance.shuffle(pairs)
            said = dict(pairs)
            items.append(Request(said, request_id="r") if chance.random() < 0.1 else said)
            expected.append(
                None
                if is_wrong or is_wrong_too
                else (np.asarray(one).tolist(), np.asarray(two).tolist())
            )
        way = chance.choice([in_order, in_a_loop])
        found = [
            None
            if isinstance(response, InvalidArgumentError)
            else (response["OUTPUT0"].tolist(), response["OUTPUT1"].tolist())
            for response in way(model, items)
        ]
        assert found == expected


@pytest.mark.parametrize(
    "value",
    [
        pickle.loads(pickle.dumps(array(1, 2, dtype=np.int64))),
        array(1, 2, dtype=np.longlong),
        array(1, 2, dtype=np.dtype(np.int64, metadata={"of": "ours"})),
        np.frombuffer(array(1, 2, dtype=np.int64), np.dtype("<i8").newbyteorder("=")),
    ],
    ids=["pickle", "longlong", "metadata", "byte order"],
)
def test_a_prepared_call_takes_equal_dtypes(server, value):
    """They are other objects than the usual ones, in arrays of other processes and libraries."""
    model = server.model("int64")
    for example in (value, array(0, 0, dtype=np.int64)):
        call = model.prepare({"INPUT0": example})
        assert call.infer({"INPUT0": value})["OUTPUT0"].tolist() == [1, 2]
        responses = call.map([{"INPUT0": value}, {"INPUT0": value + 1}])
        assert [r["OUTPUT0"].tolist() for r in responses] == [[1, 2], [2, 3]]


def test_a_prepared_call_takes_bf16_in_both_forms(server):
    """As `infer` does: of ml_dtypes, and as the 16 bits."""
    value = np.array([1, 2], ml_dtypes.bfloat16)
    for example in (value, value.view(np.uint16)):
        call = server.model("bf16").prepare({"INPUT0": example})
        for given in (value, value.view(np.uint16)):
            answer = call.infer({"INPUT0": given})["OUTPUT0"]
            assert answer.view(np.uint16).tolist() == value.view(np.uint16).tolist()
        with pytest.raises(InvalidArgumentError, match="not for an array of bfloat16 of shape"):
            call.infer({"INPUT0": np.zeros(3, ml_dtypes.bfloat16)})


def test_names_in_any_order_are_one_request(server):
    """So that memory does not grow with the orders, of which seven names have 5,040."""
    model = server.model("seven")
    chance = random.Random(7)
    names = [f"INPUT{i}" for i in range(7)]
    call = model.prepare({name: array(0) for name in names})
    for _ in range(400):
        chance.shuffle(names)
        inputs = {name: array(int(name[-1])) for name in names}
        for response in (model.infer(inputs), call.infer(inputs)):
            assert [response[f"OUTPUT{i}"].tolist() for i in range(7)] == [[i] for i in range(7)]
    for starter in (model._starter, call._starter):
        templates = {id(home): home for home in starter._templates.values()}
        assert len(starter._templates) <= 258
        assert sum(map(len, templates.values())) == 1


def test_raw_is_the_input_that_there_is_now(tmp_path, backend_directory):
    """Also where the model was loaded anew behind the handle's back, with another input."""
    _backend.write_model(tmp_path, "one", {"INPUT0": ("FP32", [2])})
    with Server(tmp_path, backend_directory=backend_directory) as server:
        model = server.model("one")
        assert model.infer(Raw(array(1, 2).tobytes()))["OUTPUT0"].tolist() == [1, 2]
        tensor = {"data_type": "TYPE_FP32", "dims": [3]}
        server.load(
            "one",
            {
                "backend": "tffitest",
                "input": [{"name": "INPUT1", **tensor}],
                "output": [{"name": "OUTPUT1", **tensor}],
            },
        )
        model._starter._changes = lib_changes()  # as if nobody had seen the load
        raw = Raw(array(1, 2, 3).tobytes())
        assert model.infer(raw)["OUTPUT1"].tolist() == [1, 2, 3]


def test_what_another_thread_has_seen_of_a_reload_is_tried_once_more(tmp_path, backend_directory):
    """Inputs fail against what the model took before, though the handle knows better by then."""
    _backend.write_model(tmp_path, "one", {"INPUT0": ("FP32", [2])})
    with Server(tmp_path, backend_directory=backend_directory) as server:
        model = server.model("one")
        model.infer({"INPUT0": array(1, 2)})
        tensor = {"data_type": "TYPE_FP32", "dims": [3]}

        class Late(dict):
            def __getitem__(self, name):
                if not seen:
                    server.load(
                        "one",
                        {
                            "backend": "tffitest",
                            "input": [{"name": "INPUT0", **tensor}],
                            "output": [{"name": "OUTPUT0", **tensor}],
                        },
                    )
                    seen.append(model.infer({"INPUT0": array(1, 2, 3)}))
                return super().__getitem__(name)

        seen = []
        inputs = Late(INPUT0=array(4, 5, 6))
        assert model.infer(inputs)["OUTPUT0"].tolist() == [4, 5, 6]
        with pytest.raises(InvalidArgumentError, match="'one', input 'INPUT0'"):
            model.infer({"INPUT0": array(1, 2)})


def lib_changes():
    """What handles compare to see whether a model may have changed."""
    from tritonffi._starter import model_changes  # noqa: PLC0415

    return model_changes[0]


def test_an_inference_that_failed_lets_go_of_the_memory_for_its_outputs():
    """It is kept for its error alone."""

    class Memory(bytearray):
        """One that can be watched."""

    def fail(x):
        raise ValueError(x.shape)

    with Server() as server:
        spec = ("FP32", [-1])
        model = server.load_function("fail", fail, inputs={"x": spec}, outputs={"y": spec})
        memory = Memory(16)
        watch = weakref.ref(memory)
        inference = model.submit({"x": array(1, 2, 3, 4)}, out={"y": memory}, timeout=60)
        with pytest.raises(TritonError, match=r"\(4,\)"):
            inference.result()
        assert (inference.model_name, inference.request_id, inference.timeout) == ("fail", "", 60)
        del memory
        gc.collect()
        assert watch() is None
