"""Sorted gets and fetches of many states: keys and texts are made in short steps, only the last step sorts."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jetbus.bus.bus import Bus
from support.inmemory import Peer

STATES = 2000
SORTED: dict[str, tuple[str, dict[str, Any]]] = {
    "get, ten": ("get", {"sort": {"byValue": "number", "from": 1, "to": 10}}),
    "get, all": ("get", {"sort": {"byValue": "number", "from": 1, "to": STATES}}),
    "get, descending": ("get", {"sort": {"byValue": "number", "descending": True, "from": 1, "to": STATES}}),
    "fetch, ten": ("fetch", {"id": "f", "sort": {"byValue": "number", "from": 1, "to": 10}}),
    "fetch, by path": ("fetch", {"id": "f", "sort": {"byPath": True, "from": 1, "to": 10}}),
}


@pytest.fixture
def owner() -> Peer:
    """The owner of many states, whose values are not in the order of their paths."""
    owner = Peer(Bus())
    for number in range(STATES):
        owner.notify("add", {"path": f"t/{number}", "value": number * 7 % STATES})
    return owner


def _in_steps(peer: Peer, method: str, params: dict[str, Any]) -> Iterator[None]:
    """Send a request whose turns are over after each step, and yield between two steps."""
    bus = peer.bus
    bus.serving.turn_ends = -1.0
    peer.send({"id": 1, "method": method, "params": params})
    while peer.session.task is not None:
        yield
        bus.serving.turn_ends -= 1.0  # another turn, which is over as well
        bus.serving.next_turn(peer.session)


def _count_calls(work: Callable[[], object]) -> int:
    """Return the number of Python functions that are called by some work."""
    calls = 0

    def count(_frame: Any, event: str, _arg: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize(("method", "params"), SORTED.values(), ids=SORTED)
def test_no_step_grows_with_the_states(owner: Peer, method: str, params: dict[str, Any]) -> None:
    """No step calls a function for each of the states, not even the one that sorts them."""
    peer = Peer(owner.bus)
    steps = _in_steps(peer, method, params)
    calls: list[int] = []
    while peer.session.task is not None or not calls:
        calls.append(_count_calls(lambda: next(steps, None)))
    assert len(calls) > STATES / 50
    assert max(calls) < STATES / 2


@pytest.mark.parametrize("params", [SORTED["get, all"][1], SORTED["get, descending"][1]], ids=["up", "down"])
def test_a_sorted_get_shows_its_last_moment(owner: Peer, params: dict[str, Any]) -> None:
    """States that are changed, removed and added between two steps are sorted and shown as they are in the end."""
    peer = Peer(owner.bus)
    steps = _in_steps(peer, "get", params)
    for _ in range(10):
        next(steps)
    owner.bus.serving.turn_ends = math.inf  # the owner's turn
    owner.notify("change", {"path": "t/0", "value": 5000})
    owner.notify("remove", {"path": "t/1"})
    owner.notify("add", {"path": "new", "value": 0.5})
    owner.bus.serving.turn_ends = -1000.0
    for _ in steps:
        pass
    (answer,) = peer.received()
    shown = [(entry["index"], entry["path"], entry["value"]) for entry in answer["result"]]
    values = {f"t/{number}": number * 7 % STATES for number in range(2, STATES)} | {"t/0": 5000, "new": 0.5}
    ordered = sorted(values.items(), key=lambda item: item[1], reverse=bool(params["sort"].get("descending")))
    assert shown == [(at, path, value) for at, (path, value) in enumerate(ordered, 1)]
