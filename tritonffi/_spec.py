# SPDX-License-Identifier: Apache-2.0
"""What a model takes and gives, read once from its metadata and config, and checks against it.

A request is checked here before C is called, so that an error names the model and the input and
says what was expected, which Triton's own errors often do not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from tritonffi._bytes import format_shape
from tritonffi._config_text import message_of
from tritonffi._errors import InvalidArgumentError, UnsupportedError
from tritonffi._steps import Flow, flow_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tritonffi._call import JSON
    from tritonffi._steps import Stuck

#: Of models that stand for Python callables.
FUNCTION_BACKEND = "tritonffi"

#: Shapes that were found good are remembered, so that the next one is a look-up; not for ever.
_REMEMBERED_SHAPES = 64

_LARGEST_ID = {
    "INT32": 2**31 - 1,
    "UINT32": 2**32 - 1,
    "INT64": 2**63 - 1,
    "UINT64": 2**64 - 1,
}


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of a model.

    Attributes:
        name: Its name.
        datatype: Triton's name of the element type, such as ``FP32``.
        shape: With the batch axis where the model batches; -1 is any length.
        optional: Whether a request may leave this input out.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False


@dataclass(frozen=True)
class ModelSpec:
    """The inputs and outputs of a model, and how it may be called.

    Attributes:
        name: The model's name.
        inputs: By name.
        outputs: By name.
        max_batch_size: The longest first axis; 0: the model does not batch.
        is_decoupled: Whether a request may have any number of responses.
        correlation_id_type: As which data type the model takes the id of a sequence; None: as none.
        is_cached: Whether Triton may answer in the model's place what it has answered before.
        is_ensemble: Whether it is made of other models.
        gives_all: Whether Triton must be asked for all outputs, whichever are wanted: the cache
            would keep no others for the next request, and an ensemble fails where an output that
            is not wanted goes into a step, too (triton-inference-server/server#7482).
        leaves_marks: Whether the model's scheduler leaves marks on a request, so that it cannot
            serve again.
        parts: The models of an ensemble's steps.
        passive: The model, this one or a part, that has only passive instances; empty: none.
        is_function: Whether it stands for a Python callable.
        remembers: A cached ensemble, this one or a part, and a part of it that is a function.
        is_iterative: Whether each request is a sequence of its own, which Triton ends.
        reruns: The model, this one or a part, that may run a request again and knows no end of
            sequences; empty: none.
        flow: How requests go through it.
        stuck: A step of it, or of a part, that Triton does not bear to be refused.
        sequenced: Likewise, one that takes none but requests of sequences.
    """

    name: str
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    max_batch_size: int
    is_decoupled: bool
    correlation_id_type: str | None = None
    is_cached: bool = False
    is_ensemble: bool = False
    gives_all: bool = False
    leaves_marks: bool = False
    parts: tuple[str, ...] = ()
    passive: str = ""
    is_function: bool = False
    remembers: tuple[str, str] | None = None
    is_iterative: bool = False
    reruns: str = ""
    flow: Flow = field(default_factory=Flow)
    stuck: Stuck | None = None
    sequenced: Stuck | None = None
    _good_shapes: set[tuple[str, tuple[int, ...]]] = field(
        default_factory=set, repr=False, compare=False
    )

    @classmethod
    def from_json(cls, metadata: Mapping[str, JSON], config: Mapping[str, JSON]) -> ModelSpec:
        """Read the two documents that Triton gives for a model."""
        optional = {
            cast("str", entry["name"])
            for entry in _entries(config, "input")
            if entry.get("optional", False)
        }
        policy = cast("Mapping[str, JSON]", config.get("model_transaction_policy") or {})
        cache = cast("Mapping[str, JSON]", config.get("response_cache") or {})
        batching = cast("Mapping[str, JSON]", config.get("dynamic_batching") or {})
        is_cached = bool(cache.get("enable", False))
        outputs = _tensors(metadata, "outputs", frozenset())
        name = cast("str", metadata["name"])
        groups = _entries(config, "instance_group")
        sequences = cast("Mapping[str, JSON]", config.get("sequence_batching") or {})
        is_iterative = bool(sequences.get("iterative_sequence", False))
        is_passive = bool(groups) and all(group.get("passive", False) for group in groups)
        return cls(
            name=name,
            inputs=_tensors(metadata, "inputs", optional),
            outputs=outputs,
            max_batch_size=int(cast("int", config.get("max_batch_size", 0))),
            is_decoupled=bool(policy.get("decoupled", False)),
            correlation_id_type=_correlation_id_type(config),
            is_cached=is_cached,
            is_ensemble=bool(config.get("ensemble_scheduling")),
            gives_all=is_cached or not outputs.keys().isdisjoint(_step_inputs(config)),
            leaves_marks=any(
                config.get(key)
                for key in ("ensemble_scheduling", "sequence_batching", "response_cache")
            )
            or bool(batching.get("preserve_ordering", False)),
            parts=parts_of_steps(config),
            passive=name if is_passive else "",
            is_function=config.get("backend") == FUNCTION_BACKEND,
            is_iterative=is_iterative,
            reruns=name if is_iterative and not _knows_ends(config) else "",
            flow=flow_of(message_of(config)),
        )

    def check_parts(self) -> None:
        """Refuse a model of which nothing would run, and one that answers for old functions.

        With the first Triton crashes, or never answers; so it does with what is stuck.
        """
        if self.passive:
            part = f" its part {self.passive!r} has" if self.passive != self.name else " it has"
            raise InvalidArgumentError(
                f"model {self.name!r}:{part} only passive instances (instance_group), which get no "
                "requests"
            )
        if self.remembers is not None:
            raise remembered(*self.remembers)
        if self.stuck is not None:
            raise self.stuck.error()

    def check_sequence_end(self) -> None:
        """Refuse the end of a sequence where Triton would lose a request that is run again."""
        if self.reruns:
            part = f" its part {self.reruns!r}" if self.reruns != self.name else " it"
            raise InvalidArgumentError(
                f"model {self.name!r}:{part} has iterative sequences, which end by themselves; a "
                "request that says sequence_end and is run again would never be answered: leave "
                "it out"
            )

    def only_input(self) -> str:
        """Return the name of the input, if there is one and no other."""
        if len(self.inputs) != 1:
            raise InvalidArgumentError(
                f"model {self.name!r}: Raw stands for the only input, but there are "
                f"{len(self.inputs)}"
            )
        return next(iter(self.inputs))

    def ambiguous_inputs(self) -> list[str]:
        """List inputs of which the same bytes may be of several shapes."""
        return [name for name, spec in self.inputs.items() if spec.shape.count(-1) > 1]

    def check_correlation_id(self, value: int | str) -> None:
        """Refuse the id of a sequence that the model cannot take, or none where it needs one."""
        if self.sequenced is not None and value in (0, ""):
            raise self.sequenced.refusal("a correlation_id")
        wanted = self.correlation_id_type
        if wanted is None or value in (0, ""):
            return
        if isinstance(value, str) != (wanted == "BYTES"):
            kind = "a str" if wanted == "BYTES" else "an int"
            raise InvalidArgumentError(
                f"model {self.name!r}: correlation_id must be {kind}, not {value!r}: the model "
                f"takes it as {wanted}"
            )
        if not isinstance(value, str) and value > _LARGEST_ID[wanted]:
            raise InvalidArgumentError(
                f"model {self.name!r}: correlation_id {value} does not fit into {wanted}, as which "
                "the model takes it"
            )

    def check_input_names(self, names: Iterable[str]) -> None:
        """Refuse inputs that the model does not have, and missing ones that it needs."""
        given = set(names)
        unknown = [name for name in given if name not in self.inputs]
        missing = [
            name for name, spec in self.inputs.items() if name not in given and not spec.optional
        ]
        if unknown or missing:
            problems = [f"there is no input {name!r}" for name in sorted(unknown, key=repr)]
            problems += [f"input {name!r} is missing" for name in missing]
            expected = ", ".join(map(repr, self.inputs)) or "no inputs"
            raise InvalidArgumentError(
                f"model {self.name!r}: {'; '.join(problems)} (it takes {expected})"
            )

    def check_output_names(self, names: Iterable[str]) -> None:
        """Refuse outputs that the model does not have."""
        for name in names:
            if name not in self.outputs:
                have = ", ".join(map(repr, self.outputs)) or "no outputs"
                raise InvalidArgumentError(
                    f"model {self.name!r}: there is no output {name!r} (it gives {have})"
                )

    def check_shapes(self, shapes: tuple[tuple[str, tuple[int, ...]], ...]) -> None:
        """Refuse shapes that the model cannot take, alone or together.

        Args:
            shapes: Name and shape of every input.
        """
        good = self._good_shapes
        for entry in shapes:
            if entry not in good:
                self._check_shape(*entry)
                if len(good) >= _REMEMBERED_SHAPES:
                    good.clear()
                good.add(entry)
        if self.max_batch_size > 0 and len(shapes) > 1:
            first_name, first = shapes[0]
            for name, shape in shapes:
                if shape[0] != first[0]:
                    raise InvalidArgumentError(
                        f"model {self.name!r}: input {name!r} holds a batch of {shape[0]}, "
                        f"but input {first_name!r} one of {first[0]}"
                    )

    def _check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        expected = self.inputs[name].shape
        if len(shape) != len(expected) or any(
            want not in (-1, have) for want, have in zip(expected, shape, strict=True)
        ):
            hint = ""
            if self.max_batch_size > 0 and len(shape) == len(expected) - 1:
                hint = "; the model batches, so the first axis is the batch: array[None] makes one"
            raise InvalidArgumentError(
                f"model {self.name!r}, input {name!r}: expected shape {format_shape(expected)}, "
                f"got {format_shape(shape)}{hint}"
            )
        if self.max_batch_size > 0 and shape[0] == 0 and 0 not in shape[1:]:
            # Triton counts such a request as one row and finds its bytes missing.
            raise InvalidArgumentError(
                f"model {self.name!r}, input {name!r}: the batch is empty, and Triton takes none"
            )
        if self.sequenced is not None and self.max_batch_size > 0 and shape[0] > 1:
            raise self.sequenced.refusal(f"a batch of 1, not {shape[0]}, as there is in sequences")
        if self.max_batch_size > 0 and shape[0] > self.max_batch_size:
            raise InvalidArgumentError(
                f"model {self.name!r}, input {name!r}: expected a batch of at most "
                f"{self.max_batch_size}, got {shape[0]}"
            )


def remembered(ensemble: str, function: str) -> UnsupportedError:
    """Return the error of an ensemble with a cache that has a function for a part."""
    return UnsupportedError(
        f"ensemble {ensemble!r}: config: 'response_cache': its part {function!r} is a function: "
        "Triton's cache would go on with its answers when another one is loaded in its place; give "
        "'response_cache' to the parts"
    )


def _entries(document: Mapping[str, JSON], key: str) -> list[Mapping[str, JSON]]:
    return cast("list[Mapping[str, JSON]]", document.get(key) or [])


def _tensors(
    metadata: Mapping[str, JSON], key: str, optional: Iterable[str]
) -> Mapping[str, TensorSpec]:
    tensors = {}
    for entry in _entries(metadata, key):
        name = cast("str", entry["name"])
        shape = tuple(int(dim) for dim in cast("list[int]", entry["shape"]))
        tensors[name] = TensorSpec(name, cast("str", entry["datatype"]), shape, name in optional)
    return tensors


def _steps(config: Mapping[str, JSON]) -> list[Mapping[str, JSON]]:
    """List the steps of an ensemble; none of another model."""
    return _entries(cast("Mapping[str, JSON]", config.get("ensemble_scheduling") or {}), "step")


def parts_of_steps(config: Mapping[str, JSON]) -> tuple[str, ...]:
    """List the models of an ensemble's steps; none of another model."""
    return tuple(cast("str", step.get("model_name", "")) for step in _steps(config))


def _step_inputs(config: Mapping[str, JSON]) -> set[str]:
    """Return the ensemble's tensors that go into its steps."""
    maps = [cast("Mapping[str, str]", step.get("input_map") or {}) for step in _steps(config)]
    return {name for of_step in maps for name in of_step.values()}


def _correlation_id_type(config: Mapping[str, JSON]) -> str | None:
    """Read in which data type the sequence batcher hands the correlation id to the model."""
    control = _control(config, "CONTROL_SEQUENCE_CORRID")
    if control is None:
        return None
    name = cast("str", control.get("data_type", "")).removeprefix("TYPE_")
    return "BYTES" if name == "STRING" else name


def _knows_ends(config: Mapping[str, JSON]) -> bool:
    """Say whether a request that ends its sequence is not run again.

    Functions run each request once. Another model may go by the flag where it is shown it.
    """
    is_shown = _control(config, "CONTROL_SEQUENCE_END") is not None
    return config.get("backend") == FUNCTION_BACKEND or is_shown


def _control(config: Mapping[str, JSON], kind: str) -> Mapping[str, JSON] | None:
    """Find what the sequence batcher tells the model in an input of its own."""
    batching = cast("Mapping[str, JSON]", config.get("sequence_batching") or {})
    for entry in _entries(batching, "control_input"):
        for control in _entries(entry, "control"):
            if control.get("kind") == kind:
                return control
    return None
