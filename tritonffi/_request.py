# SPDX-License-Identifier: Apache-2.0
"""Requests: what is said with an inference, checked before anything is made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, TypedDict

from tritonffi._call import check_duration, encode
from tritonffi._enums import ParameterType
from tritonffi._errors import InvalidArgumentError, check_keywords
from tritonffi._numbers import check_whole, plain, shown
from tritonffi._trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from tritonffi._input import Raw
    from tritonffi._native import CData
    from tritonffi._output import Out
    from tritonffi._response import ParameterValue

#: Inputs by name: ndarrays, lists, scalars, DLPack objects, whatever offers an array, `Chunks`;
#: or a `Raw` alone.
Inputs: TypeAlias = "Mapping[str, object] | Raw"

_LONGEST_CORRELATION_ID = 128


class RequestKeywords(TypedDict, total=False):
    """The keywords that go with the inputs; `Request` says what each one means."""

    outputs: Sequence[str]
    out: Out
    labels: Mapping[str, int]
    parameters: Mapping[str, ParameterValue]
    request_id: str
    priority: int
    queue_timeout: float | None
    timeout: float | None
    correlation_id: int | str
    sequence_start: bool
    sequence_end: bool
    trace: Trace | None


@dataclass(frozen=True, eq=False)  # arrays are not equal or not, but in their elements
class Request:
    """Inputs, and what else is said with them.

    Attributes:
        inputs: Arrays by input name, or `Raw`. They are not copied where their memory is what
            Triton can read, so do not write to them before the result is there.
        outputs: Names of the outputs wanted; none: all.
        out: Memory that outputs are written to, by output name: an array of the output's type and
            shape, in C order (numpy, or anything with DLPack), or a writable buffer of bytes
            (bytearray, mmap) of its size. The response then holds that array, or one over that
            memory. It is Triton's until the inference is over, must not overlap with an input,
            and holds whatever the model left there after an error. Not for BYTES, and not for
            decoupled models.
        labels: How many classes are wanted as `Response.labels`, by output name.
        parameters: What the model gets beside its inputs: str, bool, int (64 bits), float.
        request_id: Comes back in the response, and stands in Triton's log.
        priority: 1 is the highest; 0, and one that the model does not have, is its default.
        queue_timeout: Seconds that the request may wait in Triton's queue, where the model has a
            longer default timeout and allows an own one; None: the model's default. Triton looks
            at it only when it forms the next batch: that may be whole seconds later.
        timeout: Seconds until TimeoutError is raised and the request is cancelled; None: never.
            That is precise to milliseconds, but happens where somebody waits for the result.
        correlation_id: The sequence that the request belongs to, for models with state.
        sequence_start: Whether it is the first of its sequence.
        sequence_end: Whether it is the last of its sequence.
        trace: Records where the time goes. It serves one inference, so the request does too.

    C: ``TRITONSERVER_InferenceRequest`` (made new for every inference)
    """

    inputs: Inputs
    outputs: Sequence[str] = ()
    out: Out = field(default_factory=dict)
    labels: Mapping[str, int] = field(default_factory=dict)
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict)
    request_id: str = ""
    priority: int = 0
    queue_timeout: float | None = None
    timeout: float | None = None
    correlation_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False
    trace: Trace | None = None

    def __post_init__(self) -> None:
        """Refuse wrong types and values before anything is made of them."""
        if type(self.outputs) is not tuple or self.outputs:
            _check_outputs(self.outputs)
        _check_mapping(self.out, "out")
        _check_mapping(self.parameters, "parameters")
        _check_labels(self.labels)
        check_whole(self.priority, "priority")
        check_duration(self.queue_timeout, "queue_timeout")
        check_duration(self.timeout, "timeout")
        if isinstance(self.correlation_id, str):
            if len(encode(self.correlation_id, "correlation_id")) > _LONGEST_CORRELATION_ID:
                raise InvalidArgumentError(
                    f"correlation_id is longer than {_LONGEST_CORRELATION_ID} bytes"
                )
        else:
            check_whole(self.correlation_id, "correlation_id")
        _check_bool(self.sequence_start, "sequence_start")
        _check_bool(self.sequence_end, "sequence_end")
        _check_trace(self.trace)


def _check_trace(trace: object) -> None:
    if trace is not None and not isinstance(trace, Trace):
        raise TypeError(f"trace must be a Trace, not {type(trace).__name__}")


def _check_outputs(outputs: object) -> None:
    if isinstance(outputs, str) or not isinstance(outputs, Sequence):
        raise TypeError(f"outputs must be a sequence of names, not {outputs!r}")
    for name in outputs:
        if not isinstance(name, str):
            raise TypeError(f"outputs must be a sequence of names, and {name!r} is none")
    if len(set(outputs)) != len(outputs):
        raise InvalidArgumentError(f"outputs holds a name twice: {list(outputs)!r}")


def _check_mapping(value: object, what: str) -> None:
    if type(value) is not dict and not isinstance(value, Mapping):
        raise TypeError(f"{what} must be a mapping, not {type(value).__name__}")


def _check_labels(labels: Mapping[str, int]) -> None:
    _check_mapping(labels, "labels")
    for name, count in labels.items():
        check_whole(count, f"labels of {name!r}")
        if count == 0:
            raise InvalidArgumentError(f"labels of {name!r} must be 1 or more, not 0")


def _check_bool(value: object, what: str) -> None:
    if value is not True and value is not False:
        raise TypeError(f"{what} must be a bool, not {value!r}")


def request_of(inputs: Inputs, keywords: RequestKeywords, what: str) -> Request:
    """Make a request of what an inference was asked with; errors say `what` was asked."""
    try:
        return Request(inputs, **keywords)
    except TypeError:
        check_keywords(keywords, RequestKeywords.__annotations__, what)
        raise


def parameter_entries(
    values: Mapping[str, ParameterValue], what: str, text: Callable[[str, str], CData]
) -> list[dict[str, object]]:
    """Make initialisers of ``tffi_parameter`` of parameters by name; ``text`` makes C strings."""
    made = []
    for name, value in values.items():
        where = f"{what}: parameter {name!r}"
        entry: dict[str, object] = {"name": text(name, f"{what}: the name of a parameter")}
        said = plain(value)
        if isinstance(said, bool):
            entry |= {"type": int(ParameterType.BOOL), "integer": int(said)}
        elif isinstance(said, int):
            if not -(2**63) <= said < 2**63:
                raise InvalidArgumentError(f"{where} does not fit into 64 bits: {shown(said)}")
            entry |= {"type": int(ParameterType.INT), "integer": said}
        elif isinstance(said, float):
            entry |= {"type": int(ParameterType.DOUBLE), "real": said}
        elif isinstance(said, str):
            entry |= {"type": int(ParameterType.STRING), "text": text(said, where)}
        else:
            kind = type(said).__name__
            raise TypeError(f"{where} must be a str, bool, int or float, not {kind}")
        made.append(entry)
    return made
