"""Receivers of notifications, against a real mail server, a real HTTP server and real commands."""

from __future__ import annotations

import hashlib
import hmac
import json
import queue
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from jetbus.alarms import read_alarms
from jetbus.alarms.notifications import NoticeQueue, Notifications
from jetbus.alarms.receivers import NotSent, Receiver, read_receivers
from jetbus.entries import BadEntry
from jetbus.json_types import Json, JsonObject
from support.smtp import mail_server

WITHIN_S = 30.0
NOTICE: JsonObject = {
    "kind": "raised",
    "alarm": "hot",
    "path": "oven/temperature",
    "priority": "high",
    "value": 91,
    "message": "it is\nhot",
}


def _no_bus(name: str, path: str, value: Json) -> None:
    raise AssertionError((name, path, value))


class _Hook(ThreadingHTTPServer):
    """A web server that answers posts with the codes it is given, at last with 200."""

    def __init__(self, *codes: int) -> None:
        super().__init__(("127.0.0.1", 0), _Post)
        self.codes = list(codes)
        self.posts: queue.SimpleQueue[tuple[str | None, bytes]] = queue.SimpleQueue()
        self.url = f"http://127.0.0.1:{self.server_address[1]}/secret-path"


class _Post(BaseHTTPRequestHandler):
    server: _Hook

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        code = self.server.codes.pop(0) if self.server.codes else 200
        if code == 200:
            self.server.posts.put((self.headers["X-Jet-Signature"], body))
        self.send_response(code)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture
def hook() -> Iterator[_Hook]:
    with _Hook() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def _read(folder: Path, text: str) -> dict[str, Receiver]:
    file = folder / "alarms.toml"
    file.write_text(f"[alarm.hot]\nwhen = 'flag'\nnotify = ['one']\n{text}")
    return read_receivers(file, read_alarms(file))


def _webhook(url: str) -> Receiver:
    return Receiver("one", "webhook", {"webhook": url})


def test_a_webhook_is_signed(tmp_path: Path, hook: _Hook) -> None:
    """A webhook gets the notice as JSON, with a signature by the secret of a file."""
    (tmp_path / "secret").write_text("hush\n")
    one = _read(tmp_path, f"[receiver.one]\nwebhook = '{hook.url}'\nsecret_file = '{tmp_path / 'secret'}'")["one"]
    one.send(NOTICE, _no_bus)
    signature, body = hook.posts.get(timeout=WITHIN_S)
    assert json.loads(body) == NOTICE
    assert signature == "sha256=" + hmac.new(b"hush", body, hashlib.sha256).hexdigest()


def test_a_mail(tmp_path: Path) -> None:
    """A mail has the alarm in one line as its subject, and all that is known in its text."""
    with mail_server() as server:
        text = f"[receiver.one]\nemail = 'shift@example.com'\nsmtp = '{server.address}'\nsender = 'jet@example.com'"
        _read(tmp_path, text)["one"].send(NOTICE, _no_bus)
        mail = server.mails.get(timeout=WITHIN_S)
    assert mail["Subject"] == "[high] hot: it is hot"
    assert (mail["To"], mail["From"]) == ("shift@example.com", "jet@example.com")
    assert "path: oven/temperature" in mail.get_content().splitlines()


def test_a_command(tmp_path: Path) -> None:
    """A command gets the notice as JSON on its stdin, and the most important parts in its environment."""
    program = "import os, sys; open('told', 'w').write(os.environ['JET_MESSAGE'] + sys.stdin.read())"
    command = json.dumps([sys.executable, "-c", program.replace("'told'", repr(str(tmp_path / "told")))])
    _read(tmp_path, f"[receiver.one]\ncommand = {command}")["one"].send(NOTICE, _no_bus)
    assert (tmp_path / "told").read_text() == "[high] hot: it is hot" + json.dumps(NOTICE)


def test_a_set_and_a_call(tmp_path: Path) -> None:
    """A receiver on the bus is set to its value, or called with the notice."""
    asked: list[tuple[str, str, Json]] = []
    text = "[receiver.one]\nset = 'plant/horn'\nvalue = 'true'\n[receiver.two]\ncall = 'plant/tell'"
    for one in _read(tmp_path, text).values():
        one.send(NOTICE, lambda name, path, value: asked.append((name, path, value)))
    assert asked == [("set", "plant/horn", True), ("call", "plant/tell", [NOTICE])]


