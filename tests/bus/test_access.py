"""Permission to fetch, set and call."""

from __future__ import annotations

from typing import Any

import pytest

from jetbus.bus.access import Access, Auth, read_access
from jetbus.bus.session import Session
from jetbus.bus.tree import Element
from jetbus.errors import Invalid
from support.inmemory import RecordingOutbox

NOBODY = None
GUEST = Auth("guest", (), (), ())
ANN = Auth("ann", ("viewers", "staff"), ("staff",), ("staff",))
BOB = Auth("bob", ("viewers",), (), ("callers",))
USERS = {"nobody": NOBODY, "guest": GUEST, "ann": ANN, "bob": BOB}

ASKED: dict[str, tuple[Any, Access | None]] = {
    "nothing": (None, None),
    "no lists": ({}, None),
    "null lists": ({"fetchGroups": None, "setGroups": None}, None),
    "fetch": ({"fetchGroups": ["a", "b"]}, Access(fetch_groups=frozenset({"a", "b"}))),
    "set": ({"setGroups": ["a"]}, Access(set_groups=frozenset({"a"}))),
    "call": ({"callGroups": ["a"]}, Access(call_groups=frozenset({"a"}))),
    "empty list": ({"fetchGroups": []}, Access(fetch_groups=frozenset())),
    "the same twice": ({"setGroups": ["a", "a"]}, Access(set_groups=frozenset({"a"}))),
    "other keys": ({"owner": "x", "callGroups": ["a"]}, Access(call_groups=frozenset({"a"}))),
    "node-jet 3 read": ({"read": "a"}, Access(fetch_groups=frozenset({"a"}))),
    "node-jet 3 write": ({"write": "a"}, Access(set_groups=frozenset({"a"}), call_groups=frozenset({"a"}))),
    "node-jet 3 both": (
        {"read": "a", "write": "b"},
        Access(fetch_groups=frozenset({"a"}), set_groups=frozenset({"b"}), call_groups=frozenset({"b"})),
    ),
    "node-jet 3 empty": ({"read": "", "write": None}, None),
}


@pytest.mark.parametrize(("given", "access"), ASKED.values(), ids=ASKED)
def test_access_is_read(given: Any, access: Access | None) -> None:
    """Access is lists of groups for each action, or node-jet 3's group to read and group to write."""
    assert read_access(given) == access


REFUSED: dict[str, Any] = {
    "a list": [],
    "a text": "staff",
    "true": True,
    "groups are a text": {"fetchGroups": "staff"},
    "groups are an object": {"setGroups": {}},
    "a group is a number": {"callGroups": ["a", 1]},
    "read is a number": {"read": 1},
    "write is a list": {"write": ["a"]},
}


@pytest.mark.parametrize("given", REFUSED.values(), ids=REFUSED)
def test_refused_access(given: Any) -> None:
    """Malformed access is refused, so that nobody takes an element for protected that is not."""
    with pytest.raises(Invalid):
        read_access(given)


WHO: dict[str, tuple[Any, dict[str, str]]] = {
    "nothing asked": (
        None,
        {"fetch": "nobody guest ann bob", "set": "nobody guest ann bob", "call": "nobody guest ann bob"},
    ),
    "fetch for some": (
        {"fetchGroups": ["viewers"]},
        {"fetch": "ann bob", "set": "ann bob", "call": "ann bob"},
    ),
    "fetch for some, set and call for others": (
        {"fetchGroups": ["viewers"], "setGroups": ["staff"], "callGroups": ["callers"]},
        {"fetch": "ann bob", "set": "ann", "call": "bob"},
    ),
    "set for those who may not fetch": (
        {"fetchGroups": ["admin"], "setGroups": ["staff"]},
        {"fetch": "", "set": "ann", "call": ""},
    ),
    "one of several groups": (
        {"fetchGroups": ["staff", "x"]},
        {"fetch": "ann", "set": "ann", "call": "ann"},
    ),
    "set for some": (
        {"setGroups": ["staff"]},
        {"fetch": "nobody guest ann bob", "set": "ann", "call": "nobody guest ann bob"},
    ),
    "call for some": (
        {"callGroups": ["callers", "staff"]},
        {"fetch": "nobody guest ann bob", "set": "nobody guest ann bob", "call": "ann bob"},
    ),
    "groups are of one kind": (
        {"setGroups": ["viewers"], "callGroups": ["viewers"]},
        {"fetch": "nobody guest ann bob", "set": "", "call": ""},
    ),
    "nobody at all": ({"fetchGroups": [], "setGroups": [], "callGroups": []}, {"fetch": "", "set": "", "call": ""}),
    "read and write": ({"read": "viewers", "write": "staff"}, {"fetch": "ann bob", "set": "ann", "call": "ann"}),
}


def _element(given: Any, *, is_method: bool = False, fetch_only: bool = False) -> Element:
    value = None if is_method else b"1"
    owner = Session(1, RecordingOutbox())
    return Element("a", b'"a"', value, owner, is_method, fetch_only, read_access(given))


@pytest.mark.parametrize(("given", "may"), WHO.values(), ids=WHO)
def test_who_may(given: Any, may: dict[str, str]) -> None:
    """Fetch is open to all, set and call to whoever may fetch; a listed action to users of one of its groups."""
    state, method = _element(given), _element(given, is_method=True)
    assert " ".join(name for name, auth in USERS.items() if state.shown_to(auth)) == may["fetch"]
    assert " ".join(name for name, auth in USERS.items() if method.shown_to(auth)) == may["fetch"]
    assert " ".join(name for name, auth in USERS.items() if state.open_to(auth)) == may["set"]
    assert " ".join(name for name, auth in USERS.items() if method.open_to(auth)) == may["call"]


@pytest.mark.parametrize(("given", "may"), WHO.values(), ids=WHO)
def test_who_can_only_look(given: Any, may: dict[str, str]) -> None:
    """Whoever may not set or call can only look; nobody can do more with what its owner made read-only."""
    state, locked = _element(given), _element(given, fetch_only=True)
    looking = [name for name, auth in USERS.items() if state.fetch_only_for(auth)]
    assert looking == [name for name in USERS if name not in may["set"].split()]
    assert all(locked.fetch_only_for(auth) for auth in USERS.values())


def test_auth_as_it_is_told() -> None:
    """A user is told its groups as node-jet does."""
    assert ANN.wire() == {"fetchGroups": ["viewers", "staff"], "setGroups": ["staff"], "callGroups": ["staff"]}
