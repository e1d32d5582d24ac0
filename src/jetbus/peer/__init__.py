"""Peers: a Python process as owner and client on any Jet bus.

``PeerAsync`` lives on the caller's event loop, ``Peer`` blocks and brings a loop of its own. Both are thin faces with
the same names round one session without I/O. They are loaded when they are first asked for: who needs only the session
or an address needs no event loop.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jetbus.peer.aio import FetchAsync, MethodAsync, MirrorAsync, PeerAsync, SortedAsync, StateAsync
    from jetbus.peer.asking import SetResult
    from jetbus.peer.blocking import Fetch, Method, Mirror, Peer, Sorted, State
    from jetbus.peer.elements import UNCHANGED, Adapted
    from jetbus.peer.fetching import Event
    from jetbus.peer.values import Blob

__all__ = [
    "UNCHANGED",
    "Adapted",
    "Blob",
    "Event",
    "Fetch",
    "FetchAsync",
    "Method",
    "MethodAsync",
    "Mirror",
    "MirrorAsync",
    "Peer",
    "PeerAsync",
    "SetResult",
    "Sorted",
    "SortedAsync",
    "State",
    "StateAsync",
]

_MODULES = {
    "UNCHANGED": "elements",
    "Adapted": "elements",
    "Blob": "values",
    "Event": "fetching",
    "SetResult": "asking",
}
"""Where a name lives; the names of the faces are in ``aio`` and ``blocking``."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'jetbus.peer' has no attribute {name!r}")
    module = _MODULES.get(name) or ("aio" if name.endswith("Async") else "blocking")
    return getattr(importlib.import_module(f"jetbus.peer.{module}"), name)
