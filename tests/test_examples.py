# SPDX-License-Identifier: Apache-2.0
"""The examples do their job: they are run as a user runs them, in a process of their own."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import stat
import subprocess
import sys
import sysconfig
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("magika", reason="needs magika: pip install '.[examples]'")
pytest.importorskip("rich", reason="needs rich: pip install '.[examples]'")
import magika

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.usefixtures("library")

IDENTIFY = Path(__file__).parent.parent / "examples" / "identify_files.py"

CONTENTS = {
    "empty": b"",
    "one-byte": b"a",
    "seven-bytes": b"a,b\n1,2",
    "eight-bytes": b"a,b\n1,2\n",
    "seven-binary": b"\x7fELF\xff\xfe\xfd",
    "seven-after-stripping": b" \t\r\n\x0b\x0c" + b"#!/bin/" + b" \n",
    "whitespace-only": b" \n" * 50,
    "whitespace-block": b" " * 4096,
    "whitespace-then-text": b"\n" * 4096 + b"import os\n" * 500,
    "text-then-whitespace": b"import os\n" * 500 + b"\n" * 4096,
    "cut-character": b" " * 4095 + "é".encode(),
    "cut-character-latin-1": b" " * 4095 + "é".encode("latin-1"),
    "exactly-one-side": b"def f():\n    return 1\n".ljust(1024, b"#"),
    "one-block": b"int main(void) { return 0; }\n".ljust(4096, b"/"),
    "one-block-and-one-byte": b"int main(void) { return 0; }\n".ljust(4097, b"/"),
    "utf-8.txt": "Ärger, naïveté, 面白い\n".encode() * 30,
    "latin-1.txt": "Ärger, naïveté, señor\n".encode("latin-1") * 30,
    "utf-16.txt": "Ärger, naïveté\n".encode("utf-16") * 30,
    "script.py": b"#!/usr/bin/env python3\nimport sys\n\nprint(sys.argv[1:])\n",
    "page.html": b"<!DOCTYPE html>\n<html><body><p>Hello</p></body></html>\n",
    "data.json": b'{"numbers": [1, 2, 3], "name": "x", "nested": {"a": null}}\n',
    "archive.zip": b"PK\x05\x06" + bytes(18),
    "picture.png": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1\x08\6\0\0\0\x1f\x15\xc4\x89" * 9,
    "zeros": bytes(10_000),
    "every-byte": bytes(range(256)) * 64,
}


# Runs a Python command without root's right to read everything: there, "unreadable" means nothing.
WITHOUT_PRIVILEGES = """
import ctypes, os, sys
for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP: gone after the exec
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""

# A process started in the background of a shell ignores Ctrl-C, and so do its children.
WITH_CTRL_C = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


@pytest.fixture(scope="module")
def reference() -> magika.Magika:
    """Magika itself, loaded once."""
    return magika.Magika()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with files of every size that matters, and everything else a folder can hold."""
    top = tmp_path / "folder"
    top.mkdir()
    for name, content in CONTENTS.items():
        (top / name).write_bytes(content)
    Path(os.fsdecode(os.fsencode(top) + b"/caf\xe9.txt")).write_bytes(b"not an UTF-8 name\n" * 9)
    (top / "sub" / "empty-folder").mkdir(parents=True)
    (top / "sub" / "deep.sh").write_bytes(b'#!/bin/sh\nset -e\nexec ls -l "$@"\n')
    (top / "link-to-file").symlink_to("script.py")
    (top / "link-to-folder").symlink_to("sub")
    (top / "link-to-itself").symlink_to("link-to-itself")
    (top / "link-to-nothing").symlink_to("nothing")
    os.mkfifo(top / "pipe")
    os.mknod(top / "socket", stat.S_IFSOCK | 0o600)
    return top


def identify(
    *arguments: str | Path, before: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Runs the example to its end."""
    return subprocess.run(
        [sys.executable, *before, IDENTIFY, *arguments],
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )


