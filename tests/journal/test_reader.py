"""Reading events: what is asked for, in order of seq, from no more than is needed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import jetbus.journal
from jetbus.journal import Journal, JournalDamaged, JournalError, JournalGone, NotAJournal
from jetbus.journal.index import RECORD_BYTES
from jetbus.journal.log import SMALL_ROWS
from jetbus.journal.reader import HISTORY
from jetbus.journal.segment import SCHEMA, list_segments
from jetbus.journal.typed import TYPED
from jetbus.paths import is_daemons
from jetbus.rules import EVERYTHING, Rule, above, parse_rule, read_matcher
from jetbus.rules import rule as make_rule
from support.journal_model import BEGIN_US, Event, Row, cut, moment, open_writer, plant, read, record, rows, write

EVENTS = plant(400)
ROWS = rows(EVENTS)
LATER_US = EVENTS[200].ts_us


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal of four segments with several batches each."""
    directory = tmp_path_factory.mktemp("journal")
    record(directory, [cut(segment, 7, 30, 1) for segment in cut(EVENTS, 100)])
    return directory


@pytest.fixture(scope="module", params=["segments", "parquet"])
def journal(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Journal:
    """The same journal as segments, and with three quarters of it in Parquet."""
    directory = tmp_path_factory.mktemp(request.param)
    record(directory, [cut(segment, 7, 30, 1) for segment in cut(EVENTS, 100)])
    if request.param == "parquet":
        assert jetbus.journal.compact(directory).events == 300
    return jetbus.journal.open(directory)


def test_all_events(journal: Journal) -> None:
    """Without any wish, all events are read in order of seq, with exactly the columns of a journal."""
    batches = list(journal.read())
    assert all(batch.schema == SCHEMA for batch in batches)
    assert read(batches) == ROWS
    assert journal.table().schema == SCHEMA
    assert journal.table().to_pylist() == ROWS


RULES: dict[str, tuple[Any, Rule]] = {
    "text": ("plant/line1/**", parse_rule("plant/line1/**")),
    "exact": ("plant/line1/s3", parse_rule("plant/line1/s3")),
    "glob": ("plant/*/s1", parse_rule("plant/*/s1")),
    "nocase": ("PLANT/LINE2/** nocase", parse_rule("PLANT/LINE2/** nocase")),
    "value": ("plant/** value>7", parse_rule("plant/** value>7")),
    "field": ('value.unit="C"', parse_rule('value.unit="C"')),
    "type": ("value:string", parse_rule("value:string")),
    "rule": (make_rule(ends_with="s1", value=above(0.5)), make_rule(ends_with="s1", value=above(0.5))),
    "keywords": (
        {"contains": "ine1/", "equals_not": "plant/line1/s1"},
        make_rule(contains="ine1/", equals_not="plant/line1/s1"),
    ),
    "one of": (
        {"equals_one_of": ["plant/line0/s1", "plant/line2/s2", "nowhere"]},
        make_rule(equals_one_of=["plant/line0/s1", "plant/line2/s2", "nowhere"]),
    ),
    "negated": (
        {"starts_not_with": "plant/line1", "ends_not_with": "1", "contains_not": "s7", "equals_not_one_of": ["x"]},
        make_rule(starts_not_with="plant/line1", ends_not_with="1", contains_not="s7", equals_not_one_of=["x"]),
    ),
    "lists": (
        {"contains_all_of": ["line", "s1"], "contains_one_of": ["e1", "e2"]},
        make_rule(contains_all_of=["line", "s1"], contains_one_of=["e1", "e2"]),
    ),
    "lua": (read_matcher("line%d/s1$"), read_matcher("line%d/s1$")),
    "everything": (EVERYTHING, EVERYTHING),
    "nothing": ("elsewhere/**", parse_rule("elsewhere/**")),
}


def matches(rule: Rule, row: Row) -> bool:
    """The rule's word on one event, in plain Python."""
    path = row["path"]
    if path is None or not rule.matches_path(path) or (is_daemons(path) and not rule.sees_daemon):
        return False
    test = rule.matches_value
    return test is None or (row["value"] is not None and test(json.loads(row["value"])))


@pytest.mark.parametrize(("given", "rule"), RULES.values(), ids=RULES)
def test_rules(journal: Journal, given: Any, rule: Rule) -> None:
    """A rule in any form gives the events of paths and with values that it matches on the bus."""
    wanted = [row for row in ROWS if matches(rule, row)]
    assert read(journal.read(given)) == wanted
    assert bool(wanted) == (rule != parse_rule("elsewhere/**"))


RANGES: dict[str, tuple[dict[str, Any], Callable[[Row], bool]]] = {
    "since": ({"since": LATER_US}, lambda row: row["ts"] >= moment(LATER_US)),
    "until": ({"until": LATER_US}, lambda row: row["ts"] < moment(LATER_US)),
    "datetime": ({"since": moment(LATER_US)}, lambda row: row["ts"] >= moment(LATER_US)),
    "text": ({"until": "2026-01-01T00:00:00.050Z"}, lambda row: row["ts"] < moment(BEGIN_US + 50_000)),
    "ago": ({"since": "-1s"}, lambda _row: False),
    "seq": ({"seq": 150}, lambda row: row["seq"] >= 150),
    "seq until": ({"seq": 101, "seq_until": 201}, lambda row: 101 <= row["seq"] < 201),
    "one": ({"seq": 333, "seq_until": 334}, lambda row: row["seq"] == 333),
    "none": ({"seq": 300, "seq_until": 300}, lambda _row: False),
    "beyond": ({"seq": 401}, lambda _row: False),
    "by bus": ({"seq": {"plant": 390}}, lambda row: row["seq"] >= 390),
    "events": ({"events": ["add", "gap"]}, lambda row: row["event"] in ("add", "gap")),
    "one event": ({"events": "set"}, lambda row: row["event"] == "set"),
    "all": (
        {"rule": "plant/line1/**", "events": ["change"], "since": LATER_US, "seq_until": 370},
        lambda row: (
            (row["path"] or "").startswith("plant/line1/")
            and row["event"] == "change"
            and row["ts"] >= moment(LATER_US)
            and row["seq"] < 370
        ),
    ),
}


@pytest.mark.parametrize(("asked", "wanted"), RANGES.values(), ids=RANGES)
def test_ranges(journal: Journal, asked: dict[str, Any], wanted: Callable[[Row], bool]) -> None:
    """since and seq are in the range, until and seq_until are not, and all wishes hold at once."""
    assert read(journal.read(**asked)) == [row for row in ROWS if wanted(row)]


def test_a_value_rule_and_removes(tmp_path: Path) -> None:
    """A remove has the last value and matches by it; one without a value matches no value rule."""
    events = [
        Event(BEGIN_US, "add", "a", "8", "x#1", "state"),
        Event(BEGIN_US, "remove", "a", "8", "x#1", "state"),
        Event(BEGIN_US, "remove", "b", "7", "x#1", "state"),
        Event(BEGIN_US, "remove", "c", None, None, None),
    ]
    record(tmp_path, [[events]])
    found = jetbus.journal.open(tmp_path).table("** value>7", columns=["seq", "event"])
    assert found.to_pylist() == [{"seq": 1, "event": "add"}, {"seq": 2, "event": "remove"}]
    assert jetbus.journal.open(tmp_path).table("** value>7", events=["remove"])["path"].to_pylist() == ["a"]


@pytest.mark.parametrize("columns", [["value", "path"], ["seq"], ["detail"], ["ts", "ts"]], ids=",".join)
def test_columns(journal: Journal, columns: list[str]) -> None:
    """Only the columns that were asked for come, in that order, also when a rule needs others."""
    table = journal.table("plant/line1/** value>3", since=LATER_US, columns=columns)
    assert table.column_names == list(dict.fromkeys(columns))
    wanted = [row for row in ROWS if matches(parse_rule("plant/line1/** value>3"), row)]
    wanted = [row for row in wanted if row["ts"] >= moment(LATER_US)]
    assert table.to_pylist() == [{name: row[name] for name in columns} for row in wanted]
    assert wanted


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        ({"columns": ["sequence"]}, "choose from seq, ts"),
        ({"events": ["moved"]}, "choose from add, change"),
        ({"since": "someday"}, "2026-03-01T12:00:00Z"),
    ],
    ids=["column", "event", "instant"],
)
def test_wrong_wishes(journal: Journal, asked: dict[str, Any], hint: str) -> None:
    """A wish that cannot be is refused at once, with what can be."""
    with pytest.raises(JournalError, match=hint):
        journal.read(**asked)


