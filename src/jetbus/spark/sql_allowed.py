"""Lists of the SQL that questions over the bus may consist of, and the dialect of sqlglot that reads and writes it.

A function that is added must not reach out of Spark, and must take time and memory in proportion to its row: Spark
cannot cancel the work within one row. If that holds for literals only, add it to ``LITERAL_AFTER_FIRST``, too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.generators.spark import SparkGenerator
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import TokenType

from jetbus.spark.spark_errors import BadQuestion

__all__ = ["GENERATORS", "GROWING_BY_TEXT", "GROWTH", "UNITS", "UNITS_FIRST", "QueryDialect", "allow", "limit"]

STEPS_MAX = 50_000
"""Moves of the parser from token to token, back and forth."""
TEXT_CHARS_MAX = 1_000
NUMBER_MAX = 10_000
"""Largest number where an argument sets digits, a position or an accuracy."""
GROUPINGS_MAX = 64
"""Sets of columns that rollup, cube and grouping sets group by."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


GENERATORS = _words("explode explode_outer posexplode posexplode_outer inline inline_outer")
FUNCTIONS = GENERATORS | {
    name
    for names in (
        # aggregates
        "any_value approx_count_distinct approx_percentile avg bit_and bit_or bit_xor bool_and bool_or corr count",
        "count_if covar_pop covar_samp every first grouping grouping_id kurtosis last max max_by mean min min_by",
        "percentile_approx regr_count regr_intercept regr_r2 regr_slope skewness some std stddev stddev_pop",
        "stddev_samp sum try_avg try_sum var_pop var_samp variance",
        # windows
        "cume_dist dense_rank first_value lag last_value lead nth_value ntile percent_rank rank row_number",
        # conditions and types
        "bigint boolean coalesce date decimal double equal_null float greatest if ifnull int isnan isnotnull isnull",
        "least nanvl nullif nullifzero nvl nvl2 smallint string timestamp tinyint typeof zeroifnull",
        # dates
        "add_months convert_timezone curdate current_date current_timestamp date_add date_diff date_format",
        "date_from_unix_date date_part date_sub date_trunc dateadd datediff datepart day dayname dayofmonth dayofweek",
        "dayofyear from_unixtime from_utc_timestamp hour last_day make_date make_timestamp minute month monthname",
        "months_between next_day now quarter second timestamp_micros timestamp_millis timestamp_seconds timestampadd",
        "timestampdiff to_date to_timestamp to_unix_timestamp to_utc_timestamp trunc try_to_date try_to_timestamp",
        "unix_date unix_micros unix_millis unix_seconds unix_timestamp weekday weekofyear window year",
        # mathematics
        "abs acos asin atan atan2 bit_count bround cbrt ceil ceiling cos cosh cot degrees e exp expm1 factorial floor",
        "hypot ln log log10 log1p log2 mod negative pi pmod positive pow power radians rint round shiftleft shiftright",
        "sign signum sin sinh sqrt tan tanh try_add try_divide try_mod try_multiply try_subtract width_bucket",
        # texts
        "ascii bit_length btrim char_length character_length concat concat_ws contains crc32 endswith hash hex initcap",
        "instr lcase left length lower ltrim md5 octet_length replace reverse right rtrim sha1 sha2 split_part",
        "startswith substr substring substring_index translate trim ucase upper xxhash64",
        # JSON and variants
        "from_json get_json_object is_variant_null json_array_length parse_json schema_of_variant to_json",
        "try_parse_json try_variant_get variant_get",
        # arrays, maps and structs
        "array array_append array_compact array_contains array_join array_max array_min array_position array_prepend",
        "array_size cardinality element_at get map map_contains_key map_entries map_from_arrays map_keys map_values",
        "named_struct size slice sort_array struct try_element_at",
    )
    for name in names.split()
}
LITERAL_AFTER_FIRST = _words(
    "approx_percentile array_join bround ceil ceiling contains date_format floor from_json from_unixtime"
    " get_json_object instr percentile_approx replace round split_part substring_index to_date to_json to_timestamp"
    " to_unix_timestamp try_to_date try_to_timestamp try_variant_get unix_timestamp variant_get window"
)
"""Functions that search, format or allocate by their other arguments, so that these must be literals."""
ARGUMENTS_MAX = {"approx_count_distinct": 1, "btrim": 1, "ltrim": 1, "rtrim": 1, "trim": 1, "window": 2}
"""One more argument would set how much time, memory or rows a value takes."""
GROWTH = {"hex": 2, "to_json": 6}
"""Highest factor by which a text can grow."""
GROWING_BY_TEXT = frozenset({"array_join", "concat_ws", "replace"})
UNITS = _words("microsecond millisecond second minute hour day week month quarter year")
UNITS_FIRST = _words("dateadd date_add datediff date_diff timestampadd timestampdiff")
HINTS = {
    name: advice
    for names, advice in {
        "regexp rlike regexp_like regexp_extract regexp_replace split ilike": "use like, contains or split_part",
        "percentile percentile_cont percentile_disc median mode": "use percentile_approx, or count and group by",
        "collect_list collect_set array_agg listagg string_agg": "ask for rows and order them",
        "transform filter exists forall aggregate reduce zip_with": "use explode",
        "locate position charindex": "use instr",
    }.items()
    for name in names.split()
}

