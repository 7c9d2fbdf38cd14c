# SPDX-License-Identifier: Apache-2.0
"""Repositories: file overrides, polling, registered repositories, and the options about models."""

from __future__ import annotations

import functools
import os

import _backend
import pytest

from tritonffi import (
    AlreadyExistsError,
    InternalError,
    InvalidArgumentError,
    ModelControlMode,
    NotFoundError,
    Server,
    UnsupportedError,
)

FP32 = {"INPUT0": ("FP32", [-1])}
CONFIG = {
    "backend": "tffitest",
    "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
    "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
}


def write(folder, *names, **fields):
    """Write models of the test backend, and return the repository."""
    for name in names:
        _backend.write_model(folder, name, FP32, **fields)
    return folder


def answer(server, name, version=-1):
    """What a model answers to 1, and the version that did."""
    response = server.model(name, version).infer({"INPUT0": [1.0]})
    return response["OUTPUT0"].tolist(), response.model_version


def states(server):
    """The index, by name and version."""
    return {(status.name, status.version): status.state for status in server.models()}


@pytest.fixture
def small(tmp_path, backend_directory):
    """A server of the test's own over one model, `one`."""
    with Server(
        write(tmp_path / "models", "one"), backend_directory=backend_directory, server_id="small"
    ) as running:
        yield running


def test_files_take_the_place_of_the_repository_s(small):
    """The versions are those of the files; without them the repository's count again."""
    model = small.load("one", CONFIG, {"3/weights.bin": b"abc", "4/weights.bin": bytearray(b"d")})
    assert answer(small, "one") == ([1.0], 4)
    assert model.metadata()["versions"] == ["4"]
    assert states(small)["one", 4] == "READY"
    small.unload("one")
    small.load("one")
    assert answer(small, "one") == ([1.0], 1)


def test_a_model_can_be_made_of_files_alone(small):
    """It is in no repository, but in the index, and unload waits for it; the files arrive whole."""
    files = {"1/deep/weights.bin": memoryview(bytes(range(256))), "labels.txt": b""}
    small.load("made", CONFIG, files)
    assert answer(small, "made") == ([1.0], 1)
    assert states(small)["made", 1] == "READY"
    small.unload("made")
    assert states(small)["made", 1] == "UNAVAILABLE"


def owner(server, name):
    """Whose config a model has: what the config says of it."""
    parameters = server.model(name).config()["parameters"]
    return parameters["owner"]["string_value"] if "owner" in parameters else None


def change(folder, number):
    """Add a file to a model's folder, which is newer than all there, whatever the clock's steps."""
    path = folder / "1" / f"new{number}"
    path.touch()
    later = path.stat().st_mtime + 100 * (number + 1)
    os.utime(path, (later, later))


@pytest.mark.parametrize("files", [None, {"1/weights.bin": b"abc"}], ids=["config", "files"])
def test_a_model_that_is_in_no_repository_keeps_its_config(small, files):
    """In loads without one, whatever has come to its folder, until it is unloaded."""
    small.load("made", {**CONFIG, "parameters": {"owner": {"string_value": "me"}}}, files)
    for number in range(2):
        change(small._lifecycle.repository / "made", number)
        small.load("made")
        assert (answer(small, "made"), owner(small, "made")) == (([1.0], 1), "me")
    small.unload("made")
    with pytest.raises(InternalError, match="Could not determine backend"):
        small.load("made")


@pytest.mark.parametrize(
    ("files", "is_changed", "kept"),
    [
        (None, False, "me"),
        (None, True, None),
        ({"1/weights.bin": b"abc"}, False, None),
        ({"1/weights.bin": b"abc"}, True, None),
    ],
)
def test_a_load_without_a_config_takes_the_repository_s_where_that_is_news(
    small, tmp_path, files, is_changed, kept
):
    """Or files had come with the config that it had."""
    small.load("one", {**CONFIG, "parameters": {"owner": {"string_value": "me"}}}, files)
    assert owner(small, "one") == "me"
    if is_changed:
        change(tmp_path / "models" / "one", 0)
    small.load("one")
    assert owner(small, "one") == kept


