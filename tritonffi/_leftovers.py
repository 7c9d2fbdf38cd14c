# SPDX-License-Identifier: Apache-2.0
"""What processes leave behind outside of their memory: folders, and shared memory of stubs.

A process that is killed cannot remove what it made. So the names say which process it was, and the
next one of the user's that starts a server removes what belongs to dead ones.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator


_PROC = Path("/proc")
# Of the words after a program's name.
_STATE: Final = 0
_THREADS: Final = 17
_ENDED: Final = (b"Z", b"X")
_BOOT: Final = "/proc/sys/kernel/random/boot_id"
# What means nothing to a shell, nor in a list of folders such as PATH; and the stub's Python, which
# has no locale, cannot import from what is not ASCII.
_PLAIN: Final = rb"[\w@%+=,./-]+"
#: Where Triton's python backend makes a folder of its own, whatever the environment says.
BACKEND_PLACE: Final = Path("/tmp")  # noqa: S108 (the backend's mkdtemp makes up the name)
# Last the one that is memory.
_ELSEWHERE: Final = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 (a folder of a secret name)


def _host() -> str:
    """Return what tells this host from others, on all of which the first namespace is the same."""
    try:
        boot = Path(_BOOT).read_bytes()
    except OSError:
        return ""
    return f"{zlib.crc32(boot + os.fsencode(os.uname().nodename)):08x}"


# Once: the host may get another name, and names of this process must begin alike.
_HOST: Final = _host()


def prefix() -> str:
    """Return how the names of what this process makes begin."""
    return f"tritonffi-{_namespace() or '0'}-{os.getpid()}-"


def _namespace() -> str:
    """Return where the numbers of processes count; empty: that is not known.

    Containers may share folders, and hosts too, but not those numbers.
    """
    try:
        namespace = (_PROC / "self/ns/pid").stat().st_ino
    except OSError:  # no /proc, or not all of it
        return ""
    return _HOST and f"{_HOST}{namespace:x}"


def of_the_dead(folder: Path) -> Iterator[Path]:
    """List what is in a folder and belongs to processes of this user that are no more."""
    namespace = _namespace()
    if not namespace:
        return  # who is dead cannot be told
    beginning = f"tritonffi-{namespace}-"
    for path in folder.glob(f"{beginning}*"):
        pid = path.name.removeprefix(beginning).partition("-")[0]
        with contextlib.suppress(OSError):  # another one removes it as well
            # Processes of others may be hidden, and look as if they were no more.
            if path.lstat().st_uid == os.geteuid() and _is_dead(pid):
                yield path


def _is_dead(pid: str) -> bool:
    """Say whether a process is no more, or has ended and is not waited for yet."""
    try:
        words = (_PROC / pid / "stat").read_bytes().rpartition(b")")[2].split()
        # The state is that of the first thread, which may have ended before others.
        return words[_STATE] in _ENDED and int(words[_THREADS]) <= 1
    except (FileNotFoundError, ProcessLookupError):
        return True
    except (OSError, ValueError, IndexError):
        return False  # it cannot be told, as without a descriptor


def trouble(place: Path) -> str | None:
    """Say why Triton's python backend cannot run out of folders in a place; None: it can."""
    if not re.fullmatch(_PLAIN, os.fsencode(place)):
        return "Triton's shell, or Python in the stub, does not understand its name"
    try:
        is_barred = bool(os.statvfs(place).f_flag & os.ST_NOEXEC)
    except OSError as error:
        return str(error.strerror)
    return "it is mounted noexec" if is_barred else None


def backend_trouble() -> str | None:
    """Say why Triton's python backend cannot make its own folder; None: it can."""
    folder = BACKEND_PLACE / (prefix() + os.urandom(8).hex())
    try:
        try:
            folder.mkdir(mode=0o700)
        finally:
            with contextlib.suppress(OSError):
                folder.rmdir()
    except OSError as error:
        return str(error.strerror)
    return None


def find_place() -> Path:
    """Return where folders for temporary files are made.

    That is the usual place, unless the python backend cannot run there and can elsewhere.

    Raises:
        FileNotFoundError: There is none.
    """
    usual = Path(tempfile.gettempdir())
    if trouble(usual) is not None:
        for place in map(Path, _ELSEWHERE):
            if trouble(place) is None and os.access(place, os.W_OK | os.X_OK):
                return place
    return usual


def new_folder() -> Path:
    """Return a name for a private folder, which nobody can foretell.

    Raises:
        FileNotFoundError: There is no place for one.
    """
    return Path(find_place(), prefix() + os.urandom(8).hex())


def make_folder(folder: Path) -> None:
    """Make a private folder for temporary files; remove those of dead processes.

    Args:
        folder: Of `new_folder`: whoever removes it knows the name before there is the folder, which
            a signal handler that raises could keep from them afterwards.
    """
    folder.mkdir(mode=0o700)
    with contextlib.suppress(OSError):
        for path in of_the_dead(folder.parent):
            shutil.rmtree(path, ignore_errors=True)
