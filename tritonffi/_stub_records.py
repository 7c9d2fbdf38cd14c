# SPDX-License-Identifier: Apache-2.0
"""Which process of the python backend runs which instance, also when it is dead.

The kernel forgets the command line of a process that has ended. So the script that starts a stub
writes it down before, in a file that is named by the number of the process.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tritonffi._call import JSON

FOLDER: Final = ".stubs"
#: Of the script, before it becomes the stub. A full disk must not keep it from that.
LINE: Final = """{{ printf '%s\\0' "$@" >{records}/$$; }} 2>/dev/null"""
_PROC = Path("/proc")
_SHM = Path("/dev/shm")  # noqa: S108 (where Linux keeps shared memory)
# Where in the command line the model's file, the shared memory and the instance are.
_FILE: Final = 0
_REGION: Final = 1
_INSTANCE: Final = 7
# The kernel's flag of a process that is about to end, and the bit of a SIGKILL that is to come.
_EXITING: Final = 0x4
_ENDED: Final = (b"Z", b"X")
_KILL: Final = 1 << 8


# Where the scripts of this process's servers write.
_folders: dict[Path, None] = {}


class StubRecord(NamedTuple):
    """A process that was started for an instance.

    Attributes:
        pid: Its number.
        file: The model's file.
        region: The name of the memory that it shares with Triton, which is no other's.
        instance: The instance's name.
        started: When it was, in nanoseconds.
    """

    pid: int
    file: str
    region: str
    instance: str
    started: int

    def completes(self) -> str | None:
        """Return the model whose config the process completes; None: it may be an instance.

        In place of an instance's it has the model's name, which is also that of the folder.
        """
        folder = Path(self.file).parent.parent.name
        return self.instance if self.instance == folder else None

    def is_dead(self) -> bool:
        """Say whether the process has ended, or is about to."""
        process = _PROC / str(self.pid)
        try:
            words = (process / "stat").read_bytes().rpartition(b")")[2].split()
            if words[0] in _ENDED or int(words[6]) & _EXITING:
                return True
            if _is_killed((process / "status").read_bytes()):
                return True
            arguments = (process / "cmdline").read_bytes()  # none for a moment, in an exec
            return bool(arguments) and os.fsencode(self.region) not in arguments
        except (FileNotFoundError, ProcessLookupError):
            return (_PROC / "self/stat").exists()
        except (OSError, ValueError, IndexError):
            return False  # it cannot be told, as without a descriptor


def _is_killed(status: bytes) -> bool:
    """Say whether a process is to end as soon as it runs."""
    for line in status.splitlines():
        name, _, value = line.partition(b":")
        if name in (b"SigPnd", b"ShdPnd") and int(value, 16) & _KILL:
            return True
    return False


def make_folder(folder: Path) -> None:
    """Make a folder where a script writes."""
    folder.mkdir()
    _folders[folder] = None


def record_of(pid: str) -> StubRecord | None:
    """Return the record of a process of any server; None: it has left none.

    Args:
        pid: Its number, which an older one may have had too.
    """
    found: list[StubRecord] = []
    for folder in _open_folders():
        with contextlib.suppress(OSError, IndexError):
            found.extend(_read(folder / pid))
    return max(found, key=lambda record: record.started, default=None)


def all_records() -> list[StubRecord]:
    """List the processes of all servers, as `records` does those of one."""
    return [record for folder in _open_folders() for record in records(folder)]


def _open_folders() -> list[Path]:
    """Return where the scripts of servers write that are not closed."""
    for folder in list(_folders):
        if not folder.exists():
            _folders.pop(folder, None)
    return list(_folders)


def records(folder: Path) -> list[StubRecord]:
    """List the processes whose instances Triton has not let go, dead or alive; oldest first.

    Args:
        folder: Where the script has written.
    """
    found: list[StubRecord] = []
    with contextlib.suppress(OSError):
        for name in filter(str.isdigit, os.listdir(folder)):  # noqa: PTH208
            with contextlib.suppress(OSError, IndexError):
                found.extend(_read(folder / name))
    return sorted(found, key=lambda record: record.started)


def of_instances(config: Mapping[str, JSON], records: Iterable[StubRecord]) -> set[StubRecord]:
    """Return which of some processes run instances of a model, by the names of those."""
    groups = config.get("instance_group")
    if config.get("backend") != "python" or not isinstance(groups, list):
        return set()
    names = [str(group["name"]) for group in groups if isinstance(group, dict)]
    pattern = re.compile(f"(?:{'|'.join(map(re.escape, names))})_[0-9]+", re.DOTALL)
    return {record for record in records if pattern.fullmatch(record.instance)}


def _read(path: Path) -> Iterator[StubRecord]:
    """Read a record; remove that of an instance that is no more."""
    started = path.stat().st_mtime_ns
    words = [os.fsdecode(word) for word in path.read_bytes().split(b"\0")]
    record = StubRecord(int(path.name), words[_FILE], words[_REGION], words[_INSTANCE], started)
    if record.is_dead() and not (_SHM / record.region.lstrip("/")).exists():
        path.unlink()
    else:
        yield record
