"""The less frequent services: fetch, unfetch, get, info, config, authenticate and others, as one table.

A service takes the bus, the session and the request. It returns the result as JSON, or None if it responds itself, now
or later. It raises a ``JetError`` to refuse the request. A new service needs one function and one row.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import Raw

import jetbus
from jetbus.bus.descriptions import NOTHING_ASKED, Asked, check_past, read_asked
from jetbus.bus.fetches import FetchOptions, PendingFetch
from jetbus.bus.preparations import Form, Wish
from jetbus.bus.replay import PastElement, get_past, read_past_instant, replay
from jetbus.errors import (
    AlreadyFetching,
    EncodingNotSupported,
    FetchIdInUse,
    FetchIdUnknown,
    Internal,
    Invalid,
    JetError,
    LimitReached,
    LoginRefused,
    MissingParam,
    UserRefused,
    WrongType,
)
from jetbus.json_types import Json, JsonObject
from jetbus.paths import SEPARATORS
from jetbus.rules import EVERYTHING, Rule, read_matcher, read_rule
from jetbus.schema import read_time, write_time
from jetbus.wire import jsonrpc, legacy
from jetbus.wire.dialects import LEGACY, LEGACY_POSITIONAL, NODE_JET_3
from jetbus.wire.notifications import (
    encode_entry,
    encode_list,
    encode_past_entry,
    encode_sorted_halves,
)

if TYPE_CHECKING:
    from jetbus.bus.bus import Bus
    from jetbus.bus.ports import Users
    from jetbus.bus.session import Session
    from jetbus.bus.tree import Element

PROTOCOL_VERSION = "1.1.0"
LOGIN_DELAY_S = 0.5
LOGIN_DELAY_MAX_S = 8.0


class Request(NamedTuple):
    """A request for a rare service. ``id`` is empty for a notification."""

    id: bytes
    params: bytes
    by_jsonrpc: bool
    """True if it comes from a C++ peer, which sends a member ``jsonrpc``."""
    jsonrpc: bytes = b""
    """Member ``jsonrpc`` of the request."""

    def named(self) -> JsonObject:
        """Return the parameters as Python values."""
        return jsonrpc.read_object(self.params)


Service = Callable[["Bus", "Session", Request], bytes | None]


def _required(params: JsonObject, name: str, kind: type = str) -> Json:
    if name not in params:
        raise MissingParam(name)
    if not isinstance(params[name], kind):
        raise WrongType(name)
    return params[name]


# -- fetch, unfetch, get


def _fetch(bus: Bus, session: Session, request: Request) -> None:
    fetch_id, params = jsonrpc.read_fetch_params(request.params)
    rule = _read_rule(session, params)
    if fetch_id in session.fetches:
        # Checked before the limits: a peer that repeats itself should be told so.
        raise FetchIdInUse(Raw(fetch_id))
    check_fetch(bus, session, fetch_id, rule)
    response_id = bus.encode_response_id(session, request)
    done = jsonrpc.encode_result(response_id, session.dialect.done) if response_id else b""
    # C++ peers want the first events before the response; lua and node-jet peers would lose them there.
    events_first = request.by_jsonrpc or fetch_id[:1] != b'"' or session.dialect.has_nodes

    options = read_fetch_options(params, rule)
    fetch = PendingFetch(bus.fetches, session, fetch_id, rule, options, done, events_first)
    start_fetch(bus, session, request.id, params, fetch)


def read_fetch_options(params: JsonObject, rule: Rule) -> FetchOptions:
    """Return the options of a fetch; refuse those that do not go together."""
    nodes = params.get("nodes") is True
    if nodes and rule.sort is not None:
        raise Invalid("nodes", "a sorted fetch lists states and methods only; leave out sort, or nodes")
    if nodes and params.get("since") is not None:
        raise Invalid("nodes", "nodes are of the present only; leave out since, or nodes")
    if params.get("recorded") is True and rule.sort is not None:
        raise Invalid("recorded", "a sorted list has no place in the journal; leave out sort, or recorded")
    asked = read_asked(params, fetches=True)
    return FetchOptions(params.get("every") is True, params.get("together") is True, nodes, asked)


def check_fetch(bus: Bus, session: Session, fetch_id: bytes, rule: Rule) -> None:
    """Refuse a fetch that is one too many, or has too long a rule."""
    check_lists(bus, rule)
    session.account.check_fetch(fetch_id, rule)


def check_lists(bus: Bus, rule: Rule) -> None:
    """Refuse a rule with a list that is too long."""
    for op, length in rule.lists:
        if length > bus.limits.rule_list_max:
            raise bus.limit_reached("rule_list_max", f"the list of {op} is too long")


def start_fetch(bus: Bus, session: Session, request_id: bytes, params: JsonObject, fetch: PendingFetch) -> None:
    """Start a fetch, at an instant of the past or at the present.

    The present is that of the peer's turn: it includes messages that others have sent before, and none sent since.
    """
    instant = read_past_instant(bus, session, params)
    if instant is not None:
        bus.serving.begin_task(session, request_id, replay(bus, session, instant, fetch))
    else:
        bus.serving.fetch_in_order(session, partial(_fetch_present, bus, session, request_id, fetch))


def _fetch_present(bus: Bus, session: Session, request_id: bytes, fetch: PendingFetch) -> None:
    # Built-in states are brought up to date only while a peer looks at them.
    if fetch.rule.sees_daemon:
        bus.refresh()
    bus.serving.begin_task(session, request_id, bus.preparations.serve(session, fetch.make_wish))


def _read_rule(session: Session, params: JsonObject) -> Rule:
    if params.keys() & legacy.MATCHER_WORDS:
        if session.dialect is not LEGACY_POSITIONAL:
            session.dialect = LEGACY
        words = {word: params[word] for word in ("match", "unmatch") if word in params}
        return read_matcher(params.get("matcher", words))
    # node-jet 3 sends ``sort`` but expects plain events, and sorts them itself.
    if "sort" in params and not session.dialect.sorts:
        params = {name: value for name, value in params.items() if name != "sort"}
    return read_rule(params)


def _unfetch(bus: Bus, session: Session, request: Request) -> bytes:
    fetch_id = jsonrpc.normalize_fetch_id(jsonrpc.read_fields(request.params).get("id", jsonrpc.ABSENT))
    if fetch_id not in session.fetches:
        raise FetchIdUnknown(Raw(fetch_id))
    bus.run_chore(session, bus.fetches.leave(session, fetch_id))
    return session.dialect.done


def _get(bus: Bus, session: Session, request: Request) -> bytes | None:
    params = request.named()
    rule = _read_rule(session, params) if params else EVERYTHING
    instant = read_past_instant(bus, session, params)
    asked = read_asked(params)
    if instant is not None:
        get_past(bus, session, request.id, rule, instant, lambda found: _encode_past(request, found, asked))
        return None
    check_lists(bus, rule)

    def encode(element: Element) -> bytes:
        members = b"" if asked is None else asked.encode(element)
        return encode_entry(element, element.fetch_only_for(session.auth), members)

    def encode_halves(element: Element) -> tuple[bytes, bytes]:
        members = b"" if asked is None else asked.encode(element)
        return encode_sorted_halves(element, element.fetch_only_for(session.auth), members)

    def answer(form: Form) -> None:
        found = form.texts() if rule.sort is None else form.blocks()
        if request.id:
            session.answer(bus.encode_response_id(session, request), encode_list(found))

    # C++ peers do not know methods in the result of a get.
    key = "get", asked
    wish = Wish(rule, not request.by_jsonrpc, key, encode if rule.sort is None else encode_halves, answer)
    find(bus, session, bus.encode_response_id(session, request), wish)
    return None


def find(bus: Bus, session: Session, request_id: bytes, wish: Wish) -> None:
    """Answer a get of the present."""
    if wish.rule.sees_daemon:
        bus.refresh()
    bus.serving.begin_task(session, request_id, bus.preparations.serve(session, lambda: wish))


def _encode_past(request: Request, found: list[PastElement], asked: Asked | None) -> bytes:
    # C++ peers do not know methods in the result of a get.
    shown = [element for element in found if element.value is not None or not request.by_jsonrpc]
    asked = asked or NOTHING_ASKED
    entries = [
        encode_past_entry(
            element, element.fetch_only, asked.choose_time(element), asked.encode_past(element, time=False)
        )
        for element in shown
    ]
    return jsonrpc.encode_result(request.id, encode_list(entries))


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


def _info(bus: Bus, session: Session, request: Request) -> bytes:
    # node-jet 3 starts with ``info`` and a number written as text; older peers count by numbers, others use uuids.
    if session.fresh and request.id[:1] == b'"' and request.id[1:-1].isdigit():
        session.dialect = NODE_JET_3
    # Only on request: existing clients are sent the bytes that they know, whatever their parameters are.
    if b'"limits"' in bytes(request.params) and request.named().get("limits") is True:
        return _INFO[:-1] + b',"limits":{"message_bytes_max":%d}}' % bus.limits.message_bytes_max
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
    if params.get("became") is True:
        session.wants_outcome = True
    if params.get("batches") is True:
        # The bytes that a peer has been sent already cannot be put into a batch any more.
        if session.fetches or session.outbox.slow:
            raise Invalid("batches", "say so before the first fetch")
        if session.batches is not None:
            raise Invalid("batches", "say so outside of a batch")
        session.take_batches()
    return session.dialect.done


NAME_CHARS_MAX = 256


def _separators(given: Json) -> str:
    """Return the separators of paths that a peer of 2012 has chosen for its next fetches and adds."""
    if given not in SEPARATORS:
        raise Invalid("separator", f"separator is one of {' '.join(SEPARATORS)}")
    return str(given)


def _echo(_bus: Bus, _session: Session, request: Request) -> bytes:
    return request.params or jsonrpc.NULL


def _post(bus: Bus, session: Session, request: Request) -> bytes:
    if session.dialect is not LEGACY_POSITIONAL:
        session.dialect = LEGACY
    if not request.params:
        raise MissingParam("params")
    bus.changes.post(session, legacy.read_post(request.params))
    return session.dialect.done


# -- users


def _read_login(bus: Bus, params: JsonObject, name: str) -> str:
    """Return the name or password of a user; refuse a longer one than any user has, before it is hashed."""
    given: str = _required(params, name)
    if len(given) > bus.limits.login_chars_max:
        raise bus.limit_reached("login_chars_max", f"{name} is too long")
    return given


def _authenticate(bus: Bus, session: Session, request: Request) -> None:
    params = request.named()
    user, password = _read_login(bus, params, "user"), _read_login(bus, params, "password")
    if session.fetches:
        raise AlreadyFetching
    users = bus.permissions.users
    if users is None:
        raise LoginRefused(user_known=False)

    def done(outcome: Any) -> None:
        if isinstance(outcome, LimitReached):
            bus.serving.release(session, request.id, outcome)
            return
        if isinstance(outcome, JetError):
            # Guessing gets slower with every attempt, and only for the peer that guesses.
            delay_s = min(LOGIN_DELAY_S * 2**session.logins_failed, LOGIN_DELAY_MAX_S)
            session.logins_failed += 1
            bus.logins_failed += 1
            bus.worker.later(delay_s, lambda: bus.serving.release(session, request.id, outcome))
            return
        session.auth = outcome
        bus.serving.release(session, request.id, msgspec.json.encode(outcome.wire()))

    bus.serving.hold(session)
    bus.logins.attempt(session, user, lambda: users.authenticate(user, password), done)


def _passwd(bus: Bus, session: Session, request: Request) -> None:
    params = request.named()
    user, password = _read_login(bus, params, "user"), _read_login(bus, params, "password")
    _change_users(bus, session, request, lambda users, actor: users.passwd(actor, user, password))


def _add_user(bus: Bus, session: Session, request: Request) -> None:
    params = request.named()
    user, password = _read_login(bus, params, "user"), _read_login(bus, params, "password")
    groups = _required(params, "groups", list) if "groups" in params else []
    if not all(isinstance(group, str) for group in groups):
        raise WrongType("groups")
    _change_users(bus, session, request, lambda users, actor: users.add_user(actor, user, password, groups))


def _remove_user(bus: Bus, session: Session, request: Request) -> None:
    user = _read_login(bus, request.named(), "user")
    _change_users(bus, session, request, lambda users, actor: users.remove_user(actor, user))


def _change_users(bus: Bus, session: Session, request: Request, change: Callable[[Users, str | None], None]) -> None:
    users = bus.permissions.users
    if users is None:
        raise UserRefused("this daemon has no users; start it with --users FILE")
    actor = session.auth.user if session.auth else None

    def done(outcome: Any) -> None:
        # Also for users that are logged in: a removed administrator is one no longer.
        if not isinstance(outcome, JetError) and bus.permissions.users is users:
            bus.permissions.use(users)
        bus.serving.release(session, request.id, outcome if isinstance(outcome, JetError) else session.dialect.done)

    bus.serving.hold(session)
    bus.logins.run(lambda: change(users, actor), done)


def _gap(bus: Bus, session: Session, request: Request) -> None:
    """Record that values of a state are missing, since its owner could not keep them; respond as to a ``sync``."""
    params = request.named()
    path, missed = params.get("path"), params.get("missed", 0)
    if not isinstance(path, str):
        raise WrongType("path")
    if not isinstance(missed, int) or isinstance(missed, bool) or missed < 0:
        raise WrongType("missed")
    element = bus.require_owned_state(session, path)
    since_us, until_us = (_read_time_of(name, params.get(name)) for name in ("since", "until"))
    if until_us < since_us:
        raise Invalid("until", "the gap ends before it begins; until is the time of its last value")
    check_past(bus, since_us)
    if bus.record is not None:
        detail = jsonrpc.encode({"until": write_time(until_us), "missed": missed})
        # Without a value: from then on nothing is known, until the next value.
        bus.record.append("past", "state", path, None, element.owner.label, detail, since_us, b'"bad"')
    _sync(bus, session, request)


def _read_time_of(name: str, instant: object) -> int:
    try:
        return read_time(instant)
    except ValueError as problem:
        raise Invalid(name, f"{name}: {problem}") from None


def _sync(bus: Bus, session: Session, request: Request) -> None:
    """Respond once everything that the peer has sent before is in the journal, as durably as its setting says."""
    record, history = bus.record, bus.history
    if record is None or history is None:
        raise Invalid("sync", "this daemon keeps no journal; start it with --journal DIR")
    response_id = bus.encode_response_id(session, request)

    def respond() -> None:
        if session.gone or not request.id:
            return
        missed, session.missed = session.missed, record.missed
        if missed == record.missed:
            session.send(session.dialect.encode_result(response_id, session.dialect.done))
        else:
            error = Internal("the journal has dropped events, perhaps of this peer; send again what is not recorded")
            bus.answer_error(session, response_id, error)

    history.when_recorded(respond)


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
    "sync": _sync,
    "gap": _gap,
    "notify": _post,
    "post": _post,
}
