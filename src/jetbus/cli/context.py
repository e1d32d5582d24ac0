"""``jet context``: buses with names."""

from __future__ import annotations

import re

import click

from jetbus.cli.buses import NAME_CHARS_MAX, Bus, Contexts, ask_password, read_password
from jetbus.cli.failures import usage
from jetbus.cli.frame import CONTEXT, Example, Family, command
from jetbus.cli.output import Output

COLUMNS = ("name", "current", "url", "user", "password", "ca")

context = Family("context", help="Named buses with credentials, for `--context NAME` and `jet context use NAME`.")


@command(
    name="add",
    examples=[
        Example("jet context add plant jet://plant.local", "a bus with a name"),
        Example("jet context add lab jets://lab.local --user ann --password-file pass.txt", "and with a login"),
    ],
    bus=False,
)
@click.argument("name")
@click.argument("url")
@click.option("--user", metavar="NAME", help="log in as this user")
@click.option("--password-file", metavar="FILE", help="the password's file, - for stdin; else it is asked for")
@click.option("--ca", metavar="FILE", help="PEM certificates to trust with jets:// and wss://")
def add(form: str | None, name: str, url: str, user: str | None, password_file: str | None, ca: str | None) -> None:
    """Call the bus at URL by NAME from now on; an older one of that name is replaced.

    Contexts are kept in a file that only you may read.
    """
    if not re.fullmatch(r"[\w.-]+", name) or len(name) > NAME_CHARS_MAX:
        raise usage(f"{name!r} is no name for a context; take letters, digits, _, . and -")
    password = None
    if user is not None:
        password = read_password(password_file) if password_file else ask_password(f"password of {user}: ")
    contexts = Contexts.load()
    contexts.buses[name] = Bus(url, user, password, ca)
    contexts.save()
    _list(contexts, form, name)


@command(
    name="use",
    examples=[
        Example("jet context use plant", "commands without --url are about this bus from now on"),
        Example("jet context use --none", "about the local bus again"),
    ],
    bus=False,
)
@click.argument("name", required=False, type=CONTEXT)
@click.option("--none", "nothing", is_flag=True, help="use no context")
def use(form: str | None, name: str | None, nothing: bool) -> None:
    """Take the context NAME wherever no other bus is named."""
    contexts = Contexts.load()
    if (name is None) != nothing:
        raise usage("use which context? Give its name, or --none")
    if name is not None:
        contexts[name]
    contexts.current = name
    contexts.save()
    _list(contexts, form)


@command(
    name="ls",
    examples=[
        Example("jet context ls", "all contexts, without passwords"),
        Example("jet context ls --output csv", "the same for a spreadsheet"),
    ],
    bus=False,
)
def ls(form: str | None) -> None:
    """List the contexts. Passwords are not shown."""
    _list(Contexts.load(), form)


@command(
    name="rm",
    examples=[
        Example("jet context rm plant", "forget a bus and its password"),
        Example("jet context rm plant lab", "forget two"),
    ],
    bus=False,
)
@click.argument("names", nargs=-1, required=True, type=CONTEXT, metavar="NAME...")
def rm(form: str | None, names: tuple[str, ...]) -> None:
    """Forget contexts."""
    contexts = Contexts.load()
    for name in names:
        contexts[name]
    for name in names:
        contexts.buses.pop(name, None)
        contexts.current = None if contexts.current == name else contexts.current
    contexts.save()
    _list(contexts, form)


def _list(contexts: Contexts, form: str | None, only: str | None = None) -> None:
    with Output(COLUMNS, form, value="name", empty="there are no contexts; `jet context add` makes one") as out:
        for name, bus in contexts.buses.items():
            if only is None or name == only:
                out.put(
                    {
                        "name": name,
                        "current": name == contexts.current,
                        "url": bus.shown_url,
                        "user": bus.user,
                        "password": None if bus.password is None else "***",
                        "ca": bus.ca,
                    }
                )


for _one in (add, use, ls, rm):
    context.add_command(_one)
