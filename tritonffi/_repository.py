# SPDX-License-Identifier: Apache-2.0
"""Models come and go: load, unload, poll, and the repositories that models are looked for in.

`Server` has these as methods. They all take the server's `Lifecycle`. Handles on models read anew
what they know of them, because C counts the calls that may change models.
"""

from __future__ import annotations

import logging
import os
import pathlib
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from tritonffi import _log, _python_backend
from tritonffi._call import (
    check,
    encode_path,
    interruptible,
    out_bool,
    parameters,
    plain_path,
    plain_text,
)
from tritonffi._config_checks import check_config
from tritonffi._config_text import read_json
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
from tritonffi._graph import check_graph
from tritonffi._load_input import config_text, contents_of
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
from tritonffi._waiting import seconds_left

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tritonffi._call import ParameterValue
    from tritonffi._lifecycle import Lifecycle
    from tritonffi._load_input import Content
    from tritonffi._loading import Prepared

logger = logging.getLogger("tritonffi")


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
    text = None if config is None else config_text(name, config)
    contents = contents_of(name, config, files)
    _check_input(lifecycle, name, text, contents)
    prepare = partial(_prepared, lifecycle, name, text, contents)
    deadline = None if timeout is None else time.monotonic() + timeout
    try:
        # Of one whose folder has changed Triton would forget the config; others stay as they are.
        parts = _kept_parts(lifecycle, name, text)
        for part in parts:
            load_with(lifecycle, part, partial(_as_it_is, lifecycle, part), seconds_left(deadline))
        # All of it, where nothing has taken any: errors tell it.
        load_with(lifecycle, name, prepare, seconds_left(deadline) if parts else timeout)
        for part in dead_parts(lifecycle, name):  # Triton keeps them as they are
            load_with(lifecycle, part, partial(_as_it_is, lifecycle, part), seconds_left(deadline))
    except InternalError as error:
        if is_in_repositories(lifecycle, name) or (lifecycle.repository / name).is_dir():
            raise
        raise NotFoundError(str(error)) from None


def _check_input(
    lifecycle: Lifecycle, name: str, config: str | None, contents: Mapping[str, bytes] | None
) -> None:
    """Refuse at once what is wrong whatever the model's folder holds, which is not looked at."""
    if config is None:
        return
    if contents:  # in place of all that is there
        check_model(_folder(lifecycle, name), config, contents)
    else:
        check_config(read_json(config) or {}, name, None)


@contextmanager
def _prepared(
    lifecycle: Lifecycle, name: str, config: str | None, contents: Mapping[str, bytes] | None
) -> Iterator[Prepared]:
    """Have a model's folder as its load needs it; it is as it was where that is refused."""
    with lifecycle.use():
        lifecycle.handle()
        is_ours = not is_in_repositories(lifecycle, name)
        if is_ours and config is None:
            config = _kept_config(lifecycle, name)
        folder = lifecycle.repository / name
        # Serve the private repository, or Triton's index would not know the model.
        is_made = is_ours and config is not None and not contents and not folder.is_dir()
        if is_made:
            (folder / "1").mkdir(parents=True)
        try:
            watched = _check_files(lifecycle, name, config, contents)
        except BaseException:
            if is_made:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        watch = _python_backend.StubWatch(watched) if watched else None
        overrides: dict[str, ParameterValue] = {} if config is None else {"config": config}
        if contents and is_ours:
            with _written(lifecycle, name, contents):
                yield overrides, watch
        else:
            overrides |= {f"file:{path}": content for path, content in (contents or {}).items()}
            yield overrides, watch


def _kept_config(lifecycle: Lifecycle, name: str) -> str | None:
    """Return the config of a model that is loaded, and in no repository; None: there is none.

    Triton would forget it where the folder has changed, which has none: Python, say, writes there
    what it has compiled.
    """
    config = lifecycle.configs.get(name)
    return config if config and name in lifecycle.loaded(lifecycle.handle()) else None


