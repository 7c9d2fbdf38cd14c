# SPDX-License-Identifier: Apache-2.0
"""Libraries for custom batching that Triton had better not see.

Of five functions it wants all or none. Where some are missing it takes the library back while it
holds the lock under which it has loaded it, and waits for that lock for ever: so does every later
load in the process (`SetBatchingStrategy` in core's `backend_model.cc`).
"""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tritonffi import _elf
from tritonffi._config_text import items, text_of
from tritonffi._errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from tritonffi._config_text import Message

PARAMETER: Final = "TRITON_BATCH_STRATEGY_PATH"
FILE: Final = "batchstrategy.so"
FUNCTIONS: Final = frozenset(
    f"TRITONBACKEND_Model{name}".encode()
    for name in (
        "BatchIncludeRequest",
        "BatchInitialize",
        "BatchFinalize",
        "BatcherInitialize",
        "BatcherFinalize",
    )
)


def check_named(config: Message, name: str) -> None:
    """Refuse a library that a config names.

    Args:
        config: The model's.
        name: The model's.

    Raises:
        InvalidArgumentError: With it Triton would wait for ever, or crash.
    """
    path = None if _has_none(config) else _named(config)
    # The loader looks for a plain name elsewhere; and of some Triton says what is wrong.
    if path is not None and "/" in path and "://" not in path and "\0" not in path:
        _check_file(Path(path), f"model {name!r}: config: {PARAMETER}: {path!r}")


def check_found(
    config: Message,
    folder: Path,
    versions: Collection[int],
    files: Mapping[str, bytes] | None,
) -> None:
    """Refuse a library that Triton finds in a model's folder, that of a version first.

    Args:
        config: The model's.
        folder: The model's.
        versions: Those that are loaded.
        files: What is used in place of all files that are there, by paths in the folder.

    Raises:
        InvalidArgumentError: As of `check_named`.
    """
    if _has_none(config) or _named(config) is not None:
        return
    for version in versions:
        for path in (f"{version}/{FILE}", FILE):
            where = f"model {folder.name!r}: {folder / path}"
            if files is None and os.path.exists(folder / path):  # noqa: PTH110 (never raises)
                _check_file(folder / path, where)
                break
            if files is not None and path in files:
                _check(files[path], where)
                break


def _has_none(config: Message) -> bool:
    """Say whether Triton looks for no library, whatever there is."""
    return "sequence_batching" in config or "ensemble_scheduling" in config


def _named(config: Message) -> str | None:
    """Return the path that a config names."""
    parameters = dict(items(config, "parameters"))
    return text_of(parameters[PARAMETER], "string_value") if PARAMETER in parameters else None


def _check_file(path: Path, where: str) -> None:
    with contextlib.suppress(OSError):  # what cannot be read is for Triton to say
        if not stat.S_ISREG(path.stat().st_mode):
            raise InvalidArgumentError(f"{where} is no regular file: expected a library")
        if path.stat().st_size == 0:
            return  # nothing to map
        short = _elf.cut_short(path)
        if short is not None:  # the loader would end the process
            raise InvalidArgumentError(f"{where} is cut short: {short}")
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            _check(content, where)


def _check(content: bytes | mmap.mmap, where: str) -> None:
    there = FUNCTIONS & _elf.defined(content)
    if there and there != FUNCTIONS:
        missing = ", ".join(sorted(name.decode() for name in FUNCTIONS - there))
        raise InvalidArgumentError(
            f"{where} has no {missing}: expected all five functions for custom batching, or none"
        )
