"""The users of the users file: their passwords and groups, rights of groups by path, and rights to change users.

The file has cjet's shape, and may have more::

    {"users": {"ann": {"password": "...", "admin": true, "readonly": false,
                       "auth": {"fetchGroups": [], "setGroups": [], "callGroups": [], "addGroups": []}}},
     "groups": {"staff": {"add": ["plant/{user}/**"], "fetch": ["**"], "set": [], "call": [], "reserve_s": 60}},
     "default": "closed"}

A user has a `password`, or logs in without one: `unix` names users and groups of the system, and their processes are
that user on a Unix socket, `certificates` the names in client certificates (`CN:`, `DNS:`, `email:`, `URI:`). A plain
password is replaced by its argon2 hash when the file is read. A user has the rules of a group for an action if the
group is in the list of that action; without `addGroups` those of the groups that are in all three other lists.
Everything here blocks (hashing and disk), so the daemon calls it from a worker thread; the meaning of groups and
rules is in `jetbus.bus.access` and `jetbus.bus.rights`.

Invariants: a change starts from the file as it is on disk (``users_file``), so that nothing edited by hand is lost.
Users in memory are one mapping, replaced as a whole and only after the file is written: a login does not wait for a
change and never sees half of one. No password ever gets into a log line or an exception.

Errors, by what the caller can do; refusals are bus errors and go to the peer as they are::

    UsersFileError           mend the file
    errors.LoginRefused      log in otherwise; it does not tell whether the user exists
    errors.UserRefused
        PasswdRefused        ask an admin
        NotAdmin             ask an admin
        UserExists           take another name
        InvalidEntry         give a usable name, password or groups
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

try:
    import argon2
except ModuleNotFoundError as missing:
    message = "the daemon needs argon2-cffi; install it with: pip install 'jetbus[daemon]'"
    raise ModuleNotFoundError(message, name="argon2") from missing
from argon2.exceptions import InvalidHashError, VerificationError, VerifyMismatchError

from jetbus.bus.access import Auth
from jetbus.bus.rights import PathRules
from jetbus.daemon.credentials import Credentials
from jetbus.daemon.users_file import (
    Credential,
    UserEntry,
    UsersDocument,
    UsersFileError,
    flaw_of_groups,
    flaw_of_name,
    flaw_of_password,
)
from jetbus.errors import LoginRefused, UserRefused

__all__ = ["InvalidEntry", "NotAdmin", "PasswdRefused", "UserExists", "Users", "UsersFileError"]

_log = logging.getLogger("jetbus.users")


class PasswdRefused(UserRefused):
    """The password may not be changed; in cjet's words where cjet has some."""


class NotAdmin(UserRefused):
    """Only admins may do that."""


class UserExists(UserRefused):
    """There is a user of that name already."""


class InvalidEntry(UserRefused):
    """A name, password or list of groups that no user can have."""


