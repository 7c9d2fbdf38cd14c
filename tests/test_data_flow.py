# SPDX-License-Identifier: Apache-2.0
"""Configs that send data where it does not belong: in rings, and to other states of a sequence."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from tritonffi import InvalidArgumentError, ModelControlMode, Server, TritonError, UnsupportedError
from tritonffi._config_checks import check_config
from tritonffi._config_text import read_json, read_text

TENSOR = {"data_type": "TYPE_FP32", "dims": [-1]}
RING = (
    "model 'm': config: ensemble_scheduling: step {} of model '{}': output 'y': tensor '{}': "
    "expected one that is no input of the ensemble, which would start steps again with each result"
)
SWAPPED = (
    "model 'm': config: sequence_batching: state 'cache': it would get what is written to "
    "'cache_len_next', of state 'cache_len': expected output_names that sort as their input_names "
    "do: Triton pairs them in the order of their bytes"
)


def ensemble(*steps, inputs=("IN",), outputs=("OUT",)):
    """A config of steps: each a model, what it reads from which tensors, and writes to which."""
    return {
        "platform": "ensemble",
        "input": [{"name": name, **TENSOR} for name in inputs],
        "output": [{"name": name, **TENSOR} for name in outputs],
        "ensemble_scheduling": {
            "step": [
                {
                    "model_name": model,
                    "model_version": -1,
                    "input_map": reads,
                    "output_map": {"y": tensor},
                }
                for model, reads, tensor in steps
            ]
        },
    }


def sequence(*states, **fields):
    """A config of states: what each is read from, and written to."""
    made = [{"input_name": a, "output_name": b, **TENSOR, **fields} for a, b in states]
    return {"backend": "tffitest", "sequence_batching": {"state": made}}


def pbtxt(message):
    """Write a config in the text format, maps as JSON has them."""
    lines = []
    for key, value in message.items():
        if key in ("input_map", "output_map"):
            lines += [f"{key} {{ key: '{k}' value: '{v}' }}" for k, v in value.items()]
            continue
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, dict):
                lines.append(f"{key} {{ {pbtxt(one)} }}")
            elif isinstance(one, str) and not one.startswith("TYPE_"):
                lines.append(f"{key}: {json.dumps(one, ensure_ascii=False)}")
            else:
                lines.append(f"{key}: {str(one).lower()}")
    return "\n".join(lines)


def check(config):
    """Check a config in both forms."""
    for read in (read_text(pbtxt(config)), read_json(json.dumps(config))):
        assert read is not None
        check_config(read, "m", None)


def swapped(taking, given, output):
    """The words of a refusal."""
    return f"state {taking!r}: it would get what is written to {output!r}, of state {given!r}: "


BAD = {
    "itself": (ensemble(("a", {"x": "IN"}, "IN"), outputs=["IN"]), RING.format(0, "a", "IN")),
    "two": (
        ensemble(("a", {"x": "IN"}, "OUT"), ("b", {"x": "OUT"}, "IN")),
        RING.format(1, "b", "IN"),
    ),
    "three": (
        ensemble(
            ("a", {"x": "I"}, "M"), ("b", {"x": "M"}, "N"), ("c", {"x": "N"}, "I"), inputs="I"
        ),
        RING.format(2, "c", "I"),
    ),
    # No ring, but two answers to a request.
    "written": (
        ensemble(("a", {"x": "J"}, "I"), ("b", {"x": "I"}, "OUT"), inputs="IJ"),
        RING.format(0, "a", "I"),
    ),
    "states": (
        sequence(("cache", "cache_next"), ("cache_len", "cache_len_next")),
        SWAPPED,
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_load_refuses_them(server, case):
    """With a config; with that and files; and beside a model that is loaded."""
    config, message = BAD[case]
    message = f"^{re.escape(message)}$"
    with pytest.raises(InvalidArgumentError, match=message):
        server.load("m", config)
    with pytest.raises(InvalidArgumentError, match=message):
        server.load("m", config, {"1/x": b""})
    with pytest.raises(InvalidArgumentError, match=message):
        check(config)
    assert "m" not in [model.name for model in server.models()]


@pytest.fixture
def folder(tmp_path):
    """The folder of a model in a repository of its own."""
    folder = tmp_path / "models" / "m"
    (folder / "1").mkdir(parents=True)
    return folder


@pytest.mark.parametrize("case", ["two", "states"])
def test_starts_loads_and_polls_refuse_them(folder, case):
    """In each of the control modes; also as the part of an ensemble."""
    config, message = BAD[case]
    message = re.escape(message)
    (folder / "config.pbtxt").write_text(pbtxt(config))
    outer = folder.parent / "outer"
    (outer / "1").mkdir(parents=True)
    (outer / "config.pbtxt").write_text(pbtxt(ensemble(("m", {"x": "IN"}, "OUT"))))
    for options in (
        {"model_control_mode": ModelControlMode.NONE},
        {"startup_models": ["*"]},
        {"startup_models": ["m"]},
    ):
        with pytest.raises(InvalidArgumentError, match=f"^{message}$"):
            Server(folder.parent, **options)
    with pytest.raises(InvalidArgumentError, match=f"^ensemble 'outer', {message}$"):
        Server(folder.parent, startup_models=["outer"])
    with Server(folder.parent, startup_models=[]) as server:
        with pytest.raises(InvalidArgumentError, match=f"^{message}$"):
            server.load("m")
        with pytest.raises(InvalidArgumentError, match=f"^ensemble 'outer', {message}$"):
            server.load("outer")
    aside = shutil.move(folder, folder.parent.parent)
    shutil.rmtree(outer)
    with Server(folder.parent, model_control_mode=ModelControlMode.POLL) as server:
        shutil.move(aside, folder)
        with pytest.raises(InvalidArgumentError, match=f"^{message}$"):
            server.poll()


RINGS = {
    "beside": [("a", {"x": "IN"}, "OUT"), ("a", {"x": "A"}, "B"), ("a", {"x": "B"}, "A")],
    "behind": [("b", {"x": "IN", "z": "B"}, "A"), ("a", {"x": "A"}, "B"), ("a", {"x": "B"}, "OUT")],
    "of one": [("b", {"x": "IN", "z": "OUT"}, "OUT")],
    "written twice": [("a", {"x": "IN"}, "OUT"), ("a", {"x": "IN"}, "OUT")],
}


@pytest.mark.parametrize("case", RINGS)
def test_other_rings_triton_refuses(server, case):
    """Nothing there has a beginning; what is looked for is left to it."""
    check(ensemble(*RINGS[case]))
    words = "is unused in|is not written|in an output map only once"
    with pytest.raises(TritonError, match=words):
        server.load("m", ensemble(*RINGS[case]))


def test_a_ring_of_names_is_none_of_tensors(server):
    """Names of a part's own may be those of the ensemble's inputs, and steps may share one."""
    tensor = ("FP32", [-1])
    server.load_function("inc", lambda x: x + 1, inputs={"x": tensor}, outputs={"y": tensor})
    try:
        steps = [("inc", {"x": "y"}, "x"), ("inc", {"x": "x"}, "OUT"), ("inc", {"x": "y"}, "z")]
        model = server.load("m", ensemble(*steps, inputs="y", outputs=["OUT", "z"]))
        response = model.infer({"y": [1.0]})
        assert {key: array.tolist() for key, array in response.items()} == {"OUT": [3], "z": [2]}
    finally:
        server.unload("m")
        server.unload("inc")


@pytest.mark.parametrize(
    ("states", "words"),
    [
        ([("b", "x"), ("a", "y")], swapped("a", "b", "x")),
        ([("a", "z"), ("b", "y"), ("c", "x")], swapped("a", "c", "x")),
        ([("a", "y"), ("b", "z"), ("c", "x")], swapped("a", "c", "x")),
        ([("a", "é"), ("b", "z")], swapped("a", "b", "z")),
        ([("a", "b"), ("B", "c")], swapped("B", "a", "b")),
        ([("a", "\U00010000"), ("b", "\uffff")], swapped("a", "b", "\uffff")),
        ([("a", "x"), ("a", "z"), ("b", "y")], swapped("a", "b", "y")),
    ],
)
def test_states_that_sort_otherwise_are_refused(states, words):
    """By their bytes, in whatever order they are written down."""
    for some in (states, states[::-1]):
        with pytest.raises(InvalidArgumentError, match=re.escape(words)):
            check(sequence(*some))


@pytest.mark.parametrize(
    "states",
    [
        [],
        [("a", "b")],
        [("a", "a"), ("b", "b")],
        [("b", "y"), ("a", "x")],
        [("state10", "out10"), ("state9", "out9")],
        [("cache", "cache_next"), ("length", "length_next")],
        [
            ("Z", "Z_"),
            ("a", "a_"),
            ("é", "é_"),
            ("\uffff", "\uffff_"),
            ("\U00010000", "\U00010000_"),
        ],
        [("a", "x"), ("b", "x")],  # the second is not seen
        [("a", "x"), ("a", "y"), ("b", "z")],
    ],
)
def test_states_that_sort_alike_pass(states):
    """Where each has a name that comes as far."""
    check(sequence(*states))


def test_states_of_one_buffer_are_not_moved():
    """They may sort as they like; but none that is moved may get to the place of one."""
    one = sequence(("a", "y"), ("b", "x"), use_same_buffer_for_input_output=True)
    check(one)
    states = one["sequence_batching"]["state"]
    for index, words in enumerate((swapped("b", "a", "y"), swapped("a", "b", "x"))):
        mixed = [dict(state) for state in states]
        mixed[index]["use_same_buffer_for_input_output"] = False
        with pytest.raises(InvalidArgumentError, match=re.escape(words)):
            check({**one, "sequence_batching": {"state": mixed}})
    # Between two that change places, one keeps its own.
    middle = sequence(("a2", "x2"))["sequence_batching"]["state"]
    check({**one, "sequence_batching": {"state": [*states, *middle]}})


def test_a_function_is_told_that_it_has_no_states_at_all(server):
    """Rather than how they must be named."""
    config = {"sequence_batching": BAD["states"][0]["sequence_batching"]}
    declared = {"x": ("FP32", [1])}
    with pytest.raises(
        UnsupportedError, match="a function keeps the state of its sequences itself"
    ):
        server.load_function("f", pytest.fail, inputs=declared, outputs=declared, config=config)


def test_half_a_character_may_be_in_a_name():
    """JSON can have it; bytes that are no UTF-8, the text format."""
    check_config(
        read_json(r'{"sequence_batching": {"state": [{"input_name": "\ud800"}]}}'), "m", None
    )
    state = r"state { input_name: '%s' output_name: '%s' }"
    text = "sequence_batching { " + state % (r"\377", "b") + state % ("\uffff", "c") + " }"
    with pytest.raises(
        InvalidArgumentError, match=r"it would get what is written to 'b', of state"
    ):
        check_config(read_text(text), "m", None)
