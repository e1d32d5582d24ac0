"""Fetches that ask for the place of each event in the journal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import jetbus
from jetbus import journal
from jetbus.errors import Invalid
from jetbus.journal.instants import read_instant
from support.daemon import Daemon

StartDaemon = Callable[..., Daemon]
PROTOCOLS = {"JSON": "jet", "binary": "jetb"}


def _address(daemon: Daemon, protocol: str) -> str:
    name = {"JSON": "tcp", "binary": "binary"}[protocol]
    return f"{PROTOCOLS[protocol]}://{daemon.listens[name]}"


async def _watch_a_life(url: str, owner_url: str) -> list[jetbus.Event]:
    """Return the events of some states that live with all that can happen to them."""
    async with jetbus.PeerAsync(url) as client, jetbus.PeerAsync(owner_url, name="plc") as owner:
        before = await owner.add_state("p/before", 1)
        fetch = client.fetch("p/**", policy="every", schema=True, meta=True, recorded=True)
        await fetch.ready()
        before.change(1)
        state = await owner.add_state("p/speed", 0, unit="rpm")
        for value in (1, 1, 2, 2.5, "text", None, [1]):
            state.change(value)
        state.change(3, quality="bad")
        state.describe(unit="1/min")
        state.change(4, ts="2026-03-01T12:00:00Z", past=True)
        await owner.add_method("p/reset", print)
        await state.remove()
        before.change("last")
        events = []
        async for event in fetch:
            events.append(event)
            if event.value == "last":
                return events
    raise AssertionError


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("values", ["every", "changed"])
def test_events_say_where_they_are_recorded(tmp_path: Path, protocol: str, values: str) -> None:
    """Each event has the seq, the instant and the name under which the journal has it, if it has it."""
    folder = tmp_path / "log"
    with Daemon.start("--journal", str(folder), "--journal-values", values) as daemon:
        events = asyncio.run(_watch_a_life(_address(daemon, protocol), _address(daemon, "JSON")))
    rows = {row["seq"]: row for batch in journal.open(folder).read() for row in batch.to_pylist()}
    found = [(event, event.recorded) for event in events]
    assert found[0][1] is None, "a value that was there before says nothing of now"
    seen: list[Any] = [place for _, place in found[1:] if place is not None]
    for place in seen:
        row = rows[place.seq]
        assert (read_instant(place.ts), place.event) == (read_instant(row["ts"]), row["event"])
    wanted = [row["seq"] for row in rows.values() if (row["path"] or "").startswith("p/") and row["event"] != "past"]
    # The first is the add before the fetch, which a repeated value that is not recorded may have as its place.
    found_seqs = [seq for seq in dict.fromkeys(place.seq for place in seen) if seq != wanted[0]]
    assert found_seqs == [seq for seq in wanted[1:] if seq <= seen[-1].seq]
    assert len(seen) == len(found_seqs) or values == "changed"
    assert [place.event for place in seen if place.event not in ("change", "add")] == ["describe", "remove"]


def test_others_receive_the_same_bytes(start_daemon: StartDaemon, tmp_path: Path) -> None:
    """A fetch that does not ask is sent what it always was, beside one with the same id that does."""
    daemon = start_daemon("--journal", str(tmp_path / "log"))
    with daemon.connect() as owner, daemon.connect() as plain, daemon.connect() as asking:
        assert plain.result("fetch", {"id": "f"}) is True
        assert asking.result("fetch", {"id": "f", "recorded": True}) is True
        assert owner.result("add", {"path": "a", "value": 1}) is True
        assert plain.receive() == {"method": "f", "params": {"path": "a", "event": "add", "value": 1}}
        told = asking.receive()["params"]
        assert set(told) == {"path", "event", "value", "recorded"}
        assert set(told["recorded"]) == {"seq", "ts", "event"}


def test_without_a_journal_there_is_no_place(start_daemon: StartDaemon) -> None:
    """A daemon without a journal leaves the member out; a sorted fetch that asks is refused."""
    daemon = start_daemon()

    async def case() -> None:
        url = _address(daemon, "JSON")
        async with jetbus.PeerAsync(url) as client, jetbus.PeerAsync(url) as owner:
            fetch = client.fetch("a", policy="every", recorded=True)
            await fetch.ready()
            await owner.add_state("a", 1)
            async for event in fetch:
                assert event.recorded is None
                break
            with pytest.raises(Invalid, match="a sorted list has no place in the journal"):
                await client.fetch("a", sort_by="path", recorded=True).ready()

    asyncio.run(case())
