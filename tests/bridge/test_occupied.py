"""Places on the near bus that are taken, and limits: said once, tried again, and nobody else is hurt."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from jetbus import PeerAsync
from jetbus.bridge import Bridge, Phase, Status, bridge, status
from jetbus.testing import RunningDaemon, running_daemon
from support.bridges import mounted, run, until


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trying again need not take a second here."""
    monkeypatch.setattr(bridge, "RETRY_S", 0.02)


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


OCCUPIED: dict[str, tuple[str, str]] = {
    "the same path": ("a/b", "plant2/a/b"),
    "a state where a node is to be": ("a/b", "plant2/a"),
    "a node where a state is to be": ("a", "plant2/a/b"),
}


@pytest.fixture
def near_strict() -> Iterator[RunningDaemon]:
    """A bus to mount into on which nodes are in the way, too."""
    with running_daemon(tree="strict") as daemon:
        yield daemon


@pytest.mark.parametrize(("far_path", "taken"), OCCUPIED.values(), ids=OCCUPIED)
def test_occupied(
    far: RunningDaemon, near_strict: RunningDaemon, caplog: pytest.LogCaptureFixture, far_path: str, taken: str
) -> None:
    """A path that is taken is logged once, the rest goes on, and it is mounted, as it is then, when it becomes free."""

    async def case() -> None:
        async with PeerAsync(far.url) as owner, PeerAsync(near_strict.url) as client:
            state = await owner.add_state(far_path, 1, on_set=lambda _value: None)
            await owner.add_state("rest", 1)
            own = await client.add_state(taken, "own")
            async with Bridge(far.url, near_strict.url, prefix="plant2/") as mounting:
                assert mounting.blocked == [f"plant2/{far_path}"]
                assert mounting.status == Status(Phase.MOUNTED, 1, 1)
                assert await mounted(client) == {taken.removeprefix("plant2/"): "own", "rest": 1}
                for value in (2, 3):
                    state.change(value)
                    await _tried(mounting, f"plant2/{far_path}")
                assert await client.get_all(taken) == {taken: "own"}
                (warning,) = _warnings(caplog)
                assert warning.startswith(f"{far_path} is not mounted: cannot add plant2/{far_path}: ")
                await own.remove()
                await client.wait_for(f"plant2/{far_path} value=3", timeout_s=20)
                await client.set(f"plant2/{far_path}", 4)
                assert state.value == 4
                assert mounting.blocked == []
                assert len(_warnings(caplog)) == 1

    run(case())


async def _tried(mounting: Bridge, path: str) -> None:
    """Wait until a blocked path was tried once more."""
    attempts = mounting.count_attempts(path)
    await until(lambda: mounting.count_attempts(path) > attempts)


def test_blocked_and_gone(far: RunningDaemon, near: RunningDaemon) -> None:
    """A blocked element that is gone from the far bus is not tried again."""

    async def case() -> None:
        async with PeerAsync(far.url) as owner, PeerAsync(near.url) as client:
            state = await owner.add_state("a", 1)
            own = await client.add_state("plant2/a", "own")
            async with Bridge(far.url, near.url, prefix="plant2/") as mounting:
                await state.remove()
                await until(lambda: mounting.blocked == [])
                await own.remove()
                await owner.add_state("b", 1)
                await client.wait_for("plant2/b")
                assert await mounted(client) == {"b": 1}

    run(case())


def test_many_occupied(far: RunningDaemon, near: RunningDaemon, caplog: pytest.LogCaptureFixture) -> None:
    """Many paths that are taken fill neither the log nor the way of the others, and all are mounted in the end."""

    async def case() -> None:
        async with PeerAsync(far.url) as owner, PeerAsync(near.url) as client:
            for number in range(50):
                await owner.add_state(f"{number}", number)
            async with PeerAsync(near.url) as other:
                for number in range(40):
                    await other.add_state(f"plant2/{number}", "own")
                mounting = Bridge(far.url, near.url, prefix="plant2/")
                await mounting.start()
                assert (mounting.status.mounted, mounting.status.blocked) == (10, 40)
                assert len(_warnings(caplog)) == status.COMPLAINTS_MAX + 1
            await until(lambda: mounting.status == Status(Phase.MOUNTED, 50, 0))
            assert await mounted(client) == {f"{number}": number for number in range(50)}
            await mounting.stop()

    run(case())


