# SPDX-License-Identifier: Apache-2.0
"""Requests that wait for processes of the python backend that have died.

Triton asks whether a process lives when it gives it a request, and while it waits for the process
to take note. Once the process has given a request back, and is to answer it yet, nobody asks any
more: who waits for the answer waits for ever. And of what is queued behind a dead process one
request after the other fails, each after a second. So the inferences that can get no answer any
more are told here, with the error that Triton has for the others.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from tritonffi import _python_backend
from tritonffi._errors import InternalError
from tritonffi._index import config as config_of
from tritonffi._inference import kept_in
from tritonffi._spec import parts_of_steps
from tritonffi._stub_records import of_instances, records

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from tritonffi._call import JSON
    from tritonffi._inference import Inference
    from tritonffi._native import CData
    from tritonffi._stub_records import StubRecord

# For how long an inference waits for nobody before it is told: what a process had sent when it died
# is on its way. Those who look do so once a second.
_ON_ITS_WAY_S: Final = 0.9


class StubDeaths:
    """The processes that run models of a server, and what waits for dead ones.

    Attributes:
        replaced: By model, the processes that loads have replaced: the backend may keep them for
            ever, dead or alive.
        bereaved: Models of which inferences were told.
    """

    def __init__(self, folder: Path) -> None:
        """
        Know of none yet.

        Args:
            folder: Where the script that starts processes writes.
        """
        self.replaced: dict[str, set[StubRecord]] = {}
        self.bereaved: set[str] = set()
        self._folder = folder
        self._configs: dict[str, Mapping[str, JSON]] = {}
        self._since: dict[int, float] = {}

    def records(self, name: str | None = None) -> set[StubRecord]:
        """Return the processes of the python backend that Triton has not let go.

        Args:
            name: Leave out what loads of this model have replaced.
        """
        found = set(records(self._folder))
        return found if name is None else found - self.replaced.get(name, set())

    def remember(self, configs: Mapping[str, Mapping[str, JSON]]) -> None:
        """Keep the configs of models that are told to unload: Triton does not give them then."""
        self._configs.update(configs)

    def look(self, handle: CData, inferences: Iterable[Inference], *, is_closing: bool) -> None:
        """Tell the inferences that have waited for dead processes for a while.

        Of an ensemble other steps may go on, and need no dead process. So it is given up in a close
        alone, which does not wait for others for ever.

        Args:
            handle: The server's.
            inferences: What is in flight.
            is_closing: Whether all of it is cancelled.
        """
        before, self._since = self._since, {}
        if not any(record.is_dead() for record in self.records()):
            return
        now = time.monotonic()
        for inference, error in self.waiting(handle, inferences, with_ensembles=is_closing):
            token = inference.live_token()
            since = self._since[token] = before.get(token, now)
            is_whole = bool(parts_of_steps(self._config(handle, inference.model_name)))
            limit = _python_backend.PATIENCE_S if is_whole else _ON_ITS_WAY_S
            if now - since >= limit:
                self.tell([(inference, error)])

    def waiting(
        self, handle: CData, inferences: Iterable[Inference], *, with_ensembles: bool = False
    ) -> list[tuple[Inference, InternalError]]:
        """Return the inferences that nobody is there for, and what to tell them.

        Args:
            handle: The server's.
            inferences: What is in flight.
            with_ensembles: Also those of ensembles of which one part has nobody.
        """
        dead: dict[str, str | None] = {}
        found = []
        for inference in inferences:
            name = inference.model_name
            if inference.is_settled() or not inference.live_token():
                continue
            if name not in dead:
                dead[name] = self._dead_instance(handle, name, with_ensembles=with_ensembles)
            if dead[name] is not None:
                text = f"model {name!r}: Stub process '{dead[name]}' is not healthy."
                found.append((inference, InternalError(text)))
        return found

    def tell(self, waiting: Iterable[tuple[Inference, InternalError]]) -> None:
        """Tell inferences that they get no answer, unless one has come."""
        for inference, error in waiting:
            if not inference.is_settled():
                self.bereaved.add(inference.model_name)
                inference.fail(error)

    def kept(self, inferences: Iterable[Inference]) -> set[str]:
        """Return the models of which Triton still has requests of inferences that were told."""
        return self.bereaved & kept_in(inferences)

    def _config(self, handle: CData, name: str) -> Mapping[str, JSON]:
        return config_of(handle, name) or self._configs.get(name, {})

    def _dead_instance(self, handle: CData, name: str, *, with_ensembles: bool) -> str | None:
        """Return an instance of a model whose processes are dead, all of them; None: they are not.

        As long as one lives, it may have the requests.
        """
        seen: set[str] = set()
        ways = [name]
        while ways:
            model = ways.pop()
            if model in seen:
                continue
            seen.add(model)
            config = self._config(handle, model)
            stubs = of_instances(config, self.records(model))
            # Where the disk was full, there is none of one that lives.
            if len(stubs) >= _instance_count(config) and all(stub.is_dead() for stub in stubs):
                return min((stub.instance for stub in stubs), default=None)
            if with_ensembles:
                ways += parts_of_steps(config)
        return None


def _instance_count(config: Mapping[str, JSON]) -> int:
    """Return how many instances a model has; 1 where that is not to be known."""
    groups = config.get("instance_group")
    count = 0
    for group in groups if isinstance(groups, list) else ():
        if isinstance(group, dict):
            gpus = group.get("gpus")
            devices = len(gpus) if isinstance(gpus, list) else 0
            count += int(str(group.get("count", 1))) * max(1, devices)
    return max(1, count)
