"""``jet daemon``: runs jetd."""

from __future__ import annotations

import click

from jetbus.cli.frame import Example, command


@command(
    examples=[
        Example("jet daemon --tcp localhost:0", "at a free port; it prints which"),
        Example("jet daemon --users users.json --tcp localhost:0", "with users and passwords"),
    ],
    bus=False,
    output=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
@click.argument("settings", nargs=-1, type=click.UNPROCESSED)
def daemon(settings: tuple[str, ...]) -> None:
    """Run a daemon until Ctrl-C. It takes all SETTINGS of jetd; `jetd --help` lists them.

    When it listens it prints one line that says where.
    """
    from jetbus.daemon.main import main

    main([word for word in settings if word != "--debug"])
