# SPDX-License-Identifier: Apache-2.0
"""Repositories that Triton cannot look through any more: its index fails as a whole."""

from __future__ import annotations

import json
import shutil
import time

import _backend
import pytest

from tritonffi import InternalError, ModelControlMode, NotFoundError, Server
from tritonffi._call import check, parameters
from tritonffi._native import lib
from tritonffi._process import process

FP32 = {"INPUT0": ("FP32", [-1])}
ONES = {"INPUT0": [1.0]}
SLOW_END = json.dumps(
    {
        "backend": "tffitest",
        "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
        "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
        "parameters": {"finalize_hold": {"string_value": "true"}},
    }
)
HOW = ["dangling", "loop", "gone", "file"]
STILL_UNLOADING = (
    r"^server 'triton' did not stop within 0.3 s: model 'slow_end' \(version 1\) is "
    r"UNLOADING \(inferences in flight: 0\); close\(\) may be called again$"
)


def break_it(folder, how):
    """Do something to a repository; return the entry that Triton cannot look at."""
    if how in ("gone", "file"):
        shutil.rmtree(folder)
        if how == "file":
            folder.write_text("", encoding="ascii")
        return folder
    entry = folder / "entry"
    entry.symlink_to(folder / "nowhere" if how == "dangling" else entry)
    return entry


@pytest.fixture
def start(tmp_path, backend_directory):
    """Starts servers over a repository; they are closed in the end."""
    for name in ("one", "two"):
        _backend.write_model(tmp_path / "models", name, FP32)
    _backend.write_model(tmp_path / "models", "slow_end", FP32, finalize_hold=True)
    with _backend.starting(tmp_path / "models", backend_directory) as start:
        yield start


@pytest.mark.parametrize("how", HOW)
def test_the_server_serves_on_and_closes_at_once(start, tmp_path, how):
    """What is loaded serves and unloads, and callables come and go."""
    server = start("one", "two")
    entry = break_it(tmp_path / "models", how)
    with pytest.raises(InternalError, match=f"failed to .* {entry}$"):
        server.models()
    server.unload("two")
    with pytest.raises(NotFoundError):
        server.model("two").infer(ONES)
    tensor = {"a": ("FP32", [-1])}
    model = server.load_function("f", lambda a: a + 1, inputs=tensor, outputs=tensor)
    assert model.infer({"a": [1.0]})["a"].tolist() == [2.0]
    server.unload("f")
    assert server.model("one").infer(ONES)["OUTPUT0"].tolist() == [1.0]
    began = time.monotonic()
    server.close()
    assert time.monotonic() - began < 0.9  # a stop that has to wait counts whole seconds
    assert server._lifecycle._server is None


def test_models_in_it_load_where_triton_finds_them(start, tmp_path):
    """One that is not there is not found; and what may be there is not called unknown."""
    server = start("one")
    entry = break_it(tmp_path / "models", "dangling")
    assert server.load("two").infer(ONES)["OUTPUT0"].tolist() == [1.0]
    with pytest.raises(NotFoundError, match="model not found in any model repository"):
        server.load("none")
    with pytest.raises(InternalError, match=f"failed to stat file {entry}$"):
        server.unload("none")


@pytest.mark.parametrize("how", HOW)
def test_one_that_was_registered(start, tmp_path, how):
    """The close takes that one away, and waits for a model of each as always."""
    server = start("one")
    _backend.write_model(tmp_path / "others", "three", FP32)
    server.register_repository(tmp_path / "others", {"three": "third"})
    server.load("third")
    break_it(tmp_path / "others", how)
    server.unload("third")
    began = time.monotonic()
    server.close()
    assert time.monotonic() - began < 0.9


@pytest.mark.parametrize("how", ["unregistered", *HOW])
def test_close_waits_for_what_the_index_did_not_show(start, gate, tmp_path, how):
    """It says which model it is and in which state, and is not the end of it."""
    server = start("one", "slow_end", exit_timeout=0.3)
    if how == "unregistered":
        server.unregister_repository(tmp_path / "models")
    else:
        break_it(tmp_path / "models", how)
    for _ in range(2):
        with pytest.raises(TimeoutError, match=STILL_UNLOADING):
            server.close()
    gate.open()
    server.close()


@pytest.mark.parametrize("load_fails", [False, True])
def test_a_model_whose_folder_has_gone_unloads(start, gate, tmp_path, load_fails):
    """The unload waits for its end, and leaves nothing in the way of a folder that comes back."""
    server = start("one", "slow_end")
    folder = tmp_path / "models" / "slow_end"
    folder.rename(tmp_path / "aside")
    if load_fails:
        with pytest.raises(NotFoundError):
            server.load("slow_end")
    assert server.model("slow_end").infer(ONES)["OUTPUT0"].tolist() == [1.0]
    for _ in range(2):
        with pytest.raises(TimeoutError) as caught:
            server.unload("slow_end", timeout=0.05)
        assert str(caught.value) == "model 'slow_end': still not unloaded after 0.05 s"
        assert [model.name for model in server.models()] == ["one", "two"]
    gate.open()
    server.unload("slow_end")
    with pytest.raises(NotFoundError, match=r"^model 'slow_end': there is none of that name to"):
        server.unload("slow_end")
    (tmp_path / "aside").rename(folder)
    assert server.load("slow_end").infer(ONES)["OUTPUT0"].tolist() == [1.0]
    server.unload("slow_end")
    assert server._lifecycle.hidden == set()
    assert list(server._lifecycle.repository.iterdir()) == []


