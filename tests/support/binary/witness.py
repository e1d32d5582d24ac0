"""Peers that notice when something is wrong on the bus: binary and JSON fetchers of everything, and an owner.

Each fetcher keeps its own picture of the bus from the events it is told, and refuses events that do not fit it (a
second add, a change of nothing). `check` proves that a change and a set still get through and that all pictures are
those that `get` gives.
"""

from __future__ import annotations

import itertools
import time

import msgspec

from support.binary.client import DEADLINE_S, BinaryPeer, connect
from support.binary.layout import NOTIFY, SET, FetchEvent, RoutedRequest, Value, js, key, packed
from support.daemon import Daemon
from support.strict import strict_json
from support.wire import Wire

PATH = "witness/s"


class BinaryPicture:
    """State of the bus as a binary fetcher of everything knows it."""

    def __init__(self, peer: BinaryPeer) -> None:
        self.peer = peer
        self.elements: dict[str, tuple[Value, bool]] = {}
        self.fetch_id = peer.fetch()

    def check(self) -> list[str]:
        """Take in what was told; the picture must be what get gives."""
        matches = self.peer.get()
        received = list(self.peer.inbox)
        self.peer.inbox.clear()
        for one in received:
            assert isinstance(one, FetchEvent), one
            self._take(one)
        assert list(self.elements.items()) == [(m.path, (m.value, m.fetch_only)) for m in matches]
        return list(self.elements)

    def _take(self, received: FetchEvent) -> None:
        assert received.fetch_id == self.fetch_id
        assert (received.path in self.elements) == (received.event != "add"), received
        if received.event == "remove":
            assert self.elements.pop(received.path) == (received.value, received.fetch_only)
        else:
            self.elements[received.path] = received.value, received.fetch_only


class JsonPicture:
    """State of the bus as a JSON fetcher of everything knows it; values are compared as raw text."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.elements: dict[str, bytes] = {}
        assert wire.result("fetch", {"id": "all"}) is True

    def check(self) -> list[str]:
        answer = self._get()
        for text in self.wire.inbox:
            self._take(text)
        self.wire.inbox.clear()
        assert self.elements == {_path(entry): _seen(entry) for entry in answer}
        return list(self.elements)

    def _get(self) -> list[dict[str, msgspec.Raw]]:
        self.wire.send({"id": "picture", "method": "get", "params": {}})
        before = []
        while '"id":"picture"' not in (text := self.wire.receive_text())[:20]:
            before.append(text)
        self.wire.inbox.extend(before)
        strict_json(text)
        message = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        return msgspec.json.decode(message["result"], type=list[dict[str, msgspec.Raw]])

    def _take(self, text: str) -> None:
        strict_json(text)
        params = msgspec.json.decode(
            msgspec.json.decode(text, type=dict[str, msgspec.Raw])["params"], type=dict[str, msgspec.Raw]
        )
        path, event = _path(params), bytes(params["event"])
        assert (path in self.elements) == (event != b'"add"'), text
        if "fetchOnly" not in params and self.elements.get(path, b"").endswith(b" true"):
            params["fetchOnly"] = msgspec.Raw(b"true")  # told once, by add
        if event == b'"remove"':
            assert self.elements.pop(path) == _seen(params)
        else:
            self.elements[path] = _seen(params)


class Witness:
    """An owner, and fetchers of everything on all transports of both protocols."""

    def __init__(self, daemon: Daemon) -> None:
        self.owner = connect(daemon)
        self.client = connect(daemon, "unix")
        self.pictures: list[BinaryPicture | JsonPicture] = [
            BinaryPicture(connect(daemon, "tcp")),
            BinaryPicture(connect(daemon, "ws")),
            JsonPicture(daemon.connect("unix")),
        ]
        self.owner.add_state(PATH, js(0))
        self._counts = itertools.count(1)

    def check(self) -> None:
        """Sets and changes get through, every picture is true, and nothing is on the bus but the witness."""
        value = js(next(self._counts))
        number = self.client.start_set(PATH, value)
        asked = self.owner.asked()
        assert asked == RoutedRequest(asked.id, SET, PATH, value, {})
        assert self.owner.done(NOTIFY, key(PATH) + packed(value)) == b""
        self.owner.succeed(asked.id)
        assert self.client.response(number) == (number, True, b"")
        deadline = time.monotonic() + DEADLINE_S
        for picture in self.pictures:
            while picture.check() != [PATH]:
                assert time.monotonic() < deadline, f"still on the bus: {list(picture.elements)}"
        assert self.owner.everything() == []
        assert self.client.everything() == []

    def close(self) -> None:
        self.owner.close()
        self.client.close()
        for picture in self.pictures:
            (picture.peer if isinstance(picture, BinaryPicture) else picture.wire).close()


def _path(params: dict[str, msgspec.Raw]) -> str:
    path: str = strict_json(bytes(params["path"]).decode())
    return path


def _seen(params: dict[str, msgspec.Raw]) -> bytes:
    return bytes(params.get("value", b"")) + b" " + bytes(params.get("fetchOnly", b""))
