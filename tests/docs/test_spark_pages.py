"""The pages that use Spark run, in one Spark: it takes seconds to start."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import jetbus
from docs.test_blocks import follow
from jetbus.spark.schemas import TABLES
from jetbus.testing import RunningDaemon, running_daemon
from support.docs import DOCS, ROOT, blocks_of, run_block

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

PAGES = [ROOT / "README.md", DOCS / "spark.md"]
"""Pages whose blocks work on journals and daemons that the reader has; these are made for them."""
WAITED_S = 2


@pytest.fixture(autouse=True)
def _own_tables() -> Iterator[None]:
    """Tables of a page's stages are forgotten after it."""
    standard = dict(TABLES)
    yield
    TABLES.clear()
    TABLES.update(standard)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[RunningDaemon]:
    """A daemon with a journal in which something has happened to a pump."""
    with running_daemon(journal=tmp_path / "jet" / "journal") as running, jetbus.Peer(running.url) as owner:
        for path in ("pump/speed", "plant/pump/speed"):
            state = owner.add_state(path, 0, on_set=lambda rpm: min(rpm, 3000))
            for rpm in (1000, 2000):
                state.change(rpm)
        owner.call("$jet/journal/offsets")  # brings the files up to date
        yield running


def here(text: str, daemon: RunningDaemon, folder: Path) -> str:
    """A block with the reader's own folders and daemons replaced by ours, and an end to its waiting."""
    places = {
        "/var/lib/jet/tables": str(folder / "tables"),
        "/var/lib/jet": str(folder / "jet"),
        '"DIR"': f'"{folder / "jet" / "journal"}"',
        '"jetb://plant"': f'"{daemon.binary_url}"',
        '"jet://plant"': f'"{daemon.url}"',
        '"jet://localhost"': f'"{daemon.url}"',
        "pipeline.wait()": f"pipeline.wait({WAITED_S})",
    }
    for theirs, ours in places.items():
        text = text.replace(theirs, ours)
    return text


def test_the_tutorial(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Who does what the tutorial says, from top to bottom, sees what it shows."""
    follow(DOCS / "tutorial.md", tmp_path, capsys, monkeypatch)


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_run(page: Path, daemon: RunningDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every plain Python block of a page runs, in order, on a journal, tables and a daemon that are there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("builtins.input", lambda _prompt: "")
    blocks = list(blocks_of(page))
    for block in blocks:
        if block.language == "toml" and block.text.startswith("[alarm."):
            (tmp_path / "alarms.toml").write_text(block.text, encoding="utf-8")
    ours = [block for block in blocks if (block.language, block.word) == ("python", "")]
    assert ours
    names = {"__name__": "page"}
    for block in ours:
        with contextlib.redirect_stdout(None):
            run_block(here(block.text, daemon, tmp_path), names)


@pytest.mark.usefixtures("spark")
def test_a_stage(spark_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Who writes a stage as its page says sees what it shows."""
    follow(DOCS / "howto" / "stage.md", spark_folder, capsys, monkeypatch)
