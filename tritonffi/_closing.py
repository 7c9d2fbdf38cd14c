# SPDX-License-Identifier: Apache-2.0
"""What objects have in common that stand for something there is once, and for what is closed."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self


class Unique:
    """A base of classes whose objects cannot be copied: two would own the same thing of C."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} can be neither copied nor pickled: what it stands for is in "
            "this process, once; another process must start a server of its own"
        )


class Closing(Unique):
    """A base of classes whose objects are closed at the end of a ``with`` block."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Close it. Closing twice is no error."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
