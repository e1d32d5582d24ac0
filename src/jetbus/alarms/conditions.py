"""Conditions in SQL as Python functions with the meaning that they have in Spark.

sqlglot parses the text, and each node of its tree becomes a function of a row. Types are known before anything runs, as
in Spark: they decide whether ``1.5 * 2`` is a decimal or a double, and whether two values can be compared at all.

    num > 80.5 and text = 'on'

    And      boolean     both(GT, EQ)         three-valued: false and null is false
    GT       boolean     double > double      80.5 is a decimal, which becomes a double beside one
    EQ       boolean     text = text

A condition that Spark would refuse, or that ends with an error for some rows (a division by zero, a sum that
overflows), cannot be live, and neither can one that needs more than the row. ``NotLive`` has the reason. So a condition
that is accepted has a value for every row, the same in both engines.
"""

from __future__ import annotations

import decimal
import math
import re
from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, NamedTuple

from sqlglot import errors, exp, parse_one

from jetbus.alarms.rows import ConditionRow as Row
from jetbus.alarms.rows import DocPath, read_doc_path

__all__ = ["Condition", "NotLive", "compile_condition"]

Function = Callable[[Row], Any]
Condition = Callable[[Row], bool]

BOOLEAN, INTEGER, DECIMAL, DOUBLE, TEXT, NULL, DOC = "boolean", "integer", "decimal", "double", "text", "null", "doc"
_NUMBERS = (INTEGER, DECIMAL, DOUBLE)
DIGITS_MAX = 38
"""Digits of Spark's longest decimal."""
INTEGER_MAX = (1 << 31) - 1
LENGTH_MAX = 1 << 28
"""Characters of a text; no message of the bus is that long."""
CONDITION_CHARS_MAX = 10_000
_ARITHMETIC = decimal.Context(prec=400, rounding=ROUND_HALF_UP)

_COLUMNS = {
    "num": DOUBLE,
    "text": TEXT,
    "flag": BOOLEAN,
    "doc": DOC,
    "path": TEXT,
    "bus": TEXT,
    "quality": TEXT,
    "unit": TEXT,
    "minimum": DOUBLE,
    "maximum": DOUBLE,
    "normal_low": DOUBLE,
    "normal_high": DOUBLE,
    "stale_s": DOUBLE,
}
"""Columns of a row that live conditions see, and their types."""
_ONLY_RECORDED = {
    "value": "it is the text as the owner sent it; use num, text, flag or doc",
    "peer": "an event does not say who sent it",
    **dict.fromkeys(("seq", "ts", "event", "kind", "detail", "source_ts"), "only the journal has it"),
}
"""Columns that Spark sees besides, and why a live condition does not."""


class NotLive(ValueError):
    """A condition that cannot be evaluated live, with the reason."""


class _Part(NamedTuple):
    """A part of a condition: its type and how to evaluate it."""

    type: str
    of: Function
    digits: int = 0
    """Precision of a decimal."""
    scale: int = 0
    bound: int = 0
    """Largest absolute value of an integer."""
    literal: Any = None


def compile_condition(text: str) -> Condition:
    """Return a condition as a function of a row, false where the condition is null; raise ``NotLive`` if it cannot be.

    >>> from jetbus.alarms.rows import ConditionRow
    >>> compile_condition("num > 80.5 or unit is null")(ConditionRow(num=7.0, unit="Cel"))
    False
    """
    if len(text) > CONDITION_CHARS_MAX:
        raise NotLive(f"it has more than {CONDITION_CHARS_MAX} characters")
    try:
        tree = parse_one(text, dialect="spark")
    except (errors.SqlglotError, RecursionError) as problem:
        first = re.sub(r"\x1b\[\d*m", "", str(problem)).splitlines()[0]
        raise NotLive(f"it is not understood: {first}") from None
    try:
        part = _compile(tree)
    except RecursionError:
        raise NotLive("it is nested too deeply") from None
    if part.type not in (BOOLEAN, NULL):
        raise NotLive(f"it is a {part.type}, not a condition")
    evaluate = part.of
    return lambda row: evaluate(row) is True


def _compile(node: Any) -> _Part:
    rule = _RULES.get(type(node))
    if rule is None:
        raise NotLive(f"{_show(node)} is not among what can be live")
    return rule(node)


