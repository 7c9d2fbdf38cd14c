# SPDX-License-Identifier: Apache-2.0
"""
The processes that the benchmarks start: how they talk, and that none of them stays behind.

Each is in a session of its own, so a Ctrl-C at the terminal reaches the one that measures alone.
That one closes their stdin then, and they end; a program that reads no stdin is tied to it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks._measure import ContenderError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from benchmarks._load import Load
    from benchmarks._measure import Round

HERE = Path(__file__).resolve().parent

LONGEST_S = 180.0
"""How long a process may take to start, or for a round."""

STOP_S = 20.0
"""How long it may take to end."""

LOST_S = 2.0
"""The same for one that has nothing to lose: Triton's server waits long for idle connections."""

# Triton says it wherever there is no GPU, as an error.
HARMLESS = "CudaDriverHelper has not been initialized"
# An error in Triton's log: a letter, month and day, the time.
LOGGED_ERROR = re.compile(r"[EF]\d{4} \d\d:\d\d:\d\d\S* \d+ (.*)")
FEW = 3

# With the process id of the parent as the first argument. PR_SET_PDEATHSIG is 1; who has lost the
# parent before it was set has another one by now.
TIE = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
"""


def tied(command: Sequence[str | Path]) -> list[str | Path]:
    """The command of a program that ends with the process that starts it, however that ends."""
    code = TIE + "os.execv(sys.argv[2], sys.argv[2:])"
    return [sys.executable, "-I", "-S", "-c", code, str(os.getpid()), *command]


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """
    The environment for a process: ours, without proxies, which know nothing of our loopback.

    Args:
        more: Variables for this one.
    """
    ours = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    return {**ours, **(more or {})}


def last_words(text: str) -> str:
    """What a process said in the end: the last errors of Triton's log, or else its last line."""
    lines = [line.strip() for line in text.splitlines() if HARMLESS not in line]
    errors = [found[1] for line in lines if (found := LOGGED_ERROR.match(line))]
    return "; ".join(errors[-FEW:] or list(filter(None, lines))[-1:])


class Child:
    """A process at work that does a round when it is told to: a line in, a line of JSON out."""

    def __init__(self, process: subprocess.Popen[str], errors: int) -> None:
        """
        Waits until it says that it is ready, and keeps what it says.

        Args:
            process: Talks by stdin and stdout.
            errors: The descriptor of the file that is its stderr.
        """
        self._process = process
        self._errors = errors
        self._is_ready = False
        answer = self._answer()
        self.versions: str = answer.pop("versions", "")
        self.ready: Round = answer
        self._is_ready = True

    def run(self, load: Load) -> Round:
        """Does one round."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, and then it does not answer
            print(load.line(), file=self._process.stdin, flush=True)
        return self._answer()

    def stop(self) -> Round:
        """Ends the process and returns its last words."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        # A pipe has no timeout: whoever takes too long is ended, which ends its line. A daemon, or
        # it would hold up the end of this process.
        watchdog = threading.Timer(LONGEST_S, _kill, [self._process])
        watchdog.daemon = True
        watchdog.start()
        try:
            line = self._process.stdout.readline()
        finally:
            watchdog.cancel()
            watchdog.join()
        if not line:
            raise ContenderError(self._why_it_ended())
        try:
            answer = json.loads(line)
        except json.JSONDecodeError:
            answer = None
        if not isinstance(answer, dict):
            raise ContenderError(f"{_program(self._process)} said {line.strip()!r}")
        if "skip" in answer:
            raise ContenderError(answer["skip"])
        return answer

    def _why_it_ended(self) -> str:
        code = self._process.wait()
        # Not by a file object: the place where it reads is where the process writes.
        said = os.pread(self._errors, os.fstat(self._errors).st_size, 0).decode(errors="replace")
        if self._is_ready:  # nobody expects that: all that it said may help
            sys.stderr.write(said)
        why = f"{_program(self._process)} ended with exit code {code}"
        words = last_words(said)
        return f"{why}: {words}" if words else why


@contextmanager
def child(
    command: Sequence[str | Path], variables: Mapping[str, str] | None = None
) -> Iterator[Child]:
    """
    Starts a process of the benchmarks; it ends with its stdin.

    Args:
        command: The program and its arguments.
        variables: Of its environment, beside ours.

    Raises:
        ContenderError: It cannot be started, says that it cannot take part, or ended.
    """
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(  # noqa: S603 - the programs are ours
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment(variables),
                cwd=HERE.parent,
                start_new_session=True,
            )
        except OSError as error:
            raise ContenderError(f"{command[0]} cannot be started: {error.strerror}") from error
        with process:
            try:
                yield Child(process, errors.fileno())
            finally:
                _end(process)


@contextmanager
def program(
    command: Sequence[str | Path], variables: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """
    Starts a program that reads no stdin, and ends it.

    Args:
        command: The program and its arguments.
        variables: Of its environment, beside ours.
        log: The file that gets what it prints.
    """
    with (
        log.open("wb") as output,
        subprocess.Popen(  # noqa: S603 - it came with the library
            tied(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(variables),
            start_new_session=True,
        ) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()
            _end(process, LOST_S)


def _program(process: subprocess.Popen[Any]) -> str:
    assert isinstance(process.args, list)
    return str(process.args[0])


def _end(process: subprocess.Popen[Any], seconds: float = STOP_S) -> None:
    if process.stdin is not None:
        with suppress(BrokenPipeError):
            process.stdin.close()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        _kill(process)


def _kill(process: subprocess.Popen[Any]) -> None:
    """Ends it with all that it has started: they are its session."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
