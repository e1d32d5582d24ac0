"""Numbers in JSON texts that no peer could read: too big for a double, or too long.

JSON does not limit numbers, but programs that read them do. Values are forwarded unchanged, so every peer that fetches
a ``1e309`` would fail to read it, together with everything else in the same message. The daemon refuses such numbers.

Hardly any text has such a number, and frequent messages must not pay for the check. So it has two stages. The first is
a quick scan that most texts pass: an exponent that is too big has a digit before its ``e`` and three behind it; a
number that is too long is a long run of characters of numbers, and its text is longer than ``SAFE_BYTES``. Only a text
that fails the scan is parsed.

The scans are compiled (``_scan.c``). Without a compiler the functions here take their place.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress

import msgspec
from msgspec import Raw

from jetbus.errors import InvalidRequest

SAFE_BYTES = 208
"""A number of this many characters fits into a double if its exponent has at most two digits."""
BIGGEST = 1.7976931348623157e308
PLAIN_STARTS = b'"tfn'
"""First bytes of values that are not numbers and contain none."""
E_LOWER, E_UPPER = b"eE"
"""Every exponent has one of these letters."""

_BIG_EXPONENT = re.compile(rb"e(?<=[0-9]e)\+?[0-9]{3}").search
_BIG_EXPONENT_UPPER = re.compile(rb"E(?<=[0-9]E)\+?[0-9]{3}").search
_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_NUMBER_BYTES = b"0123456789+-.eE"
_AS_RUN = bytes(0x30 if byte in _NUMBER_BYTES else 0x20 for byte in range(256))
"""Translation to ``0`` for characters of numbers and to a space for all others."""
_STRIDE = 13
"""Distance of the sampled bytes; a prime, so that lists of short numbers of equal length do not look like one run."""


class NumberTooBig(InvalidRequest):
    """Number beyond the range of a double."""

    def __init__(self) -> None:
        text = "a number is beyond the range of a double (1.8e308); send it as text"
        super().__init__({"numberMax": BIGGEST, "message": text}, text)


class NumberTooLong(InvalidRequest):
    """Number with more characters than allowed."""

    def __init__(self, chars_max: int) -> None:
        text = f"a number has more than {chars_max} characters (number_chars_max); send it as text"
        super().__init__({"numberCharsMax": chars_max, "message": text}, text)


def has_big_exponent_in_python(value: bytes) -> bool:
    """Return False if a value certainly has no number with an exponent of three digits."""
    return bool(_BIG_EXPONENT(value) or (E_UPPER in value and _BIG_EXPONENT_UPPER(value)))


def has_long_run_in_python(text: bytes, longest: int) -> bool:
    """Return False if a text certainly has no number of more than ``longest`` characters, by a sample of its bytes."""
    return b"0" * (longest // _STRIDE) in text[::_STRIDE].translate(_AS_RUN)


has_big_exponent: Callable[[bytes], bool] = has_big_exponent_in_python
has_long_run: Callable[[bytes, int], bool] = has_long_run_in_python
with suppress(ImportError):
    from jetbus.wire import _scan

    has_big_exponent, has_long_run = _scan.has_big_exponent, _scan.has_long_run

COMPILED = has_big_exponent is not has_big_exponent_in_python
"""True if the scans are the compiled ones."""


def check_exponents_of(raw: Raw | bytes) -> None:
    """Raise if a JSON value has an exponent that is too big; nearly all values pass at the first look."""
    value = b"" + raw
    if (E_LOWER in value or E_UPPER in value) and value[0] not in PLAIN_STARTS and has_big_exponent(value):
        check_exponents(value)


def check_exponents(value: bytes) -> None:
    """Raise if a JSON value has a number that is too big for a double because of its exponent."""
    try:
        msgspec.json.decode(value)
    except msgspec.ValidationError:
        raise NumberTooBig from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass  # not JSON, which is reported elsewhere


def check_long_numbers(text: bytes, chars_max: int) -> None:
    """Raise if a JSON text has a number with too many characters, or one that is too big without an exponent."""
    longest = min(SAFE_BYTES, chars_max)
    if len(text) <= longest or not has_long_run(text, longest):
        return
    if b"\\" in text:
        # An escaped quote does not end a string.
        text = _ESCAPED.sub(b"", text)
    outside = b" ".join(text.split(b'"')[::2])  # the text outside of strings
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
    except ValueError:  # not a number, so the text is not JSON
        return 0.0