def _show(node: exp.Expression) -> str:
    text = node.sql(dialect="spark")
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


# -- columns and literals


def _column(node: Any) -> _Part:
    name = node.name.lower()
    if node.table:
        raise NotLive(f"{_show(node)} is not a column; members of doc are read by variant_get(doc, '$.name', 'double')")
    if name in _ONLY_RECORDED:
        raise NotLive(f"{name} cannot be live: {_ONLY_RECORDED[name]}")
    if name not in _COLUMNS:
        raise NotLive(f"there is no {name!r}; there are {', '.join(_COLUMNS)}")
    return _Part(_COLUMNS[name], lambda row: getattr(row, name))


def _literal(node: Any) -> _Part:
    text = node.this
    if node.is_string:
        if "\\" in text:
            raise NotLive(f"{_show(node)} has a backslash")
        return _constant(TEXT, text)
    if "e" in text.lower():
        return _constant(DOUBLE, float(text))
    if "." in text:
        return _decimal_literal(text)
    number = int(text)
    if number > INTEGER_MAX:
        return _decimal_literal(text) if number >= 1 << 63 else _constant(INTEGER, number)._replace(bound=number)
    return _constant(INTEGER, number)._replace(bound=number)


def _decimal_literal(text: str) -> _Part:
    value = Decimal(text)
    _, digits, exponent = value.as_tuple()
    scale = -int(exponent)
    count = max(len(digits), scale)
    if count > DIGITS_MAX:
        raise NotLive(f"{text} has more than {DIGITS_MAX} digits")
    return _constant(DECIMAL, value)._replace(digits=count, scale=scale)


def _constant(kind: str, value: Any) -> _Part:
    return _Part(kind, lambda _row: value, literal=value)


def _cast_literal(node: Any) -> _Part:
    """Return a literal such as ``1.5D``, which sqlglot reads as a cast."""
    if isinstance(node.this, exp.Literal) and not node.this.is_string and node.to.is_type("double"):
        return _constant(DOUBLE, float(node.this.this))
    raise NotLive(f"{_show(node)} is a cast; numbers, texts and truths have columns of their own: num, text, flag")


# -- common types


def _to_double(part: _Part) -> _Part:
    if part.type in (DOUBLE, NULL):
        return part
    of = part.of
    if part.literal is not None:
        return _constant(DOUBLE, float(part.literal))
    return _Part(DOUBLE, lambda row: None if (value := of(row)) is None else float(value))


def _to_decimal(part: _Part) -> _Part:
    if part.type != INTEGER:
        return part
    of = part.of
    # A literal has as many digits as it is long, any other integer those of its type.
    digits = len(str(abs(part.literal))) if part.literal is not None else 10
    literal = None if part.literal is None else Decimal(part.literal)
    return _Part(
        DECIMAL, lambda row: None if (value := of(row)) is None else Decimal(value), digits, 0, literal=literal
    )


def _unify(parts: Sequence[_Part], node: exp.Expression) -> list[_Part]:
    """Return parts with their common type; raise if they have none."""
    kinds = {part.type for part in parts} - {NULL}
    if len(kinds) <= 1:
        return list(parts)
    if not kinds <= set(_NUMBERS):
        raise NotLive(f"{_show(node)} compares {' with '.join(sorted(kinds))}")
    return [_to_double(part) if DOUBLE in kinds else _to_decimal(part) for part in parts]


def _type_of(parts: Sequence[_Part]) -> str:
    return next((part.type for part in parts if part.type != NULL), NULL)


def _number(node: exp.Expression) -> _Part:
    part = _compile(node)
    if part.type not in (*_NUMBERS, NULL):
        raise NotLive(f"{_show(node)} is a {part.type}, not a number")
    return part


def _of_type(node: exp.Expression, kind: str) -> _Part:
    part = _compile(node)
    if part.type not in (kind, NULL):
        raise NotLive(f"{_show(node)} is a {part.type}, not a {kind}")
    return part


# -- logic: None is null


def _and(node: Any) -> _Part:
    left, right = _of_type(node.this, BOOLEAN).of, _of_type(node.expression, BOOLEAN).of

    def both(row: Row) -> bool | None:
        first = left(row)
        if first is False:
            return False
        second = right(row)
        if second is False:
            return False
        return None if first is None or second is None else True

    return _Part(BOOLEAN, both)


