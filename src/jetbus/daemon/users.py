"""The users file: users with their passwords and groups, rights of groups by path, and rights to change users.

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

Invariants: the file on disk is always whole, the old one or the new one. A change starts from the file as it
is on disk, so that nothing edited by hand is lost, unknown keys included. Users in memory are one mapping,
replaced as a whole and only after the file is written: a login does not wait for a change and never sees half
of one. No password ever gets into a log line or an exception.

Errors, by what the caller can do; refusals are bus errors and go to the peer as they are::

    UsersFileError           mend the file
    errors.LoginRefused      log in otherwise; it does not tell whether the user exists
    errors.UserRefused
        PasswdRefused        ask an admin, or a user of `passwdGroups`
        NotAdmin             ask an admin
        UserExists           take another name
        InvalidEntry         give a usable name, password or groups
"""

from __future__ import annotations

import contextlib
import grp
import json
import logging
import os
import pwd
import secrets
import stat
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NoReturn

try:
    import argon2
except ModuleNotFoundError as missing:
    message = "the daemon needs argon2-cffi; install it with: pip install 'jetbus[daemon]'"
    raise ModuleNotFoundError(message, name="argon2") from missing
from argon2.exceptions import InvalidHashError, VerificationError, VerifyMismatchError

from jetbus.bus.access import Auth
from jetbus.bus.rights import ACTIONS, PathRule, PathRules, read_path_rule
from jetbus.daemon.credentials import CERTIFICATE_NAMES, Credentials
from jetbus.errors import LoginRefused, UserRefused

