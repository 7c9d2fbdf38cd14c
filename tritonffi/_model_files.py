# SPDX-License-Identifier: Apache-2.0
"""Folders of models that Triton had better not see; they are looked through before.

The process that shall run a model of Triton's python backend says on stderr that the model's file
is missing, and ends; Triton waits for its word for ever, in a load as in the start of a server
(triton-inference-server/server#8766). A version that is no number of 64 bits ends the process, and
a negative one is served, but cannot be asked for. A circle of ensembles that leads past the one
that is loaded is followed until the stack is full. And it reads a folder where it expects a file.
What it must not see of a library for custom batching is in `_batch_strategy`.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from tritonffi._batch_strategy import check_found
from tritonffi._config_checks import check_config, sizes_in, sizes_of
from tritonffi._config_text import (
    integer,
    is_true,
    messages,
    number,
    numbers,
    only,
    read_json,
    read_text,
    text_of,
)
from tritonffi._enums import ModelControlMode
from tritonffi._errors import InvalidArgumentError
from tritonffi._steps import Flow, flow_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from tritonffi._config_text import Message
    from tritonffi._options import ServerOptions

# As strtoll reads it: what comes behind the digits does not matter.
_VERSION = re.compile(r"[ \t\n\v\f\r]*([+-]?[0-9]+)")
_LAST_VERSION = 2**63 - 1
_LARGEST_CONFIG = 2**30  # bytes, of which a config has some thousands


def check_start(options: ServerOptions) -> None:
    """Refuse to start with a model that Triton would wait for, or crash with.

    Raises:
        InvalidArgumentError: There is one.
    """
    names: Collection[str] | None = options.startup_models
    if "*" in options.startup_models or (
        options.model_control_mode is not ModelControlMode.EXPLICIT
    ):
        names = None
    places = options.paths("model_repository")
    folders = [Path(place) for place in places if "://" not in place]

    def find(name: str) -> list[Path]:
        return [folder / name for folder in folders if (folder / name).is_dir()]

    variant = options.model_config_name
    check_repositories(places, find, names, variant=variant)
    for name in names or ():
        for folder in find(name):
            check_parts(folder, None, find, variant=variant)


def check_repositories(
    places: Iterable[str],
    find: Callable[[str], Iterable[Path]],
    names: Collection[str] | None = None,
    *,
    variant: str = "",
) -> None:
    """Refuse repositories with a model that Triton would wait for, or crash with.

    Args:
        places: Folders, and URLs, into which nobody can look.
        find: Gives the folders of a model.
        names: Of the models to look at; None: all.
        variant: Of the configs, as of `check_model`.

    Raises:
        InvalidArgumentError: There is one.
    """
    folders = [Path(place) for place in places if "://" not in place]
    for folder in folders:
        for model in sorted(folder.iterdir()):
            if names is None or model.name in names:
                check_model(model, variant=variant)
    if names is None:
        names = [model.name for folder in folders for model in sorted(folder.iterdir())]
    check_circles(names, find, variant=variant)


def check_circles(
    names: Iterable[str],
    find: Callable[[str], Iterable[Path]],
    known: Mapping[str, Iterable[str]] | None = None,
    *,
    variant: str = "",
) -> list[str]:
    """Refuse ensembles that contain one another.

    Triton refuses a circle that the model is in which it loads, and remembers it: where another one
    leads to it, that is a recursion without end.

    Args:
        names: Of models from which a circle may be reached.
        find: Gives the folders of a model.
        known: What is known of the parts of models otherwise.
        variant: Of the configs, as of `check_model`.

    Returns:
        The models, and all that they are made of; each after its own parts.

    Raises:
        InvalidArgumentError: They do.
    """

    def parts(name: str) -> Iterator[str]:
        if known is not None and name in known:
            return iter(known[name])
        found = (parts_of(folder, None, variant=variant) for folder in find(name))
        return iter([part for parts in found for part in parts])

    seen: dict[str, None] = {}  # for its order
    for first in names:
        way = {first: parts(first)}  # from each to the next, with what is left to be looked at
        while way:
            name, left = next(reversed(way.items()))
            part = next(left, None)
            if part is None:
                seen[name] = None
                del way[name]
            elif part in way:
                circle = [*list(way)[list(way).index(part) :], part]
                raise InvalidArgumentError(
                    f"model {first!r}: ensembles contain one another: {' -> '.join(circle)}"
                )
            elif part not in seen:
                way[part] = parts(part)
    return list(seen)


def check_model(
    folder: Path,
    config: str | None = None,
    files: Mapping[str, bytes] | None = None,
    *,
    variant: str = "",
) -> bool:
    """Refuse a model that Triton would wait for, or crash with.

    Args:
        folder: The model's.
        config: What is used in place of the config that is there.
        files: What is used in place of all files that are there, by paths in the folder.
        variant: The name of the config that goes before config.pbtxt, where the model has it.

    Returns:
        Whether it is one of the python backend.

    Raises:
        InvalidArgumentError: It lacks its file, has a version that cannot be one, or a config with
            which Triton would end the process.
    """
    with contextlib.suppress(OSError):  # what cannot be read is for Triton to say
        versions = _versions(folder, files)
        read = _config(folder, config, variant)
        sizes = {path: len(content) for path, content in (files or {}).items()}
        size_of = sizes_in(folder) if files is None else sizes_of(sizes)
        # An agent may have Triton look for the files in another folder.
        has_agents = "model_repository_agents" in read
        check_config(read, folder.name, None if has_agents else size_of)
        if not has_agents:
            check_found(read, folder, _loaded(read, versions), files)
        if not _is_python(read, folder.name):
            return False
        file = text_of(read, "default_model_filename") or "model.py"
        for version in () if has_agents else _loaded(read, versions):
            size = size_of(f"{version}/{file}")
            if size is None or size < 0:
                raise InvalidArgumentError(
                    f"model {folder.name!r}: {folder}/{version}/{file} is missing, without which "
                    "Triton's python backend would never have done with loading the model"
                )
        return True
    return False


def _is_python(config: Message, name: str) -> bool:
    """Say whether Triton takes the python backend; without a word of it, the name may say so."""
    backend = text_of(config, "backend")
    if backend or text_of(config, "platform"):
        return backend == "python"
    return text_of(config, "default_model_filename") == "model.py" or name.endswith(".python")


def _versions(folder: Path, files: Mapping[str, bytes] | None) -> set[int]:
    """Return the versions that Triton sees; refuse those beyond 64 bits, and negative ones.

    In which folder it has seen one Triton does not remember: it looks in that of the plain number.
    """
    if files is None:
        names = [path.name for path in folder.iterdir() if path.is_dir()]
    else:
        names = [path.partition("/")[0] for path in files if "/" in path]
    versions = set()
    for name in names:
        match = _VERSION.match(name)
        if match is None or (name != "0" and name.startswith("0")):
            continue  # Triton passes over it
        version = integer(match[1])
        if not 0 <= version <= _LAST_VERSION:
            raise InvalidArgumentError(
                f"model {folder.name!r}: folder {name!r} is no version: versions are numbers "
                "between 0 and 2**63 - 1"
            )
        versions.add(version)
    return versions


def _loaded(config: Message, versions: Collection[int]) -> list[int]:
    """Return which of the versions that are there are loaded, by the config's policy."""
    newest = sorted(versions, reverse=True)
    if "version_policy" not in config:
        return newest[:1]
    policy = only(config, "version_policy")
    if "specific" in policy:
        wanted = Counter(numbers(only(policy, "specific"), "versions"))
        # Of one that is not there Triton takes note, and finds it when it is named again.
        return [version for version in wanted if version in versions or wanted[version] > 1]
    if "latest" in policy:
        return newest[: max(0, number(only(policy, "latest"), "num_versions"))]
    return newest  # which is also meant where the policy is empty


