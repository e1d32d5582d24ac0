"""Effects of a lost peer on the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from support.node import DEADLINE_S, JetError, NodeBus, Transport, Version, event

if TYPE_CHECKING:
    from interop.conftest import FreshNode

pytestmark = pytest.mark.interop

INTERNAL_ERROR = -32603


def test_the_states_of_a_closed_owner_are_removed(bus: NodeBus, version: Version, transport: Transport) -> None:
    """The states of an owner that closes are removed in the order in which they were added."""
    owner, client = bus.peer(version, transport), bus.peer(version, transport)
    for path, value in {"pump/b": 1, "pump/a": 2, "pump/c": 3}.items():
        owner.add_state(path, value)
    owner.change("pump/b", 10)
    fetch = client.fetch(("path", "startsWith", "pump/"))
    assert len(fetch.seen(owner)) == 3
    owner.close()
    assert fetch.take(3) == [
        event(client, "remove", "pump/b", 10),
        event(client, "remove", "pump/a", 2),
        event(client, "remove", "pump/c", 3),
    ]
    assert client.get(path={"startsWith": "pump/"}) == []


def test_the_states_of_a_killed_owner_are_removed(
    bus: NodeBus, version: Version, transport: Transport, fresh_node: FreshNode
) -> None:
    """The states of an owner whose process dies are removed, and their paths are free."""
    doomed = fresh_node(version)
    owner, client = bus.peer(version, transport, node=doomed), bus.peer(version, transport)
    owner.add_state("pump/speed", 1)
    fetch = client.fetch(("path", "startsWith", "pump/"))
    doomed.kill()
    assert fetch.take(2) == [event(client, "add", "pump/speed", 1), event(client, "remove", "pump/speed", 1)]
    client.add_state("pump/speed", 2)
    assert fetch.seen() == [event(client, "add", "pump/speed", 2)]


@pytest.mark.parametrize(
    ("op", "args"),
    [("set", {"path": "pump/it", "value": 1}), ("call", {"path": "pump/it", "args": [1]})],
    ids=["set", "call"],
)
def test_requests_to_a_lost_owner_fail(
    bus: NodeBus, classic: Version, version: Version, transport: Transport, op: str, args: dict[str, Any]
) -> None:
    """A request that is open when its owner goes fails at once, before the owner's states are removed."""
    owner, client = bus.peer(classic, transport), bus.peer(version, transport)
    if op == "set":
        owner.add_state("pump/it", 0, "later")
    else:
        owner.add_method("pump/it", "later")
    owner.add_state("pump/other", 0)
    fetch = client.fetch(("path", "equals", "pump/other"))
    pending = client.begin(op, **args, options={"timeout": 10 * DEADLINE_S})
    owner.asked()
    owner.close()
    with pytest.raises(JetError) as failed:
        pending.result(DEADLINE_S)
    if version == 3:
        assert failed.value.code == INTERNAL_ERROR
    else:
        assert (failed.value.kind, failed.value.message) == ("PeerError", "peer shuts down")
    assert fetch.take(2)[1]["event"].lower() == "remove"
    last = [frame for frame in client.frames if "-32603" in frame or "emove" in frame]
    assert "-32603" in last[0], "the failure comes first"


def test_a_lost_requester_harms_nobody(bus: NodeBus, classic: Version, transport: Transport) -> None:
    """An owner may answer a requester that has gone; the state changes for everybody else."""
    owner, requester, client = (bus.peer(classic, transport) for _ in range(3))
    owner.add_state("pump/speed", 1, "later")
    fetch = client.fetch(("path", "equals", "pump/speed"))
    abandoned = requester.begin("set", path="pump/speed", value=2, options={})
    asked = owner.asked()
    requester.close()
    assert isinstance(abandoned.exception(DEADLINE_S), JetError)
    owner.reply(asked)
    assert fetch.seen(owner) == [
        event(client, "add", "pump/speed", 1),
        event(client, "change", "pump/speed", 2),
    ]


def test_a_lost_fetcher_harms_nobody(bus: NodeBus, version: Version, transport: Transport) -> None:
    """Other fetchers with the rule of a peer that is gone still receive events."""
    owner, leaving, staying = (bus.peer(version, transport) for _ in range(3))
    rule = ("path", "equals", "pump/speed")
    gone, kept = leaving.fetch(rule), staying.fetch(rule)
    owner.add_state("pump/speed", 1)
    assert len(gone.seen(owner)) == 1
    leaving.close()
    owner.change("pump/speed", 2)
    assert kept.seen(owner) == [
        event(staying, "add", "pump/speed", 1),
        event(staying, "change", "pump/speed", 2),
    ]