def test_a_function_whose_folder_has_gone_unloads(start):
    """And its threads end with it."""
    server = start("one")
    tensor = {"a": ("FP32", [-1])}
    server.load_function("f", lambda a: a, inputs=tensor, outputs=tensor)
    shutil.rmtree(server._lifecycle.repository / "f")
    server.unload("f")
    assert server._lifecycle.all_functions() == []
    assert "f" not in server.statistics()


@pytest.mark.parametrize("how", ["folder gone", "never had one"])
def test_close_waits_for_a_model_without_a_folder(start, gate, tmp_path, how):
    """As a model of the python backend has loaded it, with files, say."""
    server = start("one", exit_timeout=0.3)
    folder = tmp_path / "models" / "slow_end"
    if how == "folder gone":
        server.load("slow_end")
        shutil.rmtree(folder)
    else:
        shutil.rmtree(folder)
        with parameters({"config": SLOW_END, "file:1/x": b"x"}, "") as (array, count):
            handle = server._lifecycle.handle()
            check(lib.TRITONSERVER_ServerLoadModelWithParameters(handle, b"slow_end", array, count))
    with pytest.raises(TimeoutError, match=STILL_UNLOADING):
        server.close()
    gate.open()
    server.close()


def test_files_find_a_private_folder_that_was_cleared_away(start):
    """It is made anew, for them."""
    server = start("one")
    shutil.rmtree(server._lifecycle.repository)
    tensor = [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1]}]
    config = {"backend": "tffitest", "input": tensor, "output": tensor}
    model = server.load("new", config, {"1/file": b"content"})
    assert model.infer({"x": [1.0]})["x"].tolist() == [1.0]
    server.unload("new")


def test_a_private_folder_that_was_cleared_away(start):
    """By something that removes old temporary files, say."""
    server = start("one")
    tensor = {"a": ("FP32", [-1])}
    server.load_function("f", lambda a: a, inputs=tensor, outputs=tensor)
    shutil.rmtree(server._lifecycle.repository.parent)
    server.unload("f")
    made = server._lifecycle._server
    server.close()
    # It is deleted when no server runs any more, and its folder with it.
    assert made.folder.exists() == (made in process._servers)


@pytest.mark.parametrize("options", [{}, {"exit_on_error": False}])
def test_a_start_of_named_models_does_not_look_through_it(start, tmp_path, options):
    """So it works, and so does the close."""
    break_it(tmp_path / "models", "dangling")
    server = start("one", **options)
    assert server.model("one").infer(ONES)["OUTPUT0"].tolist() == [1.0]
    server.close()


@pytest.mark.parametrize("mode", [ModelControlMode.EXPLICIT, ModelControlMode.NONE])
def test_a_start_of_all_models_says_which_entry_it_is(start, tmp_path, mode):
    """Triton loads none of them."""
    entry = break_it(tmp_path / "models", "dangling")
    with pytest.raises(InternalError, match=f"failed to stat file {entry}"):
        start("*", model_control_mode=mode)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("names", [("other",), ("other", "two")])
def test_namespaces_do_not_hide_what_is_loaded(tmp_path, backend_directory, how, names):
    """Triton's statistics fail as a whole there, so models are asked for one by one."""
    for name in ("one", "two"):
        _backend.write_model(tmp_path / "models", name, FP32)
    for name in names:
        _backend.write_model(tmp_path / "others", name, FP32)
    tensor = {"a": ("FP32", [-1])}
    server = Server(
        [tmp_path / "models", tmp_path / "others"],
        backend_directory=backend_directory,
        model_namespacing=True,
    )
    try:
        break_it(tmp_path / "others", how)
        assert server.load("one").infer(ONES)["OUTPUT0"].tolist() == [1.0]
        model = server.load_function("f", lambda a: a + 1, inputs=tensor, outputs=tensor)
        assert model.infer({"a": [1.0]})["a"].tolist() == [2.0]
        # With a name in both repositories, that is left out.
        expected = {"f", "one", "other", "two"} - ({"two"} & set(names))
        assert set(server.statistics()) == expected
        server.unload("f")
        server.unload("other")
        assert set(server.statistics()) == expected - {"f", "other"}
        server.unload("one")
        with pytest.raises(NotFoundError):
            server.model("one").infer(ONES)
    finally:
        began = time.monotonic()
        server.close()
    # As above; but two of one name may still be there, and a stop that waits takes a whole second.
    assert time.monotonic() - began < (0.9 if len(names) == 1 else 1.9)
    assert server._lifecycle._server is None
