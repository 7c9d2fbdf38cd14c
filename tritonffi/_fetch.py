# SPDX-License-Identifier: Apache-2.0
"""
Get the server: the Triton files out of NVIDIA's nvidia-pytriton wheel, without its dependencies.

The wheel carries a whole CPU-capable Triton, but as a Python package it wants numpy below 2 and
some forty packages that nobody needs here. So pip only downloads it (the user's own index settings
hold), its hash is checked, and the server is unpacked into the user's data folder, once for all
environments. `_library` finds it there.

One folder is one server. It is unpacked beside its final place and moved there in one rename,
under a lock file, so that it is either absent or whole, however many of us run at once and
whenever we are killed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import platformdirs

from tritonffi._call import expanded
from tritonffi._lock_file import release, take

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Iterator

PACKAGE: Final = "nvidia-pytriton"
VERSION: Final = "0.7.0"
SHA256 = "21f063ff93bb426d0c06b7a55e7eb9efcfe62c0dddd9a908e9877e18710128df"
MACHINE: Final = "x86_64"
GLIBC: Final = (2, 35)
_NUMPY: Final = "numpy>=1.22,<2"
_NUMPY_END: Final = (3, 13)  # the first Python that has none of these

_PREFIXES: Final = ("nvidia_pytriton.libs/", "pytriton/tritonserver/")
_LICENSES: Final = f"nvidia_pytriton-{VERSION}.dist-info/licenses/"
_RECORD: Final = "server.json"
_PACKAGES: Final = "python_packages"
_CHUNK: Final = 1 << 20
# Settings of pip that are about what a user installs. An empty one would not go over a file's.
_PIP_OVERRIDES: Final = {
    "PIP_CONSTRAINT": os.devnull,
    "PIP_REQUIREMENT": os.devnull,
    "PIP_REQUIRE_HASHES": "0",
    "PIP_REQUIRE_VIRTUALENV": "0",
}
_PIP_FOR_OTHERS: Final = (
    *("PIP_ABI", "PIP_EDITABLE", "PIP_IMPLEMENTATION"),
    *("PIP_PLATFORM", "PIP_PYTHON", "PIP_PYTHON_VERSION"),
)


class FetchError(RuntimeError):
    """The server could not be fetched; the message says why and what else can be done."""


def default_directory() -> Path:
    """
    Return the folder of the fetched server, in the user's data folder, there or not.

    Raises:
        FetchError: The user has no data folder.
    """
    data = Path()
    with contextlib.suppress(RuntimeError):  # older platformdirs return "~" as it is
        data = platformdirs.user_data_path("tritonffi", appauthor=False)
    if not data.is_absolute():  # what lies in the working folder is not the user's
        names = [name for name in ("XDG_DATA_HOME", "HOME") if os.environ.get(name)]
        why = f"HOME is not set, and the system knows none for user {os.getuid()}"
        if names:
            why = f"{names[0]} is {os.environ[names[0]]!r}, which is no absolute path"
        raise FetchError(f"there is no folder for a user's data: {why}")
    return data / "server" / f"{PACKAGE}-{VERSION}"


def is_complete(directory: Path) -> bool:
    """Say whether `directory` holds the pinned server with every file at its full size."""
    record = _read_record(directory)
    files = record.get("files") if record is not None else None
    if record is None or record.get("sha256") != SHA256 or not isinstance(files, dict):
        return False
    try:
        return all((directory / name).stat().st_size == size for name, size in files.items())
    except OSError:
        return False


def get_server(
    directory: str | os.PathLike[str] | None = None,
    wheel: str | os.PathLike[str] | None = None,
    *,
    quiet: bool = False,
) -> Path:
    """
    Make sure that the server's files are there, and return their folder.

    When they are there already this returns at once. A folder of ours whose files are missing or
    cut short is replaced; any other folder that is not empty is refused.

    Args:
        directory: Where to put them; in the user's data folder when None.
        wheel: A wheel file that came by other means; downloaded with pip when None.
        quiet: Show no progress.

    Raises:
        FetchError: The message says why; `directory` is as it was, and so is the folder it is in.
    """
    target = (
        expanded(directory, FetchError, "--dir ") if directory is not None else _default_target()
    )
    # A rename would not go through a link, and pathlib's resolve raises where links go round.
    target = Path(os.path.realpath(target))
    if wheel is not None:
        wheel = expanded(wheel, FetchError, "--wheel ")
    if is_complete(target):
        return target
    with _locked(target, quiet=quiet):
        if is_complete(target):  # whoever held the lock before us has done it
            return target
        _remove_leftovers(target)
        if _read_record(target) is None and not _is_free(target):
            raise FetchError(
                f"{target} is in use and holds no server of ours: name another folder with --dir"
            )
        partial = Path(tempfile.mkdtemp(prefix=_partial_prefix(target), dir=target.parent))
        try:
            _say(f"getting {PACKAGE} {VERSION} for {target}", quiet=quiet)
            if wheel is None:
                wheel = download(partial, quiet=quiet)
            else:
                _warn_about_platform(quiet=quiet)
            unpacked = partial / "server"
            _unpack(Path(wheel), unpacked, quiet=quiet)
            _put_in_place(unpacked, target, partial)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return target


def _default_target() -> Path:
    try:
        return default_directory()
    except FetchError as error:
        raise FetchError(f"{error}. Name a folder with --dir") from None


def download(folder: Path, *, quiet: bool = False) -> Path:
    """Download the wheel into `folder` with this environment's pip, and return the file."""
    problem = _platform_problem()
    if problem is not None:
        raise FetchError(
            f"{PACKAGE} {VERSION} does not run here: {problem}. Use a Triton built for this "
            "system, such as the one in NVIDIA's tritonserver container images, through "
            "TRITONFFI_LIBRARY or TRITON_ROOT"
        )
    otherwise = (
        f"download the wheel elsewhere from https://pypi.org/project/{PACKAGE}/{VERSION}/#files "
        "and pass it with --wheel FILE"
    )
    return _pip(folder, f"{PACKAGE}=={VERSION}", otherwise, quiet=quiet)


