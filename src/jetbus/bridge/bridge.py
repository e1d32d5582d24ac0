"""``Bridge``: follows the far bus and keeps the near one the same below a prefix.

What of the far bus is on the near bus is decided in one place, ``_settle``: all that the rule matches, while the far
bus is there, the bridge has the prefix for itself, and the area is no loop (see ``areas``). The near bus never has
anything of a far bus that is away.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import ssl
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from jetbus.bridge.areas import NOTE, READERS, Areas, read_prefix
from jetbus.bridge.blocked import Blocked
from jetbus.bridge.far import Following, after
from jetbus.bridge.near import Mount, NearSession
from jetbus.bridge.status import Phase, SameBus, Status
from jetbus.errors import JetError, NotConnected, Occupied
from jetbus.paths import is_daemons
from jetbus.peer.aio import FetchAsync, PeerAsync, StateAsync
from jetbus.peer.connected import CLOSE_S, backoff_s
from jetbus.peer.elements import Spawn
from jetbus.peer.fetching import Event
from jetbus.peer.values import encode_value
from jetbus.rules import Rule
from jetbus.rules import rule as make_rule

log = logging.getLogger("jetbus.bridge")

PATIENCE_S = 60.0
MOUNTS_MAX = 100_000
RETRY_S = 1.0
"""How often what could not be added is tried again."""
UNSENT_BYTES_MAX = 1 << 20
"""When the near daemon has not taken this much, newer values replace older ones until it has."""


class Bridge:
    """Mounts what a rule matches on the far bus into the near one, below a prefix; from ``start`` to ``stop``.

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
        access: Mapping[str, Any] | None = None,
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
        self.id = uuid.uuid4().hex
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
        session = self._session
        session.on_added = self._on_added
        session.on_refused = self._on_refused
        session.catch_up = self._catch_up
        self._note = Mount(
            self.prefix, self.prefix + NOTE, encode_value({"id": self.id, "far": self._far.url}), fetch_only=True
        )
        self._areas = Areas(self.id)
        self._mounts: dict[str, Mount] = {}
        """All that the far bus has told, by its path there; not all of it is on the near bus."""
        self._blocked = Blocked(self.prefix)
        self._reader: StateAsync | None = None
        self._fetching: Following | None = None
        self._fetches: list[FetchAsync] = []
        self._following = False
        """Whether all that is on the far bus has been told."""
        self._has_prefix = False
        self._phase = Phase.CONNECTING
        self._beginning: asyncio.Task[None] | None = None
        self._retrying: asyncio.Task[None] | None = None
        self._stopped = asyncio.Event()

    def _near_session(self, patience_s: float) -> Callable[[Spawn], NearSession]:
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
            if self._areas.same_bus:
                raise SameBus(f"{self._far.url} and {self._near.url} are the same bus; a bridge needs two")
            self._retrying = asyncio.create_task(self._retry_regularly())
            await self._mount_first(wait)
        except BaseException:
            await self.stop()
            raise

    async def _introduce(self, wait: bool) -> None:
        """Connect to both, tell the far bus who reads it, and hear who reads the near one."""
        for attempt in itertools.count():
            try:
                await self._far.connect()
                if self._reader is None:
                    told = {"prefix": self.prefix, "near": self._near.url}
                    self._reader = await self._far.add_state(READERS + self.id, told)
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
            # It begins again with the next connection.

    async def stop(self) -> None:
        """Leave both buses; what was mounted leaves the near one."""
        tasks = [task for task in (self._beginning, self._retrying) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._forget()
        if self._reader is not None and self._reader.added:
            # node-jet 3's daemon tells nobody of what a closed connection owned.
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

    # -- what there is to know

    @property
    def status(self) -> Status:
        """How things are."""
        has_note = self._note.added and self._note not in self._blocked
        mounted = len(self._session.owned) - has_note - self._blocked.trying
        return Status(self._find_phase(), mounted, len(self._blocked))

    @property
    def blocked(self) -> list[str]:
        """Paths on the near bus that could not be added; they are tried again."""
        return self._blocked.paths

    @property
    def conflated(self) -> int:
        """How many values a newer one has replaced, since the near daemon was slow."""
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
        """Log the phase and tell who wants to know, if it is another one."""
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
        if self._beginning is not None:
            self._beginning = asyncio.create_task(self._mount_again())

    async def _mount_again(self) -> None:
        while True:
            try:
                await self._mount_all()
            except NotConnected:
                return  # it begins again with the next connection
            except JetError as problem:
                log.error("%s is back, but what is there cannot be mounted: %s", self._far.url, problem)
                await asyncio.sleep(RETRY_S)
            else:
                return

    async def _mount_all(self) -> None:
        """Follow the far bus: first the notes of other bridges, then what the rule matches."""
        self._forget()
        self._tell_status()
        await self._far.info()  # our note is there, or was refused
        notes = self._far.fetch(callback=self._on_note, ends_with=NOTE)
        self._fetches.append(notes)
        await notes.ready()
        self._hang(self._note)
        fetch_id = self._far.session.next_fetch_id()
        self._fetching = Following(fetch_id, self._rule, self._hear, self._is_congested)
        fetch = self._far.start_fetch(self._fetching)
        self._fetches.append(fetch)
        await fetch.ready()
        with contextlib.suppress(NotConnected):
            for _ in range(2):  # what is decided by the first answer is done by the second
                await self._near.info()
        self._following = True
        self._tell_status()

    def _on_far_loss(self) -> None:
        if self._beginning is not None:
            self._beginning.cancel()
        self._forget()
        self._tell_status()

    def _forget(self) -> None:
        """Nothing is known of the far bus: nothing of it is on the near one. The note goes last."""
        self._following = False
        for fetch in self._fetches:
            fetch.close()
        self._fetches, self._fetching = [], None
        self._take_off([self._note, *self._mounts.values()])
        self._has_prefix = False
        self._mounts.clear()
        self._areas.clear()

    def _hear(self, events: Iterable[Event]) -> None:
        """What has happened on the far bus."""
        mounts, session = self._mounts, self._session
        for event in events:
            mount = mounts.get(event.path)
            if (
                event.kind == "change"
                and mount is not None
                and mount.is_method is event.is_method
                and mount.fetch_only is event.fetch_only
            ):
                if not event.is_method:
                    session.tell(mount, encode_value(event.value))
            elif not event.path.endswith(NOTE):  # these are told by a fetch of their own
                if mount is not None:
                    self._drop(mount)
                if event.kind != "remove":
                    self._put(event)

    def _put(self, event: Event) -> None:
        """There is something new."""
        path = event.path
        if is_daemons(path) or path.startswith(READERS):
            return
        value = None if event.is_method else encode_value(event.value)
        mount = Mount(path, self.prefix + path, value, fetch_only=event.fetch_only, **self._options)
        self._mounts[path] = mount
        if self._has_prefix and not path.startswith(self._areas.closed):
            self._hang(mount)

    def _drop(self, mount: Mount) -> None:
        del self._mounts[mount.far_path]
        self._take_off([mount])

    # -- loops

    def _on_note(self, event: Event) -> None:
        """A bridge has mounted something into the far bus, or no longer does."""
        self._catch_up()
        path = event.path
        if (mount := self._mounts.get(path)) is not None:
            self._drop(mount)
        if event.kind == "remove":
            prefix = self._areas.leave(path)
            # Of a bridge that is gone the note goes first; all else is gone when the daemon answers.
            after(self._far.session, lambda: self._settle(self._areas.remove(prefix)))
            return
        self._settle(self._areas.add(path, event.value))
        self._put(event)
        self._make_sure()

    def _make_sure(self) -> None:
        """Decide on new areas as soon as the near daemon has answered: who reads its bus is known by then."""
        unsure = set(self._areas.unsure)
        if unsure and self._near.connected:
            after(self._session, lambda: self._settle(self._areas.be_sure(unsure)))

    def _on_reader(self, event: Event) -> None:
        """A bridge reads the near bus, or no longer does."""
        was_same = self._areas.same_bus
        note = self._areas.remove_reader if event.kind == "remove" else self._areas.add_reader
        self._settle(note(event.path))
        if self._areas.same_bus and not was_same and self._following:
            log.error("%s and %s have become the same bus; nothing is mounted", self._far.url, self._near.url)

    def _settle(self, changed: bool = True) -> None:
        """Hang in what is to be on the near bus, in the order it was told, and take off what is not."""
        if not changed:
            return
        closed = self._areas.closed
        on: list[Mount] = []
        off: list[Mount] = []
        for mount in self._mounts.values():
            (on if self._has_prefix and not mount.far_path.startswith(closed) else off).append(mount)
        self._take_off(off)
        for mount in on:
            if not mount.added and mount not in self._blocked:
                self._hang(mount)

    # -- the near bus

    def _hang(self, mount: Mount) -> None:
        if len(self._session.owned) > self._mounts_max:
            text = f"the bridge mounts {self._mounts_max}; give it a narrower rule, or more mounts_max"
            self._on_refused(mount, JetError(text))
        else:
            self._session.hang(mount)

    def _take_off(self, mounts: list[Mount]) -> None:
        """Remove, what was added last at first: the note of an area must not go before what is in it."""
        for mount in reversed(mounts):
            self._session.unhang(mount)
            self._blocked.remove(mount)

    def _on_added(self, mount: Mount) -> None:
        if self._blocked and self._blocked.remove(mount):
            log.info("%s could be added now", mount.path)
        if mount is self._note and not self._has_prefix:
            self._has_prefix = True
            self._settle()
            after(self._session, self._tell_status)

    def _on_refused(self, mount: Mount, error: JetError) -> None:
        """Something could not be added; it is said once and tried again."""
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
                    self._hang(mount)

    def _on_near_return(self) -> None:
        self._make_sure()
        after(self._session, self._tell_status)

    # -- a slow near daemon

    def _is_congested(self) -> bool:
        """Whether the near daemon is to take what it has first; all that waits goes out as soon as it has."""
        if not self._near.connected or self._near.unsent_bytes <= UNSENT_BYTES_MAX:
            return False
        after(self._session, self._catch_up, lost=True)
        return True

    def _catch_up(self) -> None:
        """Tell what waits to be told."""
        if self._fetching is not None:
            self._hear(self._fetching.take())
