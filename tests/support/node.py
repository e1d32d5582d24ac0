"""Real node-jet peers in a Node.js process of their own, steered from tests.

A `Node` runs `peer.cjs` with one version of node-jet. It hosts any number of peers; a `NodeBus` opens them on one
daemon. All waiting has a deadline. To prove that nothing more comes, `Fetch.seen` makes the owners and the fetching
peer exchange a request with the daemon: each connection keeps its order, so all that was under way is here then.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import shutil
import signal
import subprocess
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from support.daemon import Daemon

Version = Literal[1, 2, 3]
Transport = Literal["tcp", "ws"]
Rule = tuple[Any, ...]
"""A call of node-jet's Fetcher: its name and its operands, as `("path", "startsWith", "pump/")`."""

HERE = Path(__file__).parent.parent / "interop"
DEADLINE_S = 20.0
ADVICE = "run make test, which installs node and the clients"


class JetError(Exception):
    """Rejection of a node-jet promise: `kind` is node-jet's error class, None for a bare error object."""

    def __init__(self, kind: str | None, message: str, code: int | None = None, data: Any = None) -> None:
        super().__init__(kind, message, code, data)
        self.kind = kind
        self.message = message
        self.code = code
        self.data = data


class Node:
    """A Node.js process with one version of node-jet."""

    def __init__(self, version: Version) -> None:
        self.version = version
        self.strays: list[str] = []
        self._names = itertools.count(1)
        self._ids = itertools.count(1)
        self._peers: dict[str, Peer] = {}
        self._open: dict[int, Future[Any]] = {}
        self._pid: Future[int] = Future()
        self._process = subprocess.Popen(
            [_node(version), str(HERE / "peer.cjs"), str(version)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def peer(self) -> Peer:
        peer = Peer(self, f"p{next(self._names)}")
        self._peers[peer.name] = peer
        return peer

    def ask(self, peer: Peer, op: str, **args: Any) -> Future[Any]:
        """Start an operation of `peer.cjs`."""
        assert self._process.stdin is not None
        answer: Future[Any] = Future()
        request_id = next(self._ids)
        self._open[request_id] = answer
        request = {"id": request_id, "peer": peer.name, "op": op, **args}
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise AssertionError(f"the Node.js process of node-jet {self.version} has ended") from error
        return answer

    def kill(self) -> None:
        """End the process without any farewell."""
        if self.is_running:
            # The node command may be a wrapper: it is the process behind it that has to go.
            os.kill(self._pid.result(DEADLINE_S), signal.SIGKILL)
            self._end()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        assert self._process.stdin is not None
        if not self.is_running:
            return
        self._process.stdin.close()
        try:
            self._process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.kill()
        else:
            self._end()

    def _end(self) -> None:
        self._process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = json.loads(line)
            if "pid" in message:
                self._pid.set_result(message["pid"])
            elif "id" in message:
                _settle(self._open.pop(message["id"]), message)
            elif "peer" in message:
                self._peers[message["peer"]].report(message)
            else:
                self.strays.append(message["text"])
        for answer in self._open.values():
            answer.set_exception(AssertionError(f"the Node.js process of node-jet {self.version} has ended"))


class Peer:
    """A node-jet Peer."""

    def __init__(self, node: Node, name: str) -> None:
        self.node = node
        self.name = name
        self.version = node.version
        self.frames: list[str] = []
        self._fetches: dict[str, Fetch] = {}
        self._routed_request: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def begin(self, op: str, **args: Any) -> Future[Any]:
        """Start an operation without waiting for its end."""
        return self.node.ask(self, op, **args)

    def do(self, op: str, **args: Any) -> Any:
        return self.begin(op, **args).result(DEADLINE_S)

    def info(self) -> Any:
        return self.do("info")

    def close(self) -> None:
        self.do("close")

    def add_state(self, path: str, value: Any, handler: str | None = "accept", **options: Any) -> None:
        """Add a state; `handler` names what it does with a set, see `peer.cjs`; None makes it fetch-only."""
        self.do("addState", path=path, value=value, handler=handler, **options)

    def add_method(self, path: str, handler: str = "accept", **options: Any) -> None:
        self.do("addMethod", path=path, handler=handler, **options)

    def remove(self, path: str) -> None:
        self.do("remove", path=path)

    def change(self, path: str, value: Any) -> None:
        self.do("change", path=path, value=value)

    def set(self, path: str, value: Any, **options: Any) -> Any:
        return self.do("set", path=path, value=value, options=options)

    def call(self, path: str, args: Any = None, **options: Any) -> Any:
        return self.do("call", path=path, args=args, options=options)

    def get(self, **expression: Any) -> Any:
        return self.do("get", expression=expression)

    def fetch(self, *rules: Rule, as_notification: bool = False) -> Fetch:
        fetch = Fetch(self, f"f{len(self._fetches)}")
        self._fetches[fetch.name] = fetch
        self.do("fetch", fetch=fetch.name, rules=rules, asNotification=as_notification)
        return fetch

    def asked(self) -> dict[str, Any]:
        """Wait for the next set or call that reached a handler of this peer."""
        try:
            return self._routed_request.get(timeout=DEADLINE_S)
        except queue.Empty:
            raise AssertionError("no set or call reached this owner") from None

    def reply(self, asked: dict[str, Any], **answer: Any) -> None:
        """Answer what a `later` handler was asked."""
        self.do("reply", ticket=asked["ticket"], answer=answer)

    def report(self, message: dict[str, Any]) -> None:
        """Take a report of the Node.js process; called by its reader."""
        if message["report"] == "fetch":
            self._fetches[message["fetch"]].tell(message["event"])
        elif message["report"] == "frame":
            self.frames.append(f"{message['way']:8} {message['text']}")
        else:
            self._routed_request.put(message)


class Fetch:
    """A node-jet Fetcher: what it was told, in order."""

    def __init__(self, peer: Peer, name: str) -> None:
        self.peer = peer
        self.name = name
        self._received: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def tell(self, event: Any) -> None:
        # A value in node-jet 3's Remove is allowed and read by nobody.
        if isinstance(event, dict) and event.get("event") == "Remove":
            event.pop("value", None)
        self._received.put(event)

    def take(self, count: int) -> list[Any]:
        """Wait for the next `count` events."""
        events: list[Any] = []
        try:
            while len(events) < count:
                events.append(self._received.get(timeout=DEADLINE_S))
        except queue.Empty:
            raise AssertionError(f"{count} events expected, came: {events}") from None
        return events

    def seen(self, *owners: Peer) -> list[Any]:
        """Everything told since the last look, once all that `owners` did has gone through the daemon."""
        for peer in (*owners, self.peer):
            peer.info()
        events = []
        while not self._received.empty():
            events.append(self._received.get())
        return events

    def unfetch(self) -> None:
        self.peer.do("unfetch", fetch=self.name)

    def refetch(self) -> None:
        """Fetch again with the same Fetcher object."""
        self.peer.do("refetch", fetch=self.name)


class NodeBus:
    """One daemon and the node-jet peers that a test connects to it."""

    def __init__(self, daemon: Daemon, nodes: dict[Version, Node]) -> None:
        self.daemon = daemon
        self._nodes = nodes
        self._peers: list[Peer] = []

    def peer(self, version: Version, transport: Transport, *, node: Node | None = None, **config: Any) -> Peer:
        """Connect a peer; `node` hosts it in a process other than the shared one."""
        config = {**self.config(transport), **config}
        peer = (node or self._nodes[version]).peer()
        self._peers.append(peer)
        peer.do("connect", config=config)
        return peer

    def config(self, transport: Transport) -> dict[str, Any]:
        """Return the configuration by which node-jet finds the daemon."""
        ip, port = self.daemon.address(transport)
        return {"url": f"ws://{ip}:{port}"} if transport == "ws" else {"ip": ip, "port": port}

    def close(self) -> None:
        """Close every peer and print its frames: pytest shows them for a failed test."""
        for peer in self._peers:
            print(f"--- node-jet {peer.version} peer {peer.name}", *peer.frames, sep="\n")
            if peer.node.is_running:
                peer.close()
        nodes = {*self._nodes.values(), *(peer.node for peer in self._peers)}
        strays = [text for node in nodes for text in node.strays]
        for node in nodes:
            node.strays.clear()
        assert not strays, "node-jet raised errors that nobody caught:\n" + "\n".join(strays)


def event(peer: Peer, word: str, path: str, *value: Any, **flags: Any) -> dict[str, Any]:
    """An event as this version of node-jet expects it: `Add` and so on in node-jet 3, `add` before."""
    if peer.version == 3:
        word = word.capitalize()
        if word == "Remove":
            value = ()
    shown = {"value": value[0]} if value else {}
    return {"path": path, "event": word, **shown, **flags}


def _node(version: Version) -> str:
    node = shutil.which("node")
    assert node, f"there is no node on the PATH: {ADVICE}"
    assert (HERE / "node_modules" / f"jet{version}").is_dir(), f"node-jet {version} is not installed: {ADVICE}"
    return node


def _settle(answer: Future[Any], message: dict[str, Any]) -> None:
    if "error" in message:
        answer.set_exception(JetError(**message["error"]))
    else:
        answer.set_result(message.get("result"))
