"""Arguments as people type them: values and durations; columns that fit a terminal."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetbus.cli.arguments import read_duration, read_value
from jetbus.cli.exit_codes import Code, Failure, find_similar_path
from jetbus.cli.output import encode_json, fit_widths, measure_width, truncate

DURATIONS = {"250ms": 0.25, "2h": 7200.0, "7d": 604800.0, "1h30m": 5400.0, "1.5s": 1.5, "10us": 1e-5, "1w": 604800.0}


@pytest.mark.parametrize("text", DURATIONS)
def test_durations(text: str) -> None:
    """A duration is one or more numbers with units."""
    assert read_duration(text) == pytest.approx(DURATIONS[text])


@pytest.mark.parametrize("text", ["", "10", "s", "1 h", "-2h", "1hh", "1x", "1s!", "٣s"])
def test_no_durations(text: str) -> None:
    """Anything else is a mistake on the command line."""
    with pytest.raises(Failure) as failure:
        read_duration(text)
    assert failure.value.code is Code.USAGE


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(JSON)
def test_values_come_back(value: object) -> None:
    """Printed values can be typed again."""
    assert read_value(encode_json(value)) == value
    assert read_value(json.dumps(value)) == value


@given(st.text(), st.integers(1, 20))
def test_cut(text: str, width: int) -> None:
    """Truncated text fits, and text that fits is not truncated."""
    assert measure_width(truncate(text, width)) <= max(width, 1)
    assert truncate(text, measure_width(text)) == text


@given(st.lists(st.integers(1, 300), min_size=1, max_size=10), st.integers(1, 200))
def test_fitted(widths: list[int], width: int) -> None:
    """Columns shrink to fit as long as each can keep one character, and never grow."""
    fit = fit_widths(widths, width)
    assert all(new <= old for new, old in zip(fit, widths, strict=True))
    assert sum(fit) + 2 * (len(fit) - 1) <= max(width, 3 * len(fit) - 2)


def test_near_paths_among_many() -> None:
    """Among very many paths the one that was meant is found, too."""
    paths = [f"plant/unit{number}/speed" for number in range(20_000)]
    assert find_similar_path("plant/unit77/spead", [*paths[:100], *paths[100:]]) == "plant/unit77/speed"
