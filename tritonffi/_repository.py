# SPDX-License-Identifier: Apache-2.0
"""Models come and go: load, unload, poll, and the repositories that models are looked for in.

`Server` has these as methods. They all take the server's `Lifecycle`. Handles on models read anew
what they know of them, because C counts the calls that may change models.
"""

from __future__ import annotations

import json
import logging
import os
import pathlib
import shutil
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from tritonffi import _log, _python_backend
from tritonffi._call import (
    check,
    encode,
    encode_path,
    interruptible,
    out_bool,
    parameters,
)
from tritonffi._enums import ModelControlMode
from tritonffi._errors import (
    AlreadyExistsError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    TritonError,
    UnavailableError,
    UnsupportedError,
)
from tritonffi._loading import load_with
from tritonffi._mending import dead_parts
from tritonffi._model_files import (
    check_circles,
    check_model,
    check_parts,
    check_repositories,
    parts_of,
)
from tritonffi._native import lib

if TYPE_CHECKING:
    from tritonffi._call import ParameterValue
    from tritonffi._lifecycle import Lifecycle

logger = logging.getLogger("tritonffi")

Content: TypeAlias = "bytes | bytearray | memoryview"


def load(
    lifecycle: Lifecycle,
    name: str,
    config: Mapping[str, object] | None,
    files: Mapping[str, Content] | None,
    timeout: float | None,
) -> None:
    """Load a model, or load it anew; `Server.load` has the arguments.

    C: ``TRITONSERVER_ServerLoadModel``, ``TRITONSERVER_ServerLoadModelWithParameters``
    """
    overrides = _overrides(lifecycle, name, config, files)
    given = str(overrides["config"]) if "config" in overrides else None
    watched = _check_files(lifecycle, name, given, files)
    watch = _python_backend.StubWatch(watched) if watched else None
    deadline = None if timeout is None else time.monotonic() + timeout
    try:
        load_with(lifecycle, name, overrides, timeout, watch=watch)
        for part in dead_parts(lifecycle, name):  # Triton keeps them as they are
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            load_with(lifecycle, part, {}, left, watch=_python_backend.StubWatch([part]))
    except InternalError as error:
        if is_in_repositories(lifecycle, name) or (lifecycle.repository / name).is_dir():
            raise
        raise NotFoundError(str(error)) from None


def _overrides(
    lifecycle: Lifecycle,
    name: str,
    config: Mapping[str, object] | None,
    files: Mapping[str, Content] | None,
) -> dict[str, ParameterValue]:
    """Return what a load says beside the name; files of a model of ours are written instead."""
    overrides: dict[str, ParameterValue] = {}
    if config is not None:
        overrides["config"] = config_text(name, config)
    if files is not None:
        if not isinstance(files, Mapping):
            raise TypeError(f"model {name!r}: files must be a mapping, not {type(files).__name__}")
        if files and config is None:
            raise InvalidArgumentError(f"model {name!r}: files need a config beside them")
        contents = {_relative(name, path): _bytes_of(name, path, files[path]) for path in files}
        if is_in_repositories(lifecycle, name):
            overrides |= {f"file:{path}": content for path, content in contents.items()}
        elif contents:
            _write(lifecycle, name, contents)
    if overrides and not is_in_repositories(lifecycle, name):
        # Serve the private repository, or Triton's index would not know the model.
        with lifecycle.use():
            lifecycle.handle()
            if not (lifecycle.repository / name).is_dir():
                (lifecycle.repository / name / "1").mkdir(parents=True)
    return overrides


def _check_files(
    lifecycle: Lifecycle, name: str, config: str | None, files: Mapping[str, Content] | None
) -> set[str]:
    """Refuse a load that would never be over; return the models that get python processes."""
    folder = [*_folders(lifecycle, name), lifecycle.repository / name][0]
    variant = lifecycle.options.model_config_name
    sizes = {path: memoryview(content).nbytes for path, content in (files or {}).items()}
    own = {name} if check_model(folder, config, sizes or None, variant=variant) else set()
    find = partial(_folders, lifecycle)
    parts = check_parts(folder, config, find, variant=variant)
    if config is not None:
        known = {**lifecycle.parts, name: parts_of(folder, config)}
        check_circles([name], find, known, variant=variant)
        lifecycle.parts[name] = known[name]
    else:
        known = {k: v for k, v in lifecycle.parts.items() if k != name}
        check_circles([name], find, known, variant=variant)
    if parts:
        with lifecycle.use():
            parts -= lifecycle.loaded(lifecycle.handle())
    return own | parts


