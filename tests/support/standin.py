"""Stand-ins for daemons that cannot be had here: cjet (C) and lua-jet, as strict as they are known to be.

They do what was seen of the real ones, no more: services that these lack are unknown, rules that these refuse are
refused, events come before or after the answer as there, errors are in their words. What they only ignore is ignored.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve
from websockets.typing import Subprotocol

MATCHERS_MAX = 12
ROUTES_MAX = 64
_MISSING = object()

PATH_TESTS: dict[str, Callable[[str, Any], bool]] = {
    "equals": lambda path, operand: path == operand,
    "equalsNot": lambda path, operand: path != operand,
    "contains": lambda path, operand: operand in path,
    "containsNot": lambda path, operand: operand not in path,
    "containsAllOf": lambda path, operand: all(part in path for part in operand),
    "containsOneOf": lambda path, operand: any(part in path for part in operand),
    "startsWith": lambda path, operand: path.startswith(operand),
    "startsNotWith": lambda path, operand: not path.startswith(operand),
    "endsWith": lambda path, operand: path.endswith(operand),
    "endsNotWith": lambda path, operand: not path.endswith(operand),
    "equalsOneOf": lambda path, operand: path in operand,
    "equalsNotOneOf": lambda path, operand: path not in operand,
}
CJET_TESTS = ("equals", "equalsNot", "contains", "containsAllOf", "startsWith", "endsWith")


class Refusal(Exception):
    """An error object."""

    def __init__(self, code: int, data: Any) -> None:
        super().__init__(data)
        messages = {-32601: "Method not found", -32602: "Invalid params", -32603: "Internal error"}
        self.error = {"code": code, "message": messages[code], "data": data}


class Dialect(NamedTuple):
    """Differences between the two dialects."""

    info: dict[str, Any] | None
    services: tuple[str, ...]
    events_first: bool
    gathers: bool
    """Whether all that one frame brings about goes to a peer in one array."""
    knows_fetch_only: bool
    exists: str
    not_exists: str
    message_bytes_max: int
    """A longer message is answered by closing the connection."""
    tests: tuple[str, ...]


_ALL = ("add", "remove", "change", "set", "call", "fetch", "unfetch", "config")
DIALECTS = {
    "cjet": Dialect(
        info={
            "name": "cjet",
            "version": "1.10.0",
            "protocolVersion": "1.0.0",
            "features": {"batches": True, "authentication": True, "fetch": "full"},
        },
        services=(*_ALL, "get", "info", "authenticate"),
        events_first=True,
        gathers=False,
        knows_fetch_only=True,
        exists="exists",
        not_exists="not exists",
        message_bytes_max=512,
        tests=CJET_TESTS,
    ),
    "lua": Dialect(
        info=None,
        services=(*_ALL, "echo"),
        events_first=False,
        gathers=True,
        knows_fetch_only=False,
        exists="pathAlreadyExists",
        not_exists="pathNotExists",
        message_bytes_max=10_000_000,
        tests=tuple(PATH_TESTS),
    ),
}


class Peer:
    """A connection."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.fetches: dict[Any, Callable[[str], bool]] = {}
        self.out: list[Any] = []


class StandinElement(NamedTuple):
    """A state, or a method, which has no value."""

    owner: Peer
    value: Any
    fetch_only: bool

    @property
    def is_method(self) -> bool:
        return self.value is _MISSING


