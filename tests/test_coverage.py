# SPDX-License-Identifier: Apache-2.0
"""
All of the C API has a home: every function is called, or there is a reason why not.

``docs/make_tables.py`` finds out who calls what, and holds the lists of exceptions.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "docs" / "make_tables.py"

spec = importlib.util.spec_from_file_location("make_tables", SCRIPT)
tables = importlib.util.module_from_spec(spec)
sys.modules["make_tables"] = tables  # what typing.NamedTuple asks for
spec.loader.exec_module(tables)


def short(function):
    """A C name without what they all begin with."""
    return function.removeprefix("TRITONSERVER_")


FUNCTIONS = tables.declared()


def test_every_function_is_called_or_has_a_reason_not_to_be():
    """172 functions; a reason that is out of date is as wrong as none."""
    assert len(tables.declared()) == 172
    not_called = {f for f in FUNCTIONS if not tables.callers().get(f)}
    assert not_called == set(tables.NOT_CALLED)


@pytest.mark.parametrize("function", sorted(tables.NOT_CALLED))
def test_what_we_do_not_call_is_called_by_a_test_or_an_example(function):
    """So that it is known to work through `tritonffi.capi`."""
    files = [*(ROOT / "tests").glob("test_*.py"), *(ROOT / "examples").glob("*.py")]
    call = re.compile(rf"\b(lib\.)?{function}\b")
    assert any(call.search(path.read_text(encoding="utf-8")) for path in files)


@pytest.mark.parametrize("function", FUNCTIONS, ids=short)
def test_every_function_has_a_name_in_python(function):
    """A public docstring names it, or it is a part of something, or there is a reason."""
    named = bool(tables.python_names().get(function))
    part = short(function) in tables.PART_OF
    assert named or part or function in tables.NOT_CALLED
    assert not (named and part), "the list of parts is out of date"


@pytest.mark.parametrize("function", FUNCTIONS, ids=short)
def test_every_function_has_a_test(function):
    """Of its own, or of the public name that it is behind."""
    assert tables.find_test(function)


@pytest.mark.parametrize("name", [p.name for p in tables.public()])
def test_every_public_name_says_what_it_is_in_c(name):
    """Its docstring names a function or type of C, or it is of Python alone for a reason."""
    (doc,) = (p.doc for p in tables.public() if p.name == name)
    known = set(tables.declared()) | set(re.findall(r"TRITONSERVER_\w+", tables.header()))
    named = tables.c_functions(doc)
    assert set(named) <= known
    exempt = tables.OF_PYTHON.get(name) or tables.OF_PYTHON.get(name.partition(".")[0])
    assert bool(named) or exempt


def test_the_exceptions_name_what_there_is():
    """A list that is out of date misleads."""
    names = {p.name for p in tables.public()}
    assert set(tables.OF_PYTHON) <= names
    assert set(tables.PART_OF) <= set(map(short, tables.declared()))
    for text in tables.PART_OF.values():
        for name in re.findall(r"`([A-Z]\w*)", text):
            assert name in names, text


@pytest.mark.parametrize("page", sorted(tables.PAGES))
def test_the_tables_are_up_to_date(page):
    """They are what docs/make_tables.py would make now."""
    made = "\n".join(tables.PAGES[page]()) + "\n"
    there = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert there == made, "run: python docs/make_tables.py"
