# SPDX-License-Identifier: Apache-2.0
"""What a model's config must not say: with this, Triton ends the process.

It throws what nobody catches where a folder stands for a file (`std::length_error`), where a tag
is no label of Prometheus (`std::invalid_argument`), and where there is no memory or thread left
(`std::bad_alloc`, `std::system_error`); it writes to memory that it did not get. Where a state or
a warm-up is refused late, when threads of instances run, taking them back is a race. A step of an
ensemble that writes to an input of the ensemble starts the steps again, in a ring without end, or
until the stack is full. And states are taken for one another, which nobody would notice.
"""

from __future__ import annotations

import os
import re
import resource
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from tritonffi import _config_text
from tritonffi._batch_strategy import check_named
from tritonffi._config_text import integer, is_true, messages, number, numbers, only, text_of, texts
from tritonffi._errors import InvalidArgumentError
from tritonffi._tensor import ELEMENT_TYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tritonffi._config_text import Message

#: Gives the size of a file of the model's; None: there is none, -1: it is something else.
SizeOf: TypeAlias = "Callable[[str], int | None]"

MOST_SEQUENCES = 1_000_000
MOST_SAMPLE_REQUESTS = 1_000_000  # rows of a warm-up, and times that it runs
MOST_INSTANCES = 1024
_MOST_BYTES = 2**63 - 1
_INT_MAX = 2**31 - 1
_FAR_TOO_MANY = 10**100
# As std::stoi reads it: what comes behind the digits does not matter.
_PROFILE = re.compile(r"[ \t\n\v\f\r]*([+-]?[0-9]+)", re.ASCII)
# Files of the kernel's say that they are empty, and may be endless.
_KERNELS = ("/proc/", "/sys/", "/dev/")
# Triton puts a `_` in front, so that another would make a name that Prometheus keeps to itself.
_TAG = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9_]*)?", re.ASCII)
# What Triton makes of a text without letters.
_EMPTY_TEXT_SIZE = 4
_TEXT = "TYPE_STRING"
_SIZES = {row.config_name: row.size or _EMPTY_TEXT_SIZE for row in ELEMENT_TYPES}
_NAMES = {int(row.datatype): row.config_name for row in ELEMENT_TYPES}


def sizes_in(folder: Path) -> SizeOf:
    """Return what gives the sizes of files in a folder."""

    def size_of(path: str) -> int | None:
        try:
            status = os.stat(f"{folder}/{path}".partition("\0")[0])  # noqa: PTH116 (not `..` away)
        except OSError:
            return None
        is_file = stat.S_ISREG(status.st_mode) and (
            status.st_size > 0 or not os.path.realpath(f"{folder}/{path}").startswith(_KERNELS)
        )
        return status.st_size if is_file else -1

    return size_of


def sizes_of(files: Mapping[str, int]) -> SizeOf:
    """Return what gives the sizes of files that are given with a load, by their paths."""

    def size_of(path: str) -> int | None:
        path = os.path.normpath(path.partition("\0")[0])
        if path in files:
            return files[path]
        is_folder = path in (".", "..") or any(file.startswith(f"{path}/") for file in files)
        return -1 if is_folder else None

    return size_of


def check_config(config: Message, name: str, size_of: SizeOf | None) -> None:
    """Refuse a config with which Triton would end the process, never end, or mix up data.

    Args:
        config: The model's.
        name: The model's.
        size_of: Gives the sizes of its files; None: it is not known where they are.

    Raises:
        InvalidArgumentError: It is one.
    """
    _Check(config, f"model {name!r}", size_of).run()
    check_named(config, name)


