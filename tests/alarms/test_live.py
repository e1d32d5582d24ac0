"""Alarms on a real bus: what they publish, what operators may do, and what cannot be."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import jetbus
from jetbus.alarms.live import LiveAlarms
from jetbus.errors import Invalid, Occupied
from jetbus.journal.journal_errors import NoJournal
from jetbus.testing import RunningDaemon, running_daemon

WITHIN_S = 30.0
ALARMS = """
[alarm.hot]
rule = "oven/*"
when = "num > 80"
priority = "low"

[alarm.leak]
rule = "oven/*"
when = "text = 'leak'"
priority = "critical"

[alarm.silent]
rule = "oven/*"
when = "stale"
"""


@contextlib.asynccontextmanager
async def _running(daemon: RunningDaemon, file: Path, **options: Any) -> AsyncIterator[LiveAlarms]:
    """Run alarms for a while; errors of their start are raised."""
    ready = asyncio.Event()
    alarms = LiveAlarms(daemon.url, file, on_ready=ready.set, **options)
    running = asyncio.create_task(alarms.run())
    waiting = asyncio.create_task(ready.wait())
    try:
        await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        yield alarms
    finally:
        for task in (waiting, running):
            task.cancel()
        await asyncio.gather(waiting, running, return_exceptions=True)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "alarms.toml"
    found.write_text(ALARMS)
    return found


def test_what_is_published(tmp_path: Path, file: Path) -> None:
    """Alarms are states, which sorted fetches order by urgency; acts over the bus change them."""

    async def case(daemon: RunningDaemon) -> None:
        async with _running(daemon, file), jetbus.PeerAsync(daemon.url) as peer:
            oven = await peer.add_state("oven/left", 99)
            other = await peer.add_state("oven/right", "leak")
            await peer.add_state("oven/old", 1, stale_s=0.05)
            await peer.wait_for("alarms/active/silent/oven/old", timeout_s=WITHIN_S)
            ranked = await peer.fetch("alarms/active/**", sort_by="value.rank").ready()
            order = [event.path.removeprefix("alarms/active/") for event in await anext(aiter(ranked))]
            assert order == ["leak/oven/right", "silent/oven/old", "hot/oven/left"]
            changed = await peer.call("alarms/shelve", minutes=5, alarm="hot", note="being repaired", who="ann")
            assert changed == [{"alarm": "hot", "path": "oven/left"}]
            told = await peer.get("alarms/active/hot/oven/left")
            assert (told["state"], told["who"], told["note"]) == ("shelved", "ann", "being repaired")
            await peer.call("alarms/out_of_service", priority="critical")
            assert (await peer.get("alarms/active/leak/oven/right"))["state"] == "out_of_service"
            other.change("dry")
            oven.change(20)
            await peer.call("alarms/in_service", alarm="leak")
            await peer.call("alarms/unshelve", path="oven/*")
            assert list(await peer.get_all("alarms/active/**")) == ["alarms/active/silent/oven/old"]
            await peer.wait_for("alarms/counts value.active=1", timeout_s=WITHIN_S)
            with pytest.raises(Invalid, match="at most 480 minutes"):
                await peer.call("alarms/shelve", minutes=481, alarm="silent")
            with pytest.raises(Invalid, match="say which alarms"):
                await peer.call("alarms/ack")

    with running_daemon(journal=tmp_path / "log") as daemon:
        asyncio.run(case(daemon))


def test_the_next_process_knows_what_was_done(tmp_path: Path, file: Path) -> None:
    """Alarms that are raised while nothing watches are found in the journal, and what was acknowledged is known."""
    told: list[Any] = []

    async def case(daemon: RunningDaemon) -> None:
        async with jetbus.PeerAsync(daemon.url) as peer:
            oven = await peer.add_state("oven/left", 99)
            async with _running(daemon, file):
                await peer.call("alarms/ack", alarm="hot", note="seen")
                before = await peer.get("alarms/active/hot/oven/left")
            other = await peer.add_state("oven/right", 99)
            other.change(20)
            async with _running(daemon, file, on_transition=told.append):
                assert await peer.get("alarms/active/hot/oven/left") == before
                assert [(one["path"], one["what"]) for one in told] == [
                    ("oven/right", "raised"),
                    ("oven/right", "cleared"),
                ]
                oven.change(20)
                await peer.wait_for("alarms/counts value.active=1", timeout_s=WITHIN_S)

    with running_daemon(journal=tmp_path / "log") as daemon:
        asyncio.run(case(daemon))


def test_alarms_that_cannot_begin(tmp_path: Path, file: Path) -> None:
    """A second process at the same prefix and a daemon without a journal are refused."""

    async def second(daemon: RunningDaemon) -> None:
        async with _running(daemon, file):
            with pytest.raises(Occupied, match="alarms/counts"):
                async with _running(daemon, file):
                    raise AssertionError
            async with _running(daemon, file, prefix="line2/alarms"):
                pass

    async def without_journal(daemon: RunningDaemon) -> None:
        with pytest.raises(NoJournal):
            async with _running(daemon, file):
                raise AssertionError

    with running_daemon(journal=tmp_path / "log") as daemon:
        asyncio.run(second(daemon))
    with running_daemon() as daemon:
        asyncio.run(without_journal(daemon))
    with pytest.raises(Invalid, match="cannot hold states"):
        LiveAlarms(None, file, prefix="$jet")