def _pip(folder: Path, package: str, otherwise: str, *, quiet: bool) -> Path:
    """Have this environment's pip download one package into a folder, and return the wheel."""
    if importlib.util.find_spec("pip") is None:
        raise FetchError(
            f"this environment ({sys.executable}) has no pip. Add it with `python -m ensurepip`, "
            f"or {otherwise}"
        )
    # Never an installation, which the user's own settings may lead elsewhere in many ways.
    arguments = ["download", "--no-deps", "--only-binary=:all:", "--dest", str(folder), package]
    import subprocess  # noqa: PLC0415  each start of a server looks for what was fetched before

    done = subprocess.run(  # noqa: S603  no shell, and nothing in it comes from outside
        [sys.executable, "-m", "pip", *arguments],
        stdout=subprocess.PIPE if quiet else _stderr_descriptor(),
        stderr=subprocess.STDOUT if quiet else None,
        encoding="utf-8",
        errors="backslashreplace",  # the names of files are any bytes
        env=_pip_environment(),
        check=False,
    )
    name = package.replace("==", " ")
    if done.returncode != 0:
        raise FetchError(
            f"pip could not download {name} (exit code {done.returncode}). "
            f"Without access to an index, {otherwise}\n{done.stdout or ''}".rstrip()
        )
    wheels = sorted(folder.glob("*.whl"))
    if not wheels:
        raise FetchError(f"pip downloaded no wheel of {name}")
    return wheels[0]


def _pip_environment() -> dict[str, str]:
    """Return the environment with the user's settings of pip, but those for other packages."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name.upper() not in (*_PIP_OVERRIDES, *_PIP_FOR_OTHERS)
    }
    return kept | _PIP_OVERRIDES


def packages_directory(server: Path) -> Path:
    """Return the folder of Python packages for the python backend's stub of this Python."""
    return server / _PACKAGES / f"{sys.version_info.major}.{sys.version_info.minor}"


def find_packages(server: Path) -> Path | None:
    """Return the packages that `get_packages` put beside this server, or the fetched one."""
    servers = [server]
    with contextlib.suppress(FetchError):
        servers.append(default_directory())
    for packages in map(packages_directory, servers):
        # Not by pathlib's: in a folder that may not be read, there is none for us.
        if os.path.isfile(packages / "numpy" / "__init__.py"):  # noqa: PTH113
            return packages
    return None


