"""Path arithmetic: the nodes above a path, and whose path it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetbus.paths import is_daemons, nodes_of, parent_of

NODES = {
    "one segment": ("a", []),
    "two segments": ("a/b", ["a"]),
    "three segments": ("plant/pump/speed", ["plant", "plant/pump"]),
    "empty path": ("", []),
    "only a separator": ("/", []),
    "only separators": ("///", []),
    "leading separator": ("/a", []),
    "leading separator below a node": ("/a/b", ["/a"]),
    "leading separators": ("//a/b", ["//a"]),
    "trailing separator": ("a/", []),
    "trailing separator below a node": ("a/b/", ["a"]),
    "doubled separator": ("a//b", ["a"]),
    "doubled separators everywhere": ("a//b//c//", ["a", "a//b"]),
    "spaces are text": (" / / ", [" ", " / "]),
    "any alphabet": ("Prüfstand/温度/🌡", ["Prüfstand", "Prüfstand/温度"]),
    "dots are text": ("a.b/c", ["a.b"]),
}


@pytest.mark.parametrize(("path", "nodes"), NODES.values(), ids=NODES)
def test_nodes_of_a_path(path: str, nodes: list[str]) -> None:
    """The nodes above a path are its beginnings up to each separator, root first; empty segments name none."""
    assert nodes_of(path) == nodes


@pytest.mark.parametrize(("path", "nodes"), NODES.values(), ids=NODES)
def test_parent_of_a_path(path: str, nodes: list[str]) -> None:
    """The parent is the lowest node above a path, and empty at the root."""
    assert parent_of(path) == (nodes[-1] if nodes else "")


@given(st.text(alphabet="ab/", max_size=12))
def test_nodes_against_a_plain_definition(path: str) -> None:
    """A node ends where a segment ends and another one follows."""
    expected = [
        path[:at]
        for at, char in enumerate(path)
        if char == "/" and path[:at] and path[at - 1] != "/" and path[at:].strip("/")
    ]
    assert nodes_of(path) == expected


DAEMONS = {
    "the node itself": ("$jet", True),
    "below it": ("$jet/version", True),
    "deep below it": ("$jet/peers/1", True),
    "with an empty segment": ("$jet/", True),
    "a longer name": ("$jets", False),
    "a longer name with segments": ("$jets/x", False),
    "another dollar": ("$spark/x", False),
    "not at the root": ("a/$jet/x", False),
    "other case": ("$Jet/version", False),
    "without the dollar": ("jet/version", False),
    "empty path": ("", False),
}


@pytest.mark.parametrize(("path", "own"), DAEMONS.values(), ids=DAEMONS)
def test_paths_of_the_daemon(path: str, own: bool) -> None:
    """The daemon's own are the node ``$jet`` and all below it."""
    assert is_daemons(path) is own