@dataclass(frozen=True)
class _Check:
    """The checks of one config."""

    config: Message
    model: str
    size_of: SizeOf | None

    def run(self) -> None:
        for tag, _ in _config_text.items(self.config, "metric_tags"):
            if not _TAG.fullmatch(tag):
                raise self._wrong(
                    f"metric_tags: {tag!r}",
                    "expected a key of ASCII letters, digits and '_' that does not begin with '_', "
                    "as names of Prometheus labels are",
                )
        for output in messages(self.config, "output"):
            path = text_of(output, "label_filename")
            if path:
                where = f"output {text_of(output, 'name')!r}: label_filename"
                self._check_room(self._file_size(path, where) or 0, where)
        self._check_instances()
        self._check_steps()
        states = messages(only(self.config, "sequence_batching"), "state")
        self._check_states(states)
        self._check_order(states)
        for sample in messages(self.config, "model_warmup"):
            self._check_sample(sample, f"model_warmup {text_of(sample, 'name')!r}")

    def _check_instances(self) -> None:
        """Refuse more threads, and more slots of sequences, than a machine has room for."""
        instances = 0
        for group in messages(self.config, "instance_group"):
            for profile in group.get("profile", ()):
                match = _PROFILE.match(str(profile))
                if match is not None and abs(integer(match[1])) > _INT_MAX:
                    raise self._wrong(
                        f"instance_group: profile: {profile!r}", "expected a number of 32 bits"
                    )
            instances += max(1, number(group, "count")) * max(1, len(group.get("gpus", ())))
        if instances > MOST_INSTANCES:
            raise self._wrong(
                f"instance_group: {instances} instances",
                f"expected at most {MOST_INSTANCES:,}: each of them has a thread",
            )
        if "sequence_batching" not in self.config:
            return
        batching = only(self.config, "sequence_batching")
        field, slots = "max_batch_size", number(self.config, "max_batch_size")
        candidates = number(only(batching, "oldest"), "max_candidate_sequences")
        if candidates > 0:
            field, slots = "sequence_batching: oldest: max_candidate_sequences", candidates
        if slots * max(1, instances) > MOST_SEQUENCES:
            raise self._wrong(
                f"{field}: {slots}",
                f"expected at most {MOST_SEQUENCES:,} sequences at a time in all instances, of "
                f"which there are {max(1, instances)}: there is a place in memory for each",
            )

    def _check_steps(self) -> None:
        """Refuse steps that write to an input of the ensemble.

        Other rings, and tensors that are written twice, Triton refuses itself. But an input it
        takes for one that is there from the beginning, whatever is written to it later.
        """
        inputs = {text_of(entry, "name") for entry in messages(self.config, "input")}
        steps = messages(only(self.config, "ensemble_scheduling"), "step")
        for index, step in enumerate(steps):
            for output, tensor in texts(step, "output_map").items():
                if tensor in inputs:
                    raise self._wrong(
                        f"ensemble_scheduling: step {index} of model "
                        f"{text_of(step, 'model_name')!r}: output {output!r}: tensor {tensor!r}",
                        "expected one that is no input of the ensemble, which would start steps "
                        "again with each result",
                    )

    def _check_states(self, states: list[Message]) -> None:
        """Refuse what Triton would refuse too, but late, and states without room for them."""
        seen = set()
        for state in states:
            name = text_of(state, "input_name")
            where = f"sequence_batching: state {name!r}"
            self._size(state, where, any_size=True)
            initials = messages(state, "initial_state")
            if len(initials) > 1:
                raise self._wrong(
                    f"{where}: {len(initials)} of initial_state", "expected one at most"
                )
            for initial in initials:
                if name in seen:
                    raise self._wrong(where, "expected one state of an input_name, not several")
                seen.add(name)
                self._check_initial(state, initial, f"{where}: initial_state")

    def _check_order(self, states: list[Message]) -> None:
        """Refuse states that would get the data of others.

        Triton keeps what a state is read from and what it is written to in two maps, sorted by
        name, and moves data from one to the other by the place (`SequenceStates::OutputState` in
        core's `sequence_state.cc`, triton-inference-server/server#8586).
        """
        written: dict[str, Message] = {}
        for state in states:  # of those that are written to one name the first counts
            written.setdefault(text_of(state, "output_name"), state)
        by_output = [written[name] for name in sorted(written, key=_in_bytes)]
        # Which of those that are read from one name counts is not known: none may be wrong.
        by_input = sorted(by_output, key=lambda state: _in_bytes(text_of(state, "input_name")))
        for given, taking in zip(by_output, by_input, strict=True):
            # What has one buffer for both is not moved.
            if given is not taking and not is_true(given, "use_same_buffer_for_input_output"):
                raise self._wrong(
                    f"sequence_batching: state {text_of(taking, 'input_name')!r}: it would get "
                    f"what is written to {text_of(given, 'output_name')!r}, of state "
                    f"{text_of(given, 'input_name')!r}",
                    "expected output_names that sort as their input_names do: Triton pairs them in "
                    "the order of their bytes",
                )

    def _check_initial(self, state: Message, initial: Message, where: str) -> None:
        if not text_of(initial, "name"):
            raise self._wrong(f"{where}: name", "expected one")
        if _type_of(initial) != _type_of(state):
            raise self._wrong(
                f"{where}: data_type: {_type_of(initial)}",
                f"expected {_type_of(state)}, that of the state",
            )
        dims, wanted = numbers(initial, "dims"), numbers(state, "dims")
        if len(dims) != len(wanted) or any(
            a != b for a, b in zip(dims, wanted, strict=True) if b != -1
        ):
            raise self._wrong(f"{where}: dims: {dims}", f"expected {wanted}, those of the state")
        size = self._size(initial, where)
        if "data_file" in initial:
            path = f"initial_state/{text_of(initial, 'data_file')}"
            self._data_size(path, initial, size, f"{where}: data_file")
        elif "zero_data" not in initial:
            raise self._wrong(where, "expected zero_data or data_file")

    def _check_sample(self, sample: Message, where: str) -> None:
        requests = number(sample, "batch_size")
        if requests <= 0:  # Triton passes it over
            return
        if "max_batch_size" in self.config:  # or else the backend may complete it
            most = number(self.config, "max_batch_size")
            if requests > max(1, most):
                raise self._wrong(
                    f"{where}: batch_size: {requests}",
                    f"expected at most {max(1, most)}: max_batch_size is {most}, at which Triton "
                    "does not look in a warm-up",
                )
        for field, count in (("batch_size", requests), ("count", number(sample, "count"))):
            if count > MOST_SAMPLE_REQUESTS:
                raise self._wrong(
                    f"{where}: {field}: {count}",
                    f"expected at most {MOST_SAMPLE_REQUESTS:,}: the load waits for all of it",
                )
        zeros = randoms = read = 0
        for name, tensor in _config_text.items(sample, "inputs"):
            part = f"{where}: input {name!r}"
            size = self._size(tensor, part)
            if "input_data_file" in tensor:
                path = f"warmup/{text_of(tensor, 'input_data_file')}"
                size = self._data_size(path, tensor, size, f"{part}: input_data_file")
                read += size * requests  # each of which reads it anew
            elif "random_data" in tensor and _type_of(tensor) != _TEXT:
                randoms = max(randoms, size)  # inputs share them
            elif "random_data" in tensor or "zero_data" in tensor:
                zeros = max(zeros, size)
            else:
                raise self._wrong(part, "expected zero_data, random_data or input_data_file")
            self._check_room(zeros + randoms + read, part)

    def _data_size(self, path: str, tensor: Message, wanted: int, where: str) -> int:
        """Return the bytes of a file of data, of which there must be enough."""
        size = self._file_size(path, where)
        if size is None:
            return wanted
        self._check_room(size, f"{where}: {path!r}")
        if _type_of(tensor) != _TEXT and size < wanted:
            raise self._wrong(
                f"{where}: {path!r} has {size} bytes", f"expected {wanted}, for dims and data_type"
            )
        return size

    def _file_size(self, path: str, where: str) -> int | None:
        if self.size_of is None:
            return None
        size = self.size_of(path)
        if size is None:
            raise self._wrong(f"{where}: {path!r} is missing", "expected a file of the model's")
        if size < 0:
            raise self._wrong(
                f"{where}: {path!r} is no regular file", "expected a file of the model's"
            )
        return size

    def _size(self, tensor: Message, where: str, *, any_size: bool = False) -> int:
        """Return the bytes of a tensor; where any size is allowed, an axis of any has one."""
        dims = numbers(tensor, "dims")
        sizes = [1 if any_size and dim == -1 else dim for dim in dims]
        if any(size < 0 for size in sizes):
            raise self._wrong(f"{where}: dims: {dims}", "expected sizes that are not negative")
        size = _product([*sizes, _SIZES.get(_type_of(tensor), 0)])
        self._check_room(size, f"{where}: dims: {dims}")
        return size

    def _check_room(self, size: int, where: str) -> None:
        room = min(memory(), _MOST_BYTES)
        if size > room:
            raise self._wrong(
                f"{where}: {size} bytes", f"expected at most the {room} bytes of memory"
            )

    def _wrong(self, what: str, expected: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"{self.model}: config: {what}: {expected}")


def _in_bytes(name: str) -> bytes:
    """Return a name as C++ compares it; half a character is as good as any other."""
    try:
        return name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return name.encode("utf-8", "replace")


def _type_of(tensor: Message) -> str:
    """Return the name of a data type.

    It may be given as a number, in JSON also in digits, and there protobuf takes names in any case.
    """
    name = text_of(tensor, "data_type").upper().replace("-", "_")
    return name if name in _SIZES else _NAMES.get(number(tensor, "data_type"), "TYPE_INVALID")


def _product(sizes: list[int]) -> int:
    """Multiply, but not on and on: Python writes no number of thousands of digits."""
    product = 1
    for size in [*sizes] if all(sizes) else [0]:
        product = min(product * size, _FAR_TOO_MANY)
    return product


def memory() -> int:
    """Return how many bytes of memory this process can have, in the best case."""
    room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return room if limit == resource.RLIM_INFINITY else min(room, limit)
