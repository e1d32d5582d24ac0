"""Rights by path: rules of groups, their change while fetches run, and reservations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from argon2 import PasswordHasher
from hypothesis import given, settings
from hypothesis import strategies as st

from jetbus.bus.access import ADMINS_ONLY, Access, Auth, ruled
from jetbus.bus.bus import Bus
from jetbus.bus.limits import Limits
from jetbus.bus.rights import PathRules, read_path_rule
from jetbus.daemon.users import Users
from support.inmemory import Peer

CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
HASH = CHEAP.hash("pw")


def rules(groups: dict[str, dict[str, list[str]]], *, closed: bool = True) -> PathRules:
    """Read the rules of groups."""
    return PathRules(
        [
            read_path_rule(action, name, glob)
            for name, group in groups.items()
            for action in group
            for glob in group[action]
        ],
        closed=closed,
    )


STAFF = Auth("ann", ("staff",), ("staff",), ("staff",), add_groups=("staff",))
LOOKER = Auth("bob", ("staff",), (), ())
STRANGER = None

PLANT = {"staff": {"add": ["plant/{user}/**"], "fetch": ["plant/**"], "set": ["plant/*/set"], "call": ["plant/run"]}}

DECISIONS: dict[str, tuple[bool, str, Auth | None, str]] = {
    "closed, all that the group may": (True, "plant/ann/set", STAFF, "add fetch set"),
    "closed, the name of another user": (True, "plant/bob/set", STAFF, "fetch set"),
    "closed, a user name is one segment": (True, "plant/x/ann/set", STAFF, "fetch"),
    "closed, the list of the action counts": (True, "plant/bob/set", LOOKER, "fetch"),
    "closed, a stranger": (True, "plant/ann/set", STRANGER, ""),
    "closed, no rule": (True, "office/door", STAFF, ""),
    "open, no rule": (False, "office/door", STRANGER, "add fetch set call"),
    "open, a rule about fetch binds set and call": (False, "plant/x", STRANGER, "add"),
    "open, set and call follow fetch": (False, "plant/x", LOOKER, "add fetch set call"),
    "open, a rule about set": (False, "plant/x/set", LOOKER, "fetch call"),
}


@pytest.mark.parametrize(("closed", "path", "auth", "may"), DECISIONS.values(), ids=DECISIONS)
def test_decisions(closed: bool, path: str, auth: Auth | None, may: str) -> None:
    """A rule opens an action to its groups only; where no rule is about an action the default decides."""
    rights = rules(PLANT, closed=closed).rights(path)
    tests = {"add": rights.may_add, "fetch": rights.may_fetch, "set": rights.may_set, "call": rights.may_call}
    assert " ".join(action for action, test in tests.items() if test(auth)) == may


def test_everybody() -> None:
    """Rules of the group * are for everybody, logged in or not."""
    rights = rules({"*": {"fetch": ["weather/**"]}}).rights("weather/rain")
    assert rights.may_fetch(STRANGER)
    assert rights.may_fetch(STAFF)
    assert not rights.may_set(STAFF)


def test_daemons_own_paths() -> None:
    """The daemon's own states stay open in a closed bus, unless a rule that begins with $ is about them."""
    assert rules({"staff": {"fetch": ["**"]}}).rights("$jet/version").may_fetch(STRANGER)
    assert not rules({"staff": {"fetch": ["$jet/**"]}}).rights("$jet/version").may_fetch(STRANGER)


def test_lists_and_rules_must_both_allow() -> None:
    """An element's own lists narrow what the rules allow, and rules what the lists allow."""
    everything = rules({"staff": {"fetch": ["**"], "set": ["**"], "call": ["**"]}})
    listed = ruled(Access(fetch_groups=frozenset({"other"})), "x", everything)
    assert listed is not None
    assert not listed.may_fetch(STAFF)
    assert not listed.may_set(STAFF)
    assert listed.wire() == {"fetchGroups": ["other"]}
    assert ruled(listed, "x", None) == Access(fetch_groups=frozenset({"other"}))
    assert ruled(ruled(None, "x", everything), "x", None) is None
    assert ruled(ADMINS_ONLY, "x", everything) is ADMINS_ONLY


UNUSABLE = {
    "part of a segment": ("staff", "plant/x{user}/**"),
    "twice": ("staff", "{user}/{user}"),
    "after **": ("staff", "**/{user}"),
    "of everybody": ("*", "plant/{user}"),
    "a value test": ("staff", "plant/** value>1"),
    "a value test alone": ("staff", "value>1"),
    "quotes": ("staff", '"plant"'),
    "empty": ("staff", ""),
}


