"""One end of a conversation with a daemon, without I/O: messages in, messages out, and who waits for which.

The session knows what this peer owns and fetches, so that it can say everything again on a new connection. The faces
(``aio``, ``blocking``) give it messages and a place to put its own; they own sockets, time and threads.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw, Struct

from jetbus.errors import (
    ConnectionLost,
    JetError,
    MessageTooLong,
    NotConnected,
    NotMethod,
    Occupied,
    TimedOut,
    from_wire,
)
from jetbus.peer.asking import DONE, SET_DONE, read_set_result
from jetbus.peer.daemons import words_of
from jetbus.peer.elements import Answering, Owned, OwnedMethod, OwnedState, Spawn
from jetbus.peer.fetching import Event, Fetching
from jetbus.peer.lengths import Accusation, Lengths, Noted
from jetbus.peer.values import (
    JSON_TYPES,
    decode_entries,
    encode_plain,
    encode_value,
    may_tell_blobs,
    plain,
    read_value,
)
from jetbus.peer.waiting import Added, AddedAgain, Fetched, Reaction, Request, Settled, Synced, Waiter
from jetbus.wire import jsonrpc

log = logging.getLogger("jetbus.peer")

ROUTED_S = 5.0
"""How long daemons wait for an owner unless told otherwise."""
GRACE_S = 2.0
"""How much longer than the daemon a peer waits."""
ADDS_MAX = 3
"""Tries to add something again: with its value, with an older one, and with none."""
ANSWER_S = 60.0
"""How long the daemon itself may take to answer; a long list or a look into the past takes a while."""


def silent(within_s: float) -> TimedOut:
    """The daemon has not answered something that it answers itself."""
    return TimedOut(
        None,
        f"the daemon has not answered for {within_s:g} s; it may hang or be stopped: look after it, or connect anew",
    )


class Heard(Struct, gc=False):
    """What a daemon says: a response, a notification or a routed request, read in one pass."""

    id: int | str | None = None
    result: Any = None
    error: Any = None
    method: str | None = None
    params: Event | list[Any] | None = None


_decode = msgspec.json.Decoder(Heard).decode


def _decode_one(text: bytes) -> list[Heard]:
    return [_decode(text)]


_decode_all = msgspec.json.Decoder(list[Heard]).decode


class Asked(Struct, gc=False):
    """A request, as it is said."""

    id: int
    method: str
    params: Any


_IN_BATCHES = b'{"method":"config","params":{"batches":true}}'
_NOBODY: Request = (Reaction(), None, 0.0, 0.0, "")
"""Who waits for a response that nobody waits for any more."""


def _decoded(decode: Callable[[bytes], list[Heard]], text: bytes) -> list[Heard] | None:
    """What was said; None if it is not of the usual form."""
    try:
        return decode(text)
    except jsonrpc.UNREADABLE:
        return None


class _Texts:
    """The texts of messages that were read together; a batch is taken apart only if one of them is asked for."""

    __slots__ = ("_blobs", "_count", "_members", "_whole")

    def __init__(self, whole: bytes, count: int, members: list[bytes] | None = None) -> None:
        self._whole = whole
        self._count = count
        self._members = members
        self._blobs: bool | None = None

    def __getitem__(self, number: int) -> bytes:
        if self._members is None:
            self._members = jsonrpc.read_batch(self._whole)
        return self._members[number]

    def blobs(self) -> bool:
        """Whether a value in any of them may stand for bytes."""
        if self._blobs is None:
            self._blobs = may_tell_blobs(self._whole, self._count)
        return self._blobs


def as_one(messages: list[bytes]) -> bytes:
    """Messages as one: a batch, unless it is one already."""
    return messages[0] if len(messages) == 1 else b"[" + b",".join(messages) + b"]"


def _in_parts(messages: list[bytes], limit: float) -> list[bytes]:
    """Messages as batches shorter than a limit; a single one may be longer."""
    parts: list[list[bytes]] = []
    size = 0
    for message in messages:
        if not parts or size + len(message) + 1 >= limit:
            parts.append([])
            size = 1
        parts[-1].append(message)
        size += len(message) + 1
    return [as_one(part) for part in parts]


def _first_number(messages: list[bytes]) -> int | None:
    """The number of the first request among messages."""
    for message in messages:
        number = message[6 : message.find(b",")]
        if message.startswith(b'{"id":') and number.isdigit():
            return int(number)
    return None


class Session:
    """What a peer is on the bus, over any number of connections."""

    def __init__(self, spawn: Spawn) -> None:
        self.connected = False
        self.answer_s = ANSWER_S
        """How long the daemon may take for what it answers itself."""
        self.out: list[bytes] = []
        """Messages to be sent, oldest first."""
        self.on_output: Callable[[], None] = lambda: None
        """Called when ``out`` is about to be no longer empty, or may be taken out again."""
        self.on_clash: Callable[[Owned, JetError], None] = lambda _owned, _error: None
        """Called when something could not be added again after a reconnect."""
        self.on_settled: Callable[[], None] = lambda: None
        """Called when the daemon has answered all that was said again on a new connection."""
        self._lengths = Lengths()
        self._long_bytes = self._lengths.unremarkable
        self._passed_bytes = self._lengths.passed
        self._watches_requests = True
        """Whether the length of every request is looked at. Our daemon takes far longer ones than anybody sends; there
        it is only done for what is said again on every connection."""
        self.owned: dict[str, Owned] = {}
        self.fetches: dict[str, Fetching] = {}
        self.daemon: dict[str, Any] = {}
        """What the daemon says of itself, once it has."""
        self._requests: dict[int, Request] = {}
        self._given_up: set[int] = set()
        """Requests that nobody waits for any more and that were not answered, while that matters for ``lengths``."""
        self._count = 0
        self._fetch_count = 0
        self._now = 0.0
        self.routed_s = ROUTED_S + GRACE_S
        self._spawn = spawn
        self._batch_from = -1
        """Where the messages begin in ``out`` that a batch gathers; below 0 if none does."""

    @property
    def open_request_count(self) -> int:
        """How many requests wait for their response; those that were cancelled wait no more."""
        return sum(not waiter.done() for waiter, *_ in list(self._requests.values()))

    # -- sending

    def send(self, message: bytes) -> None:
        """Queue a message."""
        if not self.out:
            self.on_output()
        self.out.append(message)

    def take_out(self) -> list[bytes]:
        """What is to be sent now; what a batch gathers waits for its end."""
        first = self._batch_from
        if first < 0:
            out, self.out = self.out, []
        else:
            out, self.out, self._batch_from = self.out[:first], self.out[first:], 0
        return out

    def forget_out(self) -> None:
        """What was to be sent is not: the connection that it was meant for is gone."""
        self.out.clear()
        self._batch_from = min(self._batch_from, 0)

    def begin_batch(self) -> None:
        """Gather messages until ``end_batch``."""
        if self._batch_from >= 0:
            raise RuntimeError("a batch is open already; batches do not nest")
        self._batch_from = len(self.out)

    def end_batch(self) -> None:
        """Send what was gathered as one message."""
        first, self._batch_from = self._batch_from, -1
        batch = self.out[first:]
        if batch:
            self.out[first:] = self._gathered(batch)
            self.on_output()

    def _gathered(self, batch: list[bytes]) -> list[bytes]:
        """Messages as one, or as several where the daemon does not take so much at a time."""
        whole, lengths = as_one(batch), self._lengths
        if len(whole) <= lengths.unremarkable:
            return [whole]
        limit = min(lengths.batch, lengths.refused)
        parts = [whole] if len(whole) < limit else _in_parts(batch, limit)
        first, longest = _first_number(batch), max(map(len, parts))
        if longest > lengths.unremarkable:
            number = self._count if first is None else first - 1
            self._remember(Noted(longest, number, False, None))
        return parts

    def request(
        self,
        method: str,
        params: Any,
        waiter: Waiter,
        read: Callable[[Any], Any] | None = None,
        within_s: float | None = None,
        path: str = "",
    ) -> None:
        """Send a request; the waiter gets the result, read, or the error. Who cancels its waiter waits no more.

        Parameters that are JSON already are ``Raw``. Without ``within_s`` it is the daemon that is given time, not an
        owner.
        """
        if not self.connected:
            self.check_connected()
        number = self._count + 1
        message = encode_plain(Asked(number, method, params))
        if self._watches_requests and len(message) > self._long_bytes:
            self._note(len(message), number, path or getattr(waiter, "path", ""))
        self._count = number
        self._requests[number] = (waiter, read, self._now, self.answer_s if within_s is None else within_s, path)
        out = self.out  # as send does it, without the cost of a call
        if not out:
            self.on_output()
        out.append(message)

    def _say(self, method: str, params: Any, waiter: Waiter) -> None:
        """Send a request that is said again on every connection: its length is looked at on every daemon."""
        watches, self._watches_requests = self._watches_requests, True
        try:
            self.request(method, params, waiter)
        finally:
            self._watches_requests = watches

    def introduce(self, method: str, params: Any, waiter: Waiter) -> None:
        """Send a request on a connection on which this peer is not yet known, thus not yet connected."""
        self.send(self._ask(method, params, waiter, None, float("inf"), ""))

    def _ask(
        self,
        method: str,
        params: Any,
        waiter: Waiter,
        read: Callable[[Any], Any] | None,
        within_s: float,
        path: str,
    ) -> bytes:
        """The message of a request that is now waited for."""
        number = self._count + 1
        message = encode_plain(Asked(number, method, params))
        if self._watches_requests and len(message) > self._long_bytes:
            self._note(len(message), number, path or getattr(waiter, "path", ""))
        self._count = number
        self._requests[number] = (waiter, read, self._now, within_s, path)
        return message

    def _note(self, size: int, number: int, path: str) -> None:
        """Note a long request before it is sent, or refuse to send it."""
        if size >= self._lengths.refused:
            raise MessageTooLong(path, size)
        self._remember(Noted(size, number, True, None))

    def _remember(self, noted: Noted) -> None:
        self._lengths.note(noted, self._unanswered(), self._count)
        self._look_up_lengths()

    def _look_up_lengths(self) -> None:
        """Copy what every message is compared with to where that costs least."""
        self._long_bytes, self._passed_bytes = self._lengths.unremarkable, self._lengths.passed

    def forget_lengths(self) -> None:
        """Forget which lengths the daemon takes: it may be another one, or have another limit."""
        self._lengths = Lengths()
        self._look_up_lengths()

    def _unanswered(self) -> set[int]:
        return self._given_up.union(self._requests)

    def expire(self, now: float) -> None:
        """Give up requests that should have been answered long ago, forget those that nobody waits for."""
        self._now = now
        for number, (waiter, _, asked, within_s, path) in list(self._requests.items()):
            if waiter.done():
                self._give_up(number)
            elif asked + within_s <= now:
                self._give_up(number)
                waiter.set_exception(TimedOut({"path": path}) if path else silent(self.answer_s))

    def _give_up(self, number: int) -> None:
        self._requests.pop(number, None)
        if self._lengths.are_noted:
            self._given_up.add(number)
            self._lengths.forget_arrived(self._unanswered(), self._count)
        if not self._lengths.are_noted:
            self._given_up.clear()

    def patience_s(self, timeout_s: float | None) -> float:
        """How long to wait for an owner. Our daemon watches the time itself, others may know no timeouts."""
        return self.routed_s if timeout_s is None else timeout_s + GRACE_S

    def check_connected(self) -> None:
        if not self.connected:
            raise NotConnected(
                "there is no connection to the daemon at the moment; wait for it to return, or connect()"
            )

    # -- what this peer owns

    def change(self, state: OwnedState, value: Any) -> None:
        """Give a state a new value; while there is no connection it is kept and told with the next one."""
        told = encode_plain(value if type(value) in JSON_TYPES else plain(value))
        message = state.change_head + told + b"}}"
        if len(message) > self._passed_bytes:
            self._lengthen(state, len(message))
        state.value = value
        if self.connected and state.added:
            self.send(message)

    def _lengthen(self, state: OwnedState, size: int) -> None:
        """A state is about to get a value longer than the daemon is known to take."""
        refused = self._lengths.refused
        if size >= refused or (refused < float("inf") and self._as_add(state, size) >= refused):
            raise MessageTooLong(state.path, size)
        is_longest = size > self._lengths.unremarkable
        if not state.is_long or (is_longest and self._is_short(state)):
            state.fallback, state.is_long = state.value, True
        if is_longest and self.connected and state.added:
            self._remember(Noted(size, self._count, False, state))

    def _is_short(self, state: OwnedState) -> bool:
        """Whether the value that a state has now is one that the daemon is known to take."""
        return len(state.change_head) + len(encode_value(state.value)) < self._passed_bytes

    def _as_add(self, state: OwnedState, size: int) -> int:
        """How long an add would be with the value of a change; after a reconnect that must be taken, too."""
        valueless = jsonrpc.encode(state.describe() | {"value": 0})
        value_bytes = size - len(state.change_head) - len(b"}}")
        return len(b'{"id":%d,"method":"add","params":}' % self._count) + len(valueless) - 1 + value_bytes

    def hold_back(self, state: OwnedState, problem: MessageTooLong) -> None:
        """Leave out a value that the daemon does not take, so that all else can be added again."""
        state.value, state.fallback, state.is_long = state.fallback, None, False
        log.error("%s; it is added again with an older value: %s", problem, encode_value(state.value).decode())

    def add(self, owned: Owned, waiter: Waiter) -> None:
        """Hang a state or method into the bus. From now on it comes back after a reconnect."""
        if owned.path in self.owned:
            raise Occupied(owned.path, f"this peer has added {owned.path} already")
        described = encode_value(owned.describe())
        self.check_connected()
        self._say("add", Raw(described), Added(self, owned, waiter))
        self.owned[owned.path] = owned
        owned.added = True

    def remove(self, owned: Owned, waiter: Waiter) -> None:
        """Take a state or method off the bus."""
        self.drop(owned)
        self.request("remove", {"path": owned.path}, waiter)

    def drop(self, owned: Owned) -> None:
        """Own it no longer."""
        owned.added = False
        if self.owned.get(owned.path) is owned:
            del self.owned[owned.path]

    # -- fetches

    def next_fetch_id(self) -> str:
        """An id for a new fetch; peers that do the same get the same ids, which lets the daemon share its work."""
        self._fetch_count += 1
        own = f"-{uuid.uuid4().hex}" if words_of(self.daemon).shared_ids else ""
        return f"f{self._fetch_count}{own}"

    def fetch(self, fetching: Fetching) -> None:
        """Start a fetch; from now on it comes back after a reconnect."""
        self.check_connected()
        self.fetches[fetching.id] = fetching
        self._send_fetch(fetching)

    def _send_fetch(self, fetching: Fetching) -> None:
        fetching.begin(words_of(self.daemon))
        fetched = Fetched(self, fetching)
        try:
            self._say("fetch", {"id": fetching.id, **fetching.params}, fetched)
        except MessageTooLong as problem:
            fetched.set_exception(problem)
            return
        # Daemons differ in when they tell what is there; the answer to a later request comes after all of it.
        self.request("info", {}, Synced(fetching))

    def unfetch(self, fetching: Fetching, waiter: Waiter | None = None) -> None:
        """End a fetch; the waiter gets the daemon's answer, or true if the fetch had ended before."""
        if self.fetches.pop(fetching.id, None) is None:
            if waiter is not None:
                waiter.set_result(True)
            return
        fetching.end()
        if waiter is not None:
            self.request("unfetch", {"id": fetching.id}, waiter)
        elif self.connected:
            self.send(b'{"method":"unfetch","params":{"id":%b}}' % jsonrpc.encode(fetching.id))

    # -- connections come and go

    def on_connected(self) -> None:
        """A new connection is there and introduced: say everything again."""
        self.connected = True
        self.routed_s = ROUTED_S + GRACE_S
        self._watches_requests = not words_of(self.daemon).ours
        if words_of(self.daemon).ours:
            self.routed_s = float("inf")
            self.send(_IN_BATCHES)
        for owned in self.owned.values():
            if owned.added:
                self.add_again(owned)
        for fetching in list(self.fetches.values()):
            self._send_fetch(fetching)
        if self._requests:
            self.request("info", {}, Settled(self))
        else:
            self.settle()

    def settle(self) -> None:
        """The daemon has answered all that was said again on this connection."""
        self._lengths.on_settled()
        self.on_settled()

    def add_again(self, owned: Owned) -> None:
        """Add something after a reconnect."""
        again = AddedAgain(self, owned)
        for _ in range(ADDS_MAX):
            try:
                self._say("add", owned.describe(), again)
            except MessageTooLong as problem:  # it is as long as another one that the daemon has not taken
                again.set_exception(problem)
            else:
                return
        log.error("%s is too long for the daemon even without its value; it is not added again", owned.path)

    def on_lost(self) -> None:
        """The connection is gone: nobody will answer what was asked on it."""
        accusation = self._lengths.on_lost(self._unanswered(), self._count)
        self._look_up_lengths()
        self._disconnect(self._errors_of(accusation) if accusation is not None else {})

    def _errors_of(self, accusation: Accusation) -> dict[int, MessageTooLong]:
        """The error of the request that was too long, by its number.

        There is none for what is said again on the next connection, unless that has been tried already.
        """
        noted, confirmed = accusation
        about = "" if noted.subject is None else f" for {noted.subject.path}"
        log.info("the connection ended right after a message of %d bytes%s", noted.size, about)
        waiter, _, _, _, path = self._requests.get(noted.number, _NOBODY)
        if not noted.is_request or (isinstance(waiter, AddedAgain | Fetched) and not confirmed):
            return {}
        return {noted.number: MessageTooLong(path or getattr(waiter, "path", ""), noted.size)}

    def _disconnect(self, errors: dict[int, MessageTooLong]) -> None:
        """End every request, with its own error or with that of a lost connection."""
        self.connected = False
        self.forget_out()
        requests, self._requests = self._requests, {}
        self._given_up.clear()
        for number, (waiter, *_) in requests.items():
            if not waiter.done():
                waiter.set_exception(
                    errors.get(number)
                    or ConnectionLost(
                        "the connection broke before the answer came; the request may have been done or not"
                    )
                )

    def on_closed(self) -> None:
        """This peer is done for good."""
        self._disconnect({})
        for fetching in list(self.fetches.values()):
            fetching.end()
        self.fetches.clear()

    # -- hearing

    def receive(self, messages: list[bytes]) -> None:
        """Messages from the daemon, in the order they came.

        Events of one fetch often come in long runs. They are gathered and told together, before anything else is.
        """
        if len(messages) > 1 and messages[0][:1] != b"[":
            whole = b"[%b]" % b",".join(messages)
            all_heard = _decoded(_decode_all, whole)
            if all_heard is not None and len(all_heard) == len(messages):
                self._take_in(all_heard, _Texts(whole, len(messages), messages))
                return
        for text in messages:
            self._receive_one(text)

    def _receive_one(self, text: bytes) -> None:
        """A message, or a batch of them."""
        batch = text[:1] == b"["
        all_heard = _decoded(_decode_all if batch else _decode_one, text)
        if all_heard is None:
            self._receive_unusual(text)
        else:
            self._take_in(all_heard, _Texts(text, len(all_heard), None if batch else [text]))

    def _take_in(self, all_heard: list[Heard], texts: _Texts) -> None:
        run: list[Event] = []
        running = ""
        for number, heard in enumerate(all_heard):
            method = heard.method
            if method is None:
                if run:
                    self._tell(running, run)
                    run = []
                waiter, read, _, _, path = self._requests.pop(heard.id, _NOBODY)  # type: ignore[arg-type]
                if waiter.done():
                    continue
                if heard.error is not None:
                    waiter.set_exception(from_wire(heard.error, of_call=bool(path) and read is None))
                    continue
                result = heard.result
                if read is not None:
                    result = SET_DONE if read is read_set_result and result == DONE else read(result)
                elif type(result) is dict:
                    result = read_value(result)
                waiter.set_result(result)
                continue
            if method == running:
                event = heard.params
                if type(event) is Event and event.value is not None and heard.id is None:
                    run.append(event)
                    continue
            if run:
                self._tell(running, run)
                run = []
            running = self._hear(method, heard, texts, number)
        if run:
            self._tell(running, run)

    def _hear(self, method: str, heard: Heard, texts: _Texts, number: int) -> str:
        """No response. Gives the id of the fetch whose events can be gathered after it, if there is one."""
        fetching = self.fetches.get(method)
        told = heard.params
        if fetching is None or told is None or heard.id is not None:
            self._serve(method, jsonrpc.decode_envelope(texts[number]))
            return ""
        if isinstance(told, Event):
            fetching.tell(told, texts[number])
        else:
            try:
                fetching.tell_together(told, texts.blobs())
            except (TypeError, ValueError):
                log.warning("the daemon sent changes of %s that are no path, value and fetchOnly each", method)
        if fetching.ended:
            self.unfetch(fetching)
        return method

    def _tell(self, fetch_id: str, run: list[Event]) -> None:
        fetching = self.fetches.get(fetch_id)
        if fetching is not None:
            fetching.tell_all(run)
            if fetching.ended:
                self.unfetch(fetching)

    def _receive_unusual(self, text: bytes) -> None:
        """A batch, a routed request whose arguments look like nothing in particular, or nonsense."""
        try:
            if text.lstrip()[:1] == b"[":
                self.receive(jsonrpc.read_batch(text))
                return
            envelope = jsonrpc.diagnose(text)
            if envelope.id and not envelope.method:
                self._hear_response(envelope)
                return
            method = jsonrpc.read_method(envelope.method)
        except JetError as problem:
            log.warning("the daemon sent something that is no message: %s", problem)
            return
        fetching = self.fetches.get(method)
        if fetching is None or not envelope.params or envelope.id:
            self._serve(method, envelope)
            return
        fetching.tell_one_by_one(envelope.params)
        if fetching.ended:
            self.unfetch(fetching)

    def _hear_response(self, envelope: jsonrpc.Envelope) -> None:
        """A response with something in it that cannot be read: whoever waits for it is told, or gets the rest."""
        number = jsonrpc.loads(envelope.id)
        waiter, read, _, _, path = self._requests.pop(number, _NOBODY)
        if waiter.done():
            return
        try:
            if envelope.error:
                raise from_wire(jsonrpc.loads(envelope.error), of_call=bool(path) and read is None)
            result = decode_entries(envelope.result or b"null", path or "the answer")
            waiter.set_result(read(result) if read is not None else read_value(result))
        except JetError as error:
            waiter.set_exception(error)

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
            if kind == "set" and bytes(params)[:1] == b"[":
                raise NotMethod(owned.path)  # lua-jet and node-jet 1 route the call of a state as they do a set
            answering = Answering(owned, request_id, self._send_if_connected, self.change)
            if kind == "call":
                answering.call(params, self._spawn)
            else:
                answering.set(jsonrpc.read_fields(params), self._spawn)
        except JetError as problem:
            if request_id:
                self.send(jsonrpc.failure(request_id, jsonrpc.encode(problem.wire())))

    def _send_if_connected(self, message: bytes) -> None:
        if self.connected:
            self.send(message)
