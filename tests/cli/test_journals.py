"""at, diff, history and journal: what was, from a journal on disk and over the bus."""

from __future__ import annotations

import csv
import json
import random
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import jetbus
from jetbus.cli.journals import open_daemon, open_source
from jetbus.cli.target import Target
from jetbus.journal import NoJournal, Settings, Writer
from jetbus.journal.instants import US_PER_S, read_instant, wall_clock_us, write_instant
from jetbus.peer.simple import SimplePeer
from support.daemon import Daemon
from support.jet import Done, Jet
from support.plant import record, url_of
from support.spark.reference import CUTS, Event, rollups_of

SECONDS = 20


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Jet, int]:
    """The command without any bus, in a folder with the journal log, which is only read, and the end of that."""
    folder = tmp_path_factory.mktemp("past")
    return Jet("unix://@nobody-is-there", folder), record(folder / "log", SECONDS)


@pytest.fixture
def past(recorded: tuple[Jet, int]) -> Jet:
    return recorded[0]


@pytest.fixture
def end_us(recorded: tuple[Jet, int]) -> int:
    return recorded[1]


def printed(past: Jet, *words: str) -> list[dict[str, Any]]:
    done = past(*words, "--journal", "log")
    assert done.code == 0, done
    assert done.err == ""
    return [json.loads(line) for line in done.out.splitlines()]


def test_at(past: Jet, end_us: int) -> None:
    """The tree at an instant has the values of then; a rule picks from it."""
    then = write_instant(end_us - 5 * US_PER_S)
    assert {row["path"]: row["value"] for row in printed(past, "at", then)} == {
        "plant/pump/mode": "manual",
        "plant/tank/level": SECONDS - 5,
    }
    (mode,) = printed(past, "at", then, "plant/pump/*")
    assert (mode["kind"], mode["peer"]) == ("state", "plant#1")
    both = printed(past, "at", then, "plant/pump/*", "plant/tank/*", "plant/**")
    assert [row["path"] for row in both] == ["plant/pump/mode", "plant/tank/level"], "each path once"


def test_diff_of_instants(past: Jet, end_us: int) -> None:
    """Two instants differ in what has changed and come in between; with --check that is exit code 7."""
    then = write_instant(end_us - 5 * US_PER_S)
    assert printed(past, "diff", then, "now") == [
        {"path": "plant/tank/level", "what": "changed", "before": SECONDS - 5, "after": SECONDS}
    ]
    assert printed(past, "diff", then, "now", "plant/pump/*") == []
    (level,) = printed(past, "diff", then, "now", "plant/pump/*", "plant/tank/*")
    assert level["path"] == "plant/tank/level"
    assert past("diff", then, "now", "--check", "-j", "log").code == 7
    assert past("diff", "now", "now", "--check", "-j", "log").code == 0


def test_diff_of_files(past: Jet) -> None:
    """Files of any JSON form are compared with each other and with an instant."""
    (past.folder / "a.jsonl").write_text('{"path":"a","value":1}\n{"path":"m","kind":"method"}\n')
    (past.folder / "b.json").write_text('[{"path":"a","value":true},{"path":"b","value":2}]')
    assert printed(past, "diff", "a.jsonl", "b.json") == [
        {"path": "a", "what": "changed", "before": 1, "after": True},
        {"path": "b", "what": "added", "after": 2},
    ]
    assert {row["what"] for row in printed(past, "diff", "now", "a.jsonl")} == {"added", "removed"}
    (past.folder / "c.json").write_text("oops")
    assert past("diff", "a.jsonl", "c.json").code == 2


def test_history(past: Jet, end_us: int) -> None:
    """The history of a path has its values in order, from --since to --until."""
    since, until = (write_instant(end_us - ago * US_PER_S) for ago in (5, 2))
    rows = printed(past, "history", "plant/tank/level", "--since", since, "--until", until)
    assert [row["value"] for row in rows] == [SECONDS - 5, SECONDS - 4, SECONDS - 3]
    assert rows[0]["ts"] == since