_PLAIN: set[type[exp.Expr]] = {
    *(exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Neg, exp.DPipe, exp.Paren, exp.Tuple, exp.Bracket),
    *(exp.And, exp.Or, exp.Not, exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.NullSafeNEQ),
    *(exp.Is, exp.Like, exp.ILike, exp.Escape, exp.Dot, exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor, exp.BitwiseNot),
    *(exp.Anonymous, exp.Boolean, exp.Null, exp.Literal, exp.Var, exp.Extract, exp.Exists, exp.Filter),
    *(exp.IgnoreNulls, exp.RespectNulls, exp.Where, exp.Having, exp.Qualify, exp.From, exp.Order, exp.Offset),
    *(exp.Limit, exp.Rollup, exp.Cube, exp.GroupingSets, exp.DataTypeParam, exp.IntervalSpan),
}
_SET = "this expression distinct with_ order limit offset"
_ARGUMENTS: dict[type[exp.Expr], str] = {
    **dict.fromkeys(_PLAIN, "this expression expressions negate safe is_string"),
    **dict.fromkeys([exp.Union, exp.Intersect, exp.Except], _SET),
    exp.Select: "with_ distinct expressions from_ joins laterals where group having qualify windows order limit offset",
    exp.Subquery: "this alias pivots sample with_",
    exp.With: "expressions",
    exp.CTE: "this alias",
    exp.Table: "this alias pivots sample",
    exp.TableAlias: "this columns",
    exp.TableSample: "percent size",
    exp.Values: "expressions alias",
    exp.Join: "this on using side kind method",
    exp.Lateral: "this view outer alias",
    exp.Pivot: "expressions fields columns unpivot include_nulls pivot_column_naming alias",
    exp.PivotAlias: "this alias",
    exp.Alias: "this alias",
    exp.Identifier: "this quoted",
    exp.Column: "this table db catalog",
    exp.Star: "except_",
    exp.Distinct: "expressions",
    exp.Group: "expressions all rollup cube grouping_sets",
    exp.Ordered: "this desc nulls_first",
    exp.Case: "this ifs default",
    exp.If: "this true",
    exp.In: "this expressions query",
    exp.Between: "this low high",
    exp.Cast: "this to",
    exp.TryCast: "this to safe",
    exp.DataType: "this expressions nested",
    exp.ColumnDef: "this kind",
    exp.Interval: "this unit",
    exp.Window: "this alias over partition_by order spec",
    exp.WindowSpec: "kind start start_side end end_side",
}
ALLOWED = {kind: _words(arguments) for kind, arguments in _ARGUMENTS.items()}
"""Kinds of nodes that a tree may consist of, and which of their arguments may be set."""

_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_NUMBER = re.compile(r"\d*\.?\d*([eE][+-]?\d{1,3})?", re.ASCII)
OUTSIDE = _words("user current_user session_user current_catalog current_database current_schema")
"""Names that Spark reads as functions where no column is called so."""
TYPES = frozenset(
    exp.DType[name]
    for name in _words(
        "BOOLEAN TINYINT SMALLINT INT BIGINT FLOAT DOUBLE DECIMAL TEXT BINARY DATE TIMESTAMPTZ TIMESTAMPNTZ"
        " TIMESTAMPLTZ VARIANT ARRAY MAP STRUCT"
    )
)


