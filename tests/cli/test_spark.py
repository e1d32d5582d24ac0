"""pipeline and sql: every example, and what they answer, in the one Spark of all tests."""

from __future__ import annotations

import http.client
import json
import re
import shlex
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import jetbus
from cli.test_examples import ALL
from jetbus.cli.command import Command
from jetbus.cli.main import run
from jetbus.journal.directory import Heartbeat, write_heartbeat
from jetbus.journal.instants import US_PER_S
from support.daemon import Daemon
from support.jet import Jet, Terminal
from support.plant import record
from support.spark.journals import numbers, write_events
from support.spark.machines import environment

SECONDS = 20
WITHIN_S = 800
"""Spark starts in seconds, but not on a busy machine."""
LAST_US = 1_772_323_200_005_000
"""The instant of the last of five ``numbers``."""
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
    "duck": "jet sql 'select max(num) top, min(ts) as first, date(min(ts)) as day from events' --tables tables "
    "--engine duckdb",
    "wrong": "jet sql 'select nothing from nowhere' --tables tables",
    "wrong duck": "jet sql 'select nothing from nowhere' --tables tables --engine duckdb",
    "only tables": "jet sql 'select 1' --journal log --engine duckdb",
    "condition": "jet pipeline backtest bad.toml --journal log",
    "hole": "jet pipeline backfill --journal log --tables t2 --since now",
    "both ways": "jet pipeline run --journal log --tables t2 --once --every 1s",
    "no daemon": "jet pipeline run --journal jet://127.0.0.1:1 --tables t3",
    "publish": "jet pipeline run --journal {url} --tables t4 --publish spark --stages stages.toml --once",
    "live": "jet pipeline status t4 --journal {url}",
    "stage": "jet sql 'select two from twice' --tables t4",
    "log": "jet sql 'select count(*) as n from log where path = \"n\"' --journal {url}",
    "hold": "jet pipeline backtest hold.toml --journal quiet",
    "drop": "jet pipeline run -j log --tables {here}/t5 --expectations e.toml --checkpoint c --merge-every 1 --once",
    "kept": "jet sql 'select max(num) as top, (select count(*) from quarantine) as kept_out from events' --tables t5",
    "more": "jet pipeline run --journal log --tables t5 --checkpoint c --expectations e.toml --once",
    "then": "jet sql 'select count(*) as n from events' --tables t5 --batch 0",
    "now": "jet sql 'select count(*) as n from events' --tables t5 --as-of now",
    "later": "jet sql 'select 1' --tables t5 --batch 99",
    "expected": "jet pipeline run --journal log --tables t6 --expectations bad_e.toml --once",
    "batches": "jet tables history t5",
}
HOLD = """[alarm.five]
rule = "**"
when = "num >= 5"
hold = "10s"
"""
EXPECTATIONS = """[expect.low]
table = "events"
condition = "num is null or num < 10"
action = "drop"
"""
STAGES = """[stage.twice]
file = "twice.py"
publish = true
"""
TWICE = """def twice(events):
    return events.where("path = 'n'").selectExpr("ts", "path", "2 * num as two")
"""


class Said(NamedTuple):
    """Output of a command."""

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
    (tmp_path / "hold.toml").write_text(HOLD)
    (tmp_path / "e.toml").write_text(EXPECTATIONS)
    (tmp_path / "bad_e.toml").write_text(EXPECTATIONS.replace("num <", "nmu <"))
    write_events(tmp_path / "quiet", numbers(5), bus="plant")
    write_heartbeat(tmp_path / "quiet", Heartbeat(5, LAST_US + 10 * US_PER_S))
    (tmp_path / "stages.toml").write_text(STAGES)
    (tmp_path / "twice.py").write_text(TWICE)
    daemon = start_daemon("--journal", str(tmp_path / "live"))
    url = f"jet://{daemon.listens['tcp']}"
    known = {"{url}": url, "{here}": tmp_path.as_uri()}
    lines = [*EXAMPLES, *QUESTIONS.values()]
    for name, text in known.items():
        lines = [line.replace(name, text) for line in lines]
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
    check_tables(asked, tmp_path)


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


