"""The work meter: units, ceilings and threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from jetbus.errors import LimitReached
from jetbus.rules.work import meter


def test_a_ceiling_ends_work_and_names_the_limit() -> None:
    """Work beyond a ceiling raises an error with the name of the setting, and the ceiling ends with its context."""
    with meter.ceiling(10, "rule_work_max"):
        meter.spend(10)
        assert meter.left == 0
        with pytest.raises(LimitReached, match="rule_work_max") as caught:
            meter.spend(1)
    assert caught.value.limit == "rule_work_max"
    meter.spend(1_000_000)


def test_the_lower_of_two_ceilings_holds() -> None:
    """A context inside another cannot raise its ceiling."""
    with meter.ceiling(10, "low_max"), meter.ceiling(20, "high_max"), pytest.raises(LimitReached, match="low_max"):
        meter.spend(11)
    with meter.ceiling(20, "high_max"):
        with meter.ceiling(10, "low_max"), pytest.raises(LimitReached, match="low_max"):
            meter.spend(11)
        meter.spend(9)
        with pytest.raises(LimitReached, match="high_max"):
            meter.spend(1)


def test_units_can_be_counted_without_an_error() -> None:
    """Tests during the delivery of an event count without raising, however low the ceiling is."""
    before = meter.units
    with meter.ceiling(10, "rule_work_max"):
        meter.units += 100
        assert meter.left == -90
    assert meter.units == before + 100


def test_each_thread_has_its_own_meter() -> None:
    """Work in another thread neither counts here nor meets a ceiling that was set here."""

    def work_elsewhere() -> int:
        meter.spend(1000)
        return meter.units

    before = meter.units
    with ThreadPoolExecutor(1) as pool, meter.ceiling(10, "rule_work_max"):
        assert pool.submit(work_elsewhere).result() == 1000
        assert meter.units == before
