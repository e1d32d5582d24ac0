"""The pages on history: all of it runs, against a real daemon with a journal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import jetbus
from jetbus.daemon.config import SETTINGS
from jetbus.daemon.metrics import JOURNAL_NUMBERS
from jetbus.journal.segment import EVENTS, SCHEMA
from jetbus.testing import RunningDaemon, running_daemon
from support.docs import DOCS, run_page


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[RunningDaemon]:
    """A daemon that peers without a URL connect to, with its journal in the present directory."""
    monkeypatch.chdir(tmp_path)
    with running_daemon(journal=tmp_path / "journal") as running:
        monkeypatch.setenv("JET_URL", running.url)
        yield running


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize(
    "page", ["history.md", "history-reference.md", "howto/buffer.md", "howto/notebook.md", "howto/resample.md"]
)
def test_pages_run(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every Python block of a page runs, in order, and prints what its comments say."""
    run_page(page, capsys)


def first_cells(heading: str) -> list[str]:
    """Return the code in the first cells of the table with this first heading."""
    table = (DOCS / "history-reference.md").read_text(encoding="utf-8").split(f"\n| {heading} |")[1].split("\n\n")[0]
    return [
        word for cell in re.findall(r"^\|([^|]*)\|", table, re.MULTILINE) for word in re.findall(r"`([^`]+)`", cell)
    ]


def test_the_tables_are_complete() -> None:
    """Every column, every event and every density has a row, in their order."""
    assert first_cells("column") == SCHEMA.names
    assert first_cells("event") == list(EVENTS)
    assert first_cells("density") == ["every", "sample 1s", "skip"]


def section(page: str, heading: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]


def test_the_daemons_page_is_complete() -> None:
    """The page of the daemon says what each setting of the journal decides, and names its figures and metrics."""
    text = section("daemon.md", "The journal")
    cells = {
        word for cell in re.findall(r"^\|([^|]*)\|", text, re.MULTILINE) for word in re.findall(r"`([^`]+)`", cell)
    }
    settings = {row.name for row in SETTINGS if row.name.startswith("journal")}
    assert settings - cells == set()
    assert {number.name for number in JOURNAL_NUMBERS} - cells == {"failing"}
    assert [number.metric for number in JOURNAL_NUMBERS if f"`{number.metric}`" not in text] == []


def test_every_method_is_in_the_protocol(daemon: RunningDaemon) -> None:
    """The pages of the daemon and of the protocol have a row for each method below $jet/journal/."""
    with jetbus.Peer(daemon.url) as peer, peer.fetch(starts_with="$jet/journal/") as fetch:
        found = [fetch.next(10) for _ in range(5)]
    methods = {event.path for event in found if event.is_method}
    assert len(methods) == 4
    for text in (section("daemon.md", "The journal"), section("protocol.md", "Looking back")):
        assert {word for word in re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE) if "$jet" in word} == methods
