"""Events of nodes, for fetches that ask for them, and fetches from a subscription of the caller's own."""

from __future__ import annotations

from typing import Any

import pytest

import jetbus
from jetbus.peer.subscription import Subscription
from jetbus.rules import rule
from jetbus.testing import running_daemon
from support.peers import PeerFactory, run


def _brief(events: list[Any]) -> list[tuple[str, str, bool, Any]]:
    return [(event.kind, event.path, event.is_node, event.value) for event in events]


def test_nodes(schemed: PeerFactory) -> None:
    """With nodes=True, nodes come before the first leaf below them and go after the last, whatever the protocol."""

    async def case() -> None:
        async with schemed.peer() as owner, schemed.peer() as client:
            state = await owner.add_state("a/b/c", 1)
            fetch = await (await client.fetch(policy="every", nodes=True)).ready()
            await state.change(2)
            await owner.add_method("a/m", lambda: None)
            await state.remove()
            assert _brief(await fetch.take(7)) == [
                ("add", "a", True, None),
                ("add", "a/b", True, None),
                ("add", "a/b/c", False, 1),
                ("change", "a/b/c", False, 2),
                ("add", "a/m", False, None),
                ("remove", "a/b/c", False, 2),
                ("remove", "a/b", True, None),
            ]

    run(case())


def test_only_those_who_ask(bus: PeerFactory) -> None:
    """A fetch without nodes has no events of nodes, and a rule sees nodes by their own path."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            plain = await (await client.fetch(policy="every")).ready()
            ends = await (await client.fetch("**/b", policy="every", nodes=True)).ready()
            await owner.add_state("a/b/c", 1)
            await owner.add_state("x/b", 2)
            assert _brief(await plain.take(2)) == [("add", "a/b/c", False, 1), ("add", "x/b", False, 2)]
            assert _brief(await ends.take(2)) == [("add", "a/b", True, None), ("add", "x/b", False, 2)]

    run(case())


def test_unread_events_of_nodes_are_merged(bus: PeerFactory) -> None:
    """A node that goes and comes before anybody looks is no news; a state at its path is not mixed up with it."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            await owner.add_state("a", 0)
            leaf = await owner.add_state("a/b", 1)
            fetch = await (await client.fetch(nodes=True)).ready()
            assert len(await fetch.take(3)) == 3
            await leaf.remove()
            await owner.add_state("a/b", 2)
            await owner.add_state("last", 3)
            await client.get_all()  # all events are there when it is answered
            assert _brief(await fetch.take(2)) == [("change", "a/b", False, 2), ("add", "last", False, 3)]

    run(case())


def test_nodes_after_a_reconnect(face: str) -> None:
    """After a reconnect a fetch yields only the nodes that came or went meanwhile."""

    async def case() -> None:
        with running_daemon() as daemon:
            bus = PeerFactory(daemon.url, face)
            async with bus.peer() as owner, bus.peer() as client:
                gone = await owner.add_state("a/old/s", 1)
                await owner.add_state("a/s", 1)
                fetch = await (await client.fetch(policy="every", nodes=True)).ready()
                assert len(await fetch.take(4)) == 4
                await client.abort()
                await gone.remove()
                await owner.add_state("new/s", 2)
                seen = set(_brief(await fetch.take(4)))
                assert seen == {
                    ("add", "new", True, None),
                    ("add", "new/s", False, 2),
                    ("remove", "a/old/s", False, 1),
                    ("remove", "a/old", True, None),
                }

    run(case())


def test_start_fetch(bus: PeerFactory) -> None:
    """Both peers start a fetch from a subscription of the caller's own."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            await owner.add_state("a/b", 1)
            fetch = await client.start_fetch(Subscription("mine", rule("a/*"), policy="every", nodes=True))
            assert _brief(await fetch.take(1)) == [("add", "a/b", False, 1)]
            listed = await client.start_fetch(Subscription("sorted", rule(sort_by="path")))
            assert [event.path for event in (await listed.take(1))[0]] == ["a/b"]
            await fetch.close()

    run(case())


@pytest.mark.parametrize(
    ("options", "words"),
    [({"sort_by": "path"}, "leave out sort"), ({"since": "-1h"}, "leave out since")],
    ids=["sorted", "past"],
)
def test_refused(bus: PeerFactory, options: dict[str, Any], words: str) -> None:
    """Nodes together with a sorted list or with the past are refused, and the error says what to leave out."""

    async def case() -> None:
        async with bus.peer() as client:
            fetch = await client.fetch(nodes=True, **options)
            with pytest.raises(jetbus.Invalid, match=words):
                await fetch.take(1)

    run(case())