def test_a_model_of_files_can_be_a_part_of_an_ensemble(small):
    """Triton looks at the parts again when it loads the ensemble."""
    small.load("part", CONFIG, {"2/weights.bin": b"abc"})
    tensor = {"data_type": "TYPE_FP32", "dims": [-1]}
    step = {"model_name": "part", "model_version": -1}
    small.load(
        "whole",
        {
            "platform": "ensemble",
            "input": [{"name": "INPUT0", **tensor}],
            "output": [{"name": "OUTPUT0", **tensor}],
            "ensemble_scheduling": {
                "step": [
                    step | {"input_map": {"INPUT0": "INPUT0"}, "output_map": {"OUTPUT0": "OUTPUT0"}}
                ]
            },
        },
    )
    assert answer(small, "whole") == ([1.0], 1)
    assert states(small)["part", 2] == "READY"
    small.unload("whole")
    small.load("part", CONFIG, {"3/weights.bin": b"abc"})
    assert answer(small, "part") == ([1.0], 3)
    small.load("part", CONFIG, {"3/weights.bin": b"abcd"})
    assert answer(small, "part") == ([1.0], 3)
    small.load("part", CONFIG)
    assert answer(small, "part") == ([1.0], 3)


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("../1/x", InvalidArgumentError),
        ("1/../../x", InvalidArgumentError),
        ("/etc/x", InvalidArgumentError),
        ("1//x", InvalidArgumentError),
        ("./x", InvalidArgumentError),
        ("1/", InvalidArgumentError),
        ("", InvalidArgumentError),
        ("file:1/x", InvalidArgumentError),
        ("config.pbtxt", InvalidArgumentError),
        ("1/a\0b", ValueError),
        (1, TypeError),
    ],
)
def test_paths_of_files_stay_in_the_model_s_folder(small, path, error):
    """A path that leaves it is refused before Triton writes anything."""
    with pytest.raises(error, match="model 'one', file"):
        small.load("one", CONFIG, {path: b"x"})
    assert answer(small, "one") == ([1.0], 1)


def test_files_need_a_config_and_bytes(small):
    """Both are said before Triton is asked; it would only say that it failed."""
    with pytest.raises(InvalidArgumentError, match="model 'one': files need a config"):
        small.load("one", files={"1/x": b""})
    with pytest.raises(TypeError, match="model 'one', file '1/x': the content must be bytes"):
        small.load("one", CONFIG, {"1/x": "text"})
    with pytest.raises(TypeError, match="model 'one': files must be a mapping"):
        small.load("one", CONFIG, [("1/x", b"")])


def test_a_config_of_any_depth_is_refused(server):
    """It can be written no more than read."""
    deep = functools.reduce(lambda inner, _: {"a": inner}, range(20_000), {})
    with pytest.raises(InvalidArgumentError, match="'deep': config cannot be written as JSON"):
        server.load("deep", deep)


def test_poll_sees_what_changed(tmp_path, backend_directory):
    """A model that was added is loaded, one that was removed is unloaded, when poll returns."""
    folder = write(tmp_path / "models", "one")
    with Server(
        folder, backend_directory=backend_directory, model_control_mode=ModelControlMode.POLL
    ) as server:
        assert answer(server, "one") == ([1.0], 1)
        write(folder, "two")
        server.poll()
        assert answer(server, "two") == ([1.0], 1)
        (folder / "one").rename(tmp_path / "away")
        server.poll()
        assert not server.model("one").is_ready()
        assert answer(server, "two") == ([1.0], 1)
        with pytest.raises(UnsupportedError, match="EXPLICIT only, not POLL"):
            server.register_repository(folder)
        with pytest.raises(UnsupportedError, match="EXPLICIT only, not POLL"):
            server.unregister_repository(folder)


