# SPDX-License-Identifier: Apache-2.0
"""The pages in docs/ are true: their code runs, prints what they show, and their names exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tritonffi

DOCS = Path(__file__).parent.parent / "docs"
PAGES = sorted(path.name for path in DOCS.glob("*.md"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(page):
    """The code blocks of a page: language and text."""
    return BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))


def is_program(page):
    """Whether there is something to run."""
    return any(language == "python" for language, _ in blocks(page))


@pytest.mark.parametrize("page", [page for page in PAGES if is_program(page)])
def test_the_code_of_a_page_prints_what_the_page_shows(page, library, tmp_path):
    """All of it in one process, from top to bottom; what it prints stands in the text blocks."""
    program = tmp_path / "page.py"
    program.write_text(
        "".join(text for language, text in blocks(page) if language == "python"), encoding="utf-8"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", program],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"TRITONFFI_LIBRARY": str(library.path)},
    )
    assert done.stderr == ""
    assert done.stdout == "".join(text for language, text in blocks(page) if language == "text")
    assert done.returncode == 0


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    """To another page, or a file of the repository."""
    text = (DOCS / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)", text):
        assert (DOCS / target).exists(), target
    for target in re.findall(r"`((?:examples|docs|csrc|tests)/[\w./]+)`", text):
        assert (DOCS.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES)
def test_names_on_a_page_exist(page):
    """Each `Class.member` of the package, and each of its classes alone."""
    text = BLOCK.sub("", (DOCS / page).read_text(encoding="utf-8"))
    for name in re.findall(r"`(?:tritonffi\.)?([A-Z]\w+(?:\.\w+)?)(?:\([^`]*\))?`", text):
        owner, _, member = name.partition(".")
        if not hasattr(tritonffi, owner):
            continue  # a word of C or Python
        fields = getattr(getattr(tritonffi, owner), "__dataclass_fields__", {})
        found = getattr(tritonffi, owner).__annotations__ if member else {}
        assert (
            not member or hasattr(getattr(tritonffi, owner), member) or member in {*fields, *found}
        )


def test_every_page_is_in_the_list_of_pages():
    """`docs/README.md` leads to all of them."""
    listed = re.findall(r"\]\((\w+\.md)\)", (DOCS / "README.md").read_text(encoding="utf-8"))
    assert sorted({*listed, "README.md"}) == PAGES


def test_every_example_is_in_the_list_of_examples():
    """Every one there is, and no other."""
    listed = re.findall(
        r"^\| `(\w+\.py)` \|", (DOCS / "README.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert sorted(listed) == sorted(path.name for path in (DOCS.parent / "examples").glob("*.py"))
