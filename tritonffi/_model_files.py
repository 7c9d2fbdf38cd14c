# SPDX-License-Identifier: Apache-2.0
"""Folders of models that Triton had better not see; they are looked through before.

The process that shall run a model of Triton's python backend says on stderr that the model's file
is missing, and ends; Triton waits for its word for ever, in a load as in the start of a server
(triton-inference-server/server#8766). A version that is no number of 64 bits ends the process, and
a negative one is served, but cannot be asked for. A circle of ensembles that leads past the one
that is loaded is followed until the stack is full.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

from tritonffi._enums import ModelControlMode
from tritonffi._errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from tritonffi._options import ServerOptions

# As in config.pbtxt, or in JSON, where protobuf takes the names in either form.
_IS_PYTHON = re.compile(r"""\bbackend"?\s*:\s*["']python["']""")
_FILE = re.compile(
    r"""\b(?:default_model_filename|defaultModelFilename)"?\s*:\s*["']([^"']+)["']"""
)
_IS_ENSEMBLE = re.compile(r"""\b(?:ensemble_scheduling|ensembleScheduling)\b""")
_PART = re.compile(r"""\b(?:model_name|modelName)"?\s*:\s*["']([^"']+)["']""")
_HAS_POLICY = re.compile(r"""\b(?:version_policy|versionPolicy)\b""")
_COMMENT = re.compile(r"^\s*#.*", re.MULTILINE)
# As strtoll reads it: what comes behind the digits does not matter.
_VERSION = re.compile(r"\s*([+-]?[0-9]+)")
_LAST_VERSION = 2**63 - 1


def check_start(options: ServerOptions) -> None:
    """Refuse to start with a model that Triton would wait for.

    Raises:
        InvalidArgumentError: It lacks its file.
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

    check_repositories(places, find, names)
    for name in names or ():
        for folder in find(name):
            check_parts(folder, None, find)


def check_repositories(
    places: Iterable[str],
    find: Callable[[str], Iterable[Path]],
    names: Collection[str] | None = None,
) -> None:
    """Refuse repositories with a model that Triton would wait for, or with a circle of ensembles.

    Args:
        places: Folders, and URLs, into which nobody can look.
        find: Gives the folders of a model.
        names: Of the models to look at; None: all.

    Raises:
        InvalidArgumentError: There is one.
    """
    folders = [Path(place) for place in places if "://" not in place]
    for folder in folders:
        for model in sorted(folder.iterdir()):
            if names is None or model.name in names:
                check_model(model)
    if names is None:
        names = [model.name for folder in folders for model in sorted(folder.iterdir())]
    check_circles(names, find)


def check_circles(
    names: Iterable[str],
    find: Callable[[str], Iterable[Path]],
    known: Mapping[str, Iterable[str]] | None = None,
) -> None:
    """Refuse ensembles that contain one another.

    Triton refuses a circle that the model is in which it loads, and remembers it: where another one
    leads to it, that is a recursion without end.

    Args:
        names: Of models from which a circle may be reached.
        find: Gives the folders of a model.
        known: What is known of the parts of models otherwise.

    Raises:
        InvalidArgumentError: They do.
    """

    def parts(name: str) -> Iterator[str]:
        if known is not None and name in known:
            return iter(known[name])
        return iter([part for folder in find(name) for part in parts_of(folder, None)])

    seen: set[str] = set()
    for first in names:
        way = {first: parts(first)}  # from each to the next, with what is left to be looked at
        while way:
            name, left = next(reversed(way.items()))
            part = next(left, None)
            if part is None:
                seen.add(name)
                del way[name]
            elif part in way:
                circle = [*list(way)[list(way).index(part) :], part]
                raise InvalidArgumentError(
                    f"model {first!r}: ensembles contain one another: {' -> '.join(circle)}"
                )
            elif part not in seen:
                way[part] = parts(part)


def check_model(
    folder: Path, config: str | None = None, files: Collection[str] | None = None
) -> bool:
    """Refuse a model that Triton would wait for.

    Args:
        folder: The model's.
        config: What is used in place of the config that is there.
        files: What is used in place of all files that are there, as paths in the folder.

    Returns:
        Whether it is one of the python backend.

    Raises:
        InvalidArgumentError: It lacks its file, or has a version that cannot be one.
    """
    with contextlib.suppress(OSError):  # what cannot be read is for Triton to say
        _check_versions(folder, files)
        config = _config_text(folder, config)
        if not _IS_PYTHON.search(config):
            return False
        if files is None:
            files = [str(p.relative_to(folder)) for p in folder.glob("[0-9]*/*") if p.exists()]
            versions = {path.name for path in folder.glob("[0-9]*")}
        else:
            versions = {path.partition("/")[0] for path in files}
        match = _FILE.search(config)
        file = "model.py" if match is None else match[1]
        numbers = sorted((version for version in versions if version.isdecimal()), key=int)
        if not _HAS_POLICY.search(config):
            del numbers[:-1]  # that is the one that is loaded
        if numbers and not any(f"{number}/{file}" in files for number in numbers):
            raise InvalidArgumentError(
                f"model {folder.name!r}: {folder / numbers[-1] / file} is missing, without which "
                "Triton's python backend would never have done with loading the model"
            )
        return True
    return False


def _check_versions(folder: Path, files: Collection[str] | None) -> None:
    """Refuse versions beyond 64 bits, and negative ones."""
    if files is None:
        versions = [path.name for path in folder.iterdir() if path.is_dir()]
    else:
        versions = [path.partition("/")[0] for path in files if "/" in path]
    for version in versions:
        number = _VERSION.match(version)
        if number and not 0 <= int(number[1]) <= _LAST_VERSION:
            raise InvalidArgumentError(
                f"model {folder.name!r}: folder {version!r} is no version: versions are numbers "
                "between 0 and 2**63 - 1"
            )


def check_parts(
    folder: Path, config: str | None, find: Callable[[str], Iterable[Path]]
) -> set[str]:
    """Refuse an ensemble that has a part for which Triton would wait.

    With the ensemble Triton loads each part anew whose folder is not what the part was loaded from,
    because a file is gone or because it was loaded with other files: so all are looked at.

    Args:
        folder: The model's, ensemble or not.
        config: What is used in place of the config that is there.
        find: Gives the folders of a model.

    Returns:
        The parts that are of the python backend.

    Raises:
        InvalidArgumentError: A part lacks its file.
    """
    seen: set[str] = set()
    python: set[str] = set()
    coming = parts_of(folder, config)
    while coming:
        part = coming.pop()
        if part in seen:
            continue
        seen.add(part)
        for found in find(part):
            try:
                if check_model(found):
                    python.add(part)
            except InvalidArgumentError as error:
                raise InvalidArgumentError(f"ensemble {folder.name!r}, {error}") from None
            coming += parts_of(found, None)
    return python


def parts_of(folder: Path, config: str | None) -> list[str]:
    """List the models that an ensemble is made of; none of another model."""
    with contextlib.suppress(OSError):
        config = _config_text(folder, config)
        if _IS_ENSEMBLE.search(config):
            return _PART.findall(config)
    return []


def _config_text(folder: Path, config: str | None) -> str:
    """Return the config of a model without its comments."""
    if config is None:
        config = (folder / "config.pbtxt").read_text(encoding="utf-8", errors="replace")
    return _COMMENT.sub("", config)
