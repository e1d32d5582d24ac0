"""pipeline and sql: every example, and what they answer, in the one Spark of all tests."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import jetbus
from cli.plant import record
from cli.running import Jet
from cli.test_examples import ALL
from jetbus.cli.frame import Command
from jetbus.cli.main import run
from spark.machines import environment
from support.daemon import Daemon

SECONDS = 20
WITHIN_S = 800
"""Spark starts in seconds, but not on a busy machine."""
ALARMS = """[alarm.high]
rule = "plant/tank/level"
when = "num >= 15"
"""
EXAMPLES = [
    example.line
    for name, command in ALL.items()
    if isinstance(command, Command) and name.startswith(("jet pipeline", "jet sql"))
    for example in command.examples
]
QUESTIONS = {
    "values": "jet sql 'select max(num) as top, min(ts) as first, date(min(ts)) as day from events' --tables tables",
    "both": "jet sql 'select (select count(*) from log) = (select count(*) from events) as same' --tables t2 -j log",
    "behind": "jet pipeline status t2 --journal log",
    "wrong": "jet sql 'select nothing from nowhere' --tables tables",
    "condition": "jet pipeline backtest bad.toml --journal log",
    "hole": "jet pipeline backfill --journal log --tables t2 --since now",
    "both ways": "jet pipeline run --journal log --tables t2 --once --every 1s",
    "no daemon": "jet pipeline run --journal jet://127.0.0.1:1 --tables t3",
    "publish": "jet pipeline run --journal {url} --tables t4 --publish spark --stages stages.toml --once",
    "live": "jet pipeline status t4 --journal {url}",
    "stage": "jet sql 'select two from twice' --tables t4",
    "log": "jet sql 'select count(*) as n from log where path = \"n\"' --journal {url}",
}
STAGES = """[stage.twice]
file = "twice.py"
publish = true
"""
TWICE = """def twice(events):
    return events.where("path = 'n'").selectExpr("ts", "path", "2 * num as two")
"""


class Said(NamedTuple):
    """What a command has said."""

    code: int
    out: str
    err: str

    def records(self) -> list[dict[str, Any]]:
        assert (self.code, self.err) == (0, ""), self
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_the_spark_side(
    tmp_path: Path,
    start_daemon: Callable[..., Daemon],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tables are made, kept, looked at and asked; alarms are tried on what was; mistakes are told in one sentence."""
    monkeypatch.chdir(tmp_path)
    record(tmp_path / "log", SECONDS)
    (tmp_path / "alarms.toml").write_text(ALARMS)
    (tmp_path / "bad.toml").write_text(ALARMS.replace("num >=", "nmu >="))
    (tmp_path / "stages.toml").write_text(STAGES)
    (tmp_path / "twice.py").write_text(TWICE)
    daemon = start_daemon("--journal", str(tmp_path / "live"))
    url = f"jet://{daemon.listens['tcp']}"
    lines = [*EXAMPLES, *(question.replace("{url}", url) for question in QUESTIONS.values())]
    with jetbus.Peer(url) as peer:
        shown: list[tuple[str, Any]] = []
        peer.add_state("n", 21)
        peer.fetch("spark/**", lambda event: shown.append((event.path, event.value)), policy="every")
        said = [run_here(line, capsys) for line in lines]
        states = dict(reversed(shown))
    for line, one in zip(EXAMPLES, said, strict=False):
        assert (one.code, one.err) == (0, ""), (line, one)
    check_answers(said)
    asked = dict(zip(QUESTIONS, said[len(EXAMPLES) :], strict=True))
    check_live(asked, states)


def run_here(line: str, capsys: pytest.CaptureFixture[str]) -> Said:
    """Type a line in this process, which has a Spark."""
    capsys.readouterr()
    code = run(shlex.split(line)[1:])
    return Said(code, *capsys.readouterr())


def check_live(asked: dict[str, Said], states: dict[str, Any]) -> None:
    """A daemon is read, its bus shows what comes of it, and stages of one's own become tables."""
    assert sum(batch["events"] for batch in asked["publish"].records()) >= 2
    assert states["spark/twice/n"]["two"] == 42
    assert states["spark/pipeline/batch"] is not None
    (live,) = asked["live"].records()
    assert live["running"] is False
    assert live["behind"] >= 0
    assert asked["stage"].records() == [{"two": 42}]
    assert asked["log"].records() == [{"n": 1}]


def check_answers(said: list[Said]) -> None:
    """What the commands say of a journal in a folder."""
    events = SECONDS + 3
    assert sum(batch["events"] for batch in said[0].records()) in (events, events + 1)  # with a stop
    asked = dict(zip(QUESTIONS, said[len(EXAMPLES) :], strict=True))
    (values,) = asked["values"].records()
    assert values["top"] == SECONDS
    assert values["first"].endswith("Z")
    assert values["first"].startswith(values["day"])
    assert asked["both"].records() == [{"same": True}]
    (raised,) = said[EXAMPLES.index("jet pipeline backtest alarms.toml --journal log")].records()
    assert (raised["alarm"], raised["path"]) == ("high", "plant/tank/level")
    assert [bus["behind"] for bus in asked["behind"].records()] == [0]
    mistakes = {
        "wrong": "nowhere",
        "condition": "nmu",
        "hole": "events between would be missing",
        "both ways": "--once looks once",
        "no daemon": "no daemon at",
    }
    for case, why in mistakes.items():
        assert asked[case].code == 2
        assert why in asked[case].err
        assert len(asked[case].err.splitlines()) == 1, asked[case]


@pytest.mark.spark
@pytest.mark.timeout(WITHIN_S + 60)
def test_a_pipeline_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal one sees that Spark starts, then a bar with rates and a line per batch; Ctrl-C ends it cleanly."""
    monkeypatch.setattr("cli.running.DEADLINE_S", WITHIN_S)
    record(tmp_path / "log", SECONDS)
    jet = Jet("", tmp_path)
    words = ("pipeline", "run", "--journal", "log", "--tables", "tables", "--every", "100ms")
    with jet.terminal(*words, columns=120, SPARK_MASTER="local[2]", **environment()) as terminal:
        terminal.until("starting Spark")
        terminal.until(f"of {SECONDS + 3} events")
        terminal.until("events_per_s")
        terminal.until(" s behind")
        terminal.press("\x03")
        code, text = terminal.end()
    assert code == 130
    assert "Traceback" not in text
    assert "Error" not in text
