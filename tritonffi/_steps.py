# SPDX-License-Identifier: Apache-2.0
"""Which steps of an ensemble may run beside others, and what Triton does not bear then.

A step whose queue is full is refused by its model. Where another step of the same request is in
flight, Triton takes no note of that one's end any more: the request is never answered, nor given
back, and the ensemble is never unloaded. Where another is about to begin with it, the process ends
(`ScheduleSteps` in core's `ensemble_scheduler.cc`, triton-inference-server/core#466). In a chain
there is never another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tritonffi._config_text import is_true, items, messages, number, only, text_of, texts
from tritonffi._errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from tritonffi._config_text import Message


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
    """

    steps: tuple[Step, ...] = ()
    is_bounded: bool = False
    is_decoupled: bool = False


@dataclass(frozen=True)
class Stuck:
    """A step that Triton does not bear to be refused.

    Attributes:
        ensemble: The ensemble that it is in.
        model: The model that it asks, whose queue may be full.
        other: The model of a step that may be in flight then.
        is_before: Whether that one comes before it, and is decoupled.
    """

    ensemble: str
    model: str
    other: str
    is_before: bool

    def error(self) -> UnsupportedError:
        """Return the error of the ensemble."""
        if self.is_before:
            why = f"comes after {self.other!r}, which is decoupled and may go on"
        else:
            why = f"may run beside {self.other!r}"
        return UnsupportedError(
            f"ensemble {self.ensemble!r}: config: 'ensemble_scheduling': the step of model "
            f"{self.model!r} {why}, and its queue may be full ('max_queue_size'): Triton would "
            "never answer the request then, or end the process "
            f"(triton-inference-server/core#466); leave 'max_queue_size' of {self.model!r} out, or "
            "have one step run at a time"
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
    return Flow(
        tuple(steps),
        any(number(policy, "max_queue_size") > 0 for policy in policies),
        is_true(only(config, "model_transaction_policy"), "decoupled"),
    )


def stuck_in(flows: Mapping[str, Flow]) -> Stuck | None:
    """Find a step that Triton does not bear to be refused.

    Args:
        flows: By name, of ensembles and all that they are made of. What is not known of is taken
            for a model without bounds.
    """
    bounded = {name for name, flow in flows.items() if flow.is_bounded}
    if bounded:
        for name, flow in flows.items():
            for index, step in enumerate(flow.steps):
                if step.model in bounded and (stuck := _stuck_at(name, index, flows)):
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
