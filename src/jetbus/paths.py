"""Path arithmetic: the nodes of a path.

Paths are plain text with segments separated by ``/``. With ``separators``, each of its characters is a separator.
"""

from __future__ import annotations

SEPARATOR = "/"
SEPARATORS = ("/", ".", "/.")
"""Supported sets of separators; the documents of 2012 write ``foo.bar.status``."""
DAEMON_NODE = "$jet"
"""Node of the daemon's own states: no peer may add below it, and only rules that start with ``$`` match it."""


def is_daemons(path: str, separators: str = SEPARATOR) -> bool:
    """Return True if a path belongs to the daemon itself.

    >>> is_daemons("$jet/version"), is_daemons("$jets")
    (True, False)
    """
    return path.startswith(DAEMON_NODE) and path[len(DAEMON_NODE) :][:1] in ("", *separators)


def parent_of(path: str, separators: str = SEPARATOR) -> str:
    """Return the parent node of a path, empty at the root; empty segments are skipped.

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
    if leaf and parent[-1:] != SEPARATOR:
        return parent
    return path.rstrip(SEPARATOR).rpartition(SEPARATOR)[0].rstrip(SEPARATOR)


def nodes_of(path: str, separators: str = SEPARATOR) -> list[str]:
    """Return all nodes above a path, root first.

    >>> nodes_of("plant/pump/speed")
    ['plant', 'plant/pump']
    """
    nodes = []
    while path := parent_of(path, separators):
        nodes.append(path)
    return nodes[::-1]
