"""``QuickPeer``: a peer for a command that asks once and ends. No event loop, no thread, few imports.

It is the session of all peers over a plain socket: a message is sent, then read until the answer is there. Commands
that stay on the bus use ``PeerAsync``.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from jetbus.cli.failures import Code, Failure
from jetbus.errors import JetError, MessageTooLong, NotConnected, NotFound, TimedOut, UnknownService
from jetbus.peer.address import Address, read_url
from jetbus.peer.asking import CallParams, SetParams, SetResult, read_set_result
from jetbus.peer.daemons import words_of
from jetbus.peer.fetching import Event, Fetching, arranged, matches
from jetbus.peer.session import GRACE_S, Session, silent
from jetbus.rules import Rule
from jetbus.wire.framing import BINARY_STREAM, STREAM, Framing, StreamDecoder

if TYPE_CHECKING:
    import ssl

CONNECT_S = 5.0
ANSWER_S = 30.0
"""How long the daemon itself may take, for instance for a long list or after a wrong password."""
MESSAGE_BYTES_MAX = 256 << 20
RECEIVE_BYTES = 1 << 18


class StreamLine:
    """TCP, TLS and Unix sockets."""

    def __init__(self, sock: socket.socket, framing: Framing) -> None:
        self._socket = sock
        self._header = framing.header
        self._decoder = StreamDecoder(MESSAGE_BYTES_MAX, framing)

    def send(self, messages: list[bytes]) -> None:
        self._socket.sendall(b"".join(self._header(len(message)) + message for message in messages))

    def receive(self, within_s: float) -> list[bytes]:
        self._socket.settimeout(max(within_s, 0.001))
        data = self._socket.recv(RECEIVE_BYTES)
        if not data:
            raise ConnectionError
        messages = self._decoder.feed(data)
        if self._decoder.overlong is not None:
            raise ConnectionError
        return messages

    def close(self) -> None:
        self._socket.close()


class WebSocketLine:
    """A text frame a message; binary messages with their length in binary frames."""

    def __init__(self, address: Address, tls: ssl.SSLContext | None) -> None:
        from websockets.exceptions import InvalidHandshake, WebSocketException
        from websockets.sync.client import connect
        from websockets.typing import Subprotocol

        self._lost = WebSocketException
        self._binary = address.binary
        subprotocol = Subprotocol("jet-binary" if address.binary else "jet")

        def opened(address: Address) -> Any:
            url = str(address._replace(scheme=address.transport))
            return connect(url, ssl=tls, subprotocols=[subprotocol], open_timeout=CONNECT_S, max_size=MESSAGE_BYTES_MAX)

        try:
            self._socket = opened(address)
        except InvalidHandshake as problem:
            cjet = address.at_cjet_path()
            try:
                if cjet is None:
                    raise
                self._socket = opened(cjet)
            except InvalidHandshake:
                raise NotConnected(
                    f"the WebSocket handshake at {address} was refused: {problem}; is that a Jet daemon?"
                ) from None

    def send(self, messages: list[bytes]) -> None:
        for message in messages:
            framed = BINARY_STREAM.header(len(message)) + message if self._binary else message
            self._socket.send(framed, text=not self._binary)

    def receive(self, within_s: float) -> list[bytes]:
        try:
            told = self._socket.recv(timeout=within_s)
        except self._lost:
            raise ConnectionError from None
        message = told.encode() if isinstance(told, str) else told
        return StreamDecoder(MESSAGE_BYTES_MAX, BINARY_STREAM).feed(message) if self._binary else [message]

    def close(self) -> None:
        self._socket.close()


class InterpretedLine:
    """A line of the binary protocol, for a session that speaks JSON."""

    def __init__(self, line: Line) -> None:
        from jetbus.peer.interpreter import Interpreter, check_version

        self._line = line
        self._interpreter = Interpreter()
        try:
            check_version(*line.receive(CONNECT_S)[:1])
        except NotConnected:
            raise
        except (JetError, TypeError, TimeoutError):
            raise NotConnected("what listens there does not speak the binary protocol; try jet:// or ws://") from None

    def send(self, messages: list[bytes]) -> None:
        self._line.send(self._interpreter.said(messages))

    def receive(self, within_s: float) -> list[bytes]:
        messages = self._interpreter.heard(self._line.receive(within_s))
        if self._interpreter.replies:
            replies, self._interpreter.replies = self._interpreter.replies, []
            self._line.send(replies)
        return messages

    def close(self) -> None:
        self._line.close()


Line: TypeAlias = StreamLine | WebSocketLine | InterpretedLine
"""A connection: messages out, messages in."""


def _open(address: Address, tls: ssl.SSLContext | None) -> Line:
    if address.tls and tls is None:
        import ssl

        tls = ssl.create_default_context()
    if address.websocket:
        line: Line = WebSocketLine(address, tls if address.tls else None)
    else:
        line = StreamLine(_socket(address, tls), BINARY_STREAM if address.binary else STREAM)
    return InterpretedLine(line) if address.binary else line


def _socket(address: Address, tls: ssl.SSLContext | None) -> socket.socket:
    if address.transport == "unix":
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(CONNECT_S)
        path = address.path
        sock.connect("\0" + path[1:] if path.startswith("@") else path)
        return sock
    sock = socket.create_connection((address.host, address.port), CONNECT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return tls.wrap_socket(sock, server_hostname=address.host) if tls is not None and address.tls else sock


class _Answer:
    """Waits for a response."""

    def __init__(self) -> None:
        self._done = False
        self.result: Any = None
        self.error: BaseException | None = None

    def done(self) -> bool:
        return self._done

    def set_result(self, result: Any, /) -> None:
        self.result, self._done = result, True

    def set_exception(self, exception: BaseException, /) -> None:
        self.error, self._done = exception, True

    def taken(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result


class QuickPeer:
    """A connected peer, to be closed after use. Its requests wait for their answers."""

    def __init__(
        self,
        url: str | None = None,
        *,
        user: str | None = None,
        password: str | None = None,
        tls: ssl.SSLContext | None = None,
        name: str = "jet",
    ) -> None:
        self._address = address = read_url(url)
        self.url = str(address)
        self.user = address.user if user is None else user
        self._password = (address.password if password is None else password) or ""
        self._session = Session(spawn=lambda _work, _done: None)
        self.groups: Any = None
        """The groups of the user, as the daemon told them on login."""
        try:
            self._line = _open(address, tls)
        except (OSError, UnicodeError) as problem:
            cause = getattr(problem, "strerror", None) or str(problem)
            raise NotConnected(f"no daemon at {self.url} ({cause}); start one with `jetd`, or give its --url") from None
        try:
            self._introduce(name)
        except BaseException:
            self._line.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the bus."""
        for fetching in list(self._session.fetches.values()):
            self._session.unfetch(fetching)
        try:
            self._flush()
            self._line.close()
        except OSError:
            pass  # gone already

    @property
    def daemon(self) -> dict[str, Any]:
        """What the daemon says of itself."""
        return self._session.daemon

    @property
    def is_ours(self) -> bool:
        """Whether it is a jetd, which can do more than others."""
        return words_of(self.daemon).ours

    def check_ours(self, what: str) -> None:
        """Fail clearly where a daemon that is no jetd cannot do something."""
        if not self.is_ours:
            name = self.daemon.get("name", "unknown")
            raise Failure(f"the daemon at {self.url} ({name}) does not {what}; only jetd does")

    def _introduce(self, name: str) -> None:
        asked: dict[str, Any] = {"info": {}, "config": {"name": name}}
        if self.user is not None:
            asked["authenticate"] = {"user": self.user, "password": self._password}
        answers = {service: _Answer() for service in asked}
        for service, params in asked.items():
            self._session.introduce(service, params, answers[service])
        self._wait(answers["info"], CONNECT_S)
        for answer in answers.values():
            self._wait(answer, ANSWER_S)
        if "authenticate" in answers:
            self.groups = self._logged_in(answers["authenticate"])
        info = answers["info"]
        self._session.daemon = info.result if isinstance(info.result, dict) else {}
        self._session.on_connected()

    def _logged_in(self, answer: _Answer) -> Any:
        try:
            return answer.taken()
        except UnknownService:
            raise Failure(f"the daemon at {self.url} knows no users; leave out --user", Code.NOT_ALLOWED) from None

    def _flush(self) -> None:
        if out := self._session.take_out():
            self._line.send(out)

    def _wait(self, answer: _Answer, within_s: float, *, routed: bool = False) -> None:
        deadline = time.monotonic() + within_s
        try:
            self._flush()
            while not answer.done():
                self._session.receive(self._line.receive(deadline - time.monotonic()))
                self._flush()
        except TimeoutError:
            if not self._session.connected:
                raise NotConnected(
                    f"no answer from a daemon at {self.url} within {within_s:g} s; is that a Jet daemon?"
                ) from None
            raise (TimedOut({}) if routed else silent(within_s)) from None
        except OSError:
            self._session.on_lost()
            if isinstance(answer.error, MessageTooLong):
                raise answer.error from None
            raise NotConnected(f"{self.url} closed the connection before it answered; is that a Jet daemon?") from None

    def ask(self, service: str, params: Any, within_s: float = ANSWER_S, *, path: str = "") -> Any:
        """Any service of the daemon: its result, or the error raised. With a path it is its owner who is asked."""
        answer = _Answer()
        self._session.request(service, params, answer, path=path)
        self._wait(answer, within_s, routed=bool(path))
        return answer.taken()

    def get(self, rule: Rule) -> dict[str, Any]:
        """The states that match now."""
        params, trusting = words_of(self.daemon).ask(rule)
        try:
            entries = self.ask("get", params)
        except UnknownService:  # lua-jet
            events = self.look(replace(rule, sort=None))
            entries = [{"path": event.path, "value": event.value} for event in events if not event.is_method]
        found = {entry["path"]: entry["value"] for entry in entries if "value" in entry}
        if not trusting:
            found = {path: value for path, value in found.items() if matches(rule, path, value)}
        return dict(arranged(rule.sort, found)) if rule.sort and "sort" not in params else found

    def look(self, rule: Rule) -> list[Event]:
        """The states and methods that match now, and whether they can be set or called."""
        fetching = Fetching(self._session.next_fetch_id(), rule)
        self._session.fetch(fetching)
        told = _Answer()
        self._session.request("info", {}, told)
        self._wait(told, ANSWER_S)
        self._session.unfetch(fetching)
        if fetching.error is not None:
            raise fetching.error
        return fetching.take()

    def owners(self, rule: Rule) -> dict[str, dict[str, Any]]:
        """Who owns what matches, by path: ``owner`` and, for an administrator, ``access``. Empty if it is not told."""
        if not self.is_ours:
            return {}
        params, _ = words_of(self.daemon).ask(rule)
        try:
            told = self.call("$jet/owners", {"rule": params})
        except NotFound:  # an older one
            return {}
        return {about["path"]: about for about in told}

    def set(self, path: str, value: Any, timeout_s: float | None = None) -> SetResult:
        """Ask the owner to set a state."""
        answer = _Answer()
        within_s = self._patience_s(timeout_s)
        self._session.request("set", SetParams(path, value, timeout_s), answer, read_set_result, within_s, path)
        self._wait(answer, within_s, routed=True)
        result: SetResult = answer.taken()
        return result

    def call(self, path: str, args: list[Any] | Mapping[str, Any], timeout_s: float | None = None) -> Any:
        """Call a method."""
        return self.ask("call", CallParams(path, args, timeout_s), self._patience_s(timeout_s), path=path)

    def _patience_s(self, timeout_s: float | None) -> float:
        within_s = self._session.patience_s(timeout_s)
        return 86400.0 + GRACE_S if within_s == float("inf") else within_s

    def paths(self) -> list[str]:
        """All paths that this peer may see; none if the daemon does not tell."""
        try:
            return [event.path for event in self.look(Rule())]
        except JetError:
            return []