def _kept_parts(lifecycle: Lifecycle, name: str, config: str | None) -> list[str]:
    """List the loaded parts of an ensemble that are in no repository, and have files.

    Each comes after those that it is made of itself, which its load would load, too.

    Args:
        lifecycle: The server's.
        name: The model's, ensemble or not.
        config: That it is about to be loaded with.
    """
    if not lifecycle.configs:
        return []
    with lifecycle.use():
        lifecycle.handle()
        variant = lifecycle.options.model_config_name
        known = dict(lifecycle.parts)
        if config is not None:
            known[name] = parts_of(_folder(lifecycle, name), config)
        elif is_in_repositories(lifecycle, name):
            known.pop(name, None)
        parts = check_circles([name], partial(_folders, lifecycle), known, variant=variant)
        return [
            part
            for part in parts
            if part != name
            and not is_in_repositories(lifecycle, part)
            and _kept_config(lifecycle, part)
            and any(path.is_file() for path in (lifecycle.repository / part).rglob("*"))
        ]


@contextmanager
def _as_it_is(lifecycle: Lifecycle, name: str) -> Iterator[Prepared]:
    """Prepare the load of a part of an ensemble that is about to lose its config, or is dead."""
    with lifecycle.use():
        config = None if is_in_repositories(lifecycle, name) else _kept_config(lifecycle, name)
    yield {} if config is None else {"config": config}, _python_backend.StubWatch([name])


def _check_files(
    lifecycle: Lifecycle, name: str, config: str | None, contents: Mapping[str, bytes] | None
) -> set[str]:
    """Refuse a load that would never be over; return the models that get python processes."""
    folder = _folder(lifecycle, name)
    variant = lifecycle.options.model_config_name
    files = contents or None
    own = {name} if check_model(folder, config, files, variant=variant) else set()
    find = partial(_folders, lifecycle)
    parts = check_parts(folder, config, find, variant=variant)
    if config is not None:
        with _known_parts(lifecycle, name, parts_of(folder, config)) as known:
            check_graph(lifecycle, name, config, known, find)
    else:
        known = dict(lifecycle.parts)
        known.pop(name, None)
        check_graph(lifecycle, name, None, known, find)
    if parts:
        parts -= lifecycle.loaded(lifecycle.handle())
    return own | parts


@contextmanager
def _known_parts(
    lifecycle: Lifecycle, name: str, parts: list[str]
) -> Iterator[dict[str, list[str]]]:
    """Have it known what a model is made of, for good unless that is refused.

    And before it is checked: of two loads that would close a circle together, one at least sees the
    other.
    """
    before = lifecycle.parts.get(name)
    lifecycle.parts[name] = parts
    try:
        yield dict(lifecycle.parts)
    except BaseException:
        if before is None:
            lifecycle.parts.pop(name, None)
        else:
            lifecycle.parts[name] = before
        raise


@contextmanager
def _written(lifecycle: Lifecycle, name: str, contents: Mapping[str, bytes]) -> Iterator[None]:
    """Have a model's folder in the private repository, in place of the one that was there.

    Triton would keep files that it gets with a load where only that load finds them, and look in
    vain for those of a part when it loads an ensemble. Where the load fails, the folder that was
    there before is there again: the model that was loaded from it goes on.
    """
    lifecycle.repository.mkdir(parents=True, exist_ok=True)  # it may have been cleared away
    folder = lifecycle.repository / name
    aside = pathlib.Path(tempfile.mkdtemp(dir=lifecycle.repository.parent))
    made, before = aside / "made", aside / "before"
    try:
        for path, content in contents.items():
            (made / path).parent.mkdir(parents=True, exist_ok=True)
            (made / path).write_bytes(content)
        if folder.is_dir():
            folder.rename(before)
        try:
            made.rename(folder)
            yield
        except BaseException:
            if before.is_dir():
                shutil.rmtree(folder, ignore_errors=True)
                with suppress(OSError):  # as far as that is possible
                    before.rename(folder)
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def new_version(
    lifecycle: Lifecycle, name: str, config: str, *, is_new: bool
) -> Iterator[Prepared]:
    """Have a folder for a function in the private repository; Triton's index asks for one.

    Args:
        lifecycle: The server's.
        name: The function's name.
        config: The function's.
        is_new: Whether it must be another one than before, under which Triton has stored answers.
    """
    with lifecycle.use():
        lifecycle.handle()
        folder = lifecycle.repository / name
        last = _last_version(folder)
        version = folder / str(last + 1 if is_new else max(1, last))
        was_there = version.is_dir()
        version.mkdir(parents=True, exist_ok=True)
        try:
            yield {"config": config}, None
        except BaseException:
            if last and not was_there:  # the one before goes on as the last version
                with suppress(OSError):
                    version.rmdir()
            raise


