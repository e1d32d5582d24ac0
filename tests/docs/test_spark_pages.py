"""The pages that use Spark run, in one Spark: it takes seconds to start."""

from __future__ import annotations

import runpy
import shlex
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import jetbus
from docs.test_blocks import SHELL, follow
from jetbus.cli.main import run
from jetbus.testing import RunningDaemon, running_daemon
from support.docs import DOCS, ROOT, blocks_of, run_block
from support.plant import plant
from support.spark.journals import numbers, write_events

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

PAGES = [ROOT / "README.md", *(DOCS / name for name in ("spark.md", "spark-reference.md", "howto/alarm.md"))]
"""Pages whose blocks work on journals and daemons that the reader has; these are made for them."""
BUS = "plant"
MARCH = 20
"""Events that were recorded in March."""
ASKED_WITHIN_S = 300
SMALLER = {
    "--events 10000000": "--events 3000 --rounds 1",
    "--changes 100": "--changes 2 --first 2",
    "--journals 100 300 1000 --events 5000": "--journals 2 3 --events 40",
}
"""Figures of the page on sizing, and those that a test has time for."""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[RunningDaemon]:
    """A daemon with a journal, in which something happened in March, and with a plant that lives."""
    journal = tmp_path / "jet" / "journal"
    write_events(journal, numbers(MARCH, bus=BUS), bus=BUS)
    with (
        running_daemon(journal=journal, journal_bus=BUS) as running,
        jetbus.Peer(running.url) as owner,
        plant(running.url),
    ):
        for path in ("pump/speed", "motor/1"):
            state = owner.add_state(path, 0, on_set=lambda rpm: min(rpm, 3000))
            for rpm in (1000, 2000):
                state.change(rpm)
        owner.call("$jet/journal/offsets")  # brings the files up to date
        yield running


def here(text: str, daemon: RunningDaemon, folder: Path) -> str:
    """A block with the reader's own folders and daemons replaced by ours, and an end to what it waits for."""
    places = {
        "/var/lib/jet/tables": str(folder / "tables"),
        "/var/lib/jet": str(folder / "jet"),
        "/srv": str(folder),
        '"DIR"': f'"{folder / "jet" / "journal"}"',
        '"jetb://plant"': f'"{daemon.binary_url}"',
        '"jet://plant"': f'"{daemon.url}"',
        '"jet://localhost"': f'"{daemon.url}"',
        "pipeline.wait()": "others_ask()",
        "--every 10s": "--every 10s --batches 1",
    }
    for theirs, ours in places.items():
        text = text.replace(theirs, ours)
    return text


def test_the_tutorial(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps of the tutorial, done from top to bottom, show what it shows."""
    follow(DOCS / "tutorial.md", tmp_path, capsys, monkeypatch)


class Shell:
    """Types the lines of a page that are ours to type, each once, in this process, which has a Spark."""

    def __init__(self, page: Path, place: Callable[[str], str], capsys: pytest.CaptureFixture[str]) -> None:
        ours = SHELL[str(page.relative_to(ROOT))] == "docs/test_spark_pages.py"
        self.lines = [line for block in blocks_of(page) if block.is_shell and ours for line in block.commands]
        self.said: dict[str, str] = {}
        self._place = place
        self._capsys = capsys

    def type(self, lines: Iterable[str]) -> None:
        for line in lines:
            if line in self.lines and line not in self.said:
                self._capsys.readouterr()
                code = run(shlex.split(self._place(line))[1:])
                self.said[line], complaints = self._capsys.readouterr()
                assert (code, complaints) == (0, ""), line


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_run(
    page: Path,
    daemon: RunningDaemon,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every block of a page runs, in order, on a journal, tables and a daemon that are there.

    What others may ask a pipeline while it runs is asked while the page waits for it.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JET_URL", daemon.url)
    monkeypatch.setattr("builtins.input", lambda _prompt: "")
    shell = Shell(page, lambda text: here(text, daemon, tmp_path), capsys)

    def others_ask() -> None:
        with jetbus.Peer(daemon.url) as other:
            other.wait_for("spark/plant/pipeline/batch", timeout_s=ASKED_WITHIN_S)
        shell.type(line for line in shell.lines if line.startswith("jet call "))

    names = {"__name__": "page", "others_ask": others_ask}
    for block in blocks_of(page):
        if block.is_file:
            Path(block.word).write_text(block.text, encoding="utf-8")
        elif (block.language, block.word) == ("python", ""):
            run_block(here(block.text, daemon, tmp_path), names)
        elif block.is_shell:
            shell.type(block.commands)
    silent = [line for line in shell.lines if not shell.said[line]]
    assert [line for line in silent if not line.startswith("jet pipeline backtest ")] == []


def test_the_benches(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The benches of the page on sizing run, with smaller figures and in the Spark that is there, and tell theirs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "bench")
    monkeypatch.setattr(type(spark), "stop", lambda _self: None)
    lines = [line for block in blocks_of(DOCS / "sizing.md") if block.is_shell for line in block.commands]
    assert lines
    for line in lines:
        (figures,) = [figures for figures in SMALLER if figures in line]
        program, bench, *words = shlex.split(line.replace(figures, SMALLER[figures]))
        assert program == ".venv/bin/python"
        monkeypatch.setattr("sys.argv", [bench, *words])
        capsys.readouterr()
        runpy.run_path(str(ROOT / bench), run_name="__main__")
        assert len(capsys.readouterr().out.splitlines()) > 3, line


@pytest.mark.usefixtures("spark")
def test_a_stage(spark_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage written as its page says gives the output of the page."""
    follow(DOCS / "howto" / "stage.md", spark_folder, capsys, monkeypatch)
