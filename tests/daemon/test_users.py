"""The users file: reading, hashing, logging in, and the changes peers may ask for."""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import pytest
from argon2 import PasswordHasher

from jetbus.bus.access import Auth
from jetbus.bus.ports import Users as BusUsers
from jetbus.daemon.users import InvalidEntry, NotAdmin, PasswdRefused, UserExists, Users, UsersFileError
from jetbus.daemon.users_file import FILE_BYTES_MAX, GROUPS_MAX, NAME_CHARS_MAX, PASSWORD_CHARS_MAX
from jetbus.errors import JetError, LoginRefused

CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
HASHES = {name: CHEAP.hash(name + "-pw") for name in ("root", "ann", "bob", "eve", "sue")}

EVERYBODY: dict[str, Any] = {
    "users": {
        "root": {"password": HASHES["root"], "admin": True},
        "ann": {
            "password": HASHES["ann"],
            "auth": {
                "fetchGroups": ["operators", "users"],
                "setGroups": ["operators"],
                "callGroups": ["users"],
            },
        },
        "bob": {"password": HASHES["bob"], "readonly": True},
        "eve": {"password": HASHES["eve"], "admin": True, "readonly": True},
        "sue": {
            "password": HASHES["sue"],
            "auth": {"fetchGroups": ["admin"], "setGroups": ["admin"], "callGroups": ["admin"]},
        },
    }
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "users.json"
    file.write_text(json.dumps(EVERYBODY))
    return file


@pytest.fixture
def users(path: Path) -> Users:
    return Users.load(path, hasher=CHEAP)


def _stored(path: Path, name: str) -> str:
    return str(json.loads(path.read_text())["users"][name]["password"])


def _write_password(path: Path, password: str) -> None:
    path.write_text(json.dumps({"users": {"ann": {"password": password}}}))


def _write_plain(path: Path) -> None:
    _write_password(path, "s3cret words")


def _fail_replace(monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full_disk)


# Logging in.


def test_right_password_gives_the_users_groups(users: Users) -> None:
    """The right password gives the user's groups, in the order of the file."""
    assert users.authenticate("ann", "ann-pw") == Auth("ann", ("operators", "users"), ("operators",), ("users",))


def test_user_without_auth_has_no_groups(users: Users) -> None:
    """A user without "auth" may log in and has no groups."""
    assert users.authenticate("bob", "bob-pw") == Auth("bob", (), (), ())


REFUSED_LOGINS = {
    "unknown user": ("tom", "tom-pw"),
    "empty user": ("", "ann-pw"),
    "wrong password": ("ann", "bob-pw"),
    "empty password": ("ann", ""),
    "hash as password": ("ann", HASHES["ann"]),
    "longest password": ("ann", "x" * PASSWORD_CHARS_MAX),
    "password over the limit": ("ann", "x" * (PASSWORD_CHARS_MAX + 1)),
    "password that is not Unicode": ("ann", "\ud800"),
}


@pytest.mark.parametrize(("name", "password"), REFUSED_LOGINS.values(), ids=REFUSED_LOGINS.keys())
def test_login_is_refused(users: Users, name: str, password: str) -> None:
    """A wrong user and a wrong password are refused alike: nobody learns which users there are."""
    with pytest.raises(LoginRefused) as caught:
        users.authenticate(name, password)
    assert str(caught.value) == "wrong user or password"
    assert caught.value.data == {"invalidPassword": True}


REFUSALS: dict[str, tuple[JetError, dict[str, Any]]] = {
    "wrong user or password": (LoginRefused(), {"invalidPassword": True}),
    "not an admin": (NotAdmin("why"), {"reason": "why"}),
}


@pytest.mark.parametrize(("error", "data"), REFUSALS.values(), ids=REFUSALS.keys())
def test_refusals_are_told_to_the_peer(error: JetError, data: dict[str, Any]) -> None:
    """A refusal is an error of the bus, with the data that Jet clients look for."""
    assert error.wire() == {"code": -32602, "message": "Invalid params", "data": data}


def test_bus_takes_users_from_the_file(users: Users) -> None:
    """The users of a file are what the bus asks for."""
    asked: BusUsers = users
    assert asked.authenticate("ann", "ann-pw").user == "ann"


class _CountingHasher(PasswordHasher):
    """Counts how often it verifies, which is what takes the time of a login."""

    verified = 0

    def verify(self, hash: str | bytes, password: str | bytes) -> Literal[True]:  # noqa: A002
        self.verified += 1
        return super().verify(hash, password)


@pytest.mark.parametrize(("name", "password"), REFUSED_LOGINS.values(), ids=REFUSED_LOGINS.keys())
def test_every_refused_login_takes_one_verification(path: Path, name: str, password: str) -> None:
    """An unknown user or unusable password is refused no sooner than a wrong password."""
    hasher = _CountingHasher(time_cost=1, memory_cost=8, parallelism=1)
    users = Users.load(path, hasher=hasher)
    with pytest.raises(LoginRefused):
        users.authenticate(name, password)
    assert hasher.verified == 1


def test_hash_with_a_damaged_end_is_logged_and_refused(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A hash that turns out to be damaged refuses the login and is logged."""
    _write_password(path, HASHES["ann"][:-1] + "!")
    users = Users.load(path, hasher=CHEAP)
    with pytest.raises(LoginRefused):
        users.authenticate("ann", "ann-pw")
    assert "a password hash cannot be verified" in caplog.text


def test_auth_of(users: Users) -> None:
    """The groups of a user can be had without a password, and are None for an unknown user."""
    auth = users.auth_of("ann")
    assert auth is not None
    assert auth.set_groups == ("operators",)
    assert users.auth_of("tom") is None


ADMINS = {
    "admin flag": ({"admin": True}, True),
    "admin flag off": ({"admin": False}, False),
    "admin group everywhere": (
        EVERYBODY["users"]["sue"],
        True,
    ),
    "admin group to fetch only": ({"auth": {"fetchGroups": ["admin"]}}, False),
    "other groups": ({"auth": {"fetchGroups": ["users"]}}, False),
}


@pytest.mark.parametrize(("entry", "admin"), ADMINS.values(), ids=ADMINS.keys())
def test_who_is_admin(path: Path, entry: dict[str, Any], admin: bool) -> None:
    """An admin has the flag, or the group "admin" in all three lists."""
    path.write_text(json.dumps({"users": {"ann": {"password": HASHES["ann"], **entry}}}))
    auth = Users.load(path, hasher=CHEAP).auth_of("ann")
    assert auth is not None
    assert auth.admin is admin


# Hashing at load.


def test_plain_password_is_hashed_at_load(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A plain password is replaced by its hash in the file, logged without the password, and still works."""
    _write_plain(path)
    with caplog.at_level(logging.DEBUG, logger="jetbus.users"):
        users = Users.load(path, hasher=CHEAP)
    assert _stored(path, "ann").startswith("$argon2id$")
    assert "s3cret words" not in path.read_text() + caplog.text
    assert "'ann'" in caplog.text
    assert users.authenticate("ann", "s3cret words").user == "ann"


def test_hashed_file_is_not_rewritten(path: Path) -> None:
    """A file without plain passwords stays as it is, byte for byte."""
    before = path.read_bytes(), path.stat().st_ino
    Users.load(path, hasher=CHEAP)
    assert (path.read_bytes(), path.stat().st_ino) == before


def test_default_hasher(path: Path) -> None:
    """Without a hasher of your own, passwords are hashed with the library's recommended parameters."""
    _write_plain(path)
    users = Users.load(path)
    assert not PasswordHasher().check_needs_rehash(_stored(path, "ann"))
    assert users.authenticate("ann", "s3cret words").user == "ann"


def test_unknown_keys_survive_a_rewrite(path: Path) -> None:
    """Keys that mean nothing to us are still there after a rewrite, in their places."""
    document = {
        "comment": "Bürgermeister",
        "users": {
            "ann": {"phone": [1, None], "password": "pw", "auth": {"x": {}}},
            "bob": {"password": "pw"},
        },
        "version": 1.5,
    }
    path.write_text(json.dumps(document))
    Users.load(path, hasher=CHEAP)
    text = path.read_text(encoding="utf-8")
    after = json.loads(text)
    for name in ("ann", "bob"):
        after["users"][name]["password"] = "pw"
    assert json.dumps(after) == json.dumps(document)
    assert "Bürgermeister" in text


def test_byte_order_mark_is_accepted(path: Path) -> None:
    """A file saved with a byte order mark is read all the same."""
    path.write_text(json.dumps(EVERYBODY), encoding="utf-8-sig")
    assert Users.load(path, hasher=CHEAP).auth_of("ann")


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644], ids=oct)
def test_rewrite_keeps_the_owner_and_nobody_else(path: Path, mode: int) -> None:
    """A rewritten file has the owner it had before, and is closed to all others."""
    _write_plain(path)
    path.chmod(mode)
    if os.geteuid() == 0:
        os.chown(path, 1234, 2345)
    before = path.stat()
    Users.load(path, hasher=CHEAP)
    after = path.stat()
    assert stat.S_IMODE(after.st_mode) == 0o600
    assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)
    assert after.st_ino != before.st_ino