def test_the_daemons_own_states(tmp_path: Path) -> None:
    """The daemon's own states match only a rule that starts with $, as on the bus."""
    events = [Event(BEGIN_US, "add", path, "1", "#0", "state") for path in ("$jet/peers", "$jets", "a/b")]
    record(tmp_path, [[events]])
    journal = jetbus.journal.open(tmp_path)
    assert [row["path"] for row in read(journal.read("**"))] == ["$jets", "a/b"]
    assert [row["path"] for row in read(journal.read("$jet/**"))] == ["$jet/peers"]
    assert len(read(journal.read())) == 3
    assert journal.history("$jet/peers").num_rows == 1


def test_representation(tmp_path: Path) -> None:
    """A journal shows its bus, its directory, its events and their times; one without events says so."""
    events = [Event(BEGIN_US + second * 1_000_000, "change", "a", "1", "#0", "state") for second in range(3)]
    record(tmp_path / "full", [[events]], bus="plant")
    jetbus.journal.Writer(tmp_path / "empty", jetbus.journal.Settings(bus="site")).close()
    assert repr(jetbus.journal.open(tmp_path / "full")) == (
        f"<Journal 'plant' in '{tmp_path / 'full'}', events 1 to 3,"
        " 2026-01-01T00:00:00.000000Z to 2026-01-01T00:00:02.000000Z>"
    )
    both = repr(jetbus.journal.open(tmp_path / "empty", tmp_path / "full"))
    assert both.startswith(f"<Journal 'site' in '{tmp_path / 'empty'}', empty; 'plant' in")


