"""States and methods that a peer owns, and the responses to requests for them.

An ``on_set`` accepts a value by returning None, adapts it by returning another value, and refuses it by raising. If it
returns an awaitable, the response waits for it. The change goes out before the response, so that a peer that sets a
state and fetches it sees the change first.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw, Struct

from jetbus.errors import InvalidValue, JetError, MissingParam, NotMethod, NotState, Refused
from jetbus.json_types import Json, JsonObject
from jetbus.peer.arguments import check_function, check_type
from jetbus.peer.methods import MethodSignature, invalid_argument
from jetbus.peer.values import decode_value, encode_value, read_args, read_value
from jetbus.schema import Described, make_schema

if TYPE_CHECKING:
    from jetbus.peer.peer_session import PeerSession

log = logging.getLogger("jetbus.peer")

WARN_ADAPTED = 1
"""Code of the warning that a set took another value; existing clients know it."""


class _Unchanged:
    def __repr__(self) -> str:
        return "jetbus.UNCHANGED"


UNCHANGED: Any = _Unchanged()
"""Returned by ``on_set``: accepted, but the state keeps its value (it may change later)."""


class Adapted(Struct, frozen=True):
    """Returned by ``on_set``: accepted with another value than the requested one, and why."""

    value: Any
    message: str = ""


class Owned:
    """A state or method that this peer owns."""

    def __init__(self, path: str, access: Mapping[str, Json] | None, timeout_s: float | None) -> None:
        self.path = path
        self.access = access
        self.timeout_s = timeout_s
        self.schema: str | Mapping[str, Json] | None = None
        """Its description, which only daemons of jetbus are sent."""
        self.added = False
        """True if it should be on the bus; the session adds it again after a reconnect."""
        self.change_head = b""
        """Start of its changes, from the codec; encoding the path for each of them would cost as much as the value."""

    def describe(self, *, fully: bool = True) -> JsonObject:
        """Return the parameters of its add; ``fully`` with those that only jetbus knows."""
        params: JsonObject = {"path": self.path}
        if fully and self.schema is not None:
            params["schema"] = self.schema
        if self.access is not None:
            params["access"] = self.access
        if self.timeout_s is not None:
            params["timeout"] = self.timeout_s
        return params


class OwnedState(Owned):
    """A state: a value that all peers see and, with ``on_set``, may ask to change."""

    def __init__(
        self,
        path: str,
        value: Any,
        on_set: Callable[[Any], Any] | None,
        access: Mapping[str, Json] | None,
        timeout_s: float | None,
        value_type: Any,
        only_changes: bool = False,
    ) -> None:
        super().__init__(path, access, timeout_s)
        if on_set is not None:
            advice = "give a function of the requested value: lambda value: None accepts every one"
            check_function(on_set, f"on_set of {path}", advice)
        check_type(value_type)
        self.value = value
        self.is_long = False
        """True if it has had a value that may be too long for the daemon."""
        self.fallback: Any = None
        """The value to return to if the daemon turns out to refuse a longer one."""
        self.on_set = on_set
        self.type = value_type
        self._only_changes = only_changes
        self.is_checked = value_type is not None or only_changes
        """True if ``check`` has something to do."""
        self.sent_text = b""
        """Encoded value of the last change, with ``only_changes``; the value itself may be a list that its owner has
        changed meanwhile."""
        self.checks = False
        """True if the daemon is to refuse values that do not fit the schema."""
        self.meta: JsonObject | None = None
        """Time and quality of the value, as parameters; None if it has none."""

    def set_description(self, described: Described) -> None:
        """Describe it by the owner's keywords; replaces all that it was described by."""
        checks = described.get("check")
        self.schema = make_schema(self.type, described)
        self.checks = self.checks if checks is None else checks

    def describe(self, *, fully: bool = True) -> JsonObject:
        params = super().describe(fully=fully) | {"value": self.value}
        if self.on_set is None:
            params["fetchOnly"] = True
        if fully and self.checks:
            params["check"] = "schema"
        if fully and self.meta is not None:
            params |= self.meta
        return params

    def start(self) -> None:
        """Check the value that the state is added with; the first change is sent whatever its value."""
        self.sent_text = b""
        if self.value is not None:
            self._check_type(self.value)

    def check(self, value: Any, text: bytes) -> bool:
        """Tell whether a change is to be sent, given its encoded value; raise ``InvalidValue`` for a wrong type."""
        self._check_type(value)
        if not self._only_changes:
            return True
        is_new, self.sent_text = text != self.sent_text, text
        return is_new

    def _check_type(self, value: Any) -> None:
        """Raise ``InvalidValue`` if a value of the owner does not fit the state's type."""
        if self.type is None:
            return
        try:
            # By way of JSON, because the value must fit as others will see it, with datetimes and dataclasses encoded.
            msgspec.json.decode(encode_value(value), type=self.type)
        except msgspec.ValidationError as error:
            raise InvalidValue(self.path, str(error)) from None

    def run_on_set(self, value: Any) -> Any:
        """Run ``on_set`` with the requested value."""
        if self.on_set is None:
            raise Refused("Invalid params", {"fetchOnly": self.path})
        return self.on_set(value)

    def read(self, raw: Raw) -> Any:
        """Decode a requested value as the state's type."""
        if self.type is None:
            return read_value(_decode_argument(raw))
        try:
            return msgspec.json.decode(raw, type=self.type)
        except msgspec.ValidationError as error:
            raise invalid_argument(str(error)) from None