def test_history_of_a_rule(past: Jet) -> None:
    """A rule gives the history of every path that it matches; a test of values leaves out the values that fail it."""
    assert {row["path"] for row in printed(past, "history", "plant/*/*")} == {"plant/pump/mode", "plant/tank/level"}
    rows = printed(past, "history", "plant/** value>=18", "plant/tank/* value<1")
    assert [row["value"] for row in rows] == [0, *range(18, SECONDS + 1)]
    (row,) = printed(past, "history", "plant/** value>=18", "--every", "1000d", "--agg", "count,min,mean")
    assert (row["count"], row["min"]) == (SECONDS - 17, 18)
    assert row["mean"] == pytest.approx((18 + 19) / 2), "the last value was in force for no time"


def test_history_of_a_rule_over_the_bus(jet: Jet, owner: jetbus.Peer, plant_journal: Path) -> None:
    """Over the bus a rule gives what it gives in the folder."""
    states = [owner.add_state(f"test/rules/{name}", 1) for name in "ab"]
    for number in range(5):
        for state in states:
            state.change(number)
    owner.info()
    for words in (["test/*/*"], ["test/rules/** value>2"], ["test/rules/b value<1", "test/rules/a"]):
        asked = jet("history", *words)
        assert asked.code == 0, asked
        assert asked.out == jet("history", *words, "--journal", str(plant_journal)).out
    for state in states:
        state.remove()


def test_days_and_clock_times_are_local(past: Jet) -> None:
    """A time of the clock and a day mean the time zone of the person who types them."""
    then = datetime.now(ZoneInfo("Asia/Kolkata")) - timedelta(hours=1)
    line = f"jet history 'plant/**' --until {then:%H:%M} -j log; true"  # in a process of its own, for the time zone
    done = past.shell(line, TZ="Asia/Kolkata")
    assert f"{then.astimezone(UTC):%Y-%m-%dT%H:%M}:00Z is before the journal begins" in done.err
    assert printed(past, "history", "plant/tank/level", "--since", "yesterday")


def test_history_in_windows(past: Jet) -> None:
    """With --every the numbers of each window become one by each aggregate."""
    rows = printed(past, "history", "plant/tank/level", "--every", "5s", "--agg", "count,min,max,sum,first,last,avg")
    assert sum(row["count"] for row in rows) == SECONDS + 1
    assert sum(row["sum"] for row in rows) == sum(range(SECONDS + 1))
    assert all(row["min"] == row["first"] <= row["avg"] <= row["last"] == row["max"] for row in rows)


def test_percentiles_of_a_window(past: Jet) -> None:
    """median, p90 and p99 of the values that arrived are interpolated between the nearest two."""
    (row,) = printed(past, "history", "plant/tank/level", "--every", "1000d", "--agg", "count,median,p90,p99")
    assert row["count"] == SECONDS + 1
    assert (row["median"], row["p90"], row["p99"]) == pytest.approx((0.50 * SECONDS, 0.90 * SECONDS, 0.99 * SECONDS))


def written(folder: Path, log: list[Event]) -> None:
    """A journal of such events."""
    with Writer(folder, now_us=lambda: log[0].ts) as writer:
        for event in log:
            writer.now_us = event.ts
            printed = (None if text is None else text.encode() for text in (event.value, event.detail))
            value, detail = printed
            quality = None if event.quality is None else json.dumps(event.quality).encode()
            writer.append(event.event, event.kind, event.path, value, event.peer, detail, quality=quality)
        writer.commit()


