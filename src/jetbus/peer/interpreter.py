"""Lets a session, which speaks JSON, talk to a daemon in the binary protocol: messages to frames and back, without I/O.

JSON values travel as they are. What differs is remembered here for one connection: which fetch has which number, how
the answer to a request is to be read, and what was routed to this peer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from msgspec import Raw

from jetbus.errors import JetError, NotConnected
from jetbus.wire import binary, jsonrpc
from jetbus.wire.binary import EVENT, KINDS, REQUEST, RESPONSE
from jetbus.wire.jsonrpc import ABSENT, Envelope

log = logging.getLogger("jetbus.peer")

_PLAIN = (Raw(b"true"), Raw(b"{}"))
"""Answers to a set that say no more than that it was done."""
_VALUELESS = {binary.SET_STATE: b"{}", binary.CALL_METHOD: b"null"}
"""What an answer without a value is in JSON; of all other functions it is true."""
_FETCH_ONLY = b',"fetchOnly":true'


class Interpreter:
    """For one connection."""

    def __init__(self) -> None:
        self._asked: dict[bytes, tuple[bytes, int, str]] = {}
        """Requests by their number: the id the session knows, the function, and which fetch it is about."""
        self._routed: dict[bytes, int] = {}
        """The functions of the requests that were routed to this peer; none if any answer is to have a value."""
        self._methods: set[str] = set()
        self._numbers: dict[str, bytes] = {}
        """The numbers of the running fetches."""
        self._heads: dict[bytes, bytes] = {}
        """How the notifications of a fetch begin, by its number."""
        self._ended: dict[str, bytes] = {}
        """Fetches that ended before their number was known: how the frame begins that will end them."""
        self.replies: list[bytes] = []
        """Frames to be sent that nobody but the interpreter asked for."""

    # -- from the session to the daemon

    def said(self, messages: list[bytes]) -> list[bytes]:
        """The binary messages for what the session says."""
        frames: list[bytes] = []
        for text in messages:
            if text[:1] == b"[":
                frames += self.said(jsonrpc.read_batch(text))
            else:
                frames += self._say(jsonrpc.decode_envelope(text))
        return frames

    def _say(self, message: Envelope) -> list[bytes]:
        if not message.method:
            return [self._answer(message)]
        method = jsonrpc.read_method(message.method)
        fields = jsonrpc.read_fields(message.params) if message.params else {}
        words = _WORDS.get(method)
        function, payload = words(self, fields) if words else _service(method, message.params)
        if not message.id:
            head = bytes((EVENT,))
        else:
            request_id = bytes(message.id)
            number = binary.number(int(request_id) % 0xFFFFFFFF or 0xFFFFFFFF)
            fetch_id = jsonrpc.read_text(fields["id"], "id") if function == binary.FETCH_STATES else ""
            self._asked[number] = request_id, function, fetch_id
            head = bytes((REQUEST,)) + number
        if function == binary.UNFETCH and not payload:
            self._ended[jsonrpc.read_text(fields["id"], "id")] = head
            return []
        return [head + bytes((function,)) + payload]

    def _answer(self, message: Envelope) -> bytes:
        number = binary.number(int(bytes(message.id)))
        function = self._routed.pop(number, 0)
        if message.error:
            return binary.failure(number, jsonrpc.loads(message.error))
        if function == binary.SET_STATE and message.result in _PLAIN:
            return binary.response(number)
        return binary.response(number, binary.body_of(bytes(message.result)))

    def _add(self, fields: dict[str, Raw]) -> tuple[int, bytes]:
        path = jsonrpc.read_text(fields.pop("path"), "path")
        value = fields.pop("value", ABSENT)
        if not value:
            self._methods.add(path)
            return binary.ADD_METHOD, binary.key(path) + _options(fields)
        self._methods.discard(path)
        return binary.ADD_STATE, binary.key(path) + binary.body_of(bytes(value)) + _options(fields)

    def _remove(self, fields: dict[str, Raw]) -> tuple[int, bytes]:
        path = jsonrpc.read_text(fields["path"], "path")
        return binary.REMOVE_METHOD if path in self._methods else binary.REMOVE_STATE, binary.key(path)

    def _change(self, fields: dict[str, Raw]) -> tuple[int, bytes]:
        return binary.NOTIFY_STATE, _key(fields["path"]) + binary.body_of(bytes(fields["value"]))

    def _set(self, fields: dict[str, Raw]) -> tuple[int, bytes]:
        payload = _key(fields.pop("path")) + binary.body_of(bytes(fields.pop("value")))
        return binary.SET_STATE, payload + _options(fields)

    def _call(self, fields: dict[str, Raw]) -> tuple[int, bytes]:
        args = fields.pop("args", ABSENT)
        body = binary.body_of(bytes(args)) if args else binary.EMPTY_BODY
        return binary.CALL_METHOD, _key(fields.pop("path")) + body + _options(fields)

    def _fetch(self, fields: dict[str, Raw]) -> tuple[int, bytes]:
        rule = {name: value for name, value in fields.items() if name != "id"}
        return binary.FETCH_STATES, binary.key("") + _options(rule)

    def _unfetch(self, fields: dict[str, Raw]) -> tuple[int, bytes]:
        fetch_id = jsonrpc.read_text(fields["id"], "id")
        number = self._numbers.pop(fetch_id, b"")
        self._heads.pop(number, None)
        return binary.UNFETCH, number

    def _get(self, fields: dict[str, Raw]) -> tuple[int, bytes]:
        return binary.GET, binary.key("") + _options(fields)

    def _authenticate(self, fields: dict[str, Raw]) -> tuple[int, bytes]:
        return binary.AUTHENTICATE, _key(fields["user"]) + _key(fields["password"])

    def _config(self, fields: dict[str, Raw]) -> tuple[int, bytes]:
        name = _key(fields.pop("name")) if "name" in fields else binary.key("")
        return binary.CONFIG, name + _options(fields)

    # -- from the daemon to the session

    def heard(self, frames: list[bytes]) -> list[bytes]:
        """The JSON messages for what the daemon says."""
        messages: list[bytes] = []
        for frame in frames:
            read = _READERS.get(frame[0] if frame else 0)
            try:
                if read is None:
                    raise binary.BadFrame("unknown type")
                messages += read(self, frame)
            except JetError as problem:
                log.warning("the daemon sent something that is no message: %s", problem)
        return messages

    def _hear_info(self, frame: bytes) -> list[bytes]:
        check_version(frame)
        return []

    def _hear_response(self, frame: bytes) -> list[bytes]:
        number, marker = frame[1:5], frame[5:6]
        request_id, function, fetch_id = self._asked.pop(number, (b"", 0, ""))
        if not request_id:
            if marker == binary.ERROR:
                log.warning("the daemon refuses: %s", binary.read_error(frame, 6))
            return []
        if marker == binary.ERROR:
            refused = [jsonrpc.failure(request_id, jsonrpc.encode(binary.read_error(frame, 6)))]
            ending = self._asked.pop(self._ended.pop(fetch_id, b"")[1:], None)
            return refused if ending is None else [*refused, jsonrpc.result(ending[0], b"true")]
        if function == binary.FETCH_STATES:
            self._begin_fetch(fetch_id, frame[6:])
        if function == binary.GET:
            result = _read_entries(frame)
        elif function in (binary.FETCH_STATES, binary.UNFETCH) or len(frame) == 6 or frame[6] == binary.NONE:
            result = _VALUELESS.get(function, b"true")
        else:
            result = binary.json_of(frame[6:])
        return [jsonrpc.result(request_id, result)]

    def _begin_fetch(self, fetch_id: str, number: bytes) -> None:
        head = self._ended.pop(fetch_id, None)
        if head is not None:
            self.replies.append(head + bytes((binary.UNFETCH,)) + number)
            return
        self._numbers[fetch_id] = number
        self._heads[number] = b'{"method":' + jsonrpc.encode(fetch_id) + b',"params":'

    def _hear_request(self, frame: bytes) -> list[bytes]:
        number = frame[1:5]
        self._routed[number] = 0 if frame.endswith(binary.VALUE_AS_RESULT) else frame[5]
        return [b'{"id":%d,' % int.from_bytes(number, "little") + _read_routed(frame, binary.PAYLOAD_AT, frame[5])]

    def _hear_event(self, frame: bytes) -> list[bytes]:
        told = frame[1]
        if told in binary.FUNCTIONS:
            return [b"{" + _read_routed(frame, binary.EVENT_PAYLOAD_AT, told)]
        head = self._heads.get(frame[2:6])
        if head is None:
            return []  # the fetch has just ended
        if told == binary.TOLD["sorted"]:
            return [head + binary.json_of(frame[6:]) + b"}"]
        if told != binary.SEVERAL:
            entry, at = _read_entry(frame, 6, told)
            return [head + (entry if at == len(frame) else _with_instant(entry, frame, at)) + b"}"]
        messages, at = [], 6
        while at < len(frame):
            entry, at = _read_entry(frame, at + 1, frame[at])
            messages.append(head + entry + b"}")
        return messages


def check_version(frame: bytes) -> None:
    """Refuse a daemon whose messages could mean something else."""
    version = binary.read_info(frame)
    if version[0] != binary.VERSION[0]:
        theirs, ours = ".".join(map(str, version)), binary.VERSION[0]
        raise NotConnected(f"the daemon speaks version {theirs} of the binary protocol, this peer {ours}; update it")


def _key(raw: Raw) -> bytes:
    return binary.key(jsonrpc.loads(raw))


def _options(fields: dict[str, Raw]) -> bytes:
    return binary.json_body(jsonrpc.encode(fields)) if fields else b""


def _service(method: str, params: Raw) -> tuple[int, bytes]:
    body = binary.json_body(bytes(params)) if params else binary.EMPTY_BODY
    return binary.SERVICE, binary.key(method) + body


def _read_entry(frame: bytes, at: int, told: int) -> tuple[bytes, int]:
    """One element as the parameters of a notification, and where it ends."""
    kind = KINDS.get(told & ~binary.FETCH_ONLY)
    if kind is None:
        raise binary.BadFrame(f"{told} is nothing that can be told")
    path, at = binary.read_key(frame, at)
    body, at = binary.read_body(frame, at)
    value = b"" if body[0] == binary.NONE else b',"value":' + binary.json_of(body)
    only = _FETCH_ONLY if told & binary.FETCH_ONLY else b""
    return b'{"path":%b,"event":"%b"%b%b}' % (jsonrpc.encode(path), kind.encode(), value, only), at


def _with_instant(entry: bytes, frame: bytes, at: int) -> bytes:
    """An entry of the past, with the instant that stands there."""
    return entry[:-1] + b',"ts":"' + binary.read_instant(frame, at)[0].encode() + b'"}'


def _read_entries(frame: bytes) -> bytes:
    count, at = binary.read_number(frame, 6)
    entries = []
    for _ in range(count):
        entry, at = _read_entry(frame, at + 1, frame[at])
        entries.append(entry)
    if at < len(frame):  # a get of the past: the instants come after all entries
        entries = [_with_instant(entry, frame, at + 8 * number) for number, entry in enumerate(entries)]
    return b"[" + b",".join(entries) + b"]"


def _read_routed(frame: bytes, at: int, function: int) -> bytes:
    """A set or call of something this peer owns, as JSON daemons route it."""
    (path, body), options = binary.read_payload(frame, at, function)
    head = b'"method":' + jsonrpc.encode(path)
    if function == binary.CALL_METHOD:
        return head + b',"params":' + (b"{}" if body[0] == binary.NONE else binary.json_of(body)) + b"}"
    end = b"," + options[1:-1] if len(options) > 2 else b""
    return head + b',"params":{"value":' + binary.json_of(body) + end + b"}}"


_WORDS: dict[str, Callable[[Interpreter, dict[str, Raw]], tuple[int, bytes]]] = {
    "add": Interpreter._add,
    "remove": Interpreter._remove,
    "change": Interpreter._change,
    "set": Interpreter._set,
    "call": Interpreter._call,
    "fetch": Interpreter._fetch,
    "unfetch": Interpreter._unfetch,
    "get": Interpreter._get,
    "authenticate": Interpreter._authenticate,
    "config": Interpreter._config,
}
_READERS: dict[int, Callable[[Interpreter, bytes], list[bytes]]] = {
    binary.INFO: Interpreter._hear_info,
    REQUEST: Interpreter._hear_request,
    RESPONSE: Interpreter._hear_response,
    EVENT: Interpreter._hear_event,
}
