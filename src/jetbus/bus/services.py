"""The less frequent services: fetch, unfetch, get, info, config, authenticate and others, as one table.

A service takes the bus, the session and the request. It returns the result as JSON, or None if it responds itself, now
or later. It raises a ``JetError`` to refuse the request. A new service needs one function and one row.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import Raw

import jetbus
from jetbus.bus.descriptions import NOTHING_ASKED, UNDESCRIBED, Asked, Description, Meta, read_asked
from jetbus.bus.fetches import FetchOptions, PreparedFetch
from jetbus.bus.replay import PastElement, get_past, read_past_instant, replay
from jetbus.bus.sorting import sort_key
from jetbus.bus.tasks import Place, Step
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
from jetbus.paths import SEPARATORS, is_daemons
from jetbus.rules import EVERYTHING, Rule, read_matcher, read_rule
from jetbus.rules.work import meter
from jetbus.wire import jsonrpc, legacy
from jetbus.wire.dialects import LEGACY, LEGACY_POSITIONAL, NODE_JET_3
from jetbus.wire.notifications import encode_entry, encode_list, encode_past_entry, encode_sorted_halves

if TYPE_CHECKING:
    from jetbus.bus.access import Access
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
    """True if it comes from a C++ peer, whose requests have a member ``jsonrpc``."""
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

    def prepare() -> PreparedFetch:
        preparation = bus.fetches.prepare(session, fetch_id, rule, options)
        return PreparedFetch(preparation, done, events_first)

    start_fetch(bus, session, request.id, rule, params, prepare)


def read_fetch_options(params: JsonObject, rule: Rule) -> FetchOptions:
    """Return the options of a fetch; refuse nodes where there are none."""
    nodes = params.get("nodes") is True
    if nodes and rule.sort is not None:
        raise Invalid("nodes", "a sorted fetch lists states and methods only; leave out sort, or nodes")
    if nodes and params.get("since") is not None:
        raise Invalid("nodes", "nodes are of the present only; leave out since, or nodes")
    return FetchOptions(params.get("every") is True, params.get("together") is True, nodes, read_asked(params))


def check_fetch(bus: Bus, session: Session, fetch_id: bytes, rule: Rule) -> None:
    """Refuse a fetch that is one too many, or whose rule is too long."""
    check_lists(bus, rule)
    session.account.check_fetch(fetch_id, rule)


def check_lists(bus: Bus, rule: Rule) -> None:
    """Refuse a rule with a list that is too long."""
    for op, length in rule.lists:
        if length > bus.limits.rule_list_max:
            raise bus.limit_reached("rule_list_max", f"the list of {op} is too long")


def search(bus: Bus, session: Session, rule: Rule, steps: Iterator[None]) -> Generator[Step]:
    """Look for what a rule matches, with bounded work, as soon as there is room for what is found."""
    count, elements = bus.tree.count_candidates(rule), len(bus.tree.elements)
    if count <= SMALL_SEARCH and bus.book.all.kept_bytes < SMALL_BYTES:
        yield from limit_work(bus, steps)
        return
    # An estimate by the average element, twice: what is found, and the answer that it becomes.
    place = Place(bus.room, session.address, count * (FOUND_BYTES + 2 * bus.book.all.kept_bytes // elements))
    try:
        yield place
        yield from limit_work(bus, steps)
    finally:
        place.leave()


def limit_work(bus: Bus, steps: Iterator[None]) -> Generator[None]:
    """Bound the work of finding what a rule matches, over all steps."""
    left = allowed = bus.limits.rule_work_max
    while True:
        before = meter.units
        try:
            with meter.ceiling(left, "rule_work_max"):
                next(steps)
        except StopIteration:
            return
        except LimitReached as error:
            if error.limit != "rule_work_max":
                raise
            bus.limit_hits["rule_work_max"] += 1
            raise LimitReached("rule_work_max", allowed, "too much work for one request") from None
        # The meter runs on for all peers; what others used between two steps is not this request's.
        left -= meter.units - before
        yield


def start_fetch(
    bus: Bus,
    session: Session,
    request_id: bytes,
    rule: Rule,
    params: JsonObject,
    prepare: Callable[[], PreparedFetch],
) -> None:
    """Begin a fetch, at an instant of the past or at the present.

    The present is that of the peer's turn: what others have sent before counts, what they have sent since does not.
    """
    instant = read_past_instant(bus, session, params)
    if instant is not None:
        bus.serving.begin_task(session, request_id, replay(bus, session, rule, instant, prepare()))
        return

    def tell_present() -> None:
        if rule.sees_daemon:
            bus.refresh()
        # Built-in states are brought up to date only while somebody looks at them.
        bus.serving.begin_task(session, request_id, search(bus, session, rule, steps()))

    def steps() -> Iterator[None]:
        preparation, response, events_first = prepare()
        yield from preparation.steps()
        frames = preparation.join()
        if response and not events_first:
            session.send(response)
        for frame in frames:
            session.outbox.put(frame)
        if response and events_first:
            session.send(response)

    bus.serving.fetch_in_order(session, tell_present)


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
    auth = session.auth

    def encode(element: Element) -> bytes:
        members = b"" if asked is None else asked.encode(element)
        return encode_entry(element, element.fetch_only_for(auth), members)

    def encode_halves(element: Element) -> tuple[bytes, bytes]:
        members = b"" if asked is None else asked.encode(element)
        return encode_sorted_halves(element, element.fetch_only_for(auth), members)

    def answer(found: list[Any]) -> None:
        if rule.sort is not None:
            found = [b"%b%d%b" % (head, at, tail) for at, (head, tail) in enumerate(found, rule.sort.first)]
        if request.id:
            session.answer(bus.encode_response_id(session, request), encode_list(found))

    form = encode if rule.sort is None else encode_halves
    find(bus, session, bus.encode_response_id(session, request), rule, form, answer, skip_methods=request.by_jsonrpc)
    return None


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


SMALL_SEARCH, SMALL_BYTES = 1_000, 1 << 20
"""Number of elements up to which a search needs no room, unless they are larger than that."""
FOUND_BYTES = 300
"""Bytes that a search keeps for an element, besides its encoded form."""
STEP = 25
"""Number of elements between two looks at the clock."""


def find(
    bus: Bus,
    session: Session,
    request_id: bytes,
    rule: Rule,
    encode: Callable[[Element], Any],
    answer: Callable[[list[Any]], None],
    *,
    skip_methods: bool = False,
) -> None:
    """Answer what a rule matches now, of what the session may see, each as ``encode`` returns it.

    What a sorted get takes most time for, keys and encoding, is done in steps; the last step only sorts.
    """
    if rule.sees_daemon:
        bus.refresh()
    matches_path, test, auth, sees_daemon = rule.matches_path, rule.matches_value, session.auth, rule.sees_daemon
    units, sorts = 1 + len(rule.value), rule.sort
    bytes_left = bus.limits.answer_bytes_max

    def look(element: Element) -> Any:
        meter.spend(units)
        if (
            (skip_methods and element.is_method)
            or not matches_path(element.path)
            or (not sees_daemon and is_daemons(element.path))
            or not element.shown_to(auth)
            or (test is not None and not _passes(test, element))
        ):
            return None
        nonlocal bytes_left
        encoded = encode(element)
        bytes_left -= len(encoded)
        # Of what is sorted only a part is sent, which is known at the end.
        if bytes_left < 0 and sorts is None:
            raise bus.limit_reached("answer_bytes_max", TOO_LONG)
        return encoded if sorts is None else (sort_key(sorts, element), element.number, encoded)

    def answer_sorted(found: list[Any]) -> None:
        if sorts is not None:
            found.sort()  # numbers of elements are unique, so that encoded ones are never compared
            found = [encoded for _, _, encoded in found[sorts.first - 1 : sorts.last]]
        answer(found)

    steps = _find_in_steps(bus, rule, look, answer_sorted)
    bus.serving.begin_task(session, request_id, search(bus, session, rule, steps))


def _find_in_steps(
    bus: Bus, rule: Rule, look: Callable[[Element], Any], answer: Callable[[list[Any]], None]
) -> Iterator[None]:
    """Look at all elements in steps, between which other peers may have their turn; then answer.

    The response shows the tree at the last step: elements that were added or changed between two steps are tested
    again. That takes a fraction of the time, since most elements have not changed.
    """
    known: dict[Element, tuple[bytes | None, Description, Meta | None, Access | None, Any]] = {}
    candidates, turn = list(bus.tree.candidates(rule)), bus.serving.turn_ends
    for count, element in enumerate(candidates):
        if count % STEP == STEP - 1:
            yield
        known[element] = element.value, element.description, element.meta, element.access, look(element)
    # All in one turn, so nothing can have changed.
    if bus.serving.turn_ends == turn:
        answer([seen for _, _, _, _, seen in known.values() if seen is not None])
        return
    found = []
    for element in bus.tree.candidates(rule):
        value, description, meta, access, seen = known.get(element, _UNKNOWN)
        if (
            value is not element.value
            or access is not element.access
            or description is not element.description
            or meta is not element.meta
        ):
            seen = look(element)
        if seen is not None:
            found.append(seen)
    answer(found)


_UNKNOWN = (b"unknown", UNDESCRIBED, None, None, None)


TOO_LONG = "the answer is too long; narrow the rule, or ask for the parts one by one"


def _passes(test: Callable[[Any], bool], element: Element) -> bool:
    value = element.value
    if value is None:
        return False
    if len(value) > LONG_BYTES:  # a list may be in it, and a test of lists counts its members
        meter.spend(0)
    return test(jsonrpc.loads(value))


LONG_BYTES = 64
"""Values above this length are checked for the work of their tests one by one."""


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
    # node-jet 3 begins with ``info`` and a number written as text; older peers count by numbers, others use uuids.
    if session.fresh and request.id[:1] == b'"' and request.id[1:-1].isdigit():
        session.dialect = NODE_JET_3
    # Only to those who ask: existing clients are sent the bytes that they know, whatever their parameters are.
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
        # Also for those who are logged in: a removed administrator is one no longer.
        if not isinstance(outcome, JetError) and bus.permissions.users is users:
            bus.permissions.use(users)
        bus.serving.release(session, request.id, outcome if isinstance(outcome, JetError) else session.dialect.done)

    bus.serving.hold(session)
    bus.logins.run(lambda: change(users, actor), done)


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
    "notify": _post,
    "post": _post,
}
