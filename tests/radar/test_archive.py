"""Archives: points of a path from any instant on, extended in both directions, with cuts where nothing was recorded."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jetbus
from jetbus.radar.archive import Archive, BusArchive, LocalArchive
from jetbus.radar.series import SeriesCache, find_bands, reduce_points
from support.daemon import Daemon

FAR_US = 1 << 60


def record(daemon: Daemon, numbers: range) -> None:
    """Change a number and a text, and return when all of it is in the journal."""
    with jetbus.Peer(f"jet://{daemon.listens['tcp']}") as owner:
        speed = owner.add_state("speed", numbers[0])
        mode = owner.add_state("mode", "auto")
        for number in numbers[1:]:
            speed.change(number)
            owner.get("speed")  # one turn of the daemon, and so one instant, for each
        mode.change("off")
        owner.call("$jet/journal/offsets")
        if numbers[0] == 1:
            daemon.process.kill()
            daemon.process.wait()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A journal of two runs of a daemon: 1 to 5 in the first, which was killed, and 6 to 9 in the second."""
    directory = tmp_path / "recorded"
    killed = Daemon.start("--journal", str(directory))
    record(killed, range(1, 6))
    with pytest.raises(AssertionError):
        killed.stop()
    with Daemon.start("--journal", str(directory)) as daemon:
        record(daemon, range(6, 10))
    return directory


def test_a_stop_of_the_daemon_is_a_gap(directory: Path) -> None:
    """Between two runs of a daemon there is no value, also if the first run had no time to say so."""
    points = SeriesCache(LocalArchive(directory)).load("speed", "", 0, FAR_US)
    series = reduce_points(points, 0, FAR_US, 1000)["last"].to_pylist()
    assert [number for number in series if number is not None] == list(range(1, 10))
    assert None in series[5:-1]
    bands = find_bands(SeriesCache(LocalArchive(directory)).load("mode", "", 0, FAR_US), 0, FAR_US)
    assert bands["value"].to_pylist() == ['"auto"', '"off"', None, '"auto"', '"off"', None]


def show(series: Any) -> list[float | None]:
    """Return the numbers of a series; that there is none yet at its beginning may be said or not."""
    return list(itertools.dropwhile(lambda number: number is None, series["last"].to_pylist()))


def read_in_steps(archive: Archive) -> None:
    """Compare a cache that is asked for ever earlier beginnings with one that reads all at once."""
    whole = SeriesCache(archive).load("speed", "", 0, FAR_US)
    stepwise = SeriesCache(archive)
    for since_us in reversed(whole.us.tolist()):
        until_us = int(whole.us[-1]) + 1
        points = stepwise.load("speed", "", since_us, until_us)
        stepped, at_once = (show(reduce_points(one, since_us, until_us, 100)) for one in (points, whole))
        assert stepped == at_once
    points = stepwise.load("speed", "", 0, FAR_US)
    assert np.array_equal(points.us, whole.us)
    assert np.array_equal(points.numbers, whole.numbers, equal_nan=True)


def test_older_points_are_added_to_known_ones(directory: Path) -> None:
    """A range that begins earlier and earlier shows the same as one that was read at once, in files."""
    archive = LocalArchive(directory)
    read_in_steps(archive)
    archive.close()


def test_older_points_over_the_bus(directory: Path) -> None:
    """The same over the bus."""
    with Daemon.start("--journal", str(directory)) as daemon:
        archive = BusArchive(f"jet://{daemon.listens['tcp']}", {})
        read_in_steps(archive)
        archive.close()


@pytest.mark.parametrize("over_the_bus", [False, True], ids=["files", "bus"])
def test_late_values_stand_where_they_belong(tmp_path: Path, over_the_bus: bool) -> None:
    """A chart that is brought up to date, or moved, has values that came late in their places, and marks them."""
    directory = tmp_path / "late"
    with (
        Daemon.start("--journal", str(directory)) as daemon,
        jetbus.Peer(f"jet://{daemon.listens['tcp']}") as owner,
    ):
        speed = owner.add_state("speed", 0)
        speed.change(1, ts=1_000_000)
        owner.get("speed")  # a turn of the daemon, and so an instant, of its own
        speed.change(5, ts=5_000_000)
        owner.call("$jet/journal/offsets")
        url = f"jet://{daemon.listens['tcp']}"
        archive: Archive = BusArchive(url, {}) if over_the_bus else LocalArchive(directory)
        cache = SeriesCache(archive)
        assert [n for n in cache.load("speed", "", 0, FAR_US).numbers if n == n] == [0, 1, 5]
        speed.change(3, ts=3_000_000, past=True)
        owner.call("$jet/journal/offsets")
        points = cache.load("speed", "", 0, FAR_US)
        assert points.numbers.tolist() == [0, 1, 3, 5]
        assert points.late is not None
        assert points.late.tolist() == [False, False, True, False]
        assert reduce_points(points, 0, FAR_US, 10)["late"].to_pylist() == [0, 0, 1, 0]
        speed.change(2, ts=2_000_000, past=True)
        owner.call("$jet/journal/offsets")
        since_us = int(points.us[1])
        assert cache.load("speed", "", since_us, FAR_US).numbers.tolist() == [0, 1, 2, 3, 5]
        archive.close()