class StandinBus:
    """The bus of a stand-in, on one event loop."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.peers: list[Peer] = []
        self.elements: dict[str, StandinElement] = {}
        self.routes: dict[str, tuple[Peer, Any, Peer]] = {}
        self.routed = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(writer)
        self.peers.append(peer)
        try:
            while True:
                length = int.from_bytes(await reader.readexactly(4))
                if length > self.dialect.message_bytes_max:
                    raise ConnectionError
                heard = json.loads(await reader.readexactly(length))
                for message in heard if isinstance(heard, list) else [heard]:
                    self.hear(peer, message)
                self.flush()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.leave(peer)
            self.flush()
            writer.close()

    def flush(self) -> None:
        for peer in self.peers:
            out, peer.out = peer.out, []
            if self.dialect.gathers and len(out) > 1:
                out = [out]
            for message in out:
                data = json.dumps(message).encode()
                peer.writer.write(len(data).to_bytes(4) + data)

    def leave(self, peer: Peer) -> None:
        self.peers.remove(peer)
        for route, (asking, request_id, owner) in list(self.routes.items()):
            if peer in (asking, owner):
                del self.routes[route]
            if peer is owner and self.dialect.events_first:  # lua-jet lets them time out
                asking.out.append({"id": request_id, "error": Refusal(-32603, {"reason": "peer shuts down"}).error})
        for path, element in list(self.elements.items()):
            if element.owner is peer:
                self.drop(path)

    # -- messages

    def hear(self, peer: Peer, message: dict[str, Any]) -> None:
        if "method" not in message:
            asking, request_id, _ = self.routes.pop(message["id"], (None, None, None))
            if asking is not None and request_id is not _MISSING:
                asking.out.append({**message, "id": request_id})
            return
        service, request_id = message["method"], message.get("id", _MISSING)
        try:
            if service not in self.dialect.services:
                raise Refusal(-32601, {"reason": service} if self.dialect.events_first else service)
            params = message.get("params")
            if not isinstance(params, dict):
                raise Refusal(-32602, {"reason": "no params found"})
            result = getattr(self, f"do_{service}")(peer, params, request_id)
        except Refusal as refusal:
            if request_id is not _MISSING:
                peer.out.append({"id": request_id, "error": refusal.error})
            return
        if result is not None and request_id is not _MISSING:
            peer.out.append({"id": request_id, "result": result})
        if service == "fetch" and not self.dialect.events_first:
            self.tell_all(peer, params["id"])

    def tell(self, event: str, path: str, element: StandinElement) -> None:
        for peer in self.peers:
            for fetch_id, matches in peer.fetches.items():
                if matches(path):
                    peer.out.append({"method": fetch_id, "params": self.describe_event(event, path, element)})

    def describe_event(self, event: str, path: str, element: StandinElement) -> dict[str, Any]:
        params: dict[str, Any] = {"path": path, "event": event}
        if not element.is_method:
            params["value"] = element.value
        if element.fetch_only:
            params["fetchOnly"] = True
        return params

    def tell_all(self, peer: Peer, fetch_id: Any) -> None:
        for path, element in self.elements.items():
            if peer.fetches[fetch_id](path):
                peer.out.append({"method": fetch_id, "params": self.describe_event("add", path, element)})

    def drop(self, path: str) -> None:
        self.tell("remove", path, self.elements.pop(path))

    def find(self, params: dict[str, Any]) -> tuple[str, StandinElement]:
        path = params["path"]
        if path not in self.elements:
            raise Refusal(-32602, {self.dialect.not_exists: path})
        return path, self.elements[path]

    # -- services

    def do_info(self, _peer: Peer, _params: Any, _id: Any) -> Any:
        return self.dialect.info

    def do_config(self, _peer: Peer, _params: Any, _id: Any) -> Any:
        return True

    def do_authenticate(self, _peer: Peer, params: dict[str, Any], _id: Any) -> Any:
        raise Refusal(-32602, {"invalid credentials": params["user"]})

    def do_add(self, peer: Peer, params: dict[str, Any], _id: Any) -> Any:
        path = params["path"]
        if path in self.elements:
            raise Refusal(-32602, {self.dialect.exists: path})
        fetch_only = self.dialect.knows_fetch_only and params.get("fetchOnly", False)
        self.elements[path] = element = StandinElement(peer, params.get("value", _MISSING), fetch_only)
        self.tell("add", path, element)
        return True

    def do_remove(self, peer: Peer, params: dict[str, Any], _id: Any) -> Any:
        path, element = self.find(params)
        if element.owner is not peer:
            raise Refusal(-32602, {self.dialect.not_exists: path})
        self.drop(path)
        return True

    def do_change(self, peer: Peer, params: dict[str, Any], _id: Any) -> Any:
        path, element = self.find(params)
        if element.owner is not peer:
            raise Refusal(-32602, {"not owner of state": path})
        self.elements[path] = changed = element._replace(value=params["value"])
        self.tell("change", path, changed)
        return True

    def do_set(self, peer: Peer, params: dict[str, Any], request_id: Any) -> None:
        path, element = self.find(params)
        if self.dialect.knows_fetch_only:
            if element.is_method:
                raise Refusal(-32602, {"set/call on element not possible": path})
            if element.fetch_only:
                raise Refusal(-32602, {"fetchOnly": path})
        routed = {"value": params["value"]}
        if not self.dialect.knows_fetch_only and "valueAsResult" in params:  # cjet drops it
            routed["valueAsResult"] = params["valueAsResult"]
        self.route(peer, request_id, path, element, routed)

    def do_call(self, peer: Peer, params: dict[str, Any], request_id: Any) -> None:
        path, element = self.find(params)
        if self.dialect.knows_fetch_only and not element.is_method:
            raise Refusal(-32602, {"set/call on element not possible": path})
        self.route(peer, request_id, path, element, params.get("args", {}))

    def route(self, peer: Peer, request_id: Any, path: str, element: StandinElement, params: Any) -> None:
        if (
            self.dialect.events_first
            and sum(owner is element.owner for *_, owner in self.routes.values()) >= ROUTES_MAX
        ):
            raise Refusal(-32603, {"reason": "routing table full"})
        self.routed += 1
        route = f"(null)_{self.routed:x}_7f00"
        self.routes[route] = (peer, request_id, element.owner)
        element.owner.out.append({"id": route, "method": path, "params": params})

    def do_fetch(self, peer: Peer, params: dict[str, Any], _id: Any) -> Any:
        if params["id"] in peer.fetches:
            raise Refusal(-32602, {"reason": "fetch id already in use"})
        peer.fetches[params["id"]] = self.matcher(params)
        if self.dialect.events_first:
            self.tell_all(peer, params["id"])
        return True

    def do_unfetch(self, peer: Peer, params: dict[str, Any], _id: Any) -> Any:
        if peer.fetches.pop(params["id"], None) is None:
            raise Refusal(-32602, {"reason": "fetch id not found for unfetch"})
        return True

    def do_get(self, _peer: Peer, params: dict[str, Any], _id: Any) -> Any:
        matches = self.matcher(params)
        states = ((path, element) for path, element in self.elements.items() if not element.is_method)
        return [{"path": path, "value": element.value} for path, element in states if matches(path)]

    def matcher(self, params: dict[str, Any]) -> Callable[[str], bool]:
        rules = dict(params.get("path", {"startsWith": ""}))
        strict = self.dialect.tests == CJET_TESTS
        if strict and (not rules or len(rules) > MATCHERS_MAX):
            raise Refusal(-32602, {"reason": "no matcher in path object"})
        fold = rules.pop("caseInsensitive", False)
        if strict and (unknown := [name for name in rules if name not in CJET_TESTS]):
            raise Refusal(-32603, {"reason": f"could not add matchers to fetch: {unknown}"})
        known = [(PATH_TESTS[name], operand) for name, operand in rules.items() if name in PATH_TESTS]

        def matches(path: str) -> bool:
            if fold:
                return all(test(path.lower(), _folded(operand)) for test, operand in known)
            return all(test(path, operand) for test, operand in known)

        return matches


def _folded(operand: Any) -> Any:
    return [one.lower() for one in operand] if isinstance(operand, list) else operand.lower()


@contextlib.contextmanager
def standing_in(name: str, info: dict[str, Any] | None = None) -> Iterator[str]:
    """A stand-in that listens on a free port, in a thread of its own; gives its URL. ``info`` makes it another kind."""
    loop = asyncio.new_event_loop()
    bus = StandinBus(DIALECTS[name] if info is None else DIALECTS[name]._replace(info=info))
    problems: list[Any] = []
    loop.set_exception_handler(lambda _loop, context: problems.append(context))
    server = loop.run_until_complete(asyncio.start_server(bus.serve, "127.0.0.1", 0))
    port = server.sockets[0].getsockname()[1]
    thread = threading.Thread(target=loop.run_forever, name="stand-in")
    thread.start()

    async def end() -> None:
        server.close()
        for peer in bus.peers:
            peer.writer.close()
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})

    try:
        yield f"jet://127.0.0.1:{port}"
    finally:
        asyncio.run_coroutine_threadsafe(end(), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
    assert problems == []


@contextlib.contextmanager
def at_websocket_path(url: str, path: str) -> Iterator[str]:
    """A WebSocket server that serves one path only, as cjet does, and passes all on to a daemon; gives its URL."""
    port = int(url.rsplit(":", 1)[1])

    def check(connection: ServerConnection, request: Request) -> Response | None:
        if request.path == path:
            return None
        connection.socket.sendall(b"HTTP/1.0 404 Not Found\r\n\r\n")  # cjet's words
        connection.socket.shutdown(socket.SHUT_WR)
        return connection.respond(404, "")

    def pass_on(connection: ServerConnection) -> None:
        with socket.create_connection(("127.0.0.1", port)) as sock:
            back = threading.Thread(target=pass_back, args=(sock, connection))
            back.start()
            for text in connection:
                data = text.encode() if isinstance(text, str) else text
                sock.sendall(len(data).to_bytes(4) + data)
            sock.shutdown(socket.SHUT_RDWR)
            back.join()

    def pass_back(sock: socket.socket, connection: ServerConnection) -> None:
        stream = sock.makefile("rb")
        while len(head := stream.read(4)) == 4:
            with contextlib.suppress(ConnectionClosed):
                connection.send(stream.read(int.from_bytes(head)).decode())

    with serve(pass_on, "127.0.0.1", 0, subprotocols=[Subprotocol("jet")], process_request=check) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
        server.shutdown()
        thread.join()
