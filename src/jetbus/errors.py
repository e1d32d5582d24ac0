"""Every error a Jet bus can answer with, named by what the caller can do about it.

    JetError
        ParseError              -32700  what arrived is not JSON
        InvalidRequest          -32600  JSON, but no Jet message
        UnknownService          -32601  no service of that name
        Invalid                 -32602  the service refuses these parameters
            MissingParam                    a parameter is missing
            WrongType                       a parameter has the wrong type
            WrongCount                      too few or too many positional parameters
            EncodingNotSupported            the daemon speaks JSON only
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

The code, message and ``data`` of each are those that existing Jet clients read; ``str(error)`` has the cause and the
next step for a person. Nothing here knows how an error travels.
"""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = [
    "MESSAGES",
    "AlreadyFetching",
    "EncodingNotSupported",
    "FetchIdInUse",
    "FetchIdUnknown",
    "Foreign",
    "Internal",
    "Invalid",
    "InvalidRequest",
    "InvalidRule",
    "JetError",
    "LimitReached",
    "LoginRefused",
    "MissingParam",
    "NotAllowed",
    "NotFound",
    "NotMethod",
    "NotState",
    "Occupied",
    "OwnerLost",
    "ParamError",
    "ParseError",
    "ReadOnly",
    "TimedOut",
    "UnknownService",
    "UserRefused",
    "WrongCount",
    "WrongType",
]

MESSAGES = {
    -32700: "Parse error",
    -32600: "Invalid Request",
    -32601: "Method not found",
    -32602: "Invalid params",
    -32603: "Internal error",
    -32001: "Response Timeout",
}


class JetError(Exception):
    """An error as it is told over the bus: a code, the code's message and data that says more."""

    code: ClassVar[int] = -32603

    def __init__(self, text: str, data: Any = None) -> None:
        super().__init__(text)
        self.data = data

    def wire(self) -> dict[str, Any]:
        """The error object of a response."""
        return {"code": self.code, "message": MESSAGES[self.code], "data": self.data}


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

    def __init__(self, subject: Any, text: str | None = None) -> None:
        self.subject = subject
        super().__init__(text or self.says.format(subject=subject), {self.key: subject})


class ParamError(Invalid):
    """A parameter that is not as it must be; whoever knows the request adds it as ``got``."""

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
    """The daemon speaks JSON only."""

    key = "encodingNotSupported"
    says = "the daemon speaks JSON only, not {subject}"


class InvalidRule(Invalid):
    """A fetch rule is unknown or has a wrong operand."""

    key = "invalidRule"
    says = "{subject} is no fetch rule, or its operand is wrong"


class NotFound(Invalid):
    """Nobody has added that path, or it is hidden."""

    key = "pathNotExists"
    says = "there is no {subject} on the bus; it may not have been added yet, or be hidden from this user"


class Occupied(Invalid):
    """The position in the tree is taken."""

    key = "pathAlreadyExists"
    says = "{subject} cannot be added: a state, method or node is in that place"


class Foreign(Invalid):
    """Somebody else owns that path."""

    key = "foreignPath"
    says = "{subject} belongs to another peer; only its owner may change or remove it"


class NotState(Invalid):
    """A method can be neither set nor changed."""

    key = "pathIsNotState"
    says = "{subject} is a method; call it"


class NotMethod(Invalid):
    """A state cannot be called."""

    key = "pathIsNotMethod"
    says = "{subject} is a state; set or fetch it"


class ReadOnly(Invalid):
    """The owner of the state accepts no set."""

    key = "fetchOnly"
    says = "{subject} is read-only: its owner takes no set"


class NotAllowed(Invalid):
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
        super().__init__("peer shuts down")


class LimitReached(Internal):
    """A configured limit is in the way."""

    def __init__(self, limit: str, allowed: int, what: str) -> None:
        super().__init__(
            f"{limit} reached", f"{what}: the daemon allows {allowed} ({limit}); raise it in the configuration"
        )
        self.limit = limit


class TimedOut(JetError):
    """The owner did not answer in time. C++ peers know it as an internal error, all others by its own code."""

    code = -32001

    def __init__(self, params: Any) -> None:
        super().__init__("the owner did not answer in time", params)

    @staticmethod
    def as_internal() -> Internal:
        error = Internal("timeout for routed request")
        error.data = {"reason": "timeout for routed request"}
        return error
