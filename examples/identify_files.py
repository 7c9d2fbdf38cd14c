# SPDX-License-Identifier: Apache-2.0
"""Say what type every file under some folders is, with a neural network inside Triton.

The network is the one of Google's Magika, as its wheel ships it. It becomes a Triton model by
way of a Python callable that runs it with ``onnxruntime``, an instance per core. Many files are in
flight at any time; Triton makes batches of them and hands a batch to each instance that is free::

    path -> beginning and end of the file -> model.submit -> dynamic batcher -> scores -> label

Not every file needs the network: empty, tiny and special files have fixed labels. All rules
(what is read, how sure the network has to be, what is said otherwise) are Magika's; their
numbers come from the files in its package. ``--check`` compares every label with Magika's own.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import stat
import sys
import time
from collections import defaultdict, deque
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import magika
import numpy as np
import onnxruntime
from rich.console import Console
from rich.progress import track
from rich.table import Table

import tritonffi

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

# One instance per core, each with a thread of its own, a batch at work and another one waiting.
INSTANCES = len(os.sched_getaffinity(0))
BATCH_SIZE = 16
IN_FLIGHT = 2 * INSTANCES * BATCH_SIZE

NO_SUCH_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


@dataclass(frozen=True)
class Answer:
    """What a file is, or why that cannot be said: then only ``status`` is set, as in Magika."""

    status: str
    label: str | None = None
    group: str | None = None
    mime_type: str | None = None
    score: float | None = None


class Rules:
    """What Magika does before and after its network runs."""

    def __init__(self, model_name: str) -> None:
        """Reads the numbers of the model ``model_name`` and what is known about each label."""
        package = resources.files(magika)
        folder = package / "models" / model_name
        config = json.loads((folder / "config.min.json").read_text())
        if config["mid_size"] or config["use_inputs_at_offsets"]:
            raise SystemExit(f"{model_name} also reads the middle of files: not known here")
        self.network = (folder / "model.onnx").read_bytes()
        self.head_size: int = config["beg_size"]
        self.tail_size: int = config["end_size"]
        self.block_size: int = config["block_size"]
        self.padding: int = config["padding_token"]
        self.enough: int = config["min_file_size_for_dl"]
        self.labels: list[str] = config["target_labels_space"]
        self.thresholds: dict[str, float] = config["thresholds"]
        self.default_threshold: float = config["medium_confidence_threshold"]
        self.other_names: dict[str, str] = config["overwrite_map"]
        self.about = json.loads((package / "config" / "content_types_kb.min.json").read_text())

    def look(self, path: Path) -> Answer | npt.NDArray[np.int32]:
        """Returns the answer where it needs no network, else the row of numbers to give to it."""
        try:
            mode = path.stat().st_mode
            if stat.S_ISREG(mode):
                return self.read(path)
        except PermissionError:
            return Answer(magika.Status.PERMISSION_ERROR)
        except OSError as error:
            missing = error.errno in NO_SUCH_FILE
            return Answer(magika.Status.FILE_NOT_FOUND_ERROR if missing else magika.Status.UNKNOWN)
        return self.answer("directory" if stat.S_ISDIR(mode) else "unknown")

    def read(self, path: Path) -> Answer | npt.NDArray[np.int32]:
        """Reads the first and the last block of a regular file: never more, however large it is."""
        with path.open("rb", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            if not size:
                return self.answer("empty")
            file.seek(0)
            first = last = file.read(self.block_size)
            if size > self.block_size:
                file.seek(-self.block_size, os.SEEK_END)
                last = file.read(self.block_size)
        head = first.lstrip()[: self.head_size]
        tail = last.rstrip()[-self.tail_size :]
        if len(head) < self.enough:
            return self.answer("txt" if is_utf8(first) else "unknown")
        row = np.full(self.head_size + self.tail_size, self.padding, np.int32)
        row[: len(head)] = np.frombuffer(head, np.uint8)
        row[row.size - len(tail) :] = np.frombuffer(tail, np.uint8)
        return row

    def judge(self, scores: npt.NDArray[np.float32]) -> Answer:
        """Returns the best label, or a general one where the network is not sure enough."""
        best = int(scores.argmax())
        score = float(scores[best])
        label = self.labels[best]
        sure = score >= self.thresholds.get(label, self.default_threshold)
        label = self.other_names.get(label, label)
        if not sure:
            label = "txt" if self.about[label]["is_text"] else "unknown"
        return self.answer(label, score)

    def answer(self, label: str, score: float = 1.0) -> Answer:
        """Adds what is known about a label."""
        about = self.about[label]
        mime_type = "text/plain" if about["is_text"] else "application/octet-stream"
        return Answer(
            status=magika.Status.OK,
            label=label,
            group=about["group"] or "unknown",
            mime_type=about["mime_type"] or mime_type,
            score=score,
        )


def is_utf8(data: bytes) -> bool:
    """Tells whether ``data`` is text as nearly everybody writes it."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def walk(paths: Iterable[Path]) -> Iterator[Path]:
    """Yields the files given and those in the folders given, links to folders as themselves."""
    for path in paths:
        if not os.path.isdir(path):  # noqa: PTH112 - Path.is_dir raises where it may not look
            yield path
            continue
        for folder, subfolders, files in os.walk(path, onerror=complain):
            subfolders.sort()
            yield from filter(Path.is_symlink, (Path(folder, name) for name in subfolders))
            yield from (Path(folder, name) for name in sorted(files))


