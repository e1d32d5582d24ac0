"""The intake: the one place that checks what strangers send.

Every text that a peer sends passes ``Intake.read``, which returns one of three::

    text  ->  Message        checked in full: it can be handled, and its parts forwarded to other peers unchanged
              Refusal        the error to respond with
              MessageBatch   the texts of its messages, each of which is read when its turn comes

Checked in full means: valid UTF-8, valid JSON, not nested deeper than ``depth_max``, no number that a peer could not
read, no key given twice in the message or its parameters, members of the right types. Nothing behind the intake asks
for any of this again.

A text is checked by the compiled ``Reader`` (``_lane.c``) in one pass. It makes a message of every text that needs no
second look, which is nearly every one. All other texts, and all texts where there is no compiler, are read by
``Intake.read_in_python``. It finds the error of a refused text, and reads rare forms such as parameters by position.

Messages of the binary protocol have their own readers here. They check the JSON inside such messages in the same way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from msgspec import UNSET, Raw, Struct

from jetbus.errors import InvalidRequest, JetError, LimitReached, ParseError
from jetbus.wire import binary, jsonrpc, legacy
from jetbus.wire._texts import (
    BIGGEST,
    COMMA,
    SAFE_CHARS,
    TOO_LONG,
    count_outer,
    has_doubled_key,
    is_too_deep,
    is_utf8,
    judge_numbers,
)
from jetbus.wire.jsonrpc import FREQUENT, NULL, Envelope, Message, MetaParams, Params
from jetbus.wire.lane import compiled

E_LOWER, E_UPPER = b"eE"


class TooDeep(InvalidRequest):
    """JSON text that is nested too deeply."""

    def __init__(self, depth_max: int) -> None:
        super().__init__({"depthMax": depth_max}, f"nested deeper than {depth_max} levels")


class NumberTooBig(InvalidRequest):
    """Number beyond the range of a double."""

    def __init__(self) -> None:
        text = "a number is beyond the range of a double (1.8e308); send it as text"
        super().__init__({"numberMax": BIGGEST, "message": text}, text)


class NumberTooLong(InvalidRequest):
    """Number with more characters than allowed."""

    def __init__(self, chars_max: int) -> None:
        text = f"a number has more than {chars_max} characters (number_chars_max); send it as text"
        super().__init__({"numberCharsMax": chars_max, "message": text}, text)


class Refusal(Struct, gc=False):
    """A text that is refused: the error to respond with, and the parts of the message that are known."""

    error: JetError
    known: Message


class MessageBatch(Struct, gc=False):
    """Texts of the messages of a batch."""

    members: list[bytes]


class NestedBatch(bytes):
    """Batch inside a batch, which is refused in the order of the messages."""


class Intake:
    """Reads and checks messages. Limits that a message crosses are counted in ``limit_hits``."""

    read: Callable[[bytes], Message | Refusal | MessageBatch]
    """Return the message of a text, or the texts of a batch, or the refusal to send."""

    def __init__(
        self,
        *,
        depth_max: int,
        number_chars_max: int,
        batch_max: int,
        limit_hits: Counter[str],
        compiled: Any = compiled,
    ) -> None:
        self._depth_max = depth_max
        self._chars_max = number_chars_max
        self._batch_max = batch_max
        self._limit_hits = limit_hits
        self.read = self.read_in_python
        self.reader: Any = None
        """Compiled reader, None if everything runs in Python."""
        if compiled is not None:
            parts = Message, Params, MetaParams, UNSET, jsonrpc.decode_text
            self.reader = compiled.Reader(*parts, self.read_in_python, depth_max, number_chars_max)
            self.read = self.reader.read
        self._safe_bytes = min(SAFE_CHARS, number_chars_max)

    def read_in_python(self, text: bytes) -> Message | Refusal | MessageBatch:
        """Do the same as ``read`` without the compiled check."""
        message = Message()
        try:
            self._check_text(text)
            if text.lstrip()[:1] == b"[":
                return self._read_batch(text)
            envelope = jsonrpc.diagnose(text)
            self._read_envelope(text, envelope, message)
        except JetError as error:
            return Refusal(_without_frames(error), message)
        return message

    def _check_text(self, text: bytes) -> None:
        if not is_utf8(text):
            raise ParseError(jsonrpc.show(text))
        if is_too_deep(text, self._depth_max):
            self._limit_hits["depth_max"] += 1
            raise TooDeep(self._depth_max)

    def _read_batch(self, text: bytes) -> MessageBatch:
        if type(text) is NestedBatch:
            raise InvalidRequest(Raw(text), "a batch inside a batch")
        if count_outer(text, COMMA) >= self._batch_max:
            self._limit_hits["batch_max"] += 1
            raise LimitReached("batch_max", self._batch_max, "too many messages in a batch")
        members = jsonrpc.read_batch(text)
        if not members:
            raise InvalidRequest([], "an empty batch")
        return MessageBatch([NestedBatch(member) if member.startswith(b"[") else member for member in members])

    def _read_envelope(self, text: bytes, envelope: Envelope, message: Message) -> None:
        """Set the parts of a message one by one, so that those before an error are known."""
        message.jsonrpc = bytes(envelope.jsonrpc)
        if bytes(envelope.method) in (b"", NULL):
            self._read_response(text, envelope, message)
            return
        message.id = jsonrpc.read_id(envelope.id)
        self._check_numbers(text)
        message.method = jsonrpc.read_method(envelope.method)
        if _is_doubled(text, envelope):
            raise InvalidRequest(Raw(text), "a key is given twice")
        self._read_params(message, message.method, bytes(envelope.params))

    def _read_response(self, text: bytes, envelope: Envelope, message: Message) -> None:
        is_doubled = _is_doubled(text, envelope)
        if is_doubled or not (envelope.result or envelope.error):
            message.id = jsonrpc.read_id(envelope.id)
            raise InvalidRequest(Raw(text), "a key is given twice") if is_doubled else InvalidRequest(Raw(text))
        # Whatever the id of a response is, it is that of an open request or of none.
        message.id = b"" if bytes(envelope.id) == NULL else bytes(envelope.id)
        message.result, message.error = bytes(envelope.result), bytes(envelope.error)
        try:
            self._check_numbers(text)
        except InvalidRequest as error:
            # The requester waits, so it gets this error in place of a response that it could not read.
            message.unreadable = _without_frames(error)

    @staticmethod
    def _read_params(message: Message, method: str, params: bytes) -> None:
        if params[:1] == b"[" and method in legacy.POSITIONS:
            params = legacy.name_params(method, params)
            message.is_positional = True
        if method in FREQUENT:
            message.params = jsonrpc.read_params(params)
        else:
            message.body = params

    def _check_numbers(self, text: bytes) -> None:
        """Raise if a JSON text has a number that peers could not read: too big for a double, or too long.

        JSON does not limit numbers, but programs that read them do. Values are forwarded unchanged, so every peer that
        fetches a ``1e309`` would fail to read it, together with everything else in the same message.
        """
        verdict = judge_numbers(text, self._chars_max)
        if verdict == TOO_LONG:
            self._limit_hits["number_chars_max"] += 1
            raise NumberTooLong(self._chars_max)
        if verdict:
            raise NumberTooBig

    # -- messages of the binary protocol

    def read_pair(self, message: bytes, at: int) -> tuple[str, int, int]:
        """Return the key at a position, the start of the body behind it and the end of that body."""
        path, body_at, end = binary.read_pair(message, at)
        if message[body_at] == binary.JSON:
            self._check_json(message[body_at + binary.BODY_AT : end])
        return path, body_at, end

    def read_payload(self, message: bytes, at: int, function: int) -> tuple[list[Any], bytes]:
        """Return the parts of a payload and the JSON text of its options, empty if there are none."""
        parts, options = binary.read_payload(message, at, function)
        for part in parts:
            if isinstance(part, bytes) and part[0] == binary.JSON:
                self._check_json(part[binary.BODY_AT :])
        if options:
            self._check_json(options)
        return parts, options

    def check_response(self, message: bytes) -> None:
        """Raise if the response of a binary owner is malformed, or has a number that peers could not read."""
        binary.check_response(message)
        if message[5:6] == binary.ERROR:
            self._check_json(bytes(binary.read_error(message, 6).get("data", b"")))
        elif message[binary.PAYLOAD_AT : binary.PAYLOAD_AT + 1] == bytes((binary.JSON,)):
            self._check_json(message[binary.PAYLOAD_AT + binary.BODY_AT :])

    def _check_json(self, text: bytes) -> None:
        # Only exponents and length can make a number unreadable; most values have neither.
        if E_LOWER in text or E_UPPER in text or len(text) > self._safe_bytes:
            self._check_numbers(text)


def _is_doubled(text: bytes, envelope: Envelope) -> bool:
    """Return True if a message or its parameters have a key twice."""
    params = bytes(envelope.params)
    return has_doubled_key(text) or (params[:1] == b"{" and has_doubled_key(params))


def _without_frames(error: JetError) -> JetError:
    """Return an error without the frames that it was raised in, which would keep the text alive."""
    error.__traceback__ = error.__context__ = None
    return error
