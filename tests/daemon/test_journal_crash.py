"""A loaded daemon is killed at random moments, again and again, and its journal is whole every time."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from jetbus import journal
from support.crash import Nursery, Owner, lives_of, load_and_kill, read_plainly, values_of

KILLS = 26
OWNERS = 3
LONGEST_S = 0.06


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()


@pytest.mark.parametrize("fsync", ["always", "interval"])
def test_killed_at_random_moments(fsync: str, nursery: Nursery, tmp_path: Path) -> None:
    """However often a loaded daemon is killed, its journal has no gap, no repeat, and all that always acknowledged."""
    chance = random.Random(os.urandom(8))
    owners = [Owner(f"load/{number}") for number in range(OWNERS)]
    options = ["--journal", str(tmp_path), "--journal-fsync", fsync, "--journal-flush-ms", "5"]
    for _ in range(KILLS):
        load_and_kill(nursery, owners, options, chance.uniform(0, LONGEST_S))
    nursery.start(*options)
    assert nursery.end(signal.SIGTERM) == 0

    assert journal.verify(tmp_path) == []
    events = read_plainly(tmp_path)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert [event["ts"] for event in events] == sorted(event["ts"] for event in events)
    lives = lives_of(events)
    received = [json.loads(life[0]["detail"]) for life in lives]
    # A daemon that was killed before anything was written leaves no start behind, unless everything is written at once.
    assert len(lives) == KILLS + 1 if fsync == "always" else 1 < len(lives) <= KILLS + 1
    assert all(one["restart"] is True and one["clean"] is False for one in received[1:])
    assert received[0]["restart"] is (received[0].get("clean") is False)
    assert [event["event"] for event in lives[-1]] == ["start", "stop"]
    for owner in owners:
        recorded: set[int] = set()
        for life in lives:
            values = values_of(owner.path, life)
            assert values == list(range(values[0], values[0] + len(values))) if values else True
            recorded.update(values)
        assert recorded <= set(range(owner.value + 1))
        assert len(recorded) > KILLS
        if fsync == "always":
            assert owner.acknowledged.keys() - recorded == set()


def test_killed_before_the_first_flush(nursery: Nursery, tmp_path: Path) -> None:
    """A daemon that is killed at once, many times in a row, leaves a journal that the next one goes on with."""
    for _ in range(10):
        nursery.start("--journal", str(tmp_path), "--journal-flush-ms", "1")
        assert nursery.end(signal.SIGKILL) == -signal.SIGKILL
    nursery.start("--journal", str(tmp_path))
    assert nursery.end(signal.SIGTERM) == 0
    assert journal.verify(tmp_path) == []
    events = read_plainly(tmp_path)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert events[-1]["event"] == "stop"
    assert {event["event"] for event in events[:-1]} == {"start"}
