"""Errors of a Jet bus, named by what the caller can do about them.

    JetError
        ParseError              -32700  the message is not JSON
        InvalidRequest          -32600  JSON, but not a Jet message
        UnknownService          -32601  no service of that name
        Invalid                 -32602  the service refuses these parameters
            MissingParam                    a parameter is missing
            WrongType                       a parameter has the wrong type
            WrongCount                      too few or too many positional parameters
            EncodingNotSupported            not the encoding of this connection
            InvalidRule                     a fetch rule is unknown or has a wrong operand
            NotFound                        there is no state or method at that path
            Occupied                        the position in the tree is taken
                Reserved                        the path is kept for the user of its owner, until it is back
            Foreign                         another peer owns that path
            NotState                        set or change of a method
            NotMethod                       call of a state
            ReadOnly                        its owner does not accept sets
            ValueRefused                    the value does not fit the schema of the state
            NotAllowed                      the user lacks the group for it
                AddNotAllowed                   no rule lets the user add that path
            LoginRefused                    wrong user or password
            AlreadyFetching                 authenticate must come before the first fetch
            FetchIdInUse                    this peer has a fetch of that id
            FetchIdUnknown                  this peer has no fetch of that id
            UserRefused                     a user or password cannot be changed that way
        Internal                -32603  the daemon failed to do it
            OwnerLost                       the owner disconnected before it answered
            LimitReached                    a configured limit is reached
        TimedOut                -32001  the owner did not answer in time
        Refused                 any     the owner, or a foreign daemon, refused with a code of its own
        NotConnected                    there is no connection to a daemon
            ConnectionLost                  it broke before the response; the request may have been carried out
                MessageTooLong                  it broke because of the length of a message
        InvalidValue                    a value does not have the requested type
        TooSlow                         a fetch that must see every event was not read in time

The code, message and ``data`` of each are those that existing Jet clients read; ``str(error)`` has the cause and the
next step for a person. ``from_wire`` turns them back into exceptions, including those of other daemons. Nothing here
knows how an error is transported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from jetbus.json_types import ErrorObject, Json

__all__ = [
    "MESSAGES",
    "AddNotAllowed",
    "AlreadyFetching",
    "ConnectionLost",
    "EncodingNotSupported",
    "FetchIdInUse",
    "FetchIdUnknown",
    "Foreign",
    "Internal",
    "Invalid",
    "InvalidRequest",
    "InvalidRule",
    "InvalidValue",
    "JetError",
    "LimitReached",
    "LoginRefused",
    "MessageTooLong",
    "MissingParam",
    "NotAllowed",
    "NotConnected",
    "NotFound",
    "NotMethod",
    "NotState",
    "Occupied",
    "OwnerLost",
    "ParamError",
    "ParseError",
    "PathError",
    "ReadOnly",
    "Refused",
    "Reserved",
    "TimedOut",
    "TooSlow",
    "UnknownService",
    "UserRefused",
    "ValueRefused",
    "WrongCount",
    "WrongType",
    "from_wire",
]

MESSAGES = {
    -32700: "Parse error",
    -32600: "Invalid Request",
    -32601: "Method not found",
    -32602: "Invalid params",
    -32603: "Internal error",
    -32001: "Response Timeout",
}
OWNER_LOST_REASON, TIMEOUT_REASON = "peer shuts down", "timeout for routed request"
"""Reasons by which clients recognise these two internal errors."""
NOT_POSSIBLE = "set/call on element not possible"
"""Key used by cjet both for setting a method and for calling a state."""
ROUTES_FULL = "routing table full"
"""Reason given by cjet when too many requests wait for one owner."""


class JetError(Exception):
    """Error of the bus: a code, its message and data with details."""

    code: ClassVar[int] = -32603

    def __init__(self, text: str, data: Json = None) -> None:
        super().__init__(text)
        self.data = data

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception is otherwise built again from its text, as which most constructors take something else: a result
        # of ``multiprocessing`` or Spark would be an error of its own.
        return _restore, (type(self), self.args, self.__dict__)

    def wire(self) -> ErrorObject:
        """Return the error object of a response."""
        return {"code": self.code, "message": MESSAGES[self.code], "data": self.data}

    @property
    def path(self) -> str | None:
        """Path that the error refers to, or None."""
        return None


def _restore(kind: type[JetError], args: tuple[Any, ...], members: dict[str, Any]) -> JetError:
    """Return a pickled error, without its constructor."""
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(members)
    return error


class ParseError(JetError):
    """The message is not JSON."""

    code = -32700

    def __init__(self, text: str) -> None:
        super().__init__(f"not JSON: {text!r}", text)


class InvalidRequest(JetError):
    """The message is JSON, but not a request, notification or response."""

    code = -32600

    def __init__(self, message: Json, text: str = "not a Jet request, notification or response") -> None:
        super().__init__(text, message)


class UnknownService(JetError):
    """The daemon has no service of that name."""

    code = -32601

    def __init__(self, name: Json) -> None:
        super().__init__(f"the daemon has no service {name!r}", name)


class Invalid(JetError):
    """Refused parameters. ``key`` is the key of ``data`` by which clients recognise the case."""

    code = -32602
    key: ClassVar[str] = "reason"
    says: ClassVar[str] = "{subject}"
    """Default text, with ``{subject}`` in the place of the subject."""
    explains: ClassVar[bool] = True
    """True if ``data`` may also carry a message; some clients compare ``data`` as a whole."""

    def __init__(self, subject: Json, text: str | None = None) -> None:
        self.subject = subject
        super().__init__(text or self.says.format(subject=subject), {self.key: subject})
        if text is not None and self.explains:
            self.data["message"] = text


class PathError(Invalid):
    """Refused because of the state or method at a path, or because there is none."""

    explains = False

    @property
    def path(self) -> str | None:
        return self.subject if isinstance(self.subject, str) else None


class ParamError(Invalid):
    """Missing or malformed parameter; the request is added to ``data`` as ``got``."""

    explains = False

    def got(self, params: Json) -> ParamError:
        self.data = {self.key: self.subject, "got": params}
        return self


class MissingParam(ParamError):
    """A parameter is missing."""

    key = "missingParam"
    says = "the parameter {subject} is missing"


class WrongType(ParamError):
    """A parameter has the wrong type."""

    key = "wrongType"
    says = "the parameter {subject} has the wrong type"


class WrongCount(ParamError):
    """Too few or too many positional parameters."""

    key = "expected"
    says = "expected {subject} positional parameters"


class EncodingNotSupported(Invalid):
    """The connection does not support that encoding."""

    key = "encodingNotSupported"
    says = "this connection does not support {subject}; JSON and binary have separate ports"


class InvalidRule(Invalid):
    """A fetch rule is unknown or has a wrong operand."""

    key = "invalidRule"
    says = "{subject} is not a fetch rule, or its operand is wrong"


class NotFound(PathError):
    """There is no state or method at that path, or it is hidden."""

    key = "pathNotExists"
    says = "there is no {subject} on the bus; it has not been added yet, or it is hidden from this user"


class Occupied(PathError):
    """The position in the tree is taken."""

    key = "pathAlreadyExists"
    says = "cannot add {subject}: a state, method or node already exists there"


class Reserved(Occupied):
    """The path is kept for its last user, until that user is back."""

    explains = True

    def __init__(self, path: str, left_s: float) -> None:
        super().__init__(path, f"{path} is reserved for the user who owned it, for another {max(1, round(left_s))} s")


class Foreign(PathError):
    """Another peer owns that path."""

    key = "foreignPath"
    says = "{subject} belongs to another peer; only its owner may change or remove it"


class NotState(PathError):
    """A method can be neither set nor changed."""

    key = "pathIsNotState"
    says = "{subject} is a method; call it"


class NotMethod(PathError):
    """A state cannot be called."""

    key = "pathIsNotMethod"
    says = "{subject} is a state; set or fetch it"


class ReadOnly(PathError):
    """The owner of the state does not accept sets."""

    key = "fetchOnly"
    says = "{subject} is read-only: its owner does not accept sets"


class ValueRefused(Invalid):
    """The value of a set does not fit the schema of the state; the subject is the member that does not."""

    key = "valueRefused"
    says = "{subject} does not fit the schema of the state"


class NotAllowed(PathError):
    """The user lacks the group for it."""

    key = "noAccess"
    says = "this user may not access {subject}; authenticate as a member of its groups"


class AddNotAllowed(NotAllowed):
    """No rule of the users file lets the user add that path."""

    explains = True

    def __init__(self, path: str, user: str | None, groups: Sequence[str] = ()) -> None:
        if user is None:
            text = f"{path} may not be added without a login: no add rule for everybody matches it; authenticate first"
        else:
            held = ", ".join(groups) or "none"
            text = f"user {user!r} may not add {path}: no add rule of its groups ({held}) matches it"
        super().__init__(path, text)


class LoginRefused(Invalid):
    """Wrong user or password. Our daemon does not tell which, other daemons may; the keys are those of node-jet."""

    def __init__(self, *, user_known: bool = True) -> None:
        super().__init__(True, "wrong user or password" if user_known else "no such user")
        self.data = {"invalidPassword" if user_known else "invalidUser": True}


class AlreadyFetching(Invalid):
    """The peer has fetched already; it must authenticate before."""

    key = "alreadyFetching"
    explains = False

    def __init__(self) -> None:
        super().__init__(True, "authenticate before the first fetch: what a fetch may see is decided when it starts")


class FetchIdInUse(Invalid):
    """This peer already has a fetch with that id."""

    key = "fetchIdAlreadyExists"
    says = "fetch {subject} already exists; unfetch it, or choose another id"


class FetchIdUnknown(Invalid):
    """This peer has no fetch with that id."""

    key = "fetchIdNotExists"
    says = "there is no fetch {subject}"


class UserRefused(Invalid):
    """A user or password cannot be changed that way."""

    key = "reason"


class Internal(JetError):
    """Failure inside the daemon. ``data`` always has ``reason`` and ``message``: node-jet 1 and 2 require it."""

    code = -32603

    def __init__(self, reason: str, text: str | None = None) -> None:
        super().__init__(text or reason, {"reason": reason, "message": text or reason})


class OwnerLost(Internal):
    """The owner disconnected before it answered."""

    def __init__(self) -> None:
        super().__init__(OWNER_LOST_REASON)


class LimitReached(Internal):
    """A configured limit is reached."""

    def __init__(self, limit: str, allowed: int, what: str) -> None:
        super().__init__(
            f"{limit} reached", f"{what}: the daemon allows {allowed} ({limit}); raise it in the configuration"
        )
        self.limit = limit

    @classmethod
    def as_told(cls, limit: str, reason: str, text: str) -> LimitReached:
        """Return the error received from a daemon, which may not say how much it allows."""
        error = cls.__new__(cls)
        Internal.__init__(error, reason, text)
        error.limit = limit
        return error


class TimedOut(JetError, TimeoutError):
    """The owner did not answer in time; also a ``TimeoutError``."""

    code = -32001

    def __init__(self, params: Json, text: str = "the owner did not answer in time") -> None:
        super().__init__(text, params)

    @property
    def path(self) -> str | None:
        return self.data.get("path") if isinstance(self.data, dict) else None

    @staticmethod
    def as_internal() -> Internal:
        """Return the error in the form that C++ peers expect: an internal error with a reason."""
        error = Internal(TIMEOUT_REASON)
        error.data = {"reason": TIMEOUT_REASON}
        return error


class Refused(JetError):
    """The owner of a state or method refused. Raise it in ``on_set`` or in a method to refuse a request."""

    def __init__(self, message: str, data: Json = None, *, code: int = -32602) -> None:
        detail = _detail(data)
        super().__init__(f"{message}: {detail}" if detail and detail not in message else message, data)
        self.message = message
        self.own_code = code

    def wire(self) -> ErrorObject:
        if self.data is None:
            return {"code": self.own_code, "message": self.message}
        return {"code": self.own_code, "message": self.message, "data": self.data}


def _detail(data: Json) -> str:
    """Return the message for people that many owners put into ``data``."""
    if isinstance(data, dict):
        invalid = data.get("invalidArgument")
        data = (invalid if isinstance(invalid, dict) else data).get("message")
    return data if isinstance(data, str) else ""


class NotConnected(JetError):
    """There is no connection to a daemon."""


class ConnectionLost(NotConnected):
    """The connection broke before the response; the request may have been carried out."""


class MessageTooLong(ConnectionLost):
    """The message is longer than the daemon accepts: it was not sent, or the daemon closed the connection."""

    def __init__(self, path: str, size: int, limit: int | None = None) -> None:
        if limit is None:
            text = (
                f"{path or 'a request'}: the daemon closed the connection because of a message of {size} bytes;"
                " send less at a time, or raise the daemon's limit"
            )
        else:
            text = (
                f"{path or 'a request'}: a message of {size} bytes is not sent, since the daemon accepts {limit}; send"
                " less at a time, or raise its message_bytes_max and connect again"
            )
        super().__init__(text, {"reason": "message too long", "message": text})
        self._path = path

    @property
    def path(self) -> str | None:
        return self._path or None


class InvalidValue(JetError):
    """A value does not have the requested type, or cannot be decoded; the text names the field or the reason."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self._path = path

    @property
    def path(self) -> str | None:
        return self._path


