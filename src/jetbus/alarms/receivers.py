"""Receivers of notifications: a command, a webhook, e-mail, or a set or call on the bus.

    [receiver.shift]
    email = "shift@example.com"
    smtp = "mail.example.com:587"
    sender = "jet@example.com"
    user = "jet"
    password_file = "/etc/jet/mail-password"
    priorities = ["critical", "high"]
    quiet = "22:00-06:00"
    remind_after = "10m"
    escalate_after = "30m"
    escalate_to = "manager"

Each kind is a row of ``_SENDERS``: the word that selects it, the words it may have besides, and a function that sends
one notice and blocks until that is done, or raises. Secrets are read from files, so that they are in no log and in no
message.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import smtplib
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, time
from email.message import EmailMessage
from pathlib import Path
from typing import Any, NamedTuple

from jetbus.alarms.definitions import PRIORITIES, Alarm
from jetbus.entries import BadEntry, read_entries, read_toml
from jetbus.journal.instants import read_duration
from jetbus.json_types import Json, JsonObject

__all__ = ["NotSent", "Receiver", "read_receivers"]

RECEIVERS_MAX = 100
"""Receivers in one file."""
SEND_S = 10.0
"""Longest time for one attempt to send a notice."""
SIGNATURE = "X-Jet-Signature"
"""Header of a webhook: sha256= and the HMAC of the body by the secret."""

Request = Callable[[str, str, Json], None]
"""Function that sets a state or calls a method: its name, a path, and a value or arguments."""


class NotSent(Exception):
    """A notice that a receiver has not taken; the message has no secrets."""


@dataclass(frozen=True)
class Receiver:
    """One receiver of a file."""

    name: str
    kind: str
    settings: Mapping[str, Any] = field(repr=False)
    priorities: tuple[str, ...] = PRIORITIES
    quiet: tuple[time, time] | None = None
    """Time of the day, from and to, in which only critical alarms are notified."""
    remind_s: float | None = None
    escalate_s: float | None = None
    escalate_to: str | None = None

    def wants(self, priority: str, now: datetime) -> bool:
        """Return True if an alarm of a priority is notified now, a local time."""
        if priority not in self.priorities:
            return False
        if self.quiet is None or priority == PRIORITIES[0]:
            return True
        begin, end = self.quiet
        is_within = begin <= now.time() < end if begin <= end else not end <= now.time() < begin
        return not is_within

    def send(self, notice: JsonObject, request: Request) -> None:
        """Send a notice and wait until it is taken; raise ``NotSent``."""
        _SENDERS[self.kind].send(self.settings, notice, request)


def read_receivers(file: str | Path, alarms: Iterable[Alarm]) -> dict[str, Receiver]:
    """Read the receivers of a TOML file, and check that all that its alarms notify are there."""
    found: dict[str, Receiver] = {}
    if "receiver" in read_toml(file):
        entries = read_entries(file, "receiver", _WORDS, most=RECEIVERS_MAX, instead="notify a group by one of them")
        found = {name: _read_receiver(name, entry) for name, entry in entries.items()}
    for alarm in alarms:
        for name in alarm.notify:
            if name not in found:
                raise BadEntry(f"notify: there is no [receiver.{name}]", alarm.name, "alarm")
    for one in found.values():
        if one.escalate_to is not None and one.escalate_to not in found:
            raise BadEntry(f"escalate_to: there is no [receiver.{one.escalate_to}]", one.name, "receiver")
    return found


def _read_receiver(name: str, entry: dict[str, Any]) -> Receiver:
    try:
        return _parse_receiver(name, entry)
    except ValueError as problem:
        raise BadEntry(getattr(problem, "problem", str(problem)), name, "receiver") from problem


def _parse_receiver(name: str, entry: dict[str, Any]) -> Receiver:
    kinds = [kind for kind in _SENDERS if kind in entry]
    if len(kinds) != 1:
        raise BadEntry(f"give one of {', '.join(_SENDERS)}")
    kind = kinds[0]
    row = _SENDERS[kind]
    if missing := [word for word in row.required if word not in entry]:
        raise BadEntry(f"{kind} needs {', '.join(missing)}")
    if wrong := [word for word in entry if word not in (kind, *row.required, *row.optional, *_SHARED)]:
        raise BadEntry(f"{wrong[0]} does not belong to {kind}")
    row.check(entry)
    priorities = tuple(entry.get("priorities", PRIORITIES))
    if unknown := [one for one in priorities if one not in PRIORITIES]:
        raise BadEntry(f"there is no priority {unknown[0]!r}; there are {', '.join(PRIORITIES)}")
    if ("escalate_to" in entry) != ("escalate_after" in entry):
        raise BadEntry("escalate_to and escalate_after belong together")
    settings = {word: value for word, value in entry.items() if word not in _SHARED}
    times = {word: read_duration(entry[word]) if word in entry else None for word in ("remind_after", "escalate_after")}
    return Receiver(
        name,
        kind,
        settings,
        priorities,
        _read_quiet(entry["quiet"]) if "quiet" in entry else None,
        times["remind_after"],
        times["escalate_after"],
        entry.get("escalate_to"),
    )


def _read_quiet(text: str) -> tuple[time, time]:
    try:
        begin, end = (time.fromisoformat(part.strip()) for part in text.split("-"))
    except ValueError:
        raise BadEntry(f'quiet takes two times of the day, such as "22:00-06:00", not {text!r}') from None
    return begin, end


# -- sending


def _read_secret(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except OSError as problem:
        raise NotSent(f"cannot read {file}: {problem.strerror}") from None


def describe_notice(notice: JsonObject) -> str:
    """Return a notice as one line."""
    what = notice.get("message") or f"{notice['path']}: {json.dumps(notice.get('value'), ensure_ascii=False)}"
    begin = "" if notice["kind"] == "raised" else f"{notice['kind']}: "
    more = f" (and {notice['more']} more)" if notice.get("more") else ""
    return " ".join(f"[{notice['priority']}] {begin}{notice['alarm']}: {what}{more}".split())


def _send_command(settings: Mapping[str, Any], notice: JsonObject, _request: Request) -> None:
    told = {"JET_ALARM": notice["alarm"], "JET_PATH": notice["path"], "JET_MESSAGE": describe_notice(notice)}
    try:
        done = subprocess.run(  # noqa: S603 - the command is that of the file
            settings["command"],
            input=json.dumps(notice).encode(),
            env={**os.environ, **{name: str(text) for name, text in told.items()}},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=SEND_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NotSent(f"the command did not end within {SEND_S:g} s") from None
    except OSError as problem:
        raise NotSent(f"cannot run {settings['command'][0]}: {problem.strerror}") from None
    if done.returncode:
        raise NotSent(f"the command ended with exit code {done.returncode}")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A webhook is sent where the file says, and nowhere else."""

    def redirect_request(self, *_: Any) -> None:
        return None


