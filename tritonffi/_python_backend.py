# SPDX-License-Identifier: Apache-2.0
"""
What Triton's own python backend needs to run models in the environment of this process.

The backend starts one stub process for each model instance. The stubs of the nvidia-pytriton wheel
embed a Python of one minor version; they ignore ``PYTHONPATH``, take the first ``python3`` on
``PATH`` for their home, need that version's shared libpython, and were built for numpy below 2:
with a newer one they return empty tensors, without an error.

So the stub that Triton finds is a script of ours, which starts the real one with the running
Python's libpython and with a home whose packages are a numpy below 2, then all that this process
can import. The environment of this process stays as it is. What cannot work is left out of the
backend directory, and the error of the load says what mends it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import sys
import sysconfig
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from tritonffi import _leftovers, _stub_execute, _stub_records
from tritonffi._errors import InternalError
from tritonffi._stub_execute import MODULE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

STUB: Final = "triton_python_backend_stub"
_HOME: Final = ".home"
_SHM = Path("/dev/shm")  # noqa: S108 (where Linux keeps shared memory)
_LIBPYTHON: Final = f"libpython{sys.version_info.major}.{sys.version_info.minor}.so.1.0"
_MINOR: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
# What Triton says of a backend that is not there.
_MISSING: Final = "unable to find .*(backend 'python'|libtriton_python)"
_ENDED: Final = "a process of Triton's python backend has ended before"
_NEW_NUMPY = 2
# What the kernel keeps of a program's name, and its flag of a process that has not become one.
_COMM: Final = os.fsencode(STUB[:15])
_NO_EXEC: Final = 0x40
_PROC: Final = "/proc"
#: How long a stub is dead and not waited for, before that is taken to be for ever: Triton looks
#: once a second where it looks at all.
PATIENCE_S: Final = 3.0
LOST: Final = (
    "A stub process of the python backend has died with a request. The backend never lets go of "
    "such a model: its old instances stay in this process, though it can be loaded anew"
)


@dataclass(frozen=True)
class PythonBackend:
    """How the python backend of a library can run for this Python.

    Attributes:
        stub: The real one.
        libpython: What it needs and would not find by itself.
        packages: A folder with a numpy that it can use, where this process has another.
        problem: Why it cannot run, and what mends that; None: it can.
    """

    stub: Path
    libpython: Path | None = None
    packages: Path | None = None
    problem: str | None = None


def examine(library: Path, stubs: Path) -> PythonBackend:
    """Look at what is there.

    Args:
        library: The library's file.
        stubs: The folder of stubs by Python version.
    """
    stub = stubs / _MINOR / STUB
    if not stub.is_file():
        have = ", ".join(sorted((p.name for p in stubs.iterdir()), key=_as_version))
        return PythonBackend(stub, problem=f"it has no stub for Python {_MINOR}: use one of {have}")
    problem = _start_problem(stub)
    if problem is not None:
        return PythonBackend(stub, problem=problem)
    content = stub.read_bytes()
    libpython = packages = None
    if not _is_bundled(content, library.parent):
        libpython = _find_libpython()
        if libpython is None:
            return PythonBackend(
                stub,
                problem=f"its stub needs {_LIBPYTHON}, which is not there: install a Python with a "
                f"shared library (Debian and Ubuntu: `apt install libpython{_MINOR}`; pyenv: "
                f"`PYTHON_CONFIGURE_OPTS=--enable-shared pyenv install {_MINOR}`)",
            )
    if b"numpy._core" not in content and _major(np.__version__) >= _NEW_NUMPY:
        packages = _find_packages(stubs)
        if packages is None:
            return PythonBackend(stub, libpython, problem=_numpy_problem())
    return PythonBackend(stub, libpython, packages)


def _start_problem(stub: Path) -> str | None:
    """Say why no stub could be started: Triton would wait for it for ever."""
    for shell in ("bash", "/bin/sh"):
        if shutil.which(shell) is None:
            where = "not there" if "/" in shell else "not on PATH"
            return f"Triton starts its stub with {shell}, which is {where}"
    if not os.access(stub, os.X_OK):
        return f"its stub cannot be executed, by its mode or on a noexec mount: {_shown(stub)}"
    try:
        place = _leftovers.find_place()
    except FileNotFoundError as error:
        return str(error.strerror)
    trouble = _leftovers.backend_trouble()
    if trouble is not None:  # with which Triton would end the process
        return (
            f"it makes a folder in {_leftovers.BACKEND_PLACE}, wherever temporary files go, and "
            f"cannot ({trouble}): make room there, or let this user write to it; in a container "
            "whose file system is read-only, mount a volume or a tmpfs there"
        )
    trouble = _leftovers.trouble(place)
    if trouble is None:
        return None
    return (
        f"its stub cannot be started from {_shown(place)}, where temporary files go ({trouble}): "
        "set TMPDIR to a folder of a plain name, out of which programs can be run"
    )


def _shown(path: Path) -> str:
    return os.fsencode(path).decode(errors="backslashreplace")


def _numpy_problem() -> str:
    from tritonffi import _fetch  # noqa: PLC0415  brings platformdirs: not for everyone

    text = f"its stub needs a numpy below 2, and here is {np.__version__}"
    problem = _fetch.packages_problem()
    if problem is not None:
        return f"{text}: {problem}"
    return f"{text}: run `tritonffi get-server --with-python-backend`, or install 'numpy<2'"


def hint(library: Path, stubs: Path | None, message: str) -> str | None:
    """Say what the python backend has to do with an error, if it has.

    Args:
        library: The library's file.
        stubs: The folder of stubs by Python version; None: this Triton's backend is its own affair.
        message: The error's, with what Triton logged.
    """
    if stubs is not None and "Exit timeout expired" in message and is_lost():
        return LOST
    if stubs is None or not re.search(f"{_MISSING}|{_ENDED}", message):
        return None
    problem = examine(library, stubs).problem
    return None if problem is None else f"The python backend cannot run here: {problem}"


def link(folder: Path, backend: Path, python: PythonBackend) -> None:
    """Make `folder` a python backend that works: links to `backend`, and our way to the stub."""
    folder.mkdir(mode=0o700)
    for entry in sorted(backend.iterdir()):
        if entry.name != STUB:
            (folder / entry.name).symlink_to(entry)
    home = folder / _HOME
    (home / "lib").mkdir(parents=True)
    if python.libpython is not None:
        (home / "lib" / _LIBPYTHON).symlink_to(python.libpython)
    # A virtual environment of its own: the stub takes the first python3 on PATH for its home.
    base = _executable("_base_executable")
    (home / "bin").mkdir()
    for name in ("python", "python3"):  # a program that is there, though no Python
        (home / "bin" / name).symlink_to(base if base.exists() else python.stub)
    _write(home / "pyvenv.cfg", f"home = {base.parent}\ninclude-system-site-packages = false\n")
    packages = home / "lib" / f"python{_MINOR}" / "site-packages"
    packages.mkdir(parents=True)
    # A line of a .pth file that begins with import is run at the start.
    _write(packages / "tritonffi_paths.pth", f"import tritonffi_paths\nimport {MODULE}\n")
    (packages / f"{MODULE}.py").symlink_to(Path(_stub_execute.__file__).absolute())
    paths = [os.fsencode(path) for path in _paths(python.packages)]
    _write(packages / "tritonffi_paths.py", _PATHS.format(paths=paths))
    records = folder / _stub_records.FOLDER
    _stub_records.make_folder(records)
    stub = folder / STUB
    _write(
        stub,
        _SCRIPT.format(
            conda=shlex.quote(os.environ.get("CONDA_PREFIX", "")),
            path=shlex.quote(f"{home / 'bin'}:{_executable('executable').parent}"),
            lib=shlex.quote(str(home / "lib")),
            record=_stub_records.LINE.format(records=shlex.quote(str(records))),
            stub=shlex.quote(str(python.stub)),
        ),
    )
    stub.chmod(0o700)


def _write(path: Path, text: str) -> None:
    """Write a text with names of files, which are any bytes."""
    path.write_bytes(os.fsencode(text))


def _executable(name: str) -> Path:
    """Return what `sys` has by a name; of an embedded Python, where its program is or would be.

    From there the stub finds the standard library.
    """
    found = getattr(sys, name, None) or sys.executable
    return Path(found) if found else Path(sys.base_prefix, "bin", f"python{_MINOR}")


_PATHS: Final = """\
import os
import site
import sys

