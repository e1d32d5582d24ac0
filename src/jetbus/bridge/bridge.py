"""``Bridge``: follows the far bus and keeps the near one the same below a prefix.

One place, ``_settle``, decides which elements of the far bus are mounted: all that the rule matches, while the far
bus is there, the bridge has the prefix for itself, and the area is not a loop (see ``loop_guard``).
The near bus never has anything of a far bus that is away.

::

    far bus                            bridge                                         near bus
    fetch of the rule --- events --->  Following, _hear  --- add, change, remove --->  PREFIX + path
    set, call        <-- request ---   NearSession       <-- set, call of a peer ---
                      --- answer --->  _Relay            --- answer ---------------->

A bridge starts in this order; steps 2 and 3 wait for the answer to the one before:

1. its note as a reader on the far bus, and a fetch of the readers of the near bus;
2. a fetch of the notes of areas on the far bus, so that loops are known before anything is mounted;
3. its note of the area on the near bus. Only one bridge can own it, so another one with the same prefix waits here;
4. the fetch of the rule. Events may come before step 3 is answered: they are kept in ``_mounts`` until then.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import ssl
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from jetbus.bridge.ends import Following, Mount, NearSession, after
from jetbus.bridge.loop_guard import NOTE, READERS, LoopGuard, Seal, read_prefix
from jetbus.bridge.status import Blocked, Phase, SameBus, Status
from jetbus.errors import JetError, NotConnected, Occupied
from jetbus.json_types import Json
from jetbus.loops import run, until_stopped
from jetbus.paths import is_daemons
from jetbus.peer.address import read_url
from jetbus.peer.aio import FetchAsync, PeerAsync, StateAsync
from jetbus.peer.connection import CLOSE_S, backoff_s
from jetbus.peer.elements import Spawn
from jetbus.peer.events import Event
from jetbus.peer.values import encode_value
from jetbus.rules import Rule
from jetbus.rules import rule as make_rule

log = logging.getLogger("jetbus.bridge")

PATIENCE_S = 60.0
MOUNTS_MAX = 100_000
RETRY_S = 1.0
"""Time until paths that could not be added are tried again."""
UNSENT_BYTES_MAX = 1 << 20
"""Bytes that the near daemon has not read yet; above this, newer values replace older ones."""


class Bridge:
    """Bridge that mounts the matches of a rule on the far bus in the near one, below a prefix.

    >>> async with Bridge("jet://plant2", "jet://localhost", prefix="plant2/") as bridge:       # doctest: +SKIP
    ...     await bridge.wait()
    """

    def __init__(
        self,
        far_url: str | None,
        near_url: str | None = None,
        *,
        prefix: str,
        rule: str | Rule | None = None,
        patience_s: float = PATIENCE_S,
        timeout_s: float | None = None,
        access: Mapping[str, Json] | None = None,
        public: bool = False,
        mounts_max: int = MOUNTS_MAX,
        name: str = "bridge",
        far_user: str | None = None,
        far_password: str | None = None,
        near_user: str | None = None,
        near_password: str | None = None,
        far_tls: ssl.SSLContext | None = None,
        near_tls: ssl.SSLContext | None = None,
        on_status: Callable[[Status], object] | None = None,
    ) -> None:
        self.prefix = read_prefix(prefix)
        self._rule = make_rule(rule)
        if self._rule.sort is not None:
            raise ValueError("a bridge mounts what matches, not a sorted list; leave the sorting out of its rule")
        self._seal = Seal(self.prefix)
        self.id = self._seal.id
        self._options: dict[str, Any] = {"access": access, "timeout_s": timeout_s}
        self._mounts_max = mounts_max
        self._on_status = on_status
        self._far = PeerAsync(
            far_url,
            name=f"{name} {self.prefix}",
            user=far_user,
            password=far_password,
            tls=far_tls,
            on_loss=self._on_far_loss,
            on_return=self._begin,
        )
        self._near = PeerAsync(
            near_url,
            session=self._near_session(patience_s),
            name=f"{name} {self.prefix}",
            user=near_user,
            password=near_password,
            tls=near_tls,
            on_loss=self._tell_status,
            on_return=self._on_near_return,
        )
        far_name = far_user if far_user is not None else read_url(far_url).user
        if far_name is not None and access is None and not public:
            raise ValueError(
                f"the bridge logs in at {self._far.url} and may see what others may not; say who may see it here"
                " (access), or that everybody may (public)"
            )
        session = self._session
        session.on_added = self._on_added
        session.on_refused = self._on_refused
        session.catch_up = self._catch_up
        self._note = Mount(
            self.prefix,
            self.prefix + NOTE,
            encode_value({**self._seal.area_note, "far": self._far.url}),
            fetch_only=True,
        )
        self._guard = LoopGuard(self.id)
        self._mounts: dict[str, Mount] = {}
        """All that the far bus has told, by its path there; not all of it is on the near bus."""
        self._blocked = Blocked(self.prefix)
        self._reader: StateAsync | None = None
        self._fetching: Following | None = None
        self._fetches: list[FetchAsync] = []
        self._following = False
        """True when the far bus has sent everything that matches now."""
        self._has_prefix = False
        self._phase = Phase.CONNECTING
        self._beginning: asyncio.Task[None] | None = None
        self._retrying: asyncio.Task[None] | None = None
        self._stopped = asyncio.Event()

    def _near_session(self, patience_s: float) -> Callable[[Spawn], NearSession]:
        # A function, because ``PeerAsync`` creates its session itself. The far peer must be there before.
        def made(spawn: Spawn) -> NearSession:
            self._session = NearSession(self._far.session, patience_s, spawn)
            return self._session

        return made

    # -- from start to stop

    async def start(self, *, wait: bool = False) -> None:
        """Connect and mount; returns when all that is on the far bus has been told to the near one.

        Raises when one of the daemons is not there, unless it is to ``wait`` for both, and when both are the same bus.
        """
        try:
            await self._introduce(wait)
            if self._guard.same_bus:
                raise SameBus(f"{self._far.url} and {self._near.url} are the same bus; a bridge needs two")
            self._retrying = asyncio.create_task(self._retry_regularly())
            await self._mount_first(wait)
        except BaseException:
            await self.stop()
            raise

    async def _introduce(self, wait: bool) -> None:
        """Connect to both buses, leave a note on the far one, and read the notes on the near one."""
        for attempt in itertools.count():
            try:
                # The far bus first: its note must be there before that on the near bus; see ``loop_guard``.
                await self._far.connect()
                if self._reader is None:
                    note = {**self._seal.reader_note, "prefix": self.prefix, "near": self._near.url}
                    self._reader = await self._far.add_state(READERS + self.id, note)
                await self._near.connect()
                await self._near.fetch(callback=self._on_reader, starts_with=READERS).ready()
            except NotConnected as problem:
                if not wait:
                    raise
                if not attempt:
                    log.warning("%s; it is waited for", problem)
                await asyncio.sleep(backoff_s(attempt))
            else:
                return

    async def _mount_first(self, wait: bool) -> None:
        self._beginning = task = asyncio.create_task(self._mount_all())
        try:
            await asyncio.wait([task])
            if task.cancelled():
                raise NotConnected(f"the connection to {self._far.url} was lost at once; is it a Jet daemon?")
            task.result()
        except NotConnected:
            if not wait:
                raise
            # It starts again with the next connection.

    async def stop(self) -> None:
        """Leave both buses; the mounted elements leave the near one."""
        tasks = [task for task in (self._beginning, self._retrying) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._forget()
        if self._reader is not None and self._reader.added:
            # node-jet 3's daemon does not report the elements that a closed connection owned.
            with contextlib.suppress(JetError, TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await self._reader.remove()
        await self._near.close()
        await self._far.close()
        self._stopped.set()
        self._tell_status()

    async def wait(self) -> None:
        """Wait until the bridge is stopped; lost connections do not end it."""
        await self._stopped.wait()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.stop()

    # -- status

    @property
    def status(self) -> Status:
        """Return the phase and the counts."""
        has_note = self._note.added and self._note not in self._blocked
        mounted = len(self._session.owned) - has_note - self._blocked.trying
        return Status(self._find_phase(), mounted, len(self._blocked))

    @property
    def far(self) -> PeerAsync:
        """The peer on the far bus."""
        return self._far

    @property
    def near(self) -> PeerAsync:
        """The peer on the near bus."""
        return self._near

    def count_attempts(self, path: str) -> int:
        """Return how often a path that is ``blocked`` was tried to add."""
        return self._blocked.count_attempts(path)

    @property
    def blocked(self) -> list[str]:
        """Paths on the near bus that could not be added; they are tried again."""
        return self._blocked.paths

    @property
    def conflated(self) -> int:
        """Number of values that were replaced by newer ones because the near daemon was slow."""
        return 0 if self._fetching is None else self._fetching.conflated

    def _find_phase(self) -> Phase:
        if self._stopped.is_set():
            return Phase.STOPPED
        if not self._far.connected:
            return Phase.CONNECTING if self._phase is Phase.CONNECTING else Phase.FAR_LOST
        if not self._near.connected:
            return Phase.CONNECTING if self._phase is Phase.CONNECTING else Phase.NEAR_LOST
        if self._note in self._blocked:
            return Phase.WAITING
        return Phase.MOUNTED if self._following and self._has_prefix else Phase.MOUNTING

    def _tell_status(self) -> None:
        """Log the phase and call the callback, if it is another one."""
        status = self.status
        if status.phase is self._phase:
            return
        self._phase = status.phase
        log.info("%s from %s: %s", self.prefix, self._far.url, status)
        if self._on_status is not None:
            try:
                self._on_status(status)
            except Exception:
                log.exception("a callback failed")

    # -- the far bus comes and goes

    def _begin(self) -> None:
        # ``start`` mounts for the first time and reports its errors; later connections pass here.
        if self._beginning is not None:
            self._beginning = asyncio.create_task(self._mount_again())

    async def _mount_again(self) -> None:
        while True:
            try:
                await self._mount_all()
            except NotConnected:
                return  # it starts again with the next connection
            except JetError as problem:
                log.error("%s is back, but what is there cannot be mounted: %s", self._far.url, problem)
                await asyncio.sleep(RETRY_S)
            else:
                return

    async def _mount_all(self) -> None:
        """Follow the far bus: first the notes of other bridges, then the matches of the rule."""
        self._forget()
        self._tell_status()
        await self._far.info()  # our note is there, or was refused
        notes = self._far.fetch(callback=self._on_note, ends_with=NOTE)
        self._fetches.append(notes)
        await notes.ready()
        self._add_mount(self._note)
        fetch_id = self._far.session.next_fetch_id()
        self._fetching = Following(fetch_id, self._rule, self._hear, self._is_congested)
        fetch = self._far.start_fetch(self._fetching)
        self._fetches.append(fetch)
        await fetch.ready()
        with contextlib.suppress(NotConnected):
            for _ in range(2):  # what is decided by the first answer is done by the second
                await self._near.info()
        self._following = True
        self._guard.is_introducing = False
        self._tell_status()

    def _on_far_loss(self) -> None:
        if self._beginning is not None:
            self._beginning.cancel()
        self._forget()
        self._tell_status()

    def _forget(self) -> None:
        """Forget all that is known of the far bus, and remove all of it from the near one; the note goes last."""
        self._following = False
        for fetch in self._fetches:
            fetch.close()
        self._fetches, self._fetching = [], None
        self._take_off([self._note, *self._mounts.values()])
        self._has_prefix = False
        self._mounts.clear()
        self._guard.clear()

    def _hear(self, events: Iterable[Event]) -> None:
        """Apply events of the far bus."""
        mounts, session = self._mounts, self._session
        for event in events:
            mount = mounts.get(event.path)
            if (
                event.kind == "change"
                and mount is not None
                and mount.is_method is event.is_method
                and mount.fetch_only is event.fetch_only
            ):
                is_redescribed = mount.note(event)
                value = None if event.is_method else encode_value(event.value)
                # A state that is only stale has not changed; were it told, it would live again on the near bus.
                if is_redescribed or not (event.is_method or (event.stale and value == mount.value)):
                    session.tell(mount, value, is_redescribed=is_redescribed)
            elif not event.path.endswith(NOTE):  # these are told by a fetch of their own
                # A state that has become a method, or read-only, is another element: removed and added again.
                if mount is not None:
                    self._drop(mount)
                if event.kind != "remove":
                    self._put(event)

    def _put(self, event: Event) -> None:
        """Mount the new elements of the far bus."""
        path = event.path
        # The first is about the far daemon only, and the second is true only on the bus that it was written on.
        if is_daemons(path) or path.startswith(READERS):
            return
        value = None if event.is_method else encode_value(event.value)
        mount = Mount(path, self.prefix + path, value, fetch_only=event.fetch_only, **self._options)
        mount.note(event)
        self._mounts[path] = mount
        if self._has_prefix and not path.startswith(self._guard.closed):
            self._add_mount(mount)

    def _drop(self, mount: Mount) -> None:
        del self._mounts[mount.far_path]
        self._take_off([mount])

    # -- loops

    def _on_note(self, event: Event) -> None:
        """Apply the note of a bridge that mounts something into the far bus."""
        self._catch_up()
        path = event.path
        if (mount := self._mounts.get(path)) is not None:
            self._drop(mount)
        if event.kind == "remove":
            prefix = self._guard.leave(path)
            # Of a bridge that is gone the note goes first; all else is gone when the daemon answers.
            after(self._far.session, lambda: self._settle(self._guard.remove(prefix)))
            return
        self._settle(self._guard.add(path, event.value))
        self._put(event)
        self._make_sure()

    def _make_sure(self) -> None:
        """Decide on new areas as soon as the near daemon has answered: the readers of its bus are known by then."""
        unsure = set(self._guard.unsure)
        if unsure and self._near.connected:
            after(self._session, lambda: self._settle(self._guard.be_sure(unsure)))

    def _on_reader(self, event: Event) -> None:
        """Apply the note of a bridge that reads the near bus."""
        was_same = self._guard.same_bus
        if event.kind == "remove":
            self._settle(self._guard.remove_reader(event.path))
        else:
            self._settle(self._guard.add_reader(event.path, event.value))
        if self._guard.same_bus and not was_same and self._following:
            log.error("%s and %s have become the same bus; nothing is mounted", self._far.url, self._near.url)

    def _settle(self, changed: bool = True) -> None:
        """Add missing elements to the near bus, in the order of the far bus, and remove surplus ones."""
        if not changed:
            return
        closed, loops = self._guard.closed, self._guard.loops
        on: list[Mount] = []
        off: list[Mount] = []
        for mount in self._mounts.values():
            if not self._has_prefix or mount.far_path.startswith(loops):
                off.append(mount)
            # An area that is not decided yet is closed but no loop: nothing is added there, and nothing taken off.
            elif not mount.far_path.startswith(closed):
                on.append(mount)
        self._take_off(off)
        for mount in on:
            if not mount.added and mount not in self._blocked:
                self._add_mount(mount)

    # -- the near bus

    def _add_mount(self, mount: Mount) -> None:
        # Greater, not equal: the note of the area is owned, too.
        if len(self._session.owned) > self._mounts_max:
            text = f"the bridge mounts {self._mounts_max}; give it a narrower rule, or more mounts_max"
            self._on_refused(mount, JetError(text))
        else:
            self._session.add_mount(mount)

    def _take_off(self, mounts: list[Mount]) -> None:
        """Remove in reverse order: the note of an area must not go before its elements."""
        for mount in reversed(mounts):
            self._session.remove_mount(mount)
            self._blocked.remove(mount)

    def _on_added(self, mount: Mount) -> None:
        if self._blocked and self._blocked.remove(mount):
            log.info("%s could be added now", mount.path)
        if mount is self._note and not self._has_prefix:
            self._has_prefix = True
            self._settle()
            # All that ``_settle`` has just sent is answered before that.
            after(self._session, self._tell_status)

    def _on_refused(self, mount: Mount, error: JetError) -> None:
        """Note an element that could not be added; it is logged once and tried again."""
        if mount is self._note and isinstance(error, Occupied):
            error = JetError("another bridge has that prefix; give this one a prefix of its own, or let it stand by")
        self._blocked.add(mount, error)
        if mount is self._note:
            self._has_prefix = False
            self._settle()
            self._tell_status()

    async def _retry_regularly(self) -> None:
        while True:
            await asyncio.sleep(RETRY_S)
            if self._near.connected:
                for mount in self._blocked.due():
                    self._add_mount(mount)

    def _on_near_return(self) -> None:
        self._make_sure()
        after(self._session, self._tell_status)

    # -- a slow near daemon

    def _is_congested(self) -> bool:
        """Return whether the near daemon has too much to read; if so, send waiting events once it has read that."""
        if not self._near.connected or self._near.unsent_bytes <= UNSENT_BYTES_MAX:
            return False
        # Also when the connection is lost, or the events would wait for ever.
        after(self._session, self._catch_up, lost=True)
        return True

    def _catch_up(self) -> None:
        """Send the events that wait."""
        if self._fetching is not None:
            self._hear(self._fetching.take())


def run_bridge(
    far_url: str | None,
    near_url: str | None = None,
    *,
    prefix: str,
    wait: bool = False,
    stop: threading.Event | None = None,
    **options: Any,
) -> None:
    """Run a bridge until ``stop`` is set, or Ctrl-C; the options are those of ``Bridge``.

    ``on_status`` is called, on the bridge's event loop, whenever a connection is lost or back, and when all is mounted.
    With ``wait`` daemons that are not there yet are waited for.
    """
    stopped = stop or threading.Event()

    async def run_until_stopped() -> None:
        bridge = Bridge(far_url, near_url, prefix=prefix, **options)
        try:
            await until_stopped(bridge.start(wait=wait), stopped)
            await until_stopped(bridge.wait(), stopped)
        finally:
            await bridge.stop()

    run(run_until_stopped())
