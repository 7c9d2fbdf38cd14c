# SPDX-License-Identifier: Apache-2.0
"""Configs and files with which Triton would end the process: refused in every way to it."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil

import _backend
import numpy as np
import pytest

from tritonffi import InvalidArgumentError, ModelControlMode, Server
from tritonffi._config_checks import MOST_INSTANCES, check_config, memory, sizes_in, sizes_of
from tritonffi._config_text import read_json, read_text
from tritonffi._model_files import check_model

TENSOR = {"data_type": "TYPE_INT32", "dims": [1]}
CONFIG = {
    "backend": "tffitest",
    "max_batch_size": 2,
    "input": [{"name": "INPUT0", **TENSOR}],
    "output": [{"name": "OUTPUT0", **TENSOR}],
}
ROOM = memory()


def labels(path):
    """A config that names a file of labels."""
    return {"output": [{"name": "OUTPUT0", **TENSOR, "label_filename": path}]}


def state(*initials, **fields):
    """A config of one state of a sequence."""
    one = {"input_name": "S", "output_name": "S", **TENSOR, "initial_state": initials}
    return {"sequence_batching": {"state": [{**one, **fields}]}}


def initial(**fields):
    """An initial state."""
    return {"name": "i", **TENSOR, **fields}


def warm_up(batch_size=1, **fields):
    """A config of one warm-up."""
    inputs = {"INPUT0": {**TENSOR, **fields}}
    return {"model_warmup": [{"name": "w", "batch_size": batch_size, "inputs": inputs}]}


def groups(*counts):
    """A config of so many instances."""
    return {"instance_group": [{"count": count, "kind": "KIND_CPU"} for count in counts]}


ZERO = initial(zero_data=True)
OLDEST = {"oldest": {"max_candidate_sequences": 2**31 - 1}}
REFUSED = {
    "tag dash": (
        {"metric_tags": {"my-tag": "v"}},
        "metric_tags: 'my-tag': expected a key of",
    ),
    "tag space": ({"metric_tags": {"a b": "v"}}, "metric_tags: 'a b'"),
    "tag letter": ({"metric_tags": {"é": "v"}}, "metric_tags: 'é'"),
    "tag prefix": ({"metric_tags": {"x": "v", "_x": "v"}}, "metric_tags: '_x'"),
    "tag newline": ({"metricTags": {"x\n": "v"}}, r"metric_tags: 'x\n'"),
    "label folder": (labels("folder"), "output 'OUTPUT0': label_filename: 'folder' is no regular"),
    "label itself": (labels("."), "label_filename: '.' is no regular file"),
    "label gone": (labels("gone"), "label_filename: 'gone' is missing"),
    "warm-up folder": (
        warm_up(input_data_file="folder"),
        "model_warmup 'w': input 'INPUT0': input_data_file: 'warmup/folder' is no regular file",
    ),
    "warm-up short": (warm_up(dims=[2], input_data_file="four"), "has 4 bytes: expected 8"),
    "warm-up gone": (warm_up(input_data_file="gone"), "'warmup/gone' is missing"),
    "warm-up of nothing": (warm_up(), "input 'INPUT0': expected zero_data, random_data or"),
    "warm-up of any size": (warm_up(dims=[-1], zero_data=True), "dims: [-1]: expected sizes"),
    "warm-up rows": (warm_up(10**6 + 1, zero_data=True), "batch_size: 1000001: expected at most"),
    "warm-up rows of a batch": (
        warm_up(3, zero_data=True),
        "model_warmup 'w': batch_size: 3: expected at most 2: max_batch_size is 2, at which",
    ),
    "warm-up rows without a batch": (
        {**warm_up(2, zero_data=True), "max_batch_size": 0},
        "model_warmup 'w': batch_size: 2: expected at most 1: max_batch_size is 0, at which",
    ),
    "warm-up rows read": (
        {
            **warm_up(10**6, dims=[0], data_type="TYPE_STRING", input_data_file="large"),
            "max_batch_size": 10**6,
        },
        "input 'INPUT0': 100000000000000 bytes: expected at most",
    ),
    "zeros": (warm_up(dims=[2**40], zero_data=True), f"{2**42} bytes: expected at most the"),
    "randoms": (warm_up(dims=[ROOM // 4 + 1], random_data=True), f"expected at most the {ROOM} "),
    "no end of axes": (
        warm_up(dims=[2**63 - 1] * 1000, zero_data=True),
        f"{10**100} bytes: expected at most",
    ),
    "overflow": (warm_up(dims=["4611686018427387904", 4], zero_data=True), f"{2**66} bytes"),
    "texts": (
        warm_up(dims=[2**40], data_type="TYPE_STRING", random_data=True),
        f"{2**42} bytes",
    ),
    "state folder": (
        state(initial(data_file="folder")),
        "state 'S': initial_state: data_file: 'initial_state/folder' is no regular file",
    ),
    "state itself": (state(initial(data_file="")), "'initial_state/' is no regular file"),
    "state gone": (state(initial(data_file="gone")), "'initial_state/gone' is missing"),
    "state short": (state(initial(data_file="two")), "'initial_state/two' has 2 bytes: expected 4"),
    "state twice": (state(ZERO, ZERO), "state 'S': 2 of initial_state: expected one at most"),
    "state dims": (state({**ZERO, "dims": [7]}), "dims: [7]: expected [1], those of the state"),
    "state rank": (state({**ZERO, "dims": [1, 1]}), "dims: [1, 1]: expected [1]"),
    "state any": (state({**ZERO, "dims": [-1]}, dims=[-1]), "dims: [-1]: expected sizes"),
    "state negative": (state({**ZERO, "dims": [-5]}, dims=[-5]), "dims: [-5]: expected sizes"),
    "state type": (
        state({**ZERO, "data_type": "TYPE_FP32"}),
        "data_type: TYPE_FP32: expected TYPE_INT32, that of the state",
    ),
    "state nameless": (state({**ZERO, "name": ""}), "initial_state: name: expected one"),
    "state of nothing": (state(initial()), "initial_state: expected zero_data or data_file"),
    "state zeros": (state({**ZERO, "dims": [2**40]}, dims=[2**40]), f"{2**42} bytes"),
    "state texts": (state(dims=[2**62, -1], data_type="TYPE_STRING"), f"{2**64} bytes"),
    "states of a name": (
        {"sequence_batching": {"state": state(ZERO)["sequence_batching"]["state"] * 2}},
        "expected one state of an input_name, not several",
    ),
    "candidates": (
        {"sequence_batching": OLDEST},
        "oldest: max_candidate_sequences: 2147483647: expected at most 1,000,000 sequences",
    ),
    "candidates each": (
        {"sequence_batching": {"oldest": {"max_candidate_sequences": 300_000}}, **groups(3, 1)},
        "in all instances, of which there are 4",
    ),
    "slots": (
        {"sequence_batching": {"direct": {}}, "max_batch_size": 2**31 - 1},
        "max_batch_size: 2147483647: expected at most 1,000,000 sequences",
    ),
    "instances of a profile": (
        {"instance_group": [{"kind": "KIND_CPU", "profile": ["0", " -99999999999x"]}]},
        "instance_group: profile: ' -99999999999x': expected a number of 32 bits",
    ),
    "warm-up runs": (
        {"model_warmup": [{**warm_up(zero_data=True)["model_warmup"][0], "count": 2**31 - 1}]},
        "model_warmup 'w': count: 2147483647: expected at most 1,000,000",
    ),
    "labels larger than memory": (labels("sparse"), f"{2**43} bytes: expected at most the {ROOM}"),
    "instances": (groups(1000, 25), f"instance_group: 1025 instances: expected at most {1024:,}"),
}
PASSES = {
    "tags": {"metric_tags": {"": "v", "1": "", "A_b_": "é", "le": "v"}},
    "labels": labels("../m/labels"),
    "labels by a link": labels("link"),
    "no labels": labels(""),
    "warm-up": warm_up(input_data_file="four"),
    "warm-up of texts": warm_up(data_type="TYPE_STRING", dims=[9], input_data_file="four"),
    "warm-up of a whole batch": warm_up(2, zero_data=True),
    "warm-up of one row": {**warm_up(zero_data=True), "max_batch_size": 0},
    "warm-up of no rows": warm_up(0, dims=[-1], input_data_file="gone"),
    "warm-up of no elements": warm_up(dims=[0, 2**62], zero_data=True),
    "state": state(initial(data_file="four"), dims=[-1]),
    "state of no elements": state({**ZERO, "dims": [0]}, dims=[0]),
    "state by number": state({**ZERO, "data_type": 8}),
    "a profile": {"instance_group": [{"kind": "KIND_CPU", "profile": ["2147483647", "any"]}]},
    "candidates": {"sequence_batching": {"oldest": {"max_candidate_sequences": 1_000_000}}},
    "candidates negative": {"sequence_batching": {"oldest": {"max_candidate_sequences": -5}}},
    "large batches": {"max_batch_size": 2**31 - 1, "dynamic_batching": {}},
    "instances": groups(MOST_INSTANCES),
}


@pytest.fixture
def folder(tmp_path):
    """The folder of a model that has files, links and folders; beside it is nothing."""
    tmp_path /= "models"
    for path, size in (
        ("labels", 1),
        ("sparse", 2**43),
        ("warmup/four", 4),
        ("warmup/large", 10**8),
        ("initial_state/four", 4),
        ("initial_state/two", 2),
        ("folder/x", 0),
        ("warmup/folder/x", 0),
        ("initial_state/folder/x", 0),
        ("1/x", 0),
    ):
        made = tmp_path / "m" / path
        made.parent.mkdir(parents=True, exist_ok=True)
        with made.open("wb") as file:
            file.truncate(size)
    (tmp_path / "m" / "link").symlink_to("labels")
    (tmp_path / "m" / "kernel").symlink_to("/proc/self/mem")
    return tmp_path / "m"


def text_format(config):
    """Write a config as config.pbtxt has it."""
    maps = {"metric_tags", "metricTags", "inputs"}
    lines = []
    for key, value in config.items():
        name = "metric_tags" if key == "metricTags" else key
        entries = list(value) if isinstance(value, (list, tuple)) else [value]
        if key in maps:
            entries = [{"key": k, "value": v} for k, v in value.items()]
        for one in entries:
            if isinstance(one, dict):
                lines.append(f"{name} {{ {text_format(one)} }}")
            elif isinstance(one, str) and not re.fullmatch("TYPE_.*|KIND_.*|[0-9]{2,}", one):
                lines.append(f"{name}: {ascii_text(one)}")
            else:
                lines.append(f"{name}: {str(one).lower() if isinstance(one, bool) else one}")
    return "\n".join(lines)


def ascii_text(text):
    """Write a text with each byte as an octal escape."""
    return '"' + "".join(f"\\{byte:03o}" for byte in text.encode()) + '"'


def pbtxt(config):
    """Write all of a model's config."""
    return text_format({**CONFIG, **config})


