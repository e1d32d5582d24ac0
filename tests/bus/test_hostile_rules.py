"""Rules that are meant to occupy the bus: their work is bounded, whoever pays for it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from jetbus.bus.bus import Bus
from jetbus.luapattern import STEP_UNITS, STEPS_MAX
from jetbus.rules.work import meter
from jetbus.wire import jsonrpc
from support.inmemory import Peer

EXPLODING = "^(.-)(.-)(.-)%1%2%3x$"


def test_patterns_of_one_peer_share_their_steps() -> None:
    """A new path costs no more than the steps of one match, however many exploding patterns a peer has fetched."""
    bus = Bus()
    owner, hostile, other = Peer(bus), Peer(bus), Peer(bus)
    for number in range(20):
        hostile.request("fetch", {"id": f"f{number}", "matcher": {"match": [f"^{number}{EXPLODING[1:]}", EXPLODING]}})
    other.request("fetch", {"id": "mine", "matcher": "^(%w+)/%1$"})
    bus.serving.turn_ends = time.monotonic() + 1000
    before = meter.units
    owner.notify("add", {"path": "a" * 60 + "bx", "value": 1})
    assert STEPS_MAX * STEP_UNITS < 2 * (meter.units - before) < 4 * STEPS_MAX * STEP_UNITS
    owner.notify("add", {"path": "ab/ab", "value": 1})
    assert [event["path"] for event in other.events() if event.get("event") == "add"] == ["ab/ab"]


def test_patterns_of_one_peer_share_their_steps_in_a_turn() -> None:
    """All paths that a peer adds in one turn cost no more than that; the next turn has steps of its own."""
    bus = Bus()
    owner, hostile = Peer(bus), Peer(bus)
    hostile.request("fetch", {"id": "f", "matcher": EXPLODING})
    for turn in range(2):
        bus.serving.turn_ends = time.monotonic() + 1000 + turn
        before = meter.units
        for number in range(20):
            owner.notify("add", {"path": f"{turn}{number}{'a' * 60}bx", "value": 1})
        assert STEPS_MAX * STEP_UNITS < 2 * (meter.units - before) < 4 * STEPS_MAX * STEP_UNITS
    assert bus.limit_hits["pattern_steps_max"] > 0


def test_a_value_is_decoded_once_for_all_its_audiences(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change is decoded once, and equal tests of different fetches are carried out once."""
    bus = Bus()
    owner, fetcher = Peer(bus), Peer(bus)
    fields = {f"f{number}": {"equals": number} for number in range(99)}
    value = {f"f{number}": number for number in range(99)}
    owner.notify("add", {"path": "a", "value": value})
    for number in range(50):
        fetcher.fetch(f"f{number}", valueField=fields)
    fetcher.events()
    decoded: list[Any] = []
    loads = jsonrpc.loads

    def count_and_load(text: Any) -> Any:
        decoded.append(text)
        return loads(text)

    monkeypatch.setattr(jsonrpc, "loads", count_and_load)
    before = meter.units
    owner.notify("change", {"path": "a", "value": value | {"f1": 2}})
    assert len(decoded) == 1
    assert meter.units - before <= 2 * len(fields)
    assert [event["event"] for event in fetcher.events()] == ["remove"] * 50


def test_elements_share_the_tuple_of_their_audiences() -> None:
    """Many fetches over many states take one tuple, not one for each state, and leave nothing behind."""
    bus = Bus()
    owner, fetcher, watcher = Peer(bus), Peer(bus), Peer(bus)
    for number in range(100):
        owner.notify("add", {"path": f"s/{number}", "value": 1})
    watcher.fetch("all", path={"startsWith": "s/"})
    for number in range(50):
        fetcher.fetch(f"f{number}", path={"contains": "s/"})
    elements = bus.tree.elements.values()
    assert {len(element.audiences) for element in elements if element.path.startswith("s/")} == {51}
    assert len({id(element.audiences) for element in elements if element.path.startswith("s/")}) == 1
    fetcher.request("unfetch", {"id": "f7"})
    assert {len(element.audiences) for element in elements if element.path.startswith("s/")} == {50}
    assert fetcher.session.account.peer.tests == 49
    bus.disconnect(fetcher.session)
    assert fetcher.session.account.peer.tests == 0
    assert {len(element.audiences) for element in elements if element.path.startswith("s/")} == {1}
    owner.notify("add", {"path": "s/new", "value": 1})
    assert len(bus.tree.elements["s/new"].audiences) == 1
