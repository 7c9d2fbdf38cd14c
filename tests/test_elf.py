# SPDX-License-Identifier: Apache-2.0
"""Libraries that are cut short: the loader maps what is not there, and the process ends by it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import pytest
from test_library import NAME, load_elsewhere, make_wheel_folder

from tritonffi import _elf, _library


def mapped_size(path):
    """How long the file must be, as binutils has it."""
    listing = subprocess.run(
        ["readelf", "-lW", path], capture_output=True, text=True, check=True
    ).stdout
    loads = [line.split() for line in listing.splitlines() if line.split()[:1] == ["LOAD"]]
    return max(int(offset, 16) + int(length, 16) for _, offset, _, _, length, *_ in loads)


@pytest.fixture(scope="session")
def copy(library, tmp_path_factory):
    """A copy of the real library, alone in a folder."""
    return shutil.copyfile(library.path, tmp_path_factory.mktemp("copy") / NAME)


def test_what_is_missing_is_told_to_the_byte(copy, tmp_path):
    """Nothing is, where only what the loader does not map is cut off; a stub of a header is."""
    needed = mapped_size(copy)
    file = shutil.copyfile(copy, tmp_path / NAME)
    os.truncate(file, needed)
    assert _elf.cut_short(file) is None
    for size, expected in ((needed - 1, str(needed)), (64, r"\d+"), (40, "64")):
        os.truncate(file, size)
        told = rf"{size} bytes are there, of {expected} or more\. Copy or install it again"
        assert re.fullmatch(told, _elf.cut_short(file))
    for content in (b"", b"not a library at all" * 10):
        file.write_bytes(content)
        assert _elf.cut_short(file) is None
    assert _elf.cut_short(tmp_path / "absent") is None


@pytest.mark.parametrize("divisor", [2, 100])
def test_a_library_that_is_cut_short_is_refused(copy, tmp_path, divisor):
    """As a copy is on a disk that was full; the loader would end the process."""
    file = shutil.copyfile(copy, tmp_path / NAME)
    size = file.stat().st_size // divisor
    os.truncate(file, size)
    assert load_elsewhere(file).startswith(
        f"cannot use {file} (found by library={str(file)!r}): it is cut short: {size} bytes are "
        f"there, of {mapped_size(copy)} or more. Copy or install it again\n"
    )


def test_a_neighbour_that_is_cut_short_is_named(copy, tmp_path):
    """It is loaded before the library."""
    library = make_wheel_folder(tmp_path / "here", copy)
    file = library.with_name("libsecond-4567.so.2.3")
    shutil.copyfile(copy, file)
    os.truncate(file, 5000)
    assert (
        f"{file}, which is loaded with it, is cut short: 5000 bytes are there, of "
        f"{mapped_size(copy)} or more."
    ) in load_elsewhere(library)


def test_whole_libraries_are_whole(library):
    """The one that all tests run on, and what is loaded with it."""
    found = _library.find(library.path)
    assert [_elf.cut_short(path) for path in (found.library, *found.neighbours)] == [None] * (
        1 + len(found.neighbours)
    )
