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
        tokens: Where C writes them.
        keys: Of the inferences, in the order of their tokens; none: there is but one.
        begun: Whether the server's handle may have been looked at. Before that nothing is lost if
            the server is closed: the submission finds that out.
    """

    __slots__ = ("begun", "keys", "tokens")

    def __init__(self, tokens: CData, keys: Sequence[int] = ()) -> None:
        self.tokens = tokens
        self.keys = keys
        self.begun = False

    def token(self, key: int) -> int:
        """Return the token of the inference with this key; 0: C has written none."""
        return int(self.tokens[self.keys.index(key) if self.keys else 0])