@pytest.mark.parametrize("case", REFUSED)
def test_what_ends_the_process_is_refused(server, folder, case):
    """In a load from a folder; with a config; and that with files. It names model and field."""
    config, words = REFUSED[case]
    words = f"^model 'm': .*{re.escape(words)}"
    files = {
        str(path.relative_to(folder)): path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file()
    }
    read = read_text(pbtxt(config))
    assert read is not None
    for size_of in (sizes_in(folder), sizes_of(files)):
        with pytest.raises(InvalidArgumentError, match=words):
            check_config(read, "m", size_of)
    (folder / "config.pbtxt").write_text(pbtxt(config))
    server.register_repository(folder.parent)
    try:
        with pytest.raises(InvalidArgumentError, match=words):
            server.load("m")
        with pytest.raises(InvalidArgumentError, match=words):
            server.load("m", {**CONFIG, **config})
    finally:
        server.unregister_repository(folder.parent)


@pytest.mark.parametrize("case", PASSES)
def test_what_triton_takes_passes(folder, case):
    """In both forms."""
    config = {**CONFIG, **PASSES[case]}
    for read in (read_text(text_format(config)), read_json(json.dumps(config))):
        assert read is not None
        check_config(read, "m", sizes_in(folder))


TAG = "metric_tags { key: 'a-b' value: 'v' }"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (rf"parameters {{ key: 'k' value {{ string_value: '\U00110000' }} }} {TAG}", "'a-b'"),
        ("model_warmup { batch_size: " + "9" * 5000 + " }", "model_warmup '': batch_size: 9"),
        ("instance_group { profile: '" + "0" * 5000 + "7' count: 1025 }", "1025 instances"),
        ("instance_group { profile: '" + "9" * 5000 + "' }", "instance_group: profile: '9"),
        (f"# one line\r metric_tags {{ key: 'b-a' }}\n {TAG}", "metric_tags: 'a-b'"),
    ],
)
def test_what_is_hard_to_read_leaves_nothing_unchecked(folder, text, words):
    """Characters and numbers that Python has not, and ends of lines that protobuf has not."""
    (folder / "config.pbtxt").write_bytes(text.encode())
    with pytest.raises(InvalidArgumentError, match=re.escape(words)):
        check_model(folder)


