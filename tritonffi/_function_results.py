# SPDX-License-Identifier: Apache-2.0
"""
What callables return, held against what was declared, as the C structs that csrc/scatter.c cuts.

A callable returns a mapping of output names to whatever `to_tensor` takes; for a single output the
value by itself will do. A `Result` says more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import AsyncGeneratorType, GeneratorType
from typing import TYPE_CHECKING

from tritonffi._call import encode
from tritonffi._errors import InvalidArgumentError, counted
from tritonffi._native import ffi
from tritonffi._request import parameter_entries
from tritonffi._tensor import check_shape, to_tensor

if TYPE_CHECKING:
    from tritonffi._function_config import Declared
    from tritonffi._native import CData
    from tritonffi._response import ParameterValue

_GENERATORS = (GeneratorType, AsyncGeneratorType)


@dataclass(frozen=True)
class Result:
    """
    What a callable may return or yield in place of its outputs, to say more than these.

    Attributes:
        outputs: What it would have returned otherwise: arrays by output name.
        parameters: What the responses say beside their outputs, `Response.parameters`: str, int
            (64 bits), float or bool by name. One mapping is for all requests of the batch, a
            sequence of mappings has one for each.
    """

    outputs: object
    parameters: Mapping[str, ParameterValue] | Sequence[Mapping[str, ParameterValue]] = field(
        default_factory=dict
    )


class ResultWriter:
    """Turns what one model's callable returns into ``tffi_result``."""

    def __init__(self, outputs: Sequence[Declared], *, is_batching: bool) -> None:
        """
        Make what all results have in common.

        Args:
            outputs: What the model gives.
            is_batching: Whether outputs have a first axis of as many rows as the batch.
        """
        self._outputs = {declared.name: declared for declared in outputs}
        self._names = [ffi.new("char[]", name.encode()) for name in self._outputs]
        self._is_batching = is_batching

    def write(self, batch: CData, value: object) -> tuple[CData, object]:
        """
        Check a result.

        Args:
            batch: The ``tffi_batch *`` that it answers.
            value: What the callable returned.

        Returns:
            A ``tffi_result *``, and what must live as long as that is used.

        Raises:
            TypeError: It is nothing that outputs can be made of.
            InvalidArgumentError: Names, types, shapes or parameters are not what they must be.
        """
        result = ffi.new("tffi_result *")
        held: list[object] = []
        if isinstance(value, Result):
            self._write_parameters(result, held, value.parameters, batch.request_count)
            value = value.outputs
        values = self._values(value)
        rows = batch.row_count if self._is_batching else None
        tensors = ffi.new("tffi_tensor[]", len(self._outputs))
        held.append(tensors)
        for index, (name, declared) in enumerate(self._outputs.items()):
            what = f"output {name!r}"
            data, shape, size = to_tensor(values[name], declared.datatype, what)
            _check_result(shape, declared, rows, what)
            dims = ffi.new("int64_t[]", shape)
            held += [data, dims]
            tensor = tensors[index]
            tensor.name = self._names[index]
            tensor.datatype = declared.c_datatype
            tensor.shape = dims
            tensor.dim_count = len(shape)
            tensor.data = ffi.cast("void *", data)
            tensor.byte_size = size
        result.outputs = tensors
        result.output_count = len(self._outputs)
        return result, held

    def _values(self, result: object) -> Mapping[str, object]:
        """Return the results by name, if they are just the declared ones."""
        outputs = self._outputs
        if not isinstance(result, Mapping):
            if type(result) in _GENERATORS:
                raise TypeError(
                    "the function returned a generator, but is no generator function: load the one "
                    "that it calls, or let it yield by itself"
                )
            if len(outputs) == 1 and result is not None:
                return dict.fromkeys(outputs, result)
            wanted = ", ".join(map(repr, outputs))
            raise TypeError(
                f"the function must return a dict with {wanted}, not {type(result).__name__}"
            )
        if result.keys() != outputs.keys():
            missing = ", ".join(repr(name) for name in outputs if name not in result)
            unknown = ", ".join(repr(name) for name in result if name not in outputs)
            parts = [f"lacks {missing}"] if missing else []
            parts += [f"has {unknown}, which is not declared"] if unknown else []
            raise InvalidArgumentError(f"the function's result {' and '.join(parts)}")
        return result

    def _write_parameters(
        self, result: CData, held: list[object], parameters: object, request_count: int
    ) -> None:
        """Write the parameters of each response."""
        if isinstance(parameters, Mapping):
            each: Sequence[object] = [parameters] * request_count
        elif isinstance(parameters, Sequence) and not isinstance(parameters, (str, bytes)):
            each = parameters
        else:
            each = [parameters]
        if len(each) != request_count:
            raise InvalidArgumentError(
                f"parameters for {counted(len(each), 'response')}, where the batch has "
                f"{counted(request_count, 'request')}"
            )

        def text(value: str, what: str) -> CData:
            held.append(ffi.new("char[]", encode(value, what)))
            return held[-1]

        entries: list[dict[str, object]] = []
        counts = []
        for values in each:
            if not isinstance(values, Mapping):
                raise TypeError(f"parameters must be a mapping, not {type(values).__name__}")
            made = parameter_entries(values, "the response", text)
            entries += made
            counts.append(len(made))
        c_entries = ffi.new("tffi_parameter[]", entries)
        c_counts = ffi.new("uint32_t[]", counts)
        held += [c_entries, c_counts]
        result.parameters = c_entries
        result.parameter_counts = c_counts


def _check_result(shape: tuple[int, ...], declared: Declared, rows: int | None, what: str) -> None:
    """Hold the shape of an output against the declared one, and its rows against the batch's."""
    if rows is None:
        check_shape(shape, declared.shape, what)
        return
    if not shape or shape[0] != rows:
        got = shape[0] if shape else "a scalar"
        raise InvalidArgumentError(f"{what}: wrong number of rows: expected {rows}, got {got}")
    check_shape(shape, (-1, *declared.shape), what)
