"""Depth and members of a text without decoding it: compiled and in Python, both as json has it."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetbus.wire import nesting

FORMS = {
    "python": (nesting.is_too_deep_in_python, nesting.count_outer_in_python),
    "chosen": (nesting.is_too_deep, nesting.count_outer),
}
COMMA, COLON = b",:"
TEXTS = st.text('[]{}",:\\a"', max_size=5)
VALUES = st.recursive(
    st.none() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


def _depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(_depth, inner), default=0)


@pytest.mark.parametrize("form", FORMS)
@given(value=VALUES)
def test_depth_and_members(form: str, value: Any) -> None:
    """Brackets, commas and colons in texts do not count."""
    is_too_deep, count_outer = FORMS[form]
    text, depth = json.dumps(value).encode(), _depth(value)
    assert not is_too_deep(text, depth)
    if depth:
        assert is_too_deep(text, depth - 1)
        assert count_outer(text, COMMA) == max(0, len(value) - 1)
        assert count_outer(text, COLON) == (len(value) if isinstance(value, dict) else 0)


@pytest.mark.parametrize("form", FORMS)
def test_unbalanced_brackets(form: str) -> None:
    """A text that leaves brackets open, or closes too many, is no JSON rather than too deep."""
    is_too_deep, _ = FORMS[form]
    assert is_too_deep(b"[" * 9 + b"]" * 9, 8)
    for text in (b"[" * 9, b"[" * 9 + b"]" * 8, b"[" * 9 + b"]" * 10, b'{"[]":' * 9 + b'"' + b"}" * 9):
        assert not is_too_deep(text, 8)


@pytest.mark.parametrize("form", FORMS)
@given(text=st.binary(max_size=50))
def test_any_bytes(form: str, text: bytes) -> None:
    """Any bytes can be scanned, JSON or not."""
    is_too_deep, count_outer = FORMS[form]
    is_too_deep(text, 3)
    count_outer(text, COMMA)


@pytest.mark.parametrize("form", FORMS)
def test_megabytes_of_brackets(form: str) -> None:
    """The time grows with the length of a text, not with its depth as well."""
    is_too_deep, _ = FORMS[form]
    began = time.process_time()
    assert is_too_deep(b"[" * 1_000_000 + b"]" * 1_000_000, 128)
    assert not is_too_deep(b"[" + b"[[]]," * 400_000 + b"[]]", 128)
    assert time.process_time() - began < 5