for path in map(os.fsdecode, {paths!r}):
    if path.endswith("-packages"):
        site.addsitedir(path)  # with what is installed there in editable mode
    elif path not in sys.path:
        sys.path.append(path)
"""

# Where CONDA_PREFIX differs, Triton has activated an execution environment of the model's own.
_SCRIPT: Final = """\
#!/bin/sh
if [ "${{CONDA_PREFIX-}}" = {conda} ]; then
  PATH={path}${{PATH:+:$PATH}}
  LD_LIBRARY_PATH={lib}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}
  export PATH LD_LIBRARY_PATH
fi
{record}
exec {stub} "$@"
"""


def _paths(packages: Path | None) -> Iterator[str]:
    """List what a stub can import beside the standard library, in order."""
    if packages is not None:
        yield str(packages)
    standard = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    for entry in sys.path:
        try:
            path = os.path.abspath(entry)  # noqa: PTH100 (an empty one is the working directory)
        except OSError:  # which is gone
            continue
        is_standard = path in standard or path.endswith((".zip", "lib-dynload"))
        if not is_standard and Path(path).is_dir():
            yield path


def _is_bundled(stub: bytes, folder: Path) -> bool:
    """Say whether the libpython that a stub needs lies beside the library."""
    names = re.findall(rb"libpython[\d.]*-[0-9a-f]+[\w.]*\.so[\d.]*", stub)
    return any((folder / os.fsdecode(name)).is_file() for name in names)


def _find_libpython() -> Path | None:
    """Return the shared library of the running Python, or of one of its version."""
    lib = sysconfig.get_config_var("LIBDIR")
    multiarch = sysconfig.get_config_var("MULTIARCH") or "x86_64-linux-gnu"
    folders = [
        *([lib] if lib else []),
        *(f"{sys.base_prefix}/{name}" for name in ("lib", "lib64")),
        *os.environ.get("LD_LIBRARY_PATH", "").split(":"),
        *("/usr/local/lib", f"/usr/lib/{multiarch}", "/usr/lib64", "/usr/lib"),
    ]
    for folder in filter(None, folders):
        path = Path(folder, _LIBPYTHON)
        if path.is_file():
            return path
    return None


def _find_packages(stubs: Path) -> Path | None:
    """Return the numpy that `get-server --with-python-backend` put beside the server."""
    from tritonffi import _fetch  # noqa: PLC0415  as above

    return _fetch.find_packages(stubs.absolute().parents[2])


def _major(version: str) -> int:
    return int(version.partition(".")[0])


def _as_version(name: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", name)))


def remove_shm(*, own: bool) -> None:
    """Remove shared memory that killed stubs and processes of ours left behind.

    Args:
        own: Also that of this process: it has no server any more.
    """
    with contextlib.suppress(OSError):
        dead = list(_leftovers.of_the_dead(_SHM))
        if dead:
            _end_orphans({os.fsencode(path.name) for path in dead})
        for path in [*dead, *(_own_shm() if own else ())]:
            with contextlib.suppress(OSError):
                path.unlink()


def _end_orphans(segments: Collection[bytes]) -> None:
    """Kill stubs that outlived their process: one that loads its model does not look for that.

    Args:
        segments: Names of shared memory of processes that are no more.
    """
    for pid in filter(str.isdigit, os.listdir(_PROC)):  # noqa: PTH208
        with contextlib.suppress(OSError):  # also of what is not ours to look at
            program, *arguments = Path(_PROC, pid, "cmdline").read_bytes().split(b"\0")
            is_stub = program.endswith(os.fsencode(STUB))
            if is_stub and any(word.lstrip(b"/") in segments for word in arguments):
                os.kill(int(pid), signal.SIGKILL)


def _own_shm() -> list[Path]:
    """List the shared memory of this process's stubs; none, where that cannot be looked at."""
    with contextlib.suppress(OSError):
        return list(_SHM.glob(f"{_leftovers.prefix()}*"))
    return []


