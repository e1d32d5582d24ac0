"""The founding documents: the page of the protocol quotes every sentence, and every proof is a test that exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from support.docs import DOCS, ROOT
from support.transcript import read

TRANSCRIPTS = ROOT / "tests" / "transcripts"
SENTENCES = Path(__file__).parent / "founding_documents.txt"


def read_documents() -> dict[str, list[str]]:
    """Return the sentences of each document, word by word."""
    text = re.sub(r"^# .*\n", "", SENTENCES.read_text(encoding="utf-8"), flags=re.MULTILINE)
    parts = re.split(r"^== (\d+)$", text, flags=re.MULTILINE)
    return {
        number: [line for line in lines.splitlines() if line]
        for number, lines in zip(parts[1::2], parts[2::2], strict=True)
    }


def read_tables() -> dict[str, list[tuple[str, list[str]]]]:
    """Return the rows of each document's table: the quotation, and its proofs."""
    page = (DOCS / "protocol.md").read_text(encoding="utf-8").split("\n## The founding documents\n")[1]
    parts = re.split(r"\*\*[^*]+\*\* \(document (\d+)\)", page)
    row = re.compile(r"^\| (.+) \| (`[^`]+`(?:, `[^`]+`)*) \|$", re.MULTILINE)
    return {
        number: [(said.replace("\\|", "|"), re.findall(r"`([^`]+)`", proofs)) for said, proofs in row.findall(text)]
        for number, text in zip(parts[1::2], parts[2::2], strict=True)
    }


DOCUMENTS, TABLES = read_documents(), read_tables()
PROOFS = [
    pytest.param(proof, id=f"{number}: {said[:60]}: {proof}")
    for number, rows in TABLES.items()
    for said, proofs in rows
    for proof in proofs
]


def test_there_is_a_table_for_each_document() -> None:
    """All five documents are there, in their order."""
    assert list(TABLES) == list(DOCUMENTS) == ["000", "001", "002", "003", "004"]


@pytest.mark.parametrize("number", DOCUMENTS)
def test_the_quotations_are_the_document(number: str) -> None:
    """The quotations of a table, one after the other, are the sentences of the document, without a change or a gap."""
    quoted = " ".join(said for said, _ in TABLES[number])
    assert quoted.split() == " ".join(DOCUMENTS[number]).split()


@pytest.mark.parametrize("proof", PROOFS)
def test_every_proof_exists(proof: str) -> None:
    """A proof is a test by file and name, or a section of a transcript by file and title."""
    file, colons, name = proof.partition("::")
    if colons:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    else:
        file, _, title = proof.partition(": ")
        assert title in {section.title for section in read(TRANSCRIPTS / f"{file}.txt")}