@pytest.mark.parametrize(("group", "glob"), UNUSABLE.values(), ids=UNUSABLE)
def test_unusable_globs(group: str, glob: str) -> None:
    """A glob whose meaning is not clear is refused when the file is read."""
    with pytest.raises(ValueError, match=r"must|cannot be used for"):
        read_path_rule("add", group, glob)


def test_equal_rights_are_shared() -> None:
    """Elements with equal rights share one object, so that a million of them cost little."""
    shared = rules(PLANT)
    assert shared.rights("plant/ann/a") is shared.rights("plant/ann/b")


# On a bus.


def document(groups: dict[str, Any], default: str = "closed", **users: list[str]) -> dict[str, Any]:
    """A users file in which each user has groups for everything."""
    lists = ("fetchGroups", "setGroups", "callGroups")
    entries = {name: {"password": HASH, "auth": dict.fromkeys(lists, held)} for name, held in users.items()}
    return {"users": entries, "groups": groups, "default": default}


def load(tmp_path: Path, content: dict[str, Any]) -> Users:
    """Read a users file."""
    file = tmp_path / "users.json"
    file.write_text(json.dumps(content))
    return Users.load(file, hasher=CHEAP)


def login(bus: Bus, name: str) -> Peer:
    """A peer that is logged in."""
    peer = Peer(bus)
    peer.result("authenticate", {"user": name, "password": "pw"})
    return peer


MACHINES = {
    "machines": {"add": ["plant/{user}/**"], "reserve_s": 60},
    "operators": {"fetch": ["plant/**"], "set": ["plant/*/speed"]},
    "installers": {"add": ["plant/**"]},
}


@pytest.fixture
def bus(tmp_path: Path) -> Bus:
    """A closed bus with the machines m1 and m2, the operator ann, and tim, who may add everywhere in the plant."""
    machines, operators, installers = ["machines"], ["operators"], ["installers"]
    content = document(MACHINES, m1=machines, m2=machines, ann=operators, tim=installers)
    return Bus(users=load(tmp_path, content))


def test_add_takes_a_right(bus: Bus) -> None:
    """Add without the right is refused with an error that says what is missing."""
    stranger, m2, ann = Peer(bus), login(bus, "m2"), login(bus, "ann")
    add = {"path": "plant/m1/speed", "value": 1}
    assert stranger.data("add", add) == {
        "noAccess": "plant/m1/speed",
        "message": "plant/m1/speed may not be added without a login: no add rule for everybody matches it;"
        " authenticate first",
    }
    assert m2.data("add", add)["message"] == (
        "user 'm2' may not add plant/m1/speed: no add rule of its groups (machines) matches it"
    )
    assert ann.data("add", add)["noAccess"] == "plant/m1/speed"
    assert login(bus, "m1").result("add", add) is True


def test_closed_bus(bus: Bus) -> None:
    """On a closed bus a stranger sees nothing and reaches nobody; an operator may what the rules say."""
    m1, ann, stranger = login(bus, "m1"), login(bus, "ann"), Peer(bus)
    for path in ("plant/m1/speed", "plant/m1/temperature"):
        m1.result("add", {"path": path, "value": 1})
    assert stranger.result("get", {}) == []
    assert stranger.data("set", {"path": "plant/m1/speed", "value": 2}) == {"pathNotExists": "plant/m1/speed"}
    assert ann.result("get", {}) == [
        {"path": "plant/m1/speed", "event": "add", "value": 1},
        {"path": "plant/m1/temperature", "event": "add", "value": 1, "fetchOnly": True},
    ]
    assert ann.data("set", {"path": "plant/m1/temperature", "value": 2}) == {"noAccess": "plant/m1/temperature"}
    ann.notify("set", {"path": "plant/m1/speed", "value": 2})
    assert [message["params"] for message in m1.received()] == [{"value": 2}]


def test_reservation(bus: Bus) -> None:
    """The path of a user whose connection is lost is kept for that user; others are told so."""
    m1 = login(bus, "m1")
    m1.result("add", {"path": "plant/m1/speed", "value": 1})
    thief = login(bus, "tim")
    bus.disconnect(m1.session)
    add = {"path": "plant/m1/speed", "value": 6}
    assert thief.data("add", add) == {
        "pathAlreadyExists": "plant/m1/speed",
        "message": "plant/m1/speed is reserved for the user who owned it, for another 60 s",
    }
    assert bus.permissions.reservations.count(0.0) == 1
    again = login(bus, "m1")
    assert again.result("add", add) is True
    assert bus.permissions.reservations.count(0.0) == 0
    again.result("remove", {"path": "plant/m1/speed"})
    assert thief.result("add", add) is True, "what its owner has removed is free"


