"""Globs: ``*`` for any characters but ``/``, ``**`` for any characters, matched without backtracking.

Globs come from strangers, and translated into regular expressions they would backtrack: ``**a**a**a**b`` keeps a
regular expression busy for minutes. Here the literal texts between the stars are looked for one after the other, each
once.

Where all stars are ``**``, the first place at which a text is found is as good as any other, so a chain of
``str.find`` decides. With ``*`` the place matters, as the text may be needed before the next slash. Then all places are
carried along at once, as the bits of one integer (bit i stands for "before character i"):

    glob a*b*c, path aabbc      after "a"    after "*"     after "b"    after "*"     "c" at the end?
                                000010       011110        011000       111000        yes, bit 4
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from jetbus.rules.work import meter

PATHS_CACHED_MAX: Final = 4096
"""Number of paths for which a glob caches its result."""


def compile_glob(glob: str) -> Callable[[str], bool]:
    """Return a test that a whole path matches a glob.

    >>> test = compile_glob("plant/*/speed")
    >>> test("plant/pump/speed"), test("plant/pump/1/speed")
    (True, False)
    """
    # The stars are captured, so they alternate with the texts: texts at even places, empty ones where a glob starts or
    # ends with a star.
    pieces = re.split(r"(\*+)", glob)
    texts, crosses_slashes = pieces[::2], [len(stars) > 1 for stars in pieces[1::2]]
    if not crosses_slashes:
        return lambda path: path == glob
    first, *between, last = texts
    # Without a minimum length both ends could be found at the same place: a*a must not match the path a.
    shortest = sum(map(len, texts))
    begin = len(first)

    def matches_ends(path: str) -> bool:
        return len(path) >= shortest and path.startswith(first) and path.endswith(last)

    # The usual glob, such as plant/*/speed, has a single star. It needs no walk, only the absence of slashes.
    if crosses_slashes == [False]:
        return lambda path: matches_ends(path) and path.find("/", begin, len(path) - len(last)) < 0
    if all(crosses_slashes):
        return lambda path: matches_ends(path) and _has_in_order(path, between, begin, len(path) - len(last))
    # The last text is known to be at the end already, so the last star has to lead to the position before it.
    steps = list(zip(crosses_slashes, [*between, ""], strict=True))
    # A walk takes microseconds, and the events of a fetch name the same paths again and again.
    return lru_cache(PATHS_CACHED_MAX)(
        lambda path: matches_ends(path) and _walk(path, steps, begin, len(path) - len(last))
    )


def _has_in_order(path: str, texts: list[str], at: int, end: int) -> bool:
    """Return True if the texts occur one behind the other between two positions."""
    meter.units += len(texts)
    for text in texts:
        # The first place is the right one: it leaves most room for the texts that follow.
        at = path.find(text, at, end)
        if at < 0:
            return False
        at += len(text)
    return True


def _walk(path: str, steps: list[tuple[bool, str]], begin: int, end: int) -> bool:
    """Return True if stars and texts in turn lead from one position of the path to the other."""
    meter.units += len(steps)
    # One bit more than there are characters, for the position behind the last one.
    everywhere = (2 << end) - 1
    no_slash = everywhere ^ _places(path, "/", begin, end)
    places: dict[str, int] = {}
    reached = 1 << begin
    for crosses_slashes, text in steps:
        lowest = reached & -reached
        if crosses_slashes:
            # -lowest has all bits from the lowest one on: ** leads from there to every later position.
            reached = everywhere & -lowest
        else:
            # The sum carries through each run of characters other than slashes, from where it was reached.
            # Of two positions in the same run the second is lost in the sum, but |= has it already.
            inside = reached & no_slash
            reached |= ((inside + no_slash) ^ no_slash) & everywhere
        if text:
            if text not in places:
                places[text] = _places(path, text, begin, end)
            reached = (reached & places[text]) << len(text)
        if not reached:
            return False
    return bool(reached >> end & 1)


def _places(path: str, text: str, begin: int, end: int) -> int:
    """Return the positions of a text between two positions, as bits."""
    found = 0
    at = path.find(text, begin, end)
    while at >= 0:
        found |= 1 << at
        meter.units += 1
        # One character on, not behind the text: occurrences may overlap.
        at = path.find(text, at + 1, end)
    return found
