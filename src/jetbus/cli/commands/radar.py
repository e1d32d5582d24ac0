"""``jet radar``: the bus in a browser."""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path

import click

from jetbus.cli.command import DURATION, Example, command
from jetbus.cli.exit_codes import usage_error
from jetbus.cli.output import Output
from jetbus.cli.target import Target

DEFAULT = "localhost:11128"


@command(
    examples=[
        Example("jet radar --listen localhost:0 --for 1s", "at a free port, for a second; it prints the address"),
        Example("jet radar --journal log --listen localhost:0 --for 1s", "with the history of a journal"),
    ]
)
@click.option("--listen", default=DEFAULT, metavar="HOST:PORT", help=f"where to serve the page (default {DEFAULT})")
@click.option("--journal", type=click.Path(path_type=Path), metavar="DIR", help="a journal; else the daemon's own")
@click.option("--origin", "origins", multiple=True, metavar="URL", help="another page that may connect; repeatable")
@click.option("--boards", type=click.Path(path_type=Path), metavar="DIR", help="board files that everybody may open")
@click.option("--base", default="", metavar="PATH", help="path that a proxy puts before all addresses and passes on")
@click.option("--tls-cert", type=click.Path(path_type=Path), metavar="FILE", help="PEM certificates: serve by HTTPS")
@click.option("--tls-key", type=click.Path(path_type=Path), metavar="FILE", help="PEM key, if not in the same file")
@click.option(
    "--connections",
    type=click.IntRange(min=1),
    metavar="N",
    help="connections of one address, tabs included (default 200); more behind a proxy",
)
@click.option("--no-open", is_flag=True, help="do not open a browser")
@click.option("--for", "for_s", type=DURATION, metavar="DURATION", help="end after this time, such as 10s")
def radar(
    bus: Target,
    form: str | None,
    listen: str,
    journal: Path | None,
    origins: tuple[str, ...],
    boards: Path | None,
    base: str,
    tls_cert: Path | None,
    tls_key: Path | None,
    connections: int | None,
    no_open: bool,
    for_s: float | None,
) -> None:
    """Show the bus in a browser: the tree, values, history and the past, until Ctrl-C or the end of --for.

    It works with every Jet daemon. History comes from the daemon's journal, or from the one in --journal. The page is
    for this machine only, unless --listen names another address: everybody who can open it can do what you can do.
    """
    host, port = _read_listen(listen)
    try:
        from jetbus.journal import JournalError
        from jetbus.radar import RadarSettings
        from jetbus.radar.limits import CONNECTIONS_PER_ADDRESS
        from jetbus.radar.server import CertificateError, ServerSettings, serve
    except ModuleNotFoundError as missing:
        raise usage_error(f"Radar needs {missing.name}; install it with pip install 'jetbus[radar]'") from None

    def tell(address: str) -> None:
        with Output(("address",), form, stream=True, value="address") as out:
            out.put({"address": address})
        # A script or a service does not need a browser.
        if not no_open and sys.stdout.isatty():
            webbrowser.open(address)

    try:
        settings = RadarSettings(bus.url, bus.get_login(), journal, origins, boards, base)
        server = ServerSettings(tls_cert, tls_key, connections or CONNECTIONS_PER_ADDRESS)
        serve(settings, host, port, server=server, on_ready=tell, for_s=for_s)
    except JournalError as problem:
        raise usage_error(str(problem)) from None
    except CertificateError as problem:
        raise usage_error(str(problem)) from None
    except OSError as problem:
        raise usage_error(f"cannot serve at {listen} ({problem.strerror or problem}); give another --listen") from None


def _read_listen(text: str) -> tuple[str, int]:
    # From the right, since an IPv6 address has colons itself.
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535:
        raise usage_error(f"{text} is not HOST:PORT; write it as localhost:8080")
    return host.strip("[]") or "localhost", int(port)
