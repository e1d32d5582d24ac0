"""Numbers in JSON texts that no peer could read: too big for a double, or endless.

JSON sets numbers no limit; what reads them does. A value is passed on as it came, so one ``1e309`` would be refused by
every peer that fetches it, together with all that came in the same message. It is refused where it comes in.

Nearly no text has such a number, and the busy messages must not pay for it. So it is looked for in steps, each of which
lets most texts pass. A short text can only have an exponent that is too big: it has an ``e``, with a digit before it
and three after it. A number that is too long is only in a text longer than ``SAFE_BYTES``, and makes a long run of what
numbers consist of. Only where there is one of these all numbers are looked at.

The two looks are compiled where they could be built (``_scan.c``); else they are here, in Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress

import msgspec
from msgspec import Raw

from jetbus.errors import InvalidRequest

SAFE_BYTES = 208
"""A number of so many characters is smaller than the biggest double, if its exponent has two digits at the most."""
BIGGEST = 1.7976931348623157e308
PLAIN_STARTS = b'"tfn'
"""How values begin that are no number and have none inside."""
E_LOWER, E_UPPER = b"eE"
"""No exponent of a number is without one of them."""

_BIG_EXPONENT = re.compile(rb"e(?<=[0-9]e)\+?[0-9]{3}").search
_BIG_EXPONENT_UPPER = re.compile(rb"E(?<=[0-9]E)\+?[0-9]{3}").search
_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_NUMBER_BYTES = b"0123456789+-.eE"
_AS_RUN = bytes(0x30 if byte in _NUMBER_BYTES else 0x20 for byte in range(256))
"""Turns a text into runs of ``0`` where numbers may be, and spaces elsewhere."""
_STRIDE = 13
"""Every so many bytes are looked at first; it shares no factor with the usual lengths of numbers in a list."""


class NumberTooBig(InvalidRequest):
    """A number beyond the range of a double."""

    def __init__(self) -> None:
        text = "a number is beyond the range of a double (1.8e308); send it as text"
        super().__init__({"numberMax": BIGGEST, "message": text}, text)


class NumberTooLong(InvalidRequest):
    """A number of more characters than allowed."""

    def __init__(self, chars_max: int) -> None:
        text = f"a number has more than {chars_max} characters (number_chars_max); send it as text"
        super().__init__({"numberCharsMax": chars_max, "message": text}, text)


def has_big_exponent_in_python(value: bytes) -> bool:
    """Whether a value may have a number with an exponent of three digits."""
    return bool(_BIG_EXPONENT(value) or (E_UPPER in value and _BIG_EXPONENT_UPPER(value)))


def has_long_run_in_python(text: bytes, longest: int) -> bool:
    """Whether a text may have a number of more than so many characters; a sample of its bytes mostly denies it."""
    return b"0" * (longest // _STRIDE) in text[::_STRIDE].translate(_AS_RUN)


has_big_exponent: Callable[[bytes], bool] = has_big_exponent_in_python
has_long_run: Callable[[bytes, int], bool] = has_long_run_in_python
with suppress(ImportError):
    from jetbus.wire import _scan

    has_big_exponent, has_long_run = _scan.has_big_exponent, _scan.has_long_run

COMPILED = has_big_exponent is not has_big_exponent_in_python
"""Whether the looks are the compiled ones."""


def check_exponents_of(raw: Raw | bytes) -> None:
    """Refuse a JSON value with an exponent that is too big; nearly all values are let pass at once."""
    value = b"" + raw
    if (E_LOWER in value or E_UPPER in value) and value[0] not in PLAIN_STARTS and has_big_exponent(value):
        check_exponents(value)


def check_exponents(value: bytes) -> None:
    """Refuse a JSON value with a number whose exponent makes it too big for a double."""
    try:
        msgspec.json.decode(value)
    except msgspec.ValidationError:
        raise NumberTooBig from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass  # no JSON, which is for others to say


def check_long_numbers(text: bytes, chars_max: int) -> None:
    """Refuse a JSON text with a number of too many characters, or one that is too big without any exponent."""
    longest = min(SAFE_BYTES, chars_max)
    if len(text) <= longest or not has_long_run(text, longest):
        return
    if b"\\" in text:
        text = _ESCAPED.sub(b"", text)
    outside = b" ".join(text.split(b'"')[::2])  # what is not in strings
    runs = outside.translate(_AS_RUN) + b" "
    wanted = b"0" * (longest + 1)
    start = 0
    while (start := runs.find(wanted, start)) >= 0:
        end = runs.index(b" ", start)
        if end - start > chars_max:
            raise NumberTooLong(chars_max)
        if abs(_read(outside[start:end])) > BIGGEST:
            raise NumberTooBig
        start = end


def _read(number: bytes) -> float:
    try:
        return float(number)
    except ValueError:  # no number, thus no JSON
        return 0.0
