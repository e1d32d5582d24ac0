"""Jet for Python: a realtime object bus that remembers."""

from typing import TYPE_CHECKING, Any

from jetbus.errors import (
    AlreadyFetching,
    ConnectionLost,
    EncodingNotSupported,
    FetchIdInUse,
    FetchIdUnknown,
    Foreign,
    Internal,
    Invalid,
    InvalidRequest,
    InvalidRule,
    InvalidValue,
    JetError,
    LimitReached,
    LoginRefused,
    MessageTooLong,
    MissingParam,
    NotAllowed,
    NotConnected,
    NotFound,
    NotMethod,
    NotState,
    Occupied,
    OwnerLost,
    ParseError,
    ReadOnly,
    Refused,
    TimedOut,
    TooSlow,
    UnknownService,
    UserRefused,
    ValueRefused,
    WrongCount,
    WrongType,
)
from jetbus.rules import (
    Rule,
    above,
    at_least,
    at_most,
    below,
    equal,
    has_all_of,
    has_one_of,
    is_type,
    not_equal,
    parse_rule,
    rule,
)

if TYPE_CHECKING:
    from jetbus.peer import (
        UNCHANGED,
        Adapted,
        Blob,
        Event,
        Fetch,
        FetchAsync,
        Method,
        MethodAsync,
        Mirror,
        MirrorAsync,
        Peer,
        PeerAsync,
        SetResult,
        Sorted,
        SortedAsync,
        State,
        StateAsync,
    )

    __version__: str

__all__ = [
    "UNCHANGED",
    "Adapted",
    "AlreadyFetching",
    "Blob",
    "ConnectionLost",
    "EncodingNotSupported",
    "Event",
    "Fetch",
    "FetchAsync",
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
    "Method",
    "MethodAsync",
    "Mirror",
    "MirrorAsync",
    "MissingParam",
    "NotAllowed",
    "NotConnected",
    "NotFound",
    "NotMethod",
    "NotState",
    "Occupied",
    "OwnerLost",
    "ParseError",
    "Peer",
    "PeerAsync",
    "ReadOnly",
    "Refused",
    "Rule",
    "SetResult",
    "Sorted",
    "SortedAsync",
    "State",
    "StateAsync",
    "TimedOut",
    "TooSlow",
    "UnknownService",
    "UserRefused",
    "ValueRefused",
    "WrongCount",
    "WrongType",
    "__version__",
    "above",
    "at_least",
    "at_most",
    "below",
    "equal",
    "has_all_of",
    "has_one_of",
    "is_type",
    "not_equal",
    "parse_rule",
    "rule",
]


def __getattr__(name: str) -> Any:
    """Import the peers, or read the version, on first use: the daemon needs neither."""
    if name == "__version__":
        from importlib.metadata import version

        globals()[name] = version("jetbus")
        return globals()[name]
    if name in __all__:
        import jetbus.peer

        return getattr(jetbus.peer, name)
    raise AttributeError(f"module 'jetbus' has no attribute {name!r}")
