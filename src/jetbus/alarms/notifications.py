"""Notifications: what is sent to whom when an alarm is raised, and again while nobody acknowledges it.

Each receiver has a thread and a queue of its own, so that one that hangs delays nothing else. A queue has a folder, if
one is given: each notice is a file until it is sent, and the next process goes on with those that are left.

    raised ---> queue of each receiver ---> send, again after a pause if that fails ---> sent
       |                                         more than GROUP_AFTER in ten minutes: the rest as one
       +-- still unacknowledged after remind_after, escalate_after ---> queue again
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path

from jetbus.alarms.receivers import NotSent, Receiver, Request
from jetbus.json_types import JsonObject

__all__ = ["NoticeQueue", "Notifications"]

NOTICES_MAX = 1_000
"""Notices that wait for one receiver; beyond it they are only counted, and the next one that is sent says how many."""
GROUP_AFTER = 20
GROUP_S = 600.0
"""After so many notices to a receiver within this time, all that follow are sent as one."""
RETRY_S, RETRY_S_MAX = 1.0, 60.0
"""Pause before a notice that could not be sent is tried again: the first one, and the longest."""
STOP_S = 2.0

log = logging.getLogger("jetbus.alarms")


class NoticeQueue:
    """The notices that wait for one receiver, and the thread that sends them."""

    def __init__(
        self,
        receiver: Receiver,
        request: Request,
        folder: Path | None = None,
        *,
        notices_max: int = NOTICES_MAX,
        group_after: int = GROUP_AFTER,
        group_s: float = GROUP_S,
        retry_s: float = RETRY_S,
    ) -> None:
        self._receiver = receiver
        self._request = request
        self._folder = folder
        self._notices_max = notices_max
        self._group_after, self._group_s = group_after, group_s
        self._retry_s = retry_s
        self._waiting: deque[tuple[Path | None, JsonObject]] = deque()
        self._changed = threading.Condition()
        self._stopped = threading.Event()
        self._sent_at: deque[float] = deque(maxlen=group_after)
        self._is_flood = False
        """True while notices are collected, to be sent as one."""
        self._number = 0
        self.sent = self.failed = self.uncounted = 0
        """Notices sent, attempts that failed, and notices that were only counted."""
        self.problem: str | None = None
        """Reason why the last attempt failed; None if it did not."""
        self._load()
        self._thread = threading.Thread(target=self._run, name=f"notify-{receiver.name}", daemon=True)
        self._thread.start()

    def _load(self) -> None:
        if self._folder is None:
            return
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for file in sorted(self._folder.glob("*.json")):
            with contextlib.suppress(OSError, ValueError):
                self._waiting.append((file, json.loads(file.read_text(encoding="utf-8"))))
            self._number = max(self._number, int(file.stem) + 1 if file.stem.isdigit() else 0)

    @property
    def waiting(self) -> int:
        """Number of notices that wait."""
        return len(self._waiting)

    def put(self, notice: JsonObject) -> None:
        """Add a notice, without waiting."""
        with self._changed:
            if len(self._waiting) >= self._notices_max:
                self.uncounted += 1
                return
            self._waiting.append((self._keep(notice), notice))
            self._changed.notify()

    def _keep(self, notice: JsonObject) -> Path | None:
        if self._folder is None:
            return None
        file = self._folder / f"{self._number:012}.json"
        self._number += 1
        try:
            part = file.with_suffix(".part")
            part.write_text(json.dumps(notice), encoding="utf-8")
            part.replace(file)
        except OSError as problem:
            log.error("receiver %s: a notice is kept in memory only: %s", self._receiver.name, problem.strerror)
            return None
        return file

    def _run(self) -> None:
        wait_s = self._retry_s
        while (batch := self._take()) is not None:
            try:
                self._receiver.send(_merge([notice for _, notice in batch], self.uncounted), self._request)
            except Exception as problem:
                text = str(problem) if isinstance(problem, NotSent) else type(problem).__name__
                self.failed += 1
                if self.problem != text:
                    log.error("receiver %s: %s; trying again", self._receiver.name, text)
                self.problem = text
                self._stopped.wait(wait_s)
                wait_s = min(wait_s * 2, RETRY_S_MAX)
                continue
            self.problem, wait_s = None, self._retry_s
            self._finish(batch)

    def _take(self) -> list[tuple[Path | None, JsonObject]] | None:
        """Wait for notices, and return those to send as one; None at the end. They stay in the queue until then."""
        with self._changed:
            while not self._stopped.is_set():
                pause_s = self._find_pause_s()
                self._is_flood = self._is_flood or pause_s > 0
                if self._waiting and pause_s <= 0:
                    return list(self._waiting) if self._is_flood else [self._waiting[0]]
                self._changed.wait(pause_s if self._waiting else None)
        return None

    def _find_pause_s(self) -> float:
        """Return how long to collect notices, because too many were sent."""
        if len(self._sent_at) < self._group_after:
            return 0.0
        return self._sent_at[-self._group_after] + self._group_s - time.monotonic()

    def _finish(self, batch: list[tuple[Path | None, JsonObject]]) -> None:
        with self._changed:
            for file, _ in batch:
                self._waiting.popleft()
                if file is not None:
                    with contextlib.suppress(OSError):
                        file.unlink()
            self.sent += len(batch)
            self.uncounted = 0
            self._is_flood = False
            self._sent_at.append(time.monotonic())

    def describe(self) -> JsonObject:
        """Return what is published of the receiver."""
        told: JsonObject = {"sent": self.sent, "waiting": self.waiting, "failed": self.failed, "problem": self.problem}
        return told

    def stop(self) -> None:
        """Send nothing more, without waiting for the attempt that is under way."""
        self._stopped.set()
        with self._changed:
            self._changed.notify()

    def close(self, within_s: float = STOP_S) -> None:
        """Send nothing more, and wait for the thread; one that hangs is left behind."""
        self.stop()
        self._thread.join(within_s)


def _merge(notices: list[JsonObject], uncounted: int) -> JsonObject:
    """Return several notices as one: the first, and how many more there are."""
    more = len(notices) - 1 + uncounted
    return notices[0] if not more else {**notices[0], "more": more, "alarms": [_name(one) for one in notices]}


def _name(notice: JsonObject) -> JsonObject:
    return {name: notice[name] for name in ("alarm", "path", "priority", "kind")}


class Notifications:
    """Notices to all receivers, with reminders and escalation. Its owner calls ``advance`` some times a minute."""

    def __init__(
        self,
        receivers: Mapping[str, Receiver],
        request: Request,
        folder: Path | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._receivers = receivers
        self._now = now
        self._due: dict[tuple[str, str, str, str], float] = {}
        """When the next notice is due, by alarm, path, receiver and kind."""
        self.queues = {
            name: NoticeQueue(one, request, None if folder is None else folder / name)
            for name, one in receivers.items()
        }

    def raise_alarm(self, told: JsonObject, names: Iterable[str], at_s: float) -> None:
        """Notify the receivers of an alarm that asks to be acknowledged, and from now on until it is."""
        for name in names:
            self._put(name, told, "raised")
        self.watch(told, names, at_s)

    def watch(self, told: JsonObject, names: Iterable[str], at_s: float) -> None:
        """Remind and escalate, for an alarm that asks since an instant and was notified then."""
        for name in names:
            one = self._receivers[name]
            key = str(told["alarm"]), str(told["path"]), name
            if one.remind_s is not None:
                self._due[(*key, "reminder")] = at_s + one.remind_s
            if one.escalate_s is not None:
                self._due[(*key, "escalation")] = at_s + one.escalate_s

    def settle(self, alarm: str, path: str) -> None:
        """Note that an alarm does not ask any more."""
        for key in [key for key in self._due if key[:2] == (alarm, path)]:
            del self._due[key]

    def advance(self, now_s: float, describe: Callable[[str, str], JsonObject | None]) -> None:
        """Send the reminders and escalations that are due; ``describe`` has an alarm as it is now."""
        for key in [key for key, due_s in self._due.items() if due_s <= now_s]:
            alarm, path, name, kind = key
            told = describe(alarm, path)
            one = self._receivers[name]
            if kind == "reminder" and one.remind_s is not None:
                self._due[key] = max(self._due[key] + one.remind_s, now_s)
                receiver = name
            else:
                del self._due[key]
                receiver = one.escalate_to or name
            if told is not None:
                self._put(receiver, {**told, "alarm": alarm, "path": path}, kind)

    def _put(self, name: str, told: JsonObject, kind: str) -> None:
        if self._receivers[name].wants(str(told["priority"]), self._now()):
            self.queues[name].put({**told, "kind": kind})

    def close(self) -> None:
        """End all threads."""
        for queue in self.queues.values():
            queue.stop()
        deadline = time.monotonic() + STOP_S
        for queue in self.queues.values():
            queue.close(max(deadline - time.monotonic(), 0.0))