__all__ = [
    "FILE_BYTES_MAX",
    "GROUPS_MAX",
    "NAME_CHARS_MAX",
    "PASSWORD_CHARS_MAX",
    "PATH_RULES_MAX",
    "InvalidEntry",
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
PATH_RULES_MAX: Final = 1000  # of all groups together; each is tested once for every element that is added
PATH_RULE_CHARS_MAX: Final = 4096
RESERVE_S_MAX: Final = 86_400.0
CREDENTIALS_MAX: Final = 100  # per list

Credential = tuple[str, int | str]
_SYSTEM_IDS: Final[Mapping[str, tuple[str, Callable[[str], int]]]] = {
    "users": ("uid", lambda name: pwd.getpwnam(name).pw_uid),
    "groups": ("gid", lambda name: grp.getgrnam(name).gr_gid),
}

_ADMIN_GROUP: Final = "admin"
_GROUP_LISTS: Final = ("fetchGroups", "setGroups", "callGroups")
_HASH_PREFIX: Final = "$argon2"

OWNER_MODE = 0o600
"""The mode of a users file that the daemon has written: neither group nor others may read it."""

_log = logging.getLogger("jetbus.users")


class UsersFileError(Exception):
    """The users file cannot be read, understood or written."""


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
    def _changing(self) -> Iterator[_UsersFile]:
        """Yield the file as it is on disk, to be changed; then write it and put its users in force."""
        with self._lock:
            # Read again under the lock: the file may have been edited, or changed by another thread.
            file = _UsersFile.read(self._path)
            hashed = file.hash_plain_passwords(self._hasher)
            yield file
            file.write()
            self._users, self._path_rules, self._by_credential = file.users, file.path_rules, file.by_credential
        if hashed:
            _log.warning("%s had plain passwords, now hashed, of: %s", self._path, ", ".join(map(repr, hashed)))

    def _verify(self, hashed: str, password: str) -> bool:
        """Return True if the password is right; an unusable one takes as long as a wrong one."""
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
                # Only if the password is still the one that was checked.
                if name in file.users and file.users[name].password == user.password:
                    file.set_password(name, self._hasher.hash(password))
        except UsersFileError as error:
            _log.warning("password of user %r keeps its old hash: %s", name, error)


# Rights to change users.


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


# Faults of a part of an entry, each as the end of a sentence; "" if the part is valid.


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
    password: str  # a hash, once the file is read and its plain passwords are hashed; empty for none
    readonly: bool


class _UsersFile:
    """Content of the file, as JSON and as users; both are changed together."""

    def __init__(self, path: Path, document: dict[str, Any]) -> None:
        self._path = path
        self._document = document
        self._changed = False
        self.users: dict[str, _User] = {name: self._user(name) for name in document["users"]}
        self.path_rules = self._read_path_rules()
        self.by_credential = self._read_credentials()

    @classmethod
    def read(cls, path: Path) -> _UsersFile:
        document = _document(path)
        if not isinstance(document, dict) or not isinstance(document.get("users"), dict):
            raise UsersFileError(f'{path} has no object "users"; start it with {{"users": {{}}}}')
        return cls(path, document)

    def hash_plain_passwords(self, hasher: argon2.PasswordHasher) -> list[str]:
        """Hash the passwords that are still plain text, and return the names of their users."""
        plain = [
            name for name, user in self.users.items() if user.password and not user.password.startswith(_HASH_PREFIX)
        ]
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
            # The file behind a symbolic link, so that the link stays.
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
        needs_password = "password" in entry or not (entry.get("unix") or entry.get("certificates"))
        if needs_password and (flaw := _flaw_of_stored_password(entry.get("password"))):
            self._fail(name, f'"password" {flaw}', "set a plain password, it is hashed when the file is read")
        return _User(self._auth(name, entry), entry.get("password", ""), self._flag(name, entry, "readonly"))

    def _auth(self, name: str, entry: dict[str, Any]) -> Auth:
        auth = entry.get("auth", {})
        if not isinstance(auth, dict):
            self._fail(name, '"auth" must be an object', f"give it the lists {', '.join(_GROUP_LISTS)}")
        fetch_groups, set_groups, call_groups = lists = [self._groups(name, auth, key) for key in _GROUP_LISTS]
        admin = self._flag(name, entry, "admin") or all(_ADMIN_GROUP in groups for groups in lists)
        if "addGroups" in auth:
            add_groups = self._groups(name, auth, "addGroups")
        else:
            add_groups = tuple(group for group in fetch_groups if group in set_groups and group in call_groups)
        return Auth(name, fetch_groups, set_groups, call_groups, admin, add_groups)

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

    # Logins without a password.

    def _read_credentials(self) -> dict[Credential, str]:
        found: dict[Credential, str] = {}
        for name, entry in self._document["users"].items():
            for credential in (*self._read_unix(name, entry), *self._read_certificates(name, entry)):
                other = found.setdefault(credential, name)
                if other != name:
                    kind, value = credential
                    self._fail(name, f"{kind} {value} is {other!r} already", "take it from one of the two")
        return found

    def _read_unix(self, name: str, entry: dict[str, Any]) -> Iterator[Credential]:
        unix = entry.get("unix", {})
        if not isinstance(unix, dict) or unix.keys() - _SYSTEM_IDS.keys():
            self._fail(name, '"unix" must be an object with the lists users and groups', "correct it")
        for key, (kind, find) in _SYSTEM_IDS.items():
            for given in self._credentials(name, unix.get(key, []), f'"unix" {key}', int | str):
                try:
                    yield kind, find(given) if isinstance(given, str) else given
                except KeyError:
                    self._fail(name, f"the system has none of its {key} called {given!r}", "give its number instead")

    def _read_certificates(self, name: str, entry: dict[str, Any]) -> Iterator[Credential]:
        for given in self._credentials(name, entry.get("certificates", []), '"certificates"', str):
            if not str(given).startswith(CERTIFICATE_NAMES):
                kinds = ", ".join(CERTIFICATE_NAMES)
                self._fail(name, f'"certificates": {given!r} must begin with one of {kinds}', "such as CN:panel")
            yield "certificate", given

    def _credentials(self, name: str, given: Any, what: str, kind: Any) -> list[Any]:
        right = isinstance(given, list) and len(given) <= CREDENTIALS_MAX
        if not right or not all(isinstance(one, kind) and not isinstance(one, bool) for one in given):
            self._fail(name, f"{what} must be a list of at most {CREDENTIALS_MAX}", "correct it")
        return list(given)

    # Rights by path.

    def _read_path_rules(self) -> PathRules | None:
        default, groups = self._document.get("default", "open"), self._document.get("groups", {})
        if default not in ("open", "closed"):
            raise UsersFileError(f'{self._path}: "default" must be "open" or "closed"; correct it')
        if not isinstance(groups, dict):
            raise UsersFileError(f'{self._path}: "groups" must be an object with the rules of each group; correct it')
        rules = [rule for name, group in groups.items() for rule in self._read_group(name, group)]
        if len(rules) > PATH_RULES_MAX:
            raise UsersFileError(f'{self._path}: "groups" have more than {PATH_RULES_MAX} rules; use wider globs')
        return PathRules(rules, closed=default == "closed") if rules or default == "closed" else None

    def _read_group(self, name: str, group: Any) -> Iterator[PathRule]:
        if flaw := _flaw_of_name(name):
            self._fail_group(name[:NAME_CHARS_MAX], f"its name {flaw}")
        if not isinstance(group, dict):
            self._fail_group(name, "it must be an object with lists of globs")
        if unknown := group.keys() - {*ACTIONS, "reserve_s"}:
            self._fail_group(name, f"{min(unknown)!r} is unknown; it has {', '.join(ACTIONS)} and reserve_s")
        reserve_s = group.get("reserve_s", 0)
        if isinstance(reserve_s, bool) or not isinstance(reserve_s, int | float) or not 0 <= reserve_s <= RESERVE_S_MAX:
            self._fail_group(name, f'"reserve_s" must be a number of seconds, at most {RESERVE_S_MAX:.0f}')
        for action in ACTIONS:
            globs = group.get(action, [])
            if not isinstance(globs, list) or len(globs) > PATH_RULES_MAX:
                self._fail_group(name, f'"{action}" must be a list of at most {PATH_RULES_MAX} globs')
            for glob in globs:
                if flaw := _flaw_of_text(glob, PATH_RULE_CHARS_MAX):
                    self._fail_group(name, f'"{action}" must be a list of globs, each of which {flaw}')
                try:
                    yield read_path_rule(action, name, glob, reserve_s)
                except ValueError as problem:
                    self._fail_group(name, f'"{action}": {glob!r} cannot be used: {problem}')

    def _fail_group(self, name: str, cause: str) -> NoReturn:
        raise UsersFileError(f"{self._path}: group {name!r}: {cause}; correct it")

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
    """Remove the access of other users of the system, since they could try to break the hashes.

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
    """Return the document; raise if it could not be written back as it was read."""
    try:
        document = json.loads(data.decode("utf-8-sig"), object_pairs_hook=_object, parse_constant=_no_constant)
        # A document that could not be written back would be lost with the next change of a password.
        json.dumps(document, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise UsersFileError(f"{path} is not valid JSON in UTF-8 ({_cause(error)}); correct it there") from None
    return document


def _cause(error: Exception) -> str:
    """Describe the fault of the JSON, without the text around it, which may be a password."""
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
    raise ValueError(f"{name} is not a JSON number")


def _replace(path: Path, data: bytes) -> None:
    """Put a whole new file in place of the old one, or leave the old one as it is."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            _take_owner_and_mode(file.fileno(), path)
            # On disk before it gets its name: after a crash there is the old file or the new one, never an empty one.
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    with contextlib.suppress(OSError):  # the new file is in place; not every file system can sync a folder
        _sync_folder(path.parent)


def _take_owner_and_mode(descriptor: int, path: Path) -> None:
    """Give the new file the old one's owner, if that is possible; other users get no access."""
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
