"""Users, groups and hidden elements, as binary peers meet them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.binary.client import TRANSPORTS, BinaryPeer, connect
from support.binary.layout import (
    ABSENT,
    ADD_METHOD,
    ADD_STATE,
    AUTHENTICATE,
    CALL,
    REMOVE_STATE,
    SERVICE,
    SET,
    FetchEvent,
    Response,
    RoutedRequest,
    arrived_in,
    js,
    key,
    packed,
    refusal_in,
    request,
    text,
    value_in,
)
from support.daemon import Daemon

Connect = Callable[..., BinaryPeer]
StartDaemon = Callable[..., Daemon]
INVALID_PARAMS = (-32602, "Invalid params")


def groups(fetch: list[str], set_: list[str], call: list[str]) -> dict[str, list[str]]:
    return {"fetchGroups": fetch, "setGroups": set_, "callGroups": call}


USERS: dict[str, dict[str, Any]] = {
    "ann": {"password": "secret", "auth": groups(["staff"], ["staff"], ["staff"])},
    "bob": {"password": "geheim ü", "auth": groups(["staff", "guests"], [], ["guests"])},
    "root": {"password": "root", "admin": True, "auth": groups([], [], [])},
}
STAFF = {"fetchGroups": ["staff"], "setGroups": ["staff"], "callGroups": ["staff"]}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with users."""
    file = tmp_path_factory.mktemp("users") / "users.json"
    file.write_text(json.dumps({"users": USERS}))
    with Daemon.start("--users", str(file)) as daemon:
        yield daemon


@pytest.fixture
def login(guarded: Daemon) -> Iterator[Connect]:
    """Connect as this user, or as nobody."""
    guarded.await_empty()
    opened: list[BinaryPeer] = []

    def connected(user: str | None = None, transport: str = "tcp") -> BinaryPeer:
        opened.append(connect(guarded, transport))
        if user is not None:
            granted = value_in(opened[-1].done(AUTHENTICATE, key(user) + key(USERS[user]["password"])))
            assert granted.json == USERS[user]["auth"]
        return opened[-1]

    yield connected
    for peer in opened:
        peer.close()
    guarded.check()


@pytest.mark.parametrize(("user", "transport"), [("ann", "tcp"), ("bob", "ws")])
def test_authenticate(login: Connect, user: str, transport: str) -> None:
    """A user gets its three lists of groups, in their order."""
    login(user, transport)


def test_wrong_user_or_password(login: Connect) -> None:
    """A wrong user and a wrong password are refused alike; later messages of that peer wait, and it may try again."""
    tries = [("nobody", "secret"), ("ann", "Secret"), ("ann", "")]
    peers = [login(None, transport) for transport in TRANSPORTS]
    for peer, (user, password) in zip(peers, tries, strict=True):
        peer.send(
            request(1, AUTHENTICATE, key(user) + key(password)),
            request(2, SERVICE, key("echo") + packed(js([2]))),
            request(3, ADD_STATE, key(f"wait/{user} {password}") + packed(js(1))),
        )
    login().barrier()
    for peer in peers:
        first, *others = (arrived_in(peer.receive())[0] for _ in range(3))
        assert isinstance(first, Response)
        refusal = refusal_in(first.payload)
        assert (first.id, first.ok, refusal[:2]) == (1, False, INVALID_PARAMS)
        assert refusal.data.json == {"invalidPassword": True}
        assert others == [Response(2, True, packed(js([2]))), Response(3, True, b"")]
    assert peers[0].done(AUTHENTICATE, key("ann") + key("secret"))


def test_peer_that_goes_while_it_waits(login: Connect) -> None:
    """A peer that goes while its refused login is delayed harms nobody, and leaves nothing behind."""
    peer, later = login(), login()
    peer.send(
        request(1, AUTHENTICATE, key("ann") + key("x")),
        request(2, ADD_STATE, key("gone/s") + packed(js(1))),
    )
    peer.close()
    assert later.refused(AUTHENTICATE, key("ann") + key("x")).reason == "invalidPassword"
    watcher = login()
    while watcher.get("gone/"):
        watcher.barrier()


