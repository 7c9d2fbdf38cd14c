# SPDX-License-Identifier: Apache-2.0
"""The moment between describing an inference and having its token."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tritonffi._native import CData


class Submission:
    """One or several inferences on their way to Triton.

    A signal handler may run or raise as soon as C returns: the inferences are then in flight
    without tokens of their own, but find them here.

    Attributes:
        native: Where C writes them: a ``tffi_ticket *`` of the last inference, or an array.
        keys: Of the inferences in such an array; none: it is a ticket.
    """

    __slots__ = ("keys", "native")

    def __init__(self, native: CData, keys: Sequence[int] = ()) -> None:
        self.native = native
        self.keys = keys

    def token(self, key: int) -> int:
        """Return the token of the inference with this key; 0: C has written none."""
        if self.keys:
            return int(self.native[self.keys.index(key)])
        return int(self.native.token) if self.native.key == key else 0