def _or(node: Any) -> _Part:
    left, right = _of_type(node.this, BOOLEAN).of, _of_type(node.expression, BOOLEAN).of

    def either(row: Row) -> bool | None:
        first = left(row)
        if first is True:
            return True
        second = right(row)
        if second is True:
            return True
        return None if first is None or second is None else False

    return _Part(BOOLEAN, either)


def _not(node: Any) -> _Part:
    of = _of_type(node.this, BOOLEAN).of
    return _Part(BOOLEAN, lambda row: None if (value := of(row)) is None else not value)


def _is(node: Any) -> _Part:
    of, wanted = _compile(node.this).of, node.expression
    if isinstance(wanted, exp.Null):
        return _Part(BOOLEAN, lambda row: of(row) is None)
    if not isinstance(wanted, exp.Boolean):
        raise NotLive(f"{_show(node)} tests for neither null, true nor false")
    of, truth = _of_type(node.this, BOOLEAN).of, wanted.this
    return _Part(BOOLEAN, lambda row: of(row) is truth)


# -- comparisons


def _rank(number: float) -> tuple[bool, float]:
    """Return a double as Spark orders it: NaN equals NaN and is above all others."""
    return (True, 0.0) if number != number else (False, number)


_OF_TWO: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "!=": lambda a, b: a != b,
}


def _compare(operator: str, left: _Part, right: _Part, node: exp.Expression) -> Function:
    one, other = _unify((left, right), node)
    if DOC in (one.type, other.type):
        raise NotLive(f"{_show(node)} compares a document; compare its members")
    test, first_of, second_of = _OF_TWO[operator], one.of, other.of
    is_double = DOUBLE in (one.type, other.type)

    def compare(row: Row) -> bool | None:
        first = first_of(row)
        if first is None:
            return None
        second = second_of(row)
        if second is None:
            return None
        if is_double and (first != first or second != second):
            return test(_rank(first), _rank(second))
        return test(first, second)

    return compare


def _comparison(operator: str) -> Callable[[Any], _Part]:
    def compiled(node: Any) -> _Part:
        return _Part(BOOLEAN, _compare(operator, _compile(node.this), _compile(node.expression), node))

    return compiled


def _same(node: Any) -> _Part:
    left, right = _compile(node.this), _compile(node.expression)
    equal, first_of, second_of = _compare("=", left, right, node), left.of, right.of

    def same(row: Row) -> bool:
        verdict = equal(row)
        return first_of(row) is second_of(row) is None if verdict is None else verdict

    return _Part(BOOLEAN, same)


def _between(node: Any) -> _Part:
    value = _compile(node.this)
    low = _compare(">=", value, _compile(node.args["low"]), node)
    high = _compare("<=", value, _compile(node.args["high"]), node)

    def within(row: Row) -> bool | None:
        verdicts = low(row), high(row)
        return False if False in verdicts else None if None in verdicts else True

    return _Part(BOOLEAN, within)


def _in(node: Any) -> _Part:
    if node.args.get("query") is not None or not node.expressions:
        raise NotLive(f"{_show(node)} is not in a list of values")
    parts = _unify([_compile(node.this), *map(_compile, node.expressions)], node)
    tests = [_compare("=", parts[0], part, node) for part in parts[1:]]

    def listed(row: Row) -> bool | None:
        verdicts = [test(row) for test in tests]
        return True if True in verdicts else None if None in verdicts else False

    return _Part(BOOLEAN, listed)


def _like(node: Any) -> _Part:
    of, pattern = _of_type(node.this, TEXT).of, node.expression
    if not isinstance(pattern, exp.Literal) or not pattern.is_string:
        raise NotLive(f"{_show(node)} takes a pattern in quotes")
    found = re.findall(r"\\[%_]|[^\\]|\\", pattern.this, re.DOTALL)
    if "\\" in found:
        raise NotLive(f"{_show(node)} has a backslash that escapes neither % nor _")
    one = {"%": ".*", "_": "."}
    test = re.compile("".join(one.get(part) or re.escape(part[-1]) for part in found), re.DOTALL).fullmatch
    return _Part(BOOLEAN, lambda row: None if (value := of(row)) is None else test(value) is not None)


# -- arithmetic