class TooSlow(JetError):
    """A fetch with the policy ``every`` was not read in time, and has ended."""


def _by_key() -> dict[str, type[Invalid]]:
    """Return the errors by their key in ``data``, including the keys of cjet and of Jet in 2012."""
    ours: tuple[type[Invalid], ...] = (
        MissingParam,
        WrongType,
        WrongCount,
        EncodingNotSupported,
        InvalidRule,
        NotFound,
        Occupied,
        Foreign,
        NotState,
        NotMethod,
        ReadOnly,
        ValueRefused,
        NotAllowed,
        FetchIdInUse,
        FetchIdUnknown,
    )
    theirs: dict[str, type[Invalid]] = {
        "not exists": NotFound,
        "exists": Occupied,
        "not owner of state": Foreign,
        NOT_POSSIBLE: NotState,
        "change on method not possible": NotState,
        "request not authorized": NotAllowed,
        "invalid_path": NotFound,
        "path_is_not_state": NotState,
        "path_is_not_method": NotMethod,
    }
    return {kind.key: kind for kind in ours} | theirs


_BY_KEY = _by_key()
_BY_NODE_JET_3_NAME: dict[str, type[Invalid]] = {
    "jet.NotFound": NotFound,
    "jet.Occupied": Occupied,
    "jet.Unauthorized": NotAllowed,
}
_LOGIN_KEYS = {"invalidUser": False, "invalidPassword": True, "invalid credentials": True}


