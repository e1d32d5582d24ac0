"""The services that are not busy: fetch, unfetch, get, info, config, authenticate and their kin, as one table.

A service takes the bus, the session and the request, and gives the result as JSON, or None when it has answered
itself or will do so later. What it refuses it raises. Adding a service is one function and one row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import Raw

import jetbus
from jetbus.bus.past import Begun, Then, asked_instant, fetch_since, get_then
from jetbus.bus.past import entry as entry_then
from jetbus.bus.sorting import Window, entry
from jetbus.errors import (
    AlreadyFetching,
    EncodingNotSupported,
    FetchIdInUse,
    FetchIdUnknown,
    Invalid,
    JetError,
    LoginRefused,
    MissingParam,
    UserRefused,
    WrongType,
)
from jetbus.paths import SEPARATORS
from jetbus.rules import EVERYTHING, Rule, read_matcher, read_rule
from jetbus.wire import jsonrpc, legacy
from jetbus.wire.dialects import LEGACY, LEGACY_POSITIONAL, NODE_JET_3

if TYPE_CHECKING:
    from jetbus.bus.bus import Bus
    from jetbus.bus.session import Session
    from jetbus.bus.tree import Element

PROTOCOL_VERSION = "1.1.0"
LOGIN_DELAY_S = 0.5
LOGIN_DELAY_MAX_S = 8.0


class Request(NamedTuple):
    """A request for a rare service. ``id`` is empty for a notification."""

    id: bytes
    params: Raw
    by_jsonrpc: bool
    """Whether it is a C++ peer's: these say ``jsonrpc``."""
    jsonrpc: Raw = jsonrpc.ABSENT
    """What it said of ``jsonrpc``."""

    def named(self) -> dict[str, Any]:
        """The parameters as Python values."""
        return jsonrpc.read_object(self.params)


Service = Callable[["Bus", "Session", Request], bytes | None]


def _required(params: dict[str, Any], name: str, kind: type = str) -> Any:
    if name not in params:
        raise MissingParam(name)
    if not isinstance(params[name], kind):
        raise WrongType(name)
    return params[name]


# -- fetch, unfetch, get


def _fetch(bus: Bus, session: Session, request: Request) -> None:
    params = request.named()
    fetch_id = _fetch_id(request)
    rule = _rule(session, params)
    if fetch_id in session.fetches:
        raise FetchIdInUse(Raw(fetch_id))
    if len(session.fetches) >= bus.limits.fetches_max:
        raise bus.limit_reached("fetches_max", "too many fetches of one peer")
    done = jsonrpc.result(bus.echoed(session, request), session.dialect.done) if request.id else b""
    # C++ peers want the first events before the response; lua and node-jet peers would lose them there.
    events_first = request.by_jsonrpc or fetch_id[:1] != b'"' or session.dialect.tells_nodes

    def begin() -> Begun:
        options = {name: params.get(name) is True for name in ("every", "together", "schema")}
        audience = bus.fetches.join(session, fetch_id, rule, **options)
        return Begun(audience, fetch_id, done, events_first)

    start_fetch(bus, session, request.id, rule, params, begin)


def start_fetch(
    bus: Bus,
    session: Session,
    request_id: bytes,
    rule: Rule,
    params: dict[str, Any],
    begin: Callable[[], Begun],
) -> None:
    """Begin a fetch, at the present or at an instant of the past.

    The present is that of the peer's turn: what others have sent before counts, what they have sent since does not.
    """
    instant = asked_instant(bus, session, params)
    if instant is not None:
        fetch_since(bus, session, request_id, rule, instant, begin)
        return

    def tell_present() -> None:
        if rule.sees_daemon:
            bus.refresh()
        audience, fetch_id, response, events_first = begin()
        if response and not events_first:
            session.send(response)
        for frame in bus.fetches.initial(audience, fetch_id):
            session.outbox.put(frame)
        if response and events_first:
            session.send(response)

    bus.fetch_in_turn(session, tell_present)