def _arithmetic(name: str) -> Callable[[Any], _Part]:
    def compiled(node: Any) -> _Part:
        left, right = _unify((_number(node.this), _number(node.expression)), node)
        kind = _type_of((left, right))
        return _MAKERS[kind](name, left, right, node)

    return compiled


def _apply(operation: Callable[[Any, Any], Any], left: _Part, right: _Part) -> Function:
    first_of, second_of = left.of, right.of

    def apply(row: Row) -> Any:
        first, second = first_of(row), second_of(row)
        return None if first is None or second is None else operation(first, second)

    return apply


_PLAIN: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
}


def _make_double(name: str, left: _Part, right: _Part, _node: exp.Expression) -> _Part:
    return _Part(DOUBLE, _apply(_PLAIN[name], left, right))


def _make_integer(name: str, left: _Part, right: _Part, node: exp.Expression) -> _Part:
    bound = left.bound * right.bound if name == "*" else left.bound + right.bound
    if bound > INTEGER_MAX:
        raise NotLive(f"{_show(node)} may be larger than the integers of Spark; write one of its numbers as a decimal")
    return _Part(INTEGER, _apply(_PLAIN[name], left, right), bound=bound)


def _make_decimal(name: str, left: _Part, right: _Part, node: exp.Expression) -> _Part:
    if name == "*":
        digits, scale = left.digits + right.digits + 1, left.scale + right.scale
    else:
        scale = max(left.scale, right.scale)
        digits = scale + max(left.digits - left.scale, right.digits - right.scale) + 1
    return _decimal_part(_EXACT[name], digits, scale, left, right, node)


_EXACT: dict[str, Callable[[Any, Any], Any]] = {
    "+": _ARITHMETIC.add,
    "-": _ARITHMETIC.subtract,
    "*": _ARITHMETIC.multiply,
}


def _decimal_part(
    operation: Callable[[Any, Any], Any], digits: int, scale: int, left: _Part, right: _Part, node: exp.Expression
) -> _Part:
    if digits > DIGITS_MAX:
        raise NotLive(f"{_show(node)} needs more than {DIGITS_MAX} digits; write one of its numbers with an exponent")
    return _Part(DECIMAL, _apply(operation, left, right), digits, scale)


def _make_null(*_: Any) -> _Part:
    return _constant(NULL, None)


_MAKERS: dict[str, Callable[[str, _Part, _Part, exp.Expression], _Part]] = {
    DOUBLE: _make_double,
    INTEGER: _make_integer,
    DECIMAL: _make_decimal,
    NULL: _make_null,
}


def _divide(node: Any) -> _Part:
    left, right = _number(node.this), _divisor(node)
    if {left.type, right.type} <= {INTEGER, NULL}:
        left, right = _to_double(left), _to_double(right)
    left, right = _unify((left, right), node)
    if _type_of((left, right)) != DECIMAL:
        return _Part(DOUBLE, _apply(lambda a, b: a / b, left, right))
    scale = max(6, left.scale + right.digits + 1)
    digits = left.digits - left.scale + right.scale + scale
    unit = Decimal(1).scaleb(-scale)

    def quotient(first: Decimal, second: Decimal) -> Decimal:
        return _ARITHMETIC.quantize(_ARITHMETIC.divide(first, second), unit)

    return _decimal_part(quotient, digits, scale, left, right, node)


def _remainder(node: Any) -> _Part:
    left, right = _unify((_number(node.this), _divisor(node)), node)
    kind = _type_of((left, right))
    if kind == DECIMAL:
        raise NotLive(f"{_show(node)} is a remainder of decimals")
    if kind == DOUBLE:
        # The remainder of an infinite number is not a number, which Python calls an error.
        return _Part(DOUBLE, _apply(lambda a, b: math.fmod(a, b) if math.isfinite(a) else math.nan, left, right))
    return _Part(INTEGER, _apply(lambda a, b: int(math.copysign(abs(a) % abs(b), a)), left, right), bound=right.bound)


def _divisor(node: Any) -> _Part:
    """Return the divisor of a division, which must not be zero: Spark ends with an error there."""
    divisor = node.expression
    while isinstance(divisor, exp.Paren | exp.Neg):
        divisor = divisor.this
    part = _number(node.expression)
    is_safe = isinstance(divisor, exp.Nullif) and _is_zero(divisor.expression)
    if part.type != NULL and not is_safe and not (isinstance(divisor, exp.Literal) and float(divisor.this)):
        raise NotLive(
            f"{_show(node)} may divide by zero, which ends a query of Spark; divide by nullif(..., 0), which is null"
        )
    return part