def eventful(chance: random.Random, size: int) -> list[Event]:
    """A log of one bus, rich in restarts, gaps, equal times and values that are no numbers."""
    log, ts = [], 1_772_323_190_000_000
    for seq in range(1, size + 1):
        before, ts = ts, ts + chance.choice((0, 0, 1, 250_000, 999_999, 1_000_000, 3_500_000, 61_000_000))
        event = chance.choice(("change",) * 20 + ("add", "remove", "stop", "start", "gap"))
        if event in CUTS:
            since = write_instant((before + ts) // 2)
            detail = json.dumps({"since": since}) if event == "gap" and chance.random() < 0.5 else None
            log.append(Event("log", seq, ts, event, detail=detail))
        else:
            value = None if event == "remove" else json.dumps(chance.choice((0, 1, 2.5, -7, True, False, None, "text")))
            quality = chance.choice((None, None, None, "good", "uncertain", "bad"))
            log.append(Event("log", seq, ts, event, "state", chance.choice(("a", "b c")), value, quality=quality))
    return log


@pytest.mark.parametrize("seed", range(3))
def test_windows_are_those_of_the_rollups(seed: int, tmp_path: Path) -> None:
    """With --every the aggregates are those of the pipeline's rollups, the mean being the one weighted by time."""
    log = eventful(random.Random(seed), 300)
    written(tmp_path / "log", log)
    jet = Jet("unix://@nobody-is-there", tmp_path)
    for every in ("1s", "1m", "1h"):
        wanted = {(row["path"], row["window_start"]): row for row in rollups_of(log, every)}
        names = "count,mean,avg,min,max,first,last"
        found = printed(jet, "history", "a", '"b c"', "--every", every, "--agg", names)
        rows = {(row["path"], read_instant(row["ts"])): row for row in found}
        assert wanted.keys() <= rows.keys()
        assert len(rows) - len(wanted) <= 2, "more than the last window of each path, which is not complete"
        for key, expected in wanted.items():
            mean, avg = rows[key].pop("mean"), rows[key].pop("avg")
            assert mean == (None if expected["time_mean"] is None else pytest.approx(expected["time_mean"]))
            assert avg == pytest.approx(expected["mean"])
            assert {name: rows[key][name] for name in ("count", "min", "max", "first", "last")} == {
                name: expected[name] for name in ("count", "min", "max", "first", "last")
            }


def test_a_mean_begins_with_what_was_in_force(tmp_path: Path) -> None:
    """From --since on, the value that was there before weighs until the next one comes; avg knows nothing of it."""
    begin = 1_772_323_200_000_000
    log = [Event("log", 1, begin, "start"), Event("log", 2, begin, "add", "state", "a", "10")]
    log += [Event("log", 3, begin + 4 * US_PER_S, "change", "state", "a", "20")]
    written(tmp_path / "log", [*log, Event("log", 4, begin + 9 * US_PER_S, "peer")])
    since, until = (write_instant(begin + seconds * US_PER_S) for seconds in (3, 7))
    options = ("--since", since, "--until", until, "--every", "1h", "--agg", "mean,avg")
    (row,) = printed(Jet("unix://@nobody-is-there", tmp_path), "history", "a", *options)
    assert (row["mean"], row["avg"]) == (pytest.approx((10 * 1 + 20 * 3) / 4), 20)


def test_a_mean_over_the_bus(jet: Jet, owner: jetbus.Peer, plant_journal: Path) -> None:
    """A mean is the same over the bus as from the folder of the daemon's journal."""
    path = "test/mean"
    state = owner.add_state(path, 1)
    began = json.loads(jet("at", "now", path).out)["ts"]
    for number in range(5):
        state.change(number)
    owner.info()
    then = write_instant(wall_clock_us())
    options = ("history", path, "--since", began, "--until", then, "--every", "10s", "--agg", "mean,count")
    asked = jet(*options)
    assert asked.code == 0, asked
    assert asked.out == jet(*options, "--journal", str(plant_journal)).out
    state.remove()


def test_plot(past: Jet) -> None:
    """A plot rises with its values, between its lowest and its highest number."""
    lines = past("history", "plant/tank/level", "--plot", "-j", "log").out.splitlines()
    assert lines[0] == "plant/tank/level"
    assert lines[1].split()[0] == str(SECONDS)
    assert lines[8].split()[0] == "0"
    filled = [sum(char in "▁▂▃▄▅▆▇█" for char in line) for line in lines[1:9]]
    assert filled == sorted(filled)
    assert filled[0] < filled[-1]
    counted = ["--every", "1s", "--agg", "count", "-j", "log"]
    lines = past("history", "plant/tank/level", "--plot", *counted).out.splitlines()
    assert lines[1].split()[0] == "1"


def test_export(past: Jet) -> None:
    """All events, or those of a rule and a time, come out in order."""
    rows = [json.loads(line) for line in past("journal", "export", "log").out.splitlines()]
    assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
    part = past("journal", "export", "log", "--rule", "plant/pump/*", "--since", "-1h", "-o", "csv").out.splitlines()
    assert part[0] == "ts,path,event,value,unit,quality,peer,source_ts"
    assert len(part) == 2


@pytest.fixture
def described(tmp_path: Path) -> Jet:
    """The command in a folder with a journal of states that say what they mean."""
    minute_us = 60_000_000
    with Writer(tmp_path / "log", Settings(fsync="never", bus="plant"), now_us=lambda: 0) as writer:
        writer.now_us = minute_us
        writer.append("add", "state", "pump/speed", b"0", "plc#1", b'{"schema":{"unit":"rpm","maximum":3000}}')
        writer.append("add", "state", "pump/name", b'"P1"', "plc#1")
        writer.append_described("pump/speed", b"800", "plc#1", 7, b'{"level":"bad","reason":"cable"}', False)
        writer.now_us = 2 * minute_us
        writer.append("describe", "state", "pump/speed", None, "plc#1", b'{"schema":{"unit":"Hz"}}')
        writer.append_described("pump/speed", b"13", "plc#1", None, b'"good"', False)
    return Jet("unix://@nobody-is-there", tmp_path)


def test_export_has_units_and_qualities(described: Jet, tmp_path: Path) -> None:
    """Every format says which unit and quality a value had; columnar files have the schemas of the paths, too."""
    columns = ("--columns", "path,value,quality,unit")
    rows = [json.loads(line) for line in described("journal", "export", "log", *columns).out.splitlines()]
    assert rows == [
        {"path": "pump/speed", "value": 0, "unit": "rpm"},
        {"path": "pump/name", "value": "P1"},
        {"path": "pump/speed", "value": 800, "quality": {"level": "bad", "reason": "cable"}, "unit": "rpm"},
        {"path": "pump/speed", "unit": "Hz"},
        {"path": "pump/speed", "value": 13, "quality": "good", "unit": "Hz"},
    ]
    later = described("journal", "export", "log", *columns, "--since", "1970-01-01T00:02:00Z", "-o", "csv").out
    assert later.splitlines()[-1] == "pump/speed,13,good,Hz"
    target = tmp_path / "out.parquet"
    assert described("journal", "export", "log", "--rule", "pump/speed", "--to", str(target)).code == 0
    metadata = pq.read_schema(target).field("value").metadata
    assert json.loads(metadata[b"schemas"]) == {"pump/speed": {"unit": "Hz"}}
    table = pq.read_table(target)
    assert table["unit"].to_pylist() == ["rpm", "rpm", "Hz", "Hz"]
    until = ("--until", "1970-01-01T00:02:00Z")
    assert described("journal", "export", "log", "--rule", "pump/speed", *until, "--to", str(target)).code == 0
    metadata = pq.read_schema(target).field("value").metadata
    assert (metadata[b"unit"], json.loads(metadata[b"schemas"])["pump/speed"]["maximum"]) == (b"rpm", 3000)


def test_at_and_history_have_units_and_qualities(described: Jet) -> None:
    """A value has the unit of then, its quality and its source time if its owner says so; other values have none."""

    def brief(*words: str) -> list[dict[str, Any]]:
        return [{name: row[name] for name in row if name not in ("ts", "peer")} for row in printed(described, *words)]

    bad = {"level": "bad", "reason": "cable"}
    speed = {"path": "pump/speed", "event": "change", "value": 800, "unit": "rpm", "quality": bad}
    assert brief("history", "pump/*") == [
        {"path": "pump/speed", "event": "add", "value": 0, "unit": "rpm"},
        {**speed, "source_ts": "1970-01-01T00:00:00.000007Z"},
        {"path": "pump/speed", "event": "change", "value": 13, "unit": "Hz", "quality": "good"},
        {"path": "pump/name", "event": "add", "value": "P1"},
    ]
    # The range begins behind the event that has the unit.
    (row,) = brief("history", "pump/speed", "--since", "1970-01-01T00:02:00Z")
    assert row["unit"] == "Hz"
    name, speed = sorted(brief("at", "now"), key=lambda row: str(row["path"]))
    assert name == {"path": "pump/name", "kind": "state", "value": "P1"}
    assert speed == {"path": "pump/speed", "kind": "state", "value": 13, "unit": "Hz", "quality": "good"}
    (then,) = brief("at", "1970-01-01T00:01:00Z", "pump/speed")
    assert (then["unit"], then["quality"], then["source_ts"]) == ("rpm", bad, "1970-01-01T00:00:00.000007Z")


def test_tables_have_units_and_qualities_where_there_are_any(described: Jet) -> None:
    """Tables and CSV have a column for unit, quality and source time only if a row has one."""
    table = described("history", "pump/*", "-j", "log", "-o", "table").out.splitlines()
    assert table[0].split() == ["ts", "path", "event", "value", "unit", "quality", "peer", "source_ts"]
    assert "800    rpm   bad: cable  plc#1  1970-01-01 " in table[2]
    assert described("history", "pump/name", "-j", "log", "-o", "csv").out.startswith(
        "ts,path,event,value,unit,quality,peer,"
    )
    csv_lines = described("at", "now", "-j", "log", "-o", "csv").out.splitlines()
    assert csv_lines[0] == "path,kind,value,unit,quality,peer,ts"
    assert csv_lines[1] == "pump/speed,state,13,Hz,good,plc#1,1970-01-01T00:02:00.000000Z"


def test_windows_and_plots_have_units(described: Jet) -> None:
    """A window has the unit of its values, none if that changed in it; a plot has the unit in its title."""
    rows = printed(described, "history", "pump/speed", "--every", "1m", "--agg", "count,max")
    assert [(row["max"], row["unit"]) for row in rows] == [(0, "rpm"), (13, "Hz")]
    assert rows[0]["count"] == 1, "a value of bad quality does not count"
    (row,) = printed(described, "history", "pump/speed", "--every", "1h", "--agg", "max")
    assert "unit" not in row
    until = ("--until", "1970-01-01T00:02:00Z")
    assert described("history", "pump/speed", "-j", "log", "--plot", *until).out.startswith("pump/speed (rpm)\n")
    assert described("history", "pump/speed", "-j", "log", "--plot").out.startswith("pump/speed\n")


def test_units_over_the_bus(jet: Jet, owner: jetbus.Peer, plant_journal: Path) -> None:
    """Units and qualities are the same over the bus as from the folder, for a path and for a rule."""
    state = owner.add_state("test/units/speed", 1, unit="rpm")
    owner.add_state("test/units/name", "P1")
    state.change(2, quality="uncertain")
    owner.info()
    began = json.loads(jet("at", "now", "test/units/speed").out)["ts"]
    state.change(3)
    owner.info()
    for words in (
        ["history", "test/units/*"],
        ["history", "test/units/*", "--since", began],
        ["history", "test/units/speed", "--since", began],
        ["at", "now", "test/units/**"],
    ):
        asked = jet(*words)
        assert asked.code == 0, asked
        assert {json.loads(line).get("unit") for line in asked.out.splitlines()} >= {"rpm"}
        assert asked.out == jet(*words, "--journal", str(plant_journal)).out


READERS: dict[str, Callable[[Path], list[dict[str, Any]]]] = {
    ".parquet": lambda file: pq.read_table(file).to_pylist(),
    ".arrow": lambda file: pa.ipc.open_file(file).read_all().to_pylist(),
    ".arrows": lambda file: pa.ipc.open_stream(file).read_all().to_pylist(),
    ".csv": lambda file: list(csv.DictReader(file.open())),
    ".jsonl": lambda file: [json.loads(line) for line in file.read_text().splitlines()],
    ".json": lambda file: json.loads(file.read_text()),
}


@pytest.mark.parametrize("suffix", READERS)
def test_export_to_a_file(past: Jet, tmp_path: Path, suffix: str) -> None:
    """A file of each kind has the columns that were asked for, of what matches a rule and a time, and nothing else."""
    target = tmp_path / f"out{suffix}"
    asked = ("--columns", "seq,value", "--rule", "plant/tank/*", "--since", "-1h")
    done = past("journal", "export", "log", "--to", str(target), *asked)
    assert (done.code, done.err) == (0, "")
    rows = READERS[suffix](target)
    assert [json.loads(str(row["value"])) for row in rows] == list(range(SECONDS + 1))
    assert set(rows[0]) == {"seq", "value"}
    printed = json.loads(done.out)
    assert (printed["file"], printed["events"], printed["bytes"]) == (
        str(target),
        SECONDS + 1,
        target.stat().st_size,
    )
    assert list(tmp_path.glob(".*")) == []


def test_export_of_several(past: Jet, tmp_path: Path) -> None:
    """Several journals come out one after the other, with a column that names the bus."""
    for name in ("a", "b"):
        record(tmp_path / "logs" / name, 3)
    done = past("journal", "export", str(tmp_path / "logs" / "*"), "--to", str(tmp_path / "all.parquet"))
    assert done.code == 0, done
    table = pq.read_table(tmp_path / "all.parquet")
    assert table.column_names[0] == "bus"
    assert len(set(table["bus"].to_pylist())) == 2
    assert table["seq"].to_pylist() == [*range(1, 7), *range(1, 7)]
    assert table.column_names[-4:] == ["num", "text", "flag", "json"]
    typed = [row["num"] if row["text"] is None else row["text"] for row in table.to_pylist()]
    assert typed == [None if text is None else json.loads(text) for text in table["value"].to_pylist()]


def test_export_that_cannot_be_written(past: Jet, tmp_path: Path) -> None:
    """A failed export names the obstacle, keeps the file that was there, and leaves no half file."""
    done = past("journal", "export", "log", "--to", str(tmp_path / "none" / "out.csv"))
    assert (done.code, done.out) == (2, "")
    assert "out.csv (No such file or directory)" in done.err
    (tmp_path / "old.csv").write_text("old")
    assert past("journal", "export", "log", "--to", str(tmp_path / "old.csv"), "--since", "tomorrow").code == 2
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("old.csv", "old")]


