"""The journal against a model in plain Python: any events, commits, crashes, rotations, compactions, prunings."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import jetbus.journal
from jetbus.journal import Journal, JournalGone, Writer
from jetbus.journal.batch import build_batch, encode_batch
from jetbus.journal.index import RECORD_BYTES
from jetbus.journal.parquet import read_manifest
from jetbus.journal.segment import PLAIN, find_layout, list_segments
from jetbus.rules import Rule, above, below, equal, is_type
from jetbus.rules import rule as make_rule
from support.journal_files import abandon
from support.journal_model import BEGIN_US, EPOCH, Event, Model, Row, open_writer, read, rows, write

PATHS = ["a", "a/b", "a/c", "A/b", "b/ü", "b/c/d", "$jets", "x y"]
PEERS = ["plc#1", "hmi#2", "#3"]
VALUES = ["1", "7.5", '"C"', "true", "null", "[1,2]", '{"unit":"C","x":8}', "-3"]
STAMPS = {"1": "good", "true": "uncertain", "null": "bad", "-3": '{"level":"bad","reason":"ü"}'}
"""Qualities of stamped changes, by value; others have a source time only."""
STEPS_US = [0, 0, 0, 1, 500, 3_600_000_000, 30_000_000_000]


@dataclass
class ModelBus:
    """A bus that behaves, as far as events go: only what is there changes, and who goes takes what it owns."""

    ts_us: int = BEGIN_US
    owners: dict[str, str] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    def _tell(self, event: str, *rest: str | None, source_us: int | None = None, quality: str | None = None) -> None:
        path, value, peer, kind, detail = [*rest, None, None, None, None, None][:5]
        self.events.append(Event(self.ts_us, event, path, value, peer, kind, detail, source_us, quality))

    def add(self, path: str, value: str, peer: str) -> None:
        if path in self.owners:
            self._tell("change", path, value, self.owners[path])
            return
        self.owners[path] = peer
        method = value == "null"
        detail = '{"fetchOnly":true}' if value == "true" else None
        self._tell("add", path, None if method else value, peer, "method" if method else "state", detail)

    def change(self, path: str, value: str, peer: str) -> None:
        if path in self.owners:
            self._tell("change", path, value, self.owners[path])
        else:
            self._tell("set", path, value, peer, "state", '{"outcome":"error","code":-32602}')

    def stamp(self, path: str, value: str, _peer: str) -> None:
        """A change with a source time, a quality, or both."""
        if path in self.owners:
            quality = STAMPS.get(value)
            source_us = self.ts_us - 7 if quality is None or value == "true" else None
            self._tell("change", path, value, self.owners[path], source_us=source_us, quality=quality)

    def describe(self, path: str, value: str, _peer: str) -> None:
        if path in self.owners:
            detail = json.dumps({"schema": {"unit": value}})
            self._tell("describe", path, None, self.owners[path], "state", detail)

    def past(self, path: str, value: str, peer: str) -> None:
        self._tell("past", path, value, peer, "state", source_us=self.ts_us - 1000)

    def remove(self, path: str, _value: str, peer: str) -> None:
        if path in self.owners:
            self._tell("remove", path, None, self.owners.pop(path), "state")
        else:
            self._tell("call", path, "[]", peer, "method", '{"outcome":"ok","us":7}')

    def gone(self, _path: str, _value: str, peer: str) -> None:
        self._tell("gone", None, None, peer)
        for path in [path for path, owner in self.owners.items() if owner == peer]:
            self._tell("remove", path, None, self.owners.pop(path), "state")

    def start(self, _path: str, _value: str, _peer: str) -> None:
        self.owners.clear()
        self._tell("start", None, None, None, None, '{"version":"1"}')

    def stop(self, _path: str, _value: str, _peer: str) -> None:
        self.owners.clear()
        self._tell("stop")

    def stray(self, path: str, value: str, peer: str) -> None:
        """A change of something that nobody has added, as after a gap."""
        self._tell("gap", None, None, None, None, '{"missed":1}')
        self.owners.setdefault(path, peer)
        self._tell("change", path, value, peer)


DEEDS = ["add"] * 4 + ["change"] * 6 + ["remove"] * 2 + ["gone", "start", "stop", "stray", "stamp", "describe", "past"]
FILES = ["flush"] * 6 + ["rotate"] * 3 + ["compact"] * 2 + ["prune", "retain"]

deeds = st.tuples(
    st.sampled_from(DEEDS),
    st.sampled_from(PATHS),
    st.sampled_from(VALUES),
    st.sampled_from(PEERS),
    st.sampled_from(STEPS_US),
)
crashes = st.integers(0, 1000)
"""How much of a batch is on disk when its writer is killed, in thousandths."""
steps = st.lists(
    st.one_of(st.lists(deeds, min_size=1, max_size=6), st.sampled_from(FILES), crashes), min_size=1, max_size=40
)

texts = st.sampled_from(["a", "a/", "b", "/", "A", "x", "ü", "d", "$", "$jets", "nowhere"])
value_tests = st.sampled_from([above(0), below(7.6), equal("C"), equal(None), is_type("number"), is_type("object")])


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    """Rules of all kinds of tests."""
    words: dict[str, Any] = draw(
        st.dictionaries(
            st.sampled_from(
                [
                    "starts_with",
                    "starts_not_with",
                    "ends_with",
                    "ends_not_with",
                    "contains",
                    "contains_not",
                    "equals_not",
                ]
            ),
            texts,
            max_size=2,
        )
    )
    lists: dict[str, Any] = draw(
        st.dictionaries(
            st.sampled_from(["equals_one_of", "contains_one_of", "equals_not_one_of", "contains_all_of"]),
            st.lists(st.sampled_from(PATHS), min_size=1, max_size=4),
            max_size=1,
        )
    )
    fields = draw(st.sampled_from([None, None, None, {"unit": equal("C")}, {"x": above(7)}]))
    return make_rule(
        draw(st.sampled_from([None, None, "a/*", "**/b", "b/**"])),
        **words,
        **lists,
        value=None if fields else draw(st.none() | value_tests),
        fields=fields,
        case_insensitive=draw(st.booleans()),
    )


def matches(rule: Rule, row: Row) -> bool:
    """The rule's word on an event or an element."""
    if row["path"] is None or not rule.matches_path(row["path"]):
        return False
    test = rule.matches_value
    return test is None or (row["value"] is not None and test(json.loads(row["value"])))