def test_occupied_on_return(far: RunningDaemon, near: RunningDaemon) -> None:
    """If two peers want a path after the near daemon returns, the bridge gets it once the other one is gone."""

    async def case() -> None:
        async with PeerAsync(far.url) as owner, PeerAsync(near.url) as client, PeerAsync(near.url) as rival:
            await owner.add_state("a", 1)
            await owner.add_state("b", 1)
            await rival.add_state("plant2/a", "rival")
            async with Bridge(far.url, near.url, prefix="plant2/") as mounting:
                for _ in range(3):
                    await asyncio.to_thread(near.restart)
                    await until(lambda: client.connected and rival.connected)
                    await client.wait_for("plant2/b", timeout_s=20)
                await rival.close()
                await client.wait_for("plant2/a value=1", timeout_s=20)
                await until(lambda: mounting.status == Status(Phase.MOUNTED, 2, 0))

    run(case())


def test_mounts_max(far: RunningDaemon, near: RunningDaemon, caplog: pytest.LogCaptureFixture) -> None:
    """A bridge mounts so many and says what to do; when others go, more come."""

    async def case() -> None:
        async with PeerAsync(far.url) as owner, PeerAsync(near.url) as client:
            states = [await owner.add_state(f"{number}", number) for number in range(5)]
            async with Bridge(far.url, near.url, prefix="plant2/", mounts_max=3) as mounting:
                assert await mounted(client) == {"0": 0, "1": 1, "2": 2}
                assert mounting.blocked == ["plant2/3", "plant2/4"]
                assert "give it a narrower rule, or more mounts_max" in _warnings(caplog)[0]
                await states[0].remove()
                await until(lambda: mounting.status.blocked == 1)
                await mounting.near.info()
                assert len(await mounted(client)) == 3

    run(case())


def test_one_prefix_one_bridge(far: RunningDaemon, near: RunningDaemon, caplog: pytest.LogCaptureFixture) -> None:
    """A second bridge with the same prefix stands by, and takes over when the first one is gone."""
    received: list[Any] = []

    async def case() -> None:
        async with PeerAsync(far.url) as owner, PeerAsync(near.url) as client:
            state = await owner.add_state("a", 1, on_set=lambda _value: None)
            first = Bridge(far.url, near.url, prefix="plant2/")
            await first.start()
            async with Bridge(far.url, near.url, prefix="plant2/", on_status=received.append) as second:
                assert (second.status.phase, second.status.mounted) == (Phase.WAITING, 0)
                (warning,) = _warnings(caplog)
                assert "another bridge has that prefix" in warning
                state.change(2)
                await client.wait_for("plant2/a value=2", timeout_s=20)
                await first.stop()
                await until(lambda: second.status == Status(Phase.MOUNTED, 1, 0))
                await client.wait_for("plant2/a value=2", timeout_s=20)
                await client.set("plant2/a", 3)
                assert state.value == 3
        assert [status.phase for status in received][:3] == [Phase.MOUNTING, Phase.WAITING, Phase.MOUNTED]

    run(case())


def test_limit_of_the_near_daemon(far: RunningDaemon, caplog: pytest.LogCaptureFixture) -> None:
    """Mounts beyond a limit of the near daemon are reported with the name of the limit; the rest is mounted."""

    async def case(near: RunningDaemon) -> None:
        async with PeerAsync(far.url) as owner, PeerAsync(near.url) as client:
            await owner.add_state("a" * 60, 1)
            await owner.add_state("b", 1)
            async with Bridge(far.url, near.url, prefix="plant2/"):
                assert await mounted(client) == {"b": 1}
                assert "path_chars_max" in _warnings(caplog)[0]

    with running_daemon(path_chars_max=50) as near:
        run(case(near))
