"""restore: states are set back to the values of an instant, and each refusal is named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import jetbus
from jetbus.journal.instants import write_instant
from support.daemon import Daemon
from support.jet import Done, Jet
from support.plant import url_of


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon.start("--journal", str(tmp_path / "journal")) as daemon:
        yield daemon


@pytest.fixture
def owner(bus: Daemon) -> Iterator[jetbus.Peer]:
    """A peer whose states have changed since the instant ``then``."""
    with jetbus.Peer(url_of(bus)) as peer:
        yield peer


def change_after(owner: jetbus.Peer, *states: jetbus.State) -> str:
    """Give the states the value 9 and return an instant before that."""
    then = write_instant(owner.call("$jet/journal/offsets")["now"])
    for state in states:
        state.change(9)
    return then


def rows(done: Done) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.out.splitlines()]


def test_states_are_set_back(bus: Daemon, owner: jetbus.Peer, tmp_path: Path) -> None:
    """States that differ are set; a dry run only prints them; equal ones are left alone."""
    speed = owner.add_state("pump/speed", 1, on_set=lambda _rpm: None)
    owner.add_state("pump/mode", "auto", on_set=lambda _mode: None)
    then = change_after(owner, speed)
    jet = Jet(url_of(bus), tmp_path)
    planned = jet("restore", "pump/**", "--to", then, "--dry-run")
    assert rows(planned) == [{"path": "pump/speed", "now": 9, "then": 1, "outcome": "would be set"}]
    assert speed.value == 9
    done = jet("restore", "pump/**", "--to", then)
    assert (done.code, rows(done)) == (0, [{"path": "pump/speed", "now": 9, "then": 1, "outcome": "set"}])
    assert owner.wait_for("pump/speed value=1", timeout_s=30).value == 1


def test_refusals_are_named(bus: Daemon, owner: jetbus.Peer, tmp_path: Path) -> None:
    """A state that its owner does not take back is named with the reason, and the others are set all the same."""

    def refuse(_rpm: int) -> None:
        raise jetbus.Refused("the pump is locked")

    locked = owner.add_state("a", 1, on_set=refuse)
    read_only = owner.add_state("b", 2)
    free = owner.add_state("c", 3, on_set=lambda _value: None)
    then = change_after(owner, locked, read_only, free)
    done = Jet(url_of(bus), tmp_path)("restore", "*", "--to", then)
    outcomes = {row["path"]: row["outcome"] for row in rows(done)}
    assert done.code == 1
    assert "the pump is locked" in outcomes["a"]
    assert "read-only" in outcomes["b"]
    assert outcomes["c"] == "set"
    assert owner.wait_for("c value=3", timeout_s=30).value == 3


def test_what_came_or_went_is_left_alone(bus: Daemon, owner: jetbus.Peer, tmp_path: Path) -> None:
    """States that are not there now, or were not then, are not touched."""
    gone = owner.add_state("gone", 1)
    then = change_after(owner)
    gone.remove()
    owner.add_state("new", 2, on_set=lambda _value: None)
    done = Jet(url_of(bus), tmp_path)("restore", "*", "--to", then)
    assert (done.code, rows(done)) == (0, [])