class QueryDialect(Spark):
    """Spark's SQL without functions that sqlglot would translate, and without clauses that it would rewrite."""

    class Tokenizer(Spark.Tokenizer):
        # Only doubled quotes: a question with a backslash has been refused before.
        STRING_ESCAPES: ClassVar[list[str]] = ["'", '"']
        RAW_STRINGS: ClassVar[list[Any]] = []
        HEX_STRINGS: ClassVar[list[Any]] = []

    class Parser(SparkParser):
        STRICT_CAST = True
        # No function is known to sqlglot, so that each becomes an ``exp.Anonymous`` and is looked up in our own list.
        FUNCTIONS: ClassVar[dict[str, Any]] = {}
        ARRAY_CONSTRUCTORS: ClassVar[dict[str, Any]] = {}
        FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            n: SparkParser.FUNCTION_PARSERS[n] for n in ("CAST", "TRY_CAST", "EXTRACT")
        }
        NO_PAREN_FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {"CASE": SparkParser.NO_PAREN_FUNCTION_PARSERS["CASE"]}
        NO_PAREN_FUNCTIONS: ClassVar[dict[Any, Any]] = {
            TokenType.CURRENT_DATE: lambda: exp.Anonymous(this="current_date"),
            TokenType.CURRENT_TIMESTAMP: lambda: exp.Anonymous(this="current_timestamp"),
        }
        steps = 0

        def _advance(self, times: int = 1) -> None:
            """Give up when sqlglot tries too many ways to read a question, such as struct(struct(struct(...)))."""
            self.steps += 1
            limit("steps to be read in", self.steps, STEPS_MAX)
            super()._advance(times)

    class Generator(SparkGenerator):
        EXPRESSIONS_WITHOUT_NESTED_CTES: ClassVar[set[type[exp.Expr]]] = set()
        # Those left out change a tree while it is written, so that Spark would run something else than was checked.
        TRANSFORMS: ClassVar[dict[Any, Any]] = {
            kind: write
            for kind, write in SparkGenerator.TRANSFORMS.items()
            if kind not in (exp.Select, exp.From, exp.Table, exp.With, exp.Pivot)
        }


def limit(what: str, count: int, most: int) -> None:
    """Refuse a question that has more of something than it may have."""
    if count > most:
        raise BadQuestion(f"it has {count} {what}, more than {most}; ask in several steps")


def allow(node: exp.Expr) -> None:
    """Refuse a node that is not listed, or that has an argument that is not."""
    arguments = ALLOWED.get(type(node))
    if arguments is None:
        advice = HINTS["rlike"] if isinstance(node, exp.RegexpLike) else "leave it out"
        raise BadQuestion(f"it has a part that is not for questions over the bus ({_worded(node)}); {advice}")
    if type(node) in CHECKS:
        CHECKS[type(node)](node)
    for name, value in node.args.items():
        if value and name not in arguments:
            raise BadQuestion(f"{name!r} in a {_worded(node)} is not for questions over the bus; leave it out")