def test_poll_is_for_the_mode_poll(small):
    """Elsewhere the error names both modes."""
    with pytest.raises(UnsupportedError, match=r"'small': repositories are polled .* POLL only, "):
        small.poll()


def test_a_registered_repository_offers_its_models(small, tmp_path):
    """Nothing is loaded by itself; names may be given to folders."""
    more = write(tmp_path / "more", "three")
    _backend.write_model(more, "folder", FP32)
    text = (more / "folder" / "config.pbtxt").read_text().replace('name: "folder"\n', "")
    (more / "folder" / "config.pbtxt").write_text(text)
    small.register_repository(more, {"folder": "two"})
    assert states(small) == {("one", 1): "READY", ("two", None): "", ("three", None): ""}
    small.load("two")
    small.load("three", CONFIG | {"max_batch_size": 2})
    assert small.model("three").config()["max_batch_size"] == 2
    assert answer(small, "two") == ([1.0], 1)
    with pytest.raises(NotFoundError, match="model not found in any model repository"):
        small.load("folder")
    with pytest.raises(AlreadyExistsError, match="is in a model repository"):
        small.load_function("two", dict, inputs={}, outputs={"x": ("FP32", [1])})


def test_an_unregistered_repository_leaves_what_is_loaded(small, tmp_path):
    """Its models answer until they are unloaded, and cannot be loaded again."""
    more = write(tmp_path / "more", "two", "three")
    small.register_repository(more)
    small.load("two")
    small.load("three")
    small.unregister_repository(more)
    assert states(small) == {("one", 1): "READY"}
    assert answer(small, "two") == ([1.0], 1)
    small.unload("two")
    with pytest.raises(NotFoundError, match="model not found in any model repository"):
        small.load("two")
    assert answer(small, "three") == ([1.0], 1)  # and close() will find it still loaded


def test_repositories_given_at_the_start_can_be_unregistered(tmp_path, backend_directory):
    """A path is the same however it was written."""
    first, second = write(tmp_path / "first", "one"), write(tmp_path / "second", "two")
    with Server([first, second], backend_directory=backend_directory) as server:
        assert states(server) == {("one", 1): "READY", ("two", 1): "READY"}
        server.unregister_repository(f"{second}/../second")
        assert states(server) == {("one", 1): "READY"}


@pytest.mark.parametrize(
    ("mapping", "error", "message"),
    [
        ({"a": 1}, TypeError, "the model name for folder 'a' must be a str"),
        ({"a": "b/c"}, InvalidArgumentError, "not a name for a model: 'b/c'"),
        ({"a": ""}, InvalidArgumentError, "not a name for a model: ''"),
        ({"a": "x", "b": "x"}, InvalidArgumentError, "conflicting mapping for 'x'"),
        ({1: "x"}, TypeError, "must be a str"),
    ],
)
def test_wrong_mappings_are_refused(small, tmp_path, mapping, error, message):
    """Ours and Triton's refusals name the repository."""
    more = write(tmp_path / "more", "two")
    with pytest.raises(error, match=message) as caught:
        small.register_repository(more, mapping)
    assert str(more) in str(caught.value)
    small.register_repository(more)  # nothing was left behind


def test_wrong_repositories_are_refused(small, tmp_path):
    """A folder that is not there, one that is there twice, one that is not registered."""
    with pytest.raises(InvalidArgumentError, match="nowhere' is not a folder"):
        small.register_repository(tmp_path / "nowhere")
    with pytest.raises(TypeError, match="a model repository must be"):
        small.register_repository(1)
    with pytest.raises(AlreadyExistsError, match="has already been registered"):
        small.register_repository(tmp_path / "models")
    with pytest.raises(InvalidArgumentError, match="repository not found"):
        small.unregister_repository(tmp_path)
