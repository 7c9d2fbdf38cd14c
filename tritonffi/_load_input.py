# SPDX-License-Identifier: Apache-2.0
"""The config and the files that a user gives to a load, as Triton takes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeAlias

from tritonffi._call import encode, plain_text
from tritonffi._errors import InvalidArgumentError

Content: TypeAlias = "bytes | bytearray | memoryview"


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


def contents_of(
    name: str, config: Mapping[str, object] | None, files: Mapping[str, Content] | None
) -> dict[str, bytes] | None:
    """Return copies of what the user gave as files; None: there are none.

    Args:
        name: The model's name, for errors.
        config: Of the same load.
        files: Contents by path, as given.
    """
    if files is None:
        return None
    if not isinstance(files, Mapping):
        raise TypeError(f"model {name!r}: files must be a mapping, not {type(files).__name__}")
    if files and config is None:
        raise InvalidArgumentError(f"model {name!r}: files need a config beside them")
    return {_relative(name, path): _bytes_of(name, path, files[path]) for path in files}


def _relative(model: str, path: str) -> str:
    """Check the path of a file override: below the model's folder, as Triton writes paths."""
    what = f"model {model!r}, file {path!r}"
    encode(path, what)
    path = plain_text(path, what)
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
    if type(content) is bytes:
        return content
    try:
        return memoryview(content).tobytes()
    except TypeError:
        raise TypeError(
            f"model {model!r}, file {path!r}: the content must be bytes, "
            f"not {type(content).__name__}"
        ) from None
