"""The compiled lane does what Python does with the same bytes, cut anywhere, in turns of any length."""

from __future__ import annotations

import gc
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jetbus.bus.access import read_access
from jetbus.bus.bus import Bus
from jetbus.bus.conditions import Condition
from jetbus.bus.descriptions import Description, Meta
from jetbus.bus.tree import TypedElement
from jetbus.schema import read_schema
from jetbus.wire import lane
from jetbus.wire.dialects import CLASSIC, LEGACY, NODE_JET_3
from jetbus.wire.framing import BATCHES
from support.inmemory import Peer
from support.twins import HARD_BYTES, PEERS, Record, Side, Step, framed, play

pytestmark = pytest.mark.skipif(lane.compiled is None, reason="not compiled here")

ALL_DAY = 1 << 40
"""Looks at the clock that no turn has."""

# -- any bytes

SETUP = [
    '{"method":"add","params":{"path":"s/1","value":1}}',
    '{"method":"add","params":{"path":"s/2","value":{"a":[1,2]}}}',
    '{"method":"add","params":{"path":"s/é","value":"x"}}',
    '{"method":"add","params":{"path":"s/a\\"b","value":0}}',
    '{"method":"add","params":{"path":"s/checked","value":1,"schema":{"type":"number"},"check":"schema"}}',
    '{"method":"add","params":{"path":"s/fixed","value":1,"fetchOnly":true}}',
    '{"method":"add","params":{"path":"s/some","value":1,"access":{"fetchGroups":["g"]}}}',
    '{"method":"add","params":{"path":"s/slow","value":1,"timeout":9}}',
    '{"method":"add","params":{"path":"s/bad","value":1,"quality":"bad"}}',
    '{"method":"add","params":{"path":"m/1"}}',
    '{"method":"add","params":{"path":"m/slow","timeout":9}}',
]
PATHS = ["s/1", "s/2", "s/é", 's/a\\"b', "s\\/1", "s/checked", "s/fixed", "s/some", "s/slow", "s/bad", "m/1", "m/slow"]
PATHS += ["t/1", "none", ""]
VALUES = [
    "1",
    "-1.5e3",
    '"text"',
    '"\\u00fc\\n\\ud83d\\ude00 ü"',
    "[1,{},[]]",
    '{"a": [1 , 2]}',
    "null",
    "true",
    "1e400",
]
VALUES += ["01", '"\x01"', '"\\ud800"', "1" * 250, '"' + "y" * 1500 + '"', "[" * 300, "", "{", '{"a":1,"a":2}', "1 1"]
RULES = ['"path":{"startsWith":"s"}', '"path":{"equals":"s/1"}', '"value":{"lessThan":5}', '"sort":{"to":3}']
RULES += ['"path":{},"every":true', '"path":{},"together":true', '"path":{},"meta":true,"schema":true', '"path":{}']
RARE = [
    '{"method":"config","params":{"name":"me"}}',
    '{"id":5,"method":"config","params":{"became":true}}',
    '{"method":"config","params":{"batches":true}}',
    '{"id":6,"method":"info","params":{}}',
    '{"id":"6","method":"info","params":{}}',
    '{"id":7,"method":"get","params":{}}',
    '{"method":"change","params":{"path":"s/1","value":1,"ts":1}}',
    '{"method":"change","params":{"path":"s/2","value":3,"quality":"bad"}}',
    '{"method":"change","params":{"path":"s/2","schema":{"title":"t"}}}',
    '{"method":"change","params":["s/1",{"value":9}]}',
    '{"id":8,"jsonrpc":"2.0","method":"set","params":{"path":"s/1","value":4}}',
    '{"id":9,"method":"set","params":{"path":"s/1","value":4,"valueAsResult":true}}',
    '[{"method":"change","params":{"path":"s/1","value":8}},{"id":1,"method":"set","params":{"path":"s/2","value":1}}]',
    "[]",
    "{}",
    "null",
    "\xff",
    '{"id":"r1","error":{"code":1,"message":"no"}}',
    '{"id":"r2"}',
    '{"id":null,"result":1}',
    '{"id":[],"result":1}',
]

