"""The tree against a model of it that fits on one screen, and lookups in it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jetbus.bus.session import Session
from jetbus.bus.tree import Element, Tree
from jetbus.errors import Occupied
from jetbus.paths import SEPARATORS
from jetbus.rules import read_matcher, read_rule
from jetbus.wire.dialects import LEGACY
from support.inmemory import RecordingOutbox

OWNER = Session(1, RecordingOutbox())


def _element(path: str) -> Element:
    return Element(path, msgspec.json.encode(path), b"1", OWNER)


def _tree(*paths: str, kind: str = "strict") -> Tree:
    tree = Tree(kind)
    for path in paths:
        tree.add(_element(path))
    return tree


def _nodes_above(path: str) -> list[str]:
    """A node ends where a segment ends and another one follows."""
    return [
        path[:at]
        for at, char in enumerate(path)
        if char == "/" and path[:at] and path[at - 1] != "/" and path[at:].strip("/")
    ]


class Model:
    """The leaves in order of creation; all else follows from them."""

    def __init__(self, strict: bool) -> None:
        self.strict = strict
        self.leaves: list[str] = []

    def nodes(self) -> set[str]:
        return {node for leaf in self.leaves for node in _nodes_above(leaf)}

    def is_free(self, path: str) -> bool:
        if path in self.leaves:
            return False
        return not self.strict or (path not in self.nodes() and not set(_nodes_above(path)) & set(self.leaves))


_path = st.one_of(
    st.lists(st.sampled_from(["a", "b", "", "ab"]), min_size=1, max_size=4).map("/".join), st.text("ab/", max_size=5)
)
_steps = st.lists(st.tuples(st.sampled_from(["add", "add", "remove", "look"]), _path), max_size=40)


@given(st.booleans(), _steps)
@example(True, [("add", "a/"), ("add", "a"), ("add", "a/b"), ("add", "a//b"), ("add", "a//b/c")])
@example(True, [("add", ""), ("add", "/"), ("add", "/a"), ("add", "/a/b"), ("remove", "/a"), ("add", "/a/b")])
@example(False, [("add", "a"), ("add", "a/b"), ("add", "a/b/c"), ("remove", "a/b"), ("look", "a/")])
@example(True, [("add", "ab"), ("look", "a"), ("remove", "ab"), ("look", "a"), ("add", "ab"), ("look", "a")])
@settings(max_examples=300, deadline=None)
def test_tree_and_model_agree(strict: bool, steps: list[tuple[str, str]]) -> None:
    """Free positions, nodes and what is found below a prefix all follow from the leaves alone."""
    tree, model = Tree("strict" if strict else "flat"), Model(strict)
    for kind, path in steps:
        if kind == "add" and model.is_free(path):
            tree.add(_element(path))
            model.leaves.append(path)
        elif kind == "add":
            with pytest.raises(Occupied):
                tree.add(_element(path))
        elif kind == "remove" and path in model.leaves:
            tree.remove(tree.elements[path])
            model.leaves.remove(path)
        elif kind == "look":
            found = [element.path for element in tree.matching(read_rule({"path": {"startsWith": path}}))]
            assert found == [leaf for leaf in model.leaves if leaf.startswith(path)]
        assert list(tree.elements) == model.leaves
        assert set(tree.nodes) == model.nodes()
        assert len(tree.nodes) == len(model.nodes())
        assert all(node in tree.nodes for node in model.nodes())


def _above(path: str, separators: str) -> set[str]:
    """All nodes above a path, straight from the rule: a segment ends there and another one follows."""
    marks = [char in separators for char in path]
    return {path[:at] for at, mark in enumerate(marks) if mark and at and not marks[at - 1] and not all(marks[at:])}


_dotted = st.text("ab/.", max_size=5)
_owners = [("", False), ("", True), (".", True), ("/.", True)]


@given(
    st.sampled_from(SEPARATORS),
    st.lists(st.tuples(st.sampled_from(["add", "add", "remove"]), _dotted, st.sampled_from(_owners)), max_size=30),
)
@settings(max_examples=300, deadline=None)
def test_whose_leaves_keep_off_others(separators: str, steps: list[tuple[str, str, tuple[str, bool]]]) -> None:
    """In an automatic tree only peers of 2012 keep off nodes and leaves above, by the separators that they mean."""
    tree, leaves = Tree("auto", separators), set[str]()
    for kind, path, (own, legacy) in steps:
        if kind == "remove":
            if path in leaves:
                tree.remove(tree.elements[path])
                leaves.remove(path)
            continue
        element = Element(path, msgspec.json.encode(path), b"1", Session(1, RecordingOutbox()))
        element.owner.separators = own
        if legacy:
            element.dialect = LEGACY
        meant = own or separators
        nodes = set().union(*(_above(leaf, meant) for leaf in leaves))
        if path in leaves or (legacy and (path in nodes or _above(path, meant) & leaves)):
            with pytest.raises(Occupied):
                tree.add(element)
        else:
            tree.add(element)
            leaves.add(path)
        assert set(tree.nodes) == set().union(*(_above(leaf, separators) for leaf in leaves))


# The tree rule.

OCCUPIED: dict[str, tuple[list[str], str]] = {
    "a leaf is there": (["a"], "a"),
    "a node is there": (["a/b"], "a"),
    "a deeper node is there": (["a/b/c"], "a/b"),
    "a leaf is above": (["a"], "a/b"),
    "a leaf is high above": (["a"], "a/b/c/d"),
    "a leaf is above in odd spelling": (["a//b"], "a//b/c"),
}


@pytest.mark.parametrize(("there", "path"), OCCUPIED.values(), ids=OCCUPIED)
def test_occupied_positions(there: list[str], path: str) -> None:
    """A position is taken by a leaf, by a node, or by a leaf above it; a refused leaf leaves nothing behind."""
    tree = _tree(*there)
    nodes = set(tree.nodes)
    with pytest.raises(Occupied) as refused:
        tree.add(_element(path))
    assert refused.value.data == {"pathAlreadyExists": path}
    assert list(tree.elements) == there
    assert set(tree.nodes) == nodes


@pytest.mark.parametrize(("there", "path"), list(OCCUPIED.values())[1:], ids=list(OCCUPIED)[1:])
def test_flat_tree(there: list[str], path: str) -> None:
    """In a flat tree only a leaf of the same path is in the way."""
    tree = _tree(*there, kind="flat")
    tree.add(_element(path))
    assert path in tree.elements
    with pytest.raises(Occupied):
        tree.add(_element(path))


def test_a_position_is_free_again() -> None:
    """With its last leaf a node is gone, and its place is free."""
    tree = _tree("a/b/c", "a/d")
    tree.remove(tree.elements["a/b/c"])
    tree.add(_element("a/b"))
    tree.remove(tree.elements["a/b"])
    tree.remove(tree.elements["a/d"])
    assert set(tree.nodes) == set()
    tree.add(_element("a"))


# Lookups.

PATHS = ["b/2", "a/1", "a/10", "a", "a/2", "A/1", "ä/1", "$jet/version", "$x"]
LOOKUPS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "everything but the daemon's own": ({}, [path for path in PATHS if path != "$jet/version"]),
    "prefix": ({"startsWith": "a/"}, ["a/1", "a/10", "a/2"]),
    "prefix that is a path": ({"startsWith": "a/1"}, ["a/1", "a/10"]),
    "prefix of nothing": ({"startsWith": "c"}, []),
    "empty prefix": ({"startsWith": ""}, [path for path in PATHS if path != "$jet/version"]),
    "prefix and more": ({"startsWith": "a", "endsWith": "1"}, ["a/1"]),
    "exact": ({"equals": "a/1"}, ["a/1"]),
    "exact but unknown": ({"equals": "a/3"}, []),
    "one of": ({"equalsOneOf": ["a/2", "b/2", "x", "a/2"]}, ["b/2", "a/2"]),
    "exact and more": ({"equals": "a/1", "contains": "2"}, []),
    "the rest": ({"contains": "1"}, ["a/1", "a/10", "A/1", "ä/1"]),
    "any case": ({"startsWith": "A/", "caseInsensitive": True}, ["a/1", "a/10", "a/2", "A/1"]),
    "another alphabet": ({"startsWith": "ä"}, ["ä/1"]),
    "the daemon's own": ({"startsWith": "$"}, ["$jet/version", "$x"]),
    "one of the daemon's own": ({"equals": "$jet/version"}, ["$jet/version"]),
    "the daemon's own by accident": ({"endsWith": "version"}, []),
}


@pytest.mark.parametrize(("path", "found"), LOOKUPS.values(), ids=LOOKUPS)
def test_lookups(path: dict[str, Any], found: list[str]) -> None:
    """A rule finds its leaves in order of creation; the daemon's own only if it asks for them."""
    tree = _tree(*PATHS, kind="flat")
    assert [element.path for element in tree.matching(read_rule({"path": path}))] == found


