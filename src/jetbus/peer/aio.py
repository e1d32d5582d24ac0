"""``PeerAsync``: a peer on the caller's asyncio event loop, with many requests in flight.

    async with jetbus.PeerAsync("jet://localhost") as peer:
        speed = await peer.add_state("pump/speed", 0, on_set=lambda rpm: min(rpm, 3000))
        await peer.set("pump/valve", "open")
        async for event in peer.fetch("pump/** value>7"):
            print(event.kind, event.path, event.value)

When the connection breaks, the peer reconnects by itself, adds its elements again and continues its fetches.

Every request is awaited, or is given ``on_result``. With it the request starts at once, without being awaited, and the
callback is called on the peer's loop with the future of the result when the response arrives, or when it is clear that
none will.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, cast, overload

from msgspec import UNSET

from jetbus.errors import NotConnected, NotFound, TimedOut, UnknownService
from jetbus.json_types import Json, JsonObject
from jetbus.peer.arguments import check_type
from jetbus.peer.callbacks import call_back, is_async
from jetbus.peer.compat import features_of
from jetbus.peer.connection import OnResult, PeerConnection
from jetbus.peer.elements import Owned, OwnedMethod, OwnedState
from jetbus.peer.events import Event
from jetbus.peer.handles import ElementAsync, FetchAsync, MethodAsync, MirrorAsync, SortedAsync, StateAsync, apply_event
from jetbus.peer.histories import read_frame, read_history, read_tree
from jetbus.peer.requests import (
    CallParams,
    HandleWaiter,
    SetParams,
    SetReader,
    SetResult,
    check_unanswered,
    make_args,
    prepare_args,
    read_set_value,
)
from jetbus.peer.signatures import show_options
from jetbus.peer.subscription import QUEUE_MAX, Policy, Subscription, convert_value, matches, sort_window
from jetbus.peer.values import FINITE_TYPES, Instant, encode_instant, read_value
from jetbus.rules import Rule, Sort, rule
from jetbus.rules.text import translate_topic
from jetbus.schema import Described

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

__all__ = [
    "ElementAsync",
    "FetchAsync",
    "MethodAsync",
    "MirrorAsync",
    "PeerAsync",
    "SortedAsync",
    "StateAsync",
]

log = logging.getLogger("jetbus.peer")

T = TypeVar("T")

_STATE_OPTIONS = {"access": None, "timeout_s": None, "type": None, "only_changes": False}
"""Options of a state and their defaults, in the order of ``OwnedState``."""


class PeerAsync(PeerConnection):
    """A peer on the caller's event loop.

    >>> async with PeerAsync("jet://localhost") as peer:        # doctest: +SKIP
    ...     await peer.set("pump/speed", 1200)
    """

    # -- owner

    @show_options(Described)
    def add_state(
        self,
        path: str,
        value: Any = None,
        *,
        on_set: Callable[[Any], Any] | None = None,
        access: Mapping[str, Json] | None = None,
        timeout_s: float | None = None,
        type: Any = None,  # noqa: A002
        only_changes: bool = False,
        on_result: OnResult | None = None,
        **described: Unpack[Described],
    ) -> Awaitable[StateAsync]:
        """Add a state that this peer owns. Without ``on_set`` it is read-only.

        ``on_set`` gets the requested value. It returns None to accept it, another value (or ``Adapted``) to adapt it,
        ``UNCHANGED`` to accept it without a change, or raises to refuse it. It may be ``async``. With ``type`` the
        value is converted to that type first, and one that does not fit is refused; values of the owner must fit, too.
        With ``only_changes`` a change to the value that the state has already is not sent.

        The state is described to other peers by its ``type`` and by keywords: ``unit``, ``minimum``, ``maximum``,
        ``title``, ``description``, ``enum``, ``normal``, ``step``, ``stale_s``, ``precision``, or ``schema`` for a text
        or a dict. With ``check=True`` the daemon refuses values that do not fit before ``on_set`` gets them.
        """
        owned = OwnedState(path, value, on_set, access, timeout_s, type, only_changes)
        owned.set_description(described)
        return self._begin(self._add(owned, StateAsync(self, owned)), on_result)

    def add_method(
        self,
        path: str,
        function: Callable[..., Any],
        *,
        access: Mapping[str, Json] | None = None,
        timeout_s: float | None = None,
        schema: str | Mapping[str, Json] | None = None,
        on_result: OnResult | None = None,
    ) -> Awaitable[MethodAsync]:
        """Add a method: an array becomes positional, an object keyword arguments. The function may be ``async``.

        Arguments are converted to the annotations of the function: numbers, texts, ``Literal``, ``Optional``, lists,
        dataclasses and all else that a state may have as its ``type``. One that does not fit is refused by its name.
        Signature and docstring are its description for ``jet describe`` and Radar; ``schema`` adds to it, or as a text
        takes its place.
        """
        owned = OwnedMethod(path, function, access, timeout_s, schema)
        return self._begin(self._add(owned, MethodAsync(self, owned)), on_result)

    async def _add(self, owned: Owned, handle: T) -> T:
        """Add a state or method and return its handle."""
        future = self._future()
        self._session.add(owned, future)
        await future
        return handle

    @show_options(add_state, without=("on_set",))
    def state(self, path: str, value: Any = None, **options: Any) -> Callable[[Callable[[Any], Any]], StateAsync]:
        """Decorate the ``on_set`` of a state. The state is added at once; ``await state.add()`` is not needed."""

        def decorate(on_set: Callable[[Any], Any]) -> StateAsync:
            on_result, others = options.get("on_result"), {**_STATE_OPTIONS, **options}
            owned = OwnedState(path, value, on_set, *(others.pop(name) for name in _STATE_OPTIONS))
            others.pop("on_result", None)
            owned.set_description(cast(Described, others))
            return self._add_in_background(owned, StateAsync(self, owned), on_result)

        return decorate

    def method(
        self,
        path: str,
        *,
        access: Mapping[str, Json] | None = None,
        timeout_s: float | None = None,
        schema: str | Mapping[str, Json] | None = None,
        on_result: OnResult | None = None,
    ) -> Callable[[Callable[..., Any]], MethodAsync]:
        """Decorate a function to make it a method, which is added at once."""

        def decorate(function: Callable[..., Any]) -> MethodAsync:
            owned = OwnedMethod(path, function, access, timeout_s, schema)
            return self._add_in_background(owned, MethodAsync(self, owned), on_result)

        return decorate

    def _add_in_background(self, owned: Owned, handle: T, on_result: OnResult | None) -> T:
        """Add a state or method without waiting; without a callback a refusal is logged."""

        def done(_result: Any, error: BaseException | None) -> None:
            if error is not None:
                # The usual error, that the path is taken, starts with these words itself.
                begin = f"cannot add {owned.path}: "
                log.error("%s%s", begin, str(error).removeprefix(begin))

        future = self._future()
        self._session.add(owned, future if on_result is None else HandleWaiter(future, handle))
        if on_result is None:
            self._spawn(future, done)
        else:
            future.add_done_callback(functools.partial(call_back, on_result))
        return handle

    @contextlib.contextmanager
    def batch(self) -> Generator[None]:
        """Send everything inside the block as one message."""
        self._session.begin_batch()
        try:
            yield
        finally:
            self._session.end_batch()

    # -- client

    @overload
    def set(
        self,
        path: str,
        value: Any,
        *,
        timeout_s: float | None = None,
        value_as_result: bool = False,
        no_reply: Literal[False] = False,
        on_result: OnResult | None = None,
    ) -> Awaitable[SetResult]: ...

    @overload
    def set(self, path: str, value: Any, *, no_reply: Literal[True]) -> Awaitable[None]: ...

    def set(
        self,
        path: str,
        value: Any,
        *,
        timeout_s: float | None = None,
        value_as_result: bool = False,
        no_reply: bool = False,
        on_result: OnResult | None = None,
    ) -> Awaitable[SetResult | None]:
        """Ask the owner to set a state. The result has its value then, and a warning if the owner adapted it.

        The value is that on the bus when the owner has responded. Daemons other than jetd do not tell it: there it is
        the requested one even if the owner accepted that without a change (``UNCHANGED``). With ``value_as_result`` the
        owner itself responds with its value; cjet does not pass that wish on to it. With ``no_reply`` the daemon does
        not respond: there is nothing to wait for, and a refusal is not reported.
        """
        future, session = self._future(), self._session
        params = SetParams(path, value if type(value) in FINITE_TYPES else session.codec.prepare(value, path))
        if no_reply:
            check_unanswered(timeout_s=timeout_s is not None, value_as_result=value_as_result, on_result=on_result)
            session.send_unanswered("set", params, path)
            future.set_result(None)
            return future
        within_s, read = session.routed_s, SetReader(value)
        if timeout_s is not None:
            params.timeout, within_s = timeout_s, session.get_timeout_s(timeout_s)
        if value_as_result and not features_of(session.daemon).ignores_value_as_result:
            params.valueAsResult, read = True, read_set_value  # type: ignore[assignment]
        if on_result is None:
            session.request("set", params, future, read, within_s, path)
        else:
            self._request_with_callback(on_result, "set", params, future, read, within_s, path)
        return future

    def call(
        self,
        path: str,
        /,
        *args: Any,
        timeout_s: float | None = None,
        no_reply: bool = False,
        on_result: OnResult | None = None,
        **kwargs: Any,
    ) -> Awaitable[Any]:
        """Call a method with positional or with keyword arguments.

        With ``no_reply`` the daemon does not respond: no result and no error is reported, and the result is None.
        """
        given: Any = make_args(path, args, kwargs) if kwargs else args
        # Plain arguments are encoded with the request; one that may be bytes or NaN takes all of them the long way.
        for value in args:
            if type(value) not in FINITE_TYPES:
                given = make_args(path, args, kwargs)
                break
        future, session = self._future(), self._session
        params, within_s = CallParams(path, given), session.routed_s
        if no_reply:
            check_unanswered(timeout_s=timeout_s is not None, on_result=on_result)
            session.send_unanswered("call", params, path)
            future.set_result(None)
            return future
        if timeout_s is not None:
            params.timeout, within_s = timeout_s, session.get_timeout_s(timeout_s)
        if on_result is None:
            session.request("call", params, future, None, within_s, path)
        else:
            self._request_with_callback(on_result, "call", params, future, None, within_s, path)
        return future

    def call_with(
        self, path: str, arguments: Sequence[Any] | Mapping[str, Any], /, *, timeout_s: float | None = None
    ) -> Awaitable[Any]:
        """Call a method with arguments that are data: a list, or a dict of named ones, which may have any name."""
        future, session = self._future(), self._session
        params = CallParams(path, prepare_args(path, arguments), timeout_s)
        session.request("call", params, future, None, session.get_timeout_s(timeout_s), path)
        return future

    @show_options(rule)
    def get_all(
        self,
        text: str | Rule | None = None,
        *,
        as_of: Instant | None = None,
        on_result: OnResult | None = None,
        **keywords: Any,
    ) -> Awaitable[dict[str, Any]]:
        """Return the states that match now, path to value, in order; or those that matched at an instant, ``as_of``."""
        return self._begin(self._get_all(rule(text, **keywords), as_of), on_result)

    def get(
        self,
        path: str,
        *,
        default: Any = UNSET,
        type: Any = None,  # noqa: A002
        as_of: Instant | None = None,
        on_result: OnResult | None = None,
    ) -> Awaitable[Any]:
        """Return the value of one state, now or at an instant; raise ``NotFound``, or return ``default``, without it.

        With ``type`` the value is converted to it; one that does not fit raises ``InvalidValue``.
        """
        check_type(type)
        return self._begin(self._get_one(path, default, type, as_of), on_result)

    async def _get_one(self, path: str, default: Any, value_type: Any, as_of: Instant | None) -> Any:
        found = await self._get(rule(equals=path), as_of)
        if path not in found:
            if default is not UNSET:
                return default
            raise NotFound(path, _suggest_rule(path))
        return convert_value(found[path], value_type, path)

    async def _get_all(self, wanted: Rule, as_of: Instant | None) -> dict[str, Any]:
        found = await self._get(wanted, as_of)
        return {path: value for path, value in found.items() if value is not UNSET}

    async def _get(self, wanted: Rule, as_of: Instant | None) -> dict[str, Any]:
        """Return all matches, path to value; the value of a method is ``UNSET``."""
        params, is_complete = features_of(self._session.daemon).translate(wanted)
        if as_of is not None:
            params["asOf"] = encode_instant(as_of)
        try:
            entries = await self._request("get", params)
        except UnknownService:
            if as_of is not None:
                raise
            return await self._get_by_fetch(wanted)
        found = {entry["path"]: read_value(entry.get("value", UNSET)) for entry in entries}
        # The daemon may have selected too much; see ``compat``.
        if not is_complete:
            found = {path: value for path, value in found.items() if matches(wanted, path, value)}
        return _sort_states(wanted.sort, found) if wanted.sort and "sort" not in params else found

    async def _get_by_fetch(self, wanted: Rule) -> dict[str, Any]:
        """Do a get by a fetch that ends at once: daemons of lua-jet have no get."""
        subscription = Subscription(self._session.next_fetch_id(), replace(wanted, sort=None))
        # Entering waits until the daemon has reported everything that matches.
        async with self.start_fetch(subscription):
            events = subscription.take()
        found = {event.path: UNSET if event.is_method else event.value for event in events}
        return _sort_states(wanted.sort, found) if wanted.sort else found

    def history(
        self,
        path: str,
        since: Instant | None = None,
        until: Instant | None = None,
        *,
        on_result: OnResult | None = None,
    ) -> Awaitable[pa.Table]:
        """Return the values of one path over time, from the daemon's journal, as a ``pyarrow.Table``.

        ``to_pandas()`` makes a data frame of it. A value is JSON text in the column ``value``, and in that of its type:
        ``num``, ``text``, ``flag`` or, for objects and arrays, ``json``. ``ts`` is when the daemon handled it.
        """
        return self._begin(read_history(self.call, path, since, until), on_result)

    @show_options(rule)
    def tree(
        self,
        as_of: Instant | None = None,
        text: str | Rule | None = None,
        *,
        corrected: bool = False,
        on_result: OnResult | None = None,
        **keywords: Any,
    ) -> Awaitable[pa.Table]:
        """Return all states and methods at an instant, by default now, as a ``pyarrow.Table`` like that of ``history``.

        With a rule, only its matches. The tree is what the bus showed. With ``corrected`` it is what was true: with the
        values that came late, which have ``late``.
        """
        tree = read_tree(self.call, as_of, rule(text, **keywords), corrected=corrected)
        return self._begin(tree, on_result)

    def frame(
        self,
        paths: str | Rule | Sequence[str],
        since: Instant | None = None,
        until: Instant | None = None,
        *,
        every: str | float = "1s",
        on_result: OnResult | None = None,
    ) -> Awaitable[pd.DataFrame]:
        """Return several states side by side, from the daemon's journal, as a frame of pandas.

        ``paths`` is a path, a rule, or a list of them, each path a column; ``every`` is the step between two rows, a
        duration such as ``"1s"`` or seconds. Values are held until the next one, and ``<NA>`` where a state did not
        exist. ``frame.attrs["units"]`` has the units.
        """
        return self._begin(read_frame(self.call, paths, since, until, every), on_result)

    @show_options(rule)
    def fetch(
        self,
        text: str | Rule | None = None,
        callback: Callable[[Any], Any] | None = None,
        *,
        policy: Policy = "latest",
        queue_max: int = QUEUE_MAX,
        type: Any = None,  # noqa: A002
        since: Instant | None = None,
        schema: bool = False,
        meta: bool = False,
        recorded: bool = False,
        nodes: bool = False,
        on_result: OnResult | None = None,
        **keywords: Any,
    ) -> FetchAsync:
        """Follow everything that matches, now and from now on: iterate over it, or give a callback.

        A callback may be ``async``; then it is awaited before it gets the next event.

        The rule is text (``"plant/** value>7"``), a ``Rule``, keywords (``starts_with="plant/"``) or several of these.
        With ``sort_by`` it is a sorted fetch that yields the current list. With ``since`` (a datetime, RFC 3339 text or
        ``"-2h"``) it starts in the past: with the matches of then and everything that has happened since, from the
        journal. With ``schema`` events have the ``schema`` of their states, with ``meta`` their ``ts``, ``quality`` and
        whether they are ``stale``. With ``recorded`` an event has its place in the daemon's journal. With ``nodes``
        there are also events of the nodes with a matching path: ``kind`` is ``add`` or ``remove``, and ``is_node`` is
        True.
        ``on_result`` is called when the daemon has accepted or refused the fetch.
        """
        moment = None if since is None else encode_instant(since)
        # An ``async`` callback is fed from the queue, so that its limit and its policy hold.
        awaited = callback is not None and is_async(callback)
        subscription = Subscription(
            self._session.next_fetch_id(),
            rule(text, **keywords),
            callback=None if awaited else callback,
            policy=policy,
            queue_max=queue_max,
            value_type=type,
            since=moment,
            schema=schema,
            meta=meta,
            recorded=recorded,
            nodes=nodes,
        )
        fetch = self.start_fetch(subscription, on_result)
        if callback is not None and awaited:
            self._spawn(fetch.await_callback(callback), lambda _result, _error: None)
        return fetch

    def start_fetch(self, subscription: Subscription, on_result: OnResult | None = None) -> FetchAsync:
        """Start a fetch from a subscription of the caller's own; ``fetch`` is the usual way."""
        self._check_loop()
        fetch = SortedAsync(self, subscription) if subscription.rule.sort else FetchAsync(self, subscription)
        self._start(subscription, fetch, on_result)
        return fetch

    def _start(self, subscription: Subscription, handle: Any, on_result: OnResult | None) -> None:
        """Send a fetch; the callback gets its handle."""
        if on_result is None:
            self._session.fetch(subscription)
            return
        future = self._future()
        future.add_done_callback(functools.partial(call_back, on_result))
        subscription.waiter = HandleWaiter(future, handle)
        try:
            self._session.fetch(subscription)
        except NotConnected as error:
            subscription.end(error)

    @show_options(rule)
    def mirror(
        self,
        text: str | Rule | None = None,
        *,
        type: Any = None,  # noqa: A002
        on_result: OnResult | None = None,
        **keywords: Any,
    ) -> MirrorAsync:
        """Return a live dict of everything that matches. ``await mirror.ready()`` waits until it is complete."""
        values: dict[str, Any] = {}
        subscription = Subscription(
            self._session.next_fetch_id(),
            rule(text, **keywords),
            value_type=type,
            callback=functools.partial(apply_event, values),
        )
        mirror = MirrorAsync(self, subscription, values)
        self._start(subscription, mirror, on_result)
        return mirror

    @show_options(rule)
    def wait_for(
        self,
        text: str | Rule | None = None,
        *,
        timeout_s: float | None = None,
        on_result: OnResult | None = None,
        **keywords: Any,
    ) -> Awaitable[Event]:
        """Wait until something matches and return its event."""
        return self._begin(self._wait_for(rule(text, **keywords), str(text or keywords), timeout_s), on_result)

    async def _wait_for(self, wanted: Rule, shown: str, timeout_s: float | None) -> Event:
        fetch = self.fetch(wanted)
        try:
            async with asyncio.timeout(timeout_s):
                async for event in fetch:
                    if event.kind != "remove":
                        return event  # type: ignore[no-any-return]
        except TimedOut:
            raise  # the daemon has not answered the fetch
        except TimeoutError:
            text = f"nothing on the bus matched {shown} within {timeout_s:g} s; check the path, or start its owner"
            raise TimedOut({"path": shown}, text) from None
        finally:
            fetch.close()
        raise NotConnected(f"the connection to {self.url} is lost")

    def info(self, *, on_result: OnResult | None = None) -> Awaitable[JsonObject]:
        """Return the daemon's information about itself; an empty dict if it is one of lua-jet."""
        return self._begin(self._info(), on_result)

    async def _info(self) -> JsonObject:
        try:
            return await self._request("info", {})  # type: ignore[no-any-return]
        except UnknownService:
            return {}

    def config(self, *, on_result: OnResult | None = None, **settings: Any) -> Awaitable[None]:
        """Tell the daemon about this peer, for instance its ``name``."""
        return self._begin(self._config(settings), on_result)

    async def _config(self, settings: dict[str, Any]) -> None:
        await self._request("config", settings)
        self.name = settings.get("name", self.name)

    def authenticate(self, user: str, password: str, *, on_result: OnResult | None = None) -> Awaitable[Json]:
        """Log in; must come before the first fetch. Also used when the connection comes back."""
        return self._begin(self._authenticate(user, password), on_result)

    async def _authenticate(self, user: str, password: str) -> Json:
        groups = await self._request("authenticate", {"user": user, "password": password})
        self._user, self._password = user, password
        return groups


def _suggest_rule(path: str) -> str | None:
    """Return the text of the error for the get of a path that looks like a rule."""
    if glob := translate_topic(path):
        return f"there is no state {path} on the bus; get_all reads rules, and {glob} is the one for that"
    return f"there is no state {path} on the bus; get_all reads rules" if "*" in path or " " in path else None


def _sort_states(sort: Sort, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the states of a result, without methods, as a daemon sorts them."""
    return dict(sort_window(sort, {path: value for path, value in found.items() if value is not UNSET}))