def test_reservation_before_all_is_removed(bus: Bus) -> None:
    """The path of a user whose connection is lost is kept also while the elements of that connection are removed."""
    m1, thief = login(bus, "m1"), login(bus, "tim")
    m1.result("add", {"path": "plant/m1/speed", "value": 1})
    bus.run_chore = lambda _session, _steps: None
    bus.disconnect(m1.session)
    add = {"path": "plant/m1/speed", "value": 6}
    assert "is reserved for the user" in thief.data("add", add)["message"]
    assert login(bus, "m1").result("add", add) is True


def test_reservation_ends(bus: Bus) -> None:
    """After its time a reserved path may be added by anybody with the right."""
    m1 = login(bus, "m1")
    m1.result("add", {"path": "plant/m1/speed", "value": 1})
    bus.disconnect(m1.session)
    assert bus.permissions.reservations.find("plant/m1/speed", 59.0) is not None
    assert bus.permissions.reservations.find("plant/m1/speed", 61.0) is None
    assert bus.permissions.reservations.count(61.0) == 0


def test_reservations_max(tmp_path: Path) -> None:
    """Each user has reservations_max paths; further ones are free at once, and none of them costs another user one."""
    users = load(tmp_path, document(MACHINES, m1=["machines"], m2=["machines", "installers"]))
    bus = Bus(users=users, limits=Limits(reservations_max=2))
    greedy, m1 = login(bus, "m2"), login(bus, "m1")
    for name in "abc":
        greedy.result("add", {"path": f"plant/m2/{name}", "value": 1})
        m1.result("add", {"path": f"plant/m1/{name}", "value": 1})
    bus.disconnect(greedy.session)
    assert (bus.permissions.reservations.count(0.0), bus.limit_hits["reservations_max"]) == (2, 1)
    bus.disconnect(m1.session)
    assert (bus.permissions.reservations.count(0.0), bus.limit_hits["reservations_max"]) == (4, 2)
    thief = login(bus, "m2")
    assert thief.data("add", {"path": "plant/m1/a", "value": 6})["pathAlreadyExists"] == "plant/m1/a"
    thief.result("add", {"path": "plant/m2/a", "value": 1})
    assert bus.permissions.reservations.count_of("m2", 0.0) == 1
    bus.disconnect(thief.session)
    reservations = bus.permissions.reservations
    assert (reservations.count_of("m2", 0.0), reservations.count_of("m1", 0.0)) == (2, 2)
    assert reservations.count_of("m1", 61.0) == 0


# Other rules while fetches run.


def events(peer: Peer) -> list[str]:
    """Return the events that a peer has received: kind, path and whether it is read-only."""
    received = [message["params"] for message in peer.received()]
    return [f"{one['event']} {one['path']}{' fetchOnly' if one.get('fetchOnly') else ''}" for one in received]


def test_new_rules_concern_running_fetches(bus: Bus, tmp_path: Path) -> None:
    """Elements that other rules hide are removed from running fetches by events, those that they show are added."""
    m1, ann = login(bus, "m1"), login(bus, "ann")
    for path in ("plant/m1/speed", "plant/m1/oil"):
        m1.result("add", {"path": path, "value": 1})
    ann.notify("fetch", {"id": "f"})
    assert events(ann) == ["add plant/m1/speed", "add plant/m1/oil fetchOnly"]
    groups = {**MACHINES, "operators": {"fetch": ["plant/*/oil"]}}
    bus.permissions.use(load(tmp_path, document(groups, m1=["machines"], ann=["operators"])))
    assert events(ann) == ["remove plant/m1/speed"]
    m1.notify("change", {"path": "plant/m1/speed", "value": 2})
    assert events(ann) == []
    groups = {**MACHINES, "operators": {"fetch": ["plant/**"], "set": ["plant/*/oil"]}}
    bus.permissions.use(load(tmp_path, document(groups, m1=["machines"], ann=["operators"])))
    assert events(ann) == ["remove plant/m1/oil", "add plant/m1/speed fetchOnly", "add plant/m1/oil"]
    m1.notify("change", {"path": "plant/m1/oil", "value": 2})
    assert events(ann) == ["change plant/m1/oil"]
    bus.permissions.use(None)
    assert events(ann) == ["remove plant/m1/speed", "add plant/m1/speed"]


def test_other_groups_of_a_user_concern_running_fetches(bus: Bus, tmp_path: Path) -> None:
    """A user who is given other groups, or is removed, has other rights at once, on connections that are open."""
    m1, ann = login(bus, "m1"), login(bus, "ann")
    m1.result("add", {"path": "plant/m1/speed", "value": 1})
    ann.notify("fetch", {"id": "f"})
    assert events(ann) == ["add plant/m1/speed"]
    bus.permissions.use(load(tmp_path, document(MACHINES, m1=["machines"], ann=[])))
    assert events(ann) == ["remove plant/m1/speed"]
    bus.permissions.use(load(tmp_path, document(MACHINES, m1=["machines"], ann=["operators"])))
    assert events(ann) == ["add plant/m1/speed"]
    bus.permissions.use(load(tmp_path, document(MACHINES, m1=["machines"])))
    assert events(ann) == ["remove plant/m1/speed"]
    assert ann.session.auth is None


