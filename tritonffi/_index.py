# SPDX-License-Identifier: Apache-2.0
"""What a server says of its models: the index, what is ready, and their configs."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, cast

from tritonffi._call import encode_name, json_list, json_object
from tritonffi._errors import InvalidArgumentError, NotFoundError, TritonError
from tritonffi._native import lib
from tritonffi._spec import parts_of_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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


def statistics(handle: CData, names: Callable[[], Iterable[str]], context: str) -> dict[str, JSON]:
    """Read the counts of all models that are ready.

    With ``model_namespacing`` Triton does not find its own models by the names under which it looks
    for them, and fails as a whole. Then the models are asked for one by one. That leaves out those
    of which several repositories have one of that name: Triton does not tell them apart.

    Args:
        handle: The server's.
        names: Of the models that may be ready.
        context: What is being done, for errors.

    C: ``TRITONSERVER_ServerModelStatistics``
    """
    try:
        return json_object(lib.TRITONSERVER_ServerModelStatistics, handle, b"", -1, context=context)
    except (InvalidArgumentError, NotFoundError):
        found: list[JSON] = []
        for name in sorted(set(names())):
            found += cast("list[JSON]", _of_model(handle, name).get("model_stats", []))
        return {"model_stats": found}


def _of_model(handle: CData, name: str) -> dict[str, JSON]:
    """Read the counts of one model, of all of its versions; none where it is not ready."""
    with suppress(TritonError):
        return json_object(lib.TRITONSERVER_ServerModelStatistics, handle, encode_name(name), -1)
    return {}


def ready(handle: CData, names: Callable[[], Iterable[str]]) -> list[dict[str, str]]:
    """List the models that are ready, as the index does, without a look at the repositories.

    Args:
        handle: The server's.
        names: Of the models that may be.
    """
    return _as_ready(statistics(handle, names, "the models that are ready"))


def ready_versions(handle: CData, name: str) -> list[dict[str, str]]:
    """List the versions of a model that are ready, as `ready` does, whatever the index knows.

    Args:
        handle: The server's.
        name: The model's name.
    """
    return _as_ready(_of_model(handle, name))


def _as_ready(reply: dict[str, JSON]) -> list[dict[str, str]]:
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


def made_of(handle: CData, name: str) -> dict[str, dict[str, JSON]]:
    """Return the configs of a model and of all that it is made of, down to the last part.

    Args:
        handle: The server's.
        name: The model's, ensemble or not.
    """
    configs: dict[str, dict[str, JSON]] = {}
    ways = [name]
    while ways:
        model = ways.pop()
        if model not in configs:
            configs[model] = config(handle, model)
            ways += parts_of_steps(configs[model])
    return configs
