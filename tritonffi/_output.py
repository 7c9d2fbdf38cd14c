# SPDX-License-Identifier: Apache-2.0
"""What the caller wants of outputs: to have them in memory of his own, and labels of classes.

`Wanted` is made with a request, tells C what to do (``tffi_request``), and goes with the inference:
it keeps the caller's memory until Triton is through, and finishes the outputs when they are there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

import numpy as np

from tritonffi._bfloat16 import widened
from tritonffi._bytes import format_shape
from tritonffi._call import string
from tritonffi._enums import DataType, MemoryType
from tritonffi._errors import InternalError, InvalidArgumentError
from tritonffi._lent import Lent, borrow
from tritonffi._lists import offers
from tritonffi._native import ffi
from tritonffi._tensor import check_shape, element_type, from_tensor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tritonffi._native import CData
    from tritonffi._spec import ModelSpec, TensorSpec
    from tritonffi._tensor import Array, ElementType

_LENDERS = ("__dlpack__", "__cuda_array_interface__")

#: Memory to write outputs into, by output name: arrays, buffers, DLPack objects.
Out: TypeAlias = "Mapping[str, object]"


class Label(NamedTuple):
    """A class of a classification.

    Attributes:
        text: Its label in the model's label file; "" where it has none.
        number: Which class it is, from 0.
        value: What the output holds for it.

    C: ``TRITONSERVER_InferenceResponseOutputClassificationLabel``
    """

    text: str
    number: int
    value: float


class _Place(NamedTuple):
    """Memory of the caller's for one output.

    Attributes:
        value: What he gave.
        lent: The memory.
        shape: What the output's shape must be; None: whatever fits.
    """

    value: object
    lent: Lent
    shape: tuple[int, ...] | None


@dataclass
class Wanted:
    """What is wanted of the outputs of one inference.

    Attributes:
        out: The caller's memory, by output name.
        labels: How many classes are wanted, by output name.
        batching: Whether the first axis of an output is a batch.
        is_cached: Whether the response may come out of Triton's cache.
        names: The outputs to be handed out, where Triton is asked for all; empty: all.
    """

    labels: Mapping[str, int]
    batching: bool
    is_cached: bool
    out: dict[str, _Place] = field(default_factory=dict)
    names: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls, spec: ModelSpec, out: Out, labels: Mapping[str, int], outputs: Sequence[str]
    ) -> Wanted:
        """Check what is wanted against the model.

        Raises:
            InvalidArgumentError: The model has no such output, or its outputs cannot go there.
            TypeError: What is given for an output is no memory that can be written to.
        """
        wanted = cls(labels, spec.max_batch_size > 0, spec.is_cached)
        if spec.gives_all:
            wanted.names = frozenset(outputs)
        for what, names in (("out", out), ("labels", labels)):
            spec.check_output_names(names)
            for name in names:
                if outputs and name not in outputs:
                    raise InvalidArgumentError(
                        f"model {spec.name!r}: {what} names output {name!r}, but outputs does not"
                    )
        if out and spec.is_decoupled:
            raise InvalidArgumentError(
                f"model {spec.name!r}: out is for one response, but the model is decoupled and may "
                "send several"
            )
        for name in labels:
            if spec.outputs[name].datatype == "BYTES":
                raise InvalidArgumentError(
                    f"model {spec.name!r}, output {name!r}: labels need numbers, not BYTES"
                )
        for name, value in out.items():
            wanted.out[name] = _place(value, spec.outputs[name], f"model {spec.name!r}")
            if name in labels and wanted.out[name].lent.memory_type is MemoryType.GPU:
                raise InvalidArgumentError(
                    f"model {spec.name!r}, output {name!r}: labels need the numbers in CPU memory, "
                    "and out is memory of a GPU"
                )
        _refuse_overlaps(wanted.out, f"model {spec.name!r}")
        return wanted

    def describe(self, request: CData) -> object:
        """Write it into a ``tffi_request *``; returns what must live until the submission."""
        # The names are the model's own, so they are known to be text.
        keep: list[object] = []
        if self.out:
            out = ffi.new("tffi_tensor[]", len(self.out))
            for i, (name, place) in enumerate(self.out.items()):
                lent = place.lent
                text = ffi.new("char[]", name.encode())
                keep.append(text)
                tensor = out[i]
                tensor.name = text
                tensor.data = lent.data
                tensor.byte_size = lent.byte_size
                if lent.memory_type is not MemoryType.CPU:
                    tensor.memory_type = int(lent.memory_type)
                    tensor.memory_type_id = lent.memory_type_id
            keep.append(out)
            request.out = out
            request.out_count = len(self.out)
        if self.labels:
            texts = [ffi.new("char[]", name.encode()) for name in self.labels]
            labelled = ffi.new("const char *[]", texts)
            keep += (texts, labelled)
            request.labelled = labelled
            request.labelled_count = len(texts)
            request.batching = self.batching
        return keep

    def written(self, name: str, tensor: CData, shape: tuple[int, ...], what: str) -> Array:
        """Return an output that Triton has written into the caller's memory.

        That is an array, or for memory of a GPU what the caller gave.

        Raises:
            InvalidArgumentError: It has another shape than the array that was given for it.
            InternalError: The model sent it as another type than its metadata say.
        """
        place = self.out[name]
        expected = place.lent.datatype
        if int(DataType[expected]) != tensor.datatype:
            raise InternalError(
                f"{what}: expected {expected}, got {DataType(tensor.datatype).name}"
            )
        if place.shape is not None and place.shape != shape:
            raise InvalidArgumentError(
                f"{what}: 'out' has shape {format_shape(place.shape)}, but the model gave "
                f"{format_shape(shape)}"
            )
        if isinstance(place.value, np.ndarray) or place.lent.memory_type is MemoryType.GPU:
            return cast("Array", place.value)
        return from_tensor(tensor.datatype, shape, place.lent.data, place.lent.byte_size, what)

    def check_complete(self, outputs: Mapping[str, object], model_name: str) -> None:
        """Refuse a response that lacks an output for which there is memory, or is a lost error."""
        if self.is_cached and not outputs:
            raise InternalError(
                f"model {model_name!r}: the response has no outputs; where a request failed before "
                "with the same inputs, Triton's response cache answers so, without the error"
            )
        for name in self.out:
            if name not in outputs:
                raise InternalError(f"model {model_name!r}: the response has no output {name!r}")

    def classes(self, name: str, tensor: CData, array: Array) -> list[list[Label]]:
        """Return the classes with the greatest values, best first, of each row of a batch."""
        texts = [string(tensor.labels[i]) for i in range(tensor.label_count)]
        if tensor.datatype == int(DataType.BF16):
            array = widened(array)
        rows = array.reshape((array.shape[0] if self.batching else 1, tensor.label_count))
        return [
            [Label(texts[i], i, row[i].item()) for i in _greatest(row, self.labels[name])]
            for row in rows
        ]


def _place(value: object, spec: TensorSpec, model: str) -> _Place:
    """Take the memory that is given for an output, if the output can go there."""
    what = f"{model}, output {spec.name!r}: out"
    row = element_type(spec.datatype)
    if row.storage is None:
        raise InvalidArgumentError(f"{what} is for outputs of a fixed size, and BYTES have none")
    shape: tuple[int, ...] | None
    if not isinstance(value, np.ndarray) and offers(value, *_LENDERS):
        lent = borrow(value, what)
        if lent.is_read_only:
            raise InvalidArgumentError(f"{what} is read-only")
        if lent.datatype != spec.datatype:
            raise InvalidArgumentError(f"{what}: expected {spec.datatype}, got {lent.datatype}")
        shape = lent.shape
    else:
        array, is_bytes = _writable(value, what)
        lent = _lent(array, row, what, is_bytes=is_bytes)
        shape = None if is_bytes else array.shape
    if shape is not None:
        check_shape(shape, spec.shape, what)
    return _Place(value, lent, shape)


def _writable(value: object, what: str) -> tuple[Array, bool]:
    """Return the array that a value is or offers, and whether it is nothing but bytes."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{what} is a masked array, whose mask Triton would not change")
    if isinstance(value, np.ndarray):
        return value, False
    try:
        view = memoryview(value)  # type: ignore[arg-type]  # asked, not known
    except TypeError:
        kind = type(value).__name__
        raise TypeError(
            f"{what} must be an array or a buffer that can be written to, not {kind}"
        ) from None
    return np.asarray(view), view.format == "B" and view.ndim == 1