def _write(lifecycle: Lifecycle, name: str, contents: Mapping[str, bytes]) -> None:
    """Make a model's folder in the private repository, in place of the one that was there.

    Triton would keep files that it gets with a load where only that load finds them, and look in
    vain for those of a part when it loads an ensemble.
    """
    with lifecycle.use():
        lifecycle.handle()
        made = pathlib.Path(tempfile.mkdtemp(dir=lifecycle.repository.parent))
        try:
            for path, content in contents.items():
                (made / path).parent.mkdir(parents=True, exist_ok=True)
                (made / path).write_bytes(content)
            folder = lifecycle.repository / name
            shutil.rmtree(folder, ignore_errors=True)
            made.rename(folder)
        except OSError:
            shutil.rmtree(made, ignore_errors=True)
            raise


def make_version(lifecycle: Lifecycle, name: str, *, is_new: bool) -> None:
    """Make a folder for a function in the private repository; Triton's index asks for one.

    Args:
        lifecycle: The server's.
        name: The function's name.
        is_new: Whether it must be another one than before, under which Triton has stored answers.
    """
    with lifecycle.use():
        lifecycle.handle()
        folder = lifecycle.repository / name
        last = max((int(path.name) for path in folder.glob("[0-9]*")), default=0)
        (folder / str(last + 1 if is_new else max(1, last))).mkdir(parents=True, exist_ok=True)


def config_text(name: str, config: Mapping[str, object]) -> str:
    """Write a model config as JSON.

    Args:
        name: The model's name, for errors.
        config: The config.
    """
    if not isinstance(config, Mapping):
        raise TypeError(f"model {name!r}: config must be a mapping, not {type(config).__name__}")
    try:
        return json.dumps(dict(config))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(
            f"model {name!r}: config cannot be written as JSON: {error}"
        ) from error


def _relative(model: str, path: str) -> str:
    """Check the path of a file override: below the model's folder, as Triton writes paths."""
    what = f"model {model!r}, file {path!r}"
    encode(path, what)
    if path.startswith("file:"):
        raise InvalidArgumentError(f"{what}: the path goes without 'file:' in front")
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise InvalidArgumentError(
            f"{what}: the path must lead to a file below the model's folder, such as '1/model.onnx'"
        )
    if parts == ["config.pbtxt"]:
        raise InvalidArgumentError(f"{what}: the config is given by config=")
    return path


def _bytes_of(model: str, path: str, content: Content) -> bytes:
    if isinstance(content, bytes):
        return content
    try:
        return memoryview(content).tobytes()
    except TypeError:
        raise TypeError(
            f"model {model!r}, file {path!r}: the content must be bytes, "
            f"not {type(content).__name__}"
        ) from None


def poll(lifecycle: Lifecycle, timeout: float | None) -> None:
    """Look through the repositories for changes; `Server.poll` has the arguments.

    C: ``TRITONSERVER_ServerPollModelRepository``
    """
    _require(lifecycle, ModelControlMode.POLL, "repositories are polled")

    def call() -> None:
        with lifecycle.use():
            server = lifecycle.handle()
            places = lifecycle.options.paths("model_repository")
            variant = lifecycle.options.model_config_name
            check_repositories(places, partial(_folders, lifecycle), variant=variant)
            check(lib.TRITONSERVER_ServerPollModelRepository(server), f"server {lifecycle.name!r}")

    mark = _log.capture.mark()
    try:
        interruptible(call, f"polling the repositories of {lifecycle.name!r}", timeout=timeout)
    except TritonError as error:
        lifecycle.explain(error, mark)
        raise
    finally:
        _log.capture.forward()