def packages_problem() -> str | None:
    """Say why there can be no numpy below 2 for this Python, None when there can."""
    if sys.version_info < _NUMPY_END:
        return None
    return (
        f"there is none for Python {sys.version_info.major}.{sys.version_info.minor}: use Python "
        f"{_NUMPY_END[0]}.{_NUMPY_END[1] - 1} or older"
    )


def get_packages(server: Path, *, quiet: bool = False) -> Path:
    """
    Put a numpy below 2 beside the server, for the python backend's stub, and return its folder.

    The stub of the wheel was built for such a numpy. This environment's own numpy stays as it is.

    Args:
        server: The server's folder.
        quiet: Show no progress.

    Raises:
        FetchError: The message says why.
    """
    target = packages_directory(server)
    problem = packages_problem()
    if problem is not None:
        raise FetchError(f"the python backend needs a numpy below 2, and {problem}")
    with _locked(target, quiet=quiet):
        if (target / "numpy").is_dir():
            return target
        _remove_leftovers(target)
        partial = Path(tempfile.mkdtemp(prefix=_partial_prefix(target), dir=target.parent))
        try:
            _say(f"getting {_NUMPY} for {target}", quiet=quiet)
            wheel = _pip(partial, _NUMPY, f"unpack its wheel into {target}", quiet=quiet)
            import zipfile  # noqa: PLC0415  as above

            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(partial / "packages")
            _put_in_place(partial / "packages", target, partial)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return target


def glibc_version() -> tuple[int, int] | None:
    """Return the version of the C library that runs, None when it is not glibc."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        major, minor = version.split(".")[:2]
        return (int(major), int(minor)) if name == "glibc" else None
    except (ValueError, OSError):
        return None


def _unpack(wheel: Path, folder: Path, *, quiet: bool) -> None:
    """Check the hash of `wheel` and unpack the server's part of it into the new `folder`."""
    try:
        file = wheel.open("rb")
    except OSError as error:
        raise FetchError(f"cannot read the wheel {wheel}: {error.strerror}") from None
    with file:  # one descriptor for both: what is unpacked is what was checked
        digest = _sha256(file)
        if digest != SHA256:
            raise FetchError(
                f"{wheel} is not the wheel of {PACKAGE} {VERSION}, or was damaged on its way: "
                f"its SHA-256 is {digest}, expected {SHA256}"
            )
        import zipfile  # noqa: PLC0415  as above

        with zipfile.ZipFile(file) as archive:
            _extract(archive, folder, quiet=quiet)


