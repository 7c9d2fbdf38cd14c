# SPDX-License-Identifier: Apache-2.0
"""
What the file of a shared library says of itself, read before the loader maps it.

The loader's words mislead about a file for another machine, and of a file that is cut short it maps
what is not there: the first touch of that ends the process by SIGBUS, without a word.
"""

from __future__ import annotations

import mmap
import os
import platform
import re
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typing import BinaryIO

_TO_MACHINE: Final = 20  # bytes of the header, to the end of e_machine
_HEADER: Final = 64
_64_BIT: Final = 2
_PROGRAM_HEADER: Final = 56
_LOAD: Final = 1
_SECTION_HEADER: Final = 64
_DYNAMIC_SYMBOLS: Final = 11
_SYMBOL: Final = 24


def problem(path: Path) -> str | None:
    """Say what is wrong with a file that is no library for this process, None when nothing is."""
    try:
        with path.open("rb") as file:
            head = file.read(_TO_MACHINE)
    except OSError as error:
        return reason(error)
    if len(head) < _TO_MACHINE or head[:4] != b"\x7fELF":
        return "it is no shared library (cut short, or a pointer file of Git LFS?)"
    try:
        with Path("/proc/self/exe").open("rb") as file:
            our_head = file.read(_TO_MACHINE)
    except OSError:
        our_head = head
    # Class and byte order, then the machine: one for all that a process can load.
    if (head[4:6], head[18:20]) == (our_head[4:6], our_head[18:20]):
        short = cut_short(path)
        return None if short is None else f"it is cut short: {short}"
    machine = struct.unpack_from("<H" if head[5] == 1 else ">H", head, 18)[0]
    known = {3: "x86", 21: "ppc64", 22: "s390x", 40: "arm", 62: "x86_64", 183: "aarch64"}
    name = known.get(machine, f"ELF machine {machine}")
    return f"it is built for {name}, and this process is {platform.machine()}"


def cut_short(path: Path) -> str | None:
    """Say how much is missing of what the loader maps; None: nothing, or the loader says better."""
    try:
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            needed = _mapped_size(file)
    except OSError:
        return None
    if size >= needed:
        return None
    return f"{size} bytes are there, of {needed} or more. Copy or install it again"


def _mapped_size(file: BinaryIO) -> int:
    """Return how long the file of a library must be for all of its segments, 0 if it is none."""
    head = file.read(_HEADER)
    if head[:4] != b"\x7fELF" or head[4:5] != bytes([_64_BIT]):
        return 0
    if len(head) < _HEADER:
        return _HEADER
    order = "<" if head[5] == 1 else ">"
    (start,) = struct.unpack_from(f"{order}Q", head, 32)
    size, count = struct.unpack_from(f"{order}HH", head, 54)
    if size != _PROGRAM_HEADER:
        return 0
    end: int = start + size * count
    if os.fstat(file.fileno()).st_size < end:
        return end
    file.seek(start)
    for kind, offset, length in struct.iter_unpack(f"{order}I4xQ16xQ16x", file.read(size * count)):
        if kind == _LOAD:
            end = max(end, offset + length)
    return end


def defined(content: bytes | mmap.mmap) -> set[bytes]:
    """Return the names that a library defines for others; none of what is no whole library.

    Args:
        content: Of its file.
    """
    if content[:4] != b"\x7fELF" or content[4:5] != bytes([_64_BIT]):
        return set()
    order = "<" if content[5] == 1 else ">"
    try:
        (start,) = struct.unpack_from(f"{order}Q", content, 40)
        size, count = struct.unpack_from(f"{order}HH", content, 58)
        if size != _SECTION_HEADER:
            return set()
        # Kind, where it is, its size, and the section that belongs to it: that of the names.
        headers = content[start : start + size * count]
        sections = list(struct.iter_unpack(f"{order}4xI16xQQI20x", headers))
        found = set()
        for kind, offset, length, link in sections:
            if kind == _DYNAMIC_SYMBOLS:
                _, names, room, _ = sections[link]
                strings = content[names : names + room]
                symbols = content[offset : offset + length - length % _SYMBOL]
                for name, home in struct.iter_unpack(f"{order}I2xH16x", symbols):
                    if home:  # or another library has it
                        found.add(strings[name : strings.find(b"\0", name)])
    except (struct.error, IndexError):
        return set()
    return found


def needed_glibc(path: Path) -> tuple[int, int] | None:
    """Return the newest glibc version that a library asks for."""
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            versions = re.findall(rb"GLIBC_(\d+)\.(\d+)\0", content)
    except (OSError, ValueError):
        return None
    return max(((int(major), int(minor)) for major, minor in versions), default=None)


def reason(error: OSError) -> str:
    """Say in a few words why a file or folder is not to be had."""
    return "does not exist" if isinstance(error, FileNotFoundError) else str(error.strerror)
