# SPDX-License-Identifier: Apache-2.0
"""
Find libtritonserver and what belongs to it, load it once, and lay out a server's backend directory.

Nothing links to Triton, so the library is chosen here, at run time. `find` looks at these places,
in this order:

1. the ``library=`` argument
2. the environment variable ``TRITONFFI_LIBRARY``
3. an nvidia-pytriton wheel in this environment (found through its metadata, never imported)
4. the server that ``tritonffi get-server`` fetched
5. the environment variable ``TRITON_ROOT``
6. ``/opt/tritonserver``, where NVIDIA's container images have it
7. the loader's own path: ``LD_LIBRARY_PATH``, the loader's cache, the system's folders

The first place that has a library decides, also when that library then does not load: to go on
silently would run another Triton than the one that was put there. The argument and
``TRITONFFI_LIBRARY`` are meant for us alone, so a wrong one is an error at once. ``TRITON_ROOT`` is
not ours: a wrong one is passed over, and named when nothing else is found.

An argument or variable may name the library file or a folder: an installation (with
``lib/libtritonserver.so``), a folder of libraries, or a folder with ``nvidia_pytriton.libs`` in it
(what get-server makes, or site-packages).
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from tritonffi import _elf, _native, _python_backend
from tritonffi._call import check, encode_path, expanded
from tritonffi._errors import (
    AlreadyExistsError,
    InternalError,
    InvalidArgumentError,
    LibraryNotFoundError,
)
from tritonffi._native import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_SONAME: Final = "libtritonserver.so"
_WHEEL: Final = "nvidia-pytriton"
_WHEEL_LIBS: Final = "nvidia_pytriton.libs"
_CONTAINER_ROOT = Path("/opt/tritonserver")
_OURS: Final = "tritonffi"
_MESSAGE_SIZE: Final = 8192

_WAYS: Final = (
    "To get one: `tritonffi get-server` (for Linux on x86_64 with glibc 2.35 or newer). To use one "
    "that is there: set TRITONFFI_LIBRARY to the libtritonserver file or its folder, or "
    "TRITON_ROOT to the folder of an installation"
)

_PathLike: TypeAlias = str | os.PathLike[str]


@dataclass(frozen=True)
class Place:
    """A place that was looked at, and what was (not) found there."""

    name: str
    outcome: str


@dataclass(frozen=True)
class Found:
    """
    A libtritonserver file that is there, and what lies around it.

    Attributes:
        library: The file.
        neighbours: Libraries to load before it, by full path: it finds those that it needs itself
            beside it, but they do not find theirs.
        backends: The folder of its backends.
        caches: The folder of its response caches.
        repoagents: The folder of its repository agents.
        stubs: The folder of the python backend's stubs by Python version, where kept apart.
        origin: The place that it was found in.
        passed: The places before that one, which have none.
    """

    library: Path
    neighbours: tuple[Path, ...]
    backends: Path | None
    caches: Path | None
    repoagents: Path | None
    stubs: Path | None
    origin: str
    passed: tuple[Place, ...] = ()


@dataclass(frozen=True)
class Library:
    """The libtritonserver that this process runs; the fields are those of `Found`."""

    path: Path
    backends: Path | None
    caches: Path | None
    repoagents: Path | None
    stubs: Path | None
    origin: str
    api_version: tuple[int, int]


class _NothingThereError(Exception):
    """A place has no library; the text is what is reported for it."""


_lock = threading.RLock()
_loaded: Library | None = None


def find(library: _PathLike | None = None) -> Found:
    """
    Find the libtritonserver to use, without loading it.

    (The last place of all, the loader's own path, is the exception: only opening tells.)

    Args:
        library: The library file, or a folder that has one; None to look at all the places.

    Raises:
        LibraryNotFoundError: There is none; lists each place with what was found there.
        TypeError: `library` is no path.
    """
    places: tuple[tuple[str, Callable[[], Path]], ...]
    if library is not None:
        given = Path(os.fsdecode(encode_path(library, "library")))
        places = ((f"library={os.fspath(given)!r}", lambda: _at(given)),)
    elif os.environ.get("TRITONFFI_LIBRARY"):
        places = (("TRITONFFI_LIBRARY", lambda: _at_variable("TRITONFFI_LIBRARY")),)
    else:
        places = (
            ("TRITONFFI_LIBRARY", lambda: _at_variable("TRITONFFI_LIBRARY")),
            (f"an installed {_WHEEL} wheel", _in_wheel),
            ("the server of `tritonffi get-server`", _in_fetched),
            ("TRITON_ROOT", lambda: _at_variable("TRITON_ROOT")),
            ("the place of NVIDIA's container images", lambda: _at(_CONTAINER_ROOT)),
            ("the loader's path", _on_loader_path),
        )
    passed: list[Place] = []
    for name, look in places:
        try:
            path = look()
        except _NothingThereError as nothing:  # noqa: PERF203  six places, once
            passed.append(Place(name, str(nothing)))
        else:
            return _found(path, name, tuple(passed))
    lines = "".join(f"\n  {place.name}: {place.outcome}" for place in passed)
    raise LibraryNotFoundError(f"no libtritonserver found. Looked at:{lines}\n{_WAYS}")


def load(library: _PathLike | None = None) -> Library:
    """
    Load libtritonserver into this process, once; later calls return what is loaded.

    Args:
        library: As for `find`; once one is loaded, None or anything that leads to the same file.

    Raises:
        LibraryNotFoundError: There is none, or the one that is there cannot be used here.
        AlreadyExistsError: This process has loaded another one already.
    """
    global _loaded  # noqa: PLW0603  one import table in a process, so one answer
    with _lock:
        if _loaded is None:
            _loaded = _load(find(library))
        elif library is not None:
            asked = find(library).library
            if asked.resolve() != _loaded.path:
                raise AlreadyExistsError(
                    f"this process runs {_loaded.path} ({_loaded.origin}) and cannot load {asked} "
                    "as well: another library needs another process"
                )
        return _loaded


def forked() -> None:
    """Have this process, a fork of one in which Triton has run, end without a word from Triton."""
    lib.tffi_library_forked()


def assemble_backends(
    folder: Path, library: Library, user_directories: Sequence[_PathLike] = ()
) -> Path:
    """
    Make `folder` a backend directory of links: the library's backends, the user's, and ours.

    Of two with one name the user's wins over the library's, and a user directory over those after
    it. Ours, `tritonffi`, is a link to the loaded extension file, so that Triton gets the very
    library that this process runs.

    Args:
        folder: The folder to make, for this user only. It must not exist, or be empty; it must stay
            until the last server that uses it is deleted.
        library: The library that is loaded.
        user_directories: Directories with a folder per backend, as for Triton's own
            ``--backend-directory``.

    Raises:
        FileNotFoundError: A user directory does not exist.
        NotADirectoryError: A user directory is something else.
        InvalidArgumentError: A user directory has a `tritonffi` backend, or one that is cut short,
            or is a backend itself.
        InternalError: The extension's file was replaced since it was imported.
    """
    backends: dict[str, Path] = {}
    for directory in map(_user_directory, user_directories):
        for name, backend in _backends_in(directory).items():
            if name == _OURS:
                raise InvalidArgumentError(
                    f"backend directory {directory}: the backend name {_OURS!r} is ours: rename "
                    "that folder and its library"
                )
            short = _elf.cut_short(backend / f"libtriton_{name}.so")
            if short is not None:  # which would end the process, when a model of it is loaded
                raise InvalidArgumentError(
                    f"backend directory {directory}: {name}/libtriton_{name}.so is cut short: "
                    f"{short}"
                )
            backends.setdefault(name, backend)
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    for name, backend in backends.items():
        (folder / name).symlink_to(backend)
    own = _backends_in(library.backends) if library.backends is not None else {}
    for name, backend in own.items():
        if name in backends or name == _OURS:
            continue
        if name == "python" and library.stubs is not None:
            python = _python_backend.examine(library.path, library.stubs)
            if python.problem is None:  # or a load says that there is none, and why
                _python_backend.link(folder / name, backend, python)
        else:
            # Whole folders where it can be: newer Triton refuses links that lead out of a backend.
            (folder / name).symlink_to(backend)
    _link_ourselves(folder / _OURS)
    return folder


def _at(place: Path) -> Path:
    """Return the library that `place` names, as a file or by its folder."""
    path = place
    try:
        path = expanded(place, _NothingThereError).absolute()
        path.stat()
        if path.is_file():
            return path
        for candidate in (path / "lib" / _SONAME, path / _SONAME):
            if candidate.is_file():
                return candidate
        for part in (_WHEEL_LIBS, ".", "lib"):  # a wheel's libraries have a hash in their names
            named = sorted((path / part).glob("libtritonserver*.so*"))
            if len(named) > 1:
                names = ", ".join(file.name for file in named)
                raise _NothingThereError(f"{path / part} has several ({names}): name the file")
            if named:
                return named[0]
    except OSError as error:
        raise _NothingThereError(f"{path}: {_elf.reason(error)}") from None
    raise _NothingThereError(
        f"{path} has no libtritonserver, neither in itself nor in lib or {_WHEEL_LIBS}"
    )


def _at_variable(name: str) -> Path:
    value = os.environ.get(name)
    if not value:
        raise _NothingThereError("not set")
    return _at(Path(value))


def _in_wheel() -> Path:
    import importlib.metadata  # noqa: PLC0415  brings zipfile and email: not for everyone

    try:
        files = importlib.metadata.distribution(_WHEEL).files
    except importlib.metadata.PackageNotFoundError:
        raise _NothingThereError("not installed") from None
    for file in files or ():
        if file.parent.name == _WHEEL_LIBS and file.name.startswith("libtritonserver"):
            return _at(Path(str(file.locate())))
    raise _NothingThereError("installed, but its metadata lists no libtritonserver")


def _in_fetched() -> Path:
    from tritonffi import _fetch  # noqa: PLC0415  brings platformdirs, as above

    try:
        directory = _fetch.default_directory()
    except _fetch.FetchError as error:
        raise _NothingThereError(str(error)) from None
    try:
        directory.stat()
    except OSError as error:
        raise _NothingThereError(f"{directory}: {_elf.reason(error)}") from None
    if not _fetch.is_complete(directory):
        raise _NothingThereError(f"{directory}: incomplete, run `tritonffi get-server` again")
    return _at(directory)


def _on_loader_path() -> Path:
    # Only the loader knows what it would find, so it is asked to open it: `load` would do so next.
    import ctypes  # noqa: PLC0415  for this place alone

    class Information(ctypes.Structure):
        _fields_ = (
            ("file", ctypes.c_char_p),
            ("base", ctypes.c_void_p),
            ("symbol", ctypes.c_char_p),
            ("address", ctypes.c_void_p),
        )

    information = Information()
    try:
        opened = ctypes.CDLL(_SONAME, mode=os.RTLD_LAZY | os.RTLD_LOCAL)
        symbol = ctypes.cast(opened.TRITONSERVER_ApiVersion, ctypes.c_void_p)
        ctypes.CDLL(None).dladdr(symbol, ctypes.byref(information))
    except (OSError, AttributeError) as error:
        raise _NothingThereError(str(error)) from None
    return Path(os.fsdecode(information.file)).absolute()


def _found(path: Path, origin: str, passed: tuple[Place, ...]) -> Found:
    """Describe what lies around the library `path`, where it is named and where its links lead."""
    folders = (path.parent, path.resolve().parent)
    libs = next((folder for folder in folders if folder.suffix == ".libs"), None)
    neighbours = sorted(libs.glob("*.so*")) if libs is not None else []
    roots = (
        root
        for folder in folders
        for root in (folder.parent, folder.parent / "pytriton" / "tritonserver")
        if (root / "backends").is_dir()
    )
    root = next(roots, None)

    def part(name: str) -> Path | None:
        return root / name if root is not None and (root / name).is_dir() else None

    return Found(
        library=path,
        neighbours=tuple(
            file
            for file in neighbours
            # The interpreter in there is the stub's: no business of this process, and of all the
            # libraries it is the one that needs the newest glibc.
            if not file.name.startswith(("libtritonserver", "libpython"))
        ),
        backends=part("backends"),
        caches=part("caches"),
        repoagents=part("repoagents"),
        stubs=part("python_backend_stubs"),
        origin=origin,
        passed=passed,
    )


def _load(found: Found) -> Library:
    problem = _elf.problem(found.library) or _short_neighbour(found)
    if problem is None:
        neighbours = [ffi.new("char[]", os.fsencode(path)) for path in found.neighbours]
        message = ffi.new("char[]", _MESSAGE_SIZE)
        if lib.tffi_library_load(
            os.fsencode(found.library),
            ffi.new("char *[]", neighbours),
            len(neighbours),
            message,
            len(message),
        ):
            major, minor = ffi.new("uint32_t *"), ffi.new("uint32_t *")
            check(lib.TRITONSERVER_ApiVersion(major, minor))
            return Library(
                path=Path(os.fsdecode(ffi.string(lib.tffi_library_path()))),
                backends=found.backends,
                caches=found.caches,
                repoagents=found.repoagents,
                stubs=found.stubs,
                origin=found.origin,
                api_version=(major[0], minor[0]),
            )
        problem = _explain(found, ffi.string(message).decode(errors="replace"))
    raise LibraryNotFoundError(
        f"cannot use {found.library} (found by {found.origin}): {problem}\n{_WAYS}"
    )


def _short_neighbour(found: Found) -> str | None:
    for path in found.neighbours:
        if (short := _elf.cut_short(path)) is not None:
            return f"{path}, which is loaded with it, is cut short: {short}"
    return None


def _explain(found: Found, message: str) -> str:
    """Put the loader's `message` in terms of what can be done about it, where that is known."""
    if re.search(r"GLIBC_[\d.]+['\"]? not found", message):
        from tritonffi._fetch import glibc_version  # noqa: PLC0415  as above

        # The loader names the first version that it misses; a user wants to know the newest.
        files = (found.library, *found.neighbours)
        needed = max(filter(None, map(_elf.needed_glibc, files)), default=())
        return (
            f"it needs glibc {'.'.join(map(str, needed))} or newer, this system has "
            f"{'.'.join(map(str, glibc_version() or ()))}: use a newer system, or a Triton built "
            f"for this one ({message})"
        )
    if match := re.search(r"((?:GLIBCXX|CXXABI|GCC)_[\d.]+)['\"]? not found", message):
        return f"the system's C++ runtime is too old for it, {match[1]} is missing ({message})"
    if match := re.search(r"([\w.+-]+): cannot open shared object file: No such file", message):
        return f"a library that it needs is not there: {match[1]} ({message})"
    return message


def _user_directory(directory: _PathLike) -> Path:
    try:
        path = expanded(directory, _NothingThereError).absolute()
    except _NothingThereError as nothing:
        raise FileNotFoundError(f"backend directory {nothing}") from None
    if not path.exists():
        raise FileNotFoundError(f"backend directory {path}: does not exist")
    if not path.is_dir():
        raise NotADirectoryError(f"backend directory {path}: is no directory")
    libraries = sorted(path.glob("libtriton_*.so"))
    if libraries:
        raise InvalidArgumentError(
            f"backend directory {path}: this is a backend itself (it has {libraries[0].name}): "
            f"name the folder that it is in, {path.parent}"
        )
    return path


def _backends_in(directory: Path) -> dict[str, Path]:
    return {entry.name: entry for entry in sorted(directory.iterdir()) if entry.is_dir()}


def _link_ourselves(folder: Path) -> None:
    extension = Path(str(_native.__file__)).absolute()
    folder.mkdir(mode=0o700)
    link = folder / f"libtriton_{_OURS}.so"
    link.symlink_to(extension)
    # A file replaced since the import (an upgrade under a running service) would be a second
    # library, with an import table that nobody filled. Opening the link also makes it known to the
    # loader: from here on it leads to us whatever happens to the file.
    message = ffi.new("char[]", _MESSAGE_SIZE)
    if not lib.tffi_library_is_self(os.fsencode(link), message, len(message)):
        shutil.rmtree(folder, ignore_errors=True)
        raise InternalError(
            f"the file of the running extension, {extension}, was replaced since it was imported "
            f"(an upgrade?): restart this process "
            f"({ffi.string(message).decode(errors='replace')})"
        )
