"""Conditions that are live mean what they mean in Spark."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from jetbus.alarms.conditions import NotLive, compile_condition
from jetbus.alarms.rows import make_row, read_description
from jetbus.spark.sql_text import run

NUMBERS = (
    "num",
    "80",
    "80.5",
    "-7",
    "1e3",
    "0",
    "0.1",
    "2.5D",
    "minimum",
    "normal_high",
    "length(text)",
    "9007199254740993",
)
TEXTS = ("text", "'a'", "'ON'", "path", "unit", "coalesce(quality, 'good')", "lower(text)", "upper(unit)")
PATTERNS = ("'%'", "'a%'", "'_n'", "'%\\%%'", "'o\\_%'", "''", "'%ü_'")
MEMBERS = {
    "number": ("try_variant_get(doc, '$.x', 'double')", "try_variant_get(doc, '$.y[1]', 'double')"),
    "text": ("try_variant_get(doc, '$.x', 'string')",),
    "boolean": ("flag", "try_variant_get(doc, '$.x', 'boolean')", "true", "false"),
}


def _numbers() -> st.SearchStrategy[str]:
    leaf = st.sampled_from((*NUMBERS, *MEMBERS["number"], "null"))

    def wider(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        return st.one_of(
            st.builds("({} {} {})".format, inner, st.sampled_from("+-*"), inner),
            st.builds("({} / nullif({}, 0))".format, inner, inner),
            st.builds("({} {} {})".format, inner, st.sampled_from("/%"), st.sampled_from(("3", "-0.25", "1e-3", "7D"))),
            st.builds("{}({})".format, st.sampled_from(("abs", "round", "-")), inner),
            st.builds("round({}, {})".format, inner, st.integers(0, 10)),
            st.builds("{}({}, {})".format, st.sampled_from(("least", "greatest", "coalesce")), inner, inner),
        )

    return st.recursive(leaf, wider, max_leaves=4)


_TEXT = st.sampled_from((*TEXTS, *MEMBERS["text"], "null"))
_OPERATOR = st.sampled_from(("=", "!=", "<>", "<", "<=", ">", ">=", "<=>"))


def _conditions() -> st.SearchStrategy[str]:
    number = _numbers()
    leaf = st.one_of(
        st.builds("{} {} {}".format, number, _OPERATOR, number),
        st.builds("{} {} {}".format, _TEXT, _OPERATOR, _TEXT),
        st.builds("{} between {} and {}".format, number, number, number),
        st.builds("{} not in ({}, {})".format, number, number, number),
        st.builds("{} in ({}, {})".format, _TEXT, _TEXT, _TEXT),
        st.builds("{} like {}".format, _TEXT, st.sampled_from(PATTERNS)),
        st.builds("{} is {}null".format, st.one_of(number, _TEXT), st.sampled_from(("", "not "))),
        st.builds("{} is {}".format, st.sampled_from(MEMBERS["boolean"]), st.sampled_from(("true", "not false"))),
        st.sampled_from(MEMBERS["boolean"]),
    )

    def wider(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        joined = st.builds("({} {} {})".format, inner, st.sampled_from(("and", "or")), inner)
        return st.one_of(joined, st.builds("not ({})".format, inner), st.builds("not {}".format, inner))

    return st.recursive(leaf, wider, max_leaves=4)


_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-100, 100),
    st.sampled_from((10**20, 2**53 + 1, -0.0, 1e300, 80, 80.5, 1e-7, 0.5, 2.5, 1000)),
    st.floats(-1e6, 1e6, allow_nan=False),
    st.sampled_from(("", "a", "ON", "on", "o_x", "5%", "aü", "yes", " 7.5 ", "nan", "1e3", "ß", "😀n", "line\nn")),
)
_VALUES = st.one_of(
    _SCALARS,
    st.fixed_dictionaries({}, optional={"x": st.one_of(_SCALARS.filter(lambda one: not isinstance(one, float)))}),
    st.fixed_dictionaries({"x": st.integers(), "y": st.lists(_SCALARS, max_size=3)}),
    st.lists(_SCALARS, max_size=2),
)
_SCHEMAS = st.sampled_from(
    (
        None,
        {"unit": "Cel", "minimum": 0, "maximum": 80.5},
        {"unit": "a", "normal": [1, 80]},
        {"normal": [None, 7], "minimum": "no", "stale": 0},
        {"normal": [9, 1], "stale": 5},
    )
)
_ROWS = st.lists(st.tuples(_VALUES, st.sampled_from((None, "good", "bad")), _SCHEMAS), min_size=20, max_size=20)


def _evaluate(spark: SparkSession, conditions: list[str], rows: list[tuple[Any, Any, Any]]) -> list[list[bool]]:
    """Return what Spark says of each condition and row, in one query."""
    journal: list[tuple[Any, ...]] = []
    for n, (value, quality, schema) in enumerate(rows):
        described = None if schema is None else json.dumps(schema)
        journal.append(("b", 2 * n, "describe", f"p/{n}", None, None, described))
        journal.append(("b", 2 * n + 1, "change", f"p/{n}", json.dumps(value, ensure_ascii=False), quality, None))
    columns = "bus string, seq bigint, event string, path string, value string, quality string, schema string"
    recorded = spark.createDataFrame(journal, columns)
    found = recorded.selectExpr(
        *("bus", "seq", "event", "path", "value", "quality", "'state' as kind", "cast(null as timestamp) as ts"),
        *("cast(null as string) as peer", "cast(null as string) as detail", "cast(null as timestamp) as source_ts"),
    )
    documents = run("documents", events=run("events", journal=found))
    states = documents.join(recorded.select("seq", "schema"), "seq").selectExpr(
        *("*", "false as carried", "cast(null as string) as unit", "cast(null as string) as misfit"),
        *("0L as key", "999L as cut_seq", "cast(null as timestamp) as cut_ts"),
    )
    texts = [f"coalesce(({text}), false) as c{place}" for place, text in enumerate(conditions)]
    by_seq = {row["seq"]: row for row in run("descriptions", rows=states).selectExpr("seq", *texts).collect()}
    return [[by_seq[2 * n + 1][f"c{place}"] for place in range(len(conditions))] for n in range(len(rows))]


def _is_live(text: str) -> bool:
    try:
        compile_condition(text)
    except NotLive:
        return False
    return True


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(_conditions().filter(_is_live), min_size=40, max_size=40), _ROWS)
def test_live_conditions_mean_what_they_mean_in_spark(
    spark: SparkSession, conditions: list[str], rows: list[tuple[Any, Any, Any]]
) -> None:
    """Whatever is accepted as live has the same truth in both engines, for every row."""
    wanted = _evaluate(spark, conditions, rows)
    functions = [compile_condition(text) for text in conditions]
    for n, (value, quality, schema) in enumerate(rows):
        row = make_row("b", f"p/{n}", value, quality, read_description(schema))
        for text, function, truth in zip(conditions, functions, wanted[n], strict=True):
            assert function(row) is truth, (text, row)