def test_columns_that_are_none(past: Jet) -> None:
    """A column that does not exist is refused, with the one that was meant."""
    done = past("journal", "export", "log", "--columns", "seq,pth")
    assert (done.code, done.err) == (2, "jet: there is no column pth; did you mean path?\n")


def test_looking_after(past: Jet) -> None:
    """du counts, verify finds a whole journal whole and a damaged one not, compact and prune tell what they did."""
    (size,) = (json.loads(line) for line in past("journal", "du", "log").out.splitlines())
    assert size["events"] >= SECONDS + 3
    assert size["bytes"] > 0
    assert json.loads(past("journal", "compact", "log").out)["segments"] >= 0
    assert json.loads(past("journal", "prune", "log", "--keep-bytes", "10GB").out)["files"] == 0
    assert past("journal", "verify", "log") == (0, "", "")
    shutil.copytree(past.folder / "log", past.folder / "damaged")
    (segment,) = (past.folder / "damaged").glob("*.arrows")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.write_bytes(data)
    code, out, err = past("journal", "verify", "damaged")
    assert (code, err) == (7, "")
    assert json.loads(out.splitlines()[0])["file"] == segment.name


PROBLEMS = {
    "which journal": (["journal", "du"], 2, "no journal given; name its folder on the command line or in JET_JOURNAL"),
    "no daemon": (["at", "now"], 3, "no daemon at unix://@nobody-is-there"),
    "not a journal": (["at", "now", "-j", "."], 5, ""),
    "no folder": (["journal", "du", "nowhere"], 5, ""),
    "no instant": (["at", "tomorrow", "-j", "log"], 2, "'tomorrow' is not an instant"),
    "no time of the clock": (["at", "25:00", "-j", "log"], 2, "'25:00' is not an instant: hour must be in 0..23"),
    "nothing recorded": (
        ["history", "no/path", "-j", "log"],
        5,
        "nothing in the journal matches no/path in that time; `jet at now` lists what there is",
    ),
    "no rule matches": (["history", "no/**", "-j", "log"], 5, "nothing in the journal matches no/** in that time"),
    "no value matches": (
        ["history", "plant/** value>99", "-j", "log"],
        5,
        "no value in the journal matches plant/** value>99 in that time; leave out the test of values",
    ),
    "no value matches in windows": (
        ["history", "plant/** value>99", "--every", "1s", "-j", "log"],
        5,
        "no value in the journal matches plant/** value>99 in that time",
    ),
    "no change": (
        ["history", "plant/pump/*", "--since", "now", "-j", "log"],
        5,
        "plant/pump/* did not change in that time; `jet at now` has the values",
    ),
    "before the journal": (
        ["at", "2001-01-01", "-j", "log"],
        5,
        "2001-01-01 is before the journal begins, which is at 2",
    ),
    "a difference to before": (["diff", "-7d", "now", "-j", "log"], 5, "-7d is before the journal begins"),
    "a history of before": (["history", "a", "--until", "-7d", "-j", "log"], 5, "-7d is before the journal begins"),
    "back to before": (["restore", "**", "--to", "-7d", "-j", "log"], 5, "-7d is before the journal begins"),
    "reversed difference": (
        ["diff", "now", "-1s", "-j", "log"],
        2,
        "the time range is reversed: now is later than -1s; swap them",
    ),
    "no difference to match": (
        ["diff", "-5s", "now", "no/**", "-j", "log"],
        5,
        "nothing matches no/** on either side; `jet diff -5s now` compares everything",
    ),
    "nothing to go back to": (
        ["restore", "no/**", "--to", "-1s", "-j", "log"],
        5,
        "nothing matched no/** at that time",
    ),
    "near miss": (
        ["history", "plant/tank/levle", "-j", "log"],
        5,
        "nothing in the journal matches plant/tank/levle in that time; did you mean plant/tank/level?",
    ),
    "no aggregate": (["history", "a", "--every", "1s", "--agg", "mode", "-j", "log"], 2, "no aggregate mode"),
    "reversed range": (
        ["history", "plant/tank/level", "--since", "-1m", "--until", "-1h", "-j", "log"],
        2,
        "the time range is reversed: --since -1m is later than --until -1h; swap them",
    ),
    "reversed export": (
        ["journal", "export", "log", "--since", "now", "--until", "-1h"],
        2,
        "the time range is reversed: --since now is later than --until -1h; swap them",
    ),
    "no match": (
        ["at", "now", "no/**", "-j", "log"],
        5,
        "nothing matched no/** at that time; `jet at now` lists everything",
    ),
    "keep what": (["journal", "prune", "log"], 2, "no limit given"),
    "no bytes": (["journal", "prune", "log", "--keep-bytes", "many"], 2, "'many' is not a number of bytes"),
}


