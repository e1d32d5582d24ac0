"""``Peer``: the same names as ``PeerAsync``, but every call waits for its response. Safe in any thread.

    with jetbus.Peer("jet://localhost") as peer:
        peer.set("pump/speed", 1200)
        for event in peer.fetch("pump/**"):
            print(event.kind, event.path, event.value)
        peer.set_async("pump/speed", 900, on_result=lambda done: print(done.result()))

It has an event loop in a thread of its own; ``threads`` explains how work gets there and back. Handlers and callbacks
run one at a time in a second thread, so they may use the peer themselves.

Every request has a twin that does not wait, ``set_async`` for ``set``. It returns a ``concurrent.futures.Future`` and
takes a callback, ``on_result``, so that one thread can have many requests open. Errors of the bus, a missing connection
included, are in the future; only wrong arguments raise at once.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from msgspec import UNSET

from jetbus.errors import NotConnected
from jetbus.json_types import Json, JsonObject
from jetbus.peer.arguments import check_callback
from jetbus.peer.compat import features_of
from jetbus.peer.elements import Owned, OwnedMethod, OwnedState
from jetbus.peer.events import Event
from jetbus.peer.handles import BlockingElement, Fetch, Method, Mirror, Sorted, State, apply_event
from jetbus.peer.requests import (
    BlockingWaiter,
    CallParams,
    SetParams,
    SetReader,
    SetResult,
    Waiter,
    check_unanswered,
    make_args,
    prepare_args,
    read_set_value,
)
from jetbus.peer.signatures import show_options
from jetbus.peer.subscription import QUEUE_MAX, Policy, Subscription
from jetbus.peer.threads import OnResult, ResponseFuture, ThreadedConnection
from jetbus.peer.values import FINITE_TYPES, Instant, encode_instant
from jetbus.rules import Rule, rule
from jetbus.schema import Described

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

__all__ = ["BlockingElement", "Fetch", "Method", "Mirror", "OnResult", "Peer", "Sorted", "State"]


class Peer(ThreadedConnection):
    """A peer with calls that block, usable from any thread.

    >>> with Peer("jet://localhost") as peer:        # doctest: +SKIP
    ...     peer.set("pump/speed", 1200)
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
        **described: Unpack[Described],
    ) -> State:
        """Add a state that this peer owns. Without ``on_set`` it is read-only; see ``PeerAsync.add_state``."""
        state = self._make_state(path, value, on_set, access, timeout_s, type, only_changes, described)
        state.add()
        return state

    @show_options(Described)
    def add_state_async(
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
    ) -> Future[State]:
        """Add a state without waiting; the future has its handle."""
        state = self._make_state(path, value, on_set, access, timeout_s, type, only_changes, described)
        return self._request_handle(lambda response: self._session.add(state._owned, response), state, on_result)

    def _make_state(
        self,
        path: str,
        value: Any,
        on_set: Callable[[Any], Any] | None,
        access: Mapping[str, Json] | None,
        timeout_s: float | None,
        value_type: Any,
        only_changes: bool,
        described: Described,
    ) -> State:
        owned = OwnedState(path, value, on_set, access, timeout_s, value_type, only_changes)
        if on_set is not None:
            # In the callbacks thread, where it may block and use this very peer.
            owned.on_set = self._run_in_callbacks(on_set)
        owned.set_description(described)
        return State(self, owned)

    def add_method(
        self,
        path: str,
        function: Callable[..., Any],
        *,
        access: Mapping[str, Json] | None = None,
        timeout_s: float | None = None,
        schema: str | Mapping[str, Json] | None = None,
    ) -> Method:
        """Add a method with arguments of the types of its annotations; see ``PeerAsync.add_method``."""
        method = self._make_method(path, function, access, timeout_s, schema)
        method.add()
        return method

    def add_method_async(
        self,
        path: str,
        function: Callable[..., Any],
        *,
        access: Mapping[str, Json] | None = None,
        timeout_s: float | None = None,
        schema: str | Mapping[str, Json] | None = None,
        on_result: OnResult | None = None,
    ) -> Future[Method]:
        """Add a method without waiting; the future has its handle."""
        method = self._make_method(path, function, access, timeout_s, schema)
        return self._request_handle(lambda response: self._session.add(method._owned, response), method, on_result)

    def _make_method(
        self,
        path: str,
        function: Callable[..., Any],
        access: Mapping[str, Json] | None,
        timeout_s: float | None,
        schema: str | Mapping[str, Json] | None,
    ) -> Method:
        owned = OwnedMethod(path, function, access, timeout_s, schema)
        owned.function = self._run_in_callbacks(function)
        return Method(self, owned, function)

    def _add(self, owned: Owned) -> None:
        self._check_may_wait()
        slot = BlockingWaiter()
        self._session.add(owned, slot)
        slot.wait(self._session.answer_s)

    @show_options(add_state, without=("on_set",))
    def state(self, path: str, value: Any = None, **options: Any) -> Callable[[Callable[[Any], Any]], State]:
        """Decorate the ``on_set`` of a state."""
        return lambda on_set: self.add_state(path, value, on_set=on_set, **options)

    def method(
        self,
        path: str,
        *,
        access: Mapping[str, Json] | None = None,
        timeout_s: float | None = None,
        schema: str | Mapping[str, Json] | None = None,
    ) -> Callable[[Callable[..., Any]], Method]:
        """Decorate a function to make it a method."""
        return lambda function: self.add_method(path, function, access=access, timeout_s=timeout_s, schema=schema)

    @contextlib.contextmanager
    def batch(self) -> Generator[None]:
        """Send the changes of this thread inside the block as one message."""
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
    ) -> SetResult: ...

    @overload
    def set(self, path: str, value: Any, *, no_reply: Literal[True]) -> None: ...

    def set(
        self,
        path: str,
        value: Any,
        *,
        timeout_s: float | None = None,
        value_as_result: bool = False,
        no_reply: bool = False,
    ) -> SetResult | None:
        """Ask the owner to set a state. The result has the value that it has then; see ``PeerAsync.set``."""
        params, read = self._make_set(path, value, timeout_s, value_as_result)
        if no_reply:
            check_unanswered(timeout_s=timeout_s is not None, value_as_result=value_as_result)
            self._session.send_unanswered("set", params, path)
            return None
        return self._request_owner("set", params, timeout_s, read, path)  # type: ignore[no-any-return]

    def set_async(
        self,
        path: str,
        value: Any,
        *,
        timeout_s: float | None = None,
        value_as_result: bool = False,
        on_result: OnResult | None = None,
    ) -> Future[SetResult]:
        """Ask the owner to set a state, without waiting."""
        params, read = self._make_set(path, value, timeout_s, value_as_result)
        return self._request_owner_async("set", params, timeout_s, read, path, on_result)

    def _make_set(
        self, path: str, value: Any, timeout_s: float | None, value_as_result: bool
    ) -> tuple[SetParams, Callable[[Any], SetResult]]:
        """Return the parameters of a set and the function that reads its result."""
        if value_as_result and features_of(self._session.daemon).ignores_value_as_result:
            value_as_result = False
        # The reader gets the value before it is prepared: the result shows it as others see it.
        read: Callable[[Any], SetResult] = read_set_value if value_as_result else SetReader(value)
        if type(value) not in FINITE_TYPES:
            value = self._session.codec.prepare(value, path)
        return SetParams(path, value, timeout_s, value_as_result), read

    def call(
        self, path: str, /, *args: Any, timeout_s: float | None = None, no_reply: bool = False, **kwargs: Any
    ) -> Any:
        """Call a method with positional or with keyword arguments; see ``PeerAsync.call``."""
        params = CallParams(path, make_args(path, args, kwargs), timeout_s)
        if no_reply:
            check_unanswered(timeout_s=timeout_s is not None)
            self._session.send_unanswered("call", params, path)
            return None
        return self._request_owner("call", params, timeout_s, None, path)

    def call_with(
        self, path: str, arguments: Sequence[Any] | Mapping[str, Any], /, *, timeout_s: float | None = None
    ) -> Any:
        """Call a method with arguments that are data: a list, or a dict of named ones, which may have any name."""
        params = CallParams(path, prepare_args(path, arguments), timeout_s)
        return self._request_owner("call", params, timeout_s, None, path)

    def call_async(
        self,
        path: str,
        /,
        *args: Any,
        timeout_s: float | None = None,
        on_result: OnResult | None = None,
        **kwargs: Any,
    ) -> Future[Any]:
        """Call a method, without waiting."""
        params = CallParams(path, make_args(path, args, kwargs), timeout_s)
        return self._request_owner_async("call", params, timeout_s, None, path, on_result)

    def _request_owner(
        self, method: str, params: Any, timeout_s: float | None, read: Callable[[Any], Any] | None, path: str
    ) -> Any:
        self._check_may_wait()
        self._check_may_ask(method, path)
        slot = BlockingWaiter()
        within_s = self._session.get_timeout_s(timeout_s)
        self._session.request_now(method, params, slot, read, within_s, path)
        return slot.wait(within_s, path)

    def _request_owner_async(
        self,
        method: str,
        params: Any,
        timeout_s: float | None,
        read: Callable[[Any], Any] | None,
        path: str,
        on_result: OnResult | None,
    ) -> Future[Any]:
        response = ResponseFuture()
        try:  # usually many of these are open at once, and the loop writes them together
            self._session.request(method, params, response, read, self._session.get_timeout_s(timeout_s), path)
        except NotConnected as error:
            response.set_exception(error)
        return self._add_callback(response, on_result)

    def get(
        self,
        path: str,
        *,
        default: Any = UNSET,
        type: Any = None,  # noqa: A002
        as_of: Instant | None = None,
    ) -> Any:
        """Return the value of one state, now or at an instant; see ``PeerAsync.get``."""
        return self._run(self._core.get(path, default=default, type=type, as_of=as_of))

    def get_async(
        self,
        path: str,
        *,
        default: Any = UNSET,
        type: Any = None,  # noqa: A002
        as_of: Instant | None = None,
        on_result: OnResult | None = None,
    ) -> Future[Any]:
        """Get the value of one state, without waiting."""
        return self._begin(self._core.get(path, default=default, type=type, as_of=as_of), on_result)

    @show_options(rule)
    def get_all(
        self, text: str | Rule | None = None, *, as_of: Instant | None = None, **keywords: Any
    ) -> dict[str, Any]:
        """Return the states that match now, or matched at an instant, path to value, in order."""
        return self._run(self._core.get_all(text, as_of=as_of, **keywords))  # type: ignore[no-any-return]

    @show_options(rule)
    def get_all_async(
        self,
        text: str | Rule | None = None,
        *,
        as_of: Instant | None = None,
        on_result: OnResult | None = None,
        **keywords: Any,
    ) -> Future[dict[str, Any]]:
        """Get the states that match, without waiting."""
        return self._begin(self._core.get_all(text, as_of=as_of, **keywords), on_result)

    def history(self, path: str, since: Instant | None = None, until: Instant | None = None) -> pa.Table:
        """Return the values of one path over time as a ``pyarrow.Table``; see ``PeerAsync.history``."""
        return self._run(self._core.history(path, since, until))

    def history_async(
        self,
        path: str,
        since: Instant | None = None,
        until: Instant | None = None,
        *,
        on_result: OnResult | None = None,
    ) -> Future[pa.Table]:
        """Get the values of one path over time, without waiting."""
        return self._begin(self._core.history(path, since, until), on_result)

    @show_options(rule)
    def tree(
        self,
        as_of: Instant | None = None,
        text: str | Rule | None = None,
        *,
        corrected: bool = False,
        **keywords: Any,
    ) -> pa.Table:
        """Return all states and methods at an instant as a ``pyarrow.Table``; see ``PeerAsync.tree``."""
        return self._run(self._core.tree(as_of, text, corrected=corrected, **keywords))

    @show_options(rule)
    def tree_async(
        self,
        as_of: Instant | None = None,
        text: str | Rule | None = None,
        *,
        corrected: bool = False,
        on_result: OnResult | None = None,
        **keywords: Any,
    ) -> Future[pa.Table]:
        """Get all states and methods at an instant, without waiting."""
        return self._begin(self._core.tree(as_of, text, corrected=corrected, **keywords), on_result)

    def frame(
        self,
        paths: str | Rule | Sequence[str],
        since: Instant | None = None,
        until: Instant | None = None,
        *,
        every: str | float = "1s",
    ) -> pd.DataFrame:
        """Return several states side by side as a frame of pandas; see ``PeerAsync.frame``."""
        return self._run(self._core.frame(paths, since, until, every=every))

    def frame_async(
        self,
        paths: str | Rule | Sequence[str],
        since: Instant | None = None,
        until: Instant | None = None,
        *,
        every: str | float = "1s",
        on_result: OnResult | None = None,
    ) -> Future[pd.DataFrame]:
        """Get several states side by side, without waiting."""
        return self._begin(self._core.frame(paths, since, until, every=every), on_result)

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
        **keywords: Any,
    ) -> Fetch:
        """Follow everything that matches: iterate over it, or give a callback. See ``PeerAsync.fetch``."""
        fetch = self._make_fetch(
            text, callback, policy, queue_max, type, since, schema, meta, recorded, nodes, keywords
        )
        self._session.fetch(fetch._subscription)
        return fetch

    @show_options(rule)
    def fetch_async(
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
    ) -> Future[Fetch]:
        """Fetch without waiting; the future has the fetch once the daemon has accepted it."""
        fetch = self._make_fetch(
            text, callback, policy, queue_max, type, since, schema, meta, recorded, nodes, keywords
        )
        return self._fetch_in_background(fetch._subscription, fetch, on_result)

    def _make_fetch(
        self,
        text: str | Rule | None,
        callback: Callable[[Any], Any] | None,
        policy: Policy,
        queue_max: int,
        value_type: Any,
        since: Instant | None,
        schema: bool,
        meta: bool,
        recorded: bool,
        nodes: bool,
        keywords: dict[str, Any],
    ) -> Fetch:
        check_callback(callback, "callback")  # not the subscription's, which would call it on the loop
        wanted = rule(text, **keywords)
        subscription = Subscription(
            self._session.next_fetch_id(),
            wanted,
            value_type=value_type,
            policy=policy,
            queue_max=queue_max,
            since=None if since is None else encode_instant(since),
            schema=schema,
            meta=meta,
            recorded=recorded,
            nodes=nodes,
        )
        return self._make_handle(subscription, callback)

    def start_fetch(self, subscription: Subscription, callback: Callable[[Any], Any] | None = None) -> Fetch:
        """Start a fetch from a subscription of the caller's own; ``fetch`` is the usual way."""
        fetch = self._make_handle(subscription, callback)
        self._session.fetch(subscription)
        return fetch

    def start_fetch_async(self, subscription: Subscription, *, on_result: OnResult | None = None) -> Future[Fetch]:
        """Start a fetch from a subscription, without waiting until the daemon has accepted it."""
        return self._fetch_in_background(subscription, self._make_handle(subscription, None), on_result)

    def _make_handle(self, subscription: Subscription, callback: Callable[[Any], Any] | None) -> Fetch:
        return (Sorted if subscription.rule.sort else Fetch)(self, subscription, callback)

    def _fetch_in_background(self, subscription: Subscription, handle: Any, on_result: OnResult | None) -> Future[Any]:
        def send(response: Waiter) -> None:
            subscription.waiter = response
            self._session.fetch(subscription)

        return self._request_handle(send, handle, on_result)

    @show_options(rule)
    def mirror(self, text: str | Rule | None = None, *, type: Any = None, **keywords: Any) -> Mirror:  # noqa: A002
        """Return a live dict of everything that matches."""
        mirror = self._make_mirror(text, type, keywords)
        self._session.fetch(mirror._fetch._subscription)
        return mirror

    @show_options(rule)
    def mirror_async(
        self,
        text: str | Rule | None = None,
        *,
        type: Any = None,  # noqa: A002
        on_result: OnResult | None = None,
        **keywords: Any,
    ) -> Future[Mirror]:
        """Mirror without waiting; the future has the live dict once the daemon has accepted its fetch."""
        mirror = self._make_mirror(text, type, keywords)
        return self._fetch_in_background(mirror._fetch._subscription, mirror, on_result)

    def _make_mirror(self, text: str | Rule | None, value_type: Any, keywords: dict[str, Any]) -> Mirror:
        values: dict[str, Any] = {}
        subscription = Subscription(
            self._session.next_fetch_id(),
            rule(text, **keywords),
            value_type=value_type,
            callback=functools.partial(apply_event, values),
        )
        return Mirror(self, subscription, values)

    @show_options(rule)
    def wait_for(self, text: str | Rule | None = None, *, timeout_s: float | None = None, **keywords: Any) -> Event:
        """Wait until something matches and return its event."""
        return self._run(self._core.wait_for(text, timeout_s=timeout_s, **keywords))  # type: ignore[no-any-return]

    @show_options(rule)
    def wait_for_async(
        self,
        text: str | Rule | None = None,
        *,
        timeout_s: float | None = None,
        on_result: OnResult | None = None,
        **keywords: Any,
    ) -> Future[Event]:
        """Return a future of the event of the first match."""
        return self._begin(self._core.wait_for(text, timeout_s=timeout_s, **keywords), on_result)

    def info(self) -> JsonObject:
        """Return the daemon's information about itself."""
        return self._run(self._core.info())  # type: ignore[no-any-return]

    def info_async(self, *, on_result: OnResult | None = None) -> Future[JsonObject]:
        """Ask for the daemon's information about itself, without waiting."""
        return self._begin(self._core.info(), on_result)

    def config(self, **settings: Any) -> None:
        """Tell the daemon about this peer, for instance its ``name``."""
        self._run(self._core.config(**settings))

    def config_async(self, *, on_result: OnResult | None = None, **settings: Any) -> Future[None]:
        """Tell the daemon about this peer, without waiting."""
        return self._begin(self._core.config(**settings), on_result)

    def authenticate(self, user: str, password: str) -> Json:
        """Log in; must come before the first fetch. Also used when the connection comes back."""
        return self._run(self._core.authenticate(user, password))

    def authenticate_async(self, user: str, password: str, *, on_result: OnResult | None = None) -> Future[Json]:
        """Log in, without waiting."""
        return self._begin(self._core.authenticate(user, password), on_result)
