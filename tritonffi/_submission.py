# SPDX-License-Identifier: Apache-2.0
"""The moment between describing an inference and having its token."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tritonffi._native import CData


class Submission:
    """One or several inferences on their way to Triton.

    A signal handler may run or raise as soon as C returns: the inferences are then in flight
    without tokens of their own, but find them here.

    Attributes:
        tokens: Where C writes them.
        places: The place of each inference there, by key; None: there is but one.
        begun: Whether the server's handle may have been looked at. Before that nothing is lost if
            the server is closed: the submission finds that out.
    """

    __slots__ = ("begun", "places", "tokens")

    def __init__(self, tokens: CData, places: dict[int, int] | None = None) -> None:
        self.tokens = tokens
        self.places = places
        self.begun = False

    def token(self, key: int) -> int:
        """Return the token of the inference with this key; 0: C has written none."""
        return int(self.tokens[0 if self.places is None else self.places[key]])