def test_authenticate_before_the_first_fetch(login: Connect) -> None:
    """A peer that fetches already cannot authenticate any more."""
    peer = login()
    peer.fetch()
    refusal = peer.refused(AUTHENTICATE, key("ann") + key("secret"))
    assert (refusal[:2], refusal.data.json) == (INVALID_PARAMS, {"alreadyFetching": True})


def test_authenticate_without_users(binary: Connect) -> None:
    """A daemon without users knows nobody."""
    assert binary().refused(AUTHENTICATE, key("ann") + key("secret")).data.json == {"invalidUser": True}


def test_authenticate_as_an_event(login: Connect) -> None:
    """Sent as an event it is not answered, and counts."""
    owner, peer = login(), login()
    owner.add_state("quiet/s", js(1), access=STAFF)
    peer.tell(AUTHENTICATE, key("ann") + key("secret"))
    assert peer.everything() == []
    assert [match.path for match in peer.get("quiet/")] == ["quiet/s"]


# Who sees what, and who may do what.


@pytest.mark.parametrize(
    ("user", "seen", "settable"),
    [("ann", True, True), ("bob", True, False), (None, False, False)],
)
def test_groups(guarded: Daemon, login: Connect, user: str | None, seen: bool, settable: bool) -> None:
    """A user without the fetch group does not see an element; bit 7 marks a missing set or call group."""
    owner = login()
    with guarded.connect() as wire:
        owner.add_state("acl/s", text("x"), access=STAFF)
        owner.add_method("acl/m", access=STAFF)
        wire.result("add", {"path": "acl/js", "value": "x", "access": STAFF})
        wire.result("add", {"path": "acl/jm", "access": STAFF})
        owner.add_state("acl/open", js(1))
        peer = login(user, "ws")
        guarded_ones = [("acl/s", text("x")), ("acl/m", ABSENT), ("acl/js", js("x")), ("acl/jm", ABSENT)]
        elements = [(*one, not settable) for one in guarded_ones] if seen else []
        elements.append(("acl/open", js(1), False))
        fetch_id = peer.fetch("acl/")
        assert peer.received(fetch_id, len(elements)) == [FetchEvent(fetch_id, "add", *element) for element in elements]
        assert peer.get("acl/") == [FetchEvent(0, "add", *element) for element in elements]
        window = peer.window(peer.fetch("acl/", sort={}))
        assert sorted(entry["path"] for entry in window["changes"]) == sorted(path for path, *_ in elements)
        for function, path in ((SET, "acl/s"), (CALL, "acl/m"), (SET, "acl/js"), (CALL, "acl/jm")):
            payload = key(path) + packed(js([1]))
            if settable:
                peer.start(function, payload)
                continue
            refusal = peer.refused(function, payload)
            assert (refusal[:2], refusal.data.json) == (INVALID_PARAMS, {"noAccess" if seen else "pathNotExists": path})
        peer.barrier()
        asked = [one.path for one in owner.everything() if isinstance(one, RoutedRequest)]
        assert asked + [one["method"] for one in wire.receive_all()] == (
            ["acl/s", "acl/m", "acl/js", "acl/jm"] if settable else []
        )


def test_hidden_events(login: Connect) -> None:
    """Nothing that happens to a hidden element is told, its path is taken all the same."""
    owner, nobody, ann = login(), login(), login("ann", "ws")
    hidden, seen = nobody.fetch(), ann.fetch()
    owner.add_state("hide/s", js(1), access={"fetchGroups": ["staff"]})
    owner.notify("hide/s", js(2))
    owner.tell(REMOVE_STATE, key("hide/s"))
    assert [received.event for received in ann.received(seen, 3)] == ["add", "change", "remove"]
    assert nobody.everything() == []
    owner.add_state("hide/s", js(1), access={"fetchGroups": ["staff"]})
    for function, payload in ((ADD_STATE, packed(js(1))), (ADD_METHOD, b"")):
        assert nobody.refused(function, key("hide/s") + payload).data.json == {"pathAlreadyExists": "hide/s"}
    assert nobody.everything() == []
    nobody.unfetch(hidden)


