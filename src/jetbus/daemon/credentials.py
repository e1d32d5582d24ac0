"""Credentials of peers that need no password: the process behind a Unix socket, the certificate behind TLS."""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import Any, NamedTuple

CERTIFICATE_NAMES = ("DNS:", "email:", "URI:", "CN:")
"""The kinds of names in a client certificate that users can be found by, in the order they count."""

_UCRED = struct.Struct("3i")
_SO_PEERCRED = getattr(socket, "SO_PEERCRED", None)  # Linux has it


class Credentials(NamedTuple):
    """The process at the other end of a Unix socket."""

    pid: int
    uid: int
    gid: int


def peer_credentials(sock: Any) -> Credentials | None:
    """Return the process at the other end of a Unix socket as the kernel reports it; None on systems that do not."""
    if _SO_PEERCRED is None or sock is None or sock.family != socket.AF_UNIX:
        return None
    with contextlib.suppress(OSError):
        return Credentials(*_UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, _SO_PEERCRED, _UCRED.size)))
    return None


def certificate_names(certificate: Any) -> list[str]:
    """Return the names in a verified client certificate, as Python tells it, such as ``DNS:panel.example``.

    >>> certificate_names({"subject": ((("commonName", "panel"),),), "subjectAltName": (("DNS", "panel.example"),)})
    ['DNS:panel.example', 'CN:panel']
    """
    if not certificate:
        return []
    names = [f"{kind}:{value}" for kind, value in certificate.get("subjectAltName", ())]
    names += [f"CN:{value}" for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    return [name for start in CERTIFICATE_NAMES for name in names if name.startswith(start)]