@pytest.mark.parametrize("case", PROBLEMS)
def test_problems(past: Jet, case: str) -> None:
    """Problems with a journal or an instant are reported in one sentence."""
    words, code, text = PROBLEMS[case]
    done = past(*words)
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith(f"jet: {text}" if text and code != 2 else "jet: ")
    assert text in done.err
    assert len(done.err.splitlines()) == 1


def between() -> str:
    """An instant after all that was answered and before all that is not yet asked."""
    now_us = wall_clock_us()
    while wall_clock_us() < now_us + 2:
        pass
    return write_instant(now_us + 1)


def lines(done: Done) -> list[dict[str, Any]]:
    assert (done.code, done.err) == (0, "")
    return [json.loads(line) for line in done.out.splitlines()]


def test_over_the_bus(jet: Jet, owner: jetbus.Peer) -> None:
    """The daemon's journal is read unless JET_JOURNAL names another; naming a bus overrides JET_JOURNAL."""
    state = owner.add_state("past/a", 1)
    then = between()
    state.change(2)
    owner.add_method("past/b", print)
    (row,) = lines(jet("at", then, "past/*"))
    assert (row["path"], row["kind"], row["value"]) == ("past/a", "state", 1)
    assert [row["path"] for row in lines(jet("at", "now", "past/*"))] == ["past/a", "past/b"]
    assert lines(jet("diff", then, "now", "past/*")) == [
        {"path": "past/a", "what": "changed", "before": 1, "after": 2},
    ]
    assert [row["value"] for row in lines(jet("history", "past/a", "--since", "-1h"))] == [1, 2]
    url = jet.environment["JET_URL"]
    assert jet("history", "past/a", "-o", "value", "--url", url, JET_JOURNAL="nowhere").out == "1\n2\n"
    assert jet("history", "past/a", JET_JOURNAL="nowhere").code == 5


