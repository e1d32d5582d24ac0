"""The first look at texts that came together lets no text pass that the looks at single texts would stop."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jetbus.wire import nesting, numbers
from jetbus.wire.screening import COMPILED, are_plain

pytestmark = pytest.mark.skipif(not COMPILED, reason="without the compiled function no text is plain")
DEPTH, LONGEST, BYTES = 3, 20, 1000
PIECES = st.sampled_from([b"1", b"e", b"E", b"+", b"309", b"[", b"{", b"]", b'"', b"x" * 30, b"7" * 15, b"\xc3\xa4"])
TEXTS = st.lists(st.lists(PIECES, max_size=30).map(b"".join), max_size=5)


def _is_suspicious(text: bytes) -> bool:
    return (
        not text.isascii()
        or nesting.is_too_deep_in_python(text, DEPTH)
        or numbers.has_big_exponent_in_python(text)
        or (len(text) > LONGEST and numbers.has_long_run(text, LONGEST))
    )


@given(texts=TEXTS)
@example(texts=[b"{}", b"1e309"])
@example(texts=[b"x" * 127 + b"1e309"])
@example(texts=[b"x" * 128 + b"1E+309"])
@example(texts=[b"[" * 4])
@example(texts=[b"7" * 21])
def test_nothing_suspicious_is_plain(texts: list[bytes]) -> None:
    """Texts are not plain if one of them has a mark that is worth a closer look."""
    if any(map(_is_suspicious, texts)):
        assert not are_plain(texts, DEPTH, LONGEST, BYTES)


def test_usual_texts_are_plain() -> None:
    """Messages as peers send them, short ones and long ones, need no closer look."""
    change = b'{"method":"change","params":{"path":"a/b","value":1.5e3}}'
    long = b'{"method":"change","params":{"path":"a/b","value":[%b]}}' % b",".join([b"-1.25"] * 100)
    assert are_plain([change, long], DEPTH, LONGEST, BYTES)
    assert not are_plain([long] * 2, DEPTH, LONGEST, BYTES), "too many bytes to look at together"
