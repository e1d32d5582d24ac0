"""``jet version``: the versions of jet and of the daemon."""

from __future__ import annotations

import platform

import jetbus
from jetbus.cli.command import Example, command
from jetbus.cli.output import Output
from jetbus.cli.target import Target
from jetbus.errors import JetError
from jetbus.json_types import JsonObject

COLUMNS = ("jet", "python", "daemon", "daemon_version", "protocol", "url", "problem")


@command(
    examples=[
        Example("jet version", "versions of this program and of the daemon"),
        Example("jet version --output json", "also the features of the daemon"),
    ]
)
def version(bus: Target, form: str | None) -> None:
    """Print the version of this program and, if it is running, of the daemon."""
    record: JsonObject = {"jet": jetbus.__version__, "python": platform.python_version(), "url": bus.shown_url}
    try:
        with bus.connect() as peer:
            daemon = peer.daemon
        record |= {
            "daemon": daemon.get("name", "unknown"),
            "daemon_version": daemon.get("version"),
            "protocol": daemon.get("protocolVersion"),
            "features": daemon.get("features"),
        }
    except JetError as problem:
        # Without a daemon the version of jet is still an answer, so the command succeeds.
        record["problem"] = str(problem)
    columns = [name for name in COLUMNS if name in record]
    Output(columns, form, value="jet").put_all([record])