numbers = st.integers(0, PEERS - 1)
values = st.sampled_from(VALUES)
paths = st.sampled_from(PATHS)
LAYOUTS = [
    '{{{id}"method":"{method}","params":{{"path":"{path}",{value}}}}}',
    '{{{id}"method":"{method}","params":{{"path":"{path}",{value}}}}}',
    ' {{ {id} "params" : {{ {value} , "path":"{path}" }} ,\n "method":"{method}" }} ',
    '{{{id}"method":"{method}","other":{{"path":1}},"params":{{"path":"{path}","other":2,{value}}}}}',
    '{{{id}"method":"{method}","params":{{"path":"{path}","path":"s/2",{value}}}}}',
    '{{{id}"m\\u0065thod":"{method}","params":{{"path":"{path}",{value}}}}}',
    '{{{id}"method":"{method}","jsonrpc":"2.0","params":{{"path":"{path}",{value}}}}}',
    '{{{id}"method":"{method}","params":{{"path":7,{value}}}}}',
    '{{{id}"method":"{method}","params":null}}',
]


@st.composite
def requests(draw: st.DrawFn) -> str:
    method = draw(st.sampled_from(["change", "change", "change", "set", "call", "add", "remove"]))
    request_id = draw(st.sampled_from(["", '"id":1,', '"id":"a\\u0062",', '"id":-2.5e1,', '"id":null,', '"id":true,']))
    member = draw(st.sampled_from(["args", "value"])) if method == "call" else "value"
    value = f'"{member}":{draw(values)}'
    return draw(st.sampled_from(LAYOUTS)).format(method=method, id=request_id, path=draw(paths), value=value)


results = st.builds('{{"id":"r{}","result":{}}}'.format, st.integers(1, 9), values)
fetches = st.builds(
    '{{"id":"f","method":"fetch","params":{{"id":{},{}}}}}'.format,
    st.sampled_from(['"f"', '"g"', "1"]),
    st.sampled_from(RULES),
)
unfetches = st.just('{"method":"unfetch","params":{"id":"f"}}')
messages = st.one_of(requests(), requests(), requests(), results, fetches, unfetches, st.sampled_from(RARE))


@st.composite
def scripts(draw: st.DrawFn) -> list[Step]:
    """Steps in which every peer says something, its bytes cut at any place."""
    steps: list[Step] = [("send", 0, framed(*SETUP), ALL_DAY)]
    steps.append(("send", 1, framed('{"method":"add","params":{"path":"t/1","value":1}}'), ALL_DAY))
    steps += [("send", number, framed(*draw(st.lists(fetches, max_size=2))), ALL_DAY) for number in range(PEERS)]
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(["send", "send", "send", "send", "pause", "resume", "flush"]))
        if kind == "flush":
            steps.append(("flush",))
        elif kind != "send":
            steps.append((kind, draw(numbers)))
        else:
            number = draw(st.sampled_from([0, 0, 0, 1, 2, 3]))
            texts = [text.encode("latin-1" if text == "\xff" else "utf-8") for text in draw(st.lists(messages))]
            data, looks = framed(*texts), draw(st.sampled_from([0, 1, 2, 7, ALL_DAY]))
            cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=3)))
            for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True):
                steps.append(("send", number, data[start:stop], looks))
    return steps


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(scripts(), st.sampled_from(["", "rows", "notes"]))
def test_the_lane_does_what_python_does(steps: list[Step], record: str) -> None:
    """Both ways send, store and record the same, and keep the same of what is not finished."""
    compiled, plain = play(steps, record)
    assert compiled == plain


# -- what is usual

CHANGE = '{"method":"change","params":{"path":"s","value":2}}'
SET = '{"id":1,"method":"set","params":{"path":"s","value":3}}'
CALL = '{"id":2,"method":"call","params":{"path":"m","args":[1]}}'
RESULT = '{"id":"r1","result":true}'
ADD = ['{"method":"add","params":{"path":"s","value":1}}', '{"method":"add","params":{"path":"m"}}']
FETCH = '{"method":"fetch","params":{"id":"f","path":{}}}'


def handled_by_lane(side: Side, number: int, text: str) -> bool:
    """Send a message; return True if the lane handles it without Python."""
    data = framed(text)
    args = side.bus.serving.turn_ends, 0.0, side.bus.record, 1000, 1000
    at, handled, unusual, _ = side.bus.lane.serve(side.sessions[number], data, 0, *args)
    assert bool(at) == bool(handled or unusual)
    return bool(handled)


