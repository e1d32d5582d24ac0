"""One end of a conversation with a daemon, without I/O: messages in, messages out, and who waits for which.

The session knows what this peer owns and fetches, so that it can say everything again on a new connection. The faces
(``aio``, ``blocking``) give it messages and a place to put its own; they own sockets, time and threads.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

import msgspec
from msgspec import UNSET, Raw, Struct

from jetbus.errors import ConnectionLost, JetError, NotConnected, Occupied, TimedOut, from_wire
from jetbus.peer.elements import Answering, Owned, OwnedMethod, OwnedState
from jetbus.peer.fetching import Fetching, Told
from jetbus.wire import jsonrpc

log = logging.getLogger("jetbus.peer")


class Waiter(Protocol):
    """Who waits for a response; an ``asyncio.Future`` is one."""

    def done(self) -> bool: ...

    def set_result(self, result: Any, /) -> None: ...

    def set_exception(self, exception: BaseException, /) -> None: ...


class Heard(Struct, gc=False):
    """What a daemon says: a response or a notification, read in one pass."""

    id: int | str | None = None
    method: str | None = None
    params: Told | None = None
    result: Any = UNSET
    error: Any = UNSET


class SetResult(Struct, frozen=True):
    """The answer to a set: the owner's warning when it has adapted the value, the value when that was asked for."""

    value: Any = None
    warning_code: int | None = None
    warning: str | None = None

    @property
    def adapted(self) -> bool:
        """Whether the owner took another value than asked for."""
        return self.warning_code is not None


def read_set_result(result: Any) -> SetResult:
    """The answer to a set, whichever library the owner uses."""
    warning = result.get("warning") if isinstance(result, dict) else None
    if isinstance(warning, dict):
        return SetResult(None, warning.get("code"), warning.get("message"))
    return _PLAIN_SET if result is True or result == {} or result is None else SetResult(result)


_PLAIN_SET = SetResult()
_decode = msgspec.json.Decoder(Heard).decode


class Request(Struct):
    """A request on its way: who waits, how to read the answer, until when."""

    waiter: Waiter
    read: Callable[[Any], Any] | None
    deadline: float
    path: str