_http = urllib.request.build_opener(_NoRedirects)


def _send_webhook(settings: Mapping[str, Any], notice: JsonObject, _request: Request) -> None:
    body = json.dumps(notice).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "jetbus"}
    if "secret_file" in settings:
        secret = _read_secret(settings["secret_file"]).encode()
        headers[SIGNATURE] = "sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest()
    try:
        request = urllib.request.Request(settings["webhook"], body, headers, method="POST")  # noqa: S310 - checked
        with _http.open(request, timeout=SEND_S) as answer:
            answer.read(1)
    except urllib.error.HTTPError as problem:
        raise NotSent(f"the webhook answered {problem.code}") from None
    except (OSError, ValueError) as problem:
        # The reason, not the address, which may have a secret in it.
        raise NotSent(f"the webhook cannot be reached: {type(problem).__name__}") from None


def _check_webhook(entry: Mapping[str, Any]) -> None:
    if not entry["webhook"].startswith(("http://", "https://")):
        raise BadEntry("webhook takes an address that begins with http:// or https://")


def _send_email(settings: Mapping[str, Any], notice: JsonObject, _request: Request) -> None:
    mail = EmailMessage()
    mail["Subject"], mail["From"], mail["To"] = describe_notice(notice), settings["sender"], settings["email"]
    mail.set_content("".join(f"{name}: {value}\n" for name, value in notice.items() if value is not None))
    host, _, port = settings["smtp"].rpartition(":")
    try:
        with smtplib.SMTP(host, int(port), timeout=SEND_S) as server:
            if settings.get("starttls", "user" in settings):
                server.starttls(context=ssl.create_default_context())
            if "user" in settings:
                server.login(settings["user"], _read_secret(settings["password_file"]))
            server.send_message(mail)
    except smtplib.SMTPResponseException as problem:
        raise NotSent(f"the mail server answered {problem.smtp_code}") from None
    except (OSError, smtplib.SMTPException) as problem:
        raise NotSent(f"the mail server cannot be used: {type(problem).__name__}") from None


def _check_email(entry: Mapping[str, Any]) -> None:
    host, _, port = entry["smtp"].rpartition(":")
    if not host or not port.isdigit():
        raise BadEntry('smtp takes a host and a port, such as "mail.example.com:587"')
    if ("user" in entry) != ("password_file" in entry):
        raise BadEntry("user and password_file belong together")


def _send_set(settings: Mapping[str, Any], _notice: JsonObject, request: Request) -> None:
    request("set", settings["set"], json.loads(settings["value"]))


def _check_set(entry: Mapping[str, Any]) -> None:
    try:
        json.loads(entry["value"])
    except ValueError:
        raise BadEntry(f'value takes JSON in quotes, such as "true", not {entry["value"]!r}') from None


def _send_call(settings: Mapping[str, Any], notice: JsonObject, request: Request) -> None:
    request("call", settings["call"], [notice])


def _check_command(entry: Mapping[str, Any]) -> None:
    if not entry["command"] or not all(isinstance(word, str) for word in entry["command"]):
        raise BadEntry('command takes a list of words, such as ["wall", "alarm"]')


class _Sender(NamedTuple):
    """A kind of receiver."""

    send: Callable[[Mapping[str, Any], JsonObject, Request], None]
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    check: Callable[[Mapping[str, Any]], None] = lambda _entry: None


_SENDERS: dict[str, _Sender] = {
    "command": _Sender(_send_command, check=_check_command),
    "webhook": _Sender(_send_webhook, (), ("secret_file",), _check_webhook),
    "email": _Sender(_send_email, ("smtp", "sender"), ("user", "password_file", "starttls"), _check_email),
    "set": _Sender(_send_set, ("value",), (), _check_set),
    "call": _Sender(_send_call),
}
_SHARED = ("priorities", "quiet", "remind_after", "escalate_after", "escalate_to")
_TEXTS = (
    *("webhook", "secret_file", "email", "smtp", "sender", "user", "password_file", "set", "value", "call"),
    *("quiet", "remind_after", "escalate_after", "escalate_to"),
)
_WORDS: dict[str, type] = {**dict.fromkeys(_TEXTS, str), "command": list, "priorities": list, "starttls": bool}
