"""``jet version``: which jet this is, and which daemon is there."""

from __future__ import annotations

import platform
from typing import Any

import jetbus
from jetbus.cli.buses import Bus
from jetbus.cli.frame import Example, command
from jetbus.cli.output import Output
from jetbus.errors import JetError

COLUMNS = ("jet", "python", "daemon", "daemon_version", "protocol", "url", "problem")


@command(
    examples=[
        Example("jet version", "this program and the daemon"),
        Example("jet version --output json", "with the features of the daemon"),
    ]
)
def version(bus: Bus, form: str | None) -> None:
    """The version of this program, and what the daemon says of itself if there is one."""
    told: dict[str, Any] = {"jet": jetbus.__version__, "python": platform.python_version(), "url": bus.shown_url}
    try:
        with bus.quick() as peer:
            daemon = peer.daemon
        told |= {
            "daemon": daemon.get("name", "unknown"),
            "daemon_version": daemon.get("version"),
            "protocol": daemon.get("protocolVersion"),
            "features": daemon.get("features"),
        }
    except JetError as problem:
        told["problem"] = str(problem)
    columns = [name for name in COLUMNS if name in told]
    Output(columns, form, value="jet").put_all([told])
