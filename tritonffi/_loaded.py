# SPDX-License-Identifier: Apache-2.0
"""What is loaded into a server, and how it is let go.

Triton's index tells that, as long as Triton can look through all of its repositories: where the
folder of one has gone, or one entry leads nowhere, the index fails as a whole. Then its statistics
tell what is ready, and the server closes without the repository. Nor does the index show a model
that is in no repository any more, or never was in one, though it is loaded.
"""

from __future__ import annotations

import logging
import os
import time
from abc import ABC, abstractmethod
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tritonffi import _python_backend
from tritonffi._call import encode_name, encode_path, take_error
from tritonffi._errors import TritonError, UnavailableError
from tritonffi._index import (
    ALIVE,
    LEAVING,
    READY,
    UNLOADING,
    config,
    index,
    ready,
    ready_versions,
    statistics,
)
from tritonffi._inference import kept_in, still_there, unanswered
from tritonffi._native import lib
from tritonffi._rest import held
from tritonffi._stub_deaths import StubDeaths
from tritonffi._stub_records import FOLDER, of_instances

if TYPE_CHECKING:
    import threading
    from collections.abc import Collection, Iterator

    from tritonffi._call import JSON
    from tritonffi._functions import FunctionModel
    from tritonffi._inference import Inference
    from tritonffi._native import CData
    from tritonffi._options import ServerOptions
    from tritonffi._stub_records import StubRecord

logger = logging.getLogger("tritonffi")

_KEPT_S = 1.0  # for the steps of an ensemble that go on after it has failed
_POLL_S = 0.001
# A model that was told to unload for less may be about to do so.
_GOING_S = 0.1