class Recorded:
    """A journal that is written as told, and what it must say."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.bus = ModelBus()
        self.writer: Writer = open_writer(directory)
        self.committed = 0

    def act(self, step: str | int | list[tuple[str, str, str, str, int]]) -> None:
        """One step: some deeds on the bus, something that is done with the files, or a crash."""
        if isinstance(step, str):
            getattr(self, f"_{step}")()
            return
        if isinstance(step, int):
            self._crash(step)
            return
        before = len(self.bus.events)
        for deed, path, value, peer, step_us in step:
            self.bus.ts_us += step_us
            getattr(self.bus, deed)(path, value, peer)
        write(self.writer, self.bus.events[before:])

    def _flush(self) -> None:
        assert self.writer.commit()
        self.committed = len(self.bus.events)

    def _rotate(self) -> None:
        self.writer.close()
        self.committed = len(self.bus.events)
        self.writer = open_writer(self.directory)

    def _crash(self, thousandths: int) -> None:
        """Killed while a batch is written, before the index names it: a new writer and a new daemon go on."""
        segment, pending = self.writer.open_segment, self.writer.take()
        torn = b""
        if pending:
            layout = PLAIN if segment is None else find_layout(segment.path.read_bytes())
            batch = build_batch(pending, self.writer.committed_seq + 1, layout)
            torn = bytes(encode_batch(batch, pa.ipc.IpcWriteOptions(compression="lz4")))
        abandon(self.writer)
        if segment is not None:
            with segment.path.open("ab") as file:
                file.write(torn[: len(torn) * thousandths // 1000])
            with segment.index_path.open("ab") as file:
                file.write(torn[: RECORD_BYTES * thousandths // 1001])
        del self.bus.events[self.committed :]
        self.writer = open_writer(self.directory)
        self.bus.start("", "", "")
        write(self.writer, self.bus.events[self.committed :])

    def _compact(self) -> None:
        jetbus.journal.compact(self.directory)

    def _prune(self) -> None:
        spans = read_manifest(self.directory).spans
        if spans:
            jetbus.journal.prune(self.directory, keep_s=0.000_001, now_us=spans[0].ts_max_us + 2)

    def _retain(self) -> None:
        """Drop the oldest segment, as the writer's retention does; never while there is Parquet before it."""
        segments = list_segments(self.directory)
        if len(segments) > 1 and not read_manifest(self.directory).spans:
            segments[0].path.unlink()
            segments[0].index_path.unlink()

    @property
    def rows(self) -> list[Row]:
        """All that was ever committed, dropped or not."""
        return rows(self.bus.events[: self.committed])