def is_lost(model: str | None = None) -> bool:
    """Say whether a stub died in such a way that its model will never be unloaded.

    The backend keeps what belongs to a request that a stub was given and did not answer, and with
    it the model; it does not even ask for the exit code of the process. What is loaded and not in
    use is not lost by that, so this tells something only after an unload has been waited for.

    Args:
        model: Only then lost if it has no living stub; None: any.
    """
    stubs = list(_stubs())
    is_alive = model is not None and bool(_living(model, stubs))
    return not is_alive and any(state == "Z" for _, state in stubs)


def _living(model: str, stubs: Iterable[tuple[str, str]]) -> set[str]:
    """Return which of some stubs are a model's and live."""
    name = os.fsencode(model)
    living = set()
    for pid, state in stubs:
        if state != "Z":
            with contextlib.suppress(OSError):
                arguments = Path("/proc", pid, "cmdline").read_bytes().split(b"\0")
                if any(a == name or a.startswith(name + b"_") for a in arguments):
                    living.add(pid)
    return living


class StubWatch:
    """
    Notices that a stub has died for which Triton waits for ever, while models are loaded.

    As long as a stub completes the config of its model, or is yet to say its first word, Triton
    does not look whether it is alive (triton-inference-server/server#4537). One that ends as it
    should is waited for in no time; one that was there before is no matter of these loads.

    Attributes:
        model: The model whose stub it is, after there was one; empty: that is not known.
    """

    def __init__(self, models: Collection[str] = ()) -> None:
        """
        Remember who is dead already, and who lives: an old model serves while the new one loads.

        Args:
            models: Those that are loaded; none: any.
        """
        stubs = list(_stubs())
        self.model = ""
        self._before = {pid for pid, _ in stubs}
        self._living = {model: _living(model, stubs) for model in models}
        self._since: dict[str, float] = {}

    def __call__(self) -> None:
        """
        Look whether there is one.

        Raises:
            InternalError: It has been there for a while.
        """
        if self.has_lost():
            context = f"model {self.model!r}: " if self.model else ""
            raise InternalError(
                f"{context}{_ENDED} it had said what its model takes and gives, and Triton waits "
                "for it for ever. Its last words are on stderr; with strict_model_config=True, "
                "Triton itself sees such an end"
            )

    def has_lost(self) -> bool:
        """Return whether there has been one for a while."""
        lost = self._lost()
        now = time.monotonic()
        since = self._since = {pid: self._since.get(pid, now) for pid in lost}
        models = [model for pid, model in lost.items() if now - since[pid] > PATIENCE_S]
        self.model = next(iter(models), self.model)
        return bool(models)

    def _lost(self) -> dict[str, str]:
        """Return the stubs that seem to be lost, with their models."""
        stubs = list(_stubs())
        # So that another one may have the number.
        listed = {pid for pid, _ in stubs}
        self._before = {p for p in self._before if p in listed or Path(_PROC, p).exists()}
        dead = [pid for pid, state in stubs if state == "Z" and pid not in self._before]
        found = {pid: self._lost_model(pid, stubs) for pid in dead}
        return {pid: model for pid, model in found.items() if model is not None}

    def _lost_model(self, pid: str, stubs: Iterable[tuple[str, str]]) -> str | None:
        """Return the model that a dead stub is lost for; empty: any; None: it is not lost."""
        record = _stub_records.record_of(pid)
        completed = None if record is None else record.completes()
        if not self._living:
            return completed or ""
        # Triton gives a model that is loaded with files, or by an agent, a folder of another name.
        if record is not None and record.instance in self._living:
            return record.instance
        if completed is not None:
            return None  # of a model that others load
        # An instance, or none that it could be told of: another one may be at work for the model.
        for model, living in self._living.items():
            if not _living(model, stubs) - living:
                return model
        return None


