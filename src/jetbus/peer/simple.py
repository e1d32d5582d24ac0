"""``SimplePeer``: a peer for a program that asks once and ends. No event loop, no thread, few imports.

It is the session of all peers on a plain socket: a request is sent, then everything is read until its response is
there. `jet get` and its like use it, because importing an event loop would take longer than the request. Programs that
stay on the bus use ``Peer`` or ``PeerAsync``; this one neither reconnects nor owns anything.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from jetbus.errors import JetError, MessageTooLong, NotConnected, NotFound, TimedOut, UnknownService, UserRefused
from jetbus.json_types import DaemonInfo, Json, JsonObject
from jetbus.peer.address import (
    Endpoint,
    NoAnswer,
    Unreachable,
    describe_failures,
    explain_closing,
    explain_failure,
    explain_silence,
    read_urls,
    suggest_tls,
)
from jetbus.peer.codec import make_codec
from jetbus.peer.compat import features_of, read_info
from jetbus.peer.events import Event
from jetbus.peer.peer_session import GRACE_S, PeerSession
from jetbus.peer.requests import CallParams, SetParams, SetReader, SetResult, daemon_timed_out, prepare_args
from jetbus.peer.subscription import Subscription, matches, sort_window
from jetbus.rules import Rule
from jetbus.wire.framing import BINARY_STREAM, STREAM, Framing, StreamDecoder

if TYPE_CHECKING:
    import ssl

log = logging.getLogger("jetbus.peer")

CONNECT_S = 5.0
REASON_CHARS_MAX = 200
"""Characters of a message that cannot be read which its error shows."""
RETRY_S = 0.2
"""Pause before another attempt while a daemon is waited for."""
ANSWER_S = 30.0
"""Time limit for the daemon itself, for instance for a long list or after a wrong password."""
FOREVER_S = 86400.0
"""Time limit for an owner if the daemon watches the time; a socket needs some limit."""
MESSAGE_BYTES_MAX = 256 << 20
RECEIVE_BYTES = 1 << 18
_DESCRIBED = ("schema", "ts", "quality", "stale")
"""Members of the entries of a get that describe an element or its value."""


class StreamSocket:
    """TCP, TLS or Unix socket."""

    def __init__(self, sock: socket.socket, framing: Framing) -> None:
        self._socket = sock
        self._framing = framing
        self._decoder = StreamDecoder(MESSAGE_BYTES_MAX, framing)

    def send(self, payloads: list[bytes]) -> None:
        """Send payloads."""
        self._socket.sendall(self._framing.join(payloads))

    def receive(self, within_s: float) -> list[bytes]:
        """Return the payloads that arrive next."""
        # A timeout of 0 would mean a socket that never waits.
        self._socket.settimeout(max(within_s, 0.001))
        data = self._socket.recv(RECEIVE_BYTES)
        if not data:
            raise ConnectionError
        payloads = self._decoder.feed(data)
        if self._decoder.overlong is not None:
            raise ConnectionError
        return payloads

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


class WebSocket:
    """WebSocket: a text frame per message, or a binary frame with a length and a payload."""

    def __init__(self, address: Endpoint, tls: ssl.SSLContext | None) -> None:
        # Here and not at the top, because most commands use a plain socket.
        from websockets.exceptions import InvalidHandshake, InvalidMessage, WebSocketException
        from websockets.sync.client import connect
        from websockets.typing import Subprotocol

        self._lost_error = WebSocketException
        self._is_binary = address.binary
        subprotocol = Subprotocol("jet-binary" if address.binary else "jet")

        def open_at(address: Endpoint) -> Any:
            url = str(address._replace(scheme=address.transport))
            return connect(url, ssl=tls, subprotocols=[subprotocol], open_timeout=CONNECT_S, max_size=MESSAGE_BYTES_MAX)

        try:
            self._socket = open_at(address)
        except InvalidHandshake as error:
            cjet = address.at_cjet_path()
            try:
                if cjet is None:
                    raise
                self._socket = open_at(cjet)
            except InvalidHandshake:
                # A response that is not HTTP may come from a daemon of another protocol.
                kind = NoAnswer if isinstance(error, InvalidMessage) else NotConnected
                raise kind(
                    f"the WebSocket handshake at {address} was refused: {error}; {suggest_tls(address)}is that a Jet"
                    " daemon?"
                ) from None

    def send(self, payloads: list[bytes]) -> None:
        """Send payloads."""
        for payload in payloads:
            message = BINARY_STREAM.header(len(payload)) + payload if self._is_binary else payload
            self._socket.send(message, text=not self._is_binary)

    def receive(self, within_s: float) -> list[bytes]:
        """Return the payloads that arrive next."""
        try:
            received = self._socket.recv(timeout=within_s)
        except self._lost_error:
            raise ConnectionError from None
        message = received.encode() if isinstance(received, str) else received
        return StreamDecoder(MESSAGE_BYTES_MAX, BINARY_STREAM).feed(message) if self._is_binary else [message]

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


SimpleTransport: TypeAlias = StreamSocket | WebSocket


def _open(address: Endpoint, tls: ssl.SSLContext | None) -> SimpleTransport:
    if address.tls and tls is None:
        import ssl

        tls = ssl.create_default_context()
    if address.websocket:
        transport: SimpleTransport = WebSocket(address, tls if address.tls else None)
    else:
        transport = StreamSocket(_open_socket(address, tls), BINARY_STREAM if address.binary else STREAM)
    if address.binary:
        _check_greeting(transport, address)
    return transport


def _check_greeting(transport: SimpleTransport, address: Endpoint) -> None:
    """Read how a daemon that speaks the binary protocol introduces itself."""
    from jetbus.peer.binary import check_version

    try:
        # Without a frame the argument is missing: the TypeError counts as another protocol.
        check_version(*transport.receive(CONNECT_S)[:1])
    except NotConnected:
        raise
    except (JetError, TypeError, OSError):
        raise NoAnswer(
            f"what listens at {address} does not speak the binary protocol; {suggest_tls(address)}try jet:// or ws://"
        ) from None


def _open_socket(address: Endpoint, tls: ssl.SSLContext | None) -> socket.socket:
    if address.transport == "unix":
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(CONNECT_S)
        path = address.path
        sock.connect("\0" + path[1:] if path.startswith("@") else path)
        return sock
    sock = socket.create_connection((address.host, address.port), CONNECT_S)
    # A request is one small write, which must not wait for the acknowledgement of the one before.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return tls.wrap_socket(sock, server_hostname=address.host) if tls is not None and address.tls else sock


class _Response:
    """Waiter that the peer polls between two reads of the socket."""

    def __init__(self) -> None:
        self._done = False
        self.result: Json = None
        self.error: BaseException | None = None

    def done(self) -> bool:
        return self._done

    def set_result(self, result: Json, /) -> None:
        self.result, self._done = result, True

    def set_exception(self, exception: BaseException, /) -> None:
        self.error, self._done = exception, True

    def get(self) -> Json:
        if self.error is not None:
            raise self.error
        return self.result


class SimplePeer:
    """A connected peer, to be closed after use. Its requests wait for their responses."""

    def __init__(
        self,
        url: str | None = None,
        *,
        user: str | None = None,
        password: str | None = None,
        tls: ssl.SSLContext | None = None,
        name: str = "jet",
        wait: bool = False,
    ) -> None:
        self._addresses = read_urls(url)
        self._login = user, password
        self.groups: Json = None
        """The groups of the user, as the daemon reported them at login."""
        has_warned = False
        while True:
            try:
                self._open_any(tls, name)
                return
            except Unreachable as problem:
                self._explain(problem)
                if not wait:
                    raise NotConnected(str(problem)) from None  # the class that callers know
                if not has_warned:
                    log.warning("%s; waiting until there is one, or Ctrl-C", str(problem).partition(";")[0])
                has_warned = True
            time.sleep(RETRY_S)

    def _explain(self, problem: Unreachable) -> None:
        """Raise an error that names the right address if a daemon answers there in another protocol."""
        if isinstance(problem, NoAnswer):
            from jetbus.peer.probe import suggest_address  # only after a failure

            if advice := suggest_address(self._address):
                raise NotConnected(f"no answer in the protocol of {self.url}; {advice}") from None

    def _open_any(self, tls: ssl.SSLContext | None, name: str) -> None:
        """Connect to the first address that has a daemon."""
        problems: list[NotConnected] = []
        for address in self._addresses:
            try:
                self._open_at(address, tls, name)
                return
            except NotConnected as problem:
                problems.append(problem)
        raise describe_failures(problems)

    def _open_at(self, address: Endpoint, tls: ssl.SSLContext | None, name: str) -> None:
        self._address, self.url = address, str(address)
        user, password = self._login
        self.user = address.user if user is None else user
        self._password = (address.password if password is None else password) or ""
        # It owns no methods, so there is nothing to await.
        self._session = PeerSession(spawn=lambda _work, _done: None)
        self._session.on_unreadable = self._fail_unreadable
        try:
            self._transport = _open(address, tls)
        except (OSError, UnicodeError) as error:
            # A reason is that of TLS, which waiting does not change.
            kind = NotConnected if getattr(error, "reason", None) and address.tls else Unreachable
            raise kind(explain_failure(address, error, "--url")) from None
        self._session.begin_connection(make_codec(binary=address.binary, send=self._session.send))
        try:
            self._introduce(name)
        except BaseException:
            self._transport.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        for subscription in list(self._session.fetches.values()):
            self._session.unfetch(subscription)
        try:
            self._flush()
            self._transport.close()
        except OSError:
            pass  # it is gone already

    @property
    def daemon(self) -> DaemonInfo:
        """The daemon's answer to ``info``."""
        return self._session.daemon

    @property
    def is_jetbus(self) -> bool:
        """True if the daemon is a jetd, which can do more than others."""
        return features_of(self.daemon).is_jetbus

    def check_jetbus(self, ability: str) -> None:
        """Raise an error that names the feature that only jetd has."""
        if not self.is_jetbus:
            name = self.daemon.get("name", "unknown")
            raise JetError(f"the daemon at {self.url} ({name}) does not {ability}; only jetd does")

    def _introduce(self, name: str) -> None:
        requests: JsonObject = {"config": {"name": name}, "info": {}}  # in this order: see PeerConnection
        if self.user is not None:
            requests["authenticate"] = {"user": self.user, "password": self._password}
        responses = {service: _Response() for service in requests}
        for service, params in requests.items():
            self._session.introduce(service, params, responses[service])
        # Whatever listens there answers ``info`` at once, if it is a daemon at all; a login may take longer.
        self._wait(responses["info"], CONNECT_S)
        for response in responses.values():
            self._wait(response, ANSWER_S)
        if "authenticate" in responses:
            self.groups = self._read_login(responses["authenticate"])
        self._session.daemon = read_info(responses["info"].result)
        self._session.on_connected()

    def _read_login(self, response: _Response) -> Json:
        try:
            return response.get()
        except UnknownService:
            raise UserRefused(True, f"the daemon at {self.url} has no users; leave out --user") from None

    def _fail_unreadable(self, reason: JetError) -> None:
        # It may have been the response that is waited for, which would then never come.
        text = str(reason)[:REASON_CHARS_MAX]
        kind = JetError if self._session.connected else NoAnswer
        raise kind(f"{self.url} sent what is not a Jet message, {text}; is that a Jet daemon?")

    def _flush(self) -> None:
        if out := self._session.take_out():
            self._transport.send(out)

    def _wait(self, response: _Response, within_s: float, *, routed: bool = False) -> None:
        deadline = time.monotonic() + within_s
        try:
            self._flush()
            while not response.done():
                self._session.receive(self._transport.receive(deadline - time.monotonic()))
                self._flush()
        except TimeoutError:
            if not self._session.connected:
                raise NoAnswer(explain_silence(self._address, within_s)) from None
            raise (TimedOut({}) if routed else daemon_timed_out(within_s)) from None
        except OSError:
            # The session finds out whether the daemon may have closed the connection on a message that was too long.
            self._session.on_lost()
            if isinstance(response.error, MessageTooLong):
                raise response.error from None
            raise NoAnswer(explain_closing(self._address)) from None

    def ask(self, service: str, params: Json, within_s: float = ANSWER_S, *, path: str = "") -> Json:
        """Use any service of the daemon and return its result. With a path, its owner answers."""
        response = _Response()
        self._session.request(service, params, response, path=path)
        self._wait(response, within_s, routed=bool(path))
        return response.get()

    def _check_entries(self, answer: Json) -> list[JsonObject]:
        """Return an answer that lists elements, or fail if it is anything else."""
        if isinstance(answer, list) and all(isinstance(one, dict) and type(one.get("path")) is str for one in answer):
            return answer
        raise JetError(f"{self.url} answered without a list of elements; is that a Jet daemon?")

    def get_all(self, rule: Rule) -> dict[str, Any]:
        """Return the states that match now, path to value."""
        params, is_complete = features_of(self.daemon).translate(rule)
        try:
            entries = self._check_entries(self.ask("get", params))
        except UnknownService:  # lua-jet
            events = self.look(replace(rule, sort=None))
            entries = [{"path": event.path, "value": event.value} for event in events if not event.is_method]
        found = {entry["path"]: entry["value"] for entry in entries if "value" in entry}
        if not is_complete:
            found = {path: value for path, value in found.items() if matches(rule, path, value)}
        return dict(sort_window(rule.sort, found)) if rule.sort and "sort" not in params else found

    def look(self, rule: Rule) -> list[Event]:
        """Return the states and methods that match now, as events that say whether they can be set or called."""
        subscription = Subscription(self._session.next_fetch_id(), rule)
        self._session.fetch(subscription)
        response = _Response()
        self._session.request("info", {}, response)  # its response comes after everything that matches
        self._wait(response, ANSWER_S)
        self._session.unfetch(subscription)
        if subscription.error is not None:
            raise subscription.error
        return subscription.take()

    def owners(self, rule: Rule) -> dict[str, JsonObject]:
        """Return the owners of all matches, by path: ``owner`` and, for an administrator, ``access``.

        Empty if the daemon does not report it.
        """
        if not self.is_jetbus:
            return {}
        params, _ = features_of(self.daemon).translate(rule)
        try:
            entries = self._check_entries(self.call("$jet/owners", {"rule": params}))
        except NotFound:  # an older jetd
            return {}
        return {entry["path"]: entry for entry in entries}

    def describe(self, rule: Rule) -> dict[str, JsonObject]:
        """Return the owners' descriptions of states and methods, by path: ``schema``, ``ts``, ``quality``, ``stale``.

        Empty if the daemon does not report it.
        """
        if not self.is_jetbus or self._address.binary:
            return {}
        params, _ = features_of(self.daemon).translate(replace(rule, sort=None))
        entries = self._check_entries(self.ask("get", params | {"schema": True, "meta": True}))
        return {entry["path"]: {name: entry[name] for name in _DESCRIBED if name in entry} for entry in entries}

    def set(self, path: str, value: Any, timeout_s: float | None = None) -> SetResult:
        """Ask the owner to set a state."""
        response = _Response()
        within_s = self._get_timeout_s(timeout_s)
        params = SetParams(path, self._session.codec.prepare(value, path), timeout_s)
        self._session.request("set", params, response, SetReader(value), within_s, path)
        self._wait(response, within_s, routed=True)
        result: SetResult = response.get()
        return result

    def call(self, path: str, args: list[Any] | Mapping[str, Any], timeout_s: float | None = None) -> Any:
        """Call a method."""
        params = CallParams(path, prepare_args(path, args), timeout_s)
        return self.ask("call", params, self._get_timeout_s(timeout_s), path=path)

    def set_unanswered(self, path: str, value: Any) -> None:
        """Send a set without a response."""
        self._send_unanswered("set", SetParams(path, self._session.codec.prepare(value, path)))

    def call_unanswered(self, path: str, args: list[Any] | Mapping[str, Any]) -> None:
        """Send a call without a response."""
        self._send_unanswered("call", CallParams(path, prepare_args(path, args)))

    def _send_unanswered(self, service: str, params: SetParams | CallParams) -> None:
        self._session.send_unanswered(service, params, params.path)
        # The daemon has read it when it answers this. Closing the connection before could discard it.
        response = _Response()
        self._session.request("info", {}, response)
        self._wait(response, ANSWER_S)

    def _get_timeout_s(self, timeout_s: float | None) -> float:
        within_s = self._session.get_timeout_s(timeout_s)
        return FOREVER_S + GRACE_S if within_s == float("inf") else within_s

    def paths(self) -> list[str]:
        """Return all paths that this peer may see; none if the daemon does not report them."""
        try:
            return [event.path for event in self.look(Rule())]
        except JetError:
            return []
