"""Path arithmetic: what a path's nodes are. Paths are plain text, ``/`` separates their segments."""

from __future__ import annotations

SEPARATOR = "/"
DAEMON_PREFIX = "$jet/"
"""Where the daemon's own states live; no peer may add there, and only rules that start with ``$`` see them."""


def nodes_of(path: str) -> list[str]:
    """The nodes a leaf at ``path`` hangs below, root first; empty segments name no node.

    >>> nodes_of("plant/pump/speed")
    ['plant', 'plant/pump']
    >>> nodes_of("a//b/")
    ['a']
    """
    nodes = []
    end = len(path.rstrip(SEPARATOR))
    cut = path.find(SEPARATOR, 1, end)
    while cut > 0:
        if path[cut - 1] != SEPARATOR:
            nodes.append(path[:cut])
        cut = path.find(SEPARATOR, cut + 1, end)
    return nodes
