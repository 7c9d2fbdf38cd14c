# SPDX-License-Identifier: Apache-2.0
"""Requests: from a mapping of arrays to the C structs that `tffi_inference_submit` reads.

Second step of the way that ``_completion`` tells. The C structs for one set of input names are made
once and used again (`Template`), so that a call writes only what changed: addresses, and shapes
where they differ from the last ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypedDict

import numpy as np

from tritonffi._call import encode, take_error
from tritonffi._enums import DataType, ParameterType, RequestFlag
from tritonffi._errors import InvalidArgumentError, check_keywords
from tritonffi._input import pieces_of
from tritonffi._native import ffi, lib
from tritonffi._output import Wanted
from tritonffi._tensor import to_tensor
from tritonffi._trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from tritonffi._completion import CompletionQueue, Inference
    from tritonffi._input import Pieces, Raw
    from tritonffi._native import CData
    from tritonffi._output import Out
    from tritonffi._response import ParameterValue
    from tritonffi._spec import ModelSpec

#: Inputs by name: ndarrays, lists, scalars, DLPack objects, whatever offers an array, `Chunks`;
#: or a `Raw` alone.
Inputs: TypeAlias = "Mapping[str, object] | Raw"

_ndarray = np.ndarray
_INT64 = range(-(2**63), 2**63)
_UINT64_MAX = 2**64 - 1
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


@dataclass(frozen=True)
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
        _whole(self.priority, "priority")
        if self.queue_timeout is not None:
            _check_duration(self.queue_timeout, "queue_timeout")
        if self.timeout is not None:
            _check_duration(self.timeout, "timeout")
        if isinstance(self.correlation_id, str):
            if len(encode(self.correlation_id, "correlation_id")) > _LONGEST_CORRELATION_ID:
                raise InvalidArgumentError(
                    f"correlation_id is longer than {_LONGEST_CORRELATION_ID} bytes"
                )
        else:
            _whole(self.correlation_id, "correlation_id")
        _check_bool(self.sequence_start, "sequence_start")
        _check_bool(self.sequence_end, "sequence_end")
        _check_trace(self.trace)


def _check_trace(trace: object) -> None:
    if trace is not None and not isinstance(trace, Trace):
        raise TypeError(f"trace must be a Trace, not {type(trace).__name__}")


def _check_outputs(outputs: object) -> None:
    if isinstance(outputs, str) or not isinstance(outputs, Sequence):
        raise TypeError(f"outputs must be a sequence of names, not {outputs!r}")
    if len(set(outputs)) != len(outputs):
        raise InvalidArgumentError(f"outputs holds a name twice: {list(outputs)!r}")


def _check_mapping(value: object, what: str) -> None:
    if type(value) is not dict and not isinstance(value, Mapping):
        raise TypeError(f"{what} must be a mapping, not {type(value).__name__}")


def _check_labels(labels: Mapping[str, int]) -> None:
    _check_mapping(labels, "labels")
    for name, count in labels.items():
        _whole(count, f"labels of {name!r}")
        if count == 0:
            raise InvalidArgumentError(f"labels of {name!r} must be 1 or more, not 0")


def _whole(value: object, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{what} must be an int, not {type(value).__name__}")
    if not 0 <= value <= _UINT64_MAX:
        raise InvalidArgumentError(f"{what} must be between 0 and 2**64 - 1, not {value}")


def _check_bool(value: object, what: str) -> None:
    if value is not True and value is not False:
        raise TypeError(f"{what} must be a bool, not {value!r}")


def _check_duration(seconds: object, what: str) -> None:
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool):
        raise TypeError(f"{what} must be a number of seconds, not {seconds!r}")
    if not seconds >= 0:  # NaN neither
        raise InvalidArgumentError(f"{what} must be a number of seconds, not {seconds!r}")


def request_of(inputs: Inputs, keywords: RequestKeywords, what: str) -> Request:
    """Make a request of what an inference was asked with; errors say `what` was asked."""
    try:
        return Request(inputs, **keywords)
    except TypeError:
        check_keywords(keywords, RequestKeywords.__annotations__, what)
        raise


class Submitter(Protocol):
    """What a request needs of a server; `_lifecycle` has the one that there is."""

    native: CData

    def refusal(self) -> Exception:
        """Return why nothing can be submitted."""
        ...


def submit_each(
    server: Submitter, queue: CompletionQueue, described: list[tuple[Template, Inference]]
) -> list[Exception | None]:
    """Submit several inferences that are described, in one call of C.

    Args:
        server: Where to.
        queue: Theirs.
        described: Each with the template in which it is described.

    Returns:
        For each what went wrong, and then it is over; None: it is in flight.
    """
    handle = server.native
    if handle is None:
        for _, inference in described:
            inference.leave()
        return [server.refusal() for _ in described]
    count = len(described)
    requests = ffi.new("tffi_request *[]", [template.native for template, _ in described])
    tokens = ffi.new("uint64_t[]", count)
    errors = ffi.new("struct TRITONSERVER_Error *[]", count)
    try:
        lib.tffi_inference_submit_each(handle, requests, count, queue.native, tokens, errors)
    finally:
        # Also where a signal handler raises: what is in flight can be cancelled by its token then.
        for i, (template, inference) in enumerate(described):
            inference.token = tokens[i]
            if inference.token == 0:
                inference.leave()
            elif server.native is None:
                # Closed meanwhile: whoever did that has found no token to cancel it by.
                inference.cancel()
            template.clear()
    return [
        take_error(error, f"model {inference.model_name!r}") if error else None
        for (_, inference), error in zip(described, errors, strict=True)
    ]


class Template:
    """The C structs of requests with the same input names to one model.

    One call uses it at a time; the structs only have to live until `tffi_inference_submit` returns.
    After an exception it is not to be used again: what went with that request is still written in.
    """

    __slots__ = (
        "_datatypes",
        "_extra",
        "_is_checked",
        "_keep",
        "_shapes",
        "_special",
        "_tensors",
        "_token",
        "_whats",
        "names",
        "native",
    )

    def __init__(self, spec: ModelSpec, version: int, names: tuple[str, ...]) -> None:
        spec.check_input_names(names)
        self.names = names
        self._datatypes = [spec.inputs[name].datatype for name in names]
        self._whats = [f"model {spec.name!r}, input {name!r}" for name in names]
        self._shapes: list[tuple[int, ...]] = [()] * len(names)
        self._is_checked = False  # whether the spec has seen these shapes
        # What the structs point to; the shapes behind the first entries change with the calls.
        self._keep: list[object] = [None] * len(names)
        self._tensors = ffi.new("tffi_tensor[]", max(1, len(names)))
        self._token = ffi.new("uint64_t *")
        for i, name in enumerate(names):
            tensor = self._tensors[i]
            tensor.name = self._text(encode(name, "an input name"))
            tensor.datatype = int(DataType[self._datatypes[i]])
            tensor.memory_type = lib.TRITONSERVER_MEMORY_CPU
        self.native = ffi.new("tffi_request *")
        self.native.model_name = self._text(encode(spec.name, "a model name"))
        self.native.model_version = version
        self.native.inputs = self._tensors
        self.native.input_count = len(names)
        # What lives from `describe` to `clear`, for requests that say more than their inputs.
        self._extra: object = None
        self._special: tuple[list[tuple[int, Pieces]], object] | None = None

    def _text(self, text: bytes) -> CData:
        copy = ffi.new("char[]", text)
        self._keep.append(copy)
        return copy

    def describe(
        self,
        inference: Inference,
        spec: ModelSpec,
        inputs: Mapping[str, object],
        request: Request | None,
    ) -> None:
        """Check a request and write it into the C structs.

        Args:
            inference: Takes the pins, and stands in its queue's table from then on.
            spec: What the inputs are checked against.
            inputs: Exactly the names of this template.
            request: What else is said; None: nothing.
        """
        pins = []
        tensors = self._tensors
        has_new_shape = False
        special = []
        for i, name in enumerate(self.names):
            value = inputs[name]
            if type(value) is _ndarray or (pieces := self._pieces(value, spec, i)) is None:
                pointer, shape, byte_size = to_tensor(value, self._datatypes[i], self._whats[i])
            else:
                pointer, shape, byte_size = ffi.NULL, pieces.shape, 0
                special.append((i, pieces))
            tensor = tensors[i]
            tensor.data = pointer
            tensor.byte_size = byte_size
            if shape != self._shapes[i]:
                self._keep[i] = tensor.shape = ffi.new("int64_t[]", shape or (0,))
                tensor.dim_count = len(shape)
                self._shapes[i] = shape
                has_new_shape = True
            pins.append(pointer)
        if has_new_shape or not self._is_checked:
            spec.check_shapes(tuple(zip(self.names, self._shapes, strict=True)))
            self._is_checked = True
        native = self.native
        if request is not None:
            self._extra = self._set_extra(spec, request, inference)
        if special:
            self._special = special, self._set_pieces(special, pins)
        inference.enter(pins)
        native.key = inference.key
        native.max_pending = inference.max_pending

    def submit(self, server: Submitter, inference: Inference) -> None:
        """Submit what was described.

        Args:
            server: Where to.
            inference: Takes the token; its queue gets the completions. If this raises, it is over.
        """
        # Looked at only now: whoever closes the server clears this first and then waits for all
        # that stand in the table.
        handle = server.native
        if handle is None:
            inference.leave()
            raise server.refusal()
        # A signal handler may run or raise as soon as the C call returns. The inference is then in
        # flight without a token of its own, but finds it where C wrote it.
        inference.submitting = self._token
        try:
            error = lib.tffi_inference_submit(
                handle, self.native, inference.queue.native, self._token
            )
        except BaseException:  # Ctrl-C, above all: the caller gets nothing that he could cancel
            inference.cancel()
            raise
        if error:
            inference.leave()
            raise take_error(error, f"model {inference.model_name!r}")
        inference.token = self._token[0]
        if server.native is None:
            # Closed meanwhile: whoever did that has found no token to cancel it by.
            inference.cancel()
        self.clear()

    def clear(self) -> None:
        """Forget what the last request said beside its inputs."""
        if self._extra is not None:
            self._extra = None
            self._clear_extra()
        if self._special is not None:
            special, _ = self._special
            self._special = None
            self._clear_pieces(special)

    def _pieces(self, value: object, spec: ModelSpec, i: int) -> Pieces | None:
        batching = spec.max_batch_size > 0
        return pieces_of(value, spec.inputs[self.names[i]], self._whats[i], batching=batching)

    def _set_pieces(self, special: list[tuple[int, Pieces]], pins: list[CData]) -> object:
        """Write the inputs that come in pieces; returns what must live until the submission."""
        native = self.native
        made = []
        keep: list[object] = []
        for i, pieces in special:
            if pieces.is_raw:
                self._tensors[i].datatype = lib.TRITONSERVER_TYPE_INVALID
            for piece in pieces.pieces:
                policy = ffi.NULL
                if piece.host_policy is not None:
                    policy = ffi.new("char[]", piece.host_policy)
                    keep.append(policy)
                pins.append(piece.data)
                made.append(
                    {
                        "data": piece.data,
                        "byte_size": piece.byte_size,
                        "host_policy": policy,
                        "memory_type": int(piece.memory_type),
                        "memory_type_id": piece.memory_type_id,
                        "input": i,
                    }
                )
        array = ffi.new("tffi_piece[]", made)
        keep.append(array)
        native.pieces = array
        native.piece_count = len(made)
        return keep

    def _clear_pieces(self, special: list[tuple[int, Pieces]]) -> None:
        self.native.piece_count = 0
        for i, _ in special:
            self._tensors[i].datatype = int(DataType[self._datatypes[i]])

    def _set_extra(self, spec: ModelSpec, request: Request, inference: Inference) -> object:
        """Write what goes with the inputs; returns what must live until the submission."""
        native = self.native
        keep: list[object] = []

        def text(value: str, what: str) -> CData:
            copy = ffi.new("char[]", encode(value, what))
            keep.append(copy)
            return copy

        spec.check_output_names(request.outputs)
        parameters = parameter_entries(request.parameters, f"model {spec.name!r}", text)
        if request.request_id != "":
            native.request_id = text(request.request_id, "request_id")
        if isinstance(request.correlation_id, str):
            native.correlation_text = text(request.correlation_id, "correlation_id")
        else:
            native.correlation_id = request.correlation_id
        spec.check_correlation_id(request.correlation_id)
        native.priority = request.priority
        if request.queue_timeout is not None:
            # 0 is Triton's word for "no timeout of its own", so the shortest is a microsecond.
            native.timeout_us = min(max(1, round(request.queue_timeout * 1e6)), _UINT64_MAX)
        flags = RequestFlag(0)
        if request.sequence_start:
            flags |= RequestFlag.SEQUENCE_START
        if request.sequence_end:
            flags |= RequestFlag.SEQUENCE_END
        native.flags = int(flags)
        if request.out or request.labels:
            wanted = Wanted.of(spec, request.out, request.labels, request.outputs)
            keep.append(wanted.describe(native))
            inference.wanted = wanted
        native.trace = ffi.NULL if request.trace is None else request.trace.native
        if request.outputs:
            names = ffi.new(
                "const char *[]", [text(name, "an output name") for name in request.outputs]
            )
            keep.append(names)
            native.outputs = names
            native.output_count = len(request.outputs)
        if parameters:
            array = ffi.new("tffi_parameter[]", parameters)
            keep.append(array)
            native.parameters = array
            native.parameter_count = len(parameters)
        return keep

    def _clear_extra(self) -> None:
        native = self.native
        native.request_id = native.correlation_text = native.trace = ffi.NULL
        native.correlation_id = native.priority = native.timeout_us = native.flags = 0
        native.output_count = native.parameter_count = 0
        native.out_count = native.labelled_count = 0


def parameter_entries(
    values: Mapping[str, ParameterValue], what: str, text: Callable[[str, str], CData]
) -> list[dict[str, object]]:
    """Make initialisers of ``tffi_parameter`` of parameters by name; ``text`` makes C strings."""
    made = []
    for name, value in values.items():
        where = f"{what}: parameter {name!r}"
        entry: dict[str, object] = {"name": text(name, f"{what}: the name of a parameter")}
        plain = value.item() if isinstance(value, np.generic) else value
        if isinstance(plain, bool):
            entry |= {"type": int(ParameterType.BOOL), "integer": int(plain)}
        elif isinstance(plain, int):
            if plain not in _INT64:
                raise InvalidArgumentError(f"{where} does not fit into 64 bits: {plain}")
            entry |= {"type": int(ParameterType.INT), "integer": plain}
        elif isinstance(plain, float):
            entry |= {"type": int(ParameterType.DOUBLE), "real": plain}
        elif isinstance(plain, str):
            entry |= {"type": int(ParameterType.STRING), "text": text(plain, where)}
        else:
            kind = type(plain).__name__
            raise TypeError(f"{where} must be a str, bool, int or float, not {kind}")
        made.append(entry)
    return made
