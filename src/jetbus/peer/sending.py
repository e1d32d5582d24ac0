"""The sending half of a session, without I/O: payloads that wait to be written, batches, and requests with their time
limits and lengths. It knows no elements and no fetches; these are the other half, ``peer_session``.

Messages become payloads in the codec of the connection, at the moment they are sent.

**Batches.** Between ``begin_batch`` and ``end_batch`` messages stay at the end of ``out``, from ``_batch_start`` on,
where ``take_out`` leaves them. ``end_batch`` joins them to one message, or to several if the daemon does not accept one
as long as that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from jetbus.errors import ConnectionLost, JetError, MessageTooLong, NotConnected, TimedOut
from jetbus.json_types import Json
from jetbus.peer.codec import Codec, JsonCodec, OutgoingRequest, RefusingCodec
from jetbus.peer.lengths import Lengths, LongMessage, Suspicion
from jetbus.peer.requests import (
    FetchWaiter,
    OpenRequest,
    ReaddWaiter,
    SessionWaiter,
    SettleWaiter,
    Waiter,
    daemon_timed_out,
)

log = logging.getLogger("jetbus.peer")

ANSWER_S = 60.0
"""Time limit for answers of the daemon itself; a long list or a query of the past takes a while."""

BATCH_MAX = 1_000
"""Messages in one batch: daemons limit their number, jetbus by ``batch_max``, and more in one gain nothing."""
NO_REQUEST: OpenRequest = (SessionWaiter(), None, 0.0, 0.0, "")
"""Stands for the request of a response that is not awaited any more."""


def join_batch(messages: list[bytes]) -> bytes:
    """Join JSON messages to a batch; a single one stays as it is."""
    return messages[0] if len(messages) == 1 else b"[" + b",".join(messages) + b"]"


def _split_batch(messages: list[bytes], limit: float) -> list[bytes]:
    """Join messages to batches shorter than a limit, of ``BATCH_MAX`` messages; a single one may be longer."""
    parts: list[list[bytes]] = []
    size = 0
    for message in messages:
        if not parts or size + len(message) + 1 >= limit or len(parts[-1]) >= BATCH_MAX:
            parts.append([])
            size = 1
        parts[-1].append(message)
        size += len(message) + 1
    return [join_batch(part) for part in parts]


class SendingSession:
    """One end of the conversation with a daemon, as far as it sends."""

    def __init__(self) -> None:
        self.connected = False
        self.answer_s = ANSWER_S
        """Time limit for requests that the daemon answers itself."""
        self.codec: Codec = JsonCodec()
        self._encode = self.codec.encode_request
        self.out: list[bytes] = []
        """Payloads to be written, oldest first."""
        self.on_output: Callable[[], None] = lambda: None
        """Called when ``out`` is about to be no longer empty, or may be taken out again."""
        self._lengths = Lengths()
        self._long_bytes = self._lengths.unremarkable
        self._accepted_bytes = self._lengths.accepted
        self._requests: dict[int, OpenRequest] = {}
        self._abandoned: set[int] = set()
        """Unanswered requests that are no longer awaited, as long as that matters for ``lengths``."""
        self._count = 0
        self._now = 0.0
        self._batch_start = -1
        """Index in ``out`` of the first message of the open batch; below 0 if there is none."""
        self._refusal = ""
        """Why this session may not be used any more; empty if it may."""

    @property
    def open_request_count(self) -> int:
        """Number of requests that are awaited."""
        waiters = [waiter for waiter, *_ in list(self._requests.values())]
        return sum(not waiter.done() and not isinstance(waiter, SettleWaiter) for waiter in waiters)

    # -- payloads and batches

    def send(self, payload: bytes) -> None:
        """Queue a payload."""
        # Only the first payload is announced: the flush that follows takes all that are queued by then.
        if not self.out:
            self.on_output()
        self.out.append(payload)

    def take_out(self) -> list[bytes]:
        """Return the payloads to be written now; those of an open batch stay."""
        start = self._batch_start
        if start < 0:
            out, self.out = self.out, []
        else:
            out, self.out, self._batch_start = self.out[:start], self.out[start:], 0
        return out

    def _discard_out(self) -> None:
        """Discard messages that were meant for a connection that is gone."""
        self.out.clear()
        # An open batch stays open, but empty: its block goes on and will end it.
        self._batch_start = min(self._batch_start, 0)

    def begin_batch(self) -> None:
        """Hold back messages until ``end_batch``."""
        if self._batch_start >= 0:
            raise RuntimeError("a batch is open already; batches do not nest")
        self._batch_start = len(self.out)

    def end_batch(self) -> None:
        """Send delayed messages as one, or as few."""
        start, self._batch_start = self._batch_start, -1
        batch = self.out[start:]
        if batch:
            self.out[start:] = self._join(batch)
            self.on_output()

    def _join(self, batch: list[bytes]) -> list[bytes]:
        """Join messages to one, or to several if the daemon does not accept so long or so many."""
        if not self.codec.has_batches:
            return batch
        lengths = self._lengths
        if len(batch) <= BATCH_MAX:
            whole = join_batch(batch)
            if len(whole) <= lengths.unremarkable:
                return [whole]
        parts = _split_batch(batch, min(lengths.batch, lengths.refused))
        # A batch is one message for the daemon's limit of length, so its length is noted like that of a request.
        longest = max(map(len, parts))
        if longest > lengths.unremarkable:
            # Numbered as the request before its own first one: then any response to it proves its arrival.
            first = next((number for number in map(self.codec.request_number, batch) if number is not None), None)
            self._note(LongMessage(longest, self._count if first is None else first - 1, False, None))
        return parts

    # -- messages

    def request(
        self,
        method: str,
        params: Any,
        waiter: Waiter,
        read: Callable[[Any], Any] | None = None,
        within_s: float | None = None,
        path: str = "",
    ) -> None:
        """Send a request; the waiter gets the result, read by ``read``, or the error.

        Without ``within_s`` the daemon itself answers, not an owner. A caller that cancels its waiter waits no more.
        """
        if not self.connected:
            self.check_connected()
        # The same as ``_encode_request`` and ``send``, without the cost of two calls.
        number, encode = self._count + 1, self._encode
        payload = encode(OutgoingRequest(number, method, params))
        if len(payload) > self._long_bytes:
            self._note_request(len(payload), number, path or getattr(waiter, "path", ""))
        # Only now: a value that cannot be encoded has raised above, and leaves neither a number nor a waiter behind.
        self._count = number
        self._requests[number] = (waiter, read, self._now, self.answer_s if within_s is None else within_s, path)
        if payload:
            # Empty for a binary peer's unfetch that has to wait for the number of its fetch.
            out = self.out
            if not out:
                self.on_output()
            out.append(payload)

    def _encode_request(
        self,
        method: str,
        params: Any,
        waiter: Waiter,
        read: Callable[[Any], Any] | None,
        within_s: float,
        path: str,
    ) -> bytes:
        """Encode a request and register its waiter."""
        number, encode = self._count + 1, self._encode
        payload = encode(OutgoingRequest(number, method, params))
        if len(payload) > self._long_bytes:
            self._note_request(len(payload), number, path or getattr(waiter, "path", ""))
        self._count = number
        self._requests[number] = (waiter, read, self._now, within_s, path)
        return payload

    def introduce(self, method: str, params: Any, waiter: Waiter) -> None:
        """Send a request on a connection on which the daemon does not know this peer yet."""
        # Without a time limit, because there is one for the whole introduction.
        self.send(self._encode_request(method, params, waiter, None, float("inf"), ""))

    def notify(self, method: str, params: Any) -> None:
        """Send a request and ignore its response."""
        payload = self.codec.encode_notification(method, params)
        if payload:
            self.send(payload)

    def send_unanswered(self, method: str, params: Any, path: str) -> None:
        """Send a set or call without an id: its owner carries it out, and does not report the outcome."""
        self.check_connected()
        payload = self.codec.encode_notification(method, params)
        if len(payload) > self._long_bytes:
            if len(payload) >= self._lengths.refused:
                raise MessageTooLong(path, len(payload), self._lengths.stated)
            self._note(LongMessage(len(payload), self._count, False, None))
        self.send(payload)

    def send_result(self, request_id: bytes, result: Json) -> None:
        """Answer a routed request, unless the connection that it came on is gone."""
        if self.connected:
            self.send(self.codec.encode_result(request_id, result))

    def send_error(self, request_id: bytes, error: JetError) -> None:
        """Answer a routed request with an error."""
        if self.connected:
            self.send(self.codec.encode_error(request_id, error.wire()))

    def check_connected(self) -> None:
        """Raise ``NotConnected`` unless there is a connection."""
        self.check_usable()
        if not self.connected:
            raise NotConnected(
                "there is no connection to the daemon at the moment; wait until it is back, or call connect()"
            )

    def check_usable(self) -> None:
        """Raise ``RuntimeError`` if the session may not be used in this process."""
        if self._refusal:
            raise RuntimeError(self._refusal)

    @property
    def is_abandoned(self) -> bool:
        """True if the session may not be used in this process."""
        return bool(self._refusal)

    def abandon(self, refusal: str) -> None:
        """Send nothing more, and refuse everything with this text: the connection belongs to another process."""
        self.connected, self._refusal = False, refusal
        # Even a change, which otherwise waits for the next connection, is encoded first.
        self.codec = RefusingCodec(refusal)
        self._encode = self.codec.encode_request

    # -- ends of requests

    def expire(self, now: float) -> None:
        """End the requests past their deadline, and forget those that are no longer awaited."""
        self._now = now
        # A copy, since requests that end are removed, and their waiters may send others.
        for number, (waiter, _, sent, within_s, path) in list(self._requests.items()):
            if waiter.done():
                # The caller has cancelled it, and the response is not needed.
                self._abandon(number)
            elif sent + within_s <= now:
                self._abandon(number)
                waiter.set_exception(TimedOut({"path": path}) if path else daemon_timed_out(self.answer_s))

    def _get_length_errors(self, suspicion: Suspicion) -> dict[int, MessageTooLong]:
        """Return the error of the request that was too long, by its number.

        There is none for messages that the next connection sends again, unless that has been tried already.
        """
        message, is_confirmed = suspicion
        subject = "" if message.state is None else f" for {message.state.path}"
        log.info("the connection ended right after a message of %d bytes%s", message.size, subject)
        waiter, _, _, _, path = self._requests.get(message.number, NO_REQUEST)
        if not message.is_request or (isinstance(waiter, ReaddWaiter | FetchWaiter) and not is_confirmed):
            return {}
        return {message.number: MessageTooLong(path or getattr(waiter, "path", ""), message.size)}

    def _disconnect(self, errors: dict[int, MessageTooLong]) -> None:
        """End every request, with its own error or with that of a lost connection."""
        self.connected = False
        self._discard_out()
        requests, self._requests = self._requests, {}
        self._abandoned.clear()
        for number, (waiter, *_) in requests.items():
            if not waiter.done():
                # Never sent again on the next connection: a set or call may have been done, and twice may do harm.
                waiter.set_exception(
                    errors.get(number)
                    or ConnectionLost(
                        "the connection broke before the response came; the request may have been done or not"
                    )
                )

    # -- lengths of messages; the idea is explained in ``lengths``

    def _note_request(self, size: int, number: int, path: str) -> None:
        """Note a long request before it is sent, or refuse to send it."""
        if size >= self._lengths.refused:
            raise MessageTooLong(path, size, self._lengths.stated)
        self._note(LongMessage(size, number, True, None))

    def _note(self, message: LongMessage) -> None:
        self._lengths.note(message, self._unanswered(), self._count)
        self._copy_lengths()

    def _copy_lengths(self) -> None:
        """Copy the members that every message is compared with into attributes of our own: one lookup less."""
        self._long_bytes, self._accepted_bytes = self._lengths.unremarkable, self._lengths.accepted

    def forget_lengths(self) -> None:
        """Forget which lengths the daemon accepts: it may be another daemon, or have another limit."""
        self._lengths = Lengths()
        self._copy_lengths()

    def _unanswered(self) -> set[int]:
        return self._abandoned.union(self._requests)

    def _abandon(self, number: int) -> None:
        self._requests.pop(number, None)
        if self._lengths.has_unproven:
            self._abandoned.add(number)
            self._lengths.forget_arrived(self._unanswered(), self._count)
        if not self._lengths.has_unproven:
            self._abandoned.clear()
