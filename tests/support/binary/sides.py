"""One way to speak to both protocols, so that a test of the mixed bus is written once.

Values are JSON texts, kept as bytes: a JSON peer's are cut out of its frames unparsed, a binary peer's are of type
application/json. Only what the two protocols have in common is here.
"""

from __future__ import annotations

import abc
import itertools
import json
from typing import Any, NamedTuple

import msgspec

from support.binary.client import BinaryPeer
from support.binary.layout import ABSENT, CALL, JSON, REMOVE_METHOD, REMOVE_STATE, SET, js, key, refusal_in, value_in
from support.wire import Wire

Members = dict[str, bytes]
_ids = itertools.count(1)


class RoutedRequest(NamedTuple):
    """A request that reached its owner; `value` is what to set, or the arguments (empty for none)."""

    ticket: Any
    path: str
    value: bytes
    value_as_result: bool


class FetchEvent(NamedTuple):
    event: str
    path: str
    value: bytes


class Answer(NamedTuple):
    """A result, or an error's code, message and data; empty bytes for what is not there."""

    result: bytes
    code: int | None = None
    message: str = ""
    data: bytes = b""


class Side(abc.ABC):
    """A peer of either protocol."""

    as_asked: bytes  # what a client gets of a set that was done as asked

    @abc.abstractmethod
    def add_state(self, path: str, value: bytes, **named: Any) -> None: ...
    @abc.abstractmethod
    def add_method(self, path: str, **named: Any) -> None: ...
    @abc.abstractmethod
    def change(self, path: str, value: bytes) -> None: ...
    @abc.abstractmethod
    def remove_state(self, path: str) -> None: ...
    @abc.abstractmethod
    def remove_method(self, path: str) -> None: ...
    @abc.abstractmethod
    def asked(self) -> RoutedRequest: ...
    @abc.abstractmethod
    def succeed(self, asked: RoutedRequest, result: bytes) -> None: ...
    @abc.abstractmethod
    def done(self, asked: RoutedRequest) -> None:
        """Say "as asked" in the words of the protocol."""

    @abc.abstractmethod
    def fail(self, asked: RoutedRequest, code: int, message: str, data: bytes) -> None: ...
    @abc.abstractmethod
    def set(self, path: str, value: bytes, **named: Any) -> Any: ...
    @abc.abstractmethod
    def call(self, path: str, arguments: bytes, **named: Any) -> Any: ...
    @abc.abstractmethod
    def answer(self, ticket: Any) -> Answer: ...
    @abc.abstractmethod
    def fetch(self, start: str) -> None: ...
    @abc.abstractmethod
    def received(self, count: int) -> list[FetchEvent]: ...
    @abc.abstractmethod
    def nothing_more(self) -> None:
        """Fail if the daemon has sent anything else."""

    @abc.abstractmethod
    def close(self) -> None: ...


class BinarySide(Side):
    as_asked = b""

    def __init__(self, peer: BinaryPeer) -> None:
        self.peer = peer
        self.fetch_id = 0

    def add_state(self, path: str, value: bytes, **named: Any) -> None:
        self.peer.add_state(path, js(value), **named)

    def add_method(self, path: str, **named: Any) -> None:
        self.peer.add_method(path, **named)

    def change(self, path: str, value: bytes) -> None:
        self.peer.notify(path, js(value))

    def remove_state(self, path: str) -> None:
        assert self.peer.done(REMOVE_STATE, key(path)) == b""

    def remove_method(self, path: str) -> None:
        assert self.peer.done(REMOVE_METHOD, key(path)) == b""

    def asked(self) -> RoutedRequest:
        asked = self.peer.asked()
        assert asked.function in (SET, CALL)
        assert asked.value.type == JSON or asked.value == ABSENT, asked
        assert asked.options in ({}, {"valueAsResult": True})
        return RoutedRequest(asked.id, asked.path, asked.value.data, bool(asked.options))

    def succeed(self, asked: RoutedRequest, result: bytes) -> None:
        self.peer.succeed(asked.ticket, js(result))

    def done(self, asked: RoutedRequest) -> None:
        self.peer.succeed(asked.ticket)

    def fail(self, asked: RoutedRequest, code: int, message: str, data: bytes) -> None:
        self.peer.fail(asked.ticket, code, message, js(data) if data else ABSENT)

    def set(self, path: str, value: bytes, **named: Any) -> int:
        return self.peer.start_set(path, js(value), **named)

    def call(self, path: str, arguments: bytes, **named: Any) -> int:
        return self.peer.start_call(path, js(arguments) if arguments else ABSENT, **named)

    def answer(self, ticket: Any) -> Answer:
        response = self.peer.response(ticket)
        if response.ok:
            value = value_in(response.payload)
            assert value.type == JSON or value == ABSENT, value
            return Answer(value.data)
        refusal = refusal_in(response.payload)
        return Answer(b"", refusal.code, refusal.message, refusal.data.data)

    def fetch(self, start: str) -> None:
        self.fetch_id = self.peer.fetch(start)

    def received(self, count: int) -> list[FetchEvent]:
        received = self.peer.received(self.fetch_id, count)
        assert all(one.value.type == JSON or one.value == ABSENT for one in received), received
        return [FetchEvent(one.event, one.path, one.value.data) for one in received]

    def nothing_more(self) -> None:
        assert self.peer.everything() == []

    def close(self) -> None:
        self.peer.close()