def make_world(record: str = "") -> Side:
    """Return a bus where peer 0 owns a state and a method, peer 1 fetches and peer 3 has said something."""
    side = Side(True, record)
    side.play(("send", 0, framed(*ADD), ALL_DAY))
    side.play(("send", 1, framed(FETCH), ALL_DAY))
    side.play(("send", 3, framed('{"method":"unfetch","params":{"id":"x"}}'), ALL_DAY))
    side.flow.flush()
    return side


def test_the_usual_messages_need_no_python() -> None:
    """The lane handles a change, a set, a call and a result, with spaces, escapes and exponents, for each framing."""
    side = make_world()
    assert handled_by_lane(side, 0, CHANGE)
    assert handled_by_lane(
        side, 0, '{ "params" : {"value":[1.5e-7,"\\u00e4\\n"], "path":"\\u0073"}, "method":"change"}'
    )
    assert handled_by_lane(side, 3, SET)
    assert handled_by_lane(side, 3, CALL)
    assert handled_by_lane(side, 0, RESULT)
    assert handled_by_lane(side, 0, '{"id":"r2","result":{"x":1}}')
    side.play(("send", 2, framed(FETCH), ALL_DAY))
    assert handled_by_lane(side, 0, CHANGE)
    side.flow.flush()
    assert b'"value":[1.5e-7,"\\u00e4\\n"]' in side.transports[1].written
    assert side.transports[3].written.endswith(b'{"id":2,"result":{"x":1}}')
    assert side.transports[2].written.endswith(b'{"method":"f","params":{"path":"s","event":"change","value":2}}}'[:-1])


TURNS_AWAY = {
    "another owner": (3, CHANGE, []),
    "a change with an id": (0, '{"id":1,' + CHANGE[1:], []),
    "a change with details": (0, CHANGE[:-2] + ',"ts":1}}', []),
    "a change without a value": (0, CHANGE.replace('"value":2', '"args":2'), []),
    "a change of a method": (0, CHANGE.replace('"s"', '"m"'), []),
    "no such path": (0, CHANGE.replace('"s"', '"x"'), []),
    "a longer value": (0, CHANGE.replace("2", '"' + "x" * 80 + '"'), []),
    "a set of a method": (3, SET.replace('"s"', '"m"'), []),
    "a call of a state": (3, CALL.replace('"m"', '"s"'), []),
    "a set without an id": (3, SET.replace('"id":1,', ""), []),
    "a set with a timeout": (3, SET[:-2] + ',"timeout":1}}', []),
    "a set by JSON-RPC 2.0": (3, '{"jsonrpc":"2.0",' + SET[1:], []),
    "a result that nobody awaits": (0, RESULT, []),
    "an error": (0, '{"id":"r1","error":{}}', [(3, SET)]),
    "a result for JSON-RPC 2.0": (0, RESULT, [(3, '{"jsonrpc":"2.0",' + SET[1:])]),
    "a doubled key": (0, CHANGE.replace('"value"', '"value":1,"value"'), []),
    "meta data": (0, CHANGE, [(0, CHANGE[:-2] + ',"quality":"bad"}}')]),
    "a schema with stale": (0, CHANGE, [(0, '{"method":"change","params":{"path":"s","schema":{"stale":5}}}')]),
    "a rule with values": (0, CHANGE, [(3, FETCH.replace('"path":{}', '"value":{"lessThan":5}'))]),
    "a sorted fetch": (0, CHANGE, [(3, FETCH.replace('"path":{}', '"sort":{"to":3}'))]),
    "a fetch with together": (0, CHANGE, [(3, FETCH.replace('"path":{}', '"path":{},"together":true'))]),
    "a fetch with meta": (0, CHANGE, [(3, FETCH.replace('"path":{}', '"path":{},"meta":true'))]),
    "a fetch of node-jet 3": (
        0,
        CHANGE,
        [(2, '{"id":"1","method":"info"}'), (2, FETCH)],
    ),
    "a requester that wants the outcome": (3, SET, [(3, '{"id":1,"method":"config","params":{"became":true}}')]),
    "an owner of 2012": (
        3,
        SET,
        [(0, '{"id":1,"method":"post","params":{"path":"s","event":"change","data":{"value":2}}}')],
    ),
}


