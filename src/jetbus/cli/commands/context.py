"""``jet context``: named buses with their logins."""

from __future__ import annotations

import re

import click

from jetbus.cli.command import CONTEXT, Example, Family, command
from jetbus.cli.exit_codes import usage_error
from jetbus.cli.output import Output
from jetbus.cli.target import NAME_CHARS_MAX, Contexts, Target, ask_password, read_password

COLUMNS = ("name", "current", "url", "user", "password", "ca")

context = Family("context", help="Manage named buses, for `--context NAME` and `jet context use NAME`.")


@command(
    name="add",
    examples=[
        Example("jet context add plant jet://plant.local", "give a bus a name"),
        Example("jet context add lab jets://lab.local --user ann --password-file pass.txt", "a bus with a login"),
    ],
    bus=False,
)
@click.argument("name")
@click.argument("url")
@click.option("--user", metavar="NAME", help="log in as this user")
@click.option("--password-file", metavar="FILE", help="read the password from FILE, or from stdin if -")
@click.option("--ca", metavar="FILE", help="PEM file of certificates to trust for jets:// and wss://")
def add(form: str | None, name: str, url: str, user: str | None, password_file: str | None, ca: str | None) -> None:
    """Add the context NAME for the bus at URL, or replace it.

    Contexts are stored in a file that only you can read.
    """
    if not re.fullmatch(r"[\w.-]+", name) or len(name) > NAME_CHARS_MAX:
        raise usage_error(f"{name!r} is not a valid name; use letters, digits, _, . and -")
    password = None
    if user is not None:
        password = read_password(password_file) if password_file else ask_password(f"password of {user}: ")
    contexts = Contexts.load()
    # Target refuses a wrong URL, before anything is saved.
    contexts.buses[name] = Target(url, user, password, ca)
    contexts.save()
    _list(contexts, form, name)


@command(
    name="use",
    examples=[
        Example("jet context use plant", "use this bus from now on, unless --url is given"),
        Example("jet context use --none", "use the local bus again"),
    ],
    bus=False,
)
@click.argument("name", required=False, type=CONTEXT)
@click.option("--none", "nothing", is_flag=True, help="use no context")
def use(form: str | None, name: str | None, nothing: bool) -> None:
    """Make NAME the current context, used by commands without --url or --context."""
    contexts = Contexts.load()
    if (name is None) != nothing:
        raise usage_error("no context given; give a name, or --none")
    if name is not None:
        # Fails, with a similar name, for an unknown context.
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
    """List the contexts, without their passwords."""
    _list(Contexts.load(), form)


@command(
    name="rm",
    examples=[
        Example("jet context rm plant", "remove a context and its password"),
        Example("jet context rm plant lab", "remove two"),
    ],
    bus=False,
)
@click.argument("names", nargs=-1, required=True, type=CONTEXT, metavar="NAME...")
def rm(form: str | None, names: tuple[str, ...]) -> None:
    """Remove contexts."""
    contexts = Contexts.load()
    # All names are looked up before the first is removed: either all go or none.
    for name in names:
        contexts[name]
    for name in names:
        contexts.buses.pop(name, None)
        contexts.current = None if contexts.current == name else contexts.current
    contexts.save()
    _list(contexts, form)


def _list(contexts: Contexts, form: str | None, only: str | None = None) -> None:
    with Output(COLUMNS, form, value="name", empty="there are no contexts; `jet context add` creates one") as out:
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
