"""The soak test itself: it passes on a sound daemon, and notices what is lost, goes back or is too slow."""

from __future__ import annotations

import importlib.util
import random
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def soak() -> ModuleType:
    """The program behind ``make soak``."""
    spec = importlib.util.spec_from_file_location("soak", ROOT / "bench" / "soak.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_some_seconds_of_it(soak: ModuleType) -> None:
    """A daemon survives a few seconds of peers of all kinds; every number is checked."""
    findings = soak.run(minutes=0.1, peers=40, states=1000, memory_max_mb=2000, p99_max_ms=30_000)
    assert findings.problems == []
    assert findings.events > 1000
    assert all(findings.joined[kind] for kind in soak.KINDS)


def test_a_lost_owner_ends_it(soak: ModuleType) -> None:
    """Owners that the daemon closes are a problem and the end of the run, long before the minutes are over."""
    options = ["--connections-max", "10"]
    findings = soak.run(minutes=60, peers=1, states=100, memory_max_mb=2000, p99_max_ms=30_000, options=options)
    assert "an owner was closed" in findings.problems[0]


def change_of(path: str, value: int) -> dict[str, Any]:
    return {"method": "f", "params": {"path": path, "event": "change", "value": value}}


SEEN = {
    "every change": ("every", [1, 2, 3], 0),
    "one missing": ("every", [1, 3], 1),
    "one twice": ("every", [1, 1], 1),
    "conflated": ("latest", [1, 3, 9], 0),
    "going back": ("latest", [1, 3, 2], 1),
}


@pytest.mark.parametrize("case", SEEN)
def test_losses_are_noticed(soak: ModuleType, case: str) -> None:
    """Only those who did not ask for every change may miss some, and nobody sees an older number again."""
    kind, numbers, problems = SEEN[case]
    findings = soak.Findings()
    reader = soak.Reader(kind, soak.Numbers(20), findings, random.Random(1))
    for number in numbers:
        reader.check(change_of("soak/1/0", number))
    assert len(findings.problems) == problems


def test_the_chart(soak: ModuleType) -> None:
    """The chart is an SVG with both curves, in which a point above the bound is above its line."""
    chart = ET.fromstring(soak.draw([soak.Sample(2, 100, 5), soak.Sample(4, 120, 80)], 500, 50))  # noqa: S314
    curves = [line.attrib["points"].split() for line in chart.iter("{http://www.w3.org/2000/svg}polyline")]
    assert [len(points) for points in curves] == [2, 2]
    assert float(curves[1][1].split(",")[1]) < float(curves[1][0].split(",")[1])