def test_small_batches_are_joined(tmp_path: Path) -> None:
    """Commits of few events are read as batches of many."""
    events = [Event(BEGIN_US + n, "change", "a", str(n), "x#1") for n in range(3000)]
    record(tmp_path, [cut(events, 10)])
    assert [batch.num_rows for batch in jetbus.journal.open(tmp_path).read()] == [3000]
    assert SMALL_ROWS > 3000


# -- no more than is needed, and nothing that is not committed


def damage(file: Path, at: int) -> None:
    """Change one byte of a file."""
    data = bytearray(file.read_bytes())
    data[at] ^= 0xFF
    file.write_bytes(data)


def test_damage_is_found_and_named(directory: Path, tmp_path: Path) -> None:
    """A reader that comes across a damaged batch is told where; one that has no need of it is not."""
    for file in directory.iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    entry = jetbus.journal.index.read_index(list_segments(tmp_path)[1].index_path)[2]
    damage(list_segments(tmp_path)[1].path, entry.position + entry.length // 2)
    journal = jetbus.journal.open(tmp_path)
    assert read(journal.read(seq_until=entry.seq_first)) == ROWS[: entry.seq_first - 1]
    assert read(journal.read(seq=entry.seq_last + 1)) == ROWS[entry.seq_last :]
    assert read(journal.read(since=LATER_US)) == [row for row in ROWS if row["ts"] >= moment(LATER_US)]
    with pytest.raises(JournalError, match=f"events {entry.seq_first} to {entry.seq_last}"):
        read(journal.read(seq=entry.seq_last, seq_until=entry.seq_last + 1))


@pytest.mark.parametrize("torn", [1, RECORD_BYTES - 1, RECORD_BYTES], ids=["one byte", "all but one", "wrong"])
def test_what_is_not_committed(tmp_path: Path, torn: int) -> None:
    """Bytes of a batch that the index does not name yet, and a record that is not whole, are not read."""
    record(tmp_path, [[EVENTS[:50]]])
    (segment,) = list_segments(tmp_path)
    with segment.path.open("ab") as file:
        file.write(b"\xff\xff\xff\xff\x18\x01\x00\x00 torn")
    with segment.index_path.open("ab") as file:
        file.write(b"\x01" * torn)
    assert read(jetbus.journal.open(tmp_path).read()) == ROWS[:50]


def test_a_reader_needs_no_closed_journal(tmp_path: Path) -> None:
    """Committed events are read while the writer is open; those that are only appended are not."""
    with open_writer(tmp_path) as writer:
        write(writer, EVENTS[:30])
        journal = jetbus.journal.open(tmp_path)
        assert read(journal.read()) == []
        assert writer.commit()
        assert read(journal.read()) == ROWS[:30]
        write(writer, EVENTS[30:60])
        assert writer.commit()
        assert read(journal.read()) == ROWS[:60]
        assert journal.offsets()["plant"]["last"] == 60


# -- what is gone


def drop(directory: Path, number: int) -> None:
    """Delete a segment, as retention does."""
    segment = list_segments(directory)[number]
    segment.path.unlink()
    segment.index_path.unlink()


def test_gone(tmp_path: Path) -> None:
    """The error for a dropped seq names the first one; without a seq all events there are are read."""
    record(tmp_path, [[segment] for segment in cut(EVENTS, 100)])
    journal = jetbus.journal.open(tmp_path)
    assert read(journal.read(seq=1)) == ROWS
    drop(tmp_path, 0)
    with pytest.raises(JournalGone, match=r"event 1 .* gone") as gone:
        read(journal.read(seq=1))
    assert gone.value.first_seq == 101
    assert read(journal.read()) == ROWS[100:]
    assert read(journal.read(since=BEGIN_US)) == ROWS[100:]
    assert journal.offsets()["plant"]["first"] == 101


def test_no_silent_gap(tmp_path: Path) -> None:
    """A stretch that is missing in the middle is never passed over in silence."""
    record(tmp_path, [[segment] for segment in cut(EVENTS, 100)])
    drop(tmp_path, 1)
    batches = jetbus.journal.open(tmp_path).read()
    assert next(batches).to_pylist() == ROWS[:100]
    with pytest.raises(JournalDamaged, match=r"events 101 to 200 .* 0*101.arrows is not there") as lost:
        next(batches)
    assert lost.value.next_seq == 201


def test_dropped_while_reading(tmp_path: Path) -> None:
    """A segment that retention drops before a reader has come to it is reported, not skipped."""
    record(tmp_path, [[segment] for segment in cut(EVENTS, 100)])
    batches = jetbus.journal.open(tmp_path).read()
    next(batches)
    drop(tmp_path, 0)
    drop(tmp_path, 0)
    with pytest.raises(JournalGone):
        read(batches)


# -- several buses


def test_several_buses(tmp_path: Path) -> None:
    """Several directories are read as one journal with a column that names the bus."""
    other = plant(50, seed=9)
    record(tmp_path / "a", [[EVENTS[:60]]], bus="north")
    record(tmp_path / "b", [[other]], bus="south")
    journal = jetbus.journal.open(str(tmp_path / "*"))
    assert journal.buses == ["north", "south"]
    wanted = [{"bus": "north", **row} for row in ROWS[:60]] + [{"bus": "south", **row} for row in rows(other)]
    assert journal.table().to_pylist() == wanted
    assert read(journal.read(columns=["seq", "bus"], seq={"north": 60, "south": 50})) == [
        {"seq": 60, "bus": "north"},
        {"seq": 50, "bus": "south"},
    ]
    assert {bus: offsets["last"] for bus, offsets in journal.offsets().items()} == {"north": 60, "south": 50}
    path = next(row["path"] for row in wanted if row["event"] == "add")
    received = journal.history(path).to_pylist()
    assert [row["seq"] for row in received] == [
        row["seq"] for row in wanted if row["path"] == path and row["event"] in ("add", "change", "remove")
    ]
    plain = journal.history(path, typed=False).column_names
    assert plain == ["bus", *HISTORY, "late", "unit"]
    at = plain.index("value") + 1
    assert list(received[0]) == [*plain[:at], *TYPED.names, *plain[at:]]


def test_buses_of_one_name(tmp_path: Path) -> None:
    """Two journals of buses with one name are told apart by their directories."""
    for name in ("a", "b"):
        record(tmp_path / name, [[EVENTS[:5]]], bus="plant")
    journal = jetbus.journal.open(tmp_path / "a", tmp_path / "b")
    assert journal.buses == [f"plant:{tmp_path / 'a'}", f"plant:{tmp_path / 'b'}"]


def test_offsets(journal: Journal) -> None:
    """The offsets are the first and the last event, with their instants; time has come as far as the last event."""
    last_us = EVENTS[-1].ts_us
    found = journal.offsets()["plant"]
    assert (found["first"], found["last"]) == (1, 400)
    assert (found["first_ts"], found["last_ts"], found["now"]) == (EVENTS[0].ts_us, last_us, last_us)
    assert found["id"]
    assert found["bytes"] > 0


def test_an_empty_journal(tmp_path: Path) -> None:
    """A journal that nothing was written to yet is read as nothing."""
    open_writer(tmp_path).close()
    journal = jetbus.journal.open(tmp_path)
    assert journal.table().num_rows == 0
    assert journal.as_of().num_rows == 0
    found = journal.offsets()["plant"]
    assert (found["first"], found["last"], found["bytes"]) == (1, 0, 0)
    assert (found["first_ts"], found["last_ts"], found["now"]) == (None, None, None)


@pytest.mark.parametrize("make", ["nothing", "a file", "a folder", "later format", "no json", "glob"])
def test_no_journal(tmp_path: Path, make: str) -> None:
    """A directory without a journal is refused when it is opened."""
    place = tmp_path / "place"
    if make == "a file":
        place.write_text("x")
    elif make != "nothing":
        place.mkdir()
    if make in ("later format", "no json"):
        (place / "journal.json").write_text('{"format": 99, "bus": "a", "id": "b"}' if make == "later format" else "{")
    with pytest.raises(NotAJournal, match="place"):
        jetbus.journal.open(f"{place}/*" if make == "glob" else place)
