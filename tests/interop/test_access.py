"""Users and the groups that may see, set and call."""

from __future__ import annotations

import json
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from support.node import DEADLINE_S, JetError, NodeBus, Peer, Transport, Version, event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Daemons
    from interop.conftest import BusOf, FreshNode
    from support.daemon import Daemon
    from support.wire import Wire

pytestmark = pytest.mark.interop

INVALID_PARAMS = -32602
VIEWER = {"fetchGroups": ["staff"], "setGroups": [], "callGroups": []}
OPERATOR = {"fetchGroups": ["staff"], "setGroups": ["operators"], "callGroups": ["operators"]}
GROUPS = {"vera": VIEWER, "otto": OPERATOR, "alma": OPERATOR}
PASSWORDS = {"vera": "look", "otto": "turn", "alma": "rule"}
ADMINS = {"alma"}

FOR_OPERATORS = {"fetchGroups": ["staff"], "setGroups": ["operators"], "callGroups": ["operators"]}
FOR_OPERATORS_3 = {"read": "staff", "write": "operators"}

# node-jet 1 and 2 write access groups alike.
each_owner = pytest.mark.parametrize("owner_version", [2, 3], ids=["of-nj2", "of-nj3"])


@pytest.fixture(scope="module")
def guarded(shared_daemons: Daemons, tmp_path_factory: pytest.TempPathFactory) -> Daemon:
    """A daemon with users."""
    users = {
        name: {"password": PASSWORDS[name], "admin": name in ADMINS, "auth": groups} for name, groups in GROUPS.items()
    }
    file = tmp_path_factory.mktemp("users") / "users.json"
    file.write_text(json.dumps({"users": users}))
    return shared_daemons("--users", str(file))


@pytest.fixture(scope="module")
def witness(guarded: Daemon) -> Iterator[Wire]:
    """Somebody who may see everything."""
    with guarded.connect() as wire:
        wire.result("authenticate", {"user": "otto", "password": PASSWORDS["otto"]})
        yield wire


@pytest.fixture
def bus(guarded: Daemon, witness: Wire, bus_of: BusOf) -> Iterator[NodeBus]:
    """The bus of the daemon with users, with nothing on it."""
    deadline = time.monotonic() + DEADLINE_S
    while left := witness.result("get", {}):
        assert time.monotonic() < deadline, left
    yield bus_of(guarded)
    guarded.check()


def login(bus: NodeBus, version: Version, transport: Transport, user: str) -> Peer:
    """Connect as a user: node-jet 1 and 2 do it while they connect, node-jet 3 afterwards."""
    if version != 3:
        return bus.peer(version, transport, user=user, password=PASSWORDS[user])
    peer = bus.peer(version, transport)
    peer.do("authenticate", user=user, password=PASSWORDS[user])
    return peer


def restricted(version: Version) -> dict[str, Any]:
    """Seen by staff, set and called by operators, as this version writes it."""
    return FOR_OPERATORS_3 if version == 3 else FOR_OPERATORS


def is_refused(request: Callable[[], Any], version: Version, kind: str, data: dict[str, Any]) -> bool:
    """Return True if a request is rejected with this class of node-jet 1 and 2, or these data of node-jet 3."""
    with pytest.raises(JetError) as refused:
        request()
    if version == 3:
        return (refused.value.code, refused.value.data) == (INVALID_PARAMS, data)
    return refused.value.kind == kind


def is_unauthorized(request: Callable[[], Any], version: Version, path: str) -> bool:
    return is_refused(request, version, "Unauthorized", {"noAccess": path})


def is_not_found(request: Callable[[], Any], version: Version, path: str) -> bool:
    return is_refused(request, version, "NotFound", {"pathNotExists": path})


def test_a_user_is_told_the_own_groups(bus: NodeBus, version: Version, transport: Transport) -> None:
    """The response to authenticate has the user's groups."""
    peer = bus.peer(version, transport)
    assert peer.do("authenticate", user="vera", password="look") == VIEWER


def test_a_user_may_log_in_while_connecting(bus: NodeBus, classic: Version, transport: Transport) -> None:
    """A peer with user and password in its configuration holds the user's groups when it has connected."""
    peer = bus.peer(classic, transport)
    config = {**bus.config(transport), "user": "otto", "password": "turn"}
    assert peer.do("connect", config=config) == OPERATOR


