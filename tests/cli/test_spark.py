"""pipeline and sql: every example, and what they answer, in one process, because Spark takes seconds to start."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cli.plant import record
from cli.running import Jet
from cli.test_examples import ALL
from jetbus.cli.frame import Command

SECONDS = 20
WITHIN_S = 800
"""All of it takes a minute, but many on a busy machine."""
ALARMS = """[alarm.high]
rule = "plant/tank/level"
when = "num >= 15"
"""
PROGRAM = """
import contextlib, io, json, shlex, sys
from jetbus.cli.main import run
for line in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(shlex.split(line)[1:])
    print(json.dumps([code, out.getvalue(), err.getvalue()]), flush=True)
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
}


class Said(NamedTuple):
    """What a command has said."""

    code: int
    out: str
    err: str

    def records(self) -> list[dict[str, Any]]:
        assert (self.code, self.err) == (0, ""), self
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.mark.spark
@pytest.mark.timeout(WITHIN_S + 60)
def test_the_spark_side(tmp_path: Path) -> None:
    """Tables are made, kept, looked at and asked; alarms are tried on what was; mistakes are told in one sentence."""
    record(tmp_path / "log", SECONDS)
    (tmp_path / "alarms.toml").write_text(ALARMS)
    (tmp_path / "bad.toml").write_text(ALARMS.replace("num >=", "nmu >="))
    lines = [*EXAMPLES, *QUESTIONS.values()]
    done = Jet("", tmp_path)._run(
        [sys.executable, "-c", PROGRAM], json.dumps(lines), {"SPARK_MASTER": "local[2]"}, WITHIN_S
    )
    assert done.code == 0, done
    said = [Said(*json.loads(line)) for line in done.out.splitlines()]
    assert len(said) == len(lines)
    for line, one in zip(EXAMPLES, said, strict=False):
        assert (one.code, one.err) == (0, ""), (line, one)
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
    for case, why in (("wrong", "nowhere"), ("condition", "nmu")):
        assert asked[case].code == 2
        assert why in asked[case].err
        assert len(asked[case].err.splitlines()) == 1, asked[case]
