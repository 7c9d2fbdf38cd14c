# SPDX-License-Identifier: Apache-2.0
"""What a server says of its models: the index, what is ready, and their configs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from tritonffi._call import encode_name, json_list, json_object
from tritonffi._errors import TritonError
from tritonffi._native import lib

if TYPE_CHECKING:
    from tritonffi._call import JSON
    from tritonffi._native import CData

# States in which a model still keeps the server busy, and those of one that was told to unload and
# has not done so.
READY: Final = "READY"
UNLOADING: Final = "UNLOADING"
LEAVING: Final = ("LOADING", UNLOADING)
ALIVE: Final = (READY, *LEAVING)


def index(handle: CData, context: str) -> list[dict[str, str]]:
    """Read the model index.

    Args:
        handle: The server's.
        context: What is being done, for errors.

    C: ``TRITONSERVER_ServerModelIndex``
    """
    entries = json_list(lib.TRITONSERVER_ServerModelIndex, handle, 0, context=context)
    return cast("list[dict[str, str]]", entries)


def ready(handle: CData) -> list[dict[str, str]]:
    """List the models that are ready, as the index does, without a look at the repositories.

    C: ``TRITONSERVER_ServerModelStatistics``
    """
    reply = json_object(lib.TRITONSERVER_ServerModelStatistics, handle, b"", -1)
    models = cast("list[dict[str, str]]", reply.get("model_stats", []))
    return [{"name": m["name"], "version": m["version"], "state": READY} for m in models]


def config(handle: CData, name: str) -> dict[str, JSON]:
    """Return a model's config; empty, where that is not to be known.

    C: ``TRITONSERVER_ServerModelConfig``
    """
    try:
        return json_object(
            lib.TRITONSERVER_ServerModelConfig, handle, encode_name(name), -1, 1, context=name
        )
    except TritonError:
        return {}