def _is_zero(node: Any) -> bool:
    return isinstance(node, exp.Literal) and not node.is_string and not float(node.this)


def _negate(node: Any) -> _Part:
    part = _number(node.this)
    of, literal = part.of, part.literal
    negated = part._replace(
        of=lambda row: None if (value := of(row)) is None else -value, literal=None if literal is None else -literal
    )
    return _decimal_minus(negated) if part.type == DECIMAL else negated


def _decimal_minus(part: _Part) -> _Part:
    of = part.of
    # Decimal has a negative zero, and rounds a negation to the digits of the thread's context.
    return part._replace(of=lambda row: None if (value := of(row)) is None else _ARITHMETIC.plus(value))


# -- functions


def _nullif(node: Any) -> _Part:
    part = _compile(node.this)
    equal, of = _compare("=", part, _compile(node.expression), node), part.of
    return part._replace(of=lambda row: None if equal(row) else of(row), literal=None)


def _abs(node: Any) -> _Part:
    part = _number(node.this)
    of = part.of
    return part._replace(of=lambda row: None if (value := of(row)) is None else abs(value), literal=None)


def _round(node: Any) -> _Part:
    part, places = _number(node.this), node.args.get("decimals")
    if places is not None and not (isinstance(places, exp.Literal) and places.this in map(str, range(11))):
        raise NotLive(f"{_show(node)} takes a number of digits from 0 to 10")
    count, of = 0 if places is None else int(places.this), part.of
    if part.type in (INTEGER, NULL):
        return part
    if part.type == DECIMAL:
        scale = min(part.scale, count)
        unit = Decimal(1).scaleb(-scale)
        digits = min(part.digits - part.scale + scale + (part.scale > scale), DIGITS_MAX)
        rounded = lambda row: None if (value := of(row)) is None else _ARITHMETIC.quantize(value, unit)  # noqa: E731
        return _Part(DECIMAL, rounded, digits, scale)
    unit = Decimal(1).scaleb(-count)

    def round_double(row: Row) -> float | None:
        value = of(row)
        if value is None or not math.isfinite(value):
            return None if value is None else float(value)
        # As Java does: by the digits that the number is written with.
        return float(_ARITHMETIC.quantize(Decimal(repr(value)), unit))

    return _Part(DOUBLE, round_double)


def _extreme(largest: bool) -> Callable[[Any], _Part]:
    def compiled(node: Any) -> _Part:
        nodes = [node.this, *node.expressions]
        if len(nodes) < 2:
            raise NotLive(f"{_show(node)} takes at least two values")
        parts = _unify(list(map(_compile, nodes)), node)
        kind, choose, functions = _type_of(parts), max if largest else min, [part.of for part in parts]
        if kind == DOC:
            raise NotLive(f"{_show(node)} compares a document; compare its members")

        def extreme(row: Row) -> Any:
            values = [value for of in functions if (value := of(row)) is not None]
            if not values:
                return None
            return choose(values, key=_rank) if kind == DOUBLE else choose(values)

        return _widest(parts)._replace(of=extreme, literal=None)

    return compiled


def _widest(parts: Sequence[_Part]) -> _Part:
    """Return a part of a type that has room for all of them."""
    known = [part for part in parts if part.type != NULL] or list(parts)
    scale = max(part.scale for part in known)
    digits = scale + max(part.digits - part.scale for part in known)
    if digits > DIGITS_MAX:
        raise NotLive(f"these numbers together need more than {DIGITS_MAX} digits")
    return known[0]._replace(digits=digits, scale=scale, bound=max(part.bound for part in known))


def _coalesce(node: Any) -> _Part:
    parts = _unify([_compile(node.this), *map(_compile, node.expressions)], node)
    functions = [part.of for part in parts]

    def first(row: Row) -> Any:
        return next((value for of in functions if (value := of(row)) is not None), None)

    return _widest(parts)._replace(of=first, literal=None)


def _on_text(function: Callable[[str], Any], kind: str = TEXT, bound: int = 0) -> Callable[[Any], _Part]:
    def compiled(node: Any) -> _Part:
        of = _of_type(node.this, TEXT).of
        return _Part(kind, lambda row: None if (value := of(row)) is None else function(value), bound=bound)

    return compiled


