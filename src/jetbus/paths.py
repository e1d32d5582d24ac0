"""Path arithmetic: the nodes of a path, and paths that were probably meant.

Paths are plain text with segments separated by ``/``. With ``separators``, each of its characters is a separator.
"""

from __future__ import annotations

from collections.abc import Iterable

SEPARATOR = "/"
SEPARATORS = ("/", ".", "/.")
"""Supported sets of separators; the documents of 2012 write ``foo.bar.status``."""
DAEMON_NODE = "$jet"
"""Node of the daemon's own states: no peer may add below it, and only rules that start with ``$`` match it."""
BRIDGE_NOTE = "$bridge"
"""Name of the states by which bridges recognise each other."""


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


# -- near misses

NEAR_PATHS_MAX = 5000
"""Comparing with more paths than this takes seconds."""


def find_similar_path(path: str, paths: Iterable[str]) -> str | None:
    """Return the most similar of some paths, or None.

    >>> find_similar_path("plant/tank/levle", ["plant/pump", "plant/tank/level"])
    'plant/tank/level'
    """
    known = list(paths)
    # Of many paths only those that share the first or the last segment are worth a comparison.
    if len(known) > NEAR_PATHS_MAX:
        first, last = path.split("/")[0], path.split("/")[-1]
        known = [one for one in known if one.startswith(first) or one.endswith(last)][:NEAR_PATHS_MAX]
    found = find_similar(path, known, 0.7)
    # difflib compares letters exactly: PUMP and pump have nothing in common.
    return found or next((one for one in known if one.lower() == path.lower()), None)


def find_similar(word: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """Return the most similar of some words, or None."""
    # Needed only after an error, so it does not slow down the others.
    import difflib

    return next(iter(difflib.get_close_matches(word, list(known), 1, likeness)), None)
