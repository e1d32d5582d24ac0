"""The users file on disk: reading and checking its JSON, changing it, and replacing it as a whole.

``users`` explains the format and decides who may log in; this module only reads and writes.

Invariants: the file on disk is always whole, the old one or the new one, and readable by its owner only. Keys that this
module does not know are kept. No password ever gets into an exception.
"""

from __future__ import annotations

import contextlib
import grp
import json
import logging
import os
import pwd
import stat
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NoReturn

import argon2
from argon2.exceptions import InvalidHashError

from jetbus.bus.access import Auth
from jetbus.bus.rights import ACTIONS, PathRule, PathRules, read_path_rule
from jetbus.daemon.credentials import CERTIFICATE_NAMES

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


# Faults of a part of an entry, each as the end of a sentence; "" if the part is valid.


def flaw_of_text(text: object, chars_max: int) -> str:
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


def flaw_of_name(name: object) -> str:
    return flaw_of_text(name, NAME_CHARS_MAX)


def flaw_of_password(password: object) -> str:
    return flaw_of_text(password, PASSWORD_CHARS_MAX)


def flaw_of_groups(groups: object) -> str:
    if not isinstance(groups, list):
        return "must be a list of group names"
    if len(groups) > GROUPS_MAX:
        return f"must not be more than {GROUPS_MAX}"
    flaw = next(filter(None, map(flaw_of_name, groups)), "")
    return flaw and f"must be a list of group names, each of which {flaw}"


def flaw_of_stored_password(password: object) -> str:
    if flaw := flaw_of_password(password):
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
class UserEntry:
    """One entry of the file, checked."""

    auth: Auth
    password: str  # a hash, once the file is read and its plain passwords are hashed; empty for none
    readonly: bool


class UsersDocument:
    """Content of the file, as JSON and as users; both are changed together."""

    def __init__(self, path: Path, document: dict[str, Any]) -> None:
        self._path = path
        self._document = document
        self._changed = False
        self.users: dict[str, UserEntry] = {name: self._user(name) for name in document["users"]}
        self.path_rules = self._read_path_rules()
        self.by_credential = self._read_credentials()

    @classmethod
    def read(cls, path: Path) -> UsersDocument:
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

    def _user(self, name: str) -> UserEntry:
        entry = self._document["users"][name]
        if flaw := flaw_of_name(name):
            raise UsersFileError(f"{self._path}: user name {name[:NAME_CHARS_MAX]!r} {flaw}; rename that user")
        if not isinstance(entry, dict):
            self._fail(name, "must be an object", 'give it a "password" and an "auth"')
        needs_password = "password" in entry or not (entry.get("unix") or entry.get("certificates"))
        if needs_password and (flaw := flaw_of_stored_password(entry.get("password"))):
            self._fail(name, f'"password" {flaw}', "set a plain password, it is hashed when the file is read")
        return UserEntry(self._auth(name, entry), entry.get("password", ""), self._flag(name, entry, "readonly"))

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
        if flaw := flaw_of_groups(groups):
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
        if flaw := flaw_of_name(name):
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
                if flaw := flaw_of_text(glob, PATH_RULE_CHARS_MAX):
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