class LoadedModels(ABC):
    """What is loaded into a server.

    Attributes:
        name: The server's.
        options: As the user gave them.
        repository: A private model repository, for models that are loaded from a config alone.
        functions: Python callables that are loaded as models, by name.
        retired: Those that were replaced or unloaded while a call of theirs still ran.
        registered: Repositories added since the start, and their names of models by folder.
        hidden: Models that are loaded and not in Triton's index: their repository was taken away,
            or their folder, or a model of the python backend has loaded them by itself.
        parts: Of models that were given a config, whether they have loaded or not.
        configs: Of models that are in no repository of the user's, as Triton got them last.
        failed_reloads: Models that did not load while they were loaded (`Process.remove`).
        turns: By model, held by the one thread that may load or unload it.
        loads: Those that a python process may keep in Triton: by thread, the model (empty: any, as
            in a poll), and what looks.
        deaths: The python processes, and what waits for dead ones.
    """

    def __init__(self, options: ServerOptions, repository: Path) -> None:
        self.name = options.server_id
        self.options = options
        self.repository = repository
        self.functions: dict[str, FunctionModel] = {}
        self.retired: list[FunctionModel] = []
        self.registered: dict[str, dict[str, str]] = {}
        self.hidden: set[str] = set()
        self.parts: dict[str, list[str]] = {}
        self.configs: dict[str, str] = {}
        self.failed_reloads: set[str] = set()
        self.turns: dict[str, threading.RLock] = {}
        self.loads: dict[int, tuple[str, _python_backend.StubWatch]] = {}
        self.deaths = StubDeaths(repository.parent / "backends" / "python" / FOLDER)
        # Of models of the python backend, the dead processes when they were told to go.
        self._dead: dict[str, set[StubRecord]] = {}
        self._told: float | None = None  # all to unload, since when
        # In the index, or asked for, since the start.
        self._seen: set[str] = set()

    @property
    def has_cache(self) -> bool:
        """Whether Triton stores responses; otherwise it ignores that models ask for it."""
        return bool(self.options.cache_config or self.options.response_cache_byte_size)

    @abstractmethod
    def inferences(self) -> list[Inference]:
        """Return what is in flight, after taking what came of it."""

    def index(self, handle: CData) -> list[dict[str, str]]:
        """Read the model index.

        C: ``TRITONSERVER_ServerModelIndex``
        """
        entries = index(handle, f"server {self.name!r}")
        self._seen |= {entry["name"] for entry in entries}
        return entries

    def statistics(self, handle: CData) -> dict[str, JSON]:
        """Read the counts of all models that are ready, but for those that `statistics` leaves out.

        C: ``TRITONSERVER_ServerModelStatistics``
        """
        return statistics(handle, lambda: self._names(handle), f"server {self.name!r}")

    def _names(self, handle: CData) -> set[str]:
        """Return the names of all models that may be ready, also where the index fails."""
        names = self._seen | self.hidden | self.functions.keys()
        with suppress(TritonError):
            return names | {entry["name"] for entry in self.index(handle)}
        places = [*self.options.paths("model_repository"), str(self.repository)]
        for place in [*places, *self.registered]:
            with suppress(OSError):
                names.update(os.listdir(place))  # noqa: PTH208 (as below)
        return names.union(*(renamed.values() for renamed in list(self.registered.values())))

    def known(self, handle: CData, name: str | None = None) -> list[dict[str, str]]:
        """Read the model index, or what is ready where Triton cannot look through its repositories.

        Args:
            handle: The server's.
            name: Of the model that is looked for.

        Raises:
            TritonError: There is neither; or no such model is ready, and there may be one.
        """
        try:
            return self.index(handle)
        except UnavailableError:
            raise  # it has no models
        except TritonError:
            if name is not None:
                self._seen.add(name)
            with suppress(TritonError):
                entries = self._ready(handle)
                if name is None or any(entry["name"] == name for entry in entries):
                    return entries
            raise

    def _ready(self, handle: CData) -> list[dict[str, str]]:
        return ready(handle, lambda: self._names(handle))

    def loaded(self, handle: CData, states: tuple[str, ...] = ALIVE) -> set[str]:
        """Return the names of the models that are known as loaded, or on their way."""
        return {entry["name"] for entry in self.known(handle) if entry.get("state") in states}

    def find_hidden(self, handle: CData, name: str | None = None) -> None:
        """Note what is loaded and not in the index; where that fails, it may not be known.

        Args:
            handle: The server's.
            name: Of the model that is looked for; None: all.
        """
        shown = self._shown(handle)
        if shown is not None:
            self.hidden -= shown
            if name not in shown:
                with suppress(TritonError):
                    entries = self._ready(handle) if name is None else ready_versions(handle, name)
                    self.hidden |= {entry["name"] for entry in entries} - shown

    @contextmanager
    def showing(self, name: str) -> Iterator[None]:
        """Have the index show a model, and say when it is unloaded, though it is hidden.

        Not for longer: where its folder comes back, Triton would find two.
        """
        folder = self.repository / name
        is_made = False
        if name in self.hidden and not folder.exists():
            with suppress(OSError):
                (folder / "1").mkdir(parents=True)
                is_made = True
        try:
            yield
        finally:
            if is_made:
                with suppress(OSError):
                    (folder / "1").rmdir()
                    folder.rmdir()

    def lost_loads(self) -> dict[int, str]:
        """Return the models that Triton will load for ever, by the threads that wait for it."""
        loads = list(self.loads.items())
        # By itself, or behind another load: of what it is a part of, say.
        lost = self.lost_models()
        return {
            thread: name or watch.model
            for thread, (name, watch) in loads
            if name in lost or (not name and watch.model in lost)
        }

    def lost_models(self, besides: _python_backend.StubWatch | None = None) -> set[str]:
        """Return the models of which Triton waits for a process that has died, and what needs them.

        Where it is not known which one it was, in a poll, that is an empty name.

        Args:
            besides: Leave out the load that this looks for.
        """
        lost: set[str] = set()
        for name, watch in list(self.loads.values()):
            if watch is not besides and watch.has_lost():
                lost |= {name, watch.model} if name and watch.model else {name or watch.model}
        return lost

    def wait_unloaded(self, handle: CData, names: set[str], deadline: float) -> bool:
        """Wait until models are unloaded that were told to.

        One that is ready is not waited for: another thread has loaded it again. Where the index
        fails, they count as unloaded with the end of their requests, for which `letting_go` waits.

        Args:
            handle: The server's.
            names: Of the models.
            deadline: On the clock of ``time.monotonic``.

        Returns:
            False when the deadline passed first, or what is left will never be unloaded.
        """
        look = time.monotonic() + _python_backend.PATIENCE_S
        while alive := self.loaded(handle, LEAVING) & names:
            now = time.monotonic()
            if now >= deadline:
                return False
            if now >= look:
                if not alive - self._kept() - self.lost(alive):
                    return False
                look += _python_backend.PATIENCE_S
            time.sleep(_POLL_S)
        return True

    def keeps(self, name: str) -> bool:
        """Return whether Triton may keep a request for ever of a model that nobody has died in."""
        return name in self._kept()

    def _kept(self) -> set[str]:
        """Return the models of which Triton may keep a request for ever, though nobody has died.

        Of one that was loaded anew since somebody did, others may be kept than are waited for.
        """
        return kept_in(self.inferences()) - self.deaths.bereaved

    def lost(self, names: Collection[str]) -> set[str]:
        """Return which of some models that do not unload never will: their stubs have died.

        Where only some have, Triton keeps those for ever that had a request; that is so when it
        keeps them though nothing is in flight any more.
        """
        kept = set() if unanswered(self.inferences()) else self.stub_records()
        return {
            name
            for name in self._dead.keys() & names
            if _python_backend.is_lost(name) or self._dead[name] & kept
        }

    def stub_records(self, name: str | None = None) -> set[StubRecord]:
        """Return the server's processes of the python backend that Triton has not let go.

        Args:
            name: Leave out what loads of this model have replaced.
        """
        return self.deaths.records(name)

    @contextmanager
    def letting_go(
        self, handle: CData, names: set[str], patience: float
    ) -> Iterator[dict[str, dict[str, JSON]]]:
        """Hold models while Triton is told to let them go; `_rest` says why.

        Args:
            handle: The server's.
            names: Of the models.
            patience: Seconds to wait for their requests after Triton was told.

        Returns:
            Their configs, by name.
        """
        self._seen |= names
        entries = self.known(handle)
        for name in names & self.hidden:
            entries += ready_versions(handle, name)
        versions = [
            (entry["name"], int(entry.get("version", -1)))
            for entry in entries
            if entry["name"] in names and entry.get("state") == READY
        ]
        configs = {name: config(handle, name) for name, _ in versions}  # while they can be asked
        self.deaths.remember(configs)
        for name, of_model in configs.items():
            self._dead.pop(name, None)
            if of_model.get("backend") == "python":
                stubs = of_instances(of_model, self.stub_records(name))
                self._dead[name] = {stub for stub in stubs if stub.is_dead()}
        functions = [self.functions[name] for name in names if name in self.functions]
        with held(handle, versions, lambda: self._may_ask(names), functions, patience):
            yield configs

    def _may_ask(self, names: set[str]) -> list[Inference]:
        """Return the inferences in flight that are at some models, or may ask them yet.

        What a callable asks is in flight by itself. The callable is not waited for: it may be the
        very one that has a model unloaded. Nor is what waits for the dead.
        """
        return [
            inference
            for inference in self.inferences()
            if (inference.model_name in names or inference.model_name not in self.functions)
            and not (inference.is_answered and inference.model_name in self.deaths.bereaved)
        ]

    def retire(self, function: FunctionModel) -> None:
        """Let a function model go that no name stands for; a call of it is not waited for."""
        self.retired = [model for model in self.retired if not model.close(0)]
        if not function.close(for_calls=False):
            self.retired.append(function)

    def all_functions(self) -> list[FunctionModel]:
        """Return the callables of models, and those that no name stands for any more."""
        return [*self.functions.values(), *self.retired]

    def unload_all(
        self, handle: CData, deadline: float, limit: float, lost_loads: set[str]
    ) -> set[str]:
        """Unload all models, and wait for it.

        Args:
            handle: The server's, which takes no calls any more.
            deadline: On the clock of ``time.monotonic``.
            limit: How many seconds those were.
            lost_loads: Models whose loads will never be over.

        Returns:
            Models that will never be unloaded, because their stubs have died. Those of which
            Triton keeps a request may not be, either.

        Raises:
            TimeoutError: Something else has not let go.

        C: ``TRITONSERVER_ServerUnloadModel``
        """
        # Where loads will never be over no others go on, and an unload would wait for them.
        states = (READY, UNLOADING) if lost_loads else ALIVE
        try:
            self._reveal(handle)
            loaded = (self.loaded(handle, states) | self.hidden) - lost_loads
        except UnavailableError:
            # With ``exit_on_error=False`` a server may not have come up at all: it has no models.
            return set()
        with self.letting_go(handle, loaded, deadline - time.monotonic()) as configs:
            # Ensembles first: a model that an ensemble still needs is not unloaded cleanly.
            whole = {name for name in configs if configs[name].get("platform") == "ensemble"}
            for name in [*sorted(whole), *sorted(loaded - whole)]:
                error = lib.TRITONSERVER_ServerUnloadModel(handle, encode_name(name))
                if error:
                    logger.debug("%s", take_error(error, f"model {name!r}"))
        if self._told is None:
            self._told = time.monotonic()
        try:
            return self._wait_empty(handle, deadline, states, lost_loads)
        except TimeoutError as error:
            raise TimeoutError(
                f"server {self.name!r} did not stop within {limit:g} s: {error}"
            ) from None

    def _wait_empty(
        self, handle: CData, deadline: float, states: tuple[str, ...], lost_loads: set[str]
    ) -> set[str]:
        """Wait until nothing is loaded and nothing in flight, but for what may stay for ever.

        Raises:
            TimeoutError: Something has not let go, which the message names.
        """
        until_kept = min(deadline, time.monotonic() + _KEPT_S)
        look = (self._told or 0.0) + _python_backend.PATIENCE_S  # over several closes
        while True:
            now = time.monotonic()
            inferences = self.inferences()
            alive = self.loaded(handle, states) - lost_loads
            kept = kept_in(inferences)
            owing = unanswered(inferences)
            if not alive | kept | owing or (kept and not owing and now >= until_kept):
                return set()
            if now >= look:
                lost = self.lost(alive | owing)
                if not (alive | owing) - lost - kept:
                    return lost
                look = now + _python_backend.PATIENCE_S
            if now >= deadline:
                break
            time.sleep(_POLL_S)
        # Not a word to Triton: after one stop in vain it takes no second one, and says that it
        # has stopped. This way `close` can be called again.
        entries = [
            entry
            for entry in self.known(handle)
            if entry.get("state") in states and entry["name"] not in lost_loads
        ]
        if owing and time.monotonic() < (self._told or 0.0) + _GOING_S:
            # All were held until the time was over, and it is not the others that took it.
            entries = [entry for entry in entries if entry["name"] in owing | kept]
        why = f". {_python_backend.LOST}" if self.lost(alive | owing) else ""
        still = still_there(entries, inferences)
        del inferences  # or whoever keeps the error would keep them, and their responses
        raise TimeoutError(f"{still}; close() may be called again{why}")

    def _reveal(self, handle: CData) -> None:
        """Have the index show all that is loaded, where it does not: nothing is loaded any more.

        A repository that Triton cannot look through is taken away, and a model that is in none gets
        a folder in the private one. Then the index says when it is unloaded.

        C: ``TRITONSERVER_ServerUnregisterModelRepository``
        """
        shown = self._shown(handle)
        if shown is None:
            with suppress(OSError):
                self.repository.mkdir(parents=True, exist_ok=True)
            places = [*self.options.paths("model_repository"), *self.registered]
            places.sort(key=_can_be_seen)  # so that those go first which cannot
            while (shown := self._shown(handle)) is None and places:
                with suppress(TritonError):
                    self.hidden |= {entry["name"] for entry in self._ready(handle)}
                place = places.pop(0)
                error = lib.TRITONSERVER_ServerUnregisterModelRepository(
                    handle, encode_path(place, "a model repository")
                )
                if error:
                    logger.debug("%s", take_error(error, f"model repository {place!r}"))
        self.find_hidden(handle)
        for name in self.hidden - (shown or set()):
            with suppress(OSError):
                (self.repository / name / "1").mkdir(parents=True, exist_ok=True)

    def _shown(self, handle: CData) -> set[str] | None:
        """Return the names in the index; None: it fails."""
        try:
            return {entry["name"] for entry in self.index(handle)}
        except UnavailableError:
            raise
        except TritonError:
            return None


def _can_be_seen(place: str) -> bool:
    """Say whether a repository can be looked through; of one by a URL that is not known."""
    if "://" in place:
        return True
    try:
        for entry in os.listdir(place):  # noqa: PTH208 (a signal handler may raise in a scandir)
            Path(place, entry).stat()
    except OSError:
        return False
    return True
