"""The users file: who may log in, with which password and groups, and who may change that.

The file has cjet's shape::

    {"users": {"ann": {"password": "...", "admin": true, "readonly": false,
                       "auth": {"fetchGroups": [], "setGroups": [], "callGroups": []}}}}

Only `password` is required. A plain password is replaced by its argon2 hash when the file is read. Everything
here blocks (hashing and disk), so the daemon calls it from a worker thread; what groups allow lives in
`jetbus.bus.access`.

Invariants: the file on disk is always whole, the old one or the new one. A change starts from the file as it
is on disk, so that nothing edited by hand is lost, unknown keys included. Users in memory are one mapping,
replaced as a whole and only after the file is written: a login waits for nobody's change and never sees half
of one. No password ever gets into a log line or an exception.

Errors, by what the caller can do; refusals are bus errors and go to the peer as they are::

    UsersFileError           mend the file
    errors.LoginRefused      log in otherwise
        InvalidUser
        InvalidPassword
    errors.UserRefused
        PasswdRefused        ask somebody who may
        NotAdmin             ask an admin
        UserExists           take another name
        InvalidEntry         give a usable name, password or groups
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import stat
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NoReturn

import argon2
from argon2.exceptions import InvalidHashError, VerificationError, VerifyMismatchError

from jetbus.bus.access import Auth
from jetbus.errors import LoginRefused, UserRefused

__all__ = [
    "FILE_BYTES_MAX",
    "GROUPS_MAX",
    "NAME_CHARS_MAX",
    "PASSWORD_CHARS_MAX",
    "InvalidEntry",
    "InvalidPassword",
    "InvalidUser",
    "NotAdmin",
    "PasswdRefused",
    "UserExists",
    "Users",
    "UsersFileError",
]

FILE_BYTES_MAX: Final = 4 * 1024 * 1024
NAME_CHARS_MAX: Final = 256  # of users and of groups
PASSWORD_CHARS_MAX: Final = 1024
GROUPS_MAX: Final = 32  # per list

_ADMIN_GROUP: Final = "admin"
_GROUP_LISTS: Final = ("fetchGroups", "setGroups", "callGroups")
_HASH_PREFIX: Final = "$argon2"

OWNER_MODE = 0o600
"""The mode of a users file that the daemon has written: neither group nor others may read it."""

_log = logging.getLogger("jetbus.users")


class UsersFileError(Exception):
    """The users file cannot be read, understood or written."""


class InvalidUser(LoginRefused):
    """There is no such user."""

    def __init__(self) -> None:
        super().__init__(user_known=False)


class InvalidPassword(LoginRefused):
    """The user exists, with another password."""

    def __init__(self) -> None:
        super().__init__(user_known=True)


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
        self._users: Mapping[str, _User] = {}

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

    def auth_of(self, name: str) -> Auth | None:
        """What the user may do, or None if there is no such user."""
        user = self._users.get(name)
        return user.auth if user else None

    def authenticate(self, name: str, password: str) -> Auth:
        """What the user may do if the password is right; raise InvalidUser or InvalidPassword."""
        user = self._users.get(name)
        right = self._verify(user.password if user else self._nobodys_hash, password)
        if user is None:
            raise InvalidUser
        if not right:
            raise InvalidPassword
        if self._hasher.check_needs_rehash(user.password):
            self._rehash(user, password)
        return user.auth

    def passwd(self, actor: str | None, name: str, password: str) -> None:
        """Give a user a new password on behalf of `actor`, a user logged in; raise PasswdRefused."""
        if actor is None:
            raise PasswdRefused("non-authenticated peer can't change any passwords")
        with self._changing() as file:
            _check_may_change_password(file.users, actor, name)
            if flaw := _flaw_of_password(password):
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
        """Remove a user on behalf of an admin; raise NotAdmin, or InvalidEntry if there is nobody to remove."""
        with self._changing() as file:
            _check_admin(file.users, actor, "remove users")
            if name not in file.users:
                raise InvalidEntry(f"there is no user {name!r}")
            if name == actor:
                raise InvalidEntry("nobody removes himself; let another admin do it")
            file.remove(name)
        _log.info("user %r removed by %r", name, actor)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[_UsersFile]:
        """The file as it is on disk, to be changed; at the end it is written and its users are in force."""
        with self._lock:
            file = _UsersFile.read(self._path)
            hashed = file.hash_plain_passwords(self._hasher)
            yield file
            file.write()
            self._users = file.users
        if hashed:
            _log.warning("%s had plain passwords, now hashed, of: %s", self._path, ", ".join(map(repr, hashed)))

    def _verify(self, hashed: str, password: str) -> bool:
        """Whether the password is right; an unusable one takes as long as a wrong one."""
        if _flaw_of_password(password):
            hashed, password = self._nobodys_hash, ""
        try:
            return self._hasher.verify(hashed, password)
        except VerifyMismatchError:
            return False
        except (VerificationError, InvalidHashError) as error:
            _log.error("%s: a password hash cannot be verified (%s)", self._path, error)
            return False

    def _rehash(self, user: _User, password: str) -> None:
        """Hash a password that was just found right with today's parameters; the login is good either way."""
        name = user.auth.user
        try:
            with self._changing() as file:
                if name in file.users and file.users[name].password == user.password:
                    file.set_password(name, self._hasher.hash(password))
        except UsersFileError as error:
            _log.warning("password of user %r keeps its old hash: %s", name, error)


