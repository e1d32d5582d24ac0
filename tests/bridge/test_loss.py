"""Daemons go and come back; the near bus never shows what is not there."""

from __future__ import annotations

import asyncio
import signal

import pytest

import jetbus
from jetbus import PeerAsync
from jetbus.bridge import Bridge, Phase, Status
from jetbus.testing import RunningDaemon
from support.bridges import Seen, mounted, raised, run, until
from support.daemon import Daemon


def test_far_loss_and_return(far: RunningDaemon, near: RunningDaemon) -> None:
    """All mounts vanish with the far daemon, and come back with it."""
    received: list[Status] = []

    async def case() -> None:
        async with PeerAsync(far.url) as owner, PeerAsync(near.url) as client:
            state = await owner.add_state("a", 1, on_set=lambda _value: None)
            await owner.add_method("b", lambda: 7)
            async with Bridge(far.url, near.url, prefix="plant2/", on_status=received.append):
                seen = await Seen(client).ready()
                await asyncio.to_thread(far.stop)
                await until(lambda: seen.events[-1].kind == "remove" and "$bridge" in seen.events[-1].path)
                assert await client.get_all() == {}
                state.change(2)
                await asyncio.to_thread(far.start)
                await client.wait_for("plant2/a value=2", timeout_s=20)
                await client.wait_for("plant2/b", timeout_s=20)
                await client.set("plant2/a", 3)
                assert await client.call("plant2/b") == 7
                assert await mounted(client) == {"a": 3}
                await until(lambda: received[-1].phase is Phase.MOUNTED)
        phases = [status.phase for status in received]
        assert phases == [
            Phase.MOUNTING,
            Phase.MOUNTED,
            Phase.FAR_LOST,
            Phase.MOUNTING,
            Phase.MOUNTED,
            Phase.STOPPED,
        ]
        assert received[1].mounted == 2
        assert str(received[1]) == "mounted, 2 states and methods"

    run(case())


def test_what_differs_after_the_return(far: RunningDaemon, near: RunningDaemon) -> None:
    """An element that comes back as something else (read-only, a method) is replaced, even with the same value."""

    async def case() -> None:
        async with PeerAsync(near.url) as client, Bridge(far.url, near.url, prefix="plant2/"):
            async with PeerAsync(far.url, reconnect=False) as owner:
                await owner.add_state("a", 1, on_set=lambda _value: None)
                await owner.add_state("b", 1)
                await client.wait_for("plant2/b")
                await asyncio.to_thread(far.restart)
            async with PeerAsync(far.url) as owner:
                await owner.add_state("a", 1)
                await owner.add_method("b", lambda: 1)
                await owner.add_state("c", 1)
                await client.wait_for("plant2/c", timeout_s=20)
                events = {event.path: event for event in (await Seen(client).ready()).events}
                assert events["plant2/a"].fetch_only
                assert events["plant2/b"].is_method

    run(case())


def test_near_loss_and_return(far: RunningDaemon, near: RunningDaemon) -> None:
    """After the near daemon returns, everything is mounted again with its present value."""
    received: list[Status] = []

    async def case() -> None:
        async with PeerAsync(far.url) as owner, PeerAsync(near.url) as client:
            a = await owner.add_state("a", 1, on_set=lambda _value: None)
            b = await owner.add_state("b", 1)
            async with Bridge(far.url, near.url, prefix="plant2/", on_status=received.append) as bridge:
                await asyncio.to_thread(near.stop)
                await until(lambda: received[-1].phase is Phase.NEAR_LOST)
                a.change(2)
                await b.remove()
                await owner.add_state("c", {"new": True})
                await asyncio.to_thread(near.start)
                await until(lambda: client.connected and received[-1].phase is Phase.MOUNTED)
                await client.wait_for("plant2/c", timeout_s=20)
                assert await mounted(client) == {"a": 2, "c": {"new": True}}
                await client.set("plant2/a", 3)
                assert a.value == 3
                assert bridge.status == Status(Phase.MOUNTED, 2, 0)

    run(case())


def test_both_lost(far: RunningDaemon, near: RunningDaemon) -> None:
    """Both daemons may be lost at once and return in any order."""

    async def case() -> None:
        async with PeerAsync(far.url) as owner, PeerAsync(near.url) as client:
            state = await owner.add_state("a", 1)
            async with Bridge(far.url, near.url, prefix="plant2/") as bridge:
                for first, second, value in ((far, near, 2), (near, far, 3)):
                    await asyncio.to_thread(far.stop)
                    await asyncio.to_thread(near.stop)
                    await until(lambda: bridge.status.mounted == 0)
                    await asyncio.to_thread(first.start)
                    await asyncio.to_thread(second.start)
                    await until(lambda: owner.connected and client.connected)
                    state.change(value)
                    await client.wait_for(f"plant2/a value={value}", timeout_s=20)

    run(case())


@pytest.mark.parametrize("which", ["far", "near"])
def test_killed(which: str) -> None:
    """A daemon that is killed and started anew is mounted, or mounted into, again."""
    with Daemon.start() as lasting:
        killed = Daemon.start()
        address = killed.listens["tcp"]
        urls = {name: f"jet://{killed.listens['tcp'] if name == which else lasting.listens['tcp']}" for name in WHICH}

        async def case() -> None:
            async with PeerAsync(urls["far"]) as owner, PeerAsync(urls["near"]) as client:
                await owner.add_state("a", 1)
                async with Bridge(urls["far"], urls["near"], prefix="plant2/") as bridge:
                    mirror = await client.mirror("plant2/a").ready()
                    lost = bridge.status.phase
                    killed.process.send_signal(signal.SIGKILL)
                    killed.process.wait()
                    await until(lambda: bridge.status.phase is WHICH[which])
                    assert lost is Phase.MOUNTED
                    if which == "far":
                        await until(lambda: not mirror)
                    with Daemon.start("--tcp", address):
                        await until(lambda: owner.connected and client.connected)
                        await client.wait_for("plant2/a", timeout_s=20)
                        await owner.close()
                        await client.close()

        try:
            run(case())
        finally:
            killed.close_log()
            assert killed.process.stdout is not None
            killed.process.stdout.close()


WHICH = {"far": Phase.FAR_LOST, "near": Phase.NEAR_LOST}


@pytest.mark.parametrize("which", WHICH)
def test_nobody_there(far: RunningDaemon, near: RunningDaemon, which: str) -> None:
    """A bridge to a daemon that is not there does not start, and says which; nothing of it is left on the other."""
    absent = far if which == "far" else near
    present = near if which == "far" else far
    url = absent.url
    absent.stop()

    async def case() -> None:
        bridge = Bridge(far.url, near.url, prefix="plant2/")
        problem = await raised(bridge.start())
        assert isinstance(problem, jetbus.NotConnected)
        assert url in str(problem)
        assert "start one with `jetd`" in str(problem)
        assert bridge.status.phase is Phase.STOPPED
        async with PeerAsync(present.url) as peer:
            assert await peer.get_all() == {}

    run(case())


def test_wait_for_both(far: RunningDaemon, near: RunningDaemon) -> None:
    """A bridge that is to wait starts as soon as both daemons are there."""
    far.stop()
    near.stop()

    async def case() -> None:
        bridge = Bridge(far.url, near.url, prefix="plant2/")
        starting = asyncio.ensure_future(bridge.start(wait=True))
        await asyncio.to_thread(near.start)
        await asyncio.to_thread(far.start)
        await starting
        assert bridge.status.phase is Phase.MOUNTED
        await bridge.stop()

    run(case())
