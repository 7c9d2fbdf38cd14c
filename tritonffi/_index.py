# SPDX-License-Identifier: Apache-2.0
"""What a server says of its models: the index, and which are ensembles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from tritonffi._call import encode_name, json_list, json_object
from tritonffi._errors import TritonError
from tritonffi._native import lib

if TYPE_CHECKING:
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


def is_ensemble(handle: CData, name: str) -> bool:
    """Return whether a model is made of others; not, where that is not to be known.

    C: ``TRITONSERVER_ServerModelConfig``
    """
    try:
        config = json_object(
            lib.TRITONSERVER_ServerModelConfig, handle, encode_name(name), -1, 1, context=name
        )
    except TritonError:
        return False
    return config.get("platform") == "ensemble"