# -- members of doc


def _call(node: Any) -> _Part:
    name, arguments = node.name.lower(), node.expressions
    if name not in ("variant_get", "try_variant_get") or len(arguments) != 3:
        raise NotLive(f"{_show(node)} is not among the functions that can be live")
    if _compile(arguments[0]).type != DOC:
        raise NotLive(f"{_show(node)} reads something else than doc")
    path, kind = (one.this if isinstance(one, exp.Literal) and one.is_string else None for one in arguments[1:])
    if name == "variant_get":
        raise NotLive(f"{_show(node)} ends a query of Spark for a value of another type; use try_variant_get")
    if kind not in _MEMBER_TYPES:
        raise NotLive(f"{_show(node)} takes a type in quotes: {', '.join(map(str, _MEMBER_TYPES))}")
    wanted = read_doc_path(path or "")
    if wanted is None:
        raise NotLive(f"{_show(node)} takes a path such as '$.a.b[0]'")
    return _member(wanted, *_MEMBER_TYPES[kind])


def _member(path: DocPath, kind: str, convert: Callable[[Any], Any]) -> _Part:
    return _Part(kind, lambda row: None if (found := path.find(row.doc)) is None else convert(found))


_NUMERAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[dDfF]?")
_INFINITE = {
    "nan": math.nan,
    **{f"{sign}{name}": float(f"{sign}inf") for sign in ("", "+", "-") for name in ("inf", "infinity")},
}
_TRUTHS = {
    **dict.fromkeys(("t", "true", "y", "yes", "1"), True),
    **dict.fromkeys(("f", "false", "n", "no", "0"), False),
}
"""Texts that Spark reads as truths, in lower case."""


def _as_double(value: Any) -> float | None:
    if isinstance(value, str):
        text = value.strip(" \t\n\r\x0b\x0c")
        if _NUMERAL.fullmatch(text):
            return float(text.rstrip("dDfF"))
        return _INFINITE.get(text.lower())
    if not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value)


def _as_boolean(value: Any) -> bool | None:
    if isinstance(value, str):
        return _TRUTHS.get(value.strip(" \t\n\r\x0b\x0c").lower())
    return value != 0 if isinstance(value, int | float) else None


def _as_text(value: Any) -> str | None:
    """Return a text, truth or whole number as text; how others were written is not known any more."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    return value if isinstance(value, str) else None


_MEMBER_TYPES: dict[str | None, tuple[str, Callable[[Any], Any]]] = {
    "double": (DOUBLE, _as_double),
    "boolean": (BOOLEAN, _as_boolean),
    "string": (TEXT, _as_text),
}

_RULES: dict[type, Callable[[Any], _Part]] = {
    exp.Column: _column,
    exp.Literal: _literal,
    exp.Boolean: lambda node: _constant(BOOLEAN, bool(node.this)),
    exp.Null: lambda _node: _constant(NULL, None),
    exp.TryCast: _cast_literal,
    exp.Paren: lambda node: _compile(node.this),
    exp.And: _and,
    exp.Or: _or,
    exp.Not: _not,
    exp.Is: _is,
    exp.EQ: _comparison("="),
    exp.NEQ: _comparison("!="),
    exp.LT: _comparison("<"),
    exp.LTE: _comparison("<="),
    exp.GT: _comparison(">"),
    exp.GTE: _comparison(">="),
    exp.NullSafeEQ: _same,
    exp.Between: _between,
    exp.In: _in,
    exp.Like: _like,
    exp.Add: _arithmetic("+"),
    exp.Sub: _arithmetic("-"),
    exp.Mul: _arithmetic("*"),
    exp.Div: _divide,
    exp.Mod: _remainder,
    exp.Neg: _negate,
    exp.Nullif: _nullif,
    exp.Abs: _abs,
    exp.Round: _round,
    exp.Least: _extreme(largest=False),
    exp.Greatest: _extreme(largest=True),
    exp.Coalesce: _coalesce,
    exp.Lower: _on_text(str.lower),
    exp.Upper: _on_text(str.upper),
    exp.Length: _on_text(len, INTEGER, LENGTH_MAX),
    exp.Anonymous: _call,
}
"""Nodes of the tree that can be live, each with the function that compiles it."""
