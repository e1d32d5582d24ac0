"""Types of methods: arguments are converted to the annotations of the function, refused by name, and described."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import functools
import inspect
import pydoc
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional

import msgspec
import pytest

import jetbus
from jetbus.peer.elements import OwnedMethod
from support.peers import PeerFactory, raised, run

if TYPE_CHECKING:
    from decimal import Decimal


@dataclasses.dataclass
class Step:
    """A step of a program."""

    rpm: int
    seconds: float = 1.0


class Mode(enum.Enum):
    """Modes of a pump."""

    ONCE = "once"
    ALWAYS = "always"


class Clock:
    """Something that JSON has no form for."""


CLOCK = Clock()


def start(seconds: float, mode: Literal["once", "always"] = "once") -> str:
    """Run the pump.

    It stops by itself.
    """
    return f"{seconds!r} {mode}"


async def load(step: Step, /, *others: Step, at: datetime.datetime | None = None, **limits: int) -> int:
    return step.rpm + sum(other.rpm for other in others) + sum(limits.values()) + (0 if at is None else at.year)


def maybe(mode: Mode, count: Optional[int] = None, *, clock: Clock = CLOCK) -> list[Any]:  # noqa: UP045
    return [mode.name, count, type(clock).__name__]


class Pump:
    """Owner with methods that are bound, and one that can be called itself."""

    def turn(self, times: int) -> int:
        return 2 * times

    def __call__(self, data: bytes, plain) -> list[Any]:  # type: ignore[no-untyped-def]
        return [len(data), plain]


def _move(place: tuple[int]) -> None:
    print(place)


TAKEN: dict[str, tuple[Callable[..., Any], Any, Any]] = {
    "a whole number as a float": (start, [2], "2.0 once"),
    "by name": (start, {"mode": "always", "seconds": 0.5}, "0.5 always"),
    "a dataclass": (load, [{"rpm": 3}], 3),
    "any number of them": (load, [{"rpm": 3}, {"rpm": 4, "seconds": 2}], 7),
    "an enum and a default": (maybe, ["always"], ["ALWAYS", None, "Clock"]),
    "null for an optional one": (maybe, {"mode": "once", "count": None}, ["ONCE", None, "Clock"]),
    "a bound method": (Pump().turn, [4], 8),
    "bytes, and one without a type": (Pump(), [jetbus.Blob(b"abc"), {"a": 1}], [3, {"a": 1}]),
    "a partial function": (functools.partial(start, mode="always"), [1], "1.0 always"),
}
REFUSED: dict[str, tuple[Callable[..., Any], Any, str]] = {
    "a text for a float": (start, ["two"], "the argument seconds is of type string, not number"),
    "another word": (start, [1, "never"], 'the argument mode is "never", not one of ["always", "once"]'),
    "a member of a dataclass": (load, [{"rpm": "x"}], "the argument step.rpm is of type string, not integer"),
    "a missing member": (load, [{}], "the argument step.rpm is missing"),
    "one of many": (load, [{"rpm": 1}, {"rpm": 2}, 3], "the argument others[1] is of type number, not object"),
    "a fraction for a whole number": (maybe, ["once", 1.5], "the argument count is of type number, not integer"),
    "words that only msgspec has": (maybe, {"mode": "once", "clock": 1}, "the argument clock: Expected `Clock`"),
    "too few": (start, [], "missing a required argument: 'seconds'; the method takes (seconds: float, mode:"),
    "an unknown name": (start, {"seconds": 1, "speed": 2}, "got an unexpected keyword argument 'speed'"),
}


@pytest.mark.parametrize("case", TAKEN.values(), ids=TAKEN)
def test_arguments_are_converted(case: tuple[Callable[..., Any], Any, Any], bus: PeerFactory) -> None:
    """Arguments arrive in the types of the annotations, by position or by name, over every protocol."""
    function, args, result = case

    async def work() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            await owner.add_method("m", function)
            called = client.call("m", *args) if isinstance(args, list) else client.call("m", **args)
            assert await called == result

    run(work())


def limit(*, at: datetime.datetime | None = None, **limits: int) -> int:
    return sum(limits.values()) + (0 if at is None else at.year)


def test_decorated_methods_have_types_too(bus: PeerFactory) -> None:
    """A decorated function is checked as well; arguments of ``**limits`` have its type, and an instant may be text."""

    async def work() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            decorate = await owner.method("m")
            await owner.do(lambda: decorate(limit))
            await client.wait_for(equals="m", timeout_s=20)
            assert await client.call("m", low=1, high=2, at="2026-03-01T12:00:00Z") == 2029
            assert "the argument high: Expected `int`, got `str`" in str(await raised(client.call("m", high="x")))

    run(work())


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_arguments_are_refused_by_name(case: tuple[Callable[..., Any], Any, str], bus: PeerFactory) -> None:
    """An argument that does not fit is refused by its name, and the function is not called."""
    function, args, text = case

    async def work() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            await owner.add_method("m", function)
            called = client.call("m", *args) if isinstance(args, list) else client.call("m", **args)
            problem = await raised(called)
            assert isinstance(problem, jetbus.Refused)
            assert text in str(problem)
            assert problem.data["invalidArgument"]["name"] == "jet.InvalidArgument"

    run(work())


STEP = {
    "title": "Step",
    "type": "object",
    "properties": {"rpm": {"type": "integer"}, "seconds": {"type": "number", "default": 1.0}},
    "required": ["rpm"],
    "description": "A step of a program.",
}
SCHEMAS: dict[str, tuple[Callable[..., Any], Any]] = {
    "docstring, default and result": (
        start,
        {
            "title": "Run the pump",
            "description": "It stops by itself.",
            "properties": {"seconds": {"type": "number"}, "mode": {"enum": ["always", "once"], "default": "once"}},
            "required": ["seconds"],
            "result": {"type": "string"},
        },
    ),
    "arguments by position, further ones, and named ones": (
        load,
        {
            "args": [{**STEP, "title": "step"}],
            "items": STEP,
            "properties": {"at": {"type": ["string", "null"], "default": None}},
            "additionalProperties": {"type": "integer"},
            "result": {"type": "integer"},
        },
    ),
    "an argument of the owner's own": (
        maybe,
        {
            "properties": {
                "mode": {"title": "Mode", "enum": ["always", "once"], "description": "Modes of a pump."},
                "count": {"type": ["integer", "null"], "default": None},
            },
            "required": ["mode"],
            "result": {"type": "array"},
        },
    ),
    "names only": (lambda a, b=2: [a, b], {"properties": {"a": {}, "b": {"default": 2}}, "required": ["a"]}),
    "a tuple": (
        _move,
        {
            "properties": {
                "place": {"type": "array", "minItems": 1, "maxItems": 1, "prefixItems": [{"type": "integer"}]}
            },
            "required": ["place"],
        },
    ),
    "anything": (lambda *args, **options: [args, options], None),
}


@pytest.mark.parametrize("case", SCHEMAS.values(), ids=SCHEMAS)
def test_signature_and_docstring_become_the_schema(case: tuple[Callable[..., Any], Any]) -> None:
    """A method is described by its function: title, description, arguments with defaults, and result."""
    function, schema = case
    assert OwnedMethod("m", function, None, None).schema == schema


def test_schemas_are_seen_by_others(bus: PeerFactory) -> None:
    """Peers that ask get the schema of a method; words of its owner go before those of the function."""

    async def work() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            await owner.add_method("a", start, schema={"title": "Go", "colour": "red"})
            await owner.add_method("b", start, schema="runs")
            fetch = await client.fetch(schema=True)
            a, b = sorted(await fetch.take(2), key=lambda event: event.path)
            assert (a.schema.title, a.schema.description) == ("Go", "It stops by itself.")
            assert (a.schema.required, a.schema.members["colour"]) == (("seconds",), "red")
            assert (b.schema.description, b.schema.properties) == ("runs", {})

    run(work())


def test_help_of_a_decorated_method(bus: PeerFactory) -> None:
    """``help`` and ``inspect.signature`` of a handle show those of the function."""

    async def work() -> None:
        async with bus.peer() as owner:
            handle = (await owner.add_method("m", start)).inner
            assert inspect.signature(handle) == inspect.signature(start)
            assert "It stops by itself." in pydoc.render_doc(handle)
            assert handle(3.0) == "3.0 once"

    run(work())


def _needs_clock(clock: Clock) -> Clock:
    return clock


def test_types_that_json_cannot_express_are_refused_at_once() -> None:
    """A method with an argument that no caller could give is an error of its owner, which names the argument."""
    with pytest.raises(TypeError, match=r"cannot add the method m: its argument clock has the type .*Clock"):
        OwnedMethod("m", _needs_clock, None, None)


def _hidden(amount: Decimal, count: int) -> list[Any]:
    return [amount, count]


def test_annotations_that_cannot_be_resolved_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A name that only type checkers know is reported, and the other arguments are still checked."""
    method = OwnedMethod("m", _hidden, None, None)
    assert "the method m does not check all of its arguments: cannot resolve Decimal" in caplog.text
    assert method.run([1, 2]) == [1, 2]
    with pytest.raises(jetbus.Refused, match="the argument count is of type string, not integer"):
        method.run([1, "x"])


def _turn(rpm: Annotated[float, msgspec.Meta(ge=0, le=3000, extra_json_schema={"unit": "rpm"})]) -> float:
    return rpm


def test_limits_and_units_of_arguments() -> None:
    """Limits in an annotation hold for callers, and are described with the unit."""
    method: Any = OwnedMethod("m", _turn, None, None)
    assert method.schema["properties"]["rpm"] == {"type": "number", "minimum": 0, "maximum": 3000, "unit": "rpm"}
    with pytest.raises(jetbus.Refused, match="the argument rpm is 4000, above the maximum 3000"):
        method.run([4000])
