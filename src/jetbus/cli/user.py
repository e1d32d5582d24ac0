"""``jet user``: users of a daemon, over the bus (as an admin) or in its users file.

The file is written as jetd writes it: whole or not at all, passwords hashed, with the mode it had.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from jetbus.cli.buses import Bus, ask_password, read_password
from jetbus.cli.failures import Code, Failure, near, reason_of, usage
from jetbus.cli.frame import Example, Family, command
from jetbus.cli.output import Output
from jetbus.errors import JetError, UnknownService

user = Family("user", help="Users of a daemon: over the bus as an admin, or in its users file with --users.")

_users = click.option("--users", "file", metavar="FILE", help="the users file of the daemon instead of the bus")
_new = click.option(
    "--new-password-file", "new_file", metavar="FILE", help="the new password's file, - for stdin; else it is asked for"
)


class UsersFile:
    """The users file, to be changed by hand of an admin."""

    def __init__(self, name: str) -> None:
        self._path = Path(name)
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            data = b'{"users": {}}'
        try:
            self._document: dict[str, Any] = json.loads(data)
            self.users: dict[str, Any] = self._document["users"]
            self.users.items()
        except (ValueError, KeyError, TypeError, AttributeError):
            raise usage(f'{name} is no users file; start it with {{"users": {{}}}}') from None

    def entry(self, name: str) -> dict[str, Any]:
        """The entry of a user."""
        if name not in self.users:
            meant = near(name, self.users)
            hint = f"did you mean {meant}?" if meant else f"`jet user add {name}` makes one"
            raise Failure(f"there is no user {name} in {self._path}; {hint}", Code.NOT_FOUND)
        found: dict[str, Any] = self.users[name]
        return found

    def save(self) -> None:
        """Replace the file."""
        mode = self._path.stat().st_mode & 0o777 if self._path.exists() else 0o600
        descriptor, temporary = tempfile.mkstemp(dir=self._path.resolve().parent, prefix=".users.")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(self._document, file, indent=2, ensure_ascii=False)
            file.write("\n")
            os.fchmod(descriptor, mode)
        Path(temporary).replace(self._path.resolve())


def _hashed(password: str) -> str:
    import argon2

    return argon2.PasswordHasher().hash(password)


def _password(file: str | None, name: str) -> str:
    if file is not None:
        password = read_password(file)
    else:
        password = ask_password(f"new password of {name}: ")
        if sys.stdin.isatty() and ask_password("the same again: ") != password:
            raise usage("the two passwords are not the same; try again")
    if not password:
        raise usage("a password must not be empty")
    return password


def _tell(form: str | None, name: str, done: str) -> None:
    Output(("user", "done"), form, value="user").put_all([{"user": name, "done": done}])


def _ask(bus: Bus, service: str, params: dict[str, Any]) -> None:
    try:
        with bus.quick() as peer:
            peer.check_ours("let jet change its users")
            peer.ask(service, params)
    except UnknownService:
        raise Failure(
            f"the daemon at {bus.shown_url} cannot do that over the bus; change its users file with --users"
        ) from None
    except JetError as problem:
        reason = reason_of(problem)
        if reason is None:
            raise
        raise Failure(f"{reason}; admins may do more, log in as one with --user", Code.NOT_ALLOWED) from None


@command(
    name="add",
    examples=[
        Example("jet user add joe --groups staff --new-password-file pass.txt --users users.json", "in the users file"),
        Example(
            "jet user add eve --user ann --password-file ann.txt --new-password-file pass.txt", "over the bus, as ann"
        ),
    ],
)
@click.argument("name")
@click.option("--groups", metavar="NAME,...", default="", help="groups for fetch, set and call")
@click.option("--admin", is_flag=True, help="with --users: may add users and change passwords")
@_new
@_users
def add(
    bus: Bus, form: str | None, name: str, groups: str, admin: bool, new_file: str | None, file: str | None
) -> None:
    """Add the user NAME.

    Over the bus only admins may. With --users the file is changed; send the daemon SIGHUP afterwards.
    """
    wanted = [group.strip() for group in groups.split(",") if group.strip()]
    password = _password(new_file, name)
    if file is None:
        if admin:
            raise usage("admins are made in the users file only; give --users FILE")
        _ask(bus, "addUser", {"user": name, "password": password, "groups": wanted})
    else:
        users = UsersFile(file)
        if name in users.users:
            raise Failure(f"user {name} is in {file} already; `jet user passwd` changes the password")
        lists = dict.fromkeys(("fetchGroups", "setGroups", "callGroups"), wanted)
        users.users[name] = {"password": _hashed(password), **({"admin": True} if admin else {}), "auth": lists}
        users.save()
    _tell(form, name, "added")


@command(
    name="passwd",
    examples=[
        Example("jet user passwd ann --user ann --password-file ann.txt --new-password-file ann.txt", "one's own"),
        Example("jet user passwd bob --new-password-file pass.txt --users users.json", "in the users file"),
    ],
)
@click.argument("name")
@_new
@_users
def passwd(bus: Bus, form: str | None, name: str, new_file: str | None, file: str | None) -> None:
    """Change the password of the user NAME: one's own, or anybody's as an admin or with --users."""
    password = _password(new_file, name)
    if file is None:
        _ask(bus, "passwd", {"user": name, "password": password})
    else:
        users = UsersFile(file)
        users.entry(name)["password"] = _hashed(password)
        users.save()
    _tell(form, name, "changed")


@command(
    name="rm",
    examples=[
        Example("jet user rm bob --users users.json", "out of the users file"),
        Example("jet user rm bob --users users.json --output value", "the same, for a script"),
    ],
)
@click.argument("name")
@_users
def rm(bus: Bus, form: str | None, name: str, file: str | None) -> None:
    """Remove the user NAME from the users file; send the daemon SIGHUP afterwards.

    The bus has no service for that. Who is logged in stays so until the connection ends.
    """
    if file is None:
        raise Failure(f"{bus.shown_url} has no service to remove a user; give its users file with --users FILE")
    users = UsersFile(file)
    users.entry(name)
    del users.users[name]
    users.save()
    _tell(form, name, "removed")


for _one in (add, passwd, rm):
    user.add_command(_one)
