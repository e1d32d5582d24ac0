"""Nesting of JSON texts: their depth, and the number of members in the outermost brackets.

A peer may send megabytes of brackets. Both figures are computed in one pass over the text, without building values from
it, so that such a text is refused before it costs time or memory. The compiled functions (``_scan.c``) read about a
byte a nanosecond. Without a compiler the functions here take their place, which are thirty times slower.

For a text that is not JSON the figures have no meaning; decoding it fails later. A text with unbalanced brackets is
never too deep, so that its sender learns that it is not JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from itertools import accumulate

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_MARKS = b"[]{},:"
_NO_MARKS = bytes(set(range(256)) - set(_MARKS))
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_SAME_BRACKETS = bytes.maketrans(b"{}", b"[]")


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


is_too_deep: Callable[[bytes, int], bool] = is_too_deep_in_python
count_outer: Callable[[bytes, int], int] = count_outer_in_python
with suppress(ImportError):
    from jetbus.wire import _scan

    is_too_deep, count_outer = _scan.is_too_deep, _scan.count_outer

COMPILED = is_too_deep is not is_too_deep_in_python
"""True if the functions are the compiled ones."""
