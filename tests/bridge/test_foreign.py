"""Bridges from and to the daemons of node-jet, and stand-ins for cjet and lua-jet."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from itertools import count
from typing import Any

import pytest

import jetbus
from jetbus import Blob, PeerAsync, SetResult
from jetbus.bridge import Bridge, SameBus
from jetbus.testing import RunningDaemon
from support.bridges import Seen, mounted, raised, run, until
from support.foreign import KINDS, NAMES, ForeignDaemon
from support.standin import standing_in

pytestmark = pytest.mark.interop

STAND_INS = ["cjet", "lua"]
_numbers = count(1)


@pytest.fixture(
    scope="module",
    params=[*KINDS, *STAND_INS],
    ids=[*NAMES, *STAND_INS],
)
def foreign(request: pytest.FixtureRequest) -> Iterator[tuple[int, str]]:
    """The version and url of a node-jet daemon, or 0 and that of a stand-in; shared: each test has its own prefix."""
    if request.param in STAND_INS:
        with standing_in(request.param) as url:
            yield 0, url
        return
    with ForeignDaemon(*request.param) as daemon:
        yield daemon.version, daemon.url


@pytest.fixture
def at() -> str:
    """A prefix of this test's own."""
    return f"test{next(_numbers)}"


def _refuse(_value: Any) -> None:
    raise jetbus.Refused("too hot", {"limit": 80}, code=-7)


async def _passes(owner: PeerAsync, client: PeerAsync, at: str, *, has_methods: bool) -> None:
    """A client can use below ``p/at`` everything that an owner has below ``at``."""
    state = await owner.add_state(f"{at}/speed", 1, on_set=lambda value: min(value, 10))
    only = await owner.add_state(f"{at}/only", {"a": None})
    await owner.add_state(f"{at}/hot", 1, on_set=_refuse)
    await owner.add_state(f"{at}/blob", Blob(b"\x01", mime="image/x"), on_set=lambda _value: None)
    await owner.add_method(f"{at}/add", lambda a, b: a + b)
    await owner.add_state(f"{at}/last", 1)
    mirror = await client.mirror(starts_with=f"p/{at}/").ready()
    await until(lambda: f"p/{at}/last" in mirror)
    assert mirror[f"p/{at}/only"] == {"a": None}
    assert mirror[f"p/{at}/blob"] == b"\x01"
    assert await client.set(f"p/{at}/speed", 7) == SetResult(7)
    assert (await client.set(f"p/{at}/speed", 70)).adapted
    await until(lambda: mirror[f"p/{at}/speed"] == 10)
    assert state.value == 10
    assert isinstance(await raised(client.set(f"p/{at}/only", 1)), jetbus.ReadOnly)
    refused = await raised(client.set(f"p/{at}/hot", 1))
    assert isinstance(refused, jetbus.Refused)
    assert (refused.own_code, refused.message, refused.data) == (-7, "too hot", {"limit": 80})
    await client.set(f"p/{at}/blob", b"\x02\x03")
    await until(lambda: mirror[f"p/{at}/blob"] == b"\x02\x03")
    if has_methods:
        await until(lambda: f"p/{at}/add" in mirror)
        assert await client.call(f"p/{at}/add", 1, 2) == 3
        assert await client.call(f"p/{at}/add", a=3, b=4) == 7
    only.change("other")
    await until(lambda: mirror[f"p/{at}/only"] == "other")
    await only.remove()
    await until(lambda: f"p/{at}/only" not in mirror)


def test_from_node_jet(foreign: tuple[int, str], near: RunningDaemon, at: str) -> None:
    """A node-jet bus can be mounted into ours; node-jet 3 does not report methods, so these are missing."""
    version, url = foreign

    async def case() -> None:
        bridge = Bridge(url, near.url, prefix="p/", rule=jetbus.rule(starts_with=at))
        async with PeerAsync(url) as owner, PeerAsync(near.url) as client, bridge:
            await _passes(owner, client, at, has_methods=version != 3)

    run(case())


def test_to_node_jet(foreign: tuple[int, str], far: RunningDaemon, at: str) -> None:
    """Our bus can be mounted into a node-jet one; node-jet 3 passes on how long a requester waits."""
    version, url = foreign

    async def case() -> None:
        async with PeerAsync(far.url) as owner, PeerAsync(url) as client, Bridge(far.url, url, prefix="p/"):
            await _passes(owner, client, at, has_methods=version != 3)
            if version == 3:
                never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                await owner.add_state(f"{at}/slow", 0, on_set=lambda _value: asyncio.shield(never))
                await client.wait_for(f"p/{at}/slow", timeout_s=20)
                problem = await raised(client.set(f"p/{at}/slow", 1, timeout_s=0.05))
                assert isinstance(problem, jetbus.TimedOut)
                assert problem.data == {"path": f"p/{at}/slow", "value": 1, "timeout": 0.05}
                never.cancel()

    run(case())


def test_facing(foreign: tuple[int, str], far: RunningDaemon, at: str) -> None:
    """Two bridges that face each other echo nothing, with a node-jet daemon at one end."""
    _version, url = foreign

    async def case() -> None:
        async with AsyncExitStack() as stack:
            ours = await stack.enter_async_context(PeerAsync(far.url))
            theirs = await stack.enter_async_context(PeerAsync(url))
            witness = await stack.enter_async_context(PeerAsync(url))
            await stack.enter_async_context(Bridge(far.url, url, prefix=f"{at}-ours/"))
            await stack.enter_async_context(Bridge(url, far.url, prefix="theirs/"))
            seen, seen_theirs = await Seen(ours).ready(), await Seen(witness).ready()
            for name in ("one", "two", "three"):
                await ours.add_state(f"{at}/{name}", 1)
                await witness.wait_for(f"{at}-ours/{at}/{name}", timeout_s=20)
                await theirs.add_state(f"{at}/their-{name}", 1)
                await ours.wait_for(f"theirs/{at}/their-{name}", timeout_s=20)
            assert {path for path in seen.paths if "-ours/" in path} == set()
            assert {path for path in seen_theirs.paths if "theirs/" in path} == set()
            assert await mounted(ours, "theirs/") == {f"{at}/their-{name}": 1 for name in ("one", "two", "three")}
            # node-jet 3's daemon ends when a peer is gone whose fetch was still to be told of a lost owner.
            seen_theirs.close()
            await witness.info()

    run(case())


def test_onto_its_own_bus(foreign: tuple[int, str]) -> None:
    """A bridge from a node-jet bus onto itself does not start."""
    _version, url = foreign

    async def case() -> None:
        assert isinstance(await raised(Bridge(url, url, prefix="p/").start()), SameBus)

    run(case())