def end_stubs() -> None:
    """Kill the stubs that are left when the process ends: one in a long call would outlive it."""
    for pid, state in _stubs():
        if state != "Z":  # the number may be another one's by now
            with contextlib.suppress(OSError):
                os.kill(int(pid), signal.SIGKILL)


def _stubs() -> Iterator[tuple[str, str]]:
    """List our stub processes with their states; that of dead ones that Triton has is Z."""
    records = _stub_records.all_records()
    if not records and not _own_shm():
        return  # the usual case, in which there is nothing to look for
    seen = set()
    own = os.fsencode(str(os.getpid()))
    # Not by scandir, which warns where a signal handler raises before its end.
    for pid in filter(str.isdigit, os.listdir(_PROC)):  # noqa: PTH208
        with contextlib.suppress(OSError):  # processes come and go
            head, _, rest = Path(_PROC, pid, "stat").read_bytes().rpartition(b")")
            name = head.partition(b"(")[2]
            state, parent, *_, flags = rest.split()[:7]
            # Dead before it came to be one: in Triton's shell, or on the way there.
            is_none_yet = name == b"bash" or int(flags) & _NO_EXEC
            if parent == own and (
                name == _COMM or (state == b"Z" and is_none_yet and _is_of_triton(pid))
            ):
                seen.add(pid)
                yield pid, state.decode()
    # Where the program waits for any child, or ignores SIGCHLD, the kernel knows no dead ones.
    for record in records:
        pid = str(record.pid)
        if pid not in seen and record.is_dead():
            yield pid, "Z"


def _is_of_triton(pid: str) -> bool:
    """Say whether a child was made by a thread that is none of Python's: others leave dead ones.

    Where the kernel does not tell, it was not.
    """
    # Not by `threading.enumerate`, which takes a lock: a signal handler may have come upon it.
    threads = list(threading._active.values())  # type: ignore[attr-defined]  # noqa: SLF001
    ours = {str(os.getpid()), *(str(thread.native_id) for thread in threads)}
    for task in Path("/proc/self/task").iterdir():
        if task.name not in ours:
            with contextlib.suppress(OSError):
                if pid in (task / "children").read_text(encoding="ascii").split():
                    return True
    return False