class Session:
    """What a peer is on the bus, over any number of connections."""

    def __init__(self, *, spawn: Callable[[Awaitable[Any], Callable[[Any, BaseException | None], None]], None]) -> None:
        self.connected = False
        self.out: list[bytes] = []
        """Messages to be sent, oldest first."""
        self.on_output: Callable[[], None] = lambda: None
        """Called when ``out`` is no longer empty."""
        self.on_clash: Callable[[Owned, JetError], None] = lambda _owned, _error: None
        """Called when something could not be added again after a reconnect."""
        self.owned: dict[str, Owned] = {}
        self.fetches: dict[str, Fetching] = {}
        self.daemon: dict[str, Any] = {}
        """What the daemon says of itself, once it has."""
        self._requests: dict[int, Request] = {}
        self._count = 0
        self._fetch_count = 0
        self._spawn = spawn
        self._batch: list[bytes] | None = None

    @property
    def open_request_count(self) -> int:
        """How many requests wait for their response."""
        return len(self._requests)

    # -- sending

    def send(self, message: bytes) -> None:
        """Queue a message."""
        if self._batch is not None:
            self._batch.append(message)
            return
        out = self.out
        out.append(message)
        if len(out) == 1:
            self.on_output()

    def begin_batch(self) -> None:
        """Gather messages until ``end_batch``."""
        if self._batch is not None:
            raise RuntimeError("a batch is open already; batches do not nest")
        self._batch = []

    def end_batch(self) -> None:
        """Send what was gathered as one message."""
        batch, self._batch = self._batch or [], None
        if len(batch) == 1:
            self.send(batch[0])
        elif batch:
            self.send(b"[" + b",".join(batch) + b"]")

    def request(
        self,
        method: bytes,
        params: bytes,
        waiter: Waiter,
        *,
        read: Callable[[Any], Any] | None = None,
        deadline: float = float("inf"),
        path: str = "",
    ) -> int:
        """Send a request; the waiter gets the result, read, or the error."""
        self.check_connected()
        number = self._register(waiter, read, path, deadline)
        self.send(b'{"id":%d,"method":"%b","params":%b}' % (number, method, params))
        return number

    def _register(
        self, waiter: Waiter, read: Callable[[Any], Any] | None, path: str, deadline: float = float("inf")
    ) -> int:
        self._count += 1
        self._requests[self._count] = Request(waiter, read, deadline, path)
        return self._count

    def forget(self, number: int) -> None:
        """Nobody waits for that response any more."""
        self._requests.pop(number, None)

    def expire(self, now: float) -> None:
        """Give up requests that should have been answered long ago."""
        for number, request in list(self._requests.items()):
            if request.deadline <= now:
                del self._requests[number]
                if not request.waiter.done():
                    request.waiter.set_exception(TimedOut({"path": request.path}))

    def check_connected(self) -> None:
        if not self.connected:
            raise NotConnected(
                "there is no connection to the daemon at the moment; wait for it to return, or connect()"
            )

    # -- what this peer owns

    def change(self, state: OwnedState, value: Any) -> None:
        """Give a state a new value; while there is no connection it is kept and told with the next one."""
        state.value = value
        if self.connected and state.added:
            self.send(
                b'{"method":"change","params":{"path":' + state.path_json + b',"value":' + jsonrpc.encode(value) + b"}}"
            )

    def add(self, owned: Owned, waiter: Waiter) -> None:
        """Hang a state or method into the bus. From now on it comes back after a reconnect."""
        if owned.path in self.owned:
            raise Occupied(owned.path, f"this peer has added {owned.path} already")
        described = jsonrpc.encode(owned.describe())
        self.check_connected()
        self.owned[owned.path] = owned
        owned.added = True
        self.request(b"add", described, _Added(self, owned, waiter))

    def remove(self, owned: Owned, waiter: Waiter) -> None:
        """Take a state or method off the bus."""
        self.drop(owned)
        self.request(b"remove", b'{"path":' + owned.path_json + b"}", waiter)

    def drop(self, owned: Owned) -> None:
        """Own it no longer."""
        owned.added = False
        if self.owned.get(owned.path) is owned:
            del self.owned[owned.path]

    # -- fetches

    def next_fetch_id(self) -> str:
        """An id for a new fetch; peers that do the same get the same ids, which lets the daemon share its work."""
        self._fetch_count += 1
        return f"f{self._fetch_count}"

    def fetch(self, fetching: Fetching) -> None:
        """Start a fetch; from now on it comes back after a reconnect."""
        self.check_connected()
        self.fetches[fetching.id] = fetching
        self._send_fetch(fetching)

    def _send_fetch(self, fetching: Fetching) -> None:
        ours = self.daemon.get("name") == "jetbus"
        fetching.begin(daemon_is_ours=ours)
        params = jsonrpc.encode({"id": fetching.id, **fetching.params})
        self.request(b"fetch", params, _Fetched(self, fetching))
        # Daemons differ in when they tell what is there; the answer to a later request comes after all of it.
        self.request(b"info", b"{}", _Synced(fetching))

    def unfetch(self, fetching: Fetching) -> None:
        """End a fetch."""
        if self.fetches.pop(fetching.id, None) is None:
            return
        fetching.end()
        if self.connected:
            self.send(b'{"method":"unfetch","params":{"id":%b}}' % jsonrpc.encode(fetching.id))

    # -- connections come and go

    def on_connected(self) -> None:
        """A new connection is there and introduced: say everything again."""
        self.connected = True
        for owned in self.owned.values():
            if owned.added:
                self.add_again(owned)
        for fetching in list(self.fetches.values()):
            self._send_fetch(fetching)

    def add_again(self, owned: Owned) -> None:
        """Add something after a reconnect."""
        self.request(b"add", jsonrpc.encode(owned.describe()), _AddedAgain(self, owned))

    def on_lost(self) -> None:
        """The connection is gone: nobody will answer what was asked on it."""
        self.connected = False
        self.out.clear()
        requests, self._requests = self._requests, {}
        for request in requests.values():
            if not request.waiter.done():
                request.waiter.set_exception(
                    ConnectionLost("the connection broke before the answer came; the request may have been done or not")
                )

    def on_closed(self) -> None:
        """This peer is done for good."""
        self.on_lost()
        for fetching in list(self.fetches.values()):
            fetching.end()
        self.fetches.clear()

    # -- hearing

    def receive(self, messages: Iterable[bytes]) -> None:
        """Messages from the daemon, in the order they came."""
        fetches, requests = self.fetches, self._requests
        for text in messages:
            try:
                heard = _decode(text)
            except jsonrpc.UNREADABLE:
                self._receive_unusual(text)
                continue
            method = heard.method
            if method is None:
                request = requests.pop(heard.id, None)  # type: ignore[arg-type]
                if request is not None:
                    self._answer(request, heard)
            elif method in fetches and heard.params is not None:
                fetches[method].tell(heard.params)
            else:
                self._serve(method, jsonrpc.decode_envelope(text))

    @staticmethod
    def _answer(request: Request, heard: Heard) -> None:
        waiter = request.waiter
        if waiter.done():
            return
        if heard.error is not UNSET:
            waiter.set_exception(from_wire(heard.error))
        else:
            result = None if heard.result is UNSET else heard.result
            waiter.set_result(result if request.read is None else request.read(result))

    def _receive_unusual(self, text: bytes) -> None:
        """A batch, a routed request whose arguments look like nothing in particular, or nonsense."""
        try:
            if text.lstrip()[:1] == b"[":
                self.receive(jsonrpc.read_batch(text))
                return
            envelope = jsonrpc.diagnose(text)
            method = jsonrpc.read_method(envelope.method)
        except JetError as problem:
            log.warning("the daemon sent something that is no message: %s", problem)
            return
        self._serve(method, envelope)

    def _serve(self, method: str, envelope: jsonrpc.Envelope) -> None:
        """A request routed to this peer: by path, or by ``set``/``call`` as node-jet 3 does it."""
        owned, params = self.owned.get(method), envelope.params
        kind = "call" if isinstance(owned, OwnedMethod) else "set"
        request_id = bytes(envelope.id)
        try:
            if owned is None and method in ("set", "call"):
                fields = jsonrpc.read_fields(params)
                kind, owned = method, self.owned.get(jsonrpc.read_text(fields.get("path", Raw(b'""')), "path"))
                params = fields.get("args", Raw(b"{}")) if method == "call" else params
            if owned is None:
                log.debug("nothing is owned or fetched as %s", method)
                return
            answering = Answering(owned, request_id, self._send_if_connected, self.change)
            if kind == "call":
                answering.call(params, self._spawn)
            else:
                answering.set(_set_params(params), self._spawn)
        except JetError as problem:
            if request_id:
                self.send(jsonrpc.failure(request_id, jsonrpc.encode(problem.wire())))

    def _send_if_connected(self, message: bytes) -> None:
        if self.connected:
            self.send(message)