def _last_version(folder: pathlib.Path) -> int:
    """Return the last version in the folder of a function, which may not be there; 0: none."""
    try:
        # Not by glob, which finds nothing in some Pythons where it cannot look.
        versions = os.listdir(folder)  # noqa: PTH208
    except FileNotFoundError:
        return 0
    return max((int(version) for version in versions if version.isdecimal()), default=0)


def poll(lifecycle: Lifecycle, timeout: float | None) -> None:
    """Look through the repositories for changes; `Server.poll` has the arguments.

    C: ``TRITONSERVER_ServerPollModelRepository``
    """
    _require(lifecycle, ModelControlMode.POLL, "repositories are polled")
    _check_lost(lifecycle)
    watch = _python_backend.StubWatch()

    def call() -> None:
        with lifecycle.use():
            server = lifecycle.handle()
            places = lifecycle.options.paths("model_repository")
            variant = lifecycle.options.model_config_name
            check_repositories(places, partial(_folders, lifecycle), variant=variant)
            lifecycle.loads[threading.get_ident()] = "", watch
            try:
                error = lib.TRITONSERVER_ServerPollModelRepository(server)
                check(error, f"server {lifecycle.name!r}")
            finally:
                lifecycle.loads.pop(threading.get_ident(), None)

    def look() -> None:
        watch()
        _check_lost(lifecycle, watch)  # by another poll, for which this one waits

    mark = _log.capture.mark()
    what = f"polling the repositories of {lifecycle.name!r}"
    try:
        interruptible(call, what, timeout=timeout, watch=look)
    except TritonError as error:
        lifecycle.explain(error, mark)
        raise
    finally:
        _log.capture.forward()


def _check_lost(lifecycle: Lifecycle, besides: _python_backend.StubWatch | None = None) -> None:
    """Refuse to wait for a poll that waits for a process that is dead."""
    if lost := lifecycle.lost_models(besides):
        names = ", ".join(map(repr, sorted(filter(None, lost))))
        raise InternalError(
            f"server {lifecycle.name!r}: the python process of {names or 'a model'} has died in a "
            "poll, which Triton never ends; only another server can load it"
        )


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
        model = plain_text(model, f"{context}: the model name for folder {folder!r}")  # noqa: PLW2901
        if not model.strip() or "/" in model or model in (".", ".."):
            raise InvalidArgumentError(f"{context}: not a name for a model: {model!r}")
        if _folders(lifecycle, model) or (lifecycle.repository / model).is_dir():
            raise AlreadyExistsError(f"{context}: the name {model!r} is another model's already")
        names[plain_text(folder, f"{context}: a folder")] = model
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


def _folder(lifecycle: Lifecycle, name: str) -> pathlib.Path:
    """Return the folder of a model, which may be one that we are yet to make."""
    return [*_folders(lifecycle, name), lifecycle.repository / name][0]


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
    text = plain_path(path)
    return text if "://" in text else os.path.abspath(text)  # noqa: PTH100


def _require(lifecycle: Lifecycle, mode: ModelControlMode, what: str) -> None:
    current = lifecycle.options.model_control_mode
    if current is not mode:
        raise UnsupportedError(
            f"server {lifecycle.name!r}: {what} in model_control_mode {mode.name} only, "
            f"not {current.name}"
        )