# Who may change what.


def _check_may_change_password(users: Mapping[str, _User], actor: str, name: str) -> None:
    if name not in users:
        raise PasswdRefused("user not in password database")
    allowed = not users[name].readonly if actor == name else _is_admin(users, actor)
    if actor not in users or not allowed:
        raise PasswdRefused("user not allowed to change password")


def _check_admin(users: Mapping[str, _User], actor: str | None, what: str) -> None:
    if actor is None or not _is_admin(users, actor):
        raise NotAdmin(f"only admins may {what}")


def _is_admin(users: Mapping[str, _User], name: str) -> bool:
    return name in users and users[name].auth.admin


def _check_new_user(users: Mapping[str, _User], name: str, password: str, groups: Sequence[str]) -> None:
    if flaw := _flaw_of_name(name):
        raise InvalidEntry(f"user name {flaw}")
    if name in users:
        raise UserExists(f"user {name!r} exists already")
    if flaw := _flaw_of_password(password):
        raise InvalidEntry(f"password {flaw}")
    if flaw := _flaw_of_groups(groups if isinstance(groups, str) else list(groups)):
        raise InvalidEntry(f"groups {flaw}")


# What is wrong with a part of an entry, as the end of a sentence; "" if nothing is.


def _flaw_of_text(text: object, chars_max: int) -> str:
    if not isinstance(text, str):
        return "must be a string"
    if not text:
        return "must not be empty"
    if len(text) > chars_max:
        return f"must not be longer than {chars_max} characters"
    return "" if _is_unicode(text) else "must be valid Unicode"


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _flaw_of_name(name: object) -> str:
    return _flaw_of_text(name, NAME_CHARS_MAX)


def _flaw_of_password(password: object) -> str:
    return _flaw_of_text(password, PASSWORD_CHARS_MAX)


def _flaw_of_groups(groups: object) -> str:
    if not isinstance(groups, list):
        return "must be a list of group names"
    if len(groups) > GROUPS_MAX:
        return f"must not be more than {GROUPS_MAX}"
    flaw = next(filter(None, map(_flaw_of_name, groups)), "")
    return flaw and f"must be a list of group names, each of which {flaw}"


def _flaw_of_stored_password(password: object) -> str:
    if flaw := _flaw_of_password(password):
        return flaw
    if not isinstance(password, str) or not password.startswith("$"):
        return ""
    if not password.startswith(_HASH_PREFIX):
        return "is a crypt hash, or a text that starts with $, and cannot be verified"
    return "" if _is_argon2_hash(password) else "is a damaged argon2 hash"


def _is_argon2_hash(text: str) -> bool:
    try:
        argon2.extract_parameters(text)
    except InvalidHashError:
        return False
    return True


# The file.


@dataclass(frozen=True, slots=True)
class _User:
    """One entry of the file, checked."""

    auth: Auth
    password: str  # a hash, once the file is read and its plain passwords are hashed
    readonly: bool