def _fetch_id(request: Request) -> bytes:
    """The fetch id as JSON: text is spelt one way only, a number stays as it came."""
    fields = jsonrpc.read_fields(request.params)
    if "id" not in fields:
        raise MissingParam("id")
    fetch_id = bytes(fields["id"])
    if fetch_id[:1] == b'"':
        return msgspec.json.encode(msgspec.json.decode(fetch_id))
    if fetch_id[:1] in b"-0123456789":
        return fetch_id
    raise WrongType("id")


def _rule(session: Session, params: dict[str, Any]) -> Rule:
    if params.keys() & legacy.MATCHER_WORDS:
        if session.dialect is not LEGACY_POSITIONAL:
            session.dialect = LEGACY
        return read_matcher(params.get("matcher", params))
    if "sort" in params and not session.dialect.sorts:
        params = {name: value for name, value in params.items() if name != "sort"}
    return read_rule(params)


def _unfetch(bus: Bus, session: Session, request: Request) -> bytes:
    fetch_id = _fetch_id(request)
    if fetch_id not in session.fetches:
        raise FetchIdUnknown(Raw(fetch_id))
    bus.fetches.leave(session, fetch_id)
    bus.worker.be_fair()
    return session.dialect.done


def _get(bus: Bus, session: Session, request: Request) -> bytes | None:
    params = request.named()
    rule = _rule(session, params) if params else EVERYTHING
    instant = asked_instant(bus, session, params)
    if instant is not None:
        get_then(bus, session, request.id, rule, instant, lambda found: _write_then(request, found))
        return None
    auth = session.auth
    found = matches(bus, session, rule, skip_methods=request.by_jsonrpc)
    if rule.sort is None:
        with_schema = params.get("schema") is True
        entries = [_shown(element, element.fetch_only_for(auth), with_schema) for _, element in found]
    else:
        entries = [entry(position, element, element.fetch_only_for(auth)) for position, element in found]
    return b"[" + b",".join(entries) + b"]"


def _write_then(request: Request, found: list[Then]) -> bytes:
    told = [entry_then(then) for then in found if then.value is not None or not request.by_jsonrpc]
    return jsonrpc.result(request.id, b"[" + b",".join(told) + b"]")


def matches(bus: Bus, session: Session, rule: Rule, *, skip_methods: bool = False) -> list[tuple[int, Element]]:
    """What a rule matches now, of what the session may see, each with its position in the list."""
    if rule.sees_daemon:
        bus.refresh()
    test, auth = rule.matches_value, session.auth
    found = [
        element
        for element in bus.tree.matching(rule)
        if element.shown_to(auth)
        and not (skip_methods and element.is_method)
        and (test is None or _passes(test, element))
    ]
    if rule.sort is None:
        return list(enumerate(found, 1))
    window = Window(rule.sort, auth)
    window.fill(found)
    return window.snapshot()


def _passes(test: Callable[[Any], bool], element: Element) -> bool:
    value = element.value
    return value is not None and test(jsonrpc.loads(value))


def _shown(element: Element, fetch_only: bool, with_schema: bool) -> bytes:
    value = b"" if element.value is None else b',"value":' + element.value
    only = b',"fetchOnly":true' if fetch_only else b""
    schema = b',"schema":' + element.schema if with_schema and element.schema is not None else b""
    return b'{"path":%b,"event":"add"%b%b%b}' % (element.path_json, value, only, schema)


# -- info, config, echo, post

_INFO = msgspec.json.encode(
    {
        "name": "jetbus",
        "version": jetbus.__version__,
        "protocolVersion": PROTOCOL_VERSION,
        "features": {
            "batches": True,
            "authentication": True,
            "authenticate": False,
            "fetch": "full",
            "asNotification": False,
        },
    }
)


def _info(_bus: Bus, session: Session, request: Request) -> bytes:
    if session.fresh and request.id[:1] == b'"':
        session.dialect = NODE_JET_3
    return _INFO


