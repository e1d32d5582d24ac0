"""``jet find``: daemons that announce themselves in the network."""

from __future__ import annotations

import click

from jetbus.cli.command import DURATION, Example, command
from jetbus.cli.output import Output


@command(
    examples=[
        Example("jet find", "name, address and version of each daemon"),
        Example("jet find --for 500ms --output value", "addresses, for a script"),
    ],
    bus=False,
)
@click.option("--for", "for_s", type=DURATION, default="2s", metavar="DURATION", help="how long to listen; default: 2s")
@click.option("--interface", metavar="ADDRESS", help="only on the network interface with this address")
def find(form: str | None, for_s: float, interface: str | None) -> None:
    """List the daemons in this network that were started with `jetd --announce`.

    Anybody in the network can announce a daemon; nobody has checked the names.
    """
    from jetbus.discovery import find_daemons

    with Output(("name", "url", "version"), form, value="url", empty="no daemon was announced") as out:
        out.put_all(daemon._asdict() for daemon in find_daemons(for_s, interface))
