# SPDX-License-Identifier: Apache-2.0
"""Responses: plain data read out of a completion, with arrays that own their memory.

Last step of the way that ``csrc/tritonffi.h`` tells: each output buffer becomes an ndarray without
a copy. The array's base chain ends in an ``ffi.gc`` owner, so the memory lives exactly as long as
the last view of it, whatever becomes of the response, the model or the server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from tritonffi._call import string
from tritonffi._enums import ParameterType
from tritonffi._errors import CancelledError, TritonError, anew, error_from_code
from tritonffi._native import ffi, lib
from tritonffi._tensor import Array, from_tensor, plain_storage

if TYPE_CHECKING:
    from tritonffi._native import CData
    from tritonffi._output import Label, Wanted
    from tritonffi._terms import Terms

ParameterValue: TypeAlias = "str | int | float | bool"


# Names of what every response needs.
_ndarray = np.ndarray
_buffer = ffi.buffer
_gc = ffi.gc
_release = lib.tffi_buffer_release_data
_NULL = ffi.NULL

# The version; and index, name, shape, dtype and size of every output. Responses of one layout
# are alike, so what it says is worked out once. Empty: such outputs are read one by one.
_Entry: TypeAlias = "tuple[int, str, tuple[int, ...], np.dtype[np.generic], int]"
_Plan: TypeAlias = "tuple[int, tuple[_Entry, ...]] | tuple[()]"
_plans: dict[int, _Plan] = {}
# Parameters, likewise.
_sayings: dict[int, dict[str, ParameterValue]] = {}
_REMEMBERED = 256


class Response(Mapping[str, Array]):
    """The outputs of one response, by name.

    Each output is an ndarray over memory of its own, which lives as long as it is held; BYTES
    outputs are object arrays of ``bytes``. A response keeps nothing of the server busy.

    Attributes:
        model_name: The model that was asked.
        model_version: The version that answered.
        request_id: The id given with the request.
        parameters: What the model says beside its outputs, by name.
        labels: Of the outputs for which the request's `labels` asked: for each row of the batch
            (one row, where the model does not batch) the classes with the greatest values, best
            first.

    C: ``TRITONSERVER_InferenceResponse`` (read and deleted before anyone sees this object).
    """

    __slots__ = ("_outputs", "labels", "model_name", "model_version", "parameters", "request_id")

    _outputs: dict[str, Array]
    model_name: str
    model_version: int
    request_id: str
    parameters: dict[str, ParameterValue]
    labels: dict[str, list[list[Label]]]

    if not TYPE_CHECKING:  # or a type checker would let any attribute pass

        def __getattr__(self, name: str) -> object:
            # Few responses have any, and of few anybody asks: made when they are looked at.
            if name in ("labels", "parameters"):
                setattr(self, name, {})
                return getattr(self, name)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __getitem__(self, name: str) -> Array:
        try:
            return self._outputs[name]
        except KeyError:
            have = ", ".join(map(repr, self._outputs)) or "no outputs"
            message = f"model {self.model_name!r}: no output {name!r} in the response ({have})"
            raise KeyError(message) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._outputs)

    def __len__(self) -> int:
        return len(self._outputs)

    def __contains__(self, name: object) -> bool:
        return name in self._outputs

    # Arrays are not equal or not, but in their elements.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        outputs = ", ".join(
            f"{name}: {array.dtype.name}{list(array.shape)}"
            for name, array in self._outputs.items()
        )
        return f"<Response of {self.model_name!r} version {self.model_version}: {outputs}>"


_new_response = Response.__new__


def read(completion: CData, terms: Terms) -> Response | TritonError:
    """Read a ``tffi_completion *`` that has a response, taking over its buffers.

    Args:
        completion: Stays the caller's to free.
        terms: Of the request.

    Returns:
        The response, or the error that came in its place.
    """
    # Without a call of __init__, which would cost as much as the array.
    response = _new_response(Response)
    response._outputs = outputs = {}  # noqa: SLF001
    response.model_name = model_name = terms.model_name
    response.request_id = terms.request_id
    plan = None
    wanted = terms.wanted
    if wanted is None:
        layout = completion.layout
        plan = _plans.get(layout)
        if plan is None and layout:
            plan = _make_plan(layout, completion)
    if plan:  # and so there is no error
        if completion.parameter_count:
            response.parameters = _parameters(completion)
        response.model_version, entries = plan
        tensors = tensor = completion.outputs
        for i, name, shape, storage, size in entries:
            if i:
                tensor = tensors[i]
            # In this order: a signal handler that raises in between must not free it twice.
            data = tensor.data
            tensor.buffer = _NULL
            outputs[name] = _ndarray(shape, storage, _buffer(_gc(data, _release), size))
        return response
    if completion.error_message:
        message = string(completion.error_message)
        return inference_error(completion.error_code, message, model_name)
    response.model_version = completion.model_version
    response.parameters = _parameters(completion)
    try:
        _read_each(completion, model_name, wanted, outputs, response.labels)
    except TritonError as error:
        return anew(error)
    return response


def _read_each(
    completion: CData,
    model_name: str,
    wanted: Wanted | None,
    outputs: dict[str, Array],
    labels: dict[str, list[list[Label]]],
) -> None:
    """Read outputs with all that can be special about one."""
    for i in range(completion.output_count):
        tensor = completion.outputs[i]
        name = string(tensor.name)
        if wanted is not None and wanted.names and name not in wanted.names:
            continue  # its memory goes with the completion
        size = tensor.byte_size
        shape = tuple(ffi.unpack(tensor.shape, tensor.dim_count)) if tensor.dim_count else ()
        what = f"model {model_name!r}, output {name!r}"
        if tensor.buffer:
            data = tensor.data
            tensor.buffer = _NULL
            owner = _gc(data, _release)
            outputs[name] = from_tensor(tensor.datatype, shape, owner, size, what)
        elif wanted is None or name not in wanted.out:
            # The model named the output and asked for no memory.
            outputs[name] = from_tensor(tensor.datatype, shape, ffi.NULL, 0, what)
        else:
            outputs[name] = wanted.written(name, tensor, shape, what)
        if wanted is not None and tensor.labels:
            labels[name] = wanted.classes(name, tensor, outputs[name])
    if wanted is not None:
        wanted.check_complete(outputs, model_name)


def _make_plan(layout: int, completion: CData) -> _Plan:
    """Remember how to read outputs of one layout."""
    entries: list[_Entry] = []
    for i in range(completion.output_count):
        tensor = completion.outputs[i]
        shape = tuple(ffi.unpack(tensor.shape, tensor.dim_count)) if tensor.dim_count else ()
        storage = plain_storage(tensor.datatype, shape, tensor.byte_size)
        if storage is None or not tensor.buffer:
            entries = []
            break
        entries.append((i, string(tensor.name), shape, storage, tensor.byte_size))
    if len(_plans) >= _REMEMBERED:
        _plans.clear()
    plan: _Plan = (completion.model_version, tuple(entries)) if entries else ()
    _plans[layout] = plan
    return plan


def _parameters(completion: CData) -> dict[str, ParameterValue]:
    saying = completion.saying
    known = _sayings.get(saying)
    if known is not None:
        return known.copy()
    parameters = {}
    for i in range(completion.parameter_count):
        parameter = completion.parameters[i]
        parameters[string(parameter.name)] = parameter_value(parameter)
    if saying:
        if len(_sayings) >= _REMEMBERED:
            _sayings.clear()
        _sayings[saying] = parameters.copy()
    return parameters


def parameter_value(parameter: CData) -> ParameterValue:
    """Read a ``tffi_parameter``."""
    kind = ParameterType(parameter.type)
    if kind is ParameterType.STRING:
        return string(parameter.text)
    if kind is ParameterType.BOOL:
        return bool(parameter.integer)
    if kind is ParameterType.DOUBLE:
        return float(parameter.real)
    return int(parameter.integer)


def inference_error(code: int, message: str, model_name: str) -> TritonError:
    """Make the exception for a failed inference; it names the model."""
    if not message:
        # Requests that are cancelled in a queue come back with a code alone.
        message = "the request was cancelled" if code == CancelledError.code else "no reason given"
    prefix = f"model {model_name!r}"
    if not message.startswith(prefix):  # a Python callable's errors have it already
        message = f"{prefix}: {message}"
    return error_from_code(code, message)
