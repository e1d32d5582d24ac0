"""A power loss: what the disk has at a random moment is all that is left, and the journal in it is whole.

The journal is on a file system of its own, in an image. Under load the daemon is stopped at a random moment, and the
image is copied: what the daemon or the system had still in memory is not in the copy. Another daemon goes on with it.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from jetbus import journal
from support.crash import Nursery, Owner, lives_of, load_and_kill, read_plainly, values_of
from support.disk import make_image, mounted

LOSSES = 4
OWNERS = 3
LONGEST_S = 0.4


def copy_file(file: Path, copy: Path) -> None:
    shutil.copyfile(file, copy)


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()


@pytest.mark.parametrize("fsync", ["always", "interval", "never"])
def test_power_loss_at_random_moments(fsync: str, nursery: Nursery, tmp_path: Path) -> None:
    """After each power loss the journal goes on without gap or repeat; with always nothing acknowledged is lost."""
    chance = random.Random(os.urandom(8))
    image, copy, place = tmp_path / "disk.img", tmp_path / "copy.img", tmp_path / "disk"
    make_image(image)
    owners = [Owner(f"load/{number}") for number in range(OWNERS)]
    options = ["--journal", str(place / "journal"), "--journal-fsync", fsync, "--journal-flush-ms", "5"]
    for _ in range(LOSSES):
        with mounted(image, place):
            load_and_kill(nursery, owners, options, chance.uniform(0, LONGEST_S), lambda: copy_file(image, copy))
        copy.replace(image)
    with mounted(image, place) as disk:
        nursery.start(*options)
        assert nursery.end(signal.SIGTERM) == 0
        assert journal.verify(disk / "journal") == []
        events = read_plainly(disk / "journal")
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert [event["event"] for event in events if event["event"] == "gap"] == []
    lives = lives_of(events)
    assert all(json.loads(life[0]["detail"]).get("clean") is False for life in lives[1:])
    for owner in owners:
        recorded: set[int] = set()
        for life in lives:
            values = values_of(owner.path, life)
            assert not values or values == list(range(values[0], values[0] + len(values)))
            recorded.update(values)
        assert recorded <= set(range(owner.value + 1))
        if fsync == "always":
            assert owner.acknowledged.keys() - recorded == set()
