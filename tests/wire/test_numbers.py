"""Numbers that no peer could read are found, others are let pass, by what is compiled and by Python alike."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jetbus.wire import numbers
from jetbus.wire.numbers import NumberTooBig, NumberTooLong, check_exponents_of, check_long_numbers

FORMS = ["python", pytest.param("compiled", marks=pytest.mark.skipif(not numbers.COMPILED, reason="not compiled here"))]


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The looks in Python or compiled."""
    if request.param == "python":
        monkeypatch.setattr(numbers, "has_big_exponent", numbers.has_big_exponent_in_python)
        monkeypatch.setattr(numbers, "has_long_run", numbers.has_long_run_in_python)
    return str(request.param)


def refusal(text: bytes, chars_max: int = 400) -> type[Exception] | None:
    """Return the error for a value, None if it is accepted."""
    try:
        check_long_numbers(text, chars_max)
        check_exponents_of(text)
    except (NumberTooBig, NumberTooLong) as error:
        return type(error)
    return None


BIG = [
    b"1e309",
    b"-1e309",
    b"1E309",
    b"1e+309",
    b"1e+0309",
    b"1.8e308",
    b"1e99999999999999999999",
    b"1" + b"0" * 309,
    b"-9" + b"9" * 308,
    b"1" + b"0" * 300 + b"e9",
    b"1" + b"0" * 300 + b".5E+09",
]
FINE = [
    b"0",
    b"1e308",
    b"1.7976931348623157e308",
    b"1e-400",
    b"0e999",
    b"0.0000001e312",
    b"18446744073709551615",
    b"-9223372036854775808",
    b"123456789012345678901234567890",
    b"0." + b"3" * 390,
    b"1" + b"0" * 308,
    b"0." + b"0" * 300 + b"1e500",
    b'"1e309"',
    b'{"1e309":"9e999"}',
    b'["' + b"9" * 1000 + b'"]',
    b'["\\"' + b"9" * 1000 + b'\\\\"]',
    b'{"line1":true,"e1":2,"name":"1e3"}',
    b"true",
    b"null",
]


@pytest.mark.parametrize("number", BIG)
@pytest.mark.parametrize("around", [b"%b", b"[%b]", b'{"a":"x","b":[1,%b,2]}', b'["' + b"\\u00e9" * 400 + b'",%b]'])
def test_too_big(number: bytes, around: bytes, form: str) -> None:
    """A number beyond the range of a double is found wherever it is."""
    assert refusal(around % number) is NumberTooBig, form


@pytest.mark.parametrize("value", FINE)
@pytest.mark.parametrize("around", [b"%b", b"[%b]", b'{"a":"x","b":[1,%b,2]}'])
def test_fine(value: bytes, around: bytes, form: str) -> None:
    """Numbers that fit, and digits that are no number, are let pass."""
    assert refusal(around % value) is None, form


@pytest.mark.parametrize("number", [b"0." + b"1" * 399, b"1" * 401, b"9" * 5000, b"-" + b"1" * 400])
def test_too_long(number: bytes, form: str) -> None:
    """A number with more characters than allowed is found, whatever its magnitude."""
    assert refusal(number) is NumberTooLong, form
    assert refusal(b'{"a":[' + number + b"]}") is NumberTooLong


def test_limit_can_be_small(form: str) -> None:
    """The limit on characters may be less than what a double can hold."""
    assert refusal(b"123456789", 8) is NumberTooLong, form
    assert refusal(b"[12345678,87654321]", 8) is None
    assert refusal(b'["123456789"]', 8) is None


def lists_of(size: int) -> bytes:
    return b"[" + b",".join([b"1" * size] * (40_000 // size)) + b"]"


@pytest.mark.parametrize("size", [1, 7, 12, 13, 17, 25, 26, 39, 100, 207, 208])
def test_lists_of_numbers(size: int, form: str) -> None:
    """Many numbers side by side are not taken for a long one, of whatever length they are."""
    assert refusal(lists_of(size)) is None, form


@pytest.mark.parametrize("look", ["has_big_exponent", "has_long_run"])
def test_a_look_never_misses(look: str, form: str) -> None:
    """Wherever in a text a number is, the first look does not miss it."""
    found: Callable[..., bool] = getattr(numbers, look)
    number, more = (b"1e309", ()) if look == "has_big_exponent" else (b"1" * 209, (208,))
    for before in range(1200):
        text = b"[" + b'"x",' * (before // 4) + b" " * (before % 4) + number + b"]"
        assert found(text, *more), (before, form)


NUMBERS = st.one_of(
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.builds("{}e{}".format, st.integers(-99, 99), st.integers(-330, 330)),
    st.builds("{}.{}E+{}".format, st.integers(0, 99), st.integers(0, 10**20), st.integers(0, 330)),
    st.builds(lambda digits: "7" * digits, st.integers(1, 420)),
)
VALUES = st.recursive(
    st.one_of(NUMBERS.map(str), st.text().map(json.dumps), st.sampled_from(["true", "null", '"1e999"'])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=8).map(lambda some: f"[{','.join(some)}]"),
        st.dictionaries(st.text(max_size=5), inner, max_size=5).map(
            lambda some: "{" + ",".join(f"{json.dumps(key)}:{value}" for key, value in some.items()) + "}"
        ),
    ),
    max_leaves=12,
)


@given(value=VALUES)
@example(value="[1e308,1e309]")
def test_like_a_plain_reader(value: str) -> None:
    """A value is refused exactly if a plain JSON reader finds an infinite or an overlong number in it."""
    seen: list[str] = []
    json.loads(value, parse_float=lambda text: seen.append(text), parse_int=lambda text: seen.append(text))
    wanted = any(math.isinf(float(text)) or len(text) > 400 for text in seen)
    assert (refusal(value.encode()) is not None) is wanted