def test_the_last_value_of_a_key_is_the_one_that_counts(folder):
    """Triton never sees the others."""
    bad, good = (f"inputs {{ key: 'x' value {{ {data} }} }}" for data in ("", "zero_data: true"))
    for inputs, passes in ((bad + good, True), (good + bad, False)):
        (folder / "config.pbtxt").write_text(f"model_warmup {{ batch_size: 1 {inputs} }}")
        if passes:
            check_model(folder)
        else:
            with pytest.raises(InvalidArgumentError, match="input 'x': expected zero_data"):
                check_model(folder)


def test_a_file_of_the_kernel_s_is_refused(folder):
    """It says that it is empty, and is without end."""
    read = read_text(pbtxt(labels("kernel")))
    with pytest.raises(InvalidArgumentError, match="label_filename: 'kernel' is no regular file"):
        check_config(read, "m", sizes_in(folder))


def test_a_config_larger_than_memory_is_refused(folder):
    """Before it is read."""
    (folder / "config.pbtxt").touch()
    os.truncate(folder / "config.pbtxt", 2**43)
    with pytest.raises(InvalidArgumentError, match=rf"m/config\.pbtxt has {2**43} bytes: expected"):
        check_model(folder)


@pytest.mark.parametrize("spelling", ["8", 8, "type_int32", "Type-Int32"])
def test_json_may_spell_a_data_type_as_protobuf_takes_it(spelling):
    """It is that type, whose size counts."""
    good = read_json(json.dumps(state({**ZERO, "data_type": spelling})))
    large = read_json(
        json.dumps(warm_up(data_type=spelling, dims=["4398046511104"], zero_data=True))
    )
    check_config(good, "m", None)
    with pytest.raises(InvalidArgumentError, match=f"{2**44} bytes: expected at most the {ROOM}"):
        check_config(large, "m", None)


