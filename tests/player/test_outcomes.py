"""Responses of recorded methods."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jetbus import Blob, Refused
from jetbus.player.outcomes import Outcomes
from jetbus.player.recording import RecordedCall


def called(ts_us: int, args: Any, **detail: Any) -> RecordedCall:
    return RecordedCall(ts_us, "m", None if args is None else json.dumps(args), json.dumps(detail))


BAD: dict[str, Any] = {"outcome": "error", "code": -32602, "error": "Invalid params", "data": {"message": "too much"}}
SAME = {
    "none": (None, []),
    "no arguments by position and by name": ({}, []),
    "by position": ([1, "a"], [1, "a"]),
    "by name, in any order": ({"a": 1, "b": {"d": 2, "c": 3}}, {"b": {"c": 3, "d": 2}, "a": 1}),
    "bytes alone": ({"mime": "image/png", "base64": "AA=="}, [Blob(b"\x00", "image/png")]),
}
OTHER = {
    "another number": ([1], [2]),
    "one more": ([1], [1, 1]),
    "by name": ([1], {"a": 1}),
    "none": ([1], []),
}


@pytest.mark.parametrize(("recorded", "asked"), SAME.values(), ids=SAME)
def test_the_same_arguments(recorded: Any, asked: Any) -> None:
    """Arguments are the same if they are the same JSON, however they were written."""
    with pytest.raises(Refused, match="too much"):
        Outcomes([called(1, recorded, **BAD)]).answer("m", asked, 1)


@pytest.mark.parametrize(("recorded", "asked"), OTHER.values(), ids=OTHER)
def test_other_arguments(recorded: Any, asked: Any) -> None:
    """A call that was not recorded is refused, and it is said why."""
    with pytest.raises(ValueError, match="no call of m with these arguments was recorded up to 1970-01-01"):
        Outcomes([called(1, recorded, outcome="ok")]).answer("m", asked, 1)


def test_the_newest_outcome_counts() -> None:
    """The answer is that of the newest call at or before the instant; before the first there is none."""
    outcomes = Outcomes(
        [called(10, [1], **BAD), called(20, [1], outcome="ok"), called(30, [1], outcome="ok"), called(40, [1], **BAD)]
    )
    for instant_us, fine in ((10, False), (19, False), (20, True), (39, True), (40, False), (99, False)):
        if fine:
            outcomes.answer("m", [1], instant_us)
        else:
            with pytest.raises(Refused, match="too much"):
                outcomes.answer("m", [1], instant_us)
    with pytest.raises(ValueError, match="no call of m"):
        outcomes.answer("m", [1], 9)


def test_the_error_is_that_of_the_owner() -> None:
    """Code, message and data of an error are as they were recorded."""
    with pytest.raises(Refused) as refused:
        Outcomes([called(1, [1], outcome="error", code=7, error="no", data=[1])]).answer("m", [1], 1)
    assert refused.value.wire() == {"code": 7, "message": "no", "data": [1]}
