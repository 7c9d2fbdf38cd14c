# SPDX-License-Identifier: Apache-2.0
"""Laying out the backend directory of a server."""

from __future__ import annotations

import ctypes
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import tritonffi
from tritonffi import _library, _native, _python_backend
from tritonffi._errors import InvalidArgumentError

PACKAGE = Path(tritonffi.__file__).parent
MINOR = f"3.{sys.version_info.minor}"


def make_backends(folder: Path, *names: str) -> Path:
    """Make a directory of backends that are empty files."""
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / f"libtriton_{name}.so").touch()
    return folder


def make_library(
    tmp_path: Path, backends: Path | None, stubs: Path | None = None
) -> _library.Library:
    """Return a library with these backends; loading is not needed to lay them out."""
    return _library.Library(tmp_path, backends, None, None, stubs, "a test", (1, 0))


def test_the_backend_directory_links_all_backends(tmp_path: Path) -> None:
    """Whole folders: the library's, the user's over it, the first user directory over others."""
    own = make_backends(tmp_path / "own", "python", "onnxruntime", "identity")
    first = make_backends(tmp_path / "first", "identity", "mine")
    second = make_backends(tmp_path / "second", "mine", "theirs")
    (first / "README").touch()
    folder = _library.assemble_backends(
        tmp_path / "made", make_library(tmp_path, own), [first, str(second)]
    )
    assert folder == tmp_path / "made"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {path.name: path.readlink() for path in folder.iterdir() if path.is_symlink()} == {
        "identity": first / "identity",
        "mine": first / "mine",
        "theirs": second / "theirs",
        "onnxruntime": own / "onnxruntime",
        "python": own / "python",
    }
    assert [path.name for path in folder.iterdir() if not path.is_symlink()] == ["tritonffi"]


def test_our_own_backend_is_the_loaded_extension(tmp_path: Path) -> None:
    """The link leads to the extension's file, and opening it gives what is loaded already."""
    folder = _library.assemble_backends(tmp_path / "made", make_library(tmp_path, None))
    link = folder / "tritonffi/libtriton_tritonffi.so"
    assert [path.relative_to(folder) for path in folder.rglob("*.so")] == [link.relative_to(folder)]
    assert link.is_symlink()
    assert link.samefile(_native.__file__)
    handles = [ctypes.CDLL(str(path))._handle for path in (link, _native.__file__)]
    assert handles[0] == handles[1]


def make_stub(folder: Path, line: str) -> None:
    """Make a program that runs one line of shell, and looks like a stub that takes any numpy."""
    folder.mkdir(parents=True)
    stub = folder / "triton_python_backend_stub"
    stub.write_text(f"#!/bin/sh\n{line}\nnumpy._core")
    stub.chmod(0o700)


@pytest.mark.parametrize("version", [MINOR, "3.7"])
def test_the_python_backend_gets_the_stub_of_this_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """Through a script that gives it this environment; without one the backend is left out."""
    own = make_backends(tmp_path / "own", "python", "identity")
    (own / "python/triton_python_backend_utils.py").touch()
    (own / "python/models").mkdir()
    make_stub(tmp_path / "stubs" / version, "echo $PATH $LD_LIBRARY_PATH $1")
    (tmp_path / "libpython").touch()
    monkeypatch.setattr(_python_backend, "_find_libpython", lambda: tmp_path / "libpython")
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    library = make_library(tmp_path, own, tmp_path / "stubs")
    folder = _library.assemble_backends(tmp_path / "made", library)
    assert (folder / "identity").readlink() == own / "identity"
    python = folder / "python"
    if version != MINOR:
        assert not python.exists()
        return
    assert {path.name: path.readlink() for path in python.iterdir() if path.is_symlink()} == {
        "libtriton_python.so": own / "python/libtriton_python.so",
        "triton_python_backend_utils.py": own / "python/triton_python_backend_utils.py",
        "models": own / "python/models",
    }
    script = python / "triton_python_backend_stub"
    for conda, changed in (("", True), ("/other", False)):
        done = subprocess.run(
            [script, "an argument"],
            env={"PATH": "/bin", "CONDA_PREFIX": conda},
            capture_output=True,
            text=True,
            check=False,
        )
        home = python / ".home"
        expected = f"{home}/bin:{Path(sys.executable).parent}:/bin {home}/lib an argument\n"
        assert done.stdout == (expected if changed else "/bin an argument\n")
    assert (home / "lib" / f"lib{Path(sys.base_prefix, 'python').name}{MINOR}.so.1.0").exists()


