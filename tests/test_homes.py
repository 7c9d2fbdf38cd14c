# SPDX-License-Identifier: Apache-2.0
"""Users without a home folder, with one that they may not look into, and paths that begin with ~.

Services have them: a container that runs under any user id, or HOME kept after a change of user.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path

import platformdirs
import pytest

from tritonffi import _fetch, _library
from tritonffi.__main__ import main
from tritonffi._errors import LibraryNotFoundError

NO_HOME = (
    "there is no folder for a user's data: HOME is not set, and the system knows none for user "
    f"{os.getuid()}"
)
HOMES = ("HOME", "XDG_DATA_HOME")
FETCHED = "the server of `tritonffi get-server`"


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """No place has a library, and nothing of this user is looked at."""

    def nothing():
        raise _library._NothingThereError("not there")

    for name in ("TRITONFFI_LIBRARY", "TRITON_ROOT", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(_library, "_in_wheel", nothing)
    monkeypatch.setattr(_library, "_CONTAINER_ROOT", tmp_path / "container")
    monkeypatch.setattr(_library, "_on_loader_path", nothing)
    return monkeypatch


@pytest.fixture
def homeless(nowhere):
    """A user id that the system does not know, and no HOME."""

    def no_entry(uid):
        raise KeyError(uid)

    nowhere.delenv("HOME", raising=False)
    nowhere.setattr(pwd, "getpwuid", no_entry)
    return nowhere


@pytest.fixture
def root(tmp_path):
    """An installation, its library an empty file."""
    (tmp_path / "root" / "lib").mkdir(parents=True)
    (tmp_path / "root" / "lib" / "libtritonserver.so").touch()
    return tmp_path / "root"


def test_without_a_home_the_search_goes_on(homeless, root):
    """There is no fetched server then, and the list of places says why."""
    homeless.setenv("TRITON_ROOT", str(root))
    found = _library.find()
    assert (found.origin, found.library) == ("TRITON_ROOT", root / "lib/libtritonserver.so")
    assert found.passed[-1] == _library.Place(FETCHED, NO_HOME)
    assert _fetch.find_packages(root) is None


@pytest.mark.parametrize(
    ("variable", "returned"), [("HOME", "~/.local/share"), ("XDG_DATA_HOME", "data")]
)
def test_the_working_folder_is_no_home(homeless, tmp_path, variable, returned):
    """Older platformdirs give a path in it: whoever may write there would choose what is loaded."""
    homeless.chdir(tmp_path)
    (tmp_path / returned / "server" / "nvidia-pytriton-0.7.0").mkdir(parents=True)
    if variable != "HOME":
        homeless.setenv(variable, returned)
    homeless.setattr(platformdirs, "user_data_path", lambda *_, **__: Path(returned))
    with pytest.raises(LibraryNotFoundError) as caught:
        _library.find()
    reason = "XDG_DATA_HOME is 'data', which is no absolute path"
    if variable == "HOME":
        reason = "HOME is not set, and the system knows none"
    assert f"\n  {FETCHED}: there is no folder for a user's data: {reason}" in str(caught.value)


def test_a_server_starts_without_a_home(library):
    """The library is named by its variable, and nothing else is needed."""
    code = (
        "import pwd\n"
        "def no_entry(uid): raise KeyError(uid)\n"
        "pwd.getpwuid = no_entry\n"
        "import tritonffi\n"
        "with tritonffi.Server() as server: print(server.metadata()['name'])"
    )
    env = {name: value for name, value in os.environ.items() if name not in HOMES}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=env | {"TRITONFFI_LIBRARY": str(library.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "triton\n", "")


def test_get_server_without_a_home_asks_for_a_folder(homeless, capsys):
    """In one line."""
    assert main(["get-server"]) == 1
    assert capsys.readouterr() == ("", f"tritonffi: {NO_HOME}. Name a folder with --dir\n")


def test_get_server_with_a_folder_needs_no_home(homeless, tmp_path, capsys):
    """It says how to have the folder used."""
    homeless.setattr(_fetch, "is_complete", lambda folder: True)
    assert main(["get-server", "--dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out == (
        f"The Triton server is in {tmp_path}\nTo use it, set TRITONFFI_LIBRARY={tmp_path}\n"
    )


@pytest.mark.parametrize("how", ["may not be read", "name too long"])
def test_a_home_that_cannot_be_looked_at_is_passed_over(nowhere, root, tmp_path, how):
    """As with sudo -E: HOME is that of another user, and TRITON_ROOT has a good server."""
    home = tmp_path / ("x" * 300 if how == "name too long" else "home")
    reason = "File name too long"
    if how == "may not be read":
        if os.getuid() == 0:
            pytest.skip("root may read everything")
        home.mkdir(mode=0)
        reason = "Permission denied"
    nowhere.setenv("HOME", str(home))
    nowhere.setenv("TRITON_ROOT", str(root))
    found = _library.find()
    assert found.origin == "TRITON_ROOT"
    fetched = home / ".local/share/tritonffi/server/nvidia-pytriton-0.7.0"
    assert found.passed[-1] == _library.Place(FETCHED, f"{fetched}: {reason}")
    assert _fetch.find_packages(root) is None
    with pytest.raises(_fetch.FetchError, match=f"cannot write in {fetched.parent}: {reason}$"):
        _fetch.get_server()


@pytest.mark.parametrize("name", ["~no-such-user/x", "~"])
@pytest.mark.parametrize("how", ["argument", "TRITONFFI_LIBRARY", "TRITON_ROOT"])
def test_a_path_in_no_home_is_named(homeless, how, name):
    """With the argument or variable that it stands in."""
    if how != "argument":
        homeless.setenv(how, name)
    with pytest.raises(LibraryNotFoundError) as caught:
        _library.find(name if how == "argument" else None)
    place = f"library={name!r}" if how == "argument" else how
    user = name.partition("/")[0]
    assert f"\n  {place}: {name}: no home folder is known for {user}\n" in str(caught.value)


def test_the_command_names_a_path_in_no_home(homeless, capsys):
    """One message each, and no traceback."""
    assert main(["where", "--library", "~no-such-user/x"]) == 1
    line = "  library='~no-such-user/x': ~no-such-user/x: no home folder is known for ~no-such-user"
    assert capsys.readouterr().err.splitlines()[1] == line
    for argument in ("--dir", "--wheel"):
        assert main(["get-server", "--dir", "/", argument, "~no-such-user/x"]) == 1
        assert capsys.readouterr().err == (
            f"tritonffi: {argument} ~no-such-user/x: no home folder is known for ~no-such-user\n"
        )


def test_a_backend_directory_in_no_home_is_named(homeless, tmp_path):
    """As one that does not exist."""
    library = _library.Library(tmp_path, None, None, None, None, "", (1, 0))
    with pytest.raises(FileNotFoundError) as caught:
        _library.assemble_backends(tmp_path / "made", library, ["~no-such-user/x"])
    assert str(caught.value) == (
        "backend directory ~no-such-user/x: no home folder is known for ~no-such-user"
    )
    assert not (tmp_path / "made").exists()