class _UsersFile:
    """What the file says, as the JSON it is and as users; both are changed together."""

    def __init__(self, path: Path, document: dict[str, Any]) -> None:
        self._path = path
        self._document = document
        self._changed = False
        self.users: dict[str, _User] = {name: self._user(name) for name in document["users"]}

    @classmethod
    def read(cls, path: Path) -> _UsersFile:
        document = _document(path)
        if not isinstance(document, dict) or not isinstance(document.get("users"), dict):
            raise UsersFileError(f'{path} has no object "users"; start it with {{"users": {{}}}}')
        return cls(path, document)

    def hash_plain_passwords(self, hasher: argon2.PasswordHasher) -> list[str]:
        """Hash what is not hashed yet, and return whose passwords those were."""
        plain = [name for name, user in self.users.items() if not user.password.startswith(_HASH_PREFIX)]
        for name in plain:
            self.set_password(name, hasher.hash(self.users[name].password))
        return plain

    def set_password(self, name: str, hashed: str) -> None:
        self._document["users"][name]["password"] = hashed
        self.users[name] = replace(self.users[name], password=hashed)
        self._changed = True

    def add(self, name: str, hashed: str, groups: list[str]) -> None:
        self._document["users"][name] = {"password": hashed, "auth": dict.fromkeys(_GROUP_LISTS, groups)}
        self.users[name] = self._user(name)
        self._changed = True

    def remove(self, name: str) -> None:
        del self._document["users"][name]
        del self.users[name]
        self._changed = True

    def write(self) -> None:
        """Replace the file on disk if anything has changed."""
        if not self._changed:
            return
        data = json.dumps(self._document, indent=2, ensure_ascii=False).encode() + b"\n"
        if len(data) > FILE_BYTES_MAX:
            raise UsersFileError(f"{self._path} would grow beyond {FILE_BYTES_MAX} bytes; remove users from it")
        try:
            _replace(self._path.resolve(), data)
        except OSError as error:
            raise UsersFileError(
                f"{self._path} cannot be rewritten ({error.strerror}); let the daemon write to its folder"
            ) from error

    def _user(self, name: str) -> _User:
        entry = self._document["users"][name]
        if flaw := _flaw_of_name(name):
            raise UsersFileError(f"{self._path}: user name {name[:NAME_CHARS_MAX]!r} {flaw}; rename that user")
        if not isinstance(entry, dict):
            self._fail(name, "must be an object", 'give it a "password" and an "auth"')
        if flaw := _flaw_of_stored_password(entry.get("password")):
            self._fail(name, f'"password" {flaw}', "set a plain password, it is hashed when the file is read")
        return _User(self._auth(name, entry), entry["password"], self._flag(name, entry, "readonly"))

    def _auth(self, name: str, entry: dict[str, Any]) -> Auth:
        auth = entry.get("auth", {})
        if not isinstance(auth, dict):
            self._fail(name, '"auth" must be an object', f"give it the lists {', '.join(_GROUP_LISTS)}")
        fetch_groups, set_groups, call_groups = lists = [self._groups(name, auth, key) for key in _GROUP_LISTS]
        admin = self._flag(name, entry, "admin") or all(_ADMIN_GROUP in groups for groups in lists)
        return Auth(name, fetch_groups, set_groups, call_groups, admin)

    def _groups(self, name: str, auth: dict[str, Any], key: str) -> tuple[str, ...]:
        groups = auth.get(key, [])
        if flaw := _flaw_of_groups(groups):
            self._fail(name, f'"{key}" {flaw}', "correct that list")
        return tuple(groups)

    def _flag(self, name: str, entry: dict[str, Any], key: str) -> bool:
        flag = entry.get(key, False)
        if not isinstance(flag, bool):
            self._fail(name, f'"{key}" must be true or false', "correct it")
        return flag

    def _fail(self, name: str, cause: str, next_step: str) -> NoReturn:
        raise UsersFileError(f"{self._path}: user {name!r}: {cause}; {next_step}")


def _document(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            _close_to_others(file.fileno(), path)
            data = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError as error:
        raise UsersFileError(f'{path} does not exist; create it, {{"users": {{}}}} is enough') from error
    except OSError as error:
        raise UsersFileError(f"{path} cannot be read ({error.strerror}); let the daemon read it") from error
    if len(data) > FILE_BYTES_MAX:
        raise UsersFileError(f"{path} has more than {FILE_BYTES_MAX} bytes; remove users from it")
    return _decoded(path, data)


def _close_to_others(descriptor: int, path: Path) -> None:
    """Take the users file away from all users: a hash can be guessed at for as long as one likes.

    Its group stays: where the file is root's, it is by its group that the daemon reads it.
    """
    mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
    if not mode & stat.S_IRWXO:
        return
    try:
        os.fchmod(descriptor, mode & ~stat.S_IRWXO)
        _log.warning("%s was open to other users (mode %04o); now it is closed", path, mode)
    except OSError:
        _log.warning("%s is open to other users (mode %04o); close it with: chmod 600 %s", path, mode, path)


def _decoded(path: Path, data: bytes) -> Any:
    """The JSON value, as long as it can be written back as it was read."""
    try:
        document = json.loads(data.decode("utf-8-sig"), object_pairs_hook=_object, parse_constant=_no_constant)
        json.dumps(document, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise UsersFileError(f"{path} is not valid JSON in UTF-8 ({_cause(error)}); correct it there") from None
    return document


def _cause(error: Exception) -> str:
    """What is wrong with the JSON, without the text around it: that may be a password."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return error.reason if isinstance(error, UnicodeDecodeError | UnicodeEncodeError) else str(error)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"{twice!r} is there twice in one object")
    return made


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _replace(path: Path, data: bytes) -> None:
    """Put a whole new file in place of the old one, or leave the old one as it is."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            _take_owner_and_mode(file.fileno(), path)
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    with contextlib.suppress(OSError):  # the new file is in place; not every file system can sync a folder
        _sync_folder(path.parent)


def _take_owner_and_mode(descriptor: int, path: Path) -> None:
    """Give the new file the old one's owner, if that is possible; nobody else gets in."""
    old = path.stat()
    with contextlib.suppress(PermissionError):
        os.fchown(descriptor, old.st_uid, old.st_gid)
    os.fchmod(descriptor, old.st_mode & OWNER_MODE)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
