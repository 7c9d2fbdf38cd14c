# SPDX-License-Identifier: Apache-2.0
"""
The inputs of a batch as arrays, and who holds their memory.

C has gathered the requests' data into memory of the batch's own (csrc/gather.c). An array over it
owns it from the first moment, so that no view can outlive it. After the call nobody has kept one
mostly: then the memory is C's again, to be freed without a call of its own, for which this thread
would let go of the GIL and have to wait for it.

A large input of a single request of this very process is not copied but lent: the array lies over
the memory of whoever sent it, and holds what the inference holds. Whoever sent it may write to it
again as soon as he has his result. So a callable that keeps such an array is told in the log, and
gets copies from then on.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from tritonffi._bytes import unpack_padded
from tritonffi._errors import CancelledError
from tritonffi._native import ffi, lib
from tritonffi._tensor import from_tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tritonffi._function_config import Declared
    from tritonffi._native import CData
    from tritonffi._tensor import Array

logger = logging.getLogger("tritonffi.functions")

#: Finds what holds the inputs of the inference of this ``tffi_queue *`` and key.
FindPins: TypeAlias = "Callable[[CData, int], object]"

#: Of each array of a batch its tensor, the buffer of that, its name, and what owns the memory.
Owners: TypeAlias = "list[tuple[CData, CData, str, CData]]"

# The length of an id, and the longest that Triton takes.
_ID_ROOM = 4 + 128

_release = lib.tffi_buffer_release_data


@dataclass(frozen=True)
class FunctionCopies:
    """
    Data of functions that was copied, over the process; `function_copies` counts it.

    What is not counted is what numpy does: for a result that is not in C order, or in BYTES.

    Attributes:
        inputs: Inputs of requests that were copied into the memory of a call.
        input_bytes: Their size.
        lent_inputs: Inputs of requests that were not copied: large ones of a request that is a call
            of its own. The array lies over the memory of whoever sent it.
        outputs: Outputs of requests, each copied once, from what the function returned.
        output_bytes: Their size.
    """

    inputs: int
    input_bytes: int
    lent_inputs: int
    outputs: int
    output_bytes: int


def function_copies() -> FunctionCopies:
    """Count what was copied for functions since the process began; for what it is, subtract."""
    copies = ffi.new("tffi_copies *")
    lib.tffi_copies_read(copies)
    return FunctionCopies(
        *(int(getattr(copies, field.name)) for field in dataclasses.fields(FunctionCopies))
    )


class InputReader:
    """Makes the arrays of one batch after the other, for one instance."""

    def __init__(
        self,
        name: str,
        inputs: Sequence[Declared],
        find_pins: FindPins,
        stop_lending: Callable[[], None],
    ) -> None:
        """
        Keep what all batches have in common.

        Args:
            name: The model's name.
            inputs: What the model takes.
            find_pins: Finds what holds the memory of lent inputs.
            stop_lending: Has C copy all inputs from now on.
        """
        self._name = name
        self._inputs = [
            (declared.name, _read_ids if _is_text_id(declared) else from_tensor)
            for declared in inputs
        ]
        self._find_pins = find_pins
        self._stop_lending = stop_lending
        self._lent: list[tuple[str, CData]] = []  # what was still in use after the call
        self._has_told = False

    def read(self, batch: CData, owners: Owners) -> dict[str, Array]:
        """
        Make arrays over the inputs of a batch, which take the memory over from it.

        Args:
            batch: A ``tffi_batch *`` that runs.
            owners: An empty list of this batch's, for `give_back`, which must follow.

        Returns:
            The arrays by name, without those that the requests do not have.

        Raises:
            CancelledError: The batch was abandoned meanwhile.
        """
        arrays: dict[str, Array] = {}
        tensors = batch.inputs
        pins: object = None
        if batch.queue:
            pins = self._find_pins(batch.queue, batch.key)
            if not lib.tffi_batch_is_running(batch):
                raise CancelledError("the request was given up")
        for index, (name, make) in enumerate(self._inputs):
            tensor = tensors[index]
            data = tensor.data
            if not data:
                continue
            size = tensor.byte_size
            buffer = tensor.buffer
            # First this: what another thread throws into this one comes when a call has returned.
            tensor.buffer = ffi.NULL
            owner = ffi.gc(data, _release, size) if buffer else ffi.gc(data, _Pins(pins))
            owners.append((tensor, buffer, name, owner))
            shape = tuple(ffi.unpack(tensor.shape, tensor.dim_count)) if tensor.dim_count else ()
            arrays[name] = make(
                tensor.datatype, shape, owner, size, f"input {name!r}", writable=False
            )
        return arrays

    def give_back(self, owners: Owners) -> None:
        """
        Give a batch back what no array needs any more; after the call.

        Args:
            owners: What `read` has put there.
        """
        while owners:
            tensor, buffer, name, owner = owners.pop()
            if sys.getrefcount(owner) == _ALONE:
                tensor.buffer = buffer  # first, as above: or nobody would free it
                ffi.gc(owner, None)
            elif not buffer:
                self._lent.append((name, owner))

    def look_after(self) -> None:
        """Tell who keeps an array over lent memory; when the result too is gone."""
        while self._lent:
            name, owner = self._lent.pop()
            if sys.getrefcount(owner) != _ALONE and not self._has_told:
                self._has_told = True
                self._stop_lending()
                logger.warning(
                    "model %r, input %r: the function has kept the array, which is memory of the "
                    "one who sent it and may change; from now on it gets copies",
                    self._name,
                    name,
                )


def _is_text_id(declared: Declared) -> bool:
    return declared.is_control and declared.datatype == "BYTES"


def _read_ids(
    datatype: int, shape: tuple[int, ...], owner: CData, size: int, what: str, *, writable: bool
) -> Array:
    """
    Make the array of a control input of text, which is the id of the sequence, as `from_tensor`.

    Triton 2.51 gives each request's the room of the longest id, and leaves behind the id what the
    memory held; a later one gives it what it needs. Where ids of that one take as much as padded
    ones would, all are the longest.
    """
    if size != math.prod(shape) * _ID_ROOM:
        return from_tensor(datatype, shape, owner, size, what, writable=writable)
    array = unpack_padded(shape, owner, size, _ID_ROOM, what)
    array.setflags(write=writable)
    return array


class _Pins:
    """Holds what it is made with until it is called, as `ffi.gc` does in the end."""

    __slots__ = ("_pins",)

    def __init__(self, pins: object) -> None:
        self._pins = pins

    def __call__(self, _data: CData) -> None:
        self._pins = None


def _alone() -> int:
    """Return what is counted where nobody else has the owner."""
    owners = [(None, None, "", ffi.new("char *"))]
    _, _, _, owner = owners.pop()
    return sys.getrefcount(owner)


_ALONE = _alone()
