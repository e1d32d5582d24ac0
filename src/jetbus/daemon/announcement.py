"""Announcing the daemon by mDNS, so that `jet find` and others find it without knowing its address.

The service is ``_jet._tcp``. Its port is that of TCP; its text has the other ports, whether they speak TLS, and the
version. A daemon that listens on loopback only is announced on loopback only. zeroconf answers in a thread of its own:
whatever strangers ask by multicast, the daemon's loop does not see it.
"""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING, Any

import jetbus
from jetbus.daemon.config import Config, ConfigError
from jetbus.discovery import NEEDS_ZEROCONF, SERVICE

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger("jetbus.daemon")

LOOPBACK = ("127.0.0.1", "::1")
USUAL_PORT = "11122"


class Announcement:
    """The announcement of one daemon; ``start`` and ``stop`` block, so they belong into a thread."""

    def __init__(self, config: Config, listening: Mapping[str, str]) -> None:
        try:
            import zeroconf
        except ModuleNotFoundError:
            raise ConfigError(f"cannot announce the daemon: {NEEDS_ZEROCONF}") from None
        ports = {kind: listening[kind].rpartition(":") for kind in ("tcp", "ws", "binary") if kind in listening}
        if "tcp" not in ports:
            raise ConfigError("announce needs tcp, which is off")
        host, _, port = ports["tcp"]
        self._is_local = host.strip("[]") in LOOPBACK
        # With the port where it is not the usual one, so that the daemons of one machine have different names.
        host_name = socket.gethostname().partition(".")[0]
        name = config.announce or (host_name if port == USUAL_PORT else f"{host_name} {port}")
        text = {"version": jetbus.__version__, "tls": str(int(config.tls_cert is not None))}
        text |= {kind: port for kind, (_, _, port) in ports.items() if kind != "tcp"}
        self._zeroconf: Any = None
        self._service = zeroconf.ServiceInfo(
            SERVICE,
            f"{name[:63]}.{SERVICE}",
            port=int(port),
            parsed_addresses=["127.0.0.1"] if self._is_local else _list_addresses(host),
            properties=text,
            server=f"{host_name}.local.",
        )

    def start(self) -> None:
        """Announce the daemon, under another name if the name is taken."""
        import zeroconf

        interfaces = ["127.0.0.1"] if self._is_local else zeroconf.InterfaceChoice.All
        try:
            self._zeroconf = zeroconf.Zeroconf(interfaces=interfaces)
            self._zeroconf.register_service(self._service, allow_name_change=True)
        except (OSError, zeroconf.Error) as problem:
            log.error("the daemon is not announced: %s; is there a network that knows multicast?", problem)
            return
        log.info("announced as %s", self._service.name.removesuffix(f".{SERVICE}"))

    def stop(self) -> None:
        """Withdraw the announcement."""
        if self._zeroconf is not None:
            self._zeroconf.close()
            self._zeroconf = None


def _list_addresses(host: str) -> list[str]:
    """Return the addresses at which others reach the daemon."""
    plain = host.strip("[]")
    if plain not in ("", "::", "0.0.0.0"):  # noqa: S104 - compared, not bound
        return [plain]
    from zeroconf import get_all_addresses  # type: ignore[attr-defined]

    return [address for address in get_all_addresses() if not address.startswith("127.")]
