# SPDX-License-Identifier: Apache-2.0
"""What an ensemble is made of is looked through before it is loaded.

What is loaded beneath one that is loaded already is found by the next request (`_reader`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tritonffi._config_text import message_of
from tritonffi._index import config as config_of
from tritonffi._model_files import check_circles, flow_in, is_cached
from tritonffi._spec import remembered
from tritonffi._steps import flow_of, stuck_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tritonffi._lifecycle import Lifecycle


def check_graph(
    lifecycle: Lifecycle,
    name: str,
    config: str | None,
    known: Mapping[str, list[str]],
    find: Callable[[str], list[Path]],
) -> None:
    """Refuse an ensemble of which Triton would not answer, or not with what is there now.

    One that contains itself, one with a step that Triton does not bear to be refused, and one with
    a cache that contains functions.

    Args:
        lifecycle: The server's.
        name: The model's, ensemble or not.
        config: That it is about to be loaded with; None: that of its folder.
        known: What is known of the parts of models otherwise.
        find: Gives the folders of a model.

    Raises:
        InvalidArgumentError: It is one that contains itself.
        UnsupportedError: It is another one of these.
    """
    _Graph(lifecycle, name, config, find).check(known)


class _Graph:
    """The checks of one load."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        name: str,
        config: str | None,
        find: Callable[[str], list[Path]],
    ) -> None:
        self._lifecycle = lifecycle
        self._name = name
        self._config = config
        self._find = find
        self._variant = lifecycle.options.model_config_name

    def check(self, known: Mapping[str, list[str]]) -> None:
        models = check_circles([self._name], self._find, known, variant=self._variant)
        if len(models) > 1:
            self._check_steps(models)
            self._check_cache(known)

    def _folder(self, name: str) -> Path:
        return [*self._find(name), self._lifecycle.repository / name][0]

    def _check_steps(self, models: list[str]) -> None:
        """Refuse a step that Triton does not bear to be refused.

        Of parts that are loaded the config counts with which they are.
        """
        server = self._lifecycle.handle()
        loaded = self._lifecycle.loaded(server)
        flows = {}
        for model in models:
            if model != self._name and model in loaded:
                flows[model] = flow_of(message_of(config_of(server, model)))
            else:
                config = self._config if model == self._name else None
                flows[model] = flow_in(self._folder(model), config, variant=self._variant)
        stuck = stuck_in(flows)
        if stuck is not None:
            raise stuck.error()

    def _check_cache(self, known: Mapping[str, list[str]]) -> None:
        lifecycle, name = self._lifecycle, self._name
        if not (
            lifecycle.functions
            and lifecycle.has_cache
            and is_cached(self._folder(name), self._config, variant=self._variant)
        ):
            return
        # What others were given as their config counts as long as they are loaded.
        loaded = lifecycle.loaded(lifecycle.handle()) | {name}
        now = {model: parts for model, parts in known.items() if model in loaded}
        parts = {*check_circles([name], self._find, now, variant=self._variant)} - {name}
        functions = sorted(parts & lifecycle.functions.keys())
        if functions:
            raise remembered(name, functions[0])
