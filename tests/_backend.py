# SPDX-License-Identifier: Apache-2.0
"""
The test backend from Python: build it, write models for it, work the gate at which it stops.

The backend is `tests/backend/`; what it can be asked to do is listed in `tests/backend/knobs.h`.
It is compiled when the tests run and not at installation, because it must be linked against the
very libtritonserver that will load it. The benchmarks use it too.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import subprocess
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tritonffi import Server
from tritonffi._process import NativeServer, process

NAME = "tffitest"
"""What a config.pbtxt calls the backend."""

Spec = tuple[str, Sequence[int]]
"""A tensor of a model: its dtype in Triton's words ("FP32", "BYTES") and its dims."""

DATATYPES = (
    "BOOL",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "FP16",
    "FP32",
    "FP64",
    "BYTES",
    "BF16",
)

_HERE = Path(__file__).resolve().parent
_CSRC = _HERE.parent / "csrc"


def compiler() -> list[str]:
    """The C compiler and its first arguments: `$CC`, or the one that built this Python, or `cc`."""
    return shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")


def compile_c(target: Path, sources: Sequence[Path], library_path: Path, *flags: str) -> None:
    """
    Compiles C files against our headers and links them to a libtritonserver.

    Args:
        target: What to write.
        sources: The C files.
        library_path: The libtritonserver that will be there at run time. It is linked by its full
            path: the wheel's library has a name of its own, so what asks for plain
            libtritonserver.so would find none.
        *flags: More for the compiler.
    """
    command = [
        *compiler(),
        *("-std=c11", "-O2", "-g", "-Wall", "-Wextra", "-Wconversion", "-pthread"),
        *shlex.split(os.environ.get("CFLAGS", "")),
        *("-I", str(_CSRC)),
        *map(str, sources),
        *("-o", str(target)),
        # The library's own needs are met at run time, when its neighbours are loaded.
        *(str(library_path.resolve()), "-Wl,--allow-shlib-undefined"),
        *flags,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{shlex.join(command)}\n{done.stderr}")


def build(output_dir: Path, library_path: Path) -> Path:
    """
    Compiles the backend and returns the path of the shared object.

    Args:
        output_dir: A backend directory; the backend gets the folder `tffitest` in it.
        library_path: The libtritonserver that will load the backend.
    """
    target = output_dir / NAME / f"libtriton_{NAME}.so"
    target.parent.mkdir(parents=True, exist_ok=True)
    sources = sorted((_HERE / "backend").glob("*.c"))
    compile_c(target, sources, library_path, "-shared", "-fPIC", "-fvisibility=hidden")
    return target


def config(
    name: str,
    inputs: Mapping[str, Spec],
    outputs: Mapping[str, Spec] | None = None,
    *,
    max_batch_size: int = 0,
    decoupled: bool = False,
    extra: str = "",
    **knobs: str | int | bool,
) -> str:
    """The text of a config.pbtxt for the backend; `write_model` has the arguments."""
    if outputs is None:
        outputs = {_echoed(key): spec for key, spec in inputs.items()}
    lines = [f'name: "{name}"', f'backend: "{NAME}"', f"max_batch_size: {max_batch_size}"]
    lines += [f"input {_tensor(key, spec)}" for key, spec in inputs.items()]
    lines += [f"output {_tensor(key, spec)}" for key, spec in outputs.items()]
    if decoupled:
        lines.append("model_transaction_policy { decoupled: true }")
    for key, value in knobs.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        lines.append(f'parameters {{ key: "{key}" value: {{ string_value: "{text}" }} }}')
    return "\n".join([*lines, extra, ""])


def write_model(
    repository: Path,
    name: str,
    inputs: Mapping[str, Spec],
    outputs: Mapping[str, Spec] | None = None,
    *,
    max_batch_size: int = 0,
    decoupled: bool = False,
    extra: str = "",
    versions: Sequence[int] = (1,),
    **knobs: str | int | bool,
) -> Path:
    """
    Writes a model of the backend into a repository and returns its folder.

    Args:
        repository: The model repository; made if it is not there.
        name: The model's name.
        inputs: Its inputs, as in `{"INPUT0": ("FP32", [-1])}`.
        outputs: Its outputs; left out, they are the inputs under the names by which the backend
            echoes them.
        max_batch_size: 0 for a model without a batch dimension.
        decoupled: Whether a request may have any number of responses.
        extra: More lines of config.pbtxt, such as `dynamic_batching {}`.
        versions: The version folders to make.
        **knobs: What the backend shall do: tests/backend/knobs.h.
    """
    folder = repository / name
    for version in versions:
        (folder / str(version)).mkdir(parents=True, exist_ok=True)
    text = config(
        name,
        inputs,
        outputs,
        max_batch_size=max_batch_size,
        decoupled=decoupled,
        extra=extra,
        **knobs,
    )
    (folder / "config.pbtxt").write_text(text, encoding="utf-8")
    return folder


def write_dtype_models(repository: Path) -> None:
    """Writes a model `echo_<dtype>` for every dtype, from INPUT0 to OUTPUT0 with the dims [-1]."""
    for datatype in DATATYPES:
        write_model(repository, f"echo_{datatype.lower()}", {"INPUT0": (datatype, [-1])})


def _echoed(name: str) -> str:
    return "OUT" + name[2:] if name.startswith("IN") else name


def _tensor(name: str, spec: Spec) -> str:
    datatype, dims = spec
    datatype = "STRING" if datatype == "BYTES" else datatype
    return f'{{ name: "{name}" data_type: TYPE_{datatype} dims: {list(dims)} }}'


class Gate:
    """
    The gate of the backend, at which requests with the knob `hold` stop.

    It is one for the process and starts closed. Leave it as it was: `reset` at the end of a test.
    """

    def __init__(self, backend: Path) -> None:
        """Opens the library that Triton loads as well; `backend` is what `build` returned."""
        self._library = ctypes.CDLL(str(backend))

    def wait(self, count: int = 1, timeout: float = 30.0) -> None:
        """Returns when at least `count` stand at the gate; a TimeoutError if they do not come."""
        waiting = self._library.tffitest_wait(count, int(timeout * 1000))
        if waiting < count:
            raise TimeoutError(f"{waiting} of {count} came to the gate within {timeout} s")

    def waiting(self) -> int:
        """How many stand at the gate now."""
        return int(self._library.tffitest_waiting())

    def release(self, count: int = -1) -> int:
        """Lets the first `count` go, all by default; returns how many went. It stays closed."""
        return int(self._library.tffitest_release(count))

    def open(self) -> None:
        """Lets everybody go, those who come later too."""
        self._library.tffitest_hold(0)

    def close(self) -> None:
        """Stops those who come from now on."""
        self._library.tffitest_hold(1)

    def reset(self) -> None:
        """Lets everybody go and closes the gate again."""
        self.open()
        self.close()


@contextmanager
def starting(repository: Path, directory: Path) -> Iterator[Callable[..., Server]]:
    """Give what starts servers with some models of a repository, `one` where none is named.

    They are closed in the end.
    """
    servers = []

    def start(*models: str, **options: Any) -> Server:
        server = Server(
            repository, backend_directory=directory, startup_models=models or ["one"], **options
        )
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.close(timeout=30)


def running_servers() -> list[NativeServer]:
    """Servers that are not stopped, of this process."""
    return [server for server in process._servers if not server.is_stopped]