def _worded(node: exp.Expr) -> str:
    """Return the name of a node's kind in words."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(node).__name__).lower()


# -- further checks, by kind of node


def _check_function(node: exp.Expr) -> None:
    name, arguments = node.name, node.expressions
    if name not in FUNCTIONS or (isinstance(node.parent, exp.Dot) and node.parent.expression is node):
        advice = HINTS.get(name, "leave it out")
        raise BadQuestion(f"the function {name!r} is not for questions over the bus; {advice}")
    if len(arguments) > ARGUMENTS_MAX.get(name, len(arguments)):
        raise BadQuestion(f"{name!r} may have at most {ARGUMENTS_MAX[name]} argument(s) here; leave the others out")
    literals = arguments[:1] if name == "concat_ws" else arguments[1:] if name in LITERAL_AFTER_FIRST else []
    for value in literals:
        parts = list(value.walk())
        if not all(isinstance(part, exp.Literal | exp.Neg | exp.Boolean) or _is_array(part) for part in parts):
            raise BadQuestion(f"{name!r} needs texts or numbers here, not {value.sql()}; write them out")
        for part in parts:
            if isinstance(part, exp.Literal) and not part.is_string and float(part.name) > NUMBER_MAX:
                raise BadQuestion(f"{part.name} is too large for {name!r}; use at most {NUMBER_MAX}")


def _is_array(node: exp.Expr) -> bool:
    return isinstance(node, exp.Anonymous) and node.name == "array"


def _check_join(node: exp.Expr) -> None:
    # Without an equality Spark compares all pairs of rows, in one task that cannot be cancelled.
    condition = node.args["on"].unnest() if node.args.get("on") else None
    equal = any(
        isinstance(part, exp.EQ)
        and part.left != part.right
        and part.left.find(exp.Column)
        and part.right.find(exp.Column)
        for part in (condition.flatten() if isinstance(condition, exp.And) else [condition])
    )
    if node.args.get("kind") == "CROSS" or not (
        equal or node.args.get("using") or node.args.get("method") == "NATURAL"
    ):
        raise BadQuestion("each join needs an equality of columns; write join ... on a.x = b.x, or join ... using (x)")


def _check_like(node: exp.Expr) -> None:
    pattern = node.expression
    if not (isinstance(pattern, exp.Literal) and pattern.is_string):
        raise BadQuestion("like needs a text as its pattern; write it out, or use contains or startswith")
    # Spark makes a regular expression of it, which is linear as long as it has at most one place to go back to.
    if pattern.name.rstrip("%").count("%") > 1:
        raise BadQuestion(f"the pattern {pattern.name!r} has too many %; join several likes by and")


def _check_table(node: exp.Expr) -> None:
    if not isinstance(node.this, exp.Identifier):
        raise BadQuestion("functions are no tables here; use lateral view explode(...) for rows of an array")
    if node.args.get("db"):
        raise BadQuestion(
            f"there is no table {node.sql(dialect=QueryDialect)}; ask one of query/tables, by its name alone"
        )


def _check_lateral(node: exp.Expr) -> None:
    if not node.args.get("view") or node.this.name not in GENERATORS:
        raise BadQuestion(f"only lateral view with {', '.join(sorted(GENERATORS))} is answered; use one of them")
    # sqlglot writes this name without quotes.
    if not _WORD.fullmatch(node.alias):
        raise BadQuestion(f"the name {node.alias!r} of a lateral view is not a plain word; use letters, digits and _")


def _check_group(node: exp.Expr) -> None:
    sets = [len(one.expressions) for one in node.find_all(exp.GroupingSets)]
    sets += [1 + len(one.expressions or node.expressions) for one in node.find_all(exp.Rollup)]
    # The exponent has a limit, because the list of columns comes from the caller.
    sets += [2 ** min(len(one.expressions or node.expressions), 32) for one in node.find_all(exp.Cube)]
    limit("sets of columns to group by", math.prod(sets), GROUPINGS_MAX)


def _check_literal(node: exp.Expr) -> None:
    if isinstance(node, exp.Literal) and node.is_string:
        limit("characters in one text", len(node.name), TEXT_CHARS_MAX)
    elif not _NUMBER.fullmatch(node.name):
        raise BadQuestion(f"the number {node.name!r} cannot be read; write it in another way")


def _check_word(node: exp.Expr) -> None:
    if not _WORD.fullmatch(node.name):
        raise BadQuestion(f"{node.name!r} is not a plain word; use letters, digits and _")


def _check_name(node: exp.Expr) -> None:
    # A backtick would end the quotes around a name; ``_metadata`` is Spark's hidden column with the paths of files.
    if "`" in node.name or node.name.lower() == "_metadata":
        raise BadQuestion(f"the name {node.name!r} is not for questions over the bus; give it another one")


def _check_column(node: exp.Expr) -> None:
    if node.name.lower() in OUTSIDE and not node.args.get("table"):
        raise BadQuestion(
            f"{node.name!r} tells of the pipeline's machine; if it is a column, write its table before it"
        )


def _check_type(node: exp.Expr) -> None:
    if node.this not in TYPES and not isinstance(node.this, exp.Interval):
        raise BadQuestion(
            f"there is no type {node.sql(dialect=QueryDialect)} here; use string, double, timestamp or the like"
        )


CHECKS: Mapping[type[exp.Expr], Callable[[exp.Expr], None]] = {
    exp.Anonymous: _check_function,
    exp.Join: _check_join,
    exp.Like: _check_like,
    exp.ILike: _check_like,
    exp.Table: _check_table,
    exp.Lateral: _check_lateral,
    exp.Group: _check_group,
    exp.Literal: _check_literal,
    exp.Var: _check_word,
    exp.Identifier: _check_name,
    exp.Column: _check_column,
    exp.DataType: _check_type,
}