def _lent(array: Array, row: ElementType, what: str, *, is_bytes: bool) -> Lent:
    """Check that outputs of the type can go into an array, and describe its memory."""
    if not array.flags.writeable:
        raise InvalidArgumentError(f"{what} is read-only")
    if not array.flags.c_contiguous or not array.flags.aligned:
        raise InvalidArgumentError(f"{what} is not an aligned array in C order")
    is_bfloat16 = row.name == "BF16" and array.dtype.name == "bfloat16"
    if not (is_bytes or is_bfloat16 or array.dtype == row.storage):
        raise InvalidArgumentError(
            f"{what}: expected {row.name} ({row.dtype.name}), got an array of {array.dtype}"
        )
    memory = array.view(np.uint16) if is_bfloat16 else array
    return Lent(
        data=ffi.from_buffer(memory, require_writable=True),
        byte_size=array.nbytes,
        shape=array.shape,
        datatype=row.name,
        memory_type=MemoryType.CPU,
        memory_type_id=0,
        is_read_only=False,
    )


def _refuse_overlaps(places: Mapping[str, _Place], model: str) -> None:
    if len(places) < 2:  # noqa: PLR2004 (one alone overlaps with nothing)
        return
    ranges = sorted(
        (int(ffi.cast("uintptr_t", place.lent.data)), place.lent.byte_size, name)
        for name, place in places.items()
        if place.lent.byte_size > 0
    )
    for (start, size, first), (following, _, second) in pairwise(ranges):
        if start + size > following:
            raise InvalidArgumentError(
                f"{model}: what out has for outputs {first!r} and {second!r} overlaps in memory"
            )


def _greatest(row: Array, count: int) -> list[int]:
    """Return where the greatest values are, best first; of equal ones the first; NaN last."""
    last = len(row) - 1
    if row.dtype.kind not in "biu":
        row = row.astype(np.float64)
        keys = (row[::-1], ~np.isnan(row[::-1]))  # the last one counts first
        return [last - int(i) for i in np.lexsort(keys)[::-1][:count]]
    return [last - int(i) for i in np.argsort(row[::-1], kind="stable")[::-1][:count]]
