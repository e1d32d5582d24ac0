"""Peers: a Python process as owner and client on any Jet bus.

``PeerAsync`` lives on the caller's event loop, ``Peer`` blocks and brings a loop of its own. Both are thin faces with
the same names round one session without I/O.
"""

from jetbus.peer.aio import FetchAsync, MethodAsync, MirrorAsync, PeerAsync, SortedAsync, StateAsync
from jetbus.peer.blocking import Fetch, Method, Mirror, Peer, Sorted, State
from jetbus.peer.elements import UNCHANGED, Adapted
from jetbus.peer.fetching import Event
from jetbus.peer.session import SetResult
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