def test_what_a_backend_may_complete_is_not_known():
    """Where the config says no `max_batch_size`, a warm-up may have more than one row."""
    check_config(read_json(json.dumps(warm_up(4, zero_data=True))) or {}, "m", None)


def test_where_an_agent_puts_the_files_nobody_knows(folder):
    """So they are not looked for."""
    agents = {"model_repository_agents": {"agents": [{"name": "other"}]}}
    (folder / "config.pbtxt").write_text(pbtxt({**labels("gone"), **agents}))
    assert not check_model(folder)


TWICE = "^model 'm': config: sequence_batching: state 'S': 2 of"


@pytest.mark.parametrize(
    "options",
    [
        {"model_control_mode": ModelControlMode.NONE},
        {"model_control_mode": ModelControlMode.POLL},
        {"startup_models": ["*"]},
        {"startup_models": ["m"], "exit_on_error": False},
    ],
)
def test_a_start_refuses_them(folder, options):
    """With all models of a repository, and with those that are named."""
    (folder / "config.pbtxt").write_text(pbtxt(state(ZERO, ZERO)))
    with pytest.raises(InvalidArgumentError, match=TWICE):
        Server(folder.parent, **options)


def test_a_poll_refuses_them(folder):
    """Where the model has come since."""
    (folder / "config.pbtxt").write_text(pbtxt(state(ZERO, ZERO)))
    aside = shutil.move(folder, folder.parent.parent)
    with Server(folder.parent, model_control_mode=ModelControlMode.POLL) as server:
        shutil.move(aside, folder)
        with pytest.raises(InvalidArgumentError, match=TWICE):
            server.poll()


def test_a_part_of_an_ensemble_is_refused(folder):
    """It would be loaded with it."""
    (folder / "config.pbtxt").write_text(pbtxt(labels("folder")))
    (folder.parent / "e" / "1").mkdir(parents=True)
    step = "ensemble_scheduling { step [ { model_name: 'm' model_version: -1 } ] }"
    (folder.parent / "e" / "config.pbtxt").write_text(f"platform: 'ensemble' {step}")
    message = "^ensemble 'e', model 'm': config: output"
    with (
        Server(folder.parent, startup_models=[]) as server,
        pytest.raises(InvalidArgumentError, match=message),
    ):
        server.load("e")


