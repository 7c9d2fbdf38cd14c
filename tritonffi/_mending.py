# SPDX-License-Identifier: Apache-2.0
"""Loads that replace what Triton would keep.

Triton takes a load of a model whose files and config are as they were for an update of its
instances, and keeps those that it has: also those of the python backend whose process is dead, and
also where the load brings files of its own, at which it does not look. So where there are such
files, or a load has left a dead process, the config differs by a parameter that nobody reads.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from tritonffi._index import READY, made_of
from tritonffi._index import config as config_of
from tritonffi._stub_records import of_instances

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tritonffi._call import JSON, ParameterValue
    from tritonffi._errors import InternalError
    from tritonffi._inference import Inference
    from tritonffi._lifecycle import Lifecycle
    from tritonffi._native import CData
    from tritonffi._stub_records import StubRecord

#: By which the config differs: how many times it had to.
PARAMETER: Final = "tritonffi.reload"


class Mending:
    """A load, and what it has to replace.

    Attributes:
        overrides: The load parameters, with which it really does so.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        server: CData,
        name: str,
        overrides: Mapping[str, ParameterValue],
    ) -> None:
        """Look what is loaded, and who is dead.

        Args:
            lifecycle: The server's.
            server: Its handle.
            name: The model's name, in whose turn this is.
            overrides: As the user wants it.
        """
        self._lifecycle = lifecycle
        self._server = server
        self._name = name
        self._before = lifecycle.stub_records(name)
        self._dead = {record for record in self._before if record.is_dead()}
        self._waiting: list[tuple[Inference, InternalError]] = []
        if self._dead:
            inferences = [i for i in lifecycle.inferences() if i.model_name == name]
            self._waiting = lifecycle.deaths.waiting(server, inferences)
        self._groups: JSON = None
        self._was_ready = False
        self.overrides = overrides
        has_files = any(key.startswith("file:") for key in overrides)
        if self._before or has_files:
            self._was_ready = name in lifecycle.loaded(server, (READY,))
            config = config_of(server, name)
            self._groups = config.get("instance_group")
            if has_files and self._was_ready:
                self.overrides = _differing(config, overrides)

    def loaded(self) -> bool:
        """Return whether all that was dead is replaced; otherwise load with `overrides` again."""
        if not self._before:
            return True
        config = config_of(self._server, self._name)
        now = self._lifecycle.stub_records(self._name)
        has_new = bool(of_instances(config, now - self._before))
        # Triton updates a model in place where nothing else has changed than these.
        is_other = has_new and config.get("instance_group") == self._groups
        if is_other or not self._was_ready:
            self._replace(config, self._before)
            return True
        if not of_instances(config, self._dead & now):
            return True
        self._before = now
        self.overrides = _differing(config, self.overrides)
        return False

    def mended(self) -> None:
        """Forget what was there before the second load, which has replaced all of it."""
        self._replace(config_of(self._server, self._name), self._before)

    def _replace(self, config: Mapping[str, JSON], old: set[StubRecord]) -> None:
        """Note that a model was made anew, and tell who waits for the dead of the old one."""
        self._lifecycle.deaths.tell(self._waiting)
        replaced = self._lifecycle.deaths.replaced
        known = replaced.get(self._name, set()) & self._lifecycle.stub_records()
        replaced[self._name] = known | of_instances(config, old)


def _differing(
    config: dict[str, JSON], overrides: Mapping[str, ParameterValue]
) -> dict[str, ParameterValue]:
    """Return load parameters with a config that is not that of the loaded model.

    Args:
        config: The loaded model's.
        overrides: As the user wants it; without a config it is the loaded model's.
    """
    given = overrides.get("config")
    wanted: dict[str, JSON] = dict(json.loads(given)) if isinstance(given, str) else dict(config)
    # A name of any bytes could not be written; Triton knows it.
    wanted.pop("name", None)
    mark: JSON = {"string_value": str(_count(config) + 1)}
    parameters = wanted.get("parameters", {})
    if isinstance(parameters, dict):  # or Triton says what is wrong
        wanted["parameters"] = {**parameters, PARAMETER: mark}
    return {**overrides, "config": json.dumps(wanted)}


def dead_parts(lifecycle: Lifecycle, name: str) -> list[str]:
    """List the parts of an ensemble that have a dead process; Triton does not load them with it.

    Args:
        lifecycle: The server's.
        name: The model's, ensemble or not.
    """
    if not any(record.is_dead() for record in lifecycle.stub_records()):
        return []
    with lifecycle.use():
        configs = made_of(lifecycle.handle(), name)
    del configs[name]
    return [
        part
        for part, config in configs.items()
        if any(stub.is_dead() for stub in of_instances(config, lifecycle.stub_records(part)))
    ]


def _count(config: Mapping[str, JSON]) -> int:
    """Return how many times a config has been made to differ."""
    parameters = config.get("parameters")
    value = parameters.get(PARAMETER) if isinstance(parameters, dict) else None
    text = str(value.get("string_value")) if isinstance(value, dict) else ""
    return int(text) if text.isdecimal() else 0