@pytest.mark.parametrize(
    ("user", "password", "kind", "key"),
    [
        ("nobody", "look", "InvalidPassword", "invalidPassword"),
        ("vera", "wrong", "InvalidPassword", "invalidPassword"),
    ],
    ids=["user", "password"],
)
def test_wrong_credentials(
    bus: NodeBus, version: Version, transport: Transport, user: str, password: str, kind: str, key: str
) -> None:
    """An unknown user and a wrong password both are InvalidPassword; the peer stays a guest."""
    guest, owner = bus.peer(version, transport), bus.peer(version, transport)
    attempt = partial(guest.do, "authenticate", user=user, password=password)
    assert is_refused(attempt, version, kind, {key: True})
    owner.add_state("pump/speed", 1, access=restricted(version))
    assert guest.get(path={"equals": "pump/speed"}) == []


def test_wrong_credentials_while_connecting(bus: NodeBus, classic: Version, transport: Transport) -> None:
    """A peer with wrong credentials in its configuration fails to connect."""
    with pytest.raises(JetError) as refused:
        bus.peer(classic, transport, user="vera", password="wrong")
    assert refused.value.kind == "InvalidPassword"


def test_who_fetches_cannot_become_another_user(bus: NodeBus, classic: Version, transport: Transport) -> None:
    """A peer that fetches already cannot authenticate."""
    peer = bus.peer(classic, transport)
    peer.fetch(("path", "equals", "pump/speed"))
    with pytest.raises(JetError) as refused:
        peer.do("authenticate", user="vera", password="look")
    assert (refused.value.code, refused.value.data) == (INVALID_PARAMS, {"alreadyFetching": True})


def test_what_is_not_restricted_is_open(bus: NodeBus, version: Version, transport: Transport) -> None:
    """A state without access groups is open to guests, also when there are users."""
    owner, guest = bus.peer(version, transport), bus.peer(version, transport)
    owner.add_state("pump/speed", 1)
    owner.add_method("pump/start")
    fetch = guest.fetch(("path", "equals", "pump/speed"))
    guest.set("pump/speed", 2)
    guest.call("pump/start", [1])
    assert fetch.seen(owner) == [
        event(guest, "add", "pump/speed", 1),
        event(guest, "change", "pump/speed", 2),
    ]


@each_owner
def test_a_restricted_state_is_hidden_from_guests(
    bus: NodeBus, owner_version: Version, version: Version, transport: Transport
) -> None:
    """For a guest a state that only a group may see does not exist: in no fetch, in no get, not to be set."""
    owner, guest = bus.peer(owner_version, transport), bus.peer(version, transport)
    owner.add_state("pump/old", 1, access=restricted(owner_version))
    fetch = guest.fetch(("path", "startsWith", "pump/"))
    owner.add_state("pump/new", 2, access=restricted(owner_version))
    owner.change("pump/old", 3)
    owner.remove("pump/old")
    assert fetch.seen(owner) == []
    assert guest.get(path={"startsWith": "pump/"}) == []
    assert is_not_found(lambda: guest.set("pump/new", 4), version, "pump/new")


@each_owner
def test_a_viewer_sees_and_does_not_set(
    bus: NodeBus, owner_version: Version, version: Version, transport: Transport
) -> None:
    """A user who is in the fetch group only sees the state and cannot set it."""
    owner, viewer = bus.peer(owner_version, transport), login(bus, version, transport, "vera")
    owner.add_state("pump/speed", 1, access=restricted(owner_version))
    fetch = viewer.fetch(("path", "startsWith", "pump/"))
    assert is_unauthorized(lambda: viewer.set("pump/speed", 2), version, "pump/speed")
    (received,) = fetch.seen(owner)
    assert (received["path"], received["value"]) == ("pump/speed", 1)
    if version != 3:
        assert received["fetchOnly"] is True, "for this peer"


@each_owner
def test_an_operator_sees_and_sets(
    bus: NodeBus, owner_version: Version, version: Version, transport: Transport
) -> None:
    """A user who is in the fetch group and the set group sees the state and sets it."""
    owner, operator = bus.peer(owner_version, transport), login(bus, version, transport, "otto")
    owner.add_state("pump/speed", 1, access=restricted(owner_version))
    fetch = operator.fetch(("path", "startsWith", "pump/"))
    operator.set("pump/speed", 2)
    assert owner.asked()["value"] == 2
    assert fetch.seen(owner) == [
        event(operator, "add", "pump/speed", 1),
        event(operator, "change", "pump/speed", 2),
    ]


