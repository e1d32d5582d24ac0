"""Plain English in sources, tests and docs: no riddles in docstrings, messages and names; see CONTRIBUTING.md."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "src" / "jetbus"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RIDDLE = re.compile(r"(What|Who|Whose|Whom|How|Whether|Where|Which|Why|When)\b")
"""First words that make a docstring a question instead of a statement."""
BANNED_PHRASES = (
    "a object",
    "as the machine has it",
    "cannot be meant",
    "has to say",
    "hang states",
    "hangs below",
    "into one tree",
    "is no JSON",
    "is told",
    "matches nothing",
    "Only the owner of a state can.",
    "so it was asked",
    "that is none",
    "to who has",
    "without a word",
)
OLD_MODULES = {
    *("about", "areas", "asking", "beside", "buses", "children", "completing", "connected", "failures", "fakes"),
    *("frame", "frames", "given", "kept", "machine", "outside", "own", "past", "quick", "reel", "running", "seeing"),
    *("sieve", "stage", "taking", "telling", "together", "told", "waiting"),
}
"""Names of modules that do not say what is in them."""
BANNED_IN_DOCS = re.compile(
    r"\b(?:hangs? states|into one tree|nobody hears|to who has|that is none|so it was asked|cannot be meant"
    r"|(?:is|are|be|was) told(?! apart)|tells (?:nobody|everybody|fetchers)|[Ww]hoever"
    r"|is no (?:object|string|setting|browser|query|message|prefix))\b"
)
"""Phrases of the old dialect; names of tests and transcripts in code style do not count."""
CONSTRUCTIONS = {
    "what": re.compile(r"\bwhat\b", re.IGNORECASE),
    "who": re.compile(r"\b(?:who|whose|whom)\b", re.IGNORECASE),
    "is no": re.compile(r"\b(?:is|are|has|have|was) no\b", re.IGNORECASE),
    "begin": re.compile(r"\b(?:begins?|beginning|began|begun)\b", re.IGNORECASE),
    "nobody": re.compile(r"\b(?:nobody|somebody|everybody|anybody)\b", re.IGNORECASE),
}
"""Constructions that hide the subject of a sentence where they heap; a few of each are plain English."""
MOST = {
    "pages": {"what": 15, "who": 6, "is no": 9, "begin": 2, "nobody": 3},
    "docstrings": {"what": 14, "who": 5, "is no": 10, "begin": 4, "nobody": 3},
    "benchmarks": {"what": 3, "who": 3, "is no": 3, "begin": 3, "nobody": 3},
}
"""Limits of each, for 10,000 words. Lower them when a text gets better; do not raise them."""
SHARED_CLASS_NAMES = {
    "Limits": "settings, and the protocol that logins need of them",
    "Logins": "a port of the bus, and its implementation in the daemon",
    "Meter": "the meter of rules, and the protocol that patterns need of it",
    "Users": "a port of the bus, and its implementation in the daemon",
}
"""Names that two classes may have, because one is the protocol of the other."""


def fold(text: str) -> str:
    """Return a text on one line, so that a phrase is found across the end of a line."""
    return " ".join(text.split())


def find_docstrings(tree: ast.Module) -> Iterator[str]:
    """Yield the docstrings of a module, its classes and its functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def find_dialect(file: Path) -> Iterator[str]:
    """Yield the findings of one file."""
    text = file.read_text(encoding="utf-8")
    if file.stem in OLD_MODULES and file.parent.name != "commands":
        yield f"{file}: rename the module"
    for docstring in find_docstrings(ast.parse(text)):
        if RIDDLE.match(docstring):
            yield f"{file}: {docstring.splitlines()[0]}"
    yield from (f"{file}: {phrase!r}" for phrase in BANNED_PHRASES if phrase in fold(text))


PACKAGES = sorted(
    entry.name for entry in SOURCES.iterdir() if entry.suffix == ".py" or (entry / "__init__.py").exists()
)


@pytest.mark.parametrize("package", PACKAGES)
def test_sources_are_in_plain_english(package: str) -> None:
    """No docstring opens with a question word, no message has a banned phrase, no module an old name."""
    place = SOURCES / package
    files = [place] if place.is_file() else sorted(place.rglob("*.py"))
    assert [finding for file in files for finding in find_dialect(file)] == []


@pytest.mark.parametrize("group", sorted(path.name for path in (ROOT / "tests").iterdir() if path.name[0] not in "._"))
def test_tests_are_statements(group: str) -> None:
    """No docstring of a test or a helper opens with a question word: it is a line of the specification."""
    place = ROOT / "tests" / group
    files = [place] if place.suffix == ".py" else sorted(place.rglob("*.py"))
    found = [
        f"{file}: {docstring.splitlines()[0]}"
        for file in files
        if "node_modules" not in file.parts
        for docstring in find_docstrings(ast.parse(file.read_text(encoding="utf-8")))
        if RIDDLE.match(docstring)
    ]
    assert found == []


@pytest.mark.parametrize("page", [str(page.relative_to(ROOT)) for page in PAGES])
def test_pages_are_in_plain_english(page: str) -> None:
    """No page has a phrase of the old dialect."""
    text = fold(re.sub(r"```.*?```|`[^`\n]*`", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL))
    assert [found[0] for found in BANNED_IN_DOCS.finditer(text)] == []
    assert [phrase for phrase in BANNED_PHRASES if phrase in text] == []


def read_prose(kind: str) -> str:
    """Return all text of a kind, without code."""
    if kind == "pages":
        pages = (page.read_text(encoding="utf-8") for page in (*PAGES, ROOT / "CHANGELOG.md"))
        return "\n".join(re.sub(r"```.*?```|`[^`\n]*`", "", page, flags=re.DOTALL) for page in pages)
    files = (SOURCES if kind == "docstrings" else ROOT / "bench").rglob("*.py")
    found = (text for file in files for text in find_docstrings(ast.parse(file.read_text(encoding="utf-8"))))
    return re.sub(r"``[^`]*``", "", "\n".join(found))


@pytest.mark.parametrize("kind", MOST)
def test_constructions_do_not_heap(kind: str) -> None:
    """Sentences name their subject: what, who, begin and nobody stay as rare as they are now."""
    prose = read_prose(kind)
    words = len(re.findall(r"[A-Za-z']+", prose))
    rates = {name: len(pattern.findall(prose)) * 10_000 / words for name, pattern in CONSTRUCTIONS.items()}
    assert {name: round(rate, 1) for name, rate in rates.items() if rate > MOST[kind][name]} == {}


def test_class_names_are_unique() -> None:
    """A name stands for one class in all of the sources, apart from a protocol and its implementation."""
    names = Counter(
        node.name
        for file in SOURCES.rglob("*.py")
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, count in names.items() if count > 1} == SHARED_CLASS_NAMES.keys()