@pytest.mark.parametrize(("number", "text", "before"), TURNS_AWAY.values(), ids=TURNS_AWAY)
def test_what_the_lane_leaves_to_python(number: int, text: str, before: list[tuple[int, str]]) -> None:
    """A message that is not usual, for whatever reason, is handled by Python."""
    side = make_world()
    for sender, earlier in before:
        side.play(("send", sender, framed(earlier), ALL_DAY))
    assert not handled_by_lane(side, number, text)


SCHEMA = Description(limits=read_schema({"type": "number"}))
FLIPS: dict[str, tuple[str, str, Any, str]] = {
    "access": ("element", "access", read_access({"fetchGroups": ["g"]}), "change set"),
    "meta data": ("element", "meta", Meta(1), "change"),
    "a method": ("element", "is_method", True, "set"),
    "fetchOnly": ("element", "fetch_only", True, "set"),
    "a dialect": ("element", "dialect", NODE_JET_3, "set"),
    "a timeout": ("element", "timeout_s", 1.0, "set"),
    "a schema that is checked": ("element", "description", SCHEMA, "set"),
    "a sender that waits": ("owner", "condition", Condition.STALLED, "change result"),
    "a sender that is new": ("owner", "fresh", True, "change result"),
    "a sender of 2012": ("owner", "dialect", LEGACY, "change set result"),
    "an owner of node-jet 3": ("owner", "dialect", NODE_JET_3, "set"),
    "an owner that sends jsonrpc": ("owner", "speaks_jsonrpc", True, "set"),
    "an owner that is gone": ("owner", "condition", Condition.GONE, "set"),
    "an owner with batches": ("owner", "framing", BATCHES, "set"),
    "an open batch": ("requester", "batches", object(), "result"),
    "batches": ("requester", "framing", BATCHES, "result"),
    "an answer to a peer of 2012": ("requester", "dialect", LEGACY, "set result"),
    "a requester that wants to know": ("requester", "wants_outcome", True, "set"),
    "a requester that waits": ("requester", "condition", Condition.DUE, "set"),
}
MESSAGES = {"change": (0, CHANGE), "set": (3, SET), "result": (0, RESULT)}


@pytest.mark.parametrize("flip", FLIPS.values(), ids=FLIPS)
def test_flags_follow_every_assignment(flip: tuple[str, str, Any, str]) -> None:
    """Whatever is assigned to an element or session, the lane stops serving it at once, and goes on afterwards."""
    whose, name, unusual, kinds = flip
    for kind in kinds.split():
        side = make_world()
        number, text = MESSAGES[kind]
        assert handled_by_lane(side, 3, SET)  # opens r1
        things = {"element": side.bus.tree.elements["s"], "owner": side.sessions[0], "requester": side.sessions[3]}
        usual = getattr(things[whose], name)
        assert kind == "result" or handled_by_lane(side, number, text)
        setattr(things[whose], name, unusual)
        assert not handled_by_lane(side, number, text)
        setattr(things[whose], name, usual)
        assert handled_by_lane(side, number, text)


def test_flags_follow_the_audiences() -> None:
    """A fetch that tests values takes the changes from the lane, and gives them back when it ends."""
    side = make_world()
    assert handled_by_lane(side, 0, CHANGE)
    fetch = '{"method":"fetch","params":{"id":"tests","path":{},"value":{"greaterThan":0}}}'
    side.play(("send", 1, framed(fetch), ALL_DAY))
    assert not handled_by_lane(side, 0, CHANGE)
    side.play(("send", 1, framed('{"method":"unfetch","params":{"id":"tests"}}'), ALL_DAY))
    assert handled_by_lane(side, 0, CHANGE)


def test_a_binary_state_is_left_to_python() -> None:
    """The value of a state whose owner speaks binary is not the JSON that the lane would store."""
    side = make_world()
    bus, owner = side.bus, side.sessions[0]
    bus.tree.elements["s"] = TypedElement("s", owner, False, b"\x01", CLASSIC)
    assert not handled_by_lane(side, 0, CHANGE)