FAILURES: dict[str, tuple[str, dict[str, Any], str]] = {
    "no server": ("webhook", {"webhook": "http://127.0.0.1:1/key=hush"}, "the webhook cannot be reached: URLError"),
    "no secret": ("webhook", {"webhook": "http://127.0.0.1:1", "secret_file": "/none"}, "cannot read /none: No such"),
    "no mail": (
        "email",
        {"email": "a@b", "smtp": "127.0.0.1:1", "sender": "a@b"},
        "the mail server cannot be used: ConnectionRefusedError",
    ),
    "no command": ("command", {"command": ["/none"]}, "cannot run /none: No such file"),
    "bad end": ("command", {"command": [sys.executable, "-c", "exit(3)"]}, "the command ended with exit code 3"),
}


@pytest.mark.parametrize("case", FAILURES)
def test_failures_have_a_reason_without_secrets(case: str) -> None:
    """An attempt that fails says why, without the address, which may have a secret in it."""
    kind, settings, message = FAILURES[case]
    with pytest.raises(NotSent) as caught:
        Receiver("one", kind, settings).send(NOTICE, _no_bus)
    assert str(caught.value).startswith(message)
    assert "hush" not in f"{caught.value!r}{Receiver('one', kind, settings)!r}"


WRONG = {
    "nobody": ("", "alarm 'hot': notify: there is no [receiver.one]"),
    "no kind": ("[receiver.one]", "give one of command, webhook, email, set, call"),
    "two kinds": ("[receiver.one]\ncall = 'a'\nset = 'b'", "give one of"),
    "missing": ("[receiver.one]\nemail = 'a@b'\nsender = 'a@b'", "email needs smtp"),
    "of another": ("[receiver.one]\ncall = 'a'\nsmtp = 'b:1'", "smtp does not belong to call"),
    "no port": ("[receiver.one]\nemail = 'a@b'\nsender = 'a@b'\nsmtp = 'b'", "smtp takes a host and a port"),
    "no password": ("[receiver.one]\nemail = 'a'\nsender = 'a'\nsmtp = 'b:1'\nuser = 'a'", "belong together"),
    "file": ("[receiver.one]\nwebhook = 'file:///etc/passwd'", "begins with http:// or https://"),
    "no JSON": ("[receiver.one]\nset = 'a'\nvalue = 'on'", "value takes JSON in quotes"),
    "no words": ("[receiver.one]\ncommand = []", "command takes a list of words"),
    "priority": ("[receiver.one]\ncall = 'a'\npriorities = ['top']", "there is no priority 'top'"),
    "quiet": ("[receiver.one]\ncall = 'a'\nquiet = 'at night'", "quiet takes two times of the day"),
    "escalation": ("[receiver.one]\ncall = 'a'\nescalate_to = 'one'", "belong together"),
    "escalation to": (
        "[receiver.one]\ncall = 'a'\nescalate_to = 'two'\nescalate_after = '1m'",
        "receiver 'one': escalate_to: there is no [receiver.two]",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_receiver_is_named(tmp_path: Path, case: str) -> None:
    """An error in a receiver says what to write instead."""
    text, message = WRONG[case]
    with pytest.raises(BadEntry) as caught:
        _read(tmp_path, text)
    assert message in str(caught.value)


def test_quiet_hours_and_priorities(tmp_path: Path) -> None:
    """A receiver is told its priorities; in quiet hours, which may pass midnight, critical alarms alone."""
    text = "[receiver.one]\ncall = 'a'\nquiet = '22:00-06:30'\npriorities = ['critical', 'high']"
    one = _read(tmp_path, text)["one"]
    day, night = datetime(2026, 3, 1, 12, 0), datetime(2026, 3, 1, 6, 29)
    found = [
        (priority, at.hour, one.wants(priority, at)) for priority in ("critical", "high", "low") for at in (day, night)
    ]
    assert [truth for _, _, truth in found] == [True, True, True, False, False, False]


def test_a_failure_is_tried_again(hook: _Hook) -> None:
    """A notice that is refused is sent again, and those behind it wait their turn."""
    hook.codes = [503, 500]
    waiting = NoticeQueue(_webhook(hook.url), _no_bus, retry_s=0.01)
    for number in range(3):
        waiting.put({**NOTICE, "value": number})
    assert [json.loads(hook.posts.get(timeout=WITHIN_S)[1])["value"] for _ in range(3)] == [0, 1, 2]
    waiting.close()
    assert (waiting.sent, waiting.failed, waiting.problem) == (3, 2, None)


def test_notices_survive_on_disk(tmp_path: Path, hook: _Hook) -> None:
    """Notices that could not be sent are files, which the next process sends and removes."""
    away = NoticeQueue(_webhook("http://127.0.0.1:1"), _no_bus, tmp_path / "one")
    for number in range(3):
        away.put({**NOTICE, "value": number})
    away.close()
    assert len(list((tmp_path / "one").glob("*.json"))) == 3
    back = NoticeQueue(_webhook(hook.url), _no_bus, tmp_path / "one")
    assert [json.loads(hook.posts.get(timeout=WITHIN_S)[1])["value"] for _ in range(3)] == [0, 1, 2]
    back.close()
    assert list((tmp_path / "one").glob("*")) == []


def test_a_full_queue_counts(tmp_path: Path, hook: _Hook) -> None:
    """Beyond the limit notices are only counted, and the next one that is sent says how many there were."""
    hook.codes = [503]
    waiting = NoticeQueue(_webhook(hook.url), _no_bus, tmp_path, notices_max=2, retry_s=0.5)
    for number in range(5):
        waiting.put({**NOTICE, "value": number})
    first = json.loads(hook.posts.get(timeout=WITHIN_S)[1])
    assert (first["value"], first["more"]) == (0, 3)
    assert json.loads(hook.posts.get(timeout=WITHIN_S)[1]) == {**NOTICE, "value": 1}
    waiting.close()


def test_a_flood_becomes_one_notice(hook: _Hook) -> None:
    """After some notices in a short time, all that follow are sent as one, with the names of all."""
    waiting = NoticeQueue(_webhook(hook.url), _no_bus, group_after=2, group_s=0.5)
    for number in range(50):
        waiting.put({**NOTICE, "path": f"p/{number}"})
    told = [json.loads(hook.posts.get(timeout=WITHIN_S)[1]) for _ in range(3)]
    waiting.close()
    assert [one.get("more", 0) for one in told] == [0, 0, 47]
    assert [one["path"] for one in told[2]["alarms"]] == [f"p/{number}" for number in range(2, 50)]
    assert waiting.sent == 50


def test_a_receiver_that_hangs_delays_nobody(hook: _Hook) -> None:
    """While one receiver never answers, the others are told at once."""
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        receivers = {"deaf": _webhook(url), "one": _webhook(hook.url)}
        told = Notifications(receivers, _no_bus)
        told.raise_alarm(NOTICE, ["deaf", "one"], 0.0)
        assert json.loads(hook.posts.get(timeout=WITHIN_S)[1])["alarm"] == "hot"
        assert told.queues["deaf"].waiting == 1
        for one in told.queues.values():
            one.stop()


def test_reminder_and_escalation(tmp_path: Path) -> None:
    """While nobody acknowledges, a receiver is reminded, and another one told; an acknowledged alarm is quiet."""
    asked: queue.SimpleQueue[tuple[str, Json]] = queue.SimpleQueue()
    text = (
        "[receiver.one]\ncall = 'shift'\nremind_after = '1m'\nescalate_after = '90s'\nescalate_to = 'two'\n"
        "[receiver.two]\ncall = 'boss'"
    )
    told = Notifications(_read(tmp_path, text), lambda _name, path, args: asked.put((path, args)))

    def next_notice() -> tuple[str, str]:
        path, args = asked.get(timeout=WITHIN_S)
        assert isinstance(args, list)
        assert isinstance(args[0], dict)
        return path, str(args[0]["kind"])

    told.raise_alarm(NOTICE, ["one"], 0.0)
    assert next_notice() == ("shift", "raised")
    told.advance(59.0, lambda _alarm, _path: NOTICE)
    told.advance(60.0, lambda _alarm, _path: NOTICE)
    assert next_notice() == ("shift", "reminder")
    told.advance(100.0, lambda _alarm, _path: NOTICE)
    assert next_notice() == ("boss", "escalation")
    told.advance(120.0, lambda _alarm, _path: NOTICE)
    assert next_notice() == ("shift", "reminder")
    told.settle("hot", "oven/temperature")
    told.advance(1000.0, lambda _alarm, _path: NOTICE)
    told.close()
    assert asked.empty()
