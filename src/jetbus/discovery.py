"""Finding daemons that announce themselves by mDNS (``jetd --announce``)."""

from __future__ import annotations

import time
from typing import NamedTuple

from jetbus.errors import JetError

SERVICE = "_jet._tcp.local."
FOUND_MAX = 1000
"""Daemons that one search returns, at most: anybody in the network can announce some."""
ASK_MS = 1000
NEEDS_ZEROCONF = "zeroconf is not installed; install it with: pip install 'jetbus[announce]'"


class FoundDaemon(NamedTuple):
    """A daemon as it announces itself; that has not been checked."""

    name: str
    url: str
    version: str


def find_daemons(within_s: float, interface: str | None = None) -> list[FoundDaemon]:
    """Listen for so long and return the daemons that were announced, by name.

    ``interface`` is the address of the one interface to use, by default all.
    """
    try:
        import zeroconf
    except ModuleNotFoundError:
        raise JetError(f"cannot look for daemons: {NEEDS_ZEROCONF}") from None
    names: set[str] = set()

    def note(name: str, state_change: object, **_more: object) -> None:
        if state_change is not zeroconf.ServiceStateChange.Removed and len(names) < FOUND_MAX:
            names.add(name)

    try:
        found = zeroconf.Zeroconf(interfaces=zeroconf.InterfaceChoice.All if interface is None else [interface])
    except OSError as problem:
        raise JetError(f"cannot look for daemons: {problem}; is there a network that knows multicast?") from None
    with found:
        # Answers by multicast: one to a port reaches only one of the programs of a machine that share it.
        by_multicast = zeroconf.DNSQuestionType.QM
        zeroconf.ServiceBrowser(found, SERVICE, handlers=[note], question_type=by_multicast)
        time.sleep(within_s)
        daemons = [_read(found.get_service_info(SERVICE, name, ASK_MS, by_multicast)) for name in sorted(names)]
    return [daemon for daemon in daemons if daemon is not None]


def _read(service: object) -> FoundDaemon | None:
    """Return a service as a daemon; None if it does not say where it is."""
    addresses = [] if service is None else service.parsed_addresses()  # type: ignore[attr-defined]
    if not addresses:
        return None
    text = service.decoded_properties  # type: ignore[attr-defined]
    scheme = "jets" if text.get("tls") == "1" else "jet"
    host = f"[{addresses[0]}]" if ":" in addresses[0] else addresses[0]
    name = str(service.name).removesuffix(f".{SERVICE}")  # type: ignore[attr-defined]
    return FoundDaemon(name, f"{scheme}://{host}:{service.port}", str(text.get("version") or ""))  # type: ignore[attr-defined]