def check_tables(asked: dict[str, Said], folder: Path) -> None:
    """Hold times end by the clock, rows that are not expected are kept out, and one can go back in time."""
    (raised,) = asked["hold"].records()
    assert (raised["alarm"], raised["ts"]) == ("five", "2026-03-01T00:00:10.005000Z")
    events = sum(batch["events"] for batch in asked["drop"].records())
    assert asked["kept"].records() == [{"top": 9, "kept_out": SECONDS - 9}]
    assert asked["more"].records() == []
    assert list((folder / "c").iterdir())
    assert not (folder / "t5" / "checkpoint").exists()
    (then,), (now,) = asked["then"].records(), asked["now"].records()
    assert then == now
    assert now["n"] in (3 + 9, 3 + 9 + 1)  # with a stop
    assert asked["later"].code == 5
    assert "has no batch 99; the newest is" in asked["later"].err
    batches = asked["batches"].records()
    assert batches[0]["batch"] == 0
    assert sum(batch["events"] for batch in batches) == events


def check_answers(said: list[Said]) -> None:
    """The commands answer questions about a journal in a folder."""
    events = SECONDS + 3
    assert sum(batch["events"] for batch in said[0].records()) in (events, events + 1)  # with a stop
    asked = dict(zip(QUESTIONS, said[len(EXAMPLES) :], strict=True))
    (values,) = asked["values"].records()
    assert values["top"] == SECONDS
    assert values["first"].endswith("Z")
    assert values["first"].startswith(values["day"])
    assert asked["duck"].records() == [values]
    assert asked["both"].records() == [{"same": True}]
    (raised,) = said[EXAMPLES.index("jet pipeline backtest alarms.toml --journal log")].records()
    assert (raised["alarm"], raised["path"]) == ("high", "plant/tank/level")
    assert [bus["behind"] for bus in asked["behind"].records()] == [0]
    mistakes = {
        "wrong": "nowhere",
        "wrong duck": "DuckDB refuses the query: Catalog Error: Table with name nowhere does not exist!",
        "only tables": "--engine duckdb reads --tables on this machine only",
        "condition": "nmu",
        "hole": "events between would be missing",
        "expected": "nmu",
        "both ways": "--once and --every exclude each other",
        "no daemon": "no daemon at",
    }
    for case, why in mistakes.items():
        assert asked[case].code == 2
        assert why in asked[case].err
        assert len(asked[case].err.splitlines()) == 1, asked[case]


@pytest.mark.spark
@pytest.mark.timeout(WITHIN_S + 60)
def test_a_pipeline_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal one sees that Spark starts, its UI, a bar with rates, a line per batch; Ctrl-C ends it cleanly."""
    monkeypatch.setattr("support.jet.DEADLINE_S", WITHIN_S)
    record(tmp_path / "log", SECONDS)
    jet = Jet("", tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        words = ("pipeline", "run", "--journal", "log", "--tables", "tables", "--every", "100ms", "--ui", port)
        with jet.terminal(*words, columns=120, SPARK_MASTER="local[2]", **environment()) as terminal:
            check_terminal(terminal, port)
            code, text = terminal.end()
    assert code == 130
    assert "Traceback" not in text
    assert "Error" not in text


def check_terminal(terminal: Terminal, taken: str) -> None:
    """Look at everything, Spark's UI at another port than the one that is taken included, then press Ctrl-C."""
    terminal.until("starting Spark")
    address = re.search(r"Spark's UI is at (http://127\.0\.0\.1:(\d+))", terminal.until("events"))
    assert address is not None
    assert address[2] != taken
    ui = http.client.HTTPConnection("127.0.0.1", int(address[2]), timeout=WITHIN_S)
    ui.request("GET", "/jobs/")
    assert ui.getresponse().status == 200
    ui.close()
    terminal.until(f"of {SECONDS + 3} events")
    terminal.until("events_per_s")
    terminal.until(" s behind")
    terminal.press("\x03")
