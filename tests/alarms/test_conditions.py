"""Conditions that can be live, and those that cannot; that they mean what Spark means is tested beside Spark."""

from __future__ import annotations

from typing import Any

import pytest

from jetbus.alarms.conditions import CONDITION_CHARS_MAX, NotLive, compile_condition
from jetbus.alarms.rows import make_row, read_description

NOT_LIVE = {
    "num >": "it is not understood",
    "speed > 3": "there is no 'speed'; there are num, text",
    "num + 1": "it is a double, not a condition",
    "num > 'a'": "compares double with text",
    "flag > 3": "compares boolean with integer",
    "doc = 'a'": "compares doc with text",
    "doc = doc": "compares a document",
    "not num": "'num' is a double, not a boolean",
    "lower(num) = 'a'": "'num' is a double, not a text",
    "text + 1 > 2": "'text' is a text, not a number",
    "num / minimum > 1": "may divide by zero",
    "num % 0 > 1": "may divide by zero",
    "length(text) * 100 > 1": "may be larger than the integers of Spark",
    "value = '7'": "value cannot be live: it is the text as the owner sent it",
    "peer = 'plc'": "an event does not say who sent it",
    "source_ts > ts": "only the journal has it",
    "num > (select 1)": "is not among what can be live",
    "num in (select 1)": "is not in a list of values",
    "text rlike 'a'": "is not among what can be live",
    "rand() > 0.5": "is not among what can be live",
    "sum(num) > 1": "is not among what can be live",
    "text like path": "takes a pattern in quotes",
    "text = 'a\\\\b'": "has a backslash",
    "cast(num as int) > 1": "is a cast; numbers, texts and truths",
    "1.5 % 0.4 = 0": "is a remainder of decimals",
    "round(num, 11) > 1": "takes a number of digits from 0 to 10",
    "variant_get(doc, '$.x', 'double') > 1": "use try_variant_get",
    "try_variant_get(doc, '$.x', 'date') = 'a'": "takes a type in quotes",
    "try_variant_get(doc, 'x', 'double') > 1": "takes a path such as",
    "try_variant_get(text, '$.x', 'double') > 1": "reads something else than doc",
    f"num > 1.{'1' * 40}": "has more than 38 digits",
    f"1.{'1' * 20} * 1.{'1' * 20} > 1": "needs more than 38 digits",
    " " * (CONDITION_CHARS_MAX + 1): "it has more than 10000 characters",
}


@pytest.mark.parametrize("text", NOT_LIVE, ids=lambda text: text[:40])
def test_a_condition_that_cannot_be_live_says_why(text: str) -> None:
    """Whatever Spark would refuse or fail at, and whatever needs more than the row, is refused with the reason."""
    with pytest.raises(NotLive) as caught:
        compile_condition(text)
    assert NOT_LIVE[text] in str(caught.value)


LIVE: dict[str, dict[Any, bool]] = {
    "num > 80": {7: False, 81: True, "81": False, None: False, True: False},
    "NUM between 1 and 2.5 or text like 'o_'": {1: True, 2.5: True, 3: False, "on": True, "off": False},
    "not num > 80": {81: False, 7: True, "a": False},
    "num is null and flag is not true": {7: False, "a": True, True: False, False: True},
    "num > maximum": {80: False, 91: True},
    "unit = 'Cel'": {80: True},
    "0.1 + 0.2 = 0.3": {0: True},
    "0.1D + 0.2D = 0.3D": {0: False},
    "num / nullif(num - 5, 0) > 1": {5: False, 6: True},
    "num = 9007199254740993": {9007199254740992: True},
}


@pytest.mark.parametrize("text", LIVE)
def test_a_condition_is_a_function(text: str) -> None:
    """A condition is true or false of every value; null is false."""
    condition, limits = compile_condition(text), read_description({"unit": "Cel", "maximum": 90})
    assert {value: condition(make_row("b", "p", value, None, limits)) for value in LIVE[text]} == LIVE[text]


def test_members_of_documents() -> None:
    """Members of objects and lists are read by their path."""
    condition = compile_condition("try_variant_get(doc, '$.a[1].b', 'double') > 2 and quality is null")
    found = [condition(make_row("b", "p", value, None)) for value in ({"a": [0, {"b": 3}]}, {"a": [0]}, [1], 3)]
    assert found == [True, False, False, False]