def complain(problem: object) -> None:
    """Writes to stderr; stdout is for results."""
    print(f"identify_files: {problem}", file=sys.stderr)


def load_network(server: tritonffi.Server, rules: Rules) -> tritonffi.Model:
    """Makes the network a model of ``server``."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        rules.network, options, providers=["CPUExecutionProvider"]
    )
    (source,) = (tensor.name for tensor in session.get_inputs())

    def run(features: npt.NDArray[np.int32]) -> dict[str, npt.NDArray[np.float32]]:
        # Row by row, for two reasons. On a CPU one run of this network over all rows is no faster.
        # And its rounding is another one (up to 0.02 in a score), so that a label would depend on
        # the batch its file was in, and differ from Magika's own where a score is at a threshold.
        rows = np.split(features, len(features))
        return {"scores": np.concatenate([session.run(None, {source: row})[0] for row in rows])}

    return server.load_function(
        "magika",
        run,
        inputs={"features": ("INT32", [rules.head_size + rules.tail_size])},
        outputs={"scores": ("FP32", [len(rules.labels)])},
        max_batch_size=BATCH_SIZE,
        config={
            "dynamic_batching": {},
            "instance_group": [{"kind": "KIND_CPU", "count": INSTANCES}],
        },
    )


def identify(model: tritonffi.Model, rules: Rules, paths: Iterable[Path]) -> Iterator[Answer]:
    """Yields an answer for each path, in order, with up to ``IN_FLIGHT`` files on their way."""
    pending: deque[Answer | tritonffi.Inference] = deque()

    def oldest() -> Answer:
        first = pending.popleft()
        return first if isinstance(first, Answer) else rules.judge(first.result()["scores"][0])

    for path in paths:
        seen = rules.look(path)
        # The model takes batches; ours are of one file, and Triton makes larger ones.
        pending.append(seen if isinstance(seen, Answer) else model.submit({"features": seen[None]}))
        if len(pending) == IN_FLIGHT:
            yield oldest()
    while pending:
        yield oldest()


def differences(reference: magika.Magika, found: Iterable[tuple[Path, Answer]]) -> Iterator[str]:
    """Yields a line for each file of which Magika itself says something else."""
    for path, answer in found:
        try:
            result = reference.identify_path(path)
        except OSError as error:  # it gives up: then we cannot have seen anything either
            theirs = str(error)
            same = answer.label is None
        else:
            theirs = str(result.output.label if result.ok else result.status)
            same = theirs == (answer.label or answer.status)
        if not same:
            yield f"{path} is {answer.label or answer.status}, for Magika {theirs}"


def show(found: Sequence[tuple[Path, Answer]], summary: dict[str, float]) -> None:
    """Prints a table by type, the most frequent first, and a line about the speed."""
    table = Table(title=f"{summary['files']:,} files by type")
    for heading in ("type", "group"):
        table.add_column(heading)
    for heading in ("files", "share", "mean score"):
        table.add_column(heading, justify="right")
    scores: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for _, answer in found:
        kind = (answer.label or f"({answer.status})", answer.group or "")
        scores[kind].append(answer.score or 0.0)
    for kind, of_kind in sorted(scores.items(), key=lambda item: (-len(item[1]), item[0])):
        count = len(of_kind)
        mean = sum(of_kind) / count
        numbers = (f"{count:,}", f"{count / len(found):.1%}", f"{mean:.3f}" if mean else "")
        table.add_row(*kind, *numbers)
    console = Console()
    console.print(table)
    console.print(
        f"{summary['seconds']:.1f} s: {summary['files_per_second']:,.0f} files/s; "
        f"{summary['inferences']:,} inferences in {summary['batches']:,} batches, "
        f"{summary['mean_batch_size']:.1f} files in each",
        highlight=False,
    )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="identify_files",
        description="Say what type every file is, by its content: Magika's network inside Triton.",
        epilog="Exit code: 0; 1 where no file could be read or a check failed; 130 after Ctrl-C.",
    )
    parser.add_argument(
        "paths", metavar="PATH", nargs="+", type=Path, help="a file, or a folder to walk"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document, no table")
    parser.add_argument(
        "--check", action="store_true", help="compare each answer with the magika package's own"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    options = parse(arguments)
    stderr = Console(stderr=True)
    reference = magika.Magika()
    rules = Rules(reference.get_model_name())
    with tritonffi.Server() as server:
        model = load_network(server, rules)
        paths = list(walk(options.paths))
        stderr.print(f"{len(paths):,} files, {INSTANCES} instances of the network")
        start = time.perf_counter()
        answers: Iterable[Answer] = identify(model, rules, paths)
        answers = track(answers, "Identifying", total=len(paths), console=stderr)
        found = list(zip(paths, answers, strict=True))
        seconds = time.perf_counter() - start
        counts = model.statistics()
    summary = {
        "files": len(found),
        "seconds": seconds,
        "files_per_second": len(found) / seconds,
        "inferences": counts.inference_count,
        "batches": counts.execution_count,
        "mean_batch_size": counts.mean_batch_size,
    }
    if options.json:
        files = [{"path": str(path), **asdict(answer)} for path, answer in found]
        print(json.dumps({"summary": summary, "files": files}, indent=1))
    else:
        show(found, summary)
    failed = all(answer.label is None for _, answer in found)
    if options.check:
        for line in differences(reference, track(found, "Checking", console=stderr)):
            failed = True
            complain(line)
    return int(failed)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except tritonffi.LibraryNotFoundError as error:
        sys.exit(str(error))
