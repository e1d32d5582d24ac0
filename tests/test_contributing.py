"""CONTRIBUTING is true: its walks are walked in a copy of the tree, block by block, and end where it says they end.

A block of a walk says behind its language what becomes of it: ``row FILE TABLE`` is put into a table, ``before FILE
TABLE`` ahead of one, ``after FILE START`` below the line that starts so, ``new FILE`` and ``end FILE`` speak for
themselves. Blocks of ``sh`` are run where they stand; the last one must succeed, and fail when the docs are forgotten.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from conftest import SLOW
from docs.test_shell import is_made
from support.docs import blocks_of

ROOT = Path(__file__).parent.parent
COPIED = ("src", "tests", "docs", "examples", "bench", "Makefile", "Dockerfile", "LICENSE", "pyproject.toml")
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")
_BLOCK = re.compile(r"^( *)```(\w+)(?: ([^\n]+))?\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A block of the page: its language, what becomes of it, and its text."""

    language: str
    what: list[str]
    text: str


def blocks(section: str) -> list[Block]:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (found,) = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    return [
        Block(language, what.split(None, 2), textwrap.dedent(text)) for _, language, what, text in _BLOCK.findall(found)
    ]


def _into_table(old: str, table: str, text: str) -> str:
    opening = re.compile(rf"^( *){re.escape(table)}\b[^\n]*{{\n", re.MULTILINE)
    found = opening.search(old)
    assert found, table
    return old[: found.end()] + textwrap.indent(text, found[1] + "    ") + old[found.end() :]


def _before_table(old: str, table: str, text: str) -> str:
    at = old.index(f"\n{table}") + 1
    return old[:at] + text + "\n\n" + old[at:]


def _after_line(old: str, start: str, text: str) -> str:
    at = old.index("\n", old.index(f"\n{start}") + 1) + 1
    return old[:at] + text + old[at:]


PLACES: dict[str, Callable[[str, str, str], str]] = {
    "row": _into_table,
    "before": _before_table,
    "after": _after_line,
    "new": lambda _old, _where, text: text,
    "end": lambda old, _where, text: old.rstrip("\n") + "\n" + text,
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the tree."""
    for name in (*COPIED, *PAGES):
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "node_modules", "results")
            )
        else:
            shutil.copy(ROOT / name, tmp_path / name)
    modules = ROOT / "tests" / "interop" / "node_modules"
    if modules.exists():
        (tmp_path / "tests" / "interop" / "node_modules").symlink_to(modules)
    return tmp_path


def put(tree: Path, block: Block) -> None:
    how, file, *where = block.what
    place = tree / file
    old = place.read_text(encoding="utf-8") if place.exists() else ""
    assert bool(old) == (how != "new"), file
    place.write_text(PLACES[how](old, where[0] if where else "", block.text), encoding="utf-8")


def run(tree: Path, text: str, options: str = "-qx") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", "-ec", text.replace(".venv/bin/python", sys.executable)],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree / "src"), "PYTEST_ADDOPTS": f"{options} -p no:cacheprovider"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def is_forgotten(block: Block) -> bool:
    """Return True if a block is one that people forget, and that a test reminds them of."""
    return block.what[1:2] == ["docs/protocol.md"] or "reference.py" in block.text


WALKS = {
    "Add a fetch-rule operator": "containsNoneOf",
    "Add a service": "count",
    "Add a command": "test_what_is_generated_is_up_to_date",
}
"""The sections, and the word by which a test complains when the docs are forgotten."""


@pytest.mark.parametrize("section", WALKS)
def test_the_walk_leads_there(section: str, tree: Path) -> None:
    """The steps of a section pass the tests it names; without the docs they do not."""
    *steps, last = blocks(section)
    for step in steps:
        if not is_forgotten(step):
            put(tree, step)
    forgetful = run(tree, last.text)
    assert forgetful.returncode == 1, forgetful.stdout
    assert WALKS[section] in forgetful.stdout
    for step in steps:
        if is_forgotten(step):
            if step.language == "sh":
                done = run(tree, step.text)
                assert done.returncode == 0, done.stdout
            else:
                put(tree, step)
    careful = run(tree, last.text)
    assert careful.returncode == 0, careful.stdout
    assert re.search(r"[1-9]\d* passed", careful.stdout)


FEW = "tests/rules/test_paths.py tests/interop/test_connect.py tests/spark/test_session.py"
SET_UP = [
    line
    for block in blocks_of(ROOT / "CONTRIBUTING.md")
    if block.is_shell and block.heading == "Set up"
    for line in block.commands
]


@pytest.mark.parametrize("line", [line for line in SET_UP if line.startswith("make ")])
def test_everyday_commands(line: str, tmp_path: Path) -> None:
    """Every make target of the page does what it says."""
    is_made(line, tmp_path)


@pytest.mark.parametrize("line", [line for line in SET_UP if not line.startswith("make ")])
def test_running_some_tests(line: str) -> None:
    """The lines that run some of the tests do, and leave out others; where they would run most, they have few."""
    done = run(ROOT, line, "-q" if "tests/" in line else f"-q {FEW}")
    assert done.returncode == 0, done.stdout
    assert re.search(r"[1-9]\d* passed, [1-9]\d* deselected", done.stdout)


def test_what_is_generated(tree: Path) -> None:
    """The line that brings the pages up to date does."""
    (block,) = blocks("Generated parts")
    page = tree / "docs" / "cli" / "watch.md"
    page.write_text(page.read_text(encoding="utf-8").replace("jet watch", "jet wotch"), encoding="utf-8")
    done = run(tree, block.text)
    assert done.returncode == 0, done.stdout
    assert "jet watch" in page.read_text(encoding="utf-8")


def test_every_section_is_walked() -> None:
    """All blocks of the page are in sections that the tests above go through."""
    sections = {block.heading for block in blocks_of(ROOT / "CONTRIBUTING.md")}
    assert sections == {*WALKS, "Set up", "Generated parts"}


def test_the_commands_are_there() -> None:
    """Every make target that the page names exists."""
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    named = re.findall(r"make ([\w-]+)", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert named
    assert set(named) <= set(targets)


def test_slow_files_exist() -> None:
    """The files that ``make quick`` leaves out as slow exist, so that a renamed one is noticed."""
    tests = ROOT / "tests"
    places = [tests / folder.removeprefix("tests") / file for folder in SLOW for file in SLOW[folder]]
    assert [place for place in places if not place.is_file()] == []