def check_events(journal: Journal, recorded: list[Row], rule: Rule) -> int:
    """Reading gives what is there, whole and by rule; the first seq that is there."""
    first = journal.offsets()["plant"]["first"]
    there = recorded[first - 1 :]
    assert read(journal.read()) == there
    assert read(journal.read(rule)) == [row for row in there if matches(rule, row)]
    middle = first + len(there) // 2
    assert read(journal.read(rule, seq=first, seq_until=middle)) == [
        row for row in there if matches(rule, row) and row["seq"] < middle
    ]
    for path in PATHS[:3]:
        received = [(row["seq"], row["value"]) for row in read([journal.history(path, missing_ok=True)])]
        events = ("add", "change", "remove")
        assert received == [(r["seq"], r["value"]) for r in there if r["path"] == path and r["event"] in events]
    return first


def check_trees(journal: Journal, recorded: list[Row], first: int, rule: Rule) -> None:
    """The tree after every seq and at every instant is the model's."""
    model = Model()
    trees = [model.tree()]
    for row in recorded:
        model.feed(row)
        trees.append(model.tree())
    untold = 0
    for seq in range(first, len(recorded) + 1):
        try:
            assert journal.as_of(seq=seq).to_pylist() == trees[seq]
        except JournalGone:
            untold += 1
            assert untold == seq - first + 1, "once a tree is told, all later ones are"
            assert first > 1
            continue
        assert journal.as_of(seq=seq, rule=rule, missing_ok=True).to_pylist() == [
            row for row in trees[seq] if matches(rule, row)
        ]
    assert not untold or not recorded[first - 1 :] or first > 1
    _check_instants(journal, recorded, trees, first + untold, rule)


def _check_instants(journal: Journal, recorded: list[Row], trees: list[list[Row]], first: int, rule: Rule) -> None:
    instants = {row["ts"] for row in recorded[first - 1 :]}
    last_seq = {ts: max(row["seq"] for row in recorded if row["ts"] <= ts) for ts in instants}
    for ts in instants:
        assert journal.as_of(ts, missing_ok=True).to_pylist() == trees[last_seq[ts]]
    if instants:
        a, b = min(instants), max(instants)
        before, after = (
            {row["path"]: row["value"] for row in trees[last_seq[ts]] if matches(rule, row)} for ts in (a, b)
        )
        received = {row["path"]: (row["what"], row["before"], row["after"]) for row in read([journal.diff(a, b, rule)])}
        wanted = {path: ("added", None, value) for path, value in after.items() if path not in before}
        wanted |= {path: ("removed", value, None) for path, value in before.items() if path not in after}
        wanted |= {
            path: ("changed", value, after[path])
            for path, value in before.items()
            if path in after and after[path] != value
        }
        assert received == wanted
        later = journal.read(rule, since=(b - EPOCH).days * 86_400_000_000, until=b)
        midnight = b.replace(hour=0, minute=0, second=0, microsecond=0)
        there = recorded[journal.offsets()["plant"]["first"] - 1 :]
        assert read(later) == [row for row in there if midnight <= row["ts"] < b and matches(rule, row)]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(steps, rules())
def test_against_a_model(story: list[Any], rule: Rule) -> None:
    """Whatever is recorded, committed, torn by a crash, rotated, compacted, dropped: what is told is the model's."""
    with tempfile.TemporaryDirectory() as folder:
        recorded = Recorded(Path(folder))
        try:
            journal = jetbus.journal.open(folder)
            for step in story:
                recorded.act(step)
                first = journal.offsets()["plant"]["first"]
                assert read(journal.read()) == recorded.rows[first - 1 :]
            first = check_events(journal, recorded.rows, rule)
            check_trees(journal, recorded.rows, first, rule)
            assert jetbus.journal.verify(folder) == []
        finally:
            recorded.writer.close()