def register(
    lifecycle: Lifecycle, path: str | os.PathLike[str], name_mapping: Mapping[str, str] | None
) -> None:
    """Add a repository; `Server.register_repository` has the arguments.

    C: ``TRITONSERVER_ServerRegisterModelRepository``
    """
    _require(lifecycle, ModelControlMode.EXPLICIT, "repositories are registered")
    place = _place(path)
    context = f"model repository {place!r}"
    if "://" not in place and not pathlib.Path(place).is_dir():
        raise InvalidArgumentError(f"{context} is not a folder")
    names: dict[str, ParameterValue] = {}
    if name_mapping is not None and not isinstance(name_mapping, Mapping):
        raise TypeError(
            f"{context}: name_mapping must be a mapping, not {type(name_mapping).__name__}"
        )
    for folder, model in (name_mapping or {}).items():
        if not isinstance(model, str):
            raise TypeError(
                f"{context}: the model name for folder {folder!r} must be a str, "
                f"not {type(model).__name__}"
            )
        if not model.strip() or "/" in model or model in (".", ".."):
            raise InvalidArgumentError(f"{context}: not a name for a model: {model!r}")
        if _folders(lifecycle, model) or (lifecycle.repository / model).is_dir():
            raise AlreadyExistsError(f"{context}: the name {model!r} is another model's already")
        names[folder] = model
    with lifecycle.use():
        server = lifecycle.handle()
        # A server that started in spite of errors may have no repository manager.
        if not out_bool(lib.TRITONSERVER_ServerIsLive, server, context=context):
            raise UnavailableError(f"{context}: server {lifecycle.name!r} is not live")
        with parameters(names, context) as (array, count):
            check(
                lib.TRITONSERVER_ServerRegisterModelRepository(
                    server, encode_path(place, context), array, count
                ),
                context,
            )
    lifecycle.registered[place] = {folder: str(model) for folder, model in names.items()}
    _log.capture.forward()


def unregister(lifecycle: Lifecycle, path: str | os.PathLike[str]) -> None:
    """Take a repository away; `Server.unregister_repository` has the arguments.

    C: ``TRITONSERVER_ServerUnregisterModelRepository``
    """
    _require(lifecycle, ModelControlMode.EXPLICIT, "repositories are unregistered")
    place = _place(path)
    context = f"model repository {place!r}"
    with lifecycle.use():
        server = lifecycle.handle()
        if not out_bool(lib.TRITONSERVER_ServerIsLive, server, context=context):
            raise UnavailableError(f"{context}: server {lifecycle.name!r} is not live")
        before = lifecycle.loaded(server)
        check(
            lib.TRITONSERVER_ServerUnregisterModelRepository(server, encode_path(place, context)),
            context,
        )
        # Models stay loaded, but Triton's index does not list them any more.
        lifecycle.hidden |= before - lifecycle.loaded(server)
    lifecycle.registered.pop(place, None)
    _log.capture.forward()


def is_in_repositories(lifecycle: Lifecycle, name: str) -> bool:
    """Say whether a repository of the user's has a model of this name, or might have one."""
    places = [*lifecycle.options.paths("model_repository"), *lifecycle.registered]
    if any(
        "://" in place or name in lifecycle.registered.get(place, {}).values() for place in places
    ):
        return True
    return bool(_folders(lifecycle, name))


def _folders(lifecycle: Lifecycle, name: str) -> list[pathlib.Path]:
    """List the folders of repositories of the user's that hold the model."""
    folders = []
    for place in [*lifecycle.options.paths("model_repository"), *lifecycle.registered]:
        mapping = lifecycle.registered.get(place, {})
        folders += [pathlib.Path(place, key) for key, value in mapping.items() if value == name]
        if name not in mapping and "://" not in place:
            folders.append(pathlib.Path(place, name))
    return [folder for folder in folders if folder.is_dir()]


def _place(path: str | os.PathLike[str]) -> str:
    """Return a path as Triton compares it: absolute, but with its links; a URL as it is."""
    encode_path(path, "a model repository")
    text = os.fspath(path)
    return text if "://" in text else os.path.abspath(text)  # noqa: PTH100


def _require(lifecycle: Lifecycle, mode: ModelControlMode, what: str) -> None:
    current = lifecycle.options.model_control_mode
    if current is not mode:
        raise UnsupportedError(
            f"server {lifecycle.name!r}: {what} in model_control_mode {mode.name} only, "
            f"not {current.name}"
        )