class OwnedMethod(Owned):
    """A method: a function that all peers may call. Arrays become positional, objects keyword arguments."""

    def __init__(
        self,
        path: str,
        function: Callable[..., Json],
        access: Mapping[str, Json] | None,
        timeout_s: float | None,
        schema: str | Mapping[str, Json] | None = None,
    ) -> None:
        super().__init__(path, access, timeout_s)
        check_function(function, f"the function of method {path}", "give a function, or add a state with add_state")
        self.function = function
        self._signature = MethodSignature(path, function)
        # Words of the owner go before those of the function; a text says all that is to be said.
        self.schema = schema if isinstance(schema, str) else {**(self._describe() or {}), **(schema or {})} or None

    def _describe(self) -> JsonObject | None:
        return self._signature.describe(self.function)

    def run(self, args: Any) -> Any:
        """Run the function, unless the arguments do not fit its signature."""
        positional, named = self._signature.bind(args)
        return self.function(*positional, **named)


def _decode_argument(raw: Raw) -> Json:
    try:
        return decode_value(raw)
    except ValueError as error:
        raise invalid_argument(str(error)) from None


def _internal(text: str) -> Refused:
    return Refused("Internal error", {"reason": text, "message": text}, code=-32603)


def convert_error(error: BaseException, path: str) -> JetError:
    """Return the error to respond with: errors of the bus as they are, a ValueError as an invalid argument."""
    if isinstance(error, Refused) or (isinstance(error, JetError) and error.data is not None):
        return error
    if isinstance(error, ValueError | InvalidValue):
        return invalid_argument(str(error))
    log.error("the handler of %s failed", path, exc_info=error)
    return _internal(f"{type(error).__name__}: {error}")


def _is_equal(a: Any, b: Any) -> bool:
    try:
        return bool(a == b)
    except ValueError:
        return False  # arrays of numpy compare element by element


Spawn = Callable[[Awaitable[Any], Callable[[Any, BaseException | None], None]], None]
"""Awaits something in the background, then calls a function with the result or the exception."""


class Responder:
    """One routed request: runs the handler, at once or in the background, and sends the response."""

    def __init__(self, session: PeerSession, owned: Owned, request_id: bytes, spawn: Spawn) -> None:
        self._session = session
        self._owned = owned
        self._id = request_id
        self._spawn = spawn
        self._requested: Any = None
        self._value_as_result = False

    def set(self, params: dict[str, Raw]) -> None:
        """Handle a set."""
        self._value_as_result = params.get("valueAsResult") == Raw(b"true")

        def run() -> Any:
            if not isinstance(self._owned, OwnedState):
                raise NotState(self._owned.path)
            if "value" not in params:
                raise MissingParam("value")
            self._requested = self._owned.read(params["value"])
            return self._owned.run_on_set(self._requested)

        self._run(run)

    def call(self, args: Raw) -> None:
        """Handle a call."""

        def run() -> Any:
            if not isinstance(self._owned, OwnedMethod):
                raise NotMethod(self._owned.path)
            return self._owned.run(read_args(_decode_argument(args)) if args else {})

        self._run(run)

    def _run(self, handler: Callable[[], Any]) -> None:
        try:
            outcome = handler()
        except Exception as error:
            self._respond(None, error)
            return
        if hasattr(outcome, "__await__"):
            self._spawn(outcome, self._respond)
        else:
            self._respond(outcome, None)

    def _respond(self, outcome: Any, error: BaseException | None) -> None:
        if error is None:
            try:
                result = self._accept(outcome) if isinstance(self._owned, OwnedState) else outcome
                if self._id:
                    self._session.send_result(self._id, result)
            except JetError as refusal:
                error = refusal
            except Exception as problem:
                error = _internal(f"cannot encode the result as JSON: {problem}")
        # Without an id it was a notification: the requester waits for no response, not even for an error.
        if error is None or not self._id:
            return
        if isinstance(error, TypeError) and isinstance(self._owned, OwnedState):
            # Nearly always a value of a wrong type, which is the requester's mistake: no reason for a traceback.
            log.warning("%s refused an invalid value (%s); give the state a type", self._owned.path, error)
            error = invalid_argument(f"invalid value: {error}")
        try:
            self._session.send_error(self._id, convert_error(error, self._owned.path))
        except Exception as problem:
            self._session.send_error(self._id, _internal(f"{error}; cannot encode its data as JSON: {problem}"))

    def _accept(self, outcome: Any) -> Any:
        """Change the state as ``on_set`` decided; return the result of the request."""
        state = self._owned
        assert isinstance(state, OwnedState)  # noqa: S101
        message = ""
        value = self._requested if outcome is None else outcome
        if isinstance(outcome, Adapted):
            value, message = outcome.value, outcome.message
        # The change goes out before the response; see the head of this module.
        if outcome is not UNCHANGED:
            self._session.change(state, value)
        if self._value_as_result:
            return state.value
        if (
            outcome is None
            or outcome is UNCHANGED
            or (not isinstance(outcome, Adapted) and _is_equal(value, self._requested))
        ):
            return {}
        warning = {"code": WARN_ADAPTED, "message": message} if message else {"code": WARN_ADAPTED}
        return {"warning": warning}