def answers(result: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    """Returns what was printed for each path, in the order printed."""
    assert result.returncode == 0, result.stderr
    files: list[dict[str, Any]] = json.loads(result.stdout)["files"]
    by_path = {file.pop("path"): file for file in files}
    assert len(by_path) == len(files)
    return by_path


def magikas_answer(reference: magika.Magika, path: str) -> dict[str, Any]:
    """Returns what the magika package says about one file, as the example prints it."""
    result = reference.identify_path(path)
    about = result.output if result.ok else None
    return {
        "status": str(result.status),
        "label": str(about.label) if about else None,
        "group": about.group if about else None,
        "mime_type": about.mime_type if about else None,
        "score": pytest.approx(result.score, abs=1e-5) if about else None,
    }


def test_all_answers_are_magikas_own_for_every_kind_of_entry(
    folder: Path, reference: magika.Magika
) -> None:
    """Sizes around each limit, stripped space, odd encodings, links, pipes and sockets."""
    found = answers(identify("--json", folder))
    assert found == {path: magikas_answer(reference, path) for path in found}
    words = {
        os.path.relpath(path, folder): file["label"] or file["status"]
        for path, file in found.items()
    }
    assert set(words) >= {*CONTENTS, "sub/deep.sh"}
    assert words["empty"] == "empty"
    assert (
        words["seven-bytes"] == words["whitespace-only"] == words["seven-after-stripping"] == "txt"
    )
    assert words["seven-binary"] == words["cut-character"] == "unknown"
    assert words["pipe"] == words["socket"] == "unknown"
    assert words["link-to-file"] == words["script.py"] == "python"
    assert words["link-to-folder"] == "directory"
    assert words["link-to-nothing"] == words["link-to-itself"] == "file_not_found_error"


def test_all_answers_are_magikas_own_for_files_of_the_system(reference: magika.Magika) -> None:
    """Three files of each suffix below Python's library and /usr/share, 300 at most."""
    by_suffix: Counter[str] = Counter()
    paths = []
    for top in (sysconfig.get_path("stdlib"), sysconfig.get_path("platlib"), "/usr/share"):
        for root, folders, names in os.walk(top):
            folders.sort()
            for name in sorted(names):
                path = Path(root, name)
                by_suffix[path.suffix] += 1
                if by_suffix[path.suffix] <= 3 and path.is_file() and os.access(path, os.R_OK):
                    paths.append(str(path))
    paths = paths[:300]
    found = answers(identify("--json", *paths))
    assert list(found) == paths
    assert found == {path: magikas_answer(reference, path) for path in paths}


def test_an_unreadable_file_is_a_permission_error(folder: Path) -> None:
    """So it is for Magika, as ``--check`` finds; the other files are not touched by it."""
    for name in ("script.py", "sub"):
        (folder / name).chmod(0)
    try:
        result = identify("--json", "--check", folder, before=("-c", WITHOUT_PRIVILEGES))
    finally:
        (folder / "sub").chmod(0o700)
    found = answers(result)
    unreadable = {path for path, file in found.items() if file["status"] == "permission_error"}
    assert unreadable == {str(folder / "script.py"), str(folder / "link-to-file")}
    assert found[str(folder / "page.html")]["label"] == "html"
    assert str(folder / "sub" / "deep.sh") not in found
    assert f"Permission denied: '{folder / 'sub'}'" in result.stderr


def test_files_come_in_the_order_given_and_sorted_within_a_folder(folder: Path) -> None:
    """Whatever batch each of them was in; a file given twice is there twice."""
    last = folder / "zeros"
    result = identify("--json", last, folder, last)
    paths = [file["path"] for file in json.loads(result.stdout)["files"]]
    assert paths[0] == paths[-1] == str(last)
    inside = [path for path in paths[1:-1] if Path(path).parent == folder]
    files = [path for path in inside if path != str(folder / "link-to-folder")]
    assert files == sorted(files)
    assert len(paths) == 2 + len(inside) + 1


def test_triton_makes_batches_of_single_files(tmp_path: Path) -> None:
    """The numbers are Triton's own statistics of the model."""
    for number in range(200):
        (tmp_path / f"{number}.py").write_text(f"import os\n\nprint({number})\n")
    (tmp_path / "empty").touch()
    summary = json.loads(identify("--json", tmp_path).stdout)["summary"]
    assert summary["files"] == 201
    assert summary["inferences"] == 200
    assert 1 < summary["mean_batch_size"] <= 16
    assert summary["mean_batch_size"] == 200 / summary["batches"]


def test_a_table_and_the_speed_are_printed(folder: Path) -> None:
    """That is what one gets without ``--json``."""
    result = identify(folder)
    assert result.returncode == 0, result.stderr
    rows = [[cell.strip() for cell in line.split("│")] for line in result.stdout.splitlines()]
    assert ["", "empty", "inode", "1", "3.0%", "1.000", ""] in rows
    assert "files/s" in result.stdout.splitlines()[-1]


def test_nothing_readable_is_a_failure(tmp_path: Path) -> None:
    """A wrong path must not look like success; what is wrong is still printed."""
    result = identify("--json", tmp_path / "nothing")
    assert result.returncode == 1
    (file,) = json.loads(result.stdout)["files"]
    assert file["status"] == "file_not_found_error"
    assert identify(tmp_path).returncode == 1


def test_check_finds_a_wrong_label(folder: Path, reference: magika.Magika) -> None:
    """Else a check that passes would say nothing."""
    spec = importlib.util.spec_from_file_location("identify_files", IDENTIFY)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = example
    try:
        spec.loader.exec_module(example)
    finally:
        del sys.modules[spec.name]
    path = folder / "script.py"
    wrong, right = (example.Answer("ok", label) for label in ("ruby", "python"))
    assert list(example.differences(reference, [(path, right)])) == []
    assert list(example.differences(reference, [(path, wrong)])) == [
        f"{path} is ruby, for Magika python"
    ]


def test_ctrl_c_ends_it_without_a_traceback(tmp_path: Path) -> None:
    """The server is closed on the way, with the inferences that are in flight."""
    for number in range(5000):
        (tmp_path / f"{number}.py").write_text(f"import os\n\nprint({number})\n")
    with subprocess.Popen(
        [sys.executable, "-c", WITH_CTRL_C, IDENTIFY, tmp_path],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    ) as process:
        assert process.stderr is not None
        assert "5,000 files" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert process.returncode == 130
    assert "Traceback" not in rest
