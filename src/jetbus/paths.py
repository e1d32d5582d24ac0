"""Path arithmetic: what a path's nodes are. Paths are plain text, ``/`` separates their segments, unless other
separators are asked for: each character of ``separators`` then is one.
"""

from __future__ import annotations

SEPARATOR = "/"
SEPARATORS = ("/", ".", "/.")
"""The sets of separators that can be chosen; the documents of 2012 write ``foo.bar.status``."""
DAEMON_NODE = "$jet"
"""Where the daemon's own states live; no peer may add there, and only rules that start with ``$`` see them."""


def is_daemons(path: str, separators: str = SEPARATOR) -> bool:
    """Whether a path is the daemon's own.

    >>> is_daemons("$jet/version"), is_daemons("$jets")
    (True, False)
    """
    return path.startswith(DAEMON_NODE) and path[len(DAEMON_NODE) :][:1] in ("", *separators)


def parent_of(path: str, separators: str = SEPARATOR) -> str:
    """The node a leaf or node at ``path`` hangs below, empty at the root; empty segments name no node.

    >>> parent_of("plant/pump/speed")
    'plant/pump'
    >>> parent_of("a//b/")
    'a'
    >>> parent_of("foo.bar/status", "/."), parent_of("foo.bar", "/.")
    ('foo.bar', 'foo')
    """
    if separators != SEPARATOR:
        whole = path.rstrip(separators)
        return whole[: max(0, *map(whole.rfind, separators))].rstrip(separators)
    parent, _, leaf = path.rpartition(SEPARATOR)
    if not leaf:
        parent = path.rstrip(SEPARATOR).rpartition(SEPARATOR)[0]
    return parent.rstrip(SEPARATOR) if parent.endswith(SEPARATOR) else parent


def nodes_of(path: str, separators: str = SEPARATOR) -> list[str]:
    """All nodes a leaf at ``path`` hangs below, root first.

    >>> nodes_of("plant/pump/speed")
    ['plant', 'plant/pump']
    """
    nodes = []
    while path := parent_of(path, separators):
        nodes.append(path)
    return nodes[::-1]
