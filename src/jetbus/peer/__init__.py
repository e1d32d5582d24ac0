"""Peers: a Python process as owner and client on any Jet bus.

``PeerAsync`` lives on the caller's event loop, ``Peer`` blocks and brings a loop of its own. Both are thin layers with
the same names around one session without I/O. They are imported on first use: a program that needs only the session or
an address does not have to import an event loop.

    aio, blocking     ``PeerAsync`` and ``Peer``;  ``handles`` that they return, ``simple`` for one request
    connection        made, introduced, made again;  ``threads`` of a blocking peer, ``transport``, ``probe``
    peer_session      elements, fetches and all that is received;  ``sending``, requests, batches and ``lengths``
    requests          parameters, results and waiters;  ``callbacks`` of programs
    elements          states and methods of a peer;  ``methods``, types and descriptions of arguments
    subscription      events that a consumer has yet to see;  ``events``, and their notifications
    codec, binary     messages as JSON and as frames;  ``values`` that JSON cannot express, ``compat`` of daemons
    buffering         values kept until they are recorded;  ``buffer``, where they are
    histories         the past, from the daemon's journal;  ``restore`` of earlier values
    address           URLs and logins;  ``arguments`` and ``signatures`` of options
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jetbus.peer.aio import FetchAsync, MethodAsync, MirrorAsync, PeerAsync, SortedAsync, StateAsync
    from jetbus.peer.blocking import Fetch, Method, Mirror, Peer, Sorted, State
    from jetbus.peer.elements import UNCHANGED, Adapted
    from jetbus.peer.events import Event
    from jetbus.peer.requests import SetResult
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
    "Event": "subscription",
    "SetResult": "requests",
}
"""Modules of the names that are neither in ``aio`` nor in ``blocking``."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'jetbus.peer' has no attribute {name!r}")
    module = _MODULES.get(name) or ("aio" if name.endswith("Async") else "blocking")
    return getattr(importlib.import_module(f"jetbus.peer.{module}"), name)
