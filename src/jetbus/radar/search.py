"""Search over the paths of a bus: the rule language, and free text ranked by how well it fits.

Text with a glob, a rule operator or a value test is a rule. Anything else is free text: each word must be found in the
path, in any case, and paths are ranked by the best fit of all words, then by length.

    exact segment > start of a segment > anywhere
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from jetbus.paths import is_daemons
from jetbus.rules import Rule, rule

_SEGMENTS = re.compile(r"[/._-]")
_RULE_SIGNS = re.compile(r"[*?=<>!]|\bvalue\b|^\$|\s(?:is|has)\b")

EXACT, PREFIX, SUBSTRING = 0, 1, 2


def find_paths(text: str, rows: Iterable[tuple[str, Any, bool]]) -> list[str]:
    """Return the paths that match, best first; rows are (path, value, is a method)."""
    text = text.strip()
    if _RULE_SIGNS.search(text):
        wanted = rule(text)
        return [path for path, value, is_method in rows if _matches(wanted, path, value, is_method)]
    words = text.lower().split()
    ranked = []
    for path, _value, _is_method in rows:
        rank = rank_path(path.lower(), words)
        if rank is not None and not is_daemons(path):
            ranked.append((rank, len(path), path))
    return [path for _rank, _length, path in sorted(ranked)]


def rank_path(path: str, words: list[str]) -> int | None:
    """Return how well all words fit a path, lower is better; None if one does not."""
    worst = EXACT
    for word in words:
        if word not in path:
            return None
        segments = _SEGMENTS.split(path)
        if word in segments:
            continue
        # The word that fits worst decides, so that a path with one good word does not outrank one with two.
        worst = max(worst, PREFIX if any(segment.startswith(word) for segment in segments) else SUBSTRING)
    return worst


def _matches(wanted: Rule, path: str, value: Any, is_method: bool) -> bool:
    if is_daemons(path) and not wanted.sees_daemon:
        return False
    if not wanted.matches_path(path):
        return False
    test = wanted.matches_value
    return test is None or (not is_method and test(value))