class JsonSide(Side):
    as_asked = b"true"

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    def add_state(self, path: str, value: bytes, **named: Any) -> None:
        self._done("add", {"path": path, **named}, value=value)

    def add_method(self, path: str, **named: Any) -> None:
        self._done("add", {"path": path, **named})

    def change(self, path: str, value: bytes) -> None:
        self.wire.send_text(_message({"method": "change"}, {"path": path}, value=value))

    def remove_state(self, path: str) -> None:
        self._done("remove", {"path": path})

    remove_method = remove_state

    def asked(self) -> RoutedRequest:
        message = self._next("method")
        params = message["params"]
        path = json.loads(message["method"])
        named = members(params) if params.startswith(b"{") else {}
        if "value" in named:
            return RoutedRequest(message["id"], path, named["value"], "valueAsResult" in named)
        return RoutedRequest(message["id"], path, b"" if params == b"{}" else params, False)

    def succeed(self, asked: RoutedRequest, result: bytes) -> None:
        self.wire.send_text(_joined({}, id=asked.ticket, result=result))

    def done(self, asked: RoutedRequest) -> None:
        self.succeed(asked, b"true")

    def fail(self, asked: RoutedRequest, code: int, message: str, data: bytes) -> None:
        error = _joined({"code": code, "message": message}, data=data)
        self.wire.send_text(_joined({}, id=asked.ticket, error=error.encode()))

    def set(self, path: str, value: bytes, **named: Any) -> str:
        return self._start("set", {"path": path, **named}, value=value)

    def call(self, path: str, arguments: bytes, **named: Any) -> str:
        return self._start("call", {"path": path, **named}, args=arguments)

    def answer(self, ticket: Any) -> Answer:
        message = self._next("id", json.dumps(ticket).encode())
        if "result" in message:
            return Answer(message["result"])
        error = members(message["error"])
        return Answer(b"", json.loads(error["code"]), json.loads(error["message"]), error.get("data", b""))

    def fetch(self, start: str) -> None:
        self._done("fetch", {"id": "f", "path": {"startsWith": start}})

    def received(self, count: int) -> list[FetchEvent]:
        found = []
        for _ in range(count):
            params = members(self._next("method", b'"f"')["params"])
            found.append(FetchEvent(json.loads(params["event"]), json.loads(params["path"]), params.get("value", b"")))
        return found

    def nothing_more(self) -> None:
        assert self.wire.receive_all() == []

    def close(self) -> None:
        self.wire.close()

    def _start(self, method: str, params: dict[str, Any], **raw: bytes) -> str:
        ticket = f"ask-{next(_ids)}"
        self.wire.send_text(_message({"id": ticket, "method": method}, params, **raw))
        return ticket

    def _done(self, method: str, params: dict[str, Any], **raw: bytes) -> None:
        assert self.answer(self._start(method, params, **raw)) == Answer(b"true")

    def _next(self, member: str, content: bytes | None = None) -> Members:
        """The next message with this member (and content); what comes before it stays in the inbox."""
        kept: list[str] = []
        while True:
            text = self.wire.receive_text()
            message = members(text)
            if member in message and (content is None or message[member] == content):
                self.wire.inbox.extendleft(reversed(kept))
                return message
            kept.append(text)


def members(text: str | bytes) -> Members:
    """The members of a JSON object, each as the text that it is."""
    return {name: bytes(raw) for name, raw in msgspec.json.decode(text, type=dict[str, msgspec.Raw]).items()}


def _joined(parsed: dict[str, Any], **raw: bytes) -> str:
    """A JSON object, some of whose members are texts that go in as they are."""
    texts = [f"{json.dumps(name)}:{json.dumps(member, ensure_ascii=False)}" for name, member in parsed.items()]
    texts += [f"{json.dumps(name)}:{text.decode()}" for name, text in raw.items() if text]
    return "{" + ",".join(texts) + "}"


def _message(head: dict[str, Any], params: dict[str, Any], **raw: bytes) -> str:
    return _joined(head, params=_joined(params, **raw).encode())
