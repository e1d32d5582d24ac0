"""at, diff, history and journal: what was, from a journal on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.plant import record
from cli.running import Jet
from jetbus.journal.instants import US_PER_S, write_instant

SECONDS = 20


@pytest.fixture
def jet(tmp_path: Path) -> Jet:
    """The command without any bus."""
    return Jet("unix://@nobody-is-there", tmp_path)


@pytest.fixture
def end_us(jet: Jet) -> int:
    """A journal in the folder log; the instant of its last event."""
    return record(jet.folder / "log", SECONDS)


def told(jet: Jet, *words: str) -> list[dict[str, Any]]:
    done = jet(*words, "--journal", "log")
    assert done.code == 0, done
    assert done.err == ""
    return [json.loads(line) for line in done.out.splitlines()]


def test_at(jet: Jet, end_us: int) -> None:
    """The tree at an instant has the values of then; a rule picks from it."""
    then = write_instant(end_us - 5 * US_PER_S)
    assert {row["path"]: row["value"] for row in told(jet, "at", then)} == {
        "plant/pump/mode": "manual",
        "plant/tank/level": SECONDS - 5,
    }
    (mode,) = told(jet, "at", then, "plant/pump/*")
    assert (mode["kind"], mode["peer"]) == ("state", "plant#1")
    assert told(jet, "at", "-7d") == []


def test_diff_of_instants(jet: Jet, end_us: int) -> None:
    """Two instants differ in what has changed and come in between; with --check that is exit code 7."""
    then = write_instant(end_us - 5 * US_PER_S)
    assert told(jet, "diff", then, "now") == [
        {"path": "plant/tank/level", "what": "changed", "before": SECONDS - 5, "after": SECONDS}
    ]
    assert {row["what"] for row in told(jet, "diff", "-7d", "now")} == {"added"}
    assert jet("diff", then, "now", "--check", "-j", "log").code == 7
    assert jet("diff", "now", "now", "--check", "-j", "log").code == 0


def test_diff_of_files(jet: Jet, end_us: int) -> None:
    """Files of any JSON form are compared with each other and with an instant."""
    (jet.folder / "a.jsonl").write_text('{"path":"a","value":1}\n{"path":"m","kind":"method"}\n')
    (jet.folder / "b.json").write_text('[{"path":"a","value":true},{"path":"b","value":2}]')
    assert told(jet, "diff", "a.jsonl", "b.json") == [
        {"path": "a", "what": "changed", "before": 1, "after": True},
        {"path": "b", "what": "added", "after": 2},
    ]
    assert end_us
    assert {row["what"] for row in told(jet, "diff", "now", "a.jsonl")} == {"added", "removed"}
    (jet.folder / "c.json").write_text("oops")
    assert jet("diff", "a.jsonl", "c.json").code == 2


def test_history(jet: Jet, end_us: int) -> None:
    """The history of a path has its values in order, from --since to --until."""
    since, until = (write_instant(end_us - ago * US_PER_S) for ago in (5, 2))
    rows = told(jet, "history", "plant/tank/level", "--since", since, "--until", until)
    assert [row["value"] for row in rows] == [SECONDS - 5, SECONDS - 4, SECONDS - 3]
    assert rows[0]["at"] == since


def test_history_in_windows(jet: Jet, end_us: int) -> None:
    """With --every the numbers of each window become one by each aggregate."""
    assert end_us
    rows = told(jet, "history", "plant/tank/level", "--every", "5s", "--agg", "count,min,max,sum,first,last,mean")
    assert sum(row["count"] for row in rows) == SECONDS + 1
    assert sum(row["sum"] for row in rows) == sum(range(SECONDS + 1))
    assert all(row["min"] == row["first"] <= row["mean"] <= row["last"] == row["max"] for row in rows)


def test_plot(jet: Jet, end_us: int) -> None:
    """A plot rises with its values, between its lowest and its highest number."""
    assert end_us
    lines = jet("history", "plant/tank/level", "--plot", "-j", "log").out.splitlines()
    assert lines[0] == "plant/tank/level"
    assert lines[1].split()[0] == str(SECONDS)
    assert lines[8].split()[0] == "0"
    filled = [sum(char in "▁▂▃▄▅▆▇█" for char in line) for line in lines[1:9]]
    assert filled == sorted(filled)
    assert filled[0] < filled[-1]


def test_export(jet: Jet, end_us: int) -> None:
    """All events, or those of a rule and a time, come out in order."""
    assert end_us
    rows = [json.loads(line) for line in jet("journal", "export", "log").out.splitlines()]
    assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
    part = jet("journal", "export", "log", "--rule", "plant/pump/*", "--since", "-1h", "-o", "csv").out.splitlines()
    assert part[0] == "seq,at,event,kind,path,value,peer,detail"
    assert len(part) == 2


def test_looking_after(jet: Jet, end_us: int) -> None:
    """du counts, verify finds a whole journal whole and a damaged one not, compact and prune tell what they did."""
    assert end_us
    (size,) = (json.loads(line) for line in jet("journal", "du", "log").out.splitlines())
    assert size["events"] >= SECONDS + 3
    assert size["bytes"] > 0
    assert json.loads(jet("journal", "compact", "log").out)["segments"] >= 0
    assert json.loads(jet("journal", "prune", "log", "--keep-bytes", "10GB").out)["files"] == 0
    assert jet("journal", "verify", "log") == (0, "", "")
    (segment,) = (jet.folder / "log").glob("*.arrows")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.write_bytes(data)
    code, out, err = jet("journal", "verify", "log")
    assert (code, err) == (7, "")
    assert json.loads(out.splitlines()[0])["file"] == segment.name


PROBLEMS = {
    "no journal": (["at", "now"], 2, "which journal? Give its folder with --journal DIR, or in JET_JOURNAL"),
    "not a journal": (["at", "now", "-j", "."], 5, ""),
    "no folder": (["journal", "du", "nowhere"], 5, ""),
    "no instant": (["at", "yesterday", "-j", "log"], 2, "'yesterday' is no instant"),
    "nothing recorded": (["history", "no/path", "-j", "log"], 5, "nothing is recorded of no/path"),
    "no aggregate": (["history", "a", "--every", "1s", "--agg", "median", "-j", "log"], 2, "no aggregate median"),
    "no match": (["at", "now", "no/**", "-j", "log"], 5, "nothing on the bus matches no/**"),
    "keep what": (["journal", "prune", "log"], 2, "keep how much?"),
    "no bytes": (["journal", "prune", "log", "--keep-bytes", "many"], 2, "'many' is no number of bytes"),
}


@pytest.mark.parametrize("case", PROBLEMS)
def test_problems(jet: Jet, end_us: int, case: str) -> None:
    """What is wrong with a journal or an instant is told in one sentence."""
    assert end_us
    words, code, text = PROBLEMS[case]
    done = jet(*words)
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith(f"jet: {text}" if text and code != 2 else "jet: ")
    assert text in done.err
    assert len(done.err.splitlines()) == 1
