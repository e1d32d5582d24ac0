"""``jet bridge``: another bus mounted into this one."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import click

from jetbus.cli.buses import Bus
from jetbus.cli.failures import usage
from jetbus.cli.frame import DURATION, Example, command, named_bus
from jetbus.cli.output import Output
from jetbus.cli.rules import read_one
from jetbus.cli.streams import complaining, now, stopped_by_term

if TYPE_CHECKING:
    from jetbus.bridge import Status

COLUMNS = ("at", "status", "mounted", "blocked")


@command(
    examples=[
        Example("jet bridge $FAR_URL --prefix plant2 --for 1s", "the bus at FAR_URL below plant2/, for a second"),
        Example("jet bridge $FAR_URL --prefix tanks --rule 'plant/tank/*' --wait --for 1s", "a part of it"),
    ]
)
@click.argument("far", metavar="URL|CONTEXT")
@click.option("--prefix", required=True, metavar="P", help="where it is mounted: below P/")
@click.option("--rule", metavar="RULE", help="only what matches")
@click.option("--wait", is_flag=True, help="wait for daemons that are not there yet")
@click.option("--far-user", metavar="NAME", help="log in there as this user")
@click.option("--far-password-file", metavar="FILE", help="that user's password, - for stdin; else it is asked for")
@click.option("--for", "for_s", type=DURATION, metavar="DURATION", help="end after this time, such as 10s")
def bridge(
    bus: Bus,
    form: str | None,
    far: str,
    prefix: str,
    rule: str | None,
    wait: bool,
    far_user: str | None,
    far_password_file: str | None,
    for_s: float | None,
) -> None:
    """Mount the bus at URL into this one, below P/, until Ctrl-C, SIGTERM or the end of --for.

    States, methods, set and call go through. When the other bus is lost, what is of it leaves this one until it is
    back. Loops of bridges are recognised. It works with every daemon, and prints what happens to the connections.
    """
    if rule is not None:
        read_one(rule)
    from jetbus.bridge.areas import read_prefix

    try:
        read_prefix(prefix)
    except ValueError as problem:
        raise usage(str(problem)) from None
    there = named_bus(far, user=far_user, password_file=far_password_file)
    from jetbus.bridge import run_bridge

    with Output(COLUMNS, form, stream=True, value="status") as out, stopped_by_term() as stop:
        timer = None if for_s is None else threading.Timer(for_s, stop.set)
        complaining()
        try:
            run_bridge(
                there.url,
                bus.url,
                prefix=prefix,
                rule=rule,
                wait=wait,
                stop=stop,
                name="jet bridge",
                on_status=lambda status: _tell(out, status, timer),
                **_logins(there, bus),
            )
        finally:
            if timer is not None:
                timer.cancel()


def _tell(out: Output, status: Status, timer: threading.Timer | None) -> None:
    if status.phase.name == "STOPPED":
        return  # that is not news: it was asked for, or an error tells why
    told = {"at": now(), "status": status.phase.value, "mounted": status.mounted}
    out.put({**told, "blocked": status.blocked} if status.blocked else told)
    if timer is not None and status.phase.name == "MOUNTED" and not timer.is_alive() and not timer.finished.is_set():
        timer.start()  # the time counts from when all is mounted


def _logins(far: Bus, near: Bus) -> dict[str, Any]:
    return {
        f"{side}_{name}": value for side, bus in (("far", far), ("near", near)) for name, value in bus.login().items()
    }
