"""``jet user``: users of a daemon, over the bus (as an admin) or in its users file.

The file is written as jetd writes it: whole or not at all, passwords hashed, closed to others, and never so that jetd
could not read it: where jetd reads it by its group, the group stays. A daemon reads it when it starts,
and again with ``--reload``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path

import click

from jetbus.cli.command import Example, Family, command
from jetbus.cli.doctor_checks import find_users_problem
from jetbus.cli.exit_codes import Code, Failure, find_similar, get_reason, usage_error
from jetbus.cli.output import Output, replace_file
from jetbus.cli.target import LOCAL, Target, ask_password, read_password
from jetbus.errors import JetError, UnknownService
from jetbus.json_types import JsonObject
from jetbus.peer.address import read_url
from jetbus.rules import rule as make_rule

user = Family("user", help="Manage the users of a daemon: over the bus as an admin, or in its users file with --users.")

_users = click.option("--users", "file", metavar="FILE", help="the users file of the daemon instead of the bus")
_reloading = click.option("--reload", is_flag=True, help="with --users: let the daemon read the file again at once")
_new = click.option(
    "--new-password-file", "new_file", metavar="FILE", help="the new password's file, - for stdin; else it is asked for"
)


class UsersFile:
    """Users file that an admin changes on the machine of the daemon."""

    def __init__(self, name: str) -> None:
        self._path = Path(name)
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            data = b'{"users": {}}'  # the first user makes the file
        try:
            self._document: JsonObject = json.loads(data)
            self.users: JsonObject = self._document["users"]
            # Raises AttributeError unless it is an object.
            self.users.items()
        except (ValueError, KeyError, TypeError, AttributeError):
            raise usage_error(f'{name} is no users file; start it with {{"users": {{}}}}') from None

    def entry(self, name: str) -> JsonObject:
        """Return the entry of a user."""
        if name not in self.users:
            meant = find_similar(name, self.users)
            hint = f"did you mean {meant}?" if meant else f"`jet user add {name}` makes one"
            raise Failure(f"there is no user {name} in {self._path}; {hint}", Code.NOT_FOUND)
        found = self.users[name]
        if not isinstance(found, dict):
            raise usage_error(f"{self._path}: the entry of {name} is no object; correct it there")
        return found

    def close(self, groups: JsonObject) -> None:
        """Make the bus of this file a closed one, with these groups and their rules."""
        self._document.update({"default": "closed", "groups": groups})

    def save(self) -> None:
        """Replace the file, if a daemon can read the new one."""
        # Resolved, so that a symbolic link stays one and the file behind it is replaced.
        with replace_file(self._path.resolve(), self._find_mode()) as file:
            self._keep_owner(file)
            file.write_text(json.dumps(self._document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
            # Read as a daemon reads it, before it takes the place of a file that works.
            if flaw := find_users_problem(str(file), str(self._path)):
                raise usage_error(flaw)

    def _find_mode(self) -> int:
        """Return the mode of the new file: 0600, unless the file was given to another group to be read by it."""
        if not self._path.exists():
            return 0o600
        old = self._path.stat()
        return 0o600 if old.st_gid == os.getgid() else 0o600 | old.st_mode & 0o040

    def _keep_owner(self, file: Path) -> None:
        """Give the new file to the owner and group of the old one, as far as that is possible."""
        if self._path.exists():
            old = self._path.stat()
            with contextlib.suppress(PermissionError):
                # The group first: once the file belongs to another user, its group could not be changed any more.
                os.chown(file, -1, old.st_gid)
                os.chown(file, old.st_uid, -1)


def _reload(bus: Target) -> str:
    """Let the daemon of the bus read its users file again; return a sentence about it."""
    address = read_url(bus.url)
    if address.transport != "unix" and address.host not in LOCAL:
        raise Failure(f"{bus.shown_url} is not on this machine; send that daemon SIGHUP there")
    with bus.connect() as peer:
        peer.check_jetbus("read its users again on request")
        pid = peer.get_all(make_rule(equals="$jet/pid"))["$jet/pid"]
    command = Path(f"/proc/{pid}/cmdline")
    try:
        # A daemon in a container has another number there than here, where it may be that of a stranger.
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
        password = ask_password(f"new password of {name}: ", "--new-password-file")
        # It is typed unseen, and a slip would lock the user out.
        if sys.stdin.isatty() and ask_password("the same again: ") != password:
            raise usage_error("the two passwords are not the same; try again")
    if not password:
        raise usage_error("a password must not be empty")
    return password


def _print_change(form: str | None, name: str, done: str) -> None:
    Output(("user", "done"), form, value="user").put_all([{"user": name, "done": done}])


def _print_file_change(bus: Target, form: str | None, name: str, done: str, reload: bool) -> None:
    """Print the change of a users file, and when it takes effect; with ``reload``, make it take effect."""
    then = _reload(bus) if reload else "takes effect when the daemon gets SIGHUP: --reload, or kill -HUP its process"
    Output(("user", "done", "then"), form, value="user").put_all([{"user": name, "done": done, "then": then}])


def _check_reload(reload: bool, file: str | None) -> None:
    if reload and file is None:
        raise usage_error("--reload is for a users file, which --users names; over the bus changes take effect at once")


def _ask(bus: Target, service: str, params: JsonObject) -> None:
    try:
        with bus.connect() as peer:
            peer.check_jetbus("let jet change its users")
            peer.ask(service, params)
    except UnknownService:
        raise Failure(
            f"the daemon at {bus.shown_url} has no service for that; change its users file: --users FILE --reload"
        ) from None
    except JetError as problem:
        reason = get_reason(problem)
        if reason is None:
            raise
        # The daemon has one code for all refusals; only its text tells a lack of rights from a wrong name.
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
    bus: Target,
    form: str | None,
    name: str,
    groups: str,
    admin: bool,
    new_file: str | None,
    file: str | None,
    reload: bool,
) -> None:
    """Add the user NAME.

    Over the bus only admins may do this, and it takes effect at once. A file given by --users takes effect when
    the daemon reads it again: --reload sends it SIGHUP.
    """
    _check_reload(reload, file)
    wanted = [group.strip() for group in groups.split(",") if group.strip()]
    password = _password(new_file, name)
    if file is None:
        if admin:
            raise usage_error("admins are made in the users file only; give --users FILE")
        _ask(bus, "addUser", {"user": name, "password": password, "groups": wanted})
        _print_change(form, name, "added")
    else:
        users = UsersFile(file)
        if name in users.users:
            raise Failure(f"user {name} is in {file} already; `jet user passwd` changes the password")
        lists = dict.fromkeys(("fetchGroups", "setGroups", "callGroups", "addGroups"), wanted)
        users.users[name] = {"password": _hashed(password), **({"admin": True} if admin else {}), "auth": lists}
        users.save()
        _print_file_change(bus, form, name, "added", reload)


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
def passwd(bus: Target, form: str | None, name: str, new_file: str | None, file: str | None, reload: bool) -> None:
    """Change the password of the user NAME: one's own, or anybody's as an admin or with --users.

    Over the bus it takes effect at once; in a file, when the daemon reads it again: --reload sends it SIGHUP.
    """
    _check_reload(reload, file)
    password = _password(new_file, name)
    if file is None:
        _ask(bus, "passwd", {"user": name, "password": password})
        _print_change(form, name, "changed")
    else:
        users = UsersFile(file)
        users.entry(name)["password"] = _hashed(password)
        users.save()
        _print_file_change(bus, form, name, "changed", reload)


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
def rm(bus: Target, form: str | None, name: str, file: str | None, reload: bool) -> None:
    """Remove the user NAME, over the bus as an admin or with --users from the file.

    A file takes effect when the daemon reads it again: --reload sends it SIGHUP. Peers that are logged in as NAME are
    strangers then, and no longer see or change anything that takes a login.
    """
    _check_reload(reload, file)
    if file is None:
        _ask(bus, "removeUser", {"user": name})
        _print_change(form, name, "removed")
        return
    users = UsersFile(file)
    # Fails, with a similar name, for an unknown user.
    users.entry(name)
    del users.users[name]
    users.save()
    _print_file_change(bus, form, name, "removed", reload)


CLOSED_GROUPS: dict[str, JsonObject] = {
    "admin": {action: ["**"] for action in ("add", "fetch", "set", "call")},
    "operators": {action: ["**"] for action in ("fetch", "set", "call")},
    "viewers": {"fetch": ["**"]},
    "owners": {"add": ["{user}/**"], "fetch": ["{user}/**"], "reserve_s": 60},
}
"""The groups of a new users file: paths that they do not name are closed."""


@command(
    name="init",
    bus=False,
    examples=[
        Example("jet user init root --new-password-file pass.txt --users plant.json", "the first user of a closed bus"),
        Example("jet user init ann --new-password-file pass.txt --users lab.json -o value", "the same for a script"),
    ],
)
@click.argument("name")
@_new
@click.option("--users", "file", metavar="FILE", required=True, help="the users file to make")
def init(form: str | None, name: str, new_file: str | None, file: str) -> None:
    """Make a users file for a closed bus, with NAME as its administrator.

    Nobody may do anything on a closed bus that the rules of a group do not allow. The file has the groups admin (may do
    everything), operators (fetch, set and call), viewers (fetch) and owners (add and fetch below their own name; their
    paths are kept for a minute after a lost connection). Change the rules in the file to suit the paths of your bus.
    """
    if Path(file).exists():
        raise Failure(f"{file} is there already; `jet user add` adds users to it")
    users = UsersFile(file)
    users.close(CLOSED_GROUPS)
    lists = {key: ["admin"] for key in ("fetchGroups", "setGroups", "callGroups", "addGroups")}
    users.users[name] = {"password": _hashed(_password(new_file, name)), "admin": True, "auth": lists}
    users.save()
    then = f"start the daemon with --users {file}"
    Output(("user", "done", "then"), form, value="user").put_all([{"user": name, "done": "made", "then": then}])


@command(
    name="ls",
    bus=False,
    examples=[
        Example("jet user ls --users users.json", "all users of a file"),
        Example("jet user ls --users users.json --output value", "their names, for a script"),
    ],
)
@click.option("--users", "file", metavar="FILE", required=True, help="the users file of the daemon")
def ls(form: str | None, file: str) -> None:
    """List the users in the users file: administrators, groups, and how they log in; no passwords.

    The daemon does not list its users over the bus.
    """
    if not Path(file).exists():
        raise Failure(f"there is no file {file}; `jet user init` makes one", Code.NOT_FOUND)
    users = UsersFile(file)
    rows = [_listed(name, users.entry(name)) for name in sorted(users.users)]
    Output(("user", "admin", "groups", "login"), form, value="user").put_all(rows)


def _listed(name: str, entry: JsonObject) -> JsonObject:
    lists = entry.get("auth", {})
    groups = sorted({str(group) for held in lists.values() for group in held})
    logins = {"password": "password", "unix": "Unix socket", "certificates": "certificate"}
    ways = [text for key, text in logins.items() if entry.get(key)]
    return {"user": name, "admin": entry.get("admin") is True, "groups": ", ".join(groups), "login": ", ".join(ways)}


for _one in (init, ls, add, passwd, rm):
    user.add_command(_one)
