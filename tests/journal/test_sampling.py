"""Density of recording, by rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from jetbus.errors import InvalidRule
from jetbus.journal import Densities, JournalError, Settings, Writer
from jetbus.journal.sampling import EVERY, SKIP
from support.journal_files import rows_of

LAZY = Settings(fsync="never")
S = 1_000_000


def brief_events(directory: Path) -> list[tuple[str, str, str | None]]:
    return [(row["event"], row["path"], row["value"]) for row in rows_of(directory)]


def open_writer(directory: Path, *table: tuple[str, str]) -> Writer:
    """A writer whose clock starts on a whole minute."""
    return Writer(directory, LAZY, densities=Densities(table), now_us=lambda: 60 * S)


def test_first_match_wins() -> None:
    """The first rule that matches a path decides; without one every change is recorded."""
    table = Densities([("a/x", "every"), ("a/**", "skip"), ("b/*", "sample 250ms")])
    assert table.of("a/x") is EVERY
    assert table.of("a/y/z") is SKIP
    assert table.of("b/y").interval_us == 250_000
    assert table.of("b/y/z") is EVERY
    assert not Densities()


def test_skip(tmp_path: Path) -> None:
    """Nothing at all is recorded of a path that is skipped."""
    with open_writer(tmp_path, ("fast/**", "skip")) as writer:
        for path in ("fast/a", "slow/a"):
            writer.append("add", "state", path, b"1", "p#1")
            writer.change(path, b"2", "p#1")
            writer.append("set", "state", path, b"3", "p#1")
            writer.append("remove", "state", path, None, "p#1")
        writer.append("gone", peer="p#1")
        assert writer.seq == 6
    events = [(event, path) for event, path, _ in brief_events(tmp_path)]
    assert events == [*[(event, "slow/a") for event in ("add", "change", "set", "remove")], ("gone", None)]


def test_sample_keeps_the_last_of_each_interval(tmp_path: Path) -> None:
    """Of a sampled path one change per interval is recorded, the last; others are recorded at once."""
    with open_writer(tmp_path, ("fast/**", "sample 1s")) as writer:
        for tick in range(30):
            writer.now_us = 60 * S + tick * S // 10
            writer.commit()
            writer.change("fast/a", b"%d" % tick, "p#1")
            if tick % 10 == 5:
                writer.change("slow", b"%d" % tick, "p#1")
        assert brief_events(tmp_path) == [
            ("change", "slow", "5"),
            ("change", "fast/a", "9"),
            ("change", "slow", "15"),
            ("change", "fast/a", "19"),
            ("change", "slow", "25"),
        ]
    assert brief_events(tmp_path)[5:] == [("change", "fast/a", "29")]
    instants = [row["ts"].timestamp() for row in rows_of(tmp_path) if row["path"] == "fast/a"]
    assert instants == [61.0, 62.0, 62.9]


def test_final_value_arrives_without_further_changes(tmp_path: Path) -> None:
    """The last value of a sampled path is recorded when its interval ends, though nothing happens any more."""
    with open_writer(tmp_path, ("fast/**", "sample 1s")) as writer:
        writer.now_us += S // 2
        writer.change("fast/a", b"1", "p#1")
        writer.change("fast/a", b"2", "p#1")
        writer.commit()
        assert brief_events(tmp_path) == []
        writer.now_us += S // 2
        writer.commit()
        assert brief_events(tmp_path) == [("change", "fast/a", "2")]


def test_held_value_comes_before_the_remove(tmp_path: Path) -> None:
    """A change that is held is recorded before the remove of its path, and never after it."""
    with open_writer(tmp_path, ("fast/**", "sample 1s")) as writer:
        for path in ("fast/a", "fast/b"):
            writer.append("add", "state", path, b"0", "p#1")
            writer.change(path, b"1", "p#1")
        writer.append("remove", "state", "fast/a", None, "p#1")
        writer.commit()
        writer.now_us += 2 * S
        writer.commit()
    assert brief_events(tmp_path) == [
        ("add", "fast/a", "0"),
        ("add", "fast/b", "0"),
        ("change", "fast/a", "1"),
        ("remove", "fast/a", None),
        ("change", "fast/b", "1"),
    ]


def test_several_intervals(tmp_path: Path) -> None:
    """Each density has intervals of its own."""
    table = [("a", "sample 100ms"), ("b", "sample 1s")]
    with open_writer(tmp_path, *table) as writer:
        for tick in range(40):
            writer.now_us = 60 * S + tick * S // 20
            writer.change("a", b"1", "p#1")
            writer.change("b", b"1", "p#1")
            writer.commit()
    paths = [path for _, path, _ in brief_events(tmp_path)]
    assert (paths.count("a"), paths.count("b")) == (20, 2)


BAD = {
    "word": ("**", "sometimes", "not a density"),
    "no interval": ("**", "sample", "not a density"),
    "no unit": ("**", "sample 1", "not a duration"),
    "no time": ("**", "sample 0s", "not a density"),
    "value rule": ("** value>7", "skip", "cannot depend on its value"),
}


@pytest.mark.parametrize(("rule", "density", "text"), BAD.values(), ids=BAD)
def test_bad_tables(rule: str, density: str, text: str) -> None:
    """A table that cannot be is refused when it is made."""
    with pytest.raises(JournalError, match=text):
        Densities([(rule, density)])


def test_bad_rule() -> None:
    """A rule that cannot be read is refused as everywhere."""
    with pytest.raises(InvalidRule):
        Densities([('"unfinished', "skip")])


def test_samples_come_before_a_stop(tmp_path: Path) -> None:
    """A sample that was held back is told before the stop of the daemon, which empties the tree."""
    with Writer(tmp_path, densities=Densities([("**", "sample 10s")])) as writer:
        writer.append("add", "state", "a", b"1", "p#1")
        writer.change("a", b"2", "p#1")
        writer.append("stop")
    assert [row["event"] for row in rows_of(tmp_path)] == ["add", "change", "stop"]