class Users:
    """The users of one file; safe to use from several threads.

    >>> users = Users.load("users.json")                    # doctest: +SKIP
    >>> users.authenticate("ann", "secret").fetch_groups    # doctest: +SKIP
    ('operators',)
    """

    def __init__(self, path: Path, hasher: argon2.PasswordHasher) -> None:
        self._path = path
        self._hasher = hasher
        self._lock = threading.Lock()  # held by whoever changes the file
        self._nobodys_hash = hasher.hash(secrets.token_hex())
        self._users: Mapping[str, UserEntry] = {}
        self._path_rules: PathRules | None = None
        self._by_credential: Mapping[Credential, str] = {}

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, hasher: argon2.PasswordHasher | None = None) -> Users:
        """Read the file, hash its plain passwords; raise UsersFileError if that is not possible."""
        users = cls(Path(path), hasher or argon2.PasswordHasher())
        users.reload()
        return users

    def reload(self) -> None:
        """Read the file again; on UsersFileError the users stay as they were."""
        with self._changing():
            pass

    @property
    def path_rules(self) -> PathRules | None:
        """Rights by path; None if the file has neither `groups` nor a `default` of closed."""
        return self._path_rules

    def auth_of(self, name: str) -> Auth | None:
        """Return the rights of a user, or None if the user does not exist."""
        user = self._users.get(name)
        return user.auth if user else None

    def auth_of_process(self, credentials: Credentials) -> Auth | None:
        """Return the rights of a process on a Unix socket without a password: by its user, or else by its group."""
        by_name = self._by_credential
        name = by_name.get(("uid", credentials.uid)) or by_name.get(("gid", credentials.gid))
        return self.auth_of(name) if name is not None else None

    def auth_of_certificate(self, names: Iterable[str]) -> Auth | None:
        """Return the rights of a verified certificate with these names; the first known name counts."""
        for name in names:
            user = self._by_credential.get(("certificate", name))
            if user is not None:
                return self.auth_of(user)
        return None

    def authenticate(self, name: str, password: str) -> Auth:
        """Return the rights of the user if the password is right; raise LoginRefused otherwise.

        An unknown user gets the same answer as a wrong password, after the same work: a hash is verified in any case.
        """
        user = self._users.get(name)
        # The time of an answer must not tell which users exist.
        right = self._verify((user.password if user else "") or self._nobodys_hash, password)
        if user is None or not right:
            raise LoginRefused
        # The only moment at which the plain password is at hand.
        if user.password and self._hasher.check_needs_rehash(user.password):
            self._rehash(user, password)
        return user.auth

    def passwd(self, actor: str | None, name: str, password: str) -> None:
        """Give a user a new password on behalf of `actor`, a user logged in; raise PasswdRefused."""
        if actor is None:
            raise PasswdRefused("non-authenticated peer can't change any passwords")
        with self._changing() as file:
            _check_may_change_password(file.users, actor, name)
            if flaw := flaw_of_password(password):
                raise PasswdRefused(f"password {flaw}")
            file.set_password(name, self._hasher.hash(password))
        _log.info("password of user %r changed by %r", name, actor)

    def add_user(self, actor: str | None, name: str, password: str, groups: Sequence[str]) -> None:
        """Add a user with these groups for fetch, set and call; raise NotAdmin, UserExists, InvalidEntry."""
        with self._changing() as file:
            _check_admin(file.users, actor, "add users")
            _check_new_user(file.users, name, password, groups)
            file.add(name, self._hasher.hash(password), list(groups))
        _log.info("user %r added by %r", name, actor)

    def remove_user(self, actor: str | None, name: str) -> None:
        """Remove a user on behalf of an admin; raise NotAdmin, or InvalidEntry if the user does not exist."""
        with self._changing() as file:
            _check_admin(file.users, actor, "remove users")
            if name not in file.users:
                raise InvalidEntry(f"there is no user {name!r}")
            if name == actor:
                raise InvalidEntry("nobody removes himself; let another admin do it")
            file.remove(name)
        _log.info("user %r removed by %r", name, actor)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[UsersDocument]:
        """Yield the file as it is on disk, to be changed; then write it and put its users in force."""
        with self._lock:
            # Read again under the lock: the file may have been edited, or changed by another thread.
            file = UsersDocument.read(self._path)
            hashed = file.hash_plain_passwords(self._hasher)
            yield file
            file.write()
            self._users, self._path_rules, self._by_credential = file.users, file.path_rules, file.by_credential
        if hashed:
            _log.warning("%s had plain passwords, now hashed, of: %s", self._path, ", ".join(map(repr, hashed)))

    def _verify(self, hashed: str, password: str) -> bool:
        """Return True if the password is right; an unusable one takes as long as a wrong one."""
        if flaw_of_password(password):
            hashed, password = self._nobodys_hash, ""
        try:
            return self._hasher.verify(hashed, password)
        except VerifyMismatchError:
            return False
        except (VerificationError, InvalidHashError) as error:
            _log.error("%s: a password hash cannot be verified (%s)", self._path, error)
            return False

    def _rehash(self, user: UserEntry, password: str) -> None:
        """Hash a password that was just found right with today's parameters; the login is good either way."""
        name = user.auth.user
        try:
            with self._changing() as file:
                # Only if the password is still the one that was checked.
                if name in file.users and file.users[name].password == user.password:
                    file.set_password(name, self._hasher.hash(password))
        except UsersFileError as error:
            _log.warning("password of user %r keeps its old hash: %s", name, error)


# Rights to change users.


def _check_may_change_password(users: Mapping[str, UserEntry], actor: str, name: str) -> None:
    if name not in users:
        raise PasswdRefused("user not in password database")
    allowed = not users[name].readonly if actor == name else _is_admin(users, actor)
    if actor not in users or not allowed:
        raise PasswdRefused("user not allowed to change password")


def _check_admin(users: Mapping[str, UserEntry], actor: str | None, what: str) -> None:
    if actor is None or not _is_admin(users, actor):
        raise NotAdmin(f"only admins may {what}")


def _is_admin(users: Mapping[str, UserEntry], name: str) -> bool:
    return name in users and users[name].auth.admin


def _check_new_user(users: Mapping[str, UserEntry], name: str, password: str, groups: Sequence[str]) -> None:
    if flaw := flaw_of_name(name):
        raise InvalidEntry(f"user name {flaw}")
    if name in users:
        raise UserExists(f"user {name!r} exists already")
    if flaw := flaw_of_password(password):
        raise InvalidEntry(f"password {flaw}")
    if flaw := flaw_of_groups(groups if isinstance(groups, str) else list(groups)):
        raise InvalidEntry(f"groups {flaw}")