@pytest.mark.parametrize("transport", ["tcp", "binary"])
def test_page_by_page(plant_daemon: Daemon, owner: jetbus.Peer, transport: str) -> None:
    """A result of several pages is complete in either protocol, and relative instants are the same for all."""
    path = f"pages/{transport}/state"
    states = [owner.add_state(f"{path}{number}", number) for number in range(5)]
    for number in range(7):
        states[0].change(number)
    owner.get_all(path)
    scheme = {"tcp": "jet", "binary": "jetb"}[transport]
    with Target(f"{scheme}://{plant_daemon.listens[transport]}").connect() as peer:
        for page_rows in (2, None):
            pages = open_daemon(peer, page_rows)
            assert [row["path"] for row in pages.as_of("now", [f"{path}*"])] == [
                f"{path}{number}" for number in range(5)
            ]
            assert [row["value"] for row in pages.history(f"{path}0", pages.pin("-1h"))] == [*"00123456"]
            assert pages.as_of("-1d") == []


class FarTarget(Target):
    """Address of a daemon to which the way is long."""

    began_us = 0

    def connect(self, name: str = "jet") -> SimplePeer:
        FarTarget.began_us = wall_clock_us()
        while wall_clock_us() < FarTarget.began_us + US_PER_S // 2:
            pass
        return super().connect(name)


