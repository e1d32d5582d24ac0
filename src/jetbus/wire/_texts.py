"""Checks of JSON texts without decoding them: encoding, depth, doubled keys and numbers. Private to ``wire``.

A peer may send megabytes of brackets or digits. Each check is one pass over the text that builds no values from it, so
that such a text is refused before it costs time or memory. The compiled functions (``_lane.c``) read about a byte a
nanosecond. Without a compiler the functions here take their place, which are thirty times slower.

For a text that is not JSON the results have no meaning; decoding it fails later. A text with unbalanced brackets is
never too deep, so that its sender learns that it is not JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import accumulate

import msgspec
from msgspec import Raw

from jetbus.wire.lane import compiled

COMMA, COLON = b",:"
TOO_BIG, TOO_LONG = 1, 2
"""Verdicts on the numbers of a text; 0 if all can be read."""
SAFE_CHARS = 208
"""A number of this many characters fits into a double if its exponent has at most two digits."""
BIGGEST = 1.7976931348623157e308
"""The biggest double."""

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_MARKS = b"[]{},:"
_NO_MARKS = bytes(set(range(256)) - set(_MARKS))
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_SAME_BRACKETS = bytes.maketrans(b"{}", b"[]")
_STRING_OR_RUN = re.compile(rb'"(?:[^"\\]|\\.)*"?|[-+.0-9eE]+', re.DOTALL)
_BIG_EXPONENT = re.compile(rb"[eE]\+?[0-9]{3}").search
_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode


def is_too_deep_in_python(text: bytes, depth_max: int) -> bool:
    """Return True if brackets outside of strings are balanced and nested more than ``depth_max`` deep."""
    if text.count(b"[") + text.count(b"{") <= depth_max:
        return False
    # Without strings only brackets are left, and both kinds count the same.
    marks = _STRING.sub(b"", text).translate(_SAME_BRACKETS, delete=_NO_MARKS + b",:")
    if 2 * marks.count(b"[") != len(marks):
        return False
    return max(accumulate(92 - mark for mark in marks), default=0) > depth_max  # [ is 91, ] is 93


def count_outer_in_python(text: bytes, separator: int) -> int:
    """Count the separators (a comma or a colon) directly inside the outermost brackets."""
    depth = count = 0
    for mark in _STRING.sub(b"", text).translate(None, _NO_MARKS):
        if mark == separator:
            count += depth == 1
        else:
            depth += _STEPS.get(mark, 0)
    return count


def judge_numbers_in_python(text: bytes, chars_max: int) -> int:
    """Return ``TOO_LONG`` if a number has more than ``chars_max`` characters, ``TOO_BIG`` if no double holds it."""
    verdict = 0
    for found in _STRING_OR_RUN.finditer(text):
        run = found[0]
        if run[:1] == b'"':
            continue
        if len(run) > chars_max:
            return TOO_LONG
        if (len(run) > SAFE_CHARS or _BIG_EXPONENT(run)) and abs(_read_number(run)) > BIGGEST:
            verdict = TOO_BIG
    return verdict


def _read_number(run: bytes) -> float:
    try:
        return float(run)
    except ValueError:  # not a number, so the text is not JSON
        return 0.0


is_too_deep: Callable[[bytes, int], bool] = is_too_deep_in_python
count_outer: Callable[[bytes, int], int] = count_outer_in_python
judge_numbers: Callable[[bytes, int], int] = judge_numbers_in_python
if compiled is not None:
    is_too_deep, count_outer, judge_numbers = compiled.is_too_deep, compiled.count_outer, compiled.judge_numbers


def is_utf8(text: bytes) -> bool:
    """Return True if a text is valid UTF-8. ASCII, as most texts are, needs no decoding."""
    if text.isascii():
        return True
    try:
        str(text, "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def has_doubled_key(text: bytes) -> bool:
    """Return True if an object has a key twice; objects inside its values do not count."""
    try:
        # Decoding keeps the last of equal keys, so a duplicate makes fewer members than colons.
        return count_outer(text, COLON) != len(_decode_members(text))
    except msgspec.ValidationError:
        return False  # not an object