def _set_params(params: Raw) -> dict[str, Raw]:
    """The parameters of a routed set; a daemon of 2012 sends the value alone in an array."""
    if bytes(params)[:1] == b"[":
        members = jsonrpc.decode_members(params)
        return {"value": members[0]} if members else {}
    return jsonrpc.read_fields(params)


class _Reaction:
    """Waits for a response on the session's own behalf."""

    def done(self) -> bool:
        return False

    def set_result(self, result: Any, /) -> None:
        """Fine."""

    def set_exception(self, exception: BaseException, /) -> None:
        """Not fine, but nothing to do."""


class _Added(_Reaction):
    def __init__(self, session: Session, owned: Owned, waiter: Waiter) -> None:
        self._session, self._owned, self._waiter = session, owned, waiter

    def set_result(self, result: Any, /) -> None:
        if not self._waiter.done():
            self._waiter.set_result(result)

    def set_exception(self, exception: BaseException, /) -> None:
        self._session.drop(self._owned)
        if not self._waiter.done():
            self._waiter.set_exception(exception)


class _AddedAgain(_Reaction):
    def __init__(self, session: Session, owned: Owned) -> None:
        self._session, self._owned = session, owned

    def set_exception(self, exception: BaseException, /) -> None:
        if isinstance(exception, JetError) and not isinstance(exception, ConnectionLost):
            self._session.on_clash(self._owned, exception)


class _Fetched(_Reaction):
    def __init__(self, session: Session, fetching: Fetching) -> None:
        self._session, self._fetching = session, fetching

    def set_exception(self, exception: BaseException, /) -> None:
        if isinstance(exception, JetError) and not isinstance(exception, ConnectionLost):
            self._session.fetches.pop(self._fetching.id, None)
            self._fetching.end(exception)


class _Synced(_Reaction):
    def __init__(self, fetching: Fetching) -> None:
        self._fetching = fetching

    def set_result(self, _result: Any, /) -> None:
        self._fetching.told_everything()

    def set_exception(self, exception: BaseException, /) -> None:
        if not isinstance(exception, ConnectionLost):
            self._fetching.told_everything()
