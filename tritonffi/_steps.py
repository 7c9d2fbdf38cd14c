# SPDX-License-Identifier: Apache-2.0
"""Which steps of an ensemble may run beside others, and what Triton does not bear then.

A step whose queue is full is refused by its model, and so is one of a sequence that has not begun,
or of no sequence. Where another step of the same request is in
flight, Triton takes no note of that one's end any more: the request is never answered, nor given
back, and the ensemble is never unloaded. Where another is about to begin with it, the process ends
(`ScheduleSteps` in core's `ensemble_scheduler.cc`, triton-inference-server/core#466). In a chain
there is never another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tritonffi._config_text import is_true, items, messages, number, only, text_of, texts
from tritonffi._errors import InvalidArgumentError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from tritonffi._config_text import Message

_ISSUE = "triton-inference-server/core#466"


@dataclass(frozen=True)
class Step:
    """A step of an ensemble.

    Attributes:
        model: The model that it asks.
        takes: The ensemble's tensors that go into it.
        gives: Those that come of it.
    """

    model: str
    takes: frozenset[str]
    gives: frozenset[str]


@dataclass(frozen=True)
class Flow:
    """What of a model's config tells how requests go through it.

    Attributes:
        steps: Those of an ensemble; none of another model.
        is_bounded: Whether its queue may be full.
        is_decoupled: Whether a request may have any number of responses.
        has_sequences: Whether it takes none but requests of sequences.
    """

    steps: tuple[Step, ...] = ()
    is_bounded: bool = False
    is_decoupled: bool = False
    has_sequences: bool = False


@dataclass(frozen=True)
class Stuck:
    """A step that Triton does not bear to be refused.

    Attributes:
        ensemble: The ensemble that it is in.
        model: The model that it asks, which may refuse it.
        other: The model of a step that may be in flight then.
        is_before: Whether that one comes before it, and is decoupled.
    """

    ensemble: str
    model: str
    other: str
    is_before: bool

    @property
    def _why(self) -> str:
        if self.is_before:
            where = f"comes after {self.other!r}, which is decoupled and may go on"
        else:
            where = f"may run beside {self.other!r}"
        return f"the step of model {self.model!r} {where}"

    def error(self) -> UnsupportedError:
        """Return the error of the ensemble, where the queue may be full."""
        return UnsupportedError(
            f"ensemble {self.ensemble!r}: config: 'ensemble_scheduling': {self._why}, and its "
            "queue may be full ('max_queue_size'): Triton would never answer the request then, or "
            f"end the process ({_ISSUE}); leave 'max_queue_size' of {self.model!r} out, or have "
            "one step run at a time"
        )

    def refusal(self, expected: str) -> InvalidArgumentError:
        """Return the error of a request that the step's model would refuse.

        Args:
            expected: What it takes.
        """
        return InvalidArgumentError(
            f"ensemble {self.ensemble!r}: {self._why}, and takes requests of sequences alone: "
            f"Triton would never answer another one, or end the process ({_ISSUE}); expected "
            f"{expected}"
        )


def flow_of(config: Message) -> Flow:
    """Read from a model's config how requests go through it."""
    steps = [
        Step(
            text_of(step, "model_name"),
            frozenset(texts(step, "input_map").values()),
            frozenset(texts(step, "output_map").values()),
        )
        for step in messages(only(config, "ensemble_scheduling"), "step")
    ]
    batching = only(config, "dynamic_batching")
    policies = [policy for _, policy in items(batching, "priority_queue_policy")]
    policies.append(only(batching, "default_queue_policy"))
    sequences = only(config, "sequence_batching")
    return Flow(
        tuple(steps),
        any(number(policy, "max_queue_size") > 0 for policy in policies),
        is_true(only(config, "model_transaction_policy"), "decoupled"),
        # Triton makes a sequence of each request where they are iterative.
        "sequence_batching" in config and not is_true(sequences, "iterative_sequence"),
    )


def stuck_in(flows: Mapping[str, Flow]) -> Stuck | None:
    """Find a step with a queue that may be full, which Triton does not bear.

    Args:
        flows: By name, of ensembles and all that they are made of. What is not known of is taken
            for a model without bounds.
    """
    return _stuck_in(flows, {name for name, flow in flows.items() if flow.is_bounded})


def sequenced_in(flows: Mapping[str, Flow]) -> Stuck | None:
    """Find a step that takes none but requests of sequences, with others that Triton does not bear.

    Args:
        flows: As of `stuck_in`.
    """
    return _stuck_in(flows, {name for name, flow in flows.items() if flow.has_sequences})


def _stuck_in(flows: Mapping[str, Flow], models: Collection[str]) -> Stuck | None:
    if models:
        for name, flow in flows.items():
            for index, step in enumerate(flow.steps):
                if step.model in models and (stuck := _stuck_at(name, index, flows)):
                    return stuck
    return None


def _stuck_at(name: str, index: int, flows: Mapping[str, Flow]) -> Stuck | None:
    """Find what may be in flight when a step of an ensemble is refused."""
    steps = flows[name].steps
    before = _reached(index, [(step.takes, step.gives) for step in steps])
    after = _reached(index, [(step.gives, step.takes) for step in steps])
    for other, step in enumerate(steps):
        is_before = other in before
        if (is_before and _is_decoupled(step.model, flows)) or not (
            is_before or other == index or other in after
        ):
            return Stuck(name, steps[index].model, step.model, is_before)
    return None


def _reached(index: int, steps: list[tuple[Collection[str], Collection[str]]]) -> set[int]:
    """Return the steps that tensors lead to from one of them, by its way on and their ways in."""
    ends: dict[str, list[int]] = {}
    for number_of, (_, way_in) in enumerate(steps):
        for tensor in way_in:
            ends.setdefault(tensor, []).append(number_of)
    found: set[int] = set()
    coming = [index]
    while coming:
        for tensor in steps[coming.pop()][0]:
            fresh = set(ends.get(tensor, ())) - found
            found |= fresh
            coming += fresh
    return found


def _is_decoupled(name: str, flows: Mapping[str, Flow]) -> bool:
    """Say whether a model may send several responses, or one of its parts does."""
    seen: set[str] = set()
    coming = [name]
    while coming:
        model = coming.pop()
        if model in seen or model not in flows:
            continue
        seen.add(model)
        if flows[model].is_decoupled:
            return True
        coming += [step.model for step in flows[model].steps]
    return False