def _config(_bus: Bus, session: Session, request: Request) -> bytes:
    params = request.named()
    if "name" in params:
        session.rename(_required(params, "name")[:NAME_CHARS_MAX])
    if params.get("encoding") not in (None, "json"):
        raise EncodingNotSupported(params["encoding"])
    if "peer" in params:
        raise Invalid("peer", "a peer configures only itself")
    if "separator" in params:
        session.separators = _separators(params["separator"])
    if params.get("batches") is True:
        if session.fetches or session.outbox.slow:
            raise Invalid("batches", "say so before the first fetch")
        if session.batches is not None:
            raise Invalid("batches", "say so outside of a batch")
        session.take_batches()
    return session.dialect.done


NAME_CHARS_MAX = 256


def _separators(given: Any) -> str:
    """What makes nodes of paths for a peer of 2012, in the fetches and adds that follow."""
    if given not in SEPARATORS:
        raise Invalid("separator", f"separator is one of {' '.join(SEPARATORS)}")
    return str(given)


def _echo(_bus: Bus, _session: Session, request: Request) -> bytes:
    return bytes(request.params or jsonrpc.NULL)


def _post(bus: Bus, session: Session, request: Request) -> bytes:
    if session.dialect is not LEGACY_POSITIONAL:
        session.dialect = LEGACY
    if not request.params:
        raise MissingParam("params")
    bus.post(session, legacy.read_post(request.params))
    return session.dialect.done


# -- users


def _authenticate(bus: Bus, session: Session, request: Request) -> None:
    params = request.named()
    user, password = _required(params, "user"), _required(params, "password")
    if session.fetches:
        raise AlreadyFetching
    users = bus.users
    if users is None:
        raise LoginRefused(user_known=False)

    def done(outcome: Any) -> None:
        if isinstance(outcome, JetError):
            delay_s = min(LOGIN_DELAY_S * 2**session.logins_failed, LOGIN_DELAY_MAX_S)
            session.logins_failed += 1
            bus.logins_failed += 1
            bus.release_later(session, delay_s, request.id, outcome)
            return
        session.auth = outcome
        bus.release(session, request.id, msgspec.json.encode(outcome.wire()))

    bus.hold(session, lambda: users.authenticate(user, password), done)


def _passwd(bus: Bus, session: Session, request: Request) -> None:
    params = request.named()
    user, password = _required(params, "user"), _required(params, "password")
    _change_users(bus, session, request, lambda users, actor: users.passwd(actor, user, password))


def _add_user(bus: Bus, session: Session, request: Request) -> None:
    params = request.named()
    user, password = _required(params, "user"), _required(params, "password")
    groups = _required(params, "groups", list) if "groups" in params else []
    if not all(isinstance(group, str) for group in groups):
        raise WrongType("groups")
    _change_users(bus, session, request, lambda users, actor: users.add_user(actor, user, password, groups))


def _remove_user(bus: Bus, session: Session, request: Request) -> None:
    user = _required(request.named(), "user")
    _change_users(bus, session, request, lambda users, actor: users.remove_user(actor, user))


def _change_users(bus: Bus, session: Session, request: Request, change: Callable[[Any, str | None], None]) -> None:
    users = bus.users
    if users is None:
        raise UserRefused("this daemon has no users; start it with --users FILE")
    actor = session.auth.user if session.auth else None

    def done(outcome: Any) -> None:
        bus.release(session, request.id, outcome if isinstance(outcome, JetError) else session.dialect.done)

    bus.hold(session, lambda: change(users, actor), done)


RARE: dict[str, Service] = {
    "fetch": _fetch,
    "unfetch": _unfetch,
    "get": _get,
    "info": _info,
    "config": _config,
    "configure": _config,
    "authenticate": _authenticate,
    "passwd": _passwd,
    "addUser": _add_user,
    "removeUser": _remove_user,
    "echo": _echo,
    "notify": _post,
    "post": _post,
}
