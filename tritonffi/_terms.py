# SPDX-License-Identifier: Apache-2.0
"""What inferences that are alike have in common, so that it is said once for all of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tritonffi._output import Wanted


@dataclass(slots=True)
class Terms:
    """What an inference knows of its request.

    Attributes:
        model_name: The model that is asked, as the caller knows it.
        request_id: As given with the request.
        timeout: Seconds from the making of an inference until it is cancelled; None: none.
        wanted: What is wanted of the outputs; None: nothing special.
    """

    model_name: str
    request_id: str = ""
    timeout: float | None = None
    wanted: Wanted | None = None

    def without_wanted(self) -> Terms:
        """Return the rest, when what is wanted is there: it keeps memory of the caller's."""
        return replace(self, wanted=None)