def from_wire(error: Json, *, of_call: bool = False) -> JetError:
    """Return the exception for the error in a response; unknown errors become ``Refused``.

    ``of_call`` is needed because cjet sends the same error for a refused set and a refused call.
    """
    fields = error if isinstance(error, dict) else {"message": str(error)}
    code, message, data = fields.get("code", -32603), str(fields.get("message", "")), fields.get("data")
    if of_call and isinstance(data, dict) and NOT_POSSIBLE in data:
        found: JetError = NotMethod(data[NOT_POSSIBLE])
    else:
        found = _recognise(code, message, data)
    found.data = data
    return found


def _recognise(code: Json, message: str, data: Json) -> JetError:
    fields = data if isinstance(data, dict) else {}
    if code == -32001 or fields.get("reason") == TIMEOUT_REASON:
        return TimedOut(data)
    if code == -32603 and message in ("", MESSAGES[-32603]) and isinstance(fields.get("reason"), str):
        internal = _recognise_internal(fields["reason"], fields.get("message"))
        if internal is not None:
            return internal
    if code == -32601:
        return UnknownService(data)
    if code == -32602:
        for key, subject in fields.items():
            if key in _LOGIN_KEYS:
                return LoginRefused(user_known=_LOGIN_KEYS[key])
            if key == AlreadyFetching.key:
                return AlreadyFetching()
            if key in _BY_KEY:
                text = fields.get("message")
                return _BY_KEY[key](subject, text if isinstance(text, str) else None)
        if fields.get("name") in _BY_NODE_JET_3_NAME:
            return _BY_NODE_JET_3_NAME[fields["name"]](fields.get("details"))
        if message == MESSAGES[code] and "reason" in fields and fields.keys() <= {"reason", "message"}:
            return Invalid(fields["reason"], fields.get("message"))
    return Refused(message or f"error {code}", data, code=code if isinstance(code, int) else -32603)


def _recognise_internal(reason: str, text: Json) -> JetError | None:
    """Return the exception for an internal error of a daemon; None if it comes from an owner."""
    if reason == OWNER_LOST_REASON:
        return OwnerLost()
    if reason == ROUTES_FULL:
        waiting = "too many requests are waiting for that owner (routing table full); try again later"
        return LimitReached.as_told(reason, reason, waiting)
    limit, _, reached = reason.rpartition(" ")
    if reached == "reached" and isinstance(text, str):
        return LimitReached.as_told(limit, reason, text)
    return Internal(reason) if text is None else None