def test_bit_7_is_each_peers_own(login: Connect) -> None:
    """Of one event, who may set is told without bit 7 and who may not with it; their rules are the same."""
    owner, ann, nobody = login(), login("ann"), login()
    ids = {peer: peer.fetch("bit/") for peer in (ann, nobody)}
    owner.add_state("bit/s", js(1), access={"setGroups": ["staff"]})
    owner.notify("bit/s", js(2))
    owner.tell(REMOVE_STATE, key("bit/s"))
    for peer, fetch_only in ((ann, False), (nobody, True)):
        assert [(received.event, received.fetch_only) for received in peer.received(ids[peer], 3)] == [
            ("add", fetch_only),
            ("change", fetch_only),
            ("remove", fetch_only),
        ]


def test_sorted_windows_say_fetch_only(login: Connect) -> None:
    """A sorted fetch says fetchOnly in the JSON of its window, as for JSON peers."""
    owner, nobody = login(), login()
    owner.add_state("win/s", js(1), access={"setGroups": ["staff"]})
    assert nobody.window(nobody.fetch("win/", sort={})) == {
        "changes": [{"path": "win/s", "value": 1, "fetchOnly": True, "index": 1}],
        "n": 1,
    }


def test_json_peers_meet_the_same_groups(guarded: Daemon, login: Connect) -> None:
    """The access that a binary owner gives holds for JSON peers, too."""
    owner = login()
    owner.add_state("acl/s", text("x"), access=STAFF)
    owner.add_state("acl/t", text("y"), access={"setGroups": ["staff"]})
    with guarded.connect() as ann, guarded.connect() as nobody:
        ann.result("authenticate", {"user": "ann", "password": "secret"})
        assert ann.result("get", {}) == [
            {"path": "acl/s", "event": "add", "value": "x"},
            {"path": "acl/t", "event": "add", "value": "y"},
        ]
        assert nobody.result("get", {}) == [{"path": "acl/t", "event": "add", "value": "y", "fetchOnly": True}]
        assert nobody.error("set", {"path": "acl/s", "value": "y"})["data"] == {"pathNotExists": "acl/s"}
        assert nobody.error("set", {"path": "acl/t", "value": "y"})["data"] == {"noAccess": "acl/t"}


# Changing users.


def test_admin_adds_users(login: Connect) -> None:
    """An admin adds a user by service, who can then log in and change its own password."""
    root, new = login("root"), login()
    added = root.done(SERVICE, key("addUser") + packed(js({"user": "zoe", "password": "z1", "groups": ["guests"]})))
    assert value_in(added) in (js(True), ABSENT)
    granted = value_in(new.done(AUTHENTICATE, key("zoe") + key("z1")))
    assert granted.json == groups(["guests"], ["guests"], ["guests"])
    assert value_in(new.done(SERVICE, key("passwd") + packed(js({"user": "zoe", "password": "z2"})))) in (
        js(True),
        ABSENT,
    )
    assert login().done(AUTHENTICATE, key("zoe") + key("z2"))
    root.done(SERVICE, key("removeUser") + packed(js({"user": "zoe"})))
    assert login().refused(AUTHENTICATE, key("zoe") + key("z2"))


def test_others_may_not_change_users(login: Connect) -> None:
    """A user who is not an administrator cannot change other users."""
    for peer in (login("ann"), login()):
        for service in ("passwd", "addUser", "removeUser"):
            refusal = peer.refused(SERVICE, key(service) + packed(js({"user": "bob", "password": "mine now"})))
            assert (refusal[:2], refusal.reason) == (INVALID_PARAMS, "reason")
    login("bob")
