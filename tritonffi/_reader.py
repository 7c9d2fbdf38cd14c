# SPDX-License-Identifier: Apache-2.0
"""What a server says of one model: the questions that handles on it ask."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING

from tritonffi._call import check, encode_name, json_object, out_bool
from tritonffi._errors import InvalidArgumentError, TritonError
from tritonffi._native import ffi, lib
from tritonffi._spec import ModelSpec
from tritonffi._steps import sequenced_in, stuck_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tritonffi._call import JSON, CFunction
    from tritonffi._lifecycle import Lifecycle
    from tritonffi._server import Server

logger = logging.getLogger("tritonffi")

_LATEST = -1
# What Triton says of a name that models of several repositories have.
_SEVERAL = "model namespace must be provided"


class ModelReader:
    """Asks Triton about a model.

    A `Model` has one, and so has what starts inferences for it. The way does not lead back to the
    model: a handle that is dropped is gone at once, and with it perhaps the server.

    Args:
        server: The server, which lives as long as somebody may ask.
        lifecycle: Its life.
        name: The model's name.
        version: Its version, or -1.
    """

    __slots__ = ("_lifecycle", "_name", "_native_name", "_server", "_version")

    def __init__(self, server: Server, lifecycle: Lifecycle, name: str, version: int) -> None:
        self._server = server
        self._lifecycle = lifecycle
        self._name = name
        self._version = version
        self._native_name = encode_name(name)

    def metadata(self) -> dict[str, JSON]:
        """Return the model's metadata.

        C: ``TRITONSERVER_ServerModelMetadata``
        """
        return self.json(lib.TRITONSERVER_ServerModelMetadata)

    def check_name(self) -> None:
        """Refuse a name that models of several repositories have, as the statistics do not.

        Raises:
            InvalidArgumentError: It is one.
        """
        try:
            self.metadata()
        except InvalidArgumentError as error:
            if _SEVERAL in str(error):
                raise InvalidArgumentError(
                    f"{error} Several repositories have a model of that name (model_namespacing), "
                    "and nothing in the C API says which one is meant"
                ) from None
        except TritonError:
            pass  # it is not loaded

    def config(self) -> dict[str, JSON]:
        """Return the model's config.

        C: ``TRITONSERVER_ServerModelConfig``
        """
        return self.json(lib.TRITONSERVER_ServerModelConfig, 1)

    def is_ready(self) -> bool:
        """Return whether the model takes requests.

        C: ``TRITONSERVER_ServerModelIsReady``
        """
        with self._lifecycle.use():
            server = self._lifecycle.handle()
            return out_bool(
                lib.TRITONSERVER_ServerModelIsReady,
                server,
                self._native_name,
                self._version,
                context=f"model {self._name!r}",
            )

    def json(self, function: CFunction, *arguments: int) -> dict[str, JSON]:
        """Call a function that answers with a JSON object."""
        with self._lifecycle.use():
            server = self._lifecycle.handle()
            return json_object(
                function,
                server,
                self._native_name,
                self._version,
                *arguments,
                context=f"model {self._name!r}",
            )

    def flags(self, function: CFunction) -> int:
        """Call a function that answers with flags."""
        flags = ffi.new("uint32_t *")
        unused = ffi.new("void **")
        with self._lifecycle.use():
            server = self._lifecycle.handle()
            error = function(server, self._native_name, self._version, flags, unused)
            check(error, f"model {self._name!r}")
        return int(flags[0])

    def spec(self) -> ModelSpec:
        """Return what the model takes and gives."""
        spec = self._own_spec()
        if spec.is_cached and (names := spec.ambiguous_inputs()):
            logger.warning(
                "model %r: Triton's response cache does not look at shapes: a request gets the "
                "answer to another one whose %s had the same bytes in another shape",
                self._name,
                " and ".join(map(repr, names)),
            )
        if spec.parts:
            parts = list(self._parts(spec, "", set()))
            flows = {each.name: each.flow for each in (spec, *(part for part, _ in parts))}
            cached = ((cache, part.name) for part, cache in parts if cache and part.is_function)
            spec = dataclasses.replace(
                spec,
                passive=next((part.passive for part, _ in parts if part.passive), ""),
                reruns=next((part.reruns for part, _ in parts if part.reruns), ""),
                remembers=next(cached, None),
                stuck=stuck_in(flows),
                sequenced=sequenced_in(flows),
            )
        return spec

    def _own_spec(self) -> ModelSpec:
        """Return what the model takes and gives, without a look at its parts."""
        config = self.config()
        if not self._lifecycle.has_cache:
            config.pop("response_cache", None)
        return ModelSpec.from_json(self.metadata(), config)

    def _parts(
        self, spec: ModelSpec, cache: str, seen: set[tuple[str, str]]
    ) -> Iterator[tuple[ModelSpec, str]]:
        """Read what an ensemble is made of, down to the last part.

        Args:
            spec: The ensemble's; that of another model has no parts.
            cache: The ensemble with a cache that it is a part of; empty: none.
            seen: What was yielded, by name; what is shared by many is read but once.

        Yields:
            Each part, and the ensemble with a cache that it is a part of.
        """
        if spec.is_cached:
            cache = spec.name
        for name in spec.parts:
            if (name, cache) in seen:
                continue
            seen.add((name, cache))
            reader = ModelReader(self._server, self._lifecycle, name, _LATEST)
            try:
                part = reader._own_spec()
            except TritonError:  # it is not loaded any more
                continue
            yield part, cache
            yield from reader._parts(part, cache, seen)
