"""Path arithmetic: what a path's nodes are. Paths are plain text, ``/`` separates their segments."""

from __future__ import annotations

SEPARATOR = "/"
DAEMON_NODE = "$jet"
"""Where the daemon's own states live; no peer may add there, and only rules that start with ``$`` see them."""


def is_daemons(path: str) -> bool:
    """Whether a path is the daemon's own.

    >>> is_daemons("$jet/version"), is_daemons("$jets")
    (True, False)
    """
    return path.startswith(DAEMON_NODE) and path[len(DAEMON_NODE) :][:1] in ("", SEPARATOR)


def parent_of(path: str) -> str:
    """The node a leaf or node at ``path`` hangs below, empty at the root; empty segments name no node.

    >>> parent_of("plant/pump/speed")
    'plant/pump'
    >>> parent_of("a//b/")
    'a'
    """
    parent, _, leaf = path.rpartition(SEPARATOR)
    if not leaf:
        parent = path.rstrip(SEPARATOR).rpartition(SEPARATOR)[0]
    return parent.rstrip(SEPARATOR) if parent.endswith(SEPARATOR) else parent


def nodes_of(path: str) -> list[str]:
    """All nodes a leaf at ``path`` hangs below, root first.

    >>> nodes_of("plant/pump/speed")
    ['plant', 'plant/pump']
    """
    nodes = []
    while path := parent_of(path):
        nodes.append(path)
    return nodes[::-1]