def _extract(archive: zipfile.ZipFile, folder: Path, *, quiet: bool) -> None:
    members = [
        (info, _place(info.filename))
        for info in archive.infolist()
        if info.filename.startswith((*_PREFIXES, _LICENSES)) and not info.is_dir()
    ]
    folder.mkdir()
    progress = _Progress(sum(info.file_size for info, _ in members), quiet=quiet)
    for info, place in members:
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        # zipfile forgets the modes, and the server binary and the stubs must stay executable.
        mode = 0o777 if info.external_attr >> 16 & 0o111 else 0o666
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with archive.open(info) as source, open(descriptor, "wb") as sink:  # noqa: PTH123  no path
            while chunk := source.read(_CHUNK):
                sink.write(chunk)
                progress.add(len(chunk))
    record = {
        "package": PACKAGE,
        "version": VERSION,
        "sha256": SHA256,
        "files": {place: info.file_size for info, place in members},
    }
    (folder / _RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _place(name: str) -> str:
    """Return where the member `name` goes, below the server's folder; refuse one that leaves it."""
    if "\\" in name or any(part in ("", ".", "..") for part in name.split("/")):
        raise FetchError(f"the wheel has a member with an unsafe name: {name!r}")
    return "licenses/" + name[len(_LICENSES) :] if name.startswith(_LICENSES) else name


def _put_in_place(unpacked: Path, target: Path, partial: Path) -> None:
    """Move what was unpacked to its place. The packages of a server that was there stay."""
    replaced = partial / "replaced"
    try:
        with contextlib.ExitStack() as undo:
            if not _is_free(target):
                undo.callback(_rename_back, replaced, target)
                target.rename(replaced)
                if (replaced / _PACKAGES).is_dir():
                    undo.callback(_rename_back, unpacked / _PACKAGES, replaced / _PACKAGES)
                    (replaced / _PACKAGES).rename(unpacked / _PACKAGES)
            unpacked.rename(target)
            undo.pop_all()
    except OSError as error:
        raise FetchError(
            f"cannot move the unpacked server to {target}: {error.strerror}. Where this is a "
            "mount point, name a folder inside it"
        ) from error


def _rename_back(moved: Path, place: Path) -> None:
    with contextlib.suppress(OSError):  # it was not moved, or its new place is right
        moved.rename(place)


def _is_free(target: Path) -> bool:
    """Say whether a folder can be renamed to `target`: nothing is there, or an empty folder."""
    try:
        return not any(target.iterdir())
    except FileNotFoundError:
        return True
    except NotADirectoryError:
        return False


def _read_record(directory: Path) -> dict[str, object] | None:
    try:
        record = json.loads((directory / _RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and record.get("package") == PACKAGE else None


@contextlib.contextmanager
def _locked(target: Path, *, quiet: bool) -> Iterator[None]:
    """
    Hold the lock of `target`; the folders above it are there meanwhile.

    What is made for that is gone at the end: the lock's file, and those of the folders that are
    empty. The kernel drops the lock of one that is killed: a file that it leaves means nothing.
    """
    lock = target.parent / f".{target.name}.lock"
    made = list(itertools.takewhile(lambda folder: not os.path.lexists(folder), target.parents))
    waiting = f"another process is getting the server for {target}: waiting"
    opened: list[int] = []
    try:
        try:
            take(opened, lock, lambda: _say(waiting, quiet=quiet))
        except OSError as error:
            raise FetchError(f"cannot write in {target.parent}: {error.strerror}") from None
        yield
    finally:
        try:
            release(opened, lock)
        except BaseException:  # a signal handler has raised
            release(opened, lock)
            raise
        finally:
            _remove_empty(made)


def _remove_empty(folders: list[Path]) -> None:
    with contextlib.suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _partial_prefix(target: Path) -> str:
    return f".{target.name}.partial-"


def _remove_leftovers(target: Path) -> None:
    """Remove what killed runs left. The caller holds the lock, so no live run owns any of it."""
    prefix = _partial_prefix(target)
    for entry in list(target.parent.iterdir()):
        if entry.name.startswith(prefix):
            shutil.rmtree(entry, ignore_errors=True)


def _sha256(file: BinaryIO) -> str:
    import hashlib  # noqa: PLC0415  as above

    digest = hashlib.sha256()
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    file.seek(0)
    return digest.hexdigest()


def _platform_problem() -> str | None:
    """Say why the wheel cannot run here, None when it can. pip would only say "no such wheel"."""
    found = platform.machine()
    if platform.system() != "Linux" or found != MACHINE:
        return f"it is built for Linux on {MACHINE}, this is {platform.system()} on {found}"
    version = glibc_version()
    needed = ".".join(map(str, GLIBC))
    if version is None:
        return f"it needs glibc {needed} or newer, this system's C library is not glibc"
    if version < GLIBC:
        return f"it needs glibc {needed} or newer, this system has {'.'.join(map(str, version))}"
    return None


def _warn_about_platform(*, quiet: bool) -> None:
    # The folder may be made for another machine: a wheel that the user gives is unpacked anyway.
    problem = _platform_problem()
    if problem is not None:
        _say(f"warning: this server will not run here: {problem}", quiet=quiet)


def _stderr_descriptor() -> int | None:
    """Return where pip's output goes: standard output is kept for the answer."""
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return None


def _say(text: str, *, quiet: bool, end: str = "\n") -> None:
    if not quiet:
        sys.stderr.write(text + end)
        sys.stderr.flush()


class _Progress:
    """Progress of the unpacking: one line rewritten on a terminal, a line per quarter elsewhere."""

    def __init__(self, total: int, *, quiet: bool) -> None:
        self._total = max(total, 1)
        self._quiet = quiet
        self._terminal = not quiet and sys.stderr.isatty()
        self._done = 0
        self._shown = -1

    def add(self, count: int) -> None:
        self._done += count
        percent = 100 * self._done // self._total
        step = percent if self._terminal else percent // 25 * 25
        if step == self._shown:
            return
        self._shown = step
        line = f"unpacking {step:3} % of {self._total / 1e6:.0f} MB"
        if self._terminal:
            line = f"\r{line} [{'#' * (step * 40 // 100):40}]"
        _say(line, quiet=self._quiet, end="" if self._terminal and step < 100 else "\n")  # noqa: PLR2004
