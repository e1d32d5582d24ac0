"""at, diff, history and journal: what was, from a journal on disk and over the bus."""

from __future__ import annotations

import csv
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import jetbus
from cli.plant import record
from cli.running import Done, Jet
from jetbus.cli.buses import Bus
from jetbus.cli.past import BusPast
from jetbus.journal import Writer
from jetbus.journal.instants import US_PER_S, read_instant, wall_clock_us, write_instant
from spark.reference import CUTS, Event, rollups_of
from support.daemon import Daemon

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


def told(past: Jet, *words: str) -> list[dict[str, Any]]:
    done = past(*words, "--journal", "log")
    assert done.code == 0, done
    assert done.err == ""
    return [json.loads(line) for line in done.out.splitlines()]


def test_at(past: Jet, end_us: int) -> None:
    """The tree at an instant has the values of then; a rule picks from it."""
    then = write_instant(end_us - 5 * US_PER_S)
    assert {row["path"]: row["value"] for row in told(past, "at", then)} == {
        "plant/pump/mode": "manual",
        "plant/tank/level": SECONDS - 5,
    }
    (mode,) = told(past, "at", then, "plant/pump/*")
    assert (mode["kind"], mode["peer"]) == ("state", "plant#1")
    assert told(past, "at", "-7d") == []


def test_diff_of_instants(past: Jet, end_us: int) -> None:
    """Two instants differ in what has changed and come in between; with --check that is exit code 7."""
    then = write_instant(end_us - 5 * US_PER_S)
    assert told(past, "diff", then, "now") == [
        {"path": "plant/tank/level", "what": "changed", "before": SECONDS - 5, "after": SECONDS}
    ]
    assert {row["what"] for row in told(past, "diff", "-7d", "now")} == {"added"}
    assert past("diff", then, "now", "--check", "-j", "log").code == 7
    assert past("diff", "now", "now", "--check", "-j", "log").code == 0


def test_diff_of_files(past: Jet) -> None:
    """Files of any JSON form are compared with each other and with an instant."""
    (past.folder / "a.jsonl").write_text('{"path":"a","value":1}\n{"path":"m","kind":"method"}\n')
    (past.folder / "b.json").write_text('[{"path":"a","value":true},{"path":"b","value":2}]')
    assert told(past, "diff", "a.jsonl", "b.json") == [
        {"path": "a", "what": "changed", "before": 1, "after": True},
        {"path": "b", "what": "added", "after": 2},
    ]
    assert {row["what"] for row in told(past, "diff", "now", "a.jsonl")} == {"added", "removed"}
    (past.folder / "c.json").write_text("oops")
    assert past("diff", "a.jsonl", "c.json").code == 2


def test_history(past: Jet, end_us: int) -> None:
    """The history of a path has its values in order, from --since to --until."""
    since, until = (write_instant(end_us - ago * US_PER_S) for ago in (5, 2))
    rows = told(past, "history", "plant/tank/level", "--since", since, "--until", until)
    assert [row["value"] for row in rows] == [SECONDS - 5, SECONDS - 4, SECONDS - 3]
    assert rows[0]["at"] == since


def test_history_in_windows(past: Jet) -> None:
    """With --every the numbers of each window become one by each aggregate."""
    rows = told(past, "history", "plant/tank/level", "--every", "5s", "--agg", "count,min,max,sum,first,last,avg")
    assert sum(row["count"] for row in rows) == SECONDS + 1
    assert sum(row["sum"] for row in rows) == sum(range(SECONDS + 1))
    assert all(row["min"] == row["first"] <= row["avg"] <= row["last"] == row["max"] for row in rows)


def written(folder: Path, log: list[Event]) -> None:
    """A journal of such events."""
    with Writer(folder, now_us=lambda: log[0].ts) as writer:
        for event in log:
            writer.now_us = event.ts
            told = (None if text is None else text.encode() for text in (event.value, event.detail))
            value, detail = told
            writer.append(event.event, event.kind, event.path, value, event.peer, detail)
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
            log.append(Event("log", seq, ts, event, "state", chance.choice(("a", "b c")), value))
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
        found = told(jet, "history", "a", "b c", "--every", every, "--agg", names)
        rows = {(row["path"], read_instant(row["at"])): row for row in found}
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
    (row,) = told(Jet("unix://@nobody-is-there", tmp_path), "history", "a", *options)
    assert (row["mean"], row["avg"]) == (pytest.approx((10 * 1 + 20 * 3) / 4), 20)


