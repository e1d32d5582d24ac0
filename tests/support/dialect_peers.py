"""One peer of each dialect behind the same few methods: own numbers, ask others to change theirs, see every event.

Nothing of jetbus is used; frames are those of the transcripts. A peer fetches everything as soon as it is connected.
"""

from __future__ import annotations

import abc
import json
from collections.abc import Callable
from typing import Any, NamedTuple

from support.binary import client
from support.binary.layout import ADD_STATE, NOTIFY, REMOVE_STATE, FetchEvent, js, key, packed
from support.daemon import Daemon


class Seen(NamedTuple):
    """An event as a fetch told it; nobody relies on the value of a remove."""

    event: str
    path: str
    number: int | None


class Request(NamedTuple):
    """A set that has reached its owner, and how to answer it."""

    path: str
    number: int
    succeed: Callable[[], None]


class DialectPeer(abc.ABC):
    """A connected peer."""

    @abc.abstractmethod
    def add(self, path: str, number: int) -> bool:
        """Add a state; False if that is refused."""

    @abc.abstractmethod
    def change(self, path: str, number: int) -> bool:
        """Change a state; False if that is refused."""

    @abc.abstractmethod
    def send_change(self, path: str, number: int) -> None:
        """Change a state without asking for an answer."""

    @abc.abstractmethod
    def remove(self, path: str) -> bool:
        """Remove a state; False if that is refused."""

    @abc.abstractmethod
    def send_set(self, path: str, number: int) -> Callable[[], bool]:
        """Ask the owner of a state; returns the function that waits for the answer, False if it is refused."""

    @abc.abstractmethod
    def receive_request(self) -> Request:
        """Wait for the next set of a state of this peer."""

    @abc.abstractmethod
    def receive_events(self) -> list[Seen]:
        """Return all events until now; what the daemon has handled before this call is among them."""

    @abc.abstractmethod
    def close(self) -> None:
        """End the connection at once."""


class JsonPeer(DialectPeer):
    """The classic dialect; the other JSON dialects differ in a few forms."""

    transport = "tcp"

    def __init__(self, daemon: Daemon) -> None:
        self.wire = daemon.connect(self.transport)
        self.greet()

    def greet(self) -> None:
        self.wire.result("fetch", {"id": "all", "every": True})

    def add(self, path: str, number: int) -> bool:
        return self._is_done("add", {"path": path, "value": number})

    def change(self, path: str, number: int) -> bool:
        return self._is_done("change", {"path": path, "value": number})

    def send_change(self, path: str, number: int) -> None:
        self.wire.notify("change", {"path": path, "value": number})

    def remove(self, path: str) -> bool:
        return self._is_done("remove", {"path": path})

    def send_set(self, path: str, number: int) -> Callable[[], bool]:
        request_id = f"set-{number}"
        self.wire.send({"id": request_id, "method": "set", "params": self.set_params(path, number)})
        return lambda: "result" in self.wire.response(request_id)

    def receive_request(self) -> Request:
        passed = []
        while not {"id", "method"} <= (message := json.loads(text := self.wire.receive_text())).keys():
            passed.append(text)
        self.wire.inbox.extendleft(reversed(passed))
        path, number, result = self.read_request(message["method"], message["params"])
        return Request(path, number, lambda: self.wire.send({"id": message["id"], "result": result}))

    def receive_events(self) -> list[Seen]:
        messages = self.wire.receive_all()
        return [seen for message in messages for seen in self.read_event(message["params"])]

    def close(self) -> None:
        self.wire.close()

    def set_params(self, path: str, number: int) -> Any:
        return {"path": path, "value": number}

    def read_request(self, method: str, params: Any) -> tuple[str, int, Any]:
        return method, params["value"], True

    def read_event(self, params: Any) -> list[Seen]:
        event = params["event"].lower()
        return [Seen(event, params["path"], None if event == "remove" else params["value"])]

    def _is_done(self, method: str, params: Any) -> bool:
        return "result" in self.wire.request(method, params)


class NodeJet3Peer(JsonPeer):
    """node-jet 3 over WebSocket: known by its first frame; requests for its states have the path in their params."""

    transport = "ws"

    def greet(self) -> None:
        self.wire.result("info", {})
        self.wire.result("fetch", {"id": "f_all", "path": {"startsWith": ""}})

    def read_request(self, method: str, params: Any) -> tuple[str, int, Any]:
        assert method == "set"
        return params["path"], params["value"], params


class LegacyPeer(JsonPeer):
    """The dialect of 2012 over a Unix socket: positional params, values in elements and data, nodes and leaves."""

    transport = "unix"

    def greet(self) -> None:
        self.wire.result("fetch", ["all", "."])

    def add(self, path: str, number: int) -> bool:
        return self._is_done("add", [path, {"type": "state", "value": number}])

    def change(self, path: str, number: int) -> bool:
        return self._is_done("notify", [path, {"event": "change", "data": {"value": number}}])

    def send_change(self, path: str, number: int) -> None:
        self.wire.notify("notify", [path, {"event": "change", "data": {"value": number}}])

    def remove(self, path: str) -> bool:
        return self._is_done("remove", [path])

    def set_params(self, path: str, number: int) -> Any:
        return [path, number]

    def read_request(self, method: str, params: Any) -> tuple[str, int, Any]:
        return method, params[0] if isinstance(params, list) else params["value"], {}

    def read_event(self, params: Any) -> list[Seen]:
        if params["data"].get("type") == "node":
            return []
        event = params["event"]
        return [Seen(event, params["path"], None if event == "remove" else params["data"]["value"])]


class BinaryDialectPeer(DialectPeer):
    """The binary protocol over TCP."""

    def __init__(self, daemon: Daemon) -> None:
        self.peer = client.connect(daemon)
        self.peer.fetch(every=True)

    def add(self, path: str, number: int) -> bool:
        return self.peer.ask(ADD_STATE, key(path) + packed(js(number))).ok

    def change(self, path: str, number: int) -> bool:
        return self.peer.ask(NOTIFY, key(path) + packed(js(number))).ok

    def send_change(self, path: str, number: int) -> None:
        self.peer.notify(path, js(number))

    def remove(self, path: str) -> bool:
        return self.peer.ask(REMOVE_STATE, key(path)).ok

    def send_set(self, path: str, number: int) -> Callable[[], bool]:
        request_id = self.peer.start_set(path, js(number))
        return lambda: self.peer.response(request_id).ok

    def receive_request(self) -> Request:
        asked = self.peer.asked()
        return Request(asked.path, asked.value.json, lambda: self.peer.succeed(asked.id))

    def receive_events(self) -> list[Seen]:
        received = [each for each in self.peer.everything() if isinstance(each, FetchEvent)]
        return [Seen(each.event, each.path, None if each.event == "remove" else each.value.json) for each in received]

    def close(self) -> None:
        self.peer.close()


DIALECTS: list[Callable[[Daemon], DialectPeer]] = [JsonPeer, NodeJet3Peer, LegacyPeer, BinaryDialectPeer]
