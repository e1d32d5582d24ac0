"""The pages on peers and rules: all of it runs, against a real daemon."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest

import jetbus
from jetbus.rules import PATH_TESTS, TYPES, VALUE_TESTS, text
from jetbus.testing import RunningDaemon, running_daemon
from support.docs import DOCS, ROOT, run_page

EXAMPLES = ROOT / "examples"
PAGES = ["describe.md", "peers.md", "peers-reference.md", "rules.md"]


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningDaemon]:
    """A daemon that peers without a URL connect to."""
    with running_daemon() as running:
        monkeypatch.setenv("JET_URL", running.url)
        yield running


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("page", PAGES)
def test_pages_run(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every Python block of a page runs, in order, and prints what its comments say."""
    run_page(page, capsys)


def rows(heading: str) -> list[list[str]]:
    """The rows of the tables of a section of rules.md, the code words of each cell."""
    section = (DOCS / "rules.md").read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    cells = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in row] for row in cells]


def word(cell: str) -> str:
    return cell.strip("`")


def test_keywords_are_documented() -> None:
    """The tables of keywords list exactly the keywords of `jetbus.rule`, in their order."""
    keywords = [name for name in inspect.signature(jetbus.rule).parameters if name != "text"]
    assert [word(row[0]) for row in rows("Keywords")] == keywords


def test_path_words_are_documented() -> None:
    """The wire words of the path keywords are the daemon's path operators."""
    words = {word(row[1]) for row in rows("Keywords") if word(row[0]) not in ("value", "fields")}
    beside = {"caseInsensitive", "sort", "byValue", "descending", "from", "to"}
    assert words - beside == set(PATH_TESTS)


def test_operators_are_documented() -> None:
    """The tables of operators list the signs, words and functions there are."""
    with_sign = [row for row in rows("Operators in text") if len(row) == 4]
    without = [row for row in rows("Operators in text") if len(row) == 3]
    assert {word(sign): word(wire) for sign, wire, _, _ in with_sign} == text._OPERATORS
    functions = {word(row[-2]): word(row[-3]) for row in [*with_sign, *without]}
    assert set(functions.values()) == set(VALUE_TESTS)
    operands = {"is_type": "number"}
    for name, wire in functions.items():
        assert getattr(jetbus, name)(operands.get(name, 1)).operator == wire


def test_the_grammar_is_that_of_the_parser() -> None:
    """The page shows the grammar that stands in the parser's module."""
    page = (DOCS / "rules.md").read_text(encoding="utf-8")
    grammar = inspect.cleandoc((text.__doc__ or "").split("::\n\n")[1].split("\n\n")[0].replace("\n    ", "\n"))
    lines = [line.strip() for line in grammar.splitlines()]
    assert [line for line in lines if line not in page] == []
    assert [name for name in TYPES if name not in lines[-1]] == []
