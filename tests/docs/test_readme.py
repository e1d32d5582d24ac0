"""README is in the order in which a visitor reads, and its commands and figures are true."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest

import jetbus
from jetbus.cli.main import jet
from jetbus.daemon.config import parser
from support.daemon import Daemon
from support.docs import DOCS, ROOT, without_blocks
from support.jet import Jet
from support.plant import url_of

README = without_blocks(ROOT / "README.md")
HEADINGS = (
    *("Three things you get nowhere else", "How fast it is", "Install", "Own a state", "Watch it, and set it"),
    *("See it in a browser", "Open it in Spark", "Instead of mosquitto, Telegraf, Influx and Grafana"),
    *("Where Jet comes from", "Why not MQTT", "When not to use it", "Systems", "Status", "Read on"),
)
INLINE = [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", README)]
ASKED = [line for line in INLINE if re.match(r"jet (?:at|diff|restore|watch|set|history) ", line)]
STARTED = [line for line in INLINE if re.match(r"jetd?(?: |$)", line) and line not in ASKED]


def test_the_order() -> None:
    """One line says what it is and for whom, then comes the picture of the past, then the questions of a visitor."""
    assert re.match(r"# jetbus\n\nA realtime bus .* for .*\.\n\n!\[.*\]\(docs/radar-past.png\)", README, re.DOTALL)
    assert tuple(re.findall(r"^## (.*)$", README, re.MULTILINE)) == HEADINGS


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Jet, str]]:
    """The command on a bus whose states have changed since an instant, and that instant."""
    folder = tmp_path_factory.mktemp("readme")
    with Daemon.start("--journal", str(folder / "log")) as daemon, jetbus.Peer(url_of(daemon)) as owner:
        states = [owner.add_state(path, 1, on_set=lambda _rpm: None) for path in ("plant/line4/speed", "pump/speed")]
        owner.info()
        then = datetime.now(UTC).isoformat()
        for state in states:
            state.change(2)
        owner.info()
        yield Jet(url_of(daemon), folder), then


@pytest.mark.parametrize("line", ASKED)
def test_commands_answer(bus: tuple[Jet, str], line: str) -> None:
    """A command of the text shows values of the bus or of its past."""
    command, then = bus
    done = command.shell(line.replace("06:45", then) + (" --for 200ms" if "watch" in line else ""))
    assert (done.code, done.err) == (0, ""), done
    assert "speed" in done.out or line.startswith("jet set "), done


@pytest.mark.parametrize("line", STARTED)
def test_programs_take_these_options(line: str, tmp_path: Path) -> None:
    """A program of the text, which other tests run, takes the options that it is shown with."""
    program, *words = shlex.split(line)
    (tmp_path / "alarms.toml").touch()
    words = [str(tmp_path / word) if word in ("DIR", "TABLES", "alarms.toml") else word for word in words]
    if program == "jetd":
        assert parser().parse_args(words)
        return
    command: click.Command = jet
    context = click.Context(jet)
    while isinstance(command, click.Group) and words:
        found = command.get_command(context, words.pop(0))
        assert found, line
        command = found
    assert command.make_context(line, words)


def test_the_figures_are_measured() -> None:
    """Rates and bytes stand in the table of measurements as they stand here."""
    text = README.partition("## How fast it is")[2].partition("\n## ")[0]
    tables = "\n".join(line for line in (DOCS / "speed.md").read_text("utf-8").splitlines() if line.startswith("|"))
    figures = re.findall(r"\d[\d.]* (?:k|M|bytes)\b", text)
    assert len(figures) == 5
    assert [figure for figure in figures if f"| {figure} |" not in tables] == []


def test_make_targets_exist() -> None:
    """Every make target of the text is one of the Makefile."""
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert {line.split()[1] for line in INLINE if line.startswith("make ")} <= set(targets)