def test_audiences_that_become_equal_stay_apart(bus: Bus, tmp_path: Path) -> None:
    """Fetches of a removed user and of a stranger are told the same from then on, and each can be ended."""
    ann, stranger = login(bus, "ann"), Peer(bus)
    for peer in (ann, stranger):
        peer.notify("fetch", {"id": "f"})
    bus.permissions.use(load(tmp_path, document({"*": {"add": ["**"], "fetch": ["**"]}})))
    stranger.notify("add", {"path": "x", "value": 1})
    assert events(ann) == events(stranger) == ["add x fetchOnly"]
    for peer in (ann, stranger):
        peer.result("unfetch", {"id": "f"})
    assert len(bus.fetches) == 0


def test_nodes_follow_new_rules(bus: Bus, tmp_path: Path) -> None:
    """Peers of 2012 are told of the nodes that vanish and appear with what is below them."""
    m1, ann = login(bus, "m1"), login(bus, "ann")
    m1.result("add", {"path": "plant/m1/speed", "value": 1})
    ann.send({"method": "fetch", "params": {"id": "all", "matcher": "^p"}})
    ann.received()
    bus.permissions.use(load(tmp_path, document(MACHINES, m1=["machines"], ann=[])))
    assert [f"{one['params']['event']} {one['params']['path']}" for one in ann.received()] == [
        "remove plant/m1/speed",
        "remove plant/m1",
        "remove plant",
    ]
    bus.permissions.use(load(tmp_path, document(MACHINES, m1=["machines"], ann=["operators"])))
    assert [f"{one['params']['event']} {one['params']['path']}" for one in ann.received()] == [
        "add plant",
        "add plant/m1",
        "add plant/m1/speed",
    ]


PATHS = ("a", "a/b", "a/c", "b/ann/x", "b/m1/x")
GLOBS = ("**", "a", "a/*", "b/**", "b/{user}/x")
GROUPS = st.dictionaries(
    st.sampled_from(("g", "h")),
    st.fixed_dictionaries({name: st.lists(st.sampled_from(GLOBS), max_size=2) for name in ("fetch", "set")}),
)
FILES = st.builds(
    lambda groups, default, held: document(groups, default, ann=held),
    GROUPS,
    st.sampled_from(("open", "closed")),
    st.lists(st.sampled_from(("g", "h")), unique=True),
)
FETCHES: tuple[dict[str, Any], ...] = ({}, {"path": {"startsWith": "a/"}}, {"value": {"equals": 1}}, {"sort": {}})


class Files:
    """Users files without a disk."""

    def __init__(self, content: dict[str, Any]) -> None:
        lists = content["users"]["ann"]["auth"]
        held = tuple(lists["fetchGroups"])
        self._ann = Auth("ann", held, held, held, add_groups=held)
        self.path_rules = rules(content["groups"], closed=content["default"] == "closed")

    def auth_of(self, name: str) -> Auth | None:
        return self._ann if name == "ann" else None


@settings(max_examples=60, deadline=None)
@given(st.lists(FILES, min_size=1, max_size=3), st.sampled_from(FETCHES))
def test_fetches_under_changing_rules(files: list[dict[str, Any]], rule: dict[str, Any]) -> None:
    """Whatever rules follow each other, a running fetch has seen in the end what a new one is told."""
    bus = Bus()
    owner, ann = Peer(bus), Peer(bus)
    for path in PATHS:
        owner.notify("add", {"path": path, "value": 1})
    bus.permissions.use(Files(files[0]))  # type: ignore[arg-type]
    ann.session.auth = Files(files[0]).auth_of("ann")
    ann.notify("fetch", {"id": "old", **rule})
    for content in files:
        bus.permissions.use(Files(content))  # type: ignore[arg-type]
    seen = view(ann.received())
    ann.notify("fetch", {"id": "new", **rule})
    assert seen == view(ann.received())


def view(received: list[dict[str, Any]]) -> dict[Any, Any]:
    """Return the state after these events: by path, or by position for a sorted fetch."""
    known: dict[Any, Any] = {}
    for message in received:
        params = message["params"]
        if "changes" in params:
            for change in params["changes"]:
                known[change["index"]] = (change["path"], change.get("fetchOnly"))
            known = {index: entry for index, entry in known.items() if index <= params["n"]}
        elif params["event"] == "remove":
            del known[params["path"]]
        else:
            known[params["path"]] = params.get("fetchOnly")
    return known
