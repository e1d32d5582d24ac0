"""One browser tab on the bus: sends the elements that the tab shows, and carries out its requests.

Messages are JSON objects in both directions. The browser asks with ``{"id", "method", "params"}`` and is answered with
``{"id", "result"}`` or ``{"id", "error"}``. Without being asked it is sent

    {"status": {...}}                          the connection to the daemon and the daemon's features
    {"tree": {"add": [[path, flags], ...],     paths that came or whose flags have changed, and paths that went;
              "remove": [...], "reset": true}} with ``reset`` the list starts anew
    {"values": {path: [value, ms, count]}}     watched paths: latest value, when it came, how many events of it the
                                               mirror has seen; with 0 the value is older, and ms when it was found
    {"schemas": {path: schema}}                schemas of watched elements, where they have one
    {"meta": {path: {"ts", "quality",          time and quality of watched values, where their owners state them
              "reason"}}}

Flags are a sum: those of the mirror, and of watched paths also 8 stale, 16 bad, 32 uncertain.

Changes are not passed on one by one. They mark their path, and a flush every ``FLUSH_S`` sends the latest value of each
marked path that is watched: a tab that shows forty rows gets at most forty values twenty times a second, whatever the
bus does, and a hidden tab, which watches nothing, gets nothing.

**A tab that does not read** costs little. A message is encoded when the one before it has left, so that no more than
two wait; changes only mark their path; a tree with more than ``PENDING_MAX`` news is listed anew once the tab reads
again; and no more than ``REQUESTS_AT_A_TIME`` requests are carried out before the next one is read.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

import msgspec

from jetbus.errors import Invalid, JetError
from jetbus.journal import BadInstant, JournalError
from jetbus.paths import is_daemons
from jetbus.peer.restore import Difference, describe_outcome, find_restorable
from jetbus.peer.subscription import matches
from jetbus.peer.values import plain
from jetbus.radar.logins import Login, NoHistory
from jetbus.radar.mirror import LOGINS, METHOD, READ_ONLY, USERS, MirrorRow
from jetbus.radar.search import find_paths
from jetbus.radar.watched import Descriptions
from jetbus.rules import Rule, rule

FLUSH_S = 0.05
TREE_CHUNK = 5_000
"""Paths in one message of the tree, so that a page with 100,000 of them can start to draw."""
VALUES_BYTES = 1 << 20
"""Length at which a message of values ends; the others follow in the next one."""
PENDING_MAX = 20_000
"""Paths that came, went or changed their flags while a tab does not read, before its tree is listed anew."""
REQUESTS_AT_A_TIME = 16
"""Requests of a tab that are carried out side by side."""
WATCHED_MAX = 2_000
"""Paths that one tab may watch at a time; it shows far fewer."""
SEARCH_MAX = 1_000
RESTORE_MAX = 5_000
"""States that are set back at a time."""
RESTORES_AT_A_TIME = 32
"""Sets that wait for their owners side by side."""

Send = Callable[[str], Awaitable[None]]


class TabRequest(msgspec.Struct):
    """A request of the browser."""

    method: str
    id: int | None = None
    params: dict[str, Any] = {}


class _Params(msgspec.Struct, forbid_unknown_fields=True):
    """Parameters of one method."""


class TabWatch(_Params):
    paths: list[str]


class TabSearch(_Params):
    text: str
    limit: int = SEARCH_MAX


class TabGet(_Params):
    path: str


class TabSet(_Params):
    path: str
    value: Any
    timeout_s: float | None = None


class TabCall(_Params):
    path: str
    args: list[Any] | dict[str, Any] | None = None
    timeout_s: float | None = None


class TabCompare(_Params):
    rule: str
    instant: str | int


class TabRestore(_Params):
    rule: str
    instant: str | int
    paths: list[str]


class TabSession:
    """The bus as one tab sees it. ``run`` it next to ``serve``."""

    def __init__(self, login: Login, send: Send) -> None:
        self._send = send
        self._sending = asyncio.Lock()
        self._login = login
        self._mirror = login.attach(self)
        self._watched: set[str] = set()
        self._marked: set[str] = set()
        self._is_jetbus = False
        self._descriptions = Descriptions(self._note_marks, self._set_due)
        self._marks: dict[str, int] = {}
        """Flags of watched paths by their descriptions."""
        self._reset = True
        """The tree is to be listed anew; until then, adds and removes need not be noted."""
        self._listing: Iterator[str] = iter(())
        """Paths of the mirror that the tab does not know yet."""
        self._added: dict[str, None] = {}
        self._removed: set[str] = set()
        self._due = asyncio.Event()
        self._due.set()
        self._status_due = True

    # -- news of the mirror

    def note_value(self, path: str) -> None:
        """Send the value of a watched path with the next flush."""
        self._marked.add(path)
        self._due.set()

    def note_element(self, path: str) -> None:
        """Send the flags of a path with the next flush."""
        if self._reset:
            return
        # Gone and back between two flushes: all that the tab has to hear of are the new flags.
        self._removed.discard(path)
        self._added[path] = None
        self._bound_news()

    def note_removal(self, path: str) -> None:
        """Let the tab remove a path with the next flush."""
        self._descriptions.forget(path)
        self._marks.pop(path, None)
        if self._reset:
            return
        self._added.pop(path, None)
        self._removed.add(path)
        self._bound_news()

    def note_status(self) -> None:
        """Send the status with the next flush."""
        self._status_due = True
        self._due.set()

    def _bound_news(self) -> None:
        self._due.set()
        if len(self._added) + len(self._removed) > PENDING_MAX:
            self._reset, self._added, self._removed = True, {}, set()

    def _note_marks(self, path: str, marks: int) -> None:
        if path in self._mirror.rows and self._marks.get(path, 0) != marks:
            self._marks[path] = marks
            self.note_element(path)

    def _set_due(self) -> None:
        self._due.set()

    # -- the browser

    async def run(self) -> None:
        """Flush changes until cancelled."""
        try:
            while True:
                await self._due.wait()
                self._due.clear()
                await self._flush()
                # After the flush: the first change after a silence goes out at once, only those that follow wait.
                await asyncio.sleep(FLUSH_S)
        finally:
            self._descriptions.stop()
            await self._mirror.detach(self, self._watched)

    async def serve(self, messages: Callable[[], Awaitable[str]]) -> None:
        """Carry out the requests of the browser, until ``messages`` raises or this is cancelled."""
        slots = asyncio.Semaphore(REQUESTS_AT_A_TIME)
        requests: set[asyncio.Task[None]] = set()

        def end(task: asyncio.Task[None]) -> None:
            requests.discard(task)
            slots.release()

        try:
            while True:
                await slots.acquire()
                # A request that waits for its owner must not keep the next one waiting.
                task = asyncio.create_task(self.receive(await messages()))
                requests.add(task)
                task.add_done_callback(end)
        finally:
            for task in requests:
                task.cancel()
            await asyncio.gather(*requests, return_exceptions=True)

    async def _flush(self) -> None:
        """Send the changes since the last flush."""
        if self._status_due:
            self._status_due = False
            await self._send_json({"status": await self._describe()})
        while tree := self._take_tree():
            await self._send_json({"tree": tree})
        for name, news in self._descriptions.take().items():
            await self._send_json({name: news})
        # Marks of paths that are not watched any more are dropped: ``watch`` marks each new path.
        marked, self._marked = self._marked & self._watched, set()
        await self._send_values(marked)

    def _take_tree(self) -> dict[str, Any] | None:
        """Return the next message of the tree, or None if the tab knows all of it."""
        rows, reset = self._mirror.rows, self._reset
        if reset:
            self._reset, self._listing = False, iter(list(rows))
        paths = list(itertools.islice(self._listing, TREE_CHUNK))
        for path in list(itertools.islice(self._added, TREE_CHUNK - len(paths))):
            del self._added[path]
            paths.append(path)
        removed, self._removed = self._removed, set()
        if not (reset or paths or removed):
            return None
        # A path of the listing may have gone meanwhile.
        added = [(path, rows[path].flags | self._marks.get(path, 0)) for path in paths if path in rows]
        return {"add": added, "remove": list(removed), "reset": reset}

    async def _send_values(self, paths: Iterable[str]) -> None:
        part: list[bytes] = []
        length = 0
        for path in paths:
            row = self._mirror.rows.get(path)
            if row is None:
                continue
            part.append(_encode(path) + b":" + _encode(row.show()))
            length += len(part[-1])
            if length >= VALUES_BYTES:
                await self._send_part(part)
                part, length = [], 0
        if part:
            await self._send_part(part)

    async def _send_part(self, part: list[bytes]) -> None:
        async with self._sending:
            await self._send((b'{"values":{' + b",".join(part) + b"}}").decode())

    async def _send_json(self, message: dict[str, Any]) -> None:
        # Encoded when it is its turn: a tab that does not read has no more than one message waiting here.
        async with self._sending:
            await self._send(_encode(message).decode())

    async def _describe(self) -> dict[str, Any]:
        rows = self._mirror.rows
        # In a thread, because the first question opens the journal.
        has_history = await asyncio.to_thread(self._login.history.is_there)
        daemon = await self._mirror.read_info()
        if daemon:
            self._is_jetbus = daemon.get("name") == "jetbus"
            self._follow_descriptions()
        shows_nothing = self._mirror.is_complete and not rows
        has_users = bool(rows[USERS].value) if USERS in rows else may_have_users(daemon, shows_nothing)
        return {
            "connected": self._mirror.peer.connected,
            "problem": self._mirror.problem,
            "daemon": daemon,
            "user": self._login.user,
            "users": has_users,
            # Only administrators may see the logins; a daemon without users makes no difference between people.
            "admin": LOGINS in rows or (USERS in rows and not has_users),
            "history": has_history,
        }

    async def receive(self, text: str) -> None:
        """Handle one message of the browser and answer it."""
        try:
            request = msgspec.json.decode(text, type=TabRequest)
        except msgspec.MsgspecError as problem:
            await self._send_json({"error": {"message": f"this is not a request: {problem}"}})
            return
        try:
            answer = {"result": await self._carry_out(request)}
        except JetError as problem:
            answer = {"error": {"type": type(problem).__name__, "message": str(problem), "data": problem.data}}
        if request.id is not None:
            await self._send_json({"id": request.id, **answer})

    async def _carry_out(self, request: TabRequest) -> Any:
        if request.method not in METHODS:
            raise Invalid(f"there is no method {request.method}; there are {', '.join(METHODS)}")
        shape, method = METHODS[request.method]
        try:
            params = msgspec.convert(request.params, shape)
        except msgspec.ValidationError as problem:
            raise Invalid(f"{request.method}: {problem}") from None
        return await method(self, params)

    async def _watch(self, params: TabWatch) -> None:
        if len(params.paths) > WATCHED_MAX:
            raise Invalid(f"a tab watches at most {WATCHED_MAX} paths, not {len(params.paths)}")
        wanted = set(params.paths)
        self._mirror.watch(self, self._watched, wanted)
        for path in wanted - self._watched:
            self.note_value(path)
        self._watched = wanted
        self._follow_descriptions()

    def _follow_descriptions(self) -> None:
        """Ask our own daemon about the watched paths; others do not know the request."""
        if self._is_jetbus and self._mirror.peer.connected:
            self._descriptions.follow(self._mirror.peer, self._watched)

    async def _search(self, params: TabSearch) -> dict[str, Any]:
        # Over the paths of the mirror: a search asks nothing of the bus.
        values = ((path, row.value, bool(row.flags & METHOD)) for path, row in self._mirror.rows.items())
        found = find_paths(params.text, values)
        return {"paths": found[: min(params.limit, SEARCH_MAX)], "total": len(found)}

    async def _get(self, params: TabGet) -> Any:
        row = self._mirror.rows.get(params.path)
        return None if row is None else row.show()

    async def _set(self, params: TabSet) -> dict[str, Any]:
        result = await self._mirror.peer.set(params.path, params.value, timeout_s=params.timeout_s)
        return {"adapted": result.adapted, "warning": result.warning}

    async def _call(self, params: TabCall) -> Any:
        started = time.perf_counter()
        # As data, since an argument may be called like an option of ``call``.
        result = await self._mirror.peer.call_with(params.path, params.args or [], timeout_s=params.timeout_s)
        return {"result": result, "ms": (time.perf_counter() - started) * 1000}

    # -- the way back

    async def _compare(self, params: TabCompare) -> dict[str, Any]:
        """Return the states that a set could bring back to the value that they had at an instant."""
        found = await self._find_restorable(params.rule, params.instant)
        rows = [{"path": path, "now": plain(now), "then": then} for path, now, then in found[:RESTORE_MAX]]
        return {"differences": rows, "total": len(found)}

    async def _restore(self, params: TabRestore) -> dict[str, str]:
        """Set these paths back to their value at an instant, and return the outcome of each."""
        if len(params.paths) > RESTORE_MAX:
            raise Invalid(f"at most {RESTORE_MAX} states are set back at a time, not {len(params.paths)}")
        wanted = set(params.paths)
        # Compared anew: a state may have changed since the user has seen the differences.
        found = [one for one in await self._find_restorable(params.rule, params.instant) if one.path in wanted]
        slots = asyncio.Semaphore(RESTORES_AT_A_TIME)

        async def set_back(difference: Difference) -> str:
            async with slots:
                try:
                    return describe_outcome(await self._mirror.peer.set(difference.path, difference.after))
                except JetError as refusal:
                    return describe_outcome(refusal)

        outcomes = await asyncio.gather(*map(set_back, found))
        same = dict.fromkeys(wanted - {one.path for one in found}, "already as it was")
        return {**same, **{one.path: outcome for one, outcome in zip(found, outcomes, strict=True)}}

    async def _find_restorable(self, text: str, instant: str | int) -> list[Difference]:
        wanted = rule(text)
        now = {path: row.value for path, row in self._mirror.rows.items() if _may_restore(wanted, path, row)}
        try:
            then = await asyncio.to_thread(lambda: self._login.history.get().read_values(instant, text))
        except (NoHistory, BadInstant, JournalError) as problem:
            raise Invalid(str(problem)) from None
        return list(find_restorable(now, then))


METHODS: dict[str, tuple[type[Any], Callable[[TabSession, Any], Awaitable[Any]]]] = {
    "watch": (TabWatch, TabSession._watch),
    "search": (TabSearch, TabSession._search),
    "get": (TabGet, TabSession._get),
    "set": (TabSet, TabSession._set),
    "call": (TabCall, TabSession._call),
    "compare": (TabCompare, TabSession._compare),
    "restore": (TabRestore, TabSession._restore),
}
"""Methods that a browser may ask for, with the parameters that they take."""


def may_have_users(daemon: dict[str, Any], shows_nothing: bool) -> bool:
    """Return True for a daemon of another make where a login may show more.

    They say whether they can log users in, not whether they have any. A cjet that has users shows nothing at all to a
    peer without a login, so one that shows something has none.
    """
    features = daemon.get("features")
    can_log_in = isinstance(features, dict) and features.get("authentication") is True
    return can_log_in and daemon.get("name") != "jetbus" and (shows_nothing or daemon.get("name") != "cjet")


def _may_restore(wanted: Rule, path: str, row: MirrorRow) -> bool:
    return not row.flags & (METHOD | READ_ONLY) and not is_daemons(path) and matches(wanted, path, row.value)


def _encode(message: Any) -> bytes:
    return msgspec.json.encode(message, enc_hook=_encode_other)


def _encode_other(value: Any) -> Any:
    """Return the JSON for bytes, with their type, or for a value that cannot be read, the reason."""
    return plain(value) if isinstance(value, bytes) else {"error": str(value)}