def test_relative_instants_mean_the_moment_of_the_command(plant_daemon: Daemon, owner: jetbus.Peer) -> None:
    """``--since -10s`` is ten seconds before the command began, however long it takes to connect, for every rule."""
    owner.add_state("past/far", 1)
    target = FarTarget(url_of(plant_daemon))
    with click.Context(click.Command("history")), open_source(target, None, "-10s") as source:
        windows = [source.pin("-10s")[None] for _ in range(3)]
        assert all((one.since_us or 0) <= FarTarget.began_us - 10 * US_PER_S for one in windows)
        assert all((one.since_us or 0) > FarTarget.began_us - 15 * US_PER_S for one in windows)


def test_only_dropped_events_have_no_time() -> None:
    """A daemon without a journal is reported, not mistaken for one that has dropped the event."""
    with Daemon.start() as daemon, Target(url_of(daemon)).connect() as peer:
        with pytest.raises(NoJournal, match="keeps no journal"):
            open_daemon(peer).find_time_us(None, seq=1)
        daemon.check()


def test_who_may_look_back(guarded: tuple[Jet, jetbus.Peer]) -> None:
    """Whoever may not look back is told so, with exit code 4."""
    jet, owner = guarded
    owner.add_state("past/a", 1)
    assert jet("at", "now", "past/a", "--user", "ann", "--password-file", "ann.txt", "-o", "value").out == "1\n"
    code, out, err = jet("at", "now", "--user", "bob", "--password-file", "pass.txt")
    assert (code, out) == (4, "")
    assert err.startswith("jet: this user may not access $jet/journal/offsets")