def check_parts(
    folder: Path,
    config: str | None,
    find: Callable[[str], Iterable[Path]],
    *,
    variant: str = "",
) -> set[str]:
    """Refuse an ensemble that has a part for which Triton would wait, or with which it crashes.

    With the ensemble Triton loads each part anew whose folder is not what the part was loaded from,
    because a file is gone or because it was loaded with other files: so all are looked at.

    Args:
        folder: The model's, ensemble or not.
        config: What is used in place of the config that is there.
        find: Gives the folders of a model.
        variant: Of the configs, as of `check_model`.

    Returns:
        The parts that are of the python backend.

    Raises:
        InvalidArgumentError: There is one.
    """
    seen: set[str] = set()
    python: set[str] = set()
    coming = parts_of(folder, config, variant=variant)
    while coming:
        part = coming.pop()
        if part in seen:
            continue
        seen.add(part)
        for found in find(part):
            try:
                if check_model(found, variant=variant):
                    python.add(part)
            except InvalidArgumentError as error:
                raise InvalidArgumentError(f"ensemble {folder.name!r}, {error}") from None
            coming += parts_of(found, None, variant=variant)
    return python


def parts_of(folder: Path, config: str | None, *, variant: str = "") -> list[str]:
    """List the models that an ensemble is made of; none of another model."""
    with contextlib.suppress(OSError):
        steps = messages(only(_config(folder, config, variant), "ensemble_scheduling"), "step")
        return [name for step in steps if (name := text_of(step, "model_name"))]
    return []


def is_cached(folder: Path, config: str | None, *, variant: str = "") -> bool:
    """Say whether Triton may answer in a model's place what it has answered before."""
    with contextlib.suppress(OSError):
        return is_true(only(_config(folder, config, variant), "response_cache"), "enable")
    return False


def flow_in(folder: Path, config: str | None, *, variant: str = "") -> Flow:
    """Return how requests go through a model."""
    with contextlib.suppress(OSError):
        return flow_of(_config(folder, config, variant))
    return Flow()


def _config(folder: Path, config: str | None, variant: str) -> Message:
    """Return the config of a model; of one that cannot be read Triton says so."""
    if config is not None:
        return read_json(config) or {}
    path = folder / "config.pbtxt"
    if variant:
        # As Triton puts it together, where an absolute path is none.
        special = Path(f"{folder}/configs/{variant}.pbtxt")
        path = special if os.path.exists(special) else path  # noqa: PTH110 (of any length)
    if not path.exists():
        return {}
    if not path.is_file():
        raise InvalidArgumentError(
            f"model {folder.name!r}: {path} is no regular file: expected the model's config"
        )
    size = path.stat().st_size
    if size > _LARGEST_CONFIG:
        raise InvalidArgumentError(
            f"model {folder.name!r}: {path} has {size} bytes: expected at most {_LARGEST_CONFIG}"
        )
    # Not as a text file, in which other characters than LF would end a line, and a comment.
    return read_text(path.read_bytes().decode("utf-8", "surrogateescape")) or {}