def test_lookup_by_pattern() -> None:
    """A Lua pattern finds its leaves, and never the daemon's own."""
    tree = _tree(*PATHS, kind="flat")
    assert [element.path for element in tree.matching(read_matcher("/%d$"))] == ["b/2", "a/1", "a/2", "A/1", "ä/1"]
    assert [element.path for element in tree.matching(read_matcher("^%$"))] == ["$x"]


_any_text = st.text(alphabet=st.sampled_from("a/é\uffff\U0001f321\U0010fffe\U0010ffff"), max_size=3)


@given(st.lists(_any_text, unique=True, max_size=10), _any_text)
@example(["a\U0010ffff"], "a")
@example(["\U0010ffff\U0010ffff"], "\U0010ffff")
def test_prefixes_in_any_alphabet(paths: list[str], prefix: str) -> None:
    """A prefix finds every path that starts with it, whatever the characters."""
    tree = _tree(*paths, kind="flat")
    found = [element.path for element in tree.matching(read_rule({"path": {"startsWith": prefix}}))]
    assert found == [path for path in paths if path.startswith(prefix)]


def test_lookups_after_much_coming_and_going() -> None:
    """Thousands of leaves that came and went leave lookups right."""
    tree = Tree()
    for generation in range(4):
        for number in range(1000):
            tree.add(_element(f"g{generation}/{number}"))
        rule = read_rule({"path": {"startsWith": f"g{generation}/99"}})
        assert len(tree.matching(rule)) == 11
        for number in range(1000):
            if number != 990:
                tree.remove(tree.elements[f"g{generation}/{number}"])
        assert [element.path for element in tree.matching(rule)] == [f"g{generation}/990"]
    everything = tree.matching(read_rule({"path": {"startsWith": "g"}}))
    assert [element.path for element in everything] == [f"g{generation}/990" for generation in range(4)]


def test_creation_order_after_a_return() -> None:
    """A leaf that was removed and added again is the newest."""
    tree = _tree("a/1", "a/2")
    tree.remove(tree.elements["a/1"])
    tree.add(_element("a/1"))
    for rule in ({}, {"startsWith": "a"}, {"equalsOneOf": ["a/1", "a/2"]}):
        assert [element.path for element in tree.matching(read_rule({"path": rule}))] == ["a/2", "a/1"]