def test_plot_on_a_terminal(jet: Jet, owner: jetbus.Peer) -> None:
    """On a terminal a history is a table, and a plot as wide as the terminal."""
    state = owner.add_state("past/drawn", 0)
    for number in range(1, 100):
        state.change(number)
    owner.get_all("past/drawn")
    with jet.terminal("history", "past/drawn", "--plot", columns=60) as terminal:
        code, text = terminal.end()
    assert code == 0
    assert max(map(len, text.splitlines())) == 60
    with jet.terminal("at", "now", "past/drawn", NO_COLOR="1") as terminal:
        code, text = terminal.end()
    assert code == 0
    assert text.splitlines()[0].split() == ["path", "kind", "value", "peer", "ts"]


def test_values_that_came_late(tmp_path: Path) -> None:
    """history shows late values at their time, marked; at, diff and restore show what was true with --corrected."""
    with Daemon.start("--journal", str(tmp_path / "log")) as daemon, jetbus.Peer(url_of(daemon)) as owner:
        state = owner.add_state("pump/n", 0, on_set=lambda _value: None)
        owner.get("pump/n")
        then = wall_clock_us()
        state.change(1)
        owner.get("pump/n")
        state.change(5, ts=then, past=True)
        owner.get("pump/n")
        instant = write_instant(then)
        assert owner.tree(then, "pump/n")["value"].to_pylist() == ["0"]
        corrected = owner.tree(then, "pump/n", corrected=True)
        assert (corrected["value"].to_pylist(), corrected["late"].to_pylist()) == (["5"], [True])
        frame = owner.frame("pump/n", since=then, every=0.00001)
        assert [value for value, _ in groupby(frame["pump/n"])] == [5, 1]
        jet = Jet(url_of(daemon), tmp_path)
        for where in ([], ["--journal", "log"]):
            rows = [json.loads(line) for line in jet("history", "pump/n", *where).out.splitlines()]
            assert [(row["value"], row.get("late")) for row in rows] == [(0, None), (5, True), (1, None)]
            values = [
                json.loads(jet("at", instant, "pump/n", *more, *where).out)["value"] for more in ([], ["--corrected"])
            ]
            assert values == [0, 5]
            before = [
                json.loads(jet("diff", instant, "now", "pump/n", *more, *where).out)["before"]
                for more in ([], ["--corrected"])
            ]
            assert before == [0, 5]
            outcome = jet("restore", "pump/n", "--to", instant, "--corrected", "--dry-run", *where)
            assert json.loads(outcome.out)["then"] == 5
        done = jet("journal", "export", "log", "--rule", "pump/n", "--columns", "value,late")
        assert [json.loads(line) for line in done.out.splitlines()] == [
            {"value": 0},
            {"value": 5, "late": True},
            {"value": 1},
        ]
