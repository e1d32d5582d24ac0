"""Checks of every frame of the daemon, and peers that apply them."""

from __future__ import annotations

import itertools
import json
import time
from typing import TYPE_CHECKING, Any, NoReturn

from support.wire import DEADLINE_S, Wire

if TYPE_CHECKING:
    from support.daemon import Daemon

_numbers = itertools.count(1)


def strict_json(text: str) -> Any:
    """The JSON of a frame; NaN and Infinity are no JSON."""
    return json.loads(text, parse_constant=_no_constant)


def _no_constant(name: str) -> NoReturn:
    raise AssertionError(f"{name} is no JSON")


class Witness:
    """An owner and two fetchers of everything, on all three transports: `check` proves that they are unharmed."""

    def __init__(self, daemon: Daemon) -> None:
        self.path = f"witness/{next(_numbers)}"
        self.owner: Wire = daemon.connect("tcp")
        self.fetchers: list[Wire] = [daemon.connect("unix"), daemon.connect("ws")]
        self._count = 0
        assert self.owner.result("add", {"path": self.path, "value": 0}) is True
        for fetcher in self.fetchers:
            assert fetcher.result("fetch", {"id": "witness"}) is True

    def check(self) -> None:
        """A change still reaches every fetcher, a set still reaches the owner, and all frames were JSON."""
        self._count += 1
        assert self.owner.result("change", {"path": self.path, "value": self._count}) is True
        expected = {"path": self.path, "event": "change", "value": self._count}
        for fetcher in self.fetchers:
            self._await(fetcher, {"method": "witness", "params": expected})
        setter = self.fetchers[0]
        setter.send({"id": f"set {self._count}", "method": "set", "params": {"path": self.path, "value": self._count}})
        request = self._await(self.owner, {"method": self.path, "params": {"value": self._count}})
        self.owner.send({"id": request["id"], "result": True})
        self._await(setter, {"id": f"set {self._count}", "result": True})

    def close(self) -> None:
        for wire in (self.owner, *self.fetchers):
            wire.close()

    def _await(self, wire: Wire, expected: dict[str, Any]) -> Any:
        """Read up to this message; other frames may come before it, if only they are JSON."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            message = strict_json(wire.receive_text(max(0.001, deadline - time.monotonic())))
            if all(message.get(key) == value for key, value in expected.items()):
                return message
