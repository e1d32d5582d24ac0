"""Both ends of a bridge: the fetch of the far bus, and the peer that owns the mounted elements on the near one.

Values, arguments and results travel through as the JSON they are. A request waits in the far daemon, as every request
does; the bridge only remembers whom to answer. An answer never overtakes the events that came before it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping

from msgspec import UNSET, Raw

from jetbus.errors import Internal, JetError, MissingParam, NotConnected, OwnerLost, Refused
from jetbus.json_types import Json, JsonObject
from jetbus.peer.codec import RoutedRequest
from jetbus.peer.compat import features_of
from jetbus.peer.elements import Owned, Spawn
from jetbus.peer.events import Event
from jetbus.peer.peer_session import GRACE_S, PeerSession
from jetbus.peer.subscription import Subscription
from jetbus.rules import Rule
from jetbus.wire import jsonrpc

REQUESTS_MAX = 1000
"""Requests to one state or method that wait for the far owner."""


class Mount(Owned):
    """State or method of the far bus that is, or is to be, added to the near one."""

    def __init__(
        self,
        far_path: str,
        path: str,
        value: bytes | None,
        *,
        fetch_only: bool = False,
        access: Json = None,
        timeout_s: float | None = None,
    ) -> None:
        super().__init__(path, access, timeout_s)
        self.far_path = far_path
        self.value = value
        """JSON; None for a method."""
        self.fetch_only = fetch_only
        self.attempt = 0
        """Counts the adds, so that the answer to one is not taken for that to another."""
        self.waiting = 0
        """Requests the far owner has yet to answer."""
        self.meta: JsonObject = {}
        """Time and quality of the value on the far bus, as parameters."""

    def note(self, event: Event) -> bool:
        """Note the far owner's description of the element; return True if it is new.

        That the state is stale is not passed on: the near daemon finds out by itself, by the same schema.
        """
        schema = None if event.told_schema is UNSET else event.told_schema
        meta: JsonObject = {"ts": event.ts} if event.ts else {}
        if event.told_quality is not None:
            meta["quality"] = event.told_quality
        is_new = schema != self.schema
        self.schema, self.meta = schema, meta
        return is_new

    @property
    def is_method(self) -> bool:
        return self.value is None

    def describe(self, *, fully: bool = True) -> JsonObject:
        params = super().describe(fully=fully)
        if fully:
            params |= self.meta
        if self.value is not None:
            params["value"] = Raw(self.value)
        if self.fetch_only:
            params["fetchOnly"] = True
        return params


class NearSession(PeerSession):
    """Session of the bridge as a peer of the near bus, where it owns everything that is mounted."""

    def __init__(self, far: PeerSession, patience_s: float, spawn: Spawn) -> None:
        super().__init__(spawn)
        self._far = far
        self._patience_s = patience_s
        self.connection = 0
        """Counts the connections: a request on one is not answered on another."""
        self.on_added: Callable[[Mount], None] = lambda _mount: None
        self.on_refused: Callable[[Mount, JetError], None] = lambda _mount, _error: None
        self.catch_up: Callable[[], None] = lambda: None
        """Called before an answer is sent, to send earlier events first."""

    # -- adding

    def add_mount(self, mount: Mount) -> None:
        """Add a mount, now and whenever the connection comes back."""
        mount.change_head = self.codec.make_change_head(mount.path)
        # Without a connection, too: the next one adds all that is owned.
        self.owned[mount.path] = mount
        mount.added = True
        if self.connected:
            self.add_again(mount)

    def remove_mount(self, mount: Mount) -> None:
        """Remove a mount from the near bus."""
        if mount.added:
            self.drop(mount)
            if self.connected:
                self.notify("remove", {"path": mount.path})

    def on_connected(self) -> None:
        self.connection += 1
        super().on_connected()

    def add_again(self, owned: Owned) -> None:
        assert isinstance(owned, Mount)  # noqa: S101 - nothing else is added here
        # Without the waiter of the base class, which tries again by itself: here the bridge decides on that.
        owned.attempt += 1
        fully = features_of(self.daemon).is_jetbus
        self.request("add", owned.describe(fully=fully), _PendingAdd(self, owned))

    def tell(self, mount: Mount, value: bytes | None, *, is_redescribed: bool = False) -> None:
        """Publish the new value of a state with its time and quality, or the new schema of an element, or both."""
        mount.value = value
        if not mount.added or not self.connected:
            return
        if (mount.meta or is_redescribed) and features_of(self.daemon).is_jetbus:
            params: JsonObject = {"path": mount.path, **mount.meta}
            if value is not None:
                params["value"] = Raw(value)
            if is_redescribed:
                params["schema"] = mount.schema
            self.notify("change", params)
        elif value is not None:
            self.send(self.encode_change(mount, Raw(value)))

    # -- requests

    def _serve(self, request: RoutedRequest) -> None:
        try:
            mount, service, params = self._find_target(request.path, request.params)
            if mount is not None:
                self._pass_on(mount, service, params, request.id)
        except JetError as problem:
            self.answer_error(request.id, problem.wire())

    def _find_target(self, method: str, params: Raw) -> tuple[Mount | None, str, dict[str, Raw]]:
        """Return mount, service and parameters of a request, routed by path or, as in node-jet 3, by service."""
        mount = self.owned.get(method)
        if mount is None and method in ("set", "call"):
            fields = jsonrpc.read_fields(params)
            path = jsonrpc.read_text(fields.get("path", Raw(b'""')), "path")
            return _mount(self.owned.get(path)), method, fields
        mount = _mount(mount)
        if mount is None or mount.is_method:
            return mount, "call", {"args": params} if params else {}
        if bytes(params)[:1] == b"[":  # a daemon of 2012 sends the value alone in an array
            return mount, "set", dict(zip(("value",), jsonrpc.decode_members(params), strict=False))
        return mount, "set", jsonrpc.read_fields(params)

    def _pass_on(self, mount: Mount, service: str, params: dict[str, Raw], request_id: bytes) -> None:
        if service == "set" and "value" not in params:
            raise MissingParam("value")
        timeout_s = _read_timeout(params, self._patience_s)
        asked: JsonObject = {"path": mount.far_path}
        asked |= {name: params[name] for name in ("value", "args", "valueAsResult") if name in params}
        asked["timeout"] = timeout_s
        if not request_id:
            if self._far.connected:
                self._far.notify(service, asked)
            return
        if mount.waiting >= REQUESTS_MAX:
            text = f"{mount.waiting} requests to {mount.path} wait for an answer from the far bus; ask again later"
            raise Internal("requests_max reached", text)
        # The far daemon gives up first, by the timeout it is sent, so that the requester gets its answer.
        relay = _Relay(self, mount, request_id, service == "set")
        try:
            self._far.request(service, asked, relay, _as_it_is, timeout_s + GRACE_S, mount.far_path)
        except NotConnected:
            raise OwnerLost from None
        # After the request, which raises if there is no connection.
        mount.waiting += 1

    def answer_error(self, request_id: bytes, error: Mapping[str, Json]) -> None:
        """Answer with an error."""
        if request_id and self.connected:
            self.send(self.codec.encode_error(request_id, error))


def _read_timeout(params: dict[str, Raw], patience_s: float) -> float:
    """Return the time that the requester waits, or ``patience_s`` if the near daemon does not pass it on."""
    timeout = jsonrpc.loads(params["timeout"]) if "timeout" in params else None
    return timeout if isinstance(timeout, int | float) and not isinstance(timeout, bool) else patience_s


def _mount(owned: Owned | None) -> Mount | None:
    return owned if isinstance(owned, Mount) else None


def _as_it_is(result: Json) -> Json:
    return result


class _PendingAdd:
    """Receiver of the answer to an add."""

    def __init__(self, session: NearSession, mount: Mount) -> None:
        self._session, self._mount, self._attempt = session, mount, mount.attempt

    def done(self) -> bool:
        return not self._mount.added or self._attempt != self._mount.attempt

    def set_result(self, _result: Json, /) -> None:
        self._session.on_added(self._mount)

    def set_exception(self, exception: BaseException, /) -> None:
        # A lost connection is not a refusal: the next one adds the mount again.
        if isinstance(exception, JetError) and not isinstance(exception, NotConnected) and not self.done():
            self._session.drop(self._mount)
            self._session.on_refused(self._mount, exception)


class _Relay:
    """Receiver of an answer from the far bus, which it forwards to the requester on the near bus."""

    def __init__(self, near: NearSession, mount: Mount, request_id: bytes, is_set: bool) -> None:
        self._near = near
        self._connection = near.connection
        self._mount = mount
        self._id = request_id
        self._is_set = is_set

    def done(self) -> bool:
        # Never, even if the requester has gone: the answer has to be counted.
        return False

    def set_result(self, result: Json, /) -> None:
        if self._arrived():
            if self._is_set and isinstance(result, dict) and result.keys() == {"path", "value"}:
                result = self._rename_path(result)  # owners of node-jet 3 name the path
            self._near.send_result(self._id, result)

    def set_exception(self, exception: BaseException, /) -> None:
        if self._arrived():
            error = exception if isinstance(exception, JetError) else Internal(str(exception))
            if isinstance(error, NotConnected):
                error = OwnerLost()
            fields = error.wire()
            if not isinstance(error, Refused) and isinstance(fields["data"], dict):
                fields["data"] = self._rename_path(fields["data"])
            self._near.answer_error(self._id, fields)

    def _arrived(self) -> bool:
        """Count the answer; return whether the connection of the requester is still there."""
        self._mount.waiting -= 1
        # Events that came before the answer go out before it, also if they wait because the near daemon is slow.
        self._near.catch_up()
        return self._connection == self._near.connection

    def _rename_path(self, fields: JsonObject) -> JsonObject:
        """Replace the path on the far bus by the one that the requester knows."""
        mount = self._mount
        return {name: mount.path if value == mount.far_path else value for name, value in fields.items()}


# -- the far bus


class Following(Subscription):
    """The fetch on the far bus: events go straight through, or wait and replace each other."""

    def __init__(
        self, fetch_id: str, rule: Rule, hear: Callable[[Iterable[Event]], None], is_congested: Callable[[], bool]
    ) -> None:
        super().__init__(fetch_id, rule, schema=True, meta=True)
        self._hear = hear
        self._is_congested = is_congested

    def _emit(self, events: list[Event]) -> None:
        # Once something waits, everything waits behind it.
        if self._pending or self._is_congested():
            self._conflate(events)
        else:
            self._hear(events)


class _Then:
    """Receiver of an answer that calls a function, whatever the answer is."""

    def __init__(self, work: Callable[[], object], lost: bool) -> None:
        self._work, self._lost = work, lost

    def done(self) -> bool:
        return False

    def set_result(self, _result: Json, /) -> None:
        self._work()

    def set_exception(self, exception: BaseException, /) -> None:
        if self._lost or not isinstance(exception, NotConnected):
            self._work()


def after(session: PeerSession, work: Callable[[], object], *, lost: bool = False) -> None:
    """Call ``work`` when the daemon has answered a request, and so has sent all that came before it.

    With ``lost``, call it also when the connection is lost.
    """
    with contextlib.suppress(NotConnected):
        session.request("info", {}, _Then(work, lost))
