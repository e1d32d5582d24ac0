"""Every error a Jet bus can answer with, named by what the caller can do about it.

    JetError
        ParseError              -32700  what arrived is not JSON
        InvalidRequest          -32600  JSON, but no Jet message
        UnknownService          -32601  no service of that name
        Invalid                 -32602  the service refuses these parameters
            MissingParam                    a parameter is missing
            WrongType                       a parameter has the wrong type
            WrongCount                      too few or too many positional parameters
            EncodingNotSupported            not the encoding of this connection
            InvalidRule                     a fetch rule is unknown or has a wrong operand
            NotFound                        nobody has added that path
            Occupied                        the position in the tree is taken
            Foreign                         somebody else owns that path
            NotState                        set or change of a method
            NotMethod                       call of a state
            ReadOnly                        its owner accepts no set
            NotAllowed                      the user lacks the group for it
            LoginRefused                    wrong user or password
            AlreadyFetching                 authenticate must come before the first fetch
            FetchIdInUse                    this peer has a fetch of that id
            FetchIdUnknown                  this peer has no fetch of that id
            UserRefused                     a password or user may not be changed so
        Internal                -32603  the bus could not do it
            OwnerLost                       the owner went away before it answered
            LimitReached                    a configured limit is in the way
        TimedOut                -32001  the owner did not answer in time
        Refused                 any     the owner, or a foreign daemon, refused with a code of its own
        NotConnected                    there is no connection to a daemon
            ConnectionLost                  it broke before the answer came; whether the request was done is unknown
                MessageTooLong                  it broke because of the length of a message
        InvalidValue                    a value does not fit the type that was asked for
        TooSlow                         a fetch that must see every event was not read in time

The code, message and ``data`` of each are those that existing Jet clients read; ``str(error)`` has the cause and the
next step for a person. ``from_wire`` reads them again, also in the words of other daemons. Nothing here knows how an
error travels.
"""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = [
    "MESSAGES",
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
    "TimedOut",
    "TooSlow",
    "UnknownService",
    "UserRefused",
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
"""Reasons that tell these two from other internal errors; clients read them."""
NOT_POSSIBLE = "set/call on element not possible"
"""cjet's one key for the set of a method and the call of a state."""
ROUTES_FULL = "routing table full"
"""cjet's reason when too many requests wait for one owner."""


class JetError(Exception):
    """An error as it is told over the bus: a code, the code's message and data that says more."""

    code: ClassVar[int] = -32603

    def __init__(self, text: str, data: Any = None) -> None:
        super().__init__(text)
        self.data = data

    def wire(self) -> dict[str, Any]:
        """The error object of a response."""
        return {"code": self.code, "message": MESSAGES[self.code], "data": self.data}

    @property
    def path(self) -> str | None:
        """The path it is about, where it is about one."""
        return None


class ParseError(JetError):
    """What arrived is not JSON."""

    code = -32700

    def __init__(self, text: str) -> None:
        super().__init__(f"not JSON: {text!r}", text)


class InvalidRequest(JetError):
    """JSON, but no request, notification or response."""

    code = -32600

    def __init__(self, message: Any, text: str = "not a Jet request, notification or response") -> None:
        super().__init__(text, message)


class UnknownService(JetError):
    """The daemon has no service of that name."""

    code = -32601

    def __init__(self, name: Any) -> None:
        super().__init__(f"the daemon has no service {name!r}", name)


class Invalid(JetError):
    """Refused parameters. ``key`` is the one key of ``data`` by which clients tell the cases apart."""

    code = -32602
    key: ClassVar[str] = "reason"
    says: ClassVar[str] = "{subject}"
    """What a person is told, when the one who raises it has nothing better to say."""
    explains: ClassVar[bool] = True
    """Whether ``data`` may have a message as well; some clients compare it as a whole."""

    def __init__(self, subject: Any, text: str | None = None) -> None:
        self.subject = subject
        super().__init__(text or self.says.format(subject=subject), {self.key: subject})
        if text is not None and self.explains:
            self.data["message"] = text


class PathError(Invalid):
    """Refused because of what is, or is not, at a path."""

    explains = False

    @property
    def path(self) -> str | None:
        return self.subject if isinstance(self.subject, str) else None


class ParamError(Invalid):
    """A parameter that is not as it must be; whoever knows the request adds it as ``got``."""

    explains = False

    def got(self, params: Any) -> ParamError:
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
    says = "positional parameters are {subject} here"


class EncodingNotSupported(Invalid):
    """An encoding that is not the one of this connection."""

    key = "encodingNotSupported"
    says = "{subject} cannot be chosen on this connection; JSON and binary have ports of their own"


class InvalidRule(Invalid):
    """A fetch rule is unknown or has a wrong operand."""

    key = "invalidRule"
    says = "{subject} is no fetch rule, or its operand is wrong"


class NotFound(PathError):
    """Nobody has added that path, or it is hidden."""

    key = "pathNotExists"
    says = "there is no {subject} on the bus; it may not have been added yet, or be hidden from this user"


class Occupied(PathError):
    """The position in the tree is taken."""

    key = "pathAlreadyExists"
    says = "{subject} cannot be added: a state, method or node is in that place"


class Foreign(PathError):
    """Somebody else owns that path."""

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
    """The owner of the state accepts no set."""

    key = "fetchOnly"
    says = "{subject} is read-only: its owner takes no set"


class NotAllowed(PathError):
    """The user lacks the group for it."""

    key = "noAccess"
    says = "{subject} is not open to this user; authenticate as one who has the group"


class LoginRefused(Invalid):
    """Wrong user or wrong password; ``key`` says which, as clients of node-jet expect it."""

    def __init__(self, *, user_known: bool) -> None:
        super().__init__(True, "wrong password" if user_known else "no such user")
        self.data = {"invalidPassword" if user_known else "invalidUser": True}


class AlreadyFetching(Invalid):
    """Authenticate must come before the first fetch."""

    key = "alreadyFetching"
    explains = False

    def __init__(self) -> None:
        super().__init__(True, "authenticate before the first fetch: what a fetch may see is decided when it starts")


class FetchIdInUse(Invalid):
    """This peer has a fetch of that id."""

    key = "fetchIdAlreadyExists"
    says = "there is a fetch {subject} already; unfetch it or choose another id"


class FetchIdUnknown(Invalid):
    """This peer has no fetch of that id."""

    key = "fetchIdNotExists"
    says = "there is no fetch {subject}"


class UserRefused(Invalid):
    """A password or user may not be changed so."""

    key = "reason"


class Internal(JetError):
    """``data`` is always an object with ``reason`` and ``message``: node-jet 1 and 2 fail on anything else."""

    code = -32603

    def __init__(self, reason: str, text: str | None = None) -> None:
        super().__init__(text or reason, {"reason": reason, "message": text or reason})


class OwnerLost(Internal):
    """The owner went away before it answered."""

    def __init__(self) -> None:
        super().__init__(OWNER_LOST_REASON)


class LimitReached(Internal):
    """A configured limit is in the way."""

    def __init__(self, limit: str, allowed: int, what: str) -> None:
        super().__init__(
            f"{limit} reached", f"{what}: the daemon allows {allowed} ({limit}); raise it in the configuration"
        )
        self.limit = limit

    @classmethod
    def as_told(cls, limit: str, reason: str, text: str) -> LimitReached:
        """The error as a daemon has told it, which need not say how much it allows."""
        error = cls.__new__(cls)
        Internal.__init__(error, reason, text)
        error.limit = limit
        return error


class TimedOut(JetError):
    """The owner did not answer in time."""

    code = -32001

    def __init__(self, params: Any, text: str = "the owner did not answer in time") -> None:
        super().__init__(text, params)

    @property
    def path(self) -> str | None:
        return self.data.get("path") if isinstance(self.data, dict) else None

    @staticmethod
    def as_internal() -> Internal:
        """The same as C++ peers know it: an internal error with a reason."""
        error = Internal(TIMEOUT_REASON)
        error.data = {"reason": TIMEOUT_REASON}
        return error


class Refused(JetError):
    """The owner of a state or method said no, in its own words. Raise it from ``on_set`` or a method to say so."""

    def __init__(self, message: str, data: Any = None, *, code: int = -32602) -> None:
        detail = _detail(data)
        super().__init__(f"{message}: {detail}" if detail and detail not in message else message, data)
        self.message = message
        self.own_code = code

    def wire(self) -> dict[str, Any]:
        told = {"code": self.own_code, "message": self.message}
        return told if self.data is None else {**told, "data": self.data}


def _detail(data: Any) -> str:
    """The sentence for people that many owners put into ``data``."""
    if isinstance(data, dict):
        invalid = data.get("invalidArgument")
        data = (invalid if isinstance(invalid, dict) else data).get("message")
    return data if isinstance(data, str) else ""


class NotConnected(JetError):
    """There is no connection to a daemon."""


class ConnectionLost(NotConnected):
    """The connection broke before the answer came: the request may have been done or not."""


class MessageTooLong(ConnectionLost):
    """A message is longer than the daemon takes: it closes the connection on it, without a word."""

    def __init__(self, path: str, size: int) -> None:
        text = (
            f"{path or 'a request'}: the daemon closes the connection on a message of {size} bytes;"
            " send less at a time, or raise the daemon's limit"
        )
        super().__init__(text, {"reason": "message too long", "message": text})
        self._path = path

    @property
    def path(self) -> str | None:
        return self._path or None


class InvalidValue(JetError):
    """A value does not fit the type that was asked for, or cannot be read; the text names the field or the reason."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self._path = path

    @property
    def path(self) -> str | None:
        return self._path


class TooSlow(JetError):
    """A fetch that must see every event was not read in time; it has ended."""


def _by_key() -> dict[str, type[Invalid]]:
    """Which error a key of ``data`` stands for, in our words and in those of cjet and of 2012."""
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


def from_wire(error: Any, *, of_call: bool = False) -> JetError:
    """The error in a response, as the exception to raise; what is not known by its code and data is ``Refused``.

    What cjet says of a set and of a call differs only in what was asked.
    """
    told = error if isinstance(error, dict) else {"message": str(error)}
    code, message, data = told.get("code", -32603), str(told.get("message", "")), told.get("data")
    if of_call and isinstance(data, dict) and NOT_POSSIBLE in data:
        found: JetError = NotMethod(data[NOT_POSSIBLE])
    else:
        found = _recognise(code, message, data)
    found.data = data
    return found


def _recognise(code: Any, message: str, data: Any) -> JetError:
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
                return _BY_KEY[key](subject)
        if fields.get("name") in _BY_NODE_JET_3_NAME:
            return _BY_NODE_JET_3_NAME[fields["name"]](fields.get("details"))
        if message == MESSAGES[code] and "reason" in fields and fields.keys() <= {"reason", "message"}:
            return Invalid(fields["reason"], fields.get("message"))
    return Refused(message or f"error {code}", data, code=code if isinstance(code, int) else -32603)


def _recognise_internal(reason: str, text: Any) -> JetError | None:
    """An internal error of a daemon; those of owners have a text of their own."""
    if reason == OWNER_LOST_REASON:
        return OwnerLost()
    if reason == ROUTES_FULL:
        waiting = "too many requests wait for that owner (routing table full); ask again when some are answered"
        return LimitReached.as_told(reason, reason, waiting)
    limit, _, reached = reason.rpartition(" ")
    if reached == "reached" and isinstance(text, str):
        return LimitReached.as_told(limit, reason, text)
    return Internal(reason) if text is None else None
