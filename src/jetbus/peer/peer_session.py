"""The session of a peer, without I/O: its elements and fetches, and the requests that wait for a response.

A session outlives its connections. It knows everything that this peer has added and fetched, so that it can send all of
it again on the next one. It does not know sockets, time or threads; the modules that do (``connection``,
``threads``, ``simple``) call it::

    begin_connection(codec)     a connection is being made; only ``introduce`` may send
    on_connected()              the daemon knows the peer: add and fetch everything again
    receive(payloads)           handle the received payloads, in order
    take_out()                  take the payloads to write; ``on_output`` announces them
    expire(now)                 end requests past their deadline
    on_lost() / on_closed()     the connection is gone, for now or for good

Here are elements, fetches, connections and all that is received. ``sending`` is the other half: payloads that wait to
be written, batches, and requests with their time limits and lengths.

**Order.** Responses, events and requests are handled in the order in which they came: an owner's change arrives before
the response to the set that caused it. Consecutive events of one fetch are handed over together, since events come in
long runs and most of the cost is in the handing over.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from math import isfinite
from typing import TYPE_CHECKING, Any

import msgspec

from jetbus.errors import (
    Invalid,
    JetError,
    MessageTooLong,
    NotMethod,
    Occupied,
    from_wire,
)
from jetbus.json_types import DaemonInfo, Json, JsonObject
from jetbus.paths import DAEMON_NODE, is_daemons
from jetbus.peer.arguments import refuse_pickling
from jetbus.peer.codec import (
    Codec,
    Details,
    Incoming,
    RoutedRequest,
    read_routed_request,
)
from jetbus.peer.compat import features_of
from jetbus.peer.elements import Owned, OwnedMethod, OwnedState, Responder, Spawn
from jetbus.peer.events import Event, note_receipt
from jetbus.peer.lengths import LongMessage
from jetbus.peer.requests import (
    DONE,
    AdaptedWaiter,
    AddWaiter,
    FetchWaiter,
    ReaddWaiter,
    SetReader,
    SetResult,
    SettleWaiter,
    SyncWaiter,
    Waiter,
)
from jetbus.peer.sending import NO_REQUEST, SendingSession
from jetbus.peer.subscription import Subscription
from jetbus.peer.values import (
    FINITE_TYPES,
    INFINITY_START,
    JSON_TYPES,
    NAN_START,
    NULL_START,
    check_finite,
    decode_entries,
    encode_value,
    may_be_non_finite,
    read_value,
)
from jetbus.wire import jsonrpc
from jetbus.wire.jsonrpc import Envelope

if TYPE_CHECKING:
    from jetbus.peer.buffer import BufferedValue
    from jetbus.peer.buffering import Buffering

log = logging.getLogger("jetbus.peer")

ROUTED_S = 5.0
"""Default time that daemons wait for an owner."""
GRACE_S = 2.0
"""Time that a peer waits longer than the daemon."""
ADDS_MAX = 3
"""Attempts to add a state again: with its value, with an older one, and with none."""


def _log_unreadable(reason: JetError) -> None:
    log.warning("ignored what the daemon sent, it is not a Jet message: %s", reason)


class PeerSession(SendingSession):
    """One end of the conversation with a daemon, over any number of connections."""

    def __init__(self, spawn: Spawn) -> None:
        super().__init__()
        self.lock: AbstractContextManager[Any] = nullcontext()
        """Held while several steps must happen as one; a session of one thread needs none."""
        self.buffering: Buffering | None = None
        """The buffer of this peer's values, None if it has none."""
        self.owned: dict[str, Owned] = {}
        self._use_codec(self.codec)
        self.on_unreadable: Callable[[JetError], None] = _log_unreadable
        """Called with the reason for which a message of the daemon cannot be read."""
        self.on_clash: Callable[[Owned, JetError], None] = lambda _owned, _error: None
        """Called when something could not be added again after a reconnect."""
        self.on_settled: Callable[[], None] = lambda: None
        """Called when the daemon has answered everything that was sent again on a new connection."""
        self.fetches: dict[str, Subscription] = {}
        self.daemon: DaemonInfo = {}
        """The daemon's answer to ``info``."""
        self._fetch_count = 0
        self.routed_s = ROUTED_S + GRACE_S
        """Default time limit for an owner."""
        self._spawn = spawn

    def __reduce__(self) -> tuple[Any, ...]:
        return refuse_pickling()

    # -- time limits, and codecs

    def abandon(self, refusal: str) -> None:
        super().abandon(refusal)
        self._encode_value = self.codec.encode_value

    def expire(self, now: float) -> None:
        super().expire(now)
        if self.buffering is not None and self.connected:
            self.buffering.sweep()

    def get_timeout_s(self, timeout_s: float | None) -> float:
        """Return how long to wait for an owner; longer than the daemon does, if that ends such requests itself."""
        if timeout_s is None:
            return self.routed_s
        return timeout_s + GRACE_S if features_of(self.daemon).has_timeouts else timeout_s

    # -- lengths of changes; the idea is explained in ``lengths``

    def check_length(self, state: OwnedState, payload: bytes) -> None:
        """Refuse a change that the daemon does not accept because of its length."""
        if len(payload) > self._accepted_bytes:
            self._check_change(state, len(payload))

    def _check_change(self, state: OwnedState, size: int) -> None:
        """Check a change that is longer than any that the daemon is known to accept."""
        refused = self._lengths.refused
        # The value must also fit into an add: after a reconnect it is added with the value that it has then.
        if size >= refused or (refused < float("inf") and self._get_add_size(state, size) >= refused):
            state.sent_text = b""  # it was not sent
            raise MessageTooLong(state.path, size, self._lengths.stated)
        is_longest = size > self._lengths.unremarkable
        if not state.is_long or (is_longest and self._has_short_value(state)):
            # Keep the newest value that the daemon accepts, as far as is known: a long one may be refused again.
            state.fallback, state.is_long = state.value, True
        if is_longest and self.connected and state.added:
            self._note(LongMessage(size, self._count, False, state))

    def _has_short_value(self, state: OwnedState) -> bool:
        """Return True if the daemon is known to accept the value that a state has now."""
        return len(self.encode_change(state, state.value)) < self._accepted_bytes

    def _get_add_size(self, state: OwnedState, change_size: int) -> int:
        """Return the length of an add with the value of a change; after a reconnect it must be accepted, too."""
        added = self.codec.encode_notification("add", state.describe() | {"value": 0})
        value_bytes = change_size - len(self.encode_change(state, 0))
        return len(added) + value_bytes + len(b'"id":%d,' % self._count)

    def use_fallback(self, state: OwnedState, error: MessageTooLong) -> None:
        """Replace a value that the daemon does not accept, so that everything else can be added again."""
        state.value, state.fallback, state.is_long, state.sent_text = state.fallback, None, False, b""
        log.error("%s; it is added again with an older value: %s", error, encode_value(state.value).decode())

    # -- elements of this peer

    def change(self, state: OwnedState, value: Any) -> None:
        """Give a state a new value; without a connection it is sent with the next one."""
        if self.buffering is not None and self.buffering.is_on:
            self.buffering.change(state, value)
            return
        # The same as ``encode_change`` and ``send``, without the cost of two calls.
        # A local name, because a function in an attribute takes longer to call.
        kind, encode = type(value), self._encode_value
        if kind is float:
            if not isfinite(value):
                check_finite(value, state.path)
            text = encode(value)
        elif kind is dict or kind is list:
            text = encode(value)
            # The same as ``may_be_non_finite``, without a call for most values.
            if (NULL_START in text and text.partition(b"null")[1]) or (
                (NAN_START in text or INFINITY_START in text) and may_be_non_finite(text)
            ):
                check_finite(value, state.path)
        elif kind in FINITE_TYPES:
            text = encode(value)
        else:
            text = encode(self.codec.prepare(value, state.path))
        if state.is_checked and not state.check(value, text):
            return
        # Encoded before anything is stored: a value that cannot be encoded leaves the state as it was.
        payload = state.change_head + text + self._change_end
        if len(payload) > self._accepted_bytes:
            self._check_change(state, len(payload))
        state.value = value
        # Time and quality belong to one value. A plain change has none, and must not inherit them.
        if state.meta is not None:
            state.meta = None
        if self.connected and state.added:
            out = self.out
            if not out:
                self.on_output()
            out.append(payload)

    def change_described(self, state: OwnedState, value: Json, meta: JsonObject) -> None:
        """Give a state a new value with time or quality. Other daemons than jetbus are only told the value.

        One that says ``past`` may be older than the present one, so that it does not become the state's value here.
        """
        if self.buffering is not None and self.buffering.is_on:
            self.buffering.change(state, value, meta)
            return
        is_past, knows_meta = bool(meta.get("past")), features_of(self.daemon).is_jetbus
        if not knows_meta and not is_past:
            self.change(state, value)
        else:
            state.check(value, b"")  # the next plain change is sent whatever its value
            params = {"path": state.path, "value": self.codec.prepare(value, state.path), **meta}
            payload = self.codec.encode_notification("change", params)
            if not is_past:
                self.check_length(state, payload)
            if knows_meta and self.connected and state.added:
                self.send(payload)
        if not is_past:
            state.value, state.meta = value, meta

    def send_late(self, values: list[BufferedValue]) -> None:
        """Send values of the past of states that this peer owns."""
        encode, owned = self.codec.encode_timed, self.owned
        for payload in self._join([encode(owned[value.path].change_head, value, is_past=True) for value in values]):
            self.send(payload)

    def redescribe(self, owned: Owned, schema: str | Mapping[str, Json] | None) -> None:
        """Give a state or method another schema."""
        self.check_usable()
        owned.schema = schema
        if self.connected and owned.added and features_of(self.daemon).is_jetbus:
            self.notify("change", {"path": owned.path, "schema": schema})

    def encode_change(self, owned: Owned, value: Any) -> bytes:
        """Encode a change of a state to any value."""
        return owned.change_head + self._encode_value(self.codec.prepare(value, owned.path)) + self._change_end

    def add(self, owned: Owned, waiter: Waiter) -> None:
        """Add a state or method to the bus, now and after every reconnect."""
        self._check_path(owned.path)
        if owned.path in self.owned:
            raise Occupied(owned.path, f"this peer has added {owned.path} already; remove it first")
        if isinstance(owned, OwnedState):
            owned.start()
        self.check_connected()
        if self.buffering is not None and isinstance(owned, OwnedState):
            self.buffering.keep_added(owned)
        # Before it is stored: an add that cannot be sent raises, and leaves nothing behind.
        self.request("add", self._describe(owned), AddWaiter(self, owned, waiter))
        owned.change_head = self.codec.make_change_head(owned.path)
        self.owned[owned.path] = owned
        owned.added = True

    def _check_path(self, path: str) -> None:
        """Refuse paths that no peer can own."""
        if not path:
            raise Invalid("path", "the path is empty; give the state or method a name such as plant/pump/speed")
        if is_daemons(path) and features_of(self.daemon).is_jetbus:
            raise Occupied(path, f"cannot add {path}: {DAEMON_NODE}/ is reserved for the daemon; choose another path")

    def _describe(self, owned: Owned) -> JsonObject:
        params = owned.describe(fully=features_of(self.daemon).is_jetbus)
        if "value" in params:
            params["value"] = self.codec.prepare(params["value"], owned.path)
        return params

    def remove(self, owned: Owned, waiter: Waiter) -> None:
        """Remove a state or method from the bus."""
        # Even without a connection, for which ``request`` raises: it must not be added again by the next one.
        self.drop(owned)
        self.request("remove", {"path": owned.path}, waiter)

    def drop(self, owned: Owned) -> None:
        """Forget a state or method, without a message."""
        owned.added = False
        if self.owned.get(owned.path) is owned:
            del self.owned[owned.path]
            if self.buffering is not None:
                self.buffering.on_removed(owned.path)

    def confirm_add(self, owned: Owned) -> None:
        """Note that the daemon has a state or method of this peer."""
        if self.buffering is not None and isinstance(owned, OwnedState) and owned.added:
            self.buffering.on_added(owned.path)

    # -- fetches

    def next_fetch_id(self) -> str:
        """Return an id for a new fetch. All peers use the same ones, which lets the daemon share its work."""
        self._fetch_count += 1
        suffix = f"-{uuid.uuid4().hex}" if features_of(self.daemon).needs_unique_fetch_ids else ""
        return f"f{self._fetch_count}{suffix}"

    def fetch(self, subscription: Subscription) -> None:
        """Start a fetch, now and after every reconnect."""
        self.check_connected()
        if subscription.wants_nodes and not features_of(self.daemon).is_jetbus:
            name = self.daemon.get("name", "unknown")
            raise Invalid("nodes", f"the daemon ({name}) does not report nodes, only jetd does; leave out nodes")
        self.fetches[subscription.id] = subscription
        self._send_fetch(subscription)

    def _send_fetch(self, subscription: Subscription) -> None:
        subscription.start(features_of(self.daemon))
        waiter = FetchWaiter(self, subscription)
        try:
            self.request("fetch", {"id": subscription.id, **subscription.params}, waiter)
        except MessageTooLong as error:
            waiter.set_exception(error)
            return
        # Daemons differ in when they report present matches; the response to a later request comes after all of them.
        self.request("info", {}, SyncWaiter(subscription))

    def unfetch(self, subscription: Subscription, waiter: Waiter | None = None) -> None:
        """End a fetch; the waiter gets the daemon's response, or true if the fetch had ended before."""
        if self.fetches.pop(subscription.id, None) is None:
            if waiter is not None:
                waiter.set_result(True)
            return
        subscription.end()
        if waiter is not None:
            self.request("unfetch", {"id": subscription.id}, waiter)
        # Otherwise there is nothing to end: the next connection only starts the fetches in ``fetches``.
        elif self.connected:
            self.notify("unfetch", {"id": subscription.id})

    # -- connections

    def begin_connection(self, codec: Codec) -> None:
        """Prepare for a new connection."""
        self._discard_out()
        self._use_codec(codec)

    def _use_codec(self, codec: Codec) -> None:
        self.codec = codec
        # Needed by every request and every change, one lookup away.
        self._encode = codec.encode_request
        self._encode_value, self._change_end = codec.encode_value, codec.change_end
        for owned in self.owned.values():
            owned.change_head = codec.make_change_head(owned.path)

    def on_connected(self) -> None:
        """Send everything again on a connection on which the daemon knows this peer."""
        features = features_of(self.daemon)
        self.connected = True
        if self.buffering is not None:
            self.buffering.on_connected(is_jetbus=features.is_jetbus)
        self.routed_s = self.get_timeout_s(ROUTED_S)
        self._lengths.limit_batches(features.batch_bytes)
        limit = self.daemon.get("limits", {}).get("message_bytes_max")
        if limit is not None:
            self._lengths.learn(limit)
            self._copy_lengths()
        if features.is_jetbus:
            # jetbus ends a request in time even if its owner never answers, so the peer needs no limit of its own.
            self.routed_s = float("inf")
            # jetbus then writes everything of one turn as one batch, which is decoded by one call, and says in the
            # result of a set which value the state has now.
            self.notify("config", {"became": True, "batches": True})
        for owned in self.owned.values():
            # States before fetches: otherwise a fetch of this peer's own states would report them as removed and added
            # again.
            if owned.added:
                self.add_again(owned)
        for subscription in list(self.fetches.values()):
            self._send_fetch(subscription)
        # Daemons answer in order, so this response comes after those to everything above.
        if self._requests:
            self.request("info", {}, SettleWaiter(self))
        else:
            self.settle()

    def settle(self) -> None:
        """Note that the daemon has answered everything that was sent again."""
        self._lengths.on_settled()
        if self.buffering is not None:
            self.buffering.on_settled()
        self.on_settled()

    def add_again(self, owned: Owned) -> None:
        """Add a state or method after a reconnect."""
        waiter = ReaddWaiter(self, owned)
        for _ in range(ADDS_MAX):
            try:
                self.request("add", self._describe(owned), waiter)
            except MessageTooLong as error:  # as long as another message that the daemon has not accepted
                waiter.set_exception(error)
            else:
                return
        log.error("%s is too long for the daemon even without its value; it is not added again", owned.path)

    def on_lost(self) -> None:
        """End every open request: it will not be answered."""
        suspicion = self._lengths.on_lost(self._unanswered(), self._count)
        self._copy_lengths()
        self._disconnect(self._get_length_errors(suspicion) if suspicion is not None else {})

    def _disconnect(self, errors: dict[int, MessageTooLong]) -> None:
        if self.buffering is not None:
            self.buffering.on_lost()
        super()._disconnect(errors)

    def on_closed(self) -> None:
        """End every request and every fetch, for good."""
        self._disconnect({})
        for subscription in list(self.fetches.values()):
            subscription.end()
        self.fetches.clear()

    # -- receiving

    def receive(self, payloads: list[bytes]) -> None:
        """Handle messages, in order."""
        note_receipt()
        for decoded in self.codec.decode(payloads):
            if isinstance(decoded, tuple):
                self._receive_messages(*decoded)
            elif isinstance(decoded, JetError):
                self.on_unreadable(decoded)
            else:
                self._receive_envelope(decoded)

    def _receive_messages(self, messages: list[Incoming], details: Details) -> None:
        # One loop without calls for the two things that matter, responses and runs of events of one fetch.
        run: list[Event] = []
        fetch_id = ""
        for index, message in enumerate(messages):
            method = message.method
            if method is None:
                if run:
                    self._deliver(fetch_id, run)
                    run = []
                waiter, read, _, _, path = self._requests.pop(message.id, NO_REQUEST)  # type: ignore[arg-type]
                if waiter.done():
                    continue
                if message.error is not None:
                    waiter.set_exception(from_wire(message.error, of_call=bool(path) and read is None))
                    continue
                result = message.result
                # Nearly every set is simply done, with a value that needs no conversion; no call of ``read`` then.
                if type(read) is SetReader:
                    if result != DONE or type(read.requested) not in JSON_TYPES:
                        self._finish_set(waiter, read(result), path)
                        continue
                    result = SetResult(read.requested)
                elif read is not None:
                    result = read(result)
                # Bytes arrive as an object; every other result is a plain value.
                elif type(result) is dict:
                    result = read_value(result)
                waiter.set_result(result)
                continue
            # The usual message: another event of the same fetch. Comparing two texts is all it takes to find that out.
            if method == fetch_id:
                event = message.params
                # A value of None may be null or missing, which only the details of the message can tell.
                if type(event) is Event and event.value is not None and message.id is None:
                    run.append(event)
                    continue
            if run:
                self._deliver(fetch_id, run)
                run = []
            fetch_id = self._receive_other(method, message, details, index)
        if run:
            self._deliver(fetch_id, run)

    def _finish_set(self, waiter: Waiter, outcome: SetResult, path: str) -> None:
        """Give the caller the result of a set; if the owner adapted the value, ask the daemon for it first."""
        if outcome.adapted and self.connected and not features_of(self.daemon).is_jetbus:
            self.request("get", {"path": {"equals": path}}, AdaptedWaiter(waiter, outcome))
        else:
            waiter.set_result(outcome)

    def _deliver(self, fetch_id: str, events: list[Event]) -> None:
        subscription = self.fetches.get(fetch_id)
        if subscription is not None:
            # A subscription with a consumer that is too slow ends while it takes these in.
            subscription.receive_events(events)
            if subscription.ended:
                self.unfetch(subscription)

    def _receive_other(self, method: str, message: Incoming, details: Details, index: int) -> str:
        """Handle a message that is not a response; return the id of its fetch if more of its events may follow."""
        subscription = self.fetches.get(method)
        params = message.params
        # Fetch ids and paths share the member ``method``. A message with an id is a request, whatever its name is.
        if subscription is None or params is None or message.id is not None:
            self._serve(details.routed_request(index))
            return ""
        if isinstance(params, list):
            try:
                subscription.receive_changes(params, details.may_have_blobs())
            except (TypeError, ValueError):
                log.warning("ignored changes of fetch %s that are not path, value and fetchOnly each", method)
        elif params.value is not None:
            subscription.receive_events([params])
        else:
            try:
                notification = details.notification(index)
            except msgspec.MsgspecError:
                subscription.receive_raw(details.raw_params(index))
            else:
                subscription.receive_notification(notification)
        if subscription.ended:
            self.unfetch(subscription)
        return method

    def _receive_envelope(self, envelope: Envelope) -> None:
        """Handle a message with something in it that cannot be read, or that has an unusual form."""
        if envelope.id and not envelope.method:
            self._receive_unreadable_response(envelope)
            return
        try:
            request = read_routed_request(envelope)
        except JetError as error:
            self.on_unreadable(error)
            return
        subscription = self.fetches.get(request.path)
        if subscription is None or not envelope.params or envelope.id:
            self._serve(request)
            return
        subscription.receive_raw(envelope.params)
        if subscription.ended:
            self.unfetch(subscription)

    def _receive_unreadable_response(self, envelope: Envelope) -> None:
        """Give the waiter the parts of a result that can be read, or the error."""
        waiter, read, _, _, path = self._requests.pop(jsonrpc.loads(envelope.id), NO_REQUEST)
        if waiter.done():
            return
        try:
            if envelope.error:
                raise from_wire(jsonrpc.loads(envelope.error), of_call=bool(path) and read is None)
            result = decode_entries(envelope.result or b"null", path or "the answer")
            waiter.set_result(read(result) if read is not None else read_value(result))
        except JetError as error:
            waiter.set_exception(error)

    def _serve(self, request: RoutedRequest) -> None:
        """Handle a request for a state or method of this peer."""
        owned = self.owned.get(request.path)
        try:
            # Daemons of node-jet 3 send the service here and the path among the parameters.
            if owned is None and request.path in ("set", "call"):
                request = request.unwrap()
                owned = self.owned.get(request.path)
            if owned is None:
                log.debug("ignored a request for %s, which this peer neither owns nor fetches", request.path)
                return
            responder = Responder(self, owned, request.id, self._spawn)
            if request.kind == "call" or (not request.kind and isinstance(owned, OwnedMethod)):
                responder.call(request.params)
            else:
                fields = {} if bytes(request.params)[:1] == b"[" else jsonrpc.read_fields(request.params)
                # lua-jet and node-jet 1 route the call of a state as they do a set.
                if not request.kind and "value" not in fields:
                    raise NotMethod(owned.path)
                responder.set(fields)
        except JetError as error:
            if request.id:
                self.send_error(request.id, error)
