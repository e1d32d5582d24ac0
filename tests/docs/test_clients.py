"""The table of clients is true: every client is a column, every claim has a proof, every proof is a test."""

from __future__ import annotations

import json
import re

import pytest

from support.docs import DOCS, ROOT

TESTS = ROOT / "tests"
REAL, FRAMES, NONE = "R", "F", "–"
PROOFS = {
    "node-jet 1.6.3": r"interop/\w+|nodejet3",
    "node-jet 2.1.2": r"interop/\w+|nodejet3",
    "node-jet 3.0.17": r"interop/\w+|nodejet3",
    "C++": r"cpp|disconnects|tree",
    "lua-jet": r"classic|paths|values|sorted|batches|disconnects|tree",
    "2012": r"legacy|seeds|tree",
    "Python": r"peer/\w+|docs/\w+",
    "Python, binary": r"binary/\w+|peer/test_binary|peer/test_past|peer/test_callbacks",
}
"""Which proofs count for which client."""


def rows() -> list[list[str]]:
    """The table, its heads first."""
    page = (DOCS / "clients.md").read_text(encoding="utf-8")
    table = page.split("\n## What was tried with which client\n")[1].split("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("|") and not line.startswith("|---")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


HEAD, *ROWS = rows()
CLIENTS = HEAD[1:-1]
CELLS = [
    pytest.param(client, cell, row[-1], id=f"{row[0]}: {client}")
    for row in ROWS
    for client, cell in zip(CLIENTS, row[1:-1], strict=True)
]


def test_every_client_is_a_column() -> None:
    """The columns are the clients whose proofs are known; node-jet's versions are those that the tests install."""
    assert list(PROOFS) == CLIENTS
    installed = json.loads((TESTS / "interop" / "package.json").read_text(encoding="utf-8"))["dependencies"]
    versions = [name.rpartition("@")[2] for name in installed.values()]
    assert [client.split()[1] for client in CLIENTS if client.startswith("node-jet")] == versions


@pytest.mark.parametrize(("client", "cell", "proofs"), CELLS)
def test_every_claim_has_a_proof(client: str, cell: str, proofs: str) -> None:
    """A cell says how something was tried; if it was, the row names a test of that client."""
    how = cell.split()[0]
    real = client.startswith(("node-jet", "Python"))
    assert how in ((REAL, NONE) if real else (FRAMES, NONE))
    found = [name for name in re.findall(r"`([^`]+)`", proofs) if re.fullmatch(PROOFS[client], name)]
    assert how == NONE or found


def test_every_proof_exists() -> None:
    """Every proof on the page is a file of tests or transcripts, and no such file is missing there."""
    named = {name for row in ROWS for name in re.findall(r"`([^`]+)`", row[-1])}
    files = {name: TESTS / (f"{name}.py" if "/" in name else f"transcripts/{name}.txt") for name in named}
    assert [name for name, file in files.items() if not file.is_file()] == []
    interop = {f"interop/{file.stem}" for file in (TESTS / "interop").glob("test_*.py")}
    assert interop - named == set()


def test_every_note_is_there() -> None:
    """The numbers in the cells are those of the notes."""
    numbers = {word for row in ROWS for cell in row[1:-1] for word in cell.split()[1:]}
    page = (DOCS / "clients.md").read_text(encoding="utf-8")
    assert numbers == set(re.findall(r"^(\d)\. ", page, re.MULTILINE))