def test_file_with_hashes_only_is_closed_to_others(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file that need not be rewritten is closed to others as well, and the log says so."""
    _write_plain(path)
    Users.load(path, hasher=CHEAP)
    path.chmod(0o644)
    before = path.stat()
    Users.load(path, hasher=CHEAP)
    after = path.stat()
    assert (after.st_ino, stat.S_IMODE(after.st_mode)) == (before.st_ino, 0o640)
    assert "was open to other users (mode 0644); now it is closed" in caplog.text


def test_rewrite_that_cannot_keep_the_owner_is_private(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the owner cannot be kept, only the new owner may read the file."""

    def not_permitted(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    _write_plain(path)
    path.chmod(0o664)
    monkeypatch.setattr(os, "fchown", not_permitted)
    Users.load(path, hasher=CHEAP)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_rewrite_follows_a_symbolic_link(path: Path) -> None:
    """If the path is a symbolic link, the file it points to is rewritten and the link stays."""
    _write_plain(path)
    link = path.with_name("link.json")
    link.symlink_to(path.name)
    Users.load(link, hasher=CHEAP)
    assert link.is_symlink()
    assert _stored(path, "ann").startswith("$argon2id$")


def test_login_renews_a_hash_with_old_parameters(path: Path) -> None:
    """A login with a hash of other parameters than today's renews it in the file."""
    stronger = PasswordHasher(time_cost=2, memory_cost=8, parallelism=1)
    users = Users.load(path, hasher=stronger)
    users.authenticate("ann", "ann-pw")
    renewed = _stored(path, "ann")
    assert not stronger.check_needs_rehash(renewed)
    assert _stored(path, "bob") == HASHES["bob"]
    users.authenticate("ann", "ann-pw")
    assert _stored(path, "ann") == renewed


def test_login_succeeds_if_its_hash_cannot_be_renewed(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A login is good, with a line in the log, even if the renewed hash cannot be written."""
    users = Users.load(path, hasher=PasswordHasher(time_cost=2, memory_cost=8, parallelism=1))
    _fail_replace(monkeypatch)
    assert users.authenticate("ann", "ann-pw").user == "ann"
    assert "password of user 'ann' keeps its old hash" in caplog.text
    assert _stored(path, "ann") == HASHES["ann"]


# Broken files.


def _with(entry: object) -> str:
    return json.dumps({"users": {"ann": entry}})


PLAIN = {"password": "pw"}
HASHED_HINT = "set a plain password, it is hashed when the file is read"
BROKEN = {
    "empty": ("", "is not valid JSON in UTF-8 (Expecting value: line 1 column 1 (char 0)); correct it there"),
    "not JSON": ('{"users": {}', "is not valid JSON"),
    "not UTF-8": (b'{"users": {"\xff": {}}}', "is not valid JSON in UTF-8 (invalid start byte)"),
    "half a character": (
        '{"users": {}, "x": "\\ud800"}',
        "is not valid JSON in UTF-8 (surrogates not allowed)",
    ),
    "not a number": ('{"users": {}, "x": NaN}', "NaN is not a JSON number"),
    "a number too big": ('{"users": {}, "x": 1e400}', "is not valid JSON"),
    "nested too deeply": ("[" * 100_000, "nested too deeply"),
    "same user twice": ('{"users": {"ann": {}, "ann": {}}}', "'ann' is there twice in one object"),
    "list": ("[]", 'has no object "users"; start it with {"users": {}}'),
    "no users": ("{}", 'has no object "users"'),
    "list of users": ('{"users": []}', 'has no object "users"'),
    "too big": (" " * FILE_BYTES_MAX + "{}", f"has more than {FILE_BYTES_MAX} bytes; remove users from it"),
    "user without a name": (
        '{"users": {"": {"password": "x"}}}',
        "user name '' must not be empty; rename that user",
    ),
    "user name over the limit": (
        json.dumps({"users": {"n" * (NAME_CHARS_MAX + 1): PLAIN}}),
        f"must not be longer than {NAME_CHARS_MAX} characters; rename that user",
    ),
    "user is a string": (_with("pw"), 'user \'ann\': must be an object; give it a "password" and an "auth"'),
    "no password": (_with({}), f"user 'ann': \"password\" must be a string; {HASHED_HINT}"),
    "password is a number": (_with({"password": 5}), "user 'ann': \"password\" must be a string"),
    "empty password": (_with({"password": ""}), "user 'ann': \"password\" must not be empty"),
    "password over the limit": (
        _with({"password": "x" * (PASSWORD_CHARS_MAX + 1)}),
        f"must not be longer than {PASSWORD_CHARS_MAX} characters",
    ),
    "MD5 crypt": (
        _with({"password": "$1$salt$qJH7.N4xYta3aEG/dfqo/0"}),
        "user 'ann': \"password\" is a crypt hash, or a text that starts with $, and cannot be verified; "
        + HASHED_HINT,
    ),
    "SHA-512 crypt": (_with({"password": "$6$salt$x"}), "user 'ann': \"password\" is a crypt hash"),
    "damaged hash": (
        _with({"password": "$argon2id$v=19"}),
        f"user 'ann': \"password\" is a damaged argon2 hash; {HASHED_HINT}",
    ),
    "admin is a string": (_with({**PLAIN, "admin": "yes"}), "user 'ann': \"admin\" must be true or false"),
    "readonly is a number": (
        _with({**PLAIN, "readonly": 1}),
        "user 'ann': \"readonly\" must be true or false",
    ),
    "auth is a list": (
        _with({**PLAIN, "auth": []}),
        "user 'ann': \"auth\" must be an object; give it the lists",
    ),
    "groups are a string": (
        _with({**PLAIN, "auth": {"setGroups": "users"}}),
        "user 'ann': \"setGroups\" must be a list of group names; correct that list",
    ),
    "group is a number": (
        _with({**PLAIN, "auth": {"callGroups": [1]}}),
        '"callGroups" must be a list of group names',
    ),
    "too many groups": (
        _with({**PLAIN, "auth": {"fetchGroups": [str(n) for n in range(GROUPS_MAX + 1)]}}),
        f'"fetchGroups" must not be more than {GROUPS_MAX}',
    ),
}


BROKEN_RULES: dict[str, tuple[dict[str, Any], str]] = {
    "default": ({"default": "shut"}, '"default" must be "open" or "closed"'),
    "groups": ({"groups": []}, '"groups" must be an object with the rules of each group'),
    "group": ({"groups": {"staff": []}}, "group 'staff': it must be an object with lists of globs"),
    "unknown key": ({"groups": {"staff": {"fetchGroups": []}}}, "'fetchGroups' is unknown"),
    "globs": ({"groups": {"staff": {"add": "plant/**"}}}, '"add" must be a list'),
    "a glob": ({"groups": {"staff": {"add": [1]}}}, "each of which must be a string"),
    "a placeholder": (
        {"groups": {"staff": {"add": ["x{user}"]}}},
        "'x{user}' cannot be used: {user} must be one whole",
    ),
    "reserve_s": ({"groups": {"staff": {"reserve_s": -1}}}, '"reserve_s" must be a number of seconds'),
    "too many": ({"groups": {f"g{i}": {"add": ["a"] * 600} for i in range(2)}}, "more than 1000 rules"),
}


@pytest.mark.parametrize(("content", "expected"), BROKEN_RULES.values(), ids=BROKEN_RULES.keys())
def test_broken_rules(path: Path, content: dict[str, Any], expected: str) -> None:
    """Rules by path that cannot be used are refused with the group, the cause and what to do."""
    path.write_text(json.dumps({"users": {}, **content}))
    with pytest.raises(UsersFileError) as caught:
        Users.load(path, hasher=CHEAP)
    assert expected in str(caught.value)


def test_add_groups(path: Path) -> None:
    """A user may add by the groups in addGroups; without these by the groups that are in all other lists."""
    lists = {"fetchGroups": ["a", "b"], "setGroups": ["b"], "callGroups": ["b", "a"]}
    entries = {"full": {"password": "x", "auth": lists}, "named": {"password": "x", "auth": {"addGroups": ["c"]}}}
    path.write_text(json.dumps({"users": entries}))
    users = Users.load(path, hasher=CHEAP)
    full, named = users.auth_of("full"), users.auth_of("named")
    assert full is not None
    assert named is not None
    assert (full.add_groups, named.add_groups) == (("b",), ("c",))
    assert users.path_rules is None


@pytest.mark.parametrize(("content", "expected"), BROKEN.values(), ids=BROKEN.keys())
def test_broken_file_is_refused(path: Path, content: str | bytes, expected: str) -> None:
    """A broken file is refused with the file, the user, the cause and the next step, and is left as it is."""
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(data)
    with pytest.raises(UsersFileError) as caught:
        Users.load(path, hasher=CHEAP)
    assert str(caught.value).startswith(str(path))
    assert expected in str(caught.value)
    assert path.read_bytes() == data


def test_entry_at_every_limit_is_accepted(path: Path) -> None:
    """Names, passwords and lists of groups may be exactly as long as their limits."""
    name, password = "n" * NAME_CHARS_MAX, "p" * PASSWORD_CHARS_MAX
    groups = ["g" * (NAME_CHARS_MAX - 2) + f"{n:02}" for n in range(GROUPS_MAX)]
    path.write_text(json.dumps({"users": {name: {"password": password, "auth": {"fetchGroups": groups}}}}))
    users = Users.load(path, hasher=CHEAP)
    assert users.authenticate(name, password).fetch_groups == tuple(groups)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    """A missing file is refused with how to create one."""
    with pytest.raises(UsersFileError, match=r"absent\.json does not exist; create it"):
        Users.load(tmp_path / "absent.json", hasher=CHEAP)


def test_unreadable_file_is_refused(tmp_path: Path) -> None:
    """A path that cannot be read is refused with the system's reason."""
    with pytest.raises(UsersFileError, match=r"cannot be read \(Is a directory\); let the daemon read it"):
        Users.load(tmp_path, hasher=CHEAP)


def test_failed_rewrite_leaves_everything_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the new file cannot take the old one's place, the old one and its users stay, alone."""
    users = Users.load(path, hasher=CHEAP)
    before = path.read_bytes()
    _fail_replace(monkeypatch)
    with pytest.raises(UsersFileError, match=r"cannot be rewritten \(No space left on device\); let the daemon"):
        users.passwd("ann", "ann", "new")
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]
    assert users.authenticate("ann", "ann-pw")


def test_plain_password_that_cannot_be_hashed_away_fails_the_load(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file with a plain password is refused if it cannot be rewritten."""
    _write_plain(path)
    _fail_replace(monkeypatch)
    with pytest.raises(UsersFileError, match="cannot be rewritten"):
        Users.load(path, hasher=CHEAP)


def test_removed_folder_refuses_a_change(path: Path, users: Users) -> None:
    """If the file's folder is gone, a change is refused and logins go on."""
    path.unlink()
    path.parent.rmdir()
    with pytest.raises(UsersFileError, match="does not exist"):
        users.passwd("ann", "ann", "new")
    assert users.authenticate("ann", "ann-pw")


# Reading again.


def test_reload_takes_over_what_was_edited(path: Path, users: Users) -> None:
    """A reload brings users edited in the file into force, and hashes their plain passwords."""
    _write_plain(path)
    users.reload()
    assert users.authenticate("ann", "s3cret words")
    assert users.auth_of("bob") is None
    assert _stored(path, "ann").startswith("$argon2id$")


def test_reload_of_a_broken_file_keeps_the_users(path: Path, users: Users) -> None:
    """A reload of a broken file raises, and the users stay as they were."""
    path.write_text("{")
    with pytest.raises(UsersFileError):
        users.reload()
    assert users.authenticate("ann", "ann-pw")


def test_change_keeps_what_was_edited_since(path: Path, users: Users) -> None:
    """A change of one user keeps what somebody edited in the file since it was read."""
    document = json.loads(path.read_text())
    document["users"]["tom"] = {"password": "tom-pw"}
    path.write_text(json.dumps(document))
    users.passwd("ann", "ann", "new")
    assert users.authenticate("tom", "tom-pw")
    assert users.authenticate("ann", "new")


# passwd.

PASSWD_ALLOWED = {
    "yourself": ("ann", "ann"),
    "admin another": ("root", "ann"),
    "admin themselves": ("root", "root"),
    "admin a read-only user": ("root", "bob"),
    "admin a read-only admin": ("root", "eve"),
    "read-only admin another": ("eve", "ann"),
    "member of admin another": ("sue", "bob"),
}


@pytest.mark.parametrize(("actor", "name"), PASSWD_ALLOWED.values(), ids=PASSWD_ALLOWED.keys())
def test_passwd(path: Path, users: Users, actor: str, name: str) -> None:
    """Users may change their own password and admins everybody's; the file has the new hash at once."""
    users.passwd(actor, name, "$new pässword")
    assert users.authenticate(name, "$new pässword").user == name
    assert Users.load(path, hasher=CHEAP).authenticate(name, "$new pässword")
    with pytest.raises(LoginRefused):
        users.authenticate(name, name + "-pw")


NOT_ALLOWED = "user not allowed to change password"
PASSWD_REFUSED = {
    "not logged in": (None, "ann", "new", "non-authenticated peer can't change any passwords"),
    "not logged in, unknown user": (None, "tom", "new", "non-authenticated peer can't change any passwords"),
    "unknown user": ("root", "tom", "new", "user not in password database"),
    "another user": ("ann", "bob", "new", NOT_ALLOWED),
    "read-only user": ("bob", "bob", "new", NOT_ALLOWED),
    "read-only admin": ("eve", "eve", "new", NOT_ALLOWED),
    "actor removed meanwhile": ("tom", "ann", "new", NOT_ALLOWED),
    "empty password": ("ann", "ann", "", "password must not be empty"),
    "password over the limit": (
        "ann",
        "ann",
        "x" * (PASSWORD_CHARS_MAX + 1),
        f"password must not be longer than {PASSWORD_CHARS_MAX} characters",
    ),
    "password that is not Unicode": ("ann", "ann", "\ud800", "password must be valid Unicode"),
}


@pytest.mark.parametrize(("actor", "name", "password", "reason"), PASSWD_REFUSED.values(), ids=PASSWD_REFUSED.keys())
def test_passwd_is_refused(path: Path, users: Users, actor: str | None, name: str, password: str, reason: str) -> None:
    """Nobody else may change a password, a read-only user not even their own, and the file stays as it is."""
    before = path.read_bytes()
    with pytest.raises(PasswdRefused) as caught:
        users.passwd(actor, name, password)
    assert caught.value.wire() == {"code": -32602, "message": "Invalid params", "data": {"reason": reason}}
    assert path.read_bytes() == before


# add_user.


@pytest.mark.parametrize("actor", ["root", "sue"], ids=["admin flag", "admin group"])
def test_add_user(path: Path, users: Users, actor: str) -> None:
    """An admin adds a user, who has the groups for fetch, set and call, in the file too."""
    users.add_user(actor, "tom", "tom-pw", ["users", "night shift"])
    groups = ("users", "night shift")
    assert users.authenticate("tom", "tom-pw") == Auth("tom", groups, groups, groups, add_groups=groups)
    assert Users.load(path, hasher=CHEAP).auth_of("tom") == users.auth_of("tom")
    assert json.loads(path.read_text())["users"]["ann"] == EVERYBODY["users"]["ann"]


def test_added_admin_may_add_users(users: Users) -> None:
    """A user added to the group "admin" is an admin."""
    users.add_user("root", "tom", "tom-pw", ["admin"])
    users.add_user("tom", "kim", "kim-pw", [])
    assert users.auth_of("kim") == Auth("kim", (), (), ())


ADD_REFUSED = {
    "not logged in": (None, "tom", "pw", [], NotAdmin, "only admins may add users"),
    "not an admin": ("ann", "tom", "pw", [], NotAdmin, "only admins may add users"),
    "not an admin, user exists": ("ann", "bob", "pw", [], NotAdmin, "only admins may add users"),
    "actor removed meanwhile": ("kim", "tom", "pw", [], NotAdmin, "only admins may add users"),
    "user exists": ("root", "ann", "pw", [], UserExists, "user 'ann' exists already"),
    "empty name": ("root", "", "pw", [], InvalidEntry, "user name must not be empty"),
    "name over the limit": (
        "root",
        "n" * (NAME_CHARS_MAX + 1),
        "pw",
        [],
        InvalidEntry,
        "user name must not be longer",
    ),
    "name that is not Unicode": ("root", "\ud800", "pw", [], InvalidEntry, "user name must be valid Unicode"),
    "empty password": ("root", "tom", "", [], InvalidEntry, "password must not be empty"),
    "password over the limit": (
        "root",
        "tom",
        "x" * (PASSWORD_CHARS_MAX + 1),
        [],
        InvalidEntry,
        "password must not be longer",
    ),
    "groups in one string": (
        "root",
        "tom",
        "pw",
        "users",
        InvalidEntry,
        "groups must be a list of group names",
    ),
    "empty group": ("root", "tom", "pw", [""], InvalidEntry, "each of which must not be empty"),
    "too many groups": (
        "root",
        "tom",
        "pw",
        [str(n) for n in range(GROUPS_MAX + 1)],
        InvalidEntry,
        "groups must not be more than 32",
    ),
}


@pytest.mark.parametrize(
    ("actor", "name", "password", "groups", "error", "text"), ADD_REFUSED.values(), ids=ADD_REFUSED.keys()
)
def test_add_user_is_refused(
    path: Path,
    users: Users,
    actor: str | None,
    name: str,
    password: str,
    groups: list[str],
    error: type[Exception],
    text: str,
) -> None:
    """Only admins add users, only new ones, only within the limits; else the file stays as it is."""
    before = path.read_bytes()
    with pytest.raises(error, match=text):
        users.add_user(actor, name, password, groups)
    assert path.read_bytes() == before


def test_remove_user(path: Path, users: Users) -> None:
    """An admin removes a user, who cannot log in any more; the others stay as they are, in the file too."""
    users.remove_user("root", "bob")
    with pytest.raises(LoginRefused):
        users.authenticate("bob", "bob-pw")
    left = json.loads(path.read_text())["users"]
    assert left == {name: entry for name, entry in EVERYBODY["users"].items() if name != "bob"}


REMOVE_REFUSED = {
    "not logged in": (None, "bob", NotAdmin, "only admins may remove users"),
    "not an admin": ("ann", "bob", NotAdmin, "only admins may remove users"),
    "nobody": ("root", "tom", InvalidEntry, "there is no user 'tom'"),
    "himself": ("root", "root", InvalidEntry, "let another admin do it"),
}


@pytest.mark.parametrize(("actor", "name", "error", "text"), REMOVE_REFUSED.values(), ids=REMOVE_REFUSED.keys())
def test_remove_user_is_refused(
    path: Path, users: Users, actor: str | None, name: str, error: type[Exception], text: str
) -> None:
    """Only admins remove users, and never themselves; else the file stays as it is."""
    before = path.read_bytes()
    with pytest.raises(error, match=text):
        users.remove_user(actor, name)
    assert path.read_bytes() == before


def test_file_does_not_grow_beyond_its_limit(path: Path) -> None:
    """A user who would make the file bigger than it may be is refused, and the file stays readable."""
    room = FILE_BYTES_MAX - len(json.dumps(EVERYBODY)) - 1000
    path.write_text(json.dumps({**EVERYBODY, "padding": "x" * room}))
    users = Users.load(path, hasher=CHEAP)
    with pytest.raises(UsersFileError, match=f"would grow beyond {FILE_BYTES_MAX} bytes; remove users from it"):
        users.add_user("root", "tom", "pw", ["g" * NAME_CHARS_MAX] * GROUPS_MAX)
    assert users.auth_of("tom") is None
    assert Users.load(path, hasher=CHEAP).auth_of("ann")


# Threads.


def test_changes_from_many_threads_all_last(path: Path, users: Users) -> None:
    """Users added at the same time from several threads are all there, in memory and in the file."""
    names = [f"user{n}" for n in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: users.add_user("root", name, name, ["users"]), names))
    again = Users.load(path, hasher=CHEAP)
    assert all(users.auth_of(name) == again.auth_of(name) is not None for name in names)


def test_same_user_is_added_once(users: Users) -> None:
    """Of several threads adding the same user one succeeds, and the others are told that it exists."""

    def add(password: str) -> str:
        try:
            users.add_user("root", "tom", password, [])
        except UserExists:
            return ""
        return password

    with ThreadPoolExecutor(8) as pool:
        added = [password for password in pool.map(add, map(str, range(16))) if password]
    assert len(added) == 1
    assert users.authenticate("tom", added[0])


def test_reader_of_the_file_never_sees_half_of_it(path: Path, users: Users) -> None:
    """While passwords change, the file can be read at any time and is whole."""
    done = threading.Event()

    def change() -> None:
        for n in range(30):
            users.passwd("ann", "ann", str(n))
        done.set()

    with ThreadPoolExecutor(1) as pool:
        changing = pool.submit(change)
        while not done.is_set() and not changing.done():
            assert set(json.loads(path.read_text())["users"]) == set(EVERYBODY["users"])
        changing.result()
    assert users.authenticate("ann", "29")


def test_login_does_not_wait_for_a_change(users: Users, monkeypatch: pytest.MonkeyPatch) -> None:
    """A login goes through while a change is waiting for the disk."""
    writing, go_on = threading.Event(), threading.Event()
    replace = os.replace

    def slow_disk(source: str, target: str) -> None:
        writing.set()
        go_on.wait(10)
        replace(source, target)

    monkeypatch.setattr(os, "replace", slow_disk)
    with ThreadPoolExecutor(1) as pool:
        changing = pool.submit(users.passwd, "ann", "ann", "new")
        assert writing.wait(10)
        assert users.authenticate("ann", "ann-pw")
        go_on.set()
        changing.result()
    assert users.authenticate("ann", "new")
