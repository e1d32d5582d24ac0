"""``jet user``: users of a daemon, over the bus (as an admin) or in its users file.

The file is written as jetd writes it: whole or not at all, passwords hashed, closed to others, and never so that jetd
could not read it: where jetd reads it by its group, the group stays. A daemon reads it when it starts and when it is
told to: ``--reload`` tells it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import click

from jetbus.cli.buses import LOCAL, Bus, ask_password, read_password
from jetbus.cli.failures import Code, Failure, near, reason_of, usage
from jetbus.cli.files import replacing
from jetbus.cli.frame import Example, Family, command
from jetbus.cli.machine import flaw_of_users
from jetbus.cli.output import Output
from jetbus.errors import JetError, UnknownService
from jetbus.peer.address import read_url
from jetbus.rules import rule as make_rule

user = Family("user", help="Users of a daemon: over the bus as an admin, or in its users file with --users.")

_users = click.option("--users", "file", metavar="FILE", help="the users file of the daemon instead of the bus")
_reloading = click.option("--reload", is_flag=True, help="with --users: let the daemon read the file again at once")
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
        found = self.users[name]
        if not isinstance(found, dict):
            raise usage(f"{self._path}: the entry of {name} is no object; correct it there")
        return found

    def save(self) -> None:
        """Replace the file, if a daemon can read the new one."""
        mode = self._path.stat().st_mode & 0o660 if self._path.exists() else 0o600
        with replacing(self._path.resolve(), mode) as file:
            file.write_text(json.dumps(self._document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
            if flaw := flaw_of_users(str(file), str(self._path)):
                raise usage(flaw)


def _reload(bus: Bus) -> str:
    """Let the daemon of the bus read its users file again; gives what was done."""
    address = read_url(bus.url)
    if address.transport != "unix" and address.host not in LOCAL:
        raise Failure(f"{bus.shown_url} is not on this machine; send that daemon SIGHUP there")
    with bus.quick() as peer:
        peer.check_ours("read its users again on request")
        pid = peer.get(make_rule(equals="$jet/pid"))["$jet/pid"]
    command = Path(f"/proc/{pid}/cmdline")
    try:
        if command.parent.parent.exists() and b"jet" not in command.read_bytes():
            raise ProcessLookupError
        os.kill(pid, signal.SIGHUP)
    except (ProcessLookupError, FileNotFoundError):
        raise Failure(f"the daemon says it is process {pid}, but not of this machine; send it SIGHUP there") from None
    except PermissionError:
        raise Failure(f"process {pid} is not yours; let its user do that: kill -HUP {pid}", Code.NOT_ALLOWED) from None
    return f"the daemon, process {pid}, reads it again"


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


def _tell_of_file(bus: Bus, form: str | None, name: str, done: str, reload: bool) -> None:
    """What was done in a file, and what becomes of that."""
    then = _reload(bus) if reload else "in force when the daemon gets SIGHUP: --reload, or kill -HUP its process"
    Output(("user", "done", "then"), form, value="user").put_all([{"user": name, "done": done, "then": then}])


def _check_reload(reload: bool, file: str | None) -> None:
    if reload and file is None:
        raise usage("--reload is about a users file, give it with --users; over the bus all is in force at once")


def _ask(bus: Bus, service: str, params: dict[str, Any]) -> None:
    try:
        with bus.quick() as peer:
            peer.check_ours("let jet change its users")
            peer.ask(service, params)
    except UnknownService:
        raise Failure(
            f"the daemon at {bus.shown_url} has no service for that; change its users file: --users FILE --reload"
        ) from None
    except JetError as problem:
        reason = reason_of(problem)
        if reason is None:
            raise
        if not any(word in reason for word in ("admin", "allowed", "authenticated")):
            raise Failure(reason) from None
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
@_reloading
def add(
    bus: Bus,
    form: str | None,
    name: str,
    groups: str,
    admin: bool,
    new_file: str | None,
    file: str | None,
    reload: bool,
) -> None:
    """Add the user NAME.

    Over the bus only admins may, and it is in force at once. With --users the file is changed, which is in force when
    the daemon reads it again: --reload sends it SIGHUP.
    """
    _check_reload(reload, file)
    wanted = [group.strip() for group in groups.split(",") if group.strip()]
    password = _password(new_file, name)
    if file is None:
        if admin:
            raise usage("admins are made in the users file only; give --users FILE")
        _ask(bus, "addUser", {"user": name, "password": password, "groups": wanted})
        _tell(form, name, "added")
    else:
        users = UsersFile(file)
        if name in users.users:
            raise Failure(f"user {name} is in {file} already; `jet user passwd` changes the password")
        lists = dict.fromkeys(("fetchGroups", "setGroups", "callGroups"), wanted)
        users.users[name] = {"password": _hashed(password), **({"admin": True} if admin else {}), "auth": lists}
        users.save()
        _tell_of_file(bus, form, name, "added", reload)


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
@_reloading
def passwd(bus: Bus, form: str | None, name: str, new_file: str | None, file: str | None, reload: bool) -> None:
    """Change the password of the user NAME: one's own, or anybody's as an admin or with --users.

    Over the bus it is in force at once; in a file when the daemon reads that again: --reload sends it SIGHUP.
    """
    _check_reload(reload, file)
    password = _password(new_file, name)
    if file is None:
        _ask(bus, "passwd", {"user": name, "password": password})
        _tell(form, name, "changed")
    else:
        users = UsersFile(file)
        users.entry(name)["password"] = _hashed(password)
        users.save()
        _tell_of_file(bus, form, name, "changed", reload)


@command(
    name="rm",
    examples=[
        Example("jet user rm bob --users users.json", "out of the users file"),
        Example(
            "jet user rm bob --users users.json --reload --user ann --password-file ann.txt",
            "and the daemon reads it again",
        ),
    ],
)
@click.argument("name")
@_users
@_reloading
def rm(bus: Bus, form: str | None, name: str, file: str | None, reload: bool) -> None:
    """Remove the user NAME, over the bus as an admin or with --users from the file.

    A file is in force when the daemon reads it again: --reload sends it SIGHUP. Who is logged in stays so until the
    connection ends; `jet kick` ends it.
    """
    _check_reload(reload, file)
    if file is None:
        _ask(bus, "removeUser", {"user": name})
        _tell(form, name, "removed")
        return
    users = UsersFile(file)
    users.entry(name)
    del users.users[name]
    users.save()
    _tell_of_file(bus, form, name, "removed", reload)


for _one in (add, passwd, rm):
    user.add_command(_one)