@each_owner
def test_only_operators_call_a_restricted_method(
    bus: NodeBus, owner_version: Version, version: Version, transport: Transport
) -> None:
    """A method with a call group is called by its members only; where guests may not see it, it does not exist."""
    owner, guest = bus.peer(owner_version, transport), bus.peer(version, transport)
    viewer, operator = (login(bus, version, transport, user) for user in ("vera", "otto"))
    # A method of node-jet 3 has a write group only: everybody sees it.
    is_closed_to_guests = is_unauthorized if owner_version == 3 else is_not_found
    owner.add_method("pump/start", access=restricted(owner_version))
    assert is_closed_to_guests(lambda: guest.call("pump/start", ["guest"]), version, "pump/start")
    assert is_unauthorized(lambda: viewer.call("pump/start", ["viewer"]), version, "pump/start")
    assert operator.call("pump/start", ["operator"]) == {}
    assert owner.asked()["value"] == ["operator"]


def test_equal_fetches_of_unequal_peers(bus: NodeBus, transport: Transport, fresh_node: FreshNode) -> None:
    """Peers that fetch the same under the same id are told what each of them may see, as each of them may use it."""
    owner = bus.peer(2, transport)
    guest = bus.peer(2, transport, node=fresh_node(2))
    viewer, operator = (
        bus.peer(2, transport, node=fresh_node(2), user=user, password=PASSWORDS[user]) for user in ("vera", "otto")
    )
    owner.add_state("pump/old", 1, access=FOR_OPERATORS)
    fetches = [peer.fetch(("path", "startsWith", "pump/")) for peer in (guest, viewer, operator)]
    owner.add_state("pump/new", 2, access=FOR_OPERATORS)
    owner.add_state("pump/open", 3)
    owner.change("pump/new", 4)
    owner.change("pump/open", 5)
    owner.remove("pump/new")
    received = [[(one["path"], one["value"], "fetchOnly" in one) for one in fetch.seen(owner)] for fetch in fetches]
    opened = [("pump/open", 3, False), ("pump/open", 5, False)]
    assert received[0] == opened
    for fetch_only, seen in ((True, received[1]), (False, received[2])):
        assert seen == [
            ("pump/old", 1, fetch_only),
            ("pump/new", 2, fetch_only),
            opened[0],
            ("pump/new", 4, False),  # add has said it
            opened[1],
            ("pump/new", 4, False),
        ]


def test_a_missing_group_list_does_not_restrict(bus: NodeBus, classic: Version, transport: Transport) -> None:
    """A state that names only who may set it is seen by every user."""
    owner, viewer = bus.peer(classic, transport), login(bus, classic, transport, "vera")
    owner.add_state("pump/speed", 1, access={"setGroups": ["operators"]})
    fetch = viewer.fetch(("path", "startsWith", "pump/"))
    assert fetch.seen(owner) == [event(viewer, "add", "pump/speed", 1, fetchOnly=True)]
    assert is_unauthorized(lambda: viewer.set("pump/speed", 2), classic, "pump/speed")


def test_an_empty_group_does_not_restrict(bus: NodeBus, version: Version, transport: Transport) -> None:
    """A node-jet 3 state that names only a write group is seen by every user, and only that group sets it."""
    owner = bus.peer(3, transport)
    viewer, operator = (login(bus, version, transport, user) for user in ("vera", "otto"))
    owner.add_state("pump/speed", 1, access={"write": "operators"})
    assert [found["value"] for found in viewer.get(path={"equals": "pump/speed"})] == [1]
    assert is_unauthorized(lambda: viewer.set("pump/speed", 2), version, "pump/speed")
    operator.set("pump/speed", 3)
    assert owner.asked()["value"] == 3


def test_an_admin_adds_users(bus: NodeBus, transport: Transport) -> None:
    """An admin of node-jet 3 adds users with groups; they log in at once, and nobody else may add users."""
    admin = login(bus, 3, transport, "alma")
    name = f"new-by-{transport}"
    admin.do("addUser", user=name, password="first", groups=["staff"])
    newcomer = bus.peer(1, transport, user=name, password="first")
    newcomer_3 = bus.peer(3, transport)
    newcomer_3.do("authenticate", user=name, password="first")
    admin.add_state("pump/speed", 1, access={"read": "staff"})
    assert [found["value"] for found in newcomer.get(path={"equals": "pump/speed"})] == [1]
    with pytest.raises(JetError) as refused:
        newcomer_3.do("addUser", user="another", password="second", groups=[])
    assert refused.value.code == INVALID_PARAMS
