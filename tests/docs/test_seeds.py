"""The tables of the founding documents are complete, and every proof in them is a test that exists."""

from __future__ import annotations

import ast
import re

import pytest

from support.docs import DOCS, ROOT
from support.transcript import read

TRANSCRIPTS = ROOT / "tests" / "transcripts"
DOCUMENTS = {"002": 32, "003": 21, "004": 22}
"""How many sentences each document has that say something about the bus."""


def tables() -> dict[str, list[tuple[str, str]]]:
    """The rows of each document's table: what it says, and the proof."""
    page = (DOCS / "protocol.md").read_text(encoding="utf-8").split("\n## The founding documents\n")[1]
    parts = re.split(r"\*\*[^*]+\*\* \(document (\d+)\)", page)
    return {
        number: re.findall(r"^\| (.+) \| `([^`]+)` \|$", text, re.MULTILINE)
        for number, text in zip(parts[1::2], parts[2::2], strict=True)
    }


ROWS = [pytest.param(proof, id=f"{number}: {said}") for number, rows in tables().items() for said, proof in rows]


def test_every_document_is_there() -> None:
    """No row is lost: a row that the pattern does not read would go unchecked."""
    assert {number: len(rows) for number, rows in tables().items()} == DOCUMENTS


@pytest.mark.parametrize("proof", ROWS)
def test_every_proof_exists(proof: str) -> None:
    """A proof is a test by file and name, or a section of a transcript by file and title."""
    file, colons, name = proof.partition("::")
    if colons:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    else:
        file, _, title = proof.partition(": ")
        assert title in {section.title for section in read(TRANSCRIPTS / f"{file}.txt")}
