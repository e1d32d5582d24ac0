"""Completion of live paths and of contexts in the shell. It must be quick and silent: no bus, no completions."""

from __future__ import annotations

from typing import Any

from click.shell_completion import CompletionItem

from jetbus.cli import buses
from jetbus.rules import Rule

PATHS_MAX = 500
"""More paths than that are shortened to their next node."""


def live_paths(options: dict[str, Any], incomplete: str) -> list[CompletionItem]:
    """The paths on the bus that begin with what was typed."""
    try:
        found = _paths(options, incomplete)
    except Exception:
        return []  # whatever is wrong is told when the command runs
    return [CompletionItem(path) for path in found]


def contexts(incomplete: str) -> list[CompletionItem]:
    """The names of contexts that begin with what was typed."""
    try:
        names = buses.Contexts.load().buses
    except Exception:
        return []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def _paths(options: dict[str, Any], incomplete: str) -> list[str]:
    if options["user"] and not options["password_file"]:
        options = options | {"user": None}  # there is no asking for a password here
    with buses.find(**options).quick() as peer:
        events = peer.look(Rule(path=(("startsWith", incomplete),)) if incomplete else Rule())
    paths = sorted(event.path for event in events)
    if len(paths) <= PATHS_MAX:
        return paths
    return sorted({_next_node(path, len(incomplete)) for path in paths})[:PATHS_MAX]


def _next_node(path: str, typed: int) -> str:
    end = path.find("/", typed)
    return path if end < 0 else path[: end + 1]
