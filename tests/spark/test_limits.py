"""The limits of the Spark side, each crossed once."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import jetbus
from jetbus.alarms.definitions import ALARMS_MAX
from jetbus.spark import BadOption, Publisher, query_methods, remote, sink
from jetbus.spark.alarms import read_alarms
from jetbus.spark.journals import BUNDLES_MIN, PARTITIONS_MAX, Bundle, cut, open_place
from jetbus.spark.options import DaemonAddress
from jetbus.spark.user_stages import STAGES_MAX, read_stages
from jetbus.testing import running_daemon
from support.spark.journals import numbers, write_events


def test_too_many_stages(spark: SparkSession, tmp_path: Path) -> None:
    """A file has at most so many stages of one's own."""
    file = tmp_path / "stages.toml"
    file.write_text("\n".join(f"[stage.s{n}]" for n in range(STAGES_MAX + 1)))
    with pytest.raises(BadOption, match="101 stages are more than 100; let one function do more"):
        read_stages(file, spark)


def test_too_many_alarms(tmp_path: Path) -> None:
    """A file has at most so many alarms."""
    file = tmp_path / "alarms.toml"
    file.write_text("\n".join(f'[alarm.a{n}]\nrule = "a"\nwhen = "num > 1"' for n in range(ALARMS_MAX + 1)))
    with pytest.raises(BadOption, match="1001 alarms are more than 1000; merge some by wider rules"):
        read_alarms(file)


def test_too_many_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows become at most so many states; those that are there already still change."""
    monkeypatch.setattr(sink, "STATES_MAX", 2)
    with running_daemon() as daemon, jetbus.Peer(daemon.url) as peer, jetbus.Peer(daemon.url) as other:
        states = Publisher(peer, "s")
        states.show([("a", 1), ("b", 1)])
        with pytest.raises(BadOption, match="more than 2 states; publish fewer rows"):
            states.show([("a", 2), ("c", 1)])
        peer.info()  # answered after what was changed before
        assert other.get_all("s/**") == {"s/a": 2, "s/b": 1}


def test_many_events_are_not_many_tasks(tmp_path: Path) -> None:
    """However many events there are, they are read by at most so many tasks for each bus, without one left out."""
    write_events(tmp_path / "journal", numbers(1), bus="plant")
    buses = {"plant": open_place(tmp_path / "journal")}
    ranges = cut(buses, {"plant": 0}, {"plant": 1_000_000_007}, 1)
    assert len(ranges) <= PARTITIONS_MAX + 1
    assert (ranges[0].first, ranges[-1].last) == (1, 1_000_000_007)
    assert all(after.first == before.last + 1 for before, after in itertools.pairwise(ranges))


def test_many_journals_are_not_many_tasks(tmp_path: Path) -> None:
    """Many small ranges share a task; a range of the usual size has its own."""
    write_events(tmp_path / "journal", numbers(1), bus="plant")
    buses = {f"d{n}": open_place(tmp_path / "journal") for n in range(1000)}
    lasts = {name: 500 if name == "d7" else 3 for name in buses}
    tasks = cut(buses, dict.fromkeys(buses, 0), lasts, 100)
    assert len(tasks) <= BUNDLES_MIN + 2 * 5 + 1
    ranges = [one for task in tasks for one in (task.ranges if isinstance(task, Bundle) else [task])]
    assert [(one.bus, one.first, one.last) for one in ranges if one.bus != "d7"] == [
        (name, 1, 3) for name in buses if name != "d7"
    ]
    assert [one.first for one in tasks if one.bus == "d7" and not isinstance(one, Bundle)] == [1, 101, 201, 301, 401]
    few = {name: buses[name] for name in list(buses)[:BUNDLES_MIN]}
    assert len(cut(few, dict.fromkeys(few, 0), dict.fromkeys(few, 3), 100)) == BUNDLES_MIN


def test_connections_of_tasks_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of tasks keeps so many connections and lets go of the oldest."""
    monkeypatch.setattr(remote, "CONNECTIONS_MAX", 1)
    lines = remote.Connections()
    with running_daemon() as one, running_daemon() as two:
        first = lines.get(DaemonAddress(one.url))
        assert lines.get(DaemonAddress(one.url)) is first
        second = lines.get(DaemonAddress(two.url))
        assert (first.connected, second.connected) == (False, True)
        lines.close()
        assert not second.connected


def test_an_answer_fits_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that would make an answer too large for the bus are left out, and it says so."""
    monkeypatch.setattr(query_methods, "ANSWER_BYTES_MAX", 100)
    received = query_methods._answer(["text"], [("x" * 40,)] * 5, has_more=False)
    assert received == {"columns": ["text"], "rows": [["x" * 40]] * 2, "more": True}