def test_a_mean_over_the_bus(jet: Jet, owner: jetbus.Peer, plant_journal: Path) -> None:
    """A mean is the same over the bus as from the folder of the daemon's journal."""
    path = "test/mean"
    state = owner.add_state(path, 1)
    began = json.loads(jet("at", "now", path).out)["at"]
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
    assert part[0] == "seq,at,event,kind,path,value,peer,detail"
    assert len(part) == 2


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
    told = json.loads(done.out)
    assert (told["file"], told["events"], told["bytes"]) == (str(target), SECONDS + 1, target.stat().st_size)
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


def test_export_that_cannot_be_written(past: Jet, tmp_path: Path) -> None:
    """What is in the way is told, what was there stays, and there is no half file."""
    done = past("journal", "export", "log", "--to", str(tmp_path / "none" / "out.csv"))
    assert (done.code, done.out) == (2, "")
    assert "cannot be written (No such file or directory)" in done.err
    (tmp_path / "old.csv").write_text("old")
    assert past("journal", "export", "log", "--to", str(tmp_path / "old.csv"), "--since", "yesterday").code == 2
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
    "which journal": (["journal", "du"], 2, "which journal? Give its folder with --journal DIR, or in JET_JOURNAL"),
    "no daemon": (["at", "now"], 3, "no daemon at unix://@nobody-is-there"),
    "not a journal": (["at", "now", "-j", "."], 5, ""),
    "no folder": (["journal", "du", "nowhere"], 5, ""),
    "no instant": (["at", "yesterday", "-j", "log"], 2, "'yesterday' is no instant"),
    "nothing recorded": (["history", "no/path", "-j", "log"], 5, "nothing is recorded of no/path"),
    "near miss": (["history", "plant/tank/levle", "-j", "log"], 5, "nothing is recorded of plant/tank/levle then; did"),
    "no aggregate": (["history", "a", "--every", "1s", "--agg", "median", "-j", "log"], 2, "no aggregate median"),
    "no match": (
        ["at", "now", "no/**", "-j", "log"],
        5,
        "nothing matched no/** then; `jet at now` without a rule shows all",
    ),
    "keep what": (["journal", "prune", "log"], 2, "keep how much?"),
    "no bytes": (["journal", "prune", "log", "--keep-bytes", "many"], 2, "'many' is no number of bytes"),
}


@pytest.mark.parametrize("case", PROBLEMS)
def test_problems(past: Jet, case: str) -> None:
    """What is wrong with a journal or an instant is told in one sentence."""
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
    """Where the daemon keeps a journal, it is asked; that of JET_JOURNAL is read instead, unless a bus is named."""
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
    """What does not fit a page is read to its end, in either protocol, and relative instants are the same for all."""
    path = f"pages/{transport}/state"
    states = [owner.add_state(f"{path}{number}", number) for number in range(5)]
    for number in range(7):
        states[0].change(number)
    owner.get(path)
    scheme = {"tcp": "jet", "binary": "jetb"}[transport]
    with Bus(f"{scheme}://{plant_daemon.listens[transport]}").quick() as peer:
        for page_rows in (2, None):
            pages = BusPast(peer, page_rows)
            assert [row["path"] for row in pages.as_of("now", f"{path}*")] == [f"{path}{number}" for number in range(5)]
            assert [row["value"] for row in pages.history(f"{path}0", "-1h", None)] == [*"00123456"]
            assert pages.as_of("-1d") == []


def test_who_may_look_back(guarded: tuple[Jet, jetbus.Peer]) -> None:
    """Whoever may not look back is told so, with exit code 4."""
    jet, owner = guarded
    owner.add_state("past/a", 1)
    assert jet("at", "now", "past/a", "--user", "ann", "--password-file", "ann.txt", "-o", "value").out == "1\n"
    code, out, err = jet("at", "now", "--user", "bob", "--password-file", "pass.txt")
    assert (code, out) == (4, "")
    assert err.startswith("jet: $jet/journal/range is not open to this user")


def test_plot_on_a_terminal(jet: Jet, owner: jetbus.Peer) -> None:
    """On a terminal a history is a table, and a plot as wide as the terminal."""
    state = owner.add_state("past/drawn", 0)
    for number in range(1, 100):
        state.change(number)
    owner.get("past/drawn")
    with jet.terminal("history", "past/drawn", "--plot", columns=60) as terminal:
        code, text = terminal.end()
    assert code == 0
    assert max(map(len, text.splitlines())) == 60
    with jet.terminal("at", "now", "past/drawn", NO_COLOR="1") as terminal:
        code, text = terminal.end()
    assert code == 0
    assert text.splitlines()[0].split() == ["path", "kind", "value", "peer", "at"]
