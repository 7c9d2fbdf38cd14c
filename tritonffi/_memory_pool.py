# SPDX-License-Identifier: Apache-2.0
"""The memory of outputs: how much is in use, and how much is kept for the next ones."""

from __future__ import annotations

from tritonffi._native import ffi, lib
from tritonffi._numbers import check_whole


class MemoryPool:
    """The process's output memory; `tritonffi.memory_pool` is the one that there is.

    Memory for an output of 4 KB or more is kept when its array is dropped, and used again for the
    next of about that size: fresh memory costs a page fault for each 4 KB. What is kept is bounded
    by `limit`; what was dropped last is kept first. Any thread may use the attributes; each of the
    figures is exact by itself.
    """

    __slots__ = ()

    @property
    def limit(self) -> int:
        """How many bytes of idle memory are kept at most; 64 MB at the start of the process.

        Setting it gives back at once what is above.

        Raises:
            TypeError: It is no int.
            InvalidArgumentError: It is negative, or over 64 bits.
        """
        return int(lib.tffi_pool_limit())

    @limit.setter
    def limit(self, size: int) -> None:
        check_whole(size, "the limit", "a number of bytes")
        lib.tffi_pool_set_limit(size)

    @property
    def idle_bytes(self) -> int:
        """How many bytes are kept, and in nobody's use."""
        return self._read("pooled_bytes")

    @property
    def used_bytes(self) -> int:
        """How many bytes Triton, responses and arrays hold, rounded up as memory is."""
        return self._read("buffer_bytes")

    @property
    def buffers(self) -> int:
        """In how many pieces those are: one for each output, none for those with ``out=``."""
        return self._read("buffers")

    def __repr__(self) -> str:
        return (
            f"<MemoryPool: {self.used_bytes} bytes used, {self.idle_bytes} idle of at most "
            f"{self.limit}>"
        )

    def _read(self, name: str) -> int:
        counters = ffi.new("tffi_counters *")
        lib.tffi_counters_read(counters)
        return int(getattr(counters, name))


memory_pool = MemoryPool()