FUNCTIONS = ["tag dash", "label gone", "zeros", "overflow", "warm-up gone", "candidates", "slots"]


@pytest.mark.parametrize("case", [*FUNCTIONS, "instances"])
def test_functions_are_refused_too(server, case):
    """Before anything of them is called."""
    config, words = REFUSED[case]
    config = dict(config)
    keywords = {"max_batch_size": config.pop("max_batch_size", 2)}
    if "output" in config:
        config["output"] = [{"name": "OUTPUT0", "label_filename": "gone"}]
    with pytest.raises(InvalidArgumentError, match=f"^model 'f': config: .*{re.escape(words)}"):
        server.load_function(
            "f",
            pytest.fail,
            inputs={"INPUT0": ("INT32", [1])},
            outputs={"OUTPUT0": ("INT32", [1])},
            config=config,
            **keywords,
        )


def test_files_that_are_given_are_looked_at(server):
    """In place of those in a folder."""
    config = {**CONFIG, **warm_up(input_data_file="d")}
    try:
        for files, words in (
            ({"warmup/d": b"123"}, "'warmup/d' has 3 bytes: expected 4"),
            ({"warmup/d/x": b"1234"}, "'warmup/d' is no regular file"),
            ({"d": b"1234"}, "'warmup/d' is missing"),
        ):
            with pytest.raises(InvalidArgumentError, match=f"^model 'given': config: .*{words}"):
                server.load("given", config, files)
        row = np.array([[1]], np.int32)
        model = server.load("given", config, {"warmup/d": b"1234", "1/x": b""})
        assert model.infer({"INPUT0": row})["OUTPUT0"].tolist() == [[1]]
    finally:
        server.unload("given")


def test_what_passes_is_read(folder, backend_directory):
    """A state begins with the file's value, labels are those of the file."""
    (folder / "initial_state" / "four").write_bytes(np.int32(100).tobytes())
    (folder / "labels").write_text("one\n")
    shutil.rmtree(folder / "1")
    start = 'initial_state { name: "i" data_type: TYPE_INT32 dims: 1 data_file: "four" }'
    both = 'input_name: "STATE" output_name: "STATE" data_type: TYPE_INT32 dims: 1'
    _backend.write_model(
        folder.parent,
        "m",
        {"INPUT0": ("INT32", [1])},
        max_batch_size=4,
        state=True,
        extra=f"sequence_batching {{ state {{ {both} {start} }} }} metric_tags {{ key: 'a' }}",
    )
    with Server(folder.parent, backend_directory=backend_directory) as server:
        flags = {"correlation_id": 1, "sequence_start": True, "sequence_end": True}
        response = server.model("m").infer({"INPUT0": [[5]]}, **flags)
        assert response.parameters["state"] == 105


@pytest.mark.parametrize("kind", ["folder", "fifo", "link to a folder"])
@pytest.mark.parametrize("variant", ["", "x"])
def test_a_config_that_is_no_file_is_refused(folder, kind, variant):
    """A FIFO would be waited for, here and there."""
    path = folder / (f"configs/{variant}.pbtxt" if variant else "config.pbtxt")
    path.parent.mkdir(exist_ok=True)
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/")
    with pytest.raises(InvalidArgumentError, match=f"^model 'm': {path} is no regular file"):
        Server(folder.parent, model_config_name=variant)


def test_the_config_of_the_variant_is_looked_at(folder):
    """Where the model has it; else the usual one."""
    (folder / "configs").mkdir()
    (folder / "configs" / "x.pbtxt").write_text(pbtxt(labels("folder")))
    (folder / "config.pbtxt").write_text(pbtxt(labels("gone")))
    for variant, word in (("x", "'folder'"), ("y", "'gone'"), ("", "'gone'")):
        with pytest.raises(InvalidArgumentError, match=f"label_filename: {word}"):
            check_model(folder, variant=variant)


def test_memory_is_what_the_process_may_have(monkeypatch):
    """The machine's, or what a limit leaves."""
    pages = {"SC_PAGE_SIZE": 1000, "SC_PHYS_PAGES": 7}
    monkeypatch.setattr(os, "sysconf", pages.__getitem__)
    for limit, room in ((resource.RLIM_INFINITY, 7000), (5000, 5000), (9000, 7000)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: (limit, limit))
        assert memory() == room