def test_a_slow_fetcher_and_a_full_outbox_need_python() -> None:
    """Events of slow peers are queued one by one, and an outbox is closed at the hard limit, whoever fills it."""
    side = make_world()
    side.play(("pause", 1))
    for value in range(200):
        assert handled_by_lane(side, 0, CHANGE.replace("2", str(value)))
    assert side.flow.conflated > 100
    side.play(("resume", 1))
    side.flow.flush()
    assert b'"value":199' in side.transports[1].written
    long = '"' + "x" * 40 + '"'
    for _ in range(HARD_BYTES // 50):
        handled_by_lane(side, 3, SET.replace("3", long))
    assert side.transports[0].aborted


def test_the_journal_is_given_each_change() -> None:
    """The lane appends to the rows of the writer, which a commit may replace at any time."""
    side = make_world("rows")
    record = side.bus.record
    assert isinstance(record, Record)
    assert handled_by_lane(side, 0, CHANGE)
    before, record.rows = record.all, []
    assert handled_by_lane(side, 0, CHANGE.replace("2", "7"))
    assert before[-3:] == ["s", b"2", side.sessions[0].label]
    assert record.rows == ["s", b"7", side.sessions[0].label]
    record.rows = None
    assert handled_by_lane(side, 0, CHANGE)
    assert record.all[-3:] == ["s", b"2", side.sessions[0].label]


# -- memory


def test_nothing_is_kept_and_nothing_freed_too_early() -> None:
    """Many messages of all kinds leave memory and reference counts as they were."""
    side = make_world()
    element = side.bus.tree.elements["s"]
    watched = [element, element.path, element.path_json, side.sessions[0], side.sessions[3], side.bus.lane, None, True]

    def once(number: int) -> None:
        data = framed(CHANGE, SET, CALL, CHANGE[:-1], '{"id":9}')
        side.play(("send", 0, framed(CHANGE, CHANGE, "{", ADD[0]), ALL_DAY))
        side.play(("send", 3, data, ALL_DAY))
        side.play(("send", 0, framed(*(f'{{"id":"r{number * 2 + at}","result":{at}}}' for at in (1, 2))), ALL_DAY))
        side.flow.flush()
        for transport in side.transports:
            transport.writes.clear()

    for number in range(50):
        once(number)
    gc.collect()
    counts, blocks = [sys.getrefcount(thing) for thing in watched], sys.getallocatedblocks()
    for number in range(50, 1050):
        once(number)
    gc.collect()
    assert not side.sessions[0].routes
    # None and True are used everywhere; a leak would be at least one a message.
    assert all(abs(sys.getrefcount(thing) - count) < 500 for thing, count in zip(watched, counts, strict=True))
    assert abs(sys.getallocatedblocks() - blocks) < 500


def test_the_lane_refuses_what_it_cannot_serve() -> None:
    """Arguments of other types raise; they do not crash."""
    side = make_world()
    session, serve = side.sessions[0], side.bus.lane.serve
    for wrong in [(object(), b"", 0), (session, "text", 0), (session, b"", -1), (session, bytearray(9), 0)]:
        with pytest.raises((TypeError, ValueError)):
            serve(*wrong, 0.0, 0.0, None, 9, 9)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        lane.compiled.Lane(object(), {}, None, None, None, object, None, 1.0, (0,) * 7)
    with pytest.raises(TypeError):
        lane.compiled.ElementCore()
    with pytest.raises(AttributeError):
        lane.compiled.SessionCore().dialect  # noqa: B018


def test_sessions_of_other_frontends_work() -> None:
    """Outboxes that are no sockets receive the same frames."""
    bus = Bus()
    owner, other = Peer(bus), Peer(bus)
    owner.notify("add", {"path": "s", "value": 1})
    other.fetch(path={})
    owner.notify("change", {"path": "s", "value": 2})
    other.send({"id": 1, "method": "set", "params": {"path": "s", "value": 3}})
    assert owner.received() == [{"id": "r1", "method": "s", "params": {"value": 3}}]
    owner.send({"id": "r1", "result": True})
    event = {"path": "s", "event": "change", "value": 2}
    assert other.received() == [{"method": "f", "params": event}, {"id": 1, "result": True}]