def test_the_python_backend_may_lie_in_folders_of_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written for the stub are their bytes, whatever the encoding of names is."""
    odd = tmp_path / os.fsdecode("ö'".encode() + b"\xff")
    own = make_backends(odd / "own", "python")
    make_stub(odd / "stubs" / MINOR, "echo $LD_LIBRARY_PATH $1; exit")
    (odd / "site").mkdir()
    monkeypatch.setattr(_python_backend, "_find_libpython", lambda: odd / "libpython")
    monkeypatch.setattr(sys, "path", [str(odd / "site")])
    monkeypatch.setattr(sys, "_base_executable", str(odd / "bin" / "python"), raising=False)
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    library = make_library(tmp_path, own, odd / "stubs")
    python = _library.assemble_backends(odd / "made", library) / "python"
    script = python / "triton_python_backend_stub"
    done = subprocess.run([script, "given"], env={"PATH": "/bin"}, capture_output=True, check=True)
    home = python / ".home"
    assert done.stdout == os.fsencode(home / "lib") + b" given\n"
    configuration = (home / "pyvenv.cfg").read_bytes()
    assert configuration.splitlines()[0] == b"home = " + os.fsencode(odd / "bin")
    (module,) = home.rglob("tritonffi_paths.py")
    code = "import sys; sys.path = []; exec(open(sys.argv[1]).read()); print(ascii(sys.path))"
    plain = [sys.executable, "-I", "-X", "utf8=1", "-c", code, module]
    done = subprocess.run(plain, capture_output=True, check=True)
    expected = os.fsencode(odd / "site").decode("utf-8", "surrogateescape")
    assert done.stdout.decode() == f"{[expected]!a}\n"


def test_a_users_python_backend_is_taken_as_it_is(tmp_path: Path) -> None:
    """Our stub is not mixed into a backend that is not the library's."""
    own = make_backends(tmp_path / "own", "python")
    user = make_backends(tmp_path / "user", "python")
    stub = tmp_path / "stubs" / MINOR / "triton_python_backend_stub"
    stub.parent.mkdir(parents=True)
    stub.touch()
    library = make_library(tmp_path, own, tmp_path / "stubs")
    folder = _library.assemble_backends(tmp_path / "made", library, [user])
    assert (folder / "python").readlink() == user / "python"


def test_the_real_library_gets_a_whole_backend_directory(tmp_path: Path) -> None:
    """Every backend of the library that the suite runs on is there, and every link leads on."""
    library = _library.load()
    folder = _library.assemble_backends(tmp_path / "made", library)
    expected = (
        set() if library.backends is None else {path.name for path in library.backends.iterdir()}
    )
    runs = (
        library.stubs is None
        or _python_backend.examine(library.path, library.stubs).problem is None
    )
    left_out = set() if runs else {"python"}
    assert {path.name for path in folder.iterdir()} == (expected - left_out) | {"tritonffi"}
    assert all(path.exists() for path in folder.rglob("*"))
    if runs and library.stubs is not None:
        assert os.access(folder / "python/triton_python_backend_stub", os.X_OK)


def test_user_directories_that_are_wrong_are_refused(tmp_path: Path) -> None:
    """Each with a message that names the directory and says what is wrong; nothing is made."""
    library = make_library(tmp_path, None)
    ours = make_backends(tmp_path / "ours", "tritonffi")
    good = make_backends(tmp_path / "good", "identity")
    (tmp_path / "file").touch()
    short = make_backends(tmp_path / "short", "mine")
    with Path(_native.__file__).open("rb") as file:
        (short / "mine" / "libtriton_mine.so").write_bytes(file.read(800))
    for directory, error, text in (
        (tmp_path / "absent", FileNotFoundError, "absent: does not exist"),
        (tmp_path / "file", NotADirectoryError, "file: is no directory"),
        (ours, InvalidArgumentError, "ours: the backend name 'tritonffi' is ours"),
        (good / "identity", InvalidArgumentError, f"is in, {good}"),
        (short, InvalidArgumentError, "short: mine/libtriton_mine.so is cut short: 800 bytes are"),
    ):
        with pytest.raises(error, match=text):
            _library.assemble_backends(tmp_path / "made", library, [good, directory])
    assert not (tmp_path / "made").exists()


def test_a_folder_in_use_is_not_mixed_with(tmp_path: Path) -> None:
    """What is in the folder already is never replaced."""
    library = make_library(tmp_path, make_backends(tmp_path / "own", "identity"))
    make_backends(tmp_path / "made", "identity")
    with pytest.raises(FileExistsError):
        _library.assemble_backends(tmp_path / "made", library)


def test_a_replaced_extension_is_refused(tmp_path: Path) -> None:
    """An upgrade under a running process: without the check Triton would crash in the new file."""
    shutil.copytree(PACKAGE, tmp_path / "site/tritonffi", ignore=shutil.ignore_patterns("__pyc*"))
    code = (
        "import os, shutil, sys; sys.path.insert(0, sys.argv[1] + '/site')\n"
        "from pathlib import Path\n"
        "from tritonffi import _errors, _library, _native\n"
        "library = _library.Library(Path('/'), None, None, None, None, 'a test', (1, 0))\n"
        "made = Path(sys.argv[1])\n"
        "assert _native.__file__.startswith(sys.argv[1])\n"
        "before = _library.assemble_backends(made / 'before', library)\n"
        "shutil.copy(_native.__file__, sys.argv[1] + '/new')\n"
        "os.replace(sys.argv[1] + '/new', _native.__file__)\n"
        "try: _library.assemble_backends(made / 'after', library)\n"
        "except _errors.InternalError as error: print(error)\n"
        "assert not (made / 'after/tritonffi').exists()\n"
        "import ctypes\n"
        "link = before / 'tritonffi/libtriton_tritonffi.so'\n"
        "assert ctypes.CDLL(str(link), mode=os.RTLD_NOLOAD | os.RTLD_NOW)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    assert "was replaced since it was imported (an upgrade?): restart this process" in done.stdout
