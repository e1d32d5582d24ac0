"""A recorder fills its gaps from the journal of the daemon that it records."""

from __future__ import annotations

import asyncio
from itertools import groupby
from pathlib import Path

import pytest

from jetbus import PeerAsync, journal
from jetbus.daemon.config import Address
from jetbus.recorder import Recorder
from jetbus.testing import running_daemon
from support.peers import run, until


def history(directory: Path, path: str) -> list[str]:
    """The values of a state in effective time, equal neighbours as one."""
    rows = journal.open(directory).history(path, missing_ok=True).to_pylist()
    return [value for value, _ in groupby(row["value"] for row in rows if row["event"] != "remove")]


@pytest.mark.parametrize("scheme", ["jet", "jetb"])
def test_missed_events_are_read_from_the_daemon(tmp_path: Path, scheme: str) -> None:
    """After a lost connection the recording has every value, those of the outage as late ones, and no gap."""

    async def case(url: str, port: str) -> None:
        async with Recorder(port, tmp_path / "recorded") as recorder, PeerAsync(url) as owner:
            state = await owner.add_state("pump/n", 0)
            other = await owner.add_state("pump/other", 0)
            losses, lose = [], recorder._behind.lose
            recorder._behind.lose = lambda: (losses.append(1), lose())  # type: ignore[assignment, func-returns-value]
            for turn in range(3):
                for number in range(20):
                    state.change(turn * 100 + number)
                await owner.get("pump/n")
                recorder.peer.abort()
                await until(lambda: len(losses) > turn)  # noqa: B023 - called at once
                for number in range(20, 70):
                    state.change(turn * 100 + number, quality="uncertain")
                other.change(turn)
                await owner.get("pump/n")
                await until(lambda: recorder.connected)
                for number in range(70, 100):
                    state.change(turn * 100 + number)
                await owner.get("pump/n")
            await until(lambda: not recorder._behind.is_missing)
            await recorder.commit()

    with running_daemon(journal=tmp_path / "log") as daemon:
        run(case(daemon.url, f"{scheme}://{daemon.listening['tcp' if scheme == 'jet' else 'binary']}"))
    assert history(tmp_path / "recorded", "pump/n") == [str(number) for number in range(300)]
    assert history(tmp_path / "recorded", "pump/other") == ["0", "1", "2"]
    events = journal.open(tmp_path / "recorded").table(columns=["event", "value", "quality"]).to_pylist()
    assert not [row for row in events if row["event"] == "gap"]
    late = [row for row in events if row["event"] == "past"]
    assert late
    assert "uncertain" in {row["quality"] for row in late}


def test_another_journal_is_a_gap(tmp_path: Path) -> None:
    """If the daemon comes back with another journal, what the recorder missed cannot be read: there is a gap."""

    async def case() -> None:
        with running_daemon(journal=tmp_path / "first") as daemon:
            recorder = Recorder(daemon.url, tmp_path / "recorded")
            await recorder.start()
            host, port = daemon.url.removeprefix("jet://").split(":")
            async with PeerAsync(daemon.url) as owner:
                await owner.add_state("pump/n", 1)
            await asyncio.to_thread(daemon.stop)
            await until(lambda: not recorder.connected)
        with running_daemon(journal=tmp_path / "second", tcp=Address(host, int(port))):
            await until(lambda: recorder.connected)
            await until(lambda: not recorder._behind.is_missing)
            await recorder.commit()
            await recorder.stop()

    run(case())
    (gap,) = journal.open(tmp_path / "recorded").table(events=["gap"]).to_pylist()
    assert "the connection was lost" in gap["detail"]
