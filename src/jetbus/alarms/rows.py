"""Rows that conditions are about: the columns of an event, with the description that was valid when it came."""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

from jetbus.json_types import Json

__all__ = ["ConditionRow", "DescribedLimits", "DocPath", "make_row", "read_description", "read_doc_path"]

STALE_S_MAX = 31_622_400.0
"""Seconds after which a state can be stale at most, as the stages of Spark have it."""
_DOC_PATH = re.compile(r"\$((?:\.[A-Za-z_][A-Za-z0-9_]*|\[\d{1,9}\])+)")


class DescribedLimits(NamedTuple):
    """Members of a description that conditions see; None where the owner does not say."""

    unit: str | None = None
    minimum: float | None = None
    maximum: float | None = None
    normal_low: float | None = None
    normal_high: float | None = None
    stale_s: float | None = None


UNDESCRIBED = DescribedLimits()


class ConditionRow(NamedTuple):
    """Columns that live conditions see."""

    num: float | None = None
    text: str | None = None
    flag: bool | None = None
    doc: Any = None
    path: str = ""
    bus: str = ""
    quality: str | None = None
    unit: str | None = None
    minimum: float | None = None
    maximum: float | None = None
    normal_low: float | None = None
    normal_high: float | None = None
    stale_s: float | None = None


def make_row(
    bus: str, path: str, value: Json, quality: str | None, description: DescribedLimits = UNDESCRIBED
) -> ConditionRow:
    """Return the row of a value."""
    num = text = flag = doc = None
    if isinstance(value, bool):
        flag = value
    elif isinstance(value, int | float):
        num = _finite(value)
    elif isinstance(value, str):
        text = value
    elif value is not None:
        doc = value
    return ConditionRow(num, text, flag, doc, path, bus, quality, *description)


def _finite(value: float) -> float | None:
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def read_description(schema: Json) -> DescribedLimits:
    """Return the members of a schema; those that are malformed are None."""
    if not isinstance(schema, dict):
        return UNDESCRIBED
    low, high = _read_range(schema.get("normal"))
    stale_s = _read_number(schema.get("stale"))
    unit = schema.get("unit")
    return DescribedLimits(
        unit if isinstance(unit, str) else None,
        _read_number(schema.get("minimum")),
        _read_number(schema.get("maximum")),
        low,
        high,
        stale_s if stale_s is not None and 0 < stale_s <= STALE_S_MAX else None,
    )


def _read_number(member: Json) -> float | None:
    return _finite(member) if isinstance(member, int | float) and not isinstance(member, bool) else None


def _read_range(member: Json) -> tuple[float | None, float | None]:
    """Return the ends of a range, of which either may be null."""
    if not isinstance(member, list) or len(member) != 2:
        return None, None
    low, high = map(_read_number, member)
    return (None, None) if low is not None and high is not None and low > high else (low, high)


class DocPath(NamedTuple):
    """Place of a member within a document."""

    steps: tuple[str | int, ...]

    def find(self, doc: Any) -> Any:
        """Return the member; None if there is none."""
        for step in self.steps:
            if isinstance(step, str):
                doc = doc.get(step) if isinstance(doc, dict) else None
            else:
                doc = doc[step] if isinstance(doc, list) and step < len(doc) else None
            if doc is None:
                return None
        return doc


def read_doc_path(text: str) -> DocPath | None:
    """Return a path such as ``$.a.b[0]``; None if it is another text.

    >>> read_doc_path("$.a[2]")
    DocPath(steps=('a', 2))
    """
    found = _DOC_PATH.fullmatch(text)
    if found is None:
        return None
    steps = re.findall(r"\.(\w+)|\[(\d+)\]", found[1])
    return DocPath(tuple(name or int(index) for name, index in steps))
