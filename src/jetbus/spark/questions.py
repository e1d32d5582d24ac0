"""Which SQL may be asked over the bus: one query over known tables, and nothing else.

SQL can do far more than ask: write, run programs (``transform ... using``), call Java (``reflect``), read any file of
the driver's machine (``from text.`/etc/passwd` ``). So a question is parsed, and all that its plan consists of is
looked at: each node must be one of ``NODES``, each table one that is known, and no function one of ``BARRED``. What is
not listed is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from py4j.java_gateway import JavaObject, is_instance_of  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from jetbus.spark.errors import BadQuestion
from jetbus.spark.queries import QueryError, first_sentence

__all__ = ["check_question"]

QUESTION_CHARS_MAX = 20_000
PARTS_MAX = 5_000
"""Parts of a plan that are looked at."""

NODES = frozenset(
    {
        *("Project", "Filter", "Aggregate", "Sort", "GlobalLimit", "LocalLimit", "Offset", "Distinct", "Join"),
        *("Union", "Intersect", "Except", "SubqueryAlias", "OneRowRelation", "UnresolvedRelation", "UnresolvedWith"),
        *("UnresolvedHaving", "UnresolvedSubqueryColumnAliases", "UnresolvedInlineTable", "LocalRelation"),
        *("WithWindowDefinition", "Generate", "Pivot", "Unpivot", "UnresolvedQualify", "Sample"),
    }
)
"""What a plan may consist of, by the names that Spark's parser has for it."""

BARRED = frozenset(
    {
        *("reflect", "java_method", "try_reflect", "input_file_name"),
        *("sequence", "repeat", "array_repeat", "space", "lpad", "rpad"),
    }
)
"""Functions that reach out of Spark, tell of its machine, or fill its memory with a single row."""

_PLAN = "org.apache.spark.sql.catalyst.plans.logical.LogicalPlan"
_ITERABLE = "scala.collection.Iterable"
_PRODUCT = "scala.Product"


def check_question(spark: SparkSession, sql: str, tables: Iterable[str]) -> set[str]:
    """The tables that a query asks; ``BadQuestion`` if it is no query, or asks for anything else than these."""
    if not isinstance(sql, str) or not sql.strip():
        raise BadQuestion("there is no SQL in it; ask for example: select * from history")
    if len(sql) > QUESTION_CHARS_MAX:
        raise BadQuestion(f"it has {len(sql)} characters, more than {QUESTION_CHARS_MAX}; ask in several steps")
    session: Any = spark
    try:
        plan = session._jsparkSession.sessionState().sqlParser().parsePlan(sql)
    except QueryError as problem:
        raise BadQuestion(first_sentence(problem)) from None
    known = {name.lower(): name for name in tables}
    aliases: set[str] = set()
    asked: set[str] = set()
    for kind, part, is_plan in _Walk(session.sparkContext._gateway).parts(plan):
        if is_plan and kind not in NODES:
            raise BadQuestion(f"only queries are answered, and this has a {_worded(kind)}; begin with select or with")
        if kind == "Join" and part.condition().isEmpty() and _is_product(part.joinType().toString()):
            raise BadQuestion("each join needs a condition; write join ... on, or join ... using")
        if kind == "UnresolvedWith":
            aliases |= {pair.productElement(0).lower() for pair in _items(part.cteRelations())}
        elif kind == "UnresolvedRelation":
            asked.add(".".join(_items(part.multipartIdentifier())))
        elif kind == "UnresolvedFunction":
            _check_function(_items(part.nameParts())[-1])
        elif kind == "ExpressionWithUnresolvedIdentifier":
            _check_function("identifier")
    strangers = sorted(name for name in asked if name.lower() not in known and name.lower() not in aliases)
    if strangers:
        raise BadQuestion(f"there is no table {strangers[0]!r}; there are {', '.join(known)}")
    return {known[name.lower()] for name in asked if name.lower() in known}


def _check_function(name: str) -> None:
    if name.lower() in BARRED or name == "identifier":
        raise BadQuestion(f"the function {name!r} is not for questions over the bus; leave it out")


def _is_product(join: str) -> bool:
    """Whether a join without a condition is one of every row with every row."""
    return not join.startswith(("UsingJoin", "NaturalJoin"))


def _worded(kind: str) -> str:
    """The name of a node in words.

    >>> _worded("CreateViewCommand")
    'create view command'
    """
    return "".join(f" {char.lower()}" if char.isupper() else char for char in kind).strip()


# -- walking a plan of Java


class _Walk:
    """Goes through all that a plan consists of. Each question to Java takes a while, so that classes are remembered."""

    def __init__(self, gateway: Any) -> None:
        self._gateway = gateway
        self._classes: dict[str, tuple[bool, bool, bool]] = {}

    def parts(self, top: Any) -> Iterator[tuple[str, Any, bool]]:
        """Plans, expressions and what they hold, with the name of the class and whether it is a plan."""
        waiting, count = [top], 0
        while waiting:
            part = waiting.pop()
            if not isinstance(part, JavaObject):
                continue
            count += 1
            if count > PARTS_MAX:
                raise BadQuestion("it is too long; ask in several steps")
            name = part.getClass().getName()
            is_plan, is_iterable, is_product = self._of(name, part)
            yield name.rsplit(".", 1)[-1].removesuffix("$"), part, is_plan
            if is_iterable:
                waiting += _iterated(part.iterator())
            elif is_product:
                waiting += _iterated(part.productIterator())

    def _of(self, name: str, part: Any) -> tuple[bool, bool, bool]:
        found = self._classes.get(name)
        if found is None:
            plan, iterable, product = (is_instance_of(self._gateway, part, one) for one in (_PLAN, _ITERABLE, _PRODUCT))
            found = self._classes[name] = (plan, iterable, product)
        return found


def _iterated(iterator: Any) -> list[Any]:
    found = []
    while iterator.hasNext():
        found.append(iterator.next())
    return found


def _items(sequence: Any) -> list[Any]:
    return _iterated(sequence.iterator())
