"""Guard of the SQL that peers ask over the bus: one query over known tables, made of allowed parts only.

SQL can do far more than ask: write, run programs, call Java, read any file of the driver's machine, or make a value of
gigabytes out of one row. So a question is never handed to Spark as it came:

    text -> tokens -> tree of sqlglot -> every node, argument and function is on a list -> text made anew -> Spark

- Everything not listed in ``sql_allowed.py`` is refused, known or unknown. Functions stay as the caller wrote them: the
  dialect there knows none of them, so that sqlglot neither translates nor renames any.
- Spark runs the text that is made from the checked tree, with every name quoted and no comments. Wherever sqlglot and
  Spark might read the same characters differently (backslashes, ``${...}``, hints in comments), the caller's text no
  longer matters; characters that change their meaning inside of strings are refused. The new text is
  parsed once more and must give the same tree, so that nothing slips through the writer of sqlglot either.
- Work is limited before it starts. ``_Size`` measures a query with every name replaced by its definition: a
  ``with`` that joins or doubles itself in each step is as large as the plan of Spark would be.

Left out on purpose are functions that reach out of Spark, that grow or search without limit within one row (Spark
cannot cancel a row) or that keep all rows in memory: regular expressions, padding, lambdas, ``collect_list``, exact
percentiles. How many rows an answer may have and how long it may take is not decided here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

from sqlglot import exp
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokenizer_core import TokenType

from jetbus.spark.spark_errors import BadQuestion
from jetbus.spark.sql_allowed import GENERATORS, GROWING_BY_TEXT, GROWTH, UNITS, UNITS_FIRST, QueryDialect, allow, limit

__all__ = ["Question", "check_question"]

QUESTION_CHARS_MAX = 20_000
NODES_MAX = 2_500
"""Nodes of the syntax tree, those of a ``with`` counted once for each use."""
DEPTH_MAX = 60
NESTED_TYPES_MAX = 20
"""Types such as array<...>; sqlglot takes seconds for many of them in each other."""
JOINS_MAX = 6
GENERATORS_MAX = 2
"""Calls that make several rows of one; each multiplies within one row, which cannot be cancelled."""
REFERENCES_MAX = 1_000
"""Columns of tables and texts that one expression is made of; bounds how large values grow and how far plans unfold."""
STAR_COLUMNS = 20
"""Columns that ``struct(*)`` is taken to have."""

_FIRST = {TokenType.SELECT, TokenType.WITH, TokenType.FROM, TokenType.VALUES, TokenType.L_PAREN}
_NESTED = {TokenType.ARRAY, TokenType.MAP, TokenType.STRUCT}


class Question(NamedTuple):
    """A checked query: the SQL to run and the names of the known tables that it asks."""

    sql: str
    tables: set[str]


def check_question(sql: str, tables: Iterable[str]) -> Question:
    """Return the query to run for a question over some tables; raise ``BadQuestion`` if any part is not allowed."""
    if not isinstance(sql, str) or not sql.strip():
        raise BadQuestion("there is no SQL in it; ask for example: select * from history")
    limit("characters", len(sql), QUESTION_CHARS_MAX)
    if "\\" in sql or "${" in sql or not all(char.isprintable() or char in "\n\r\t" for char in sql):
        raise BadQuestion("it has a backslash, a ${ or a control character; leave it out (like has escape '!')")
    try:
        tree = _parse(sql)
        check = _Check({name.lower(): name for name in tables})
        check.measure(tree, {}, {}, 0).check()
        text = tree.sql(dialect=QueryDialect, normalize_functions=False, comments=False)
        if _parse(text) != tree:
            raise BadQuestion("parts of it are ambiguous; write it in a simpler way, with aliases and brackets")
    except RecursionError:
        raise BadQuestion(f"it is nested deeper than {DEPTH_MAX} levels; ask in several steps, by with") from None
    return Question(text, check.asked)


def _parse(sql: str) -> exp.Expr:
    """Return the tree of exactly one query, with names quoted and functions in small letters."""
    try:
        tokens = QueryDialect().tokenize(sql)
        if tokens and tokens[0].token_type not in _FIRST:
            word = tokens[0].text
            raise BadQuestion(f"Syntax error at or near {word!r}: only queries are answered; begin with select or with")
        types = [
            one for one, after in pairwise(tokens) if one.token_type in _NESTED and after.token_type is TokenType.LT
        ]
        limit("types such as array<...>", len(types), NESTED_TYPES_MAX)
        for token in tokens:
            if token.token_type is TokenType.STRING:
                written = sql[token.start : token.end + 1]
                # Spark and sqlglot must agree on where a text ends, and on each of its characters.
                if token.text != written[1:-1].replace(written[0] * 2, written[0]):
                    raise BadQuestion(f"the text {written} can be read in two ways; use one kind of quotes in it")
        trees = [tree for tree in QueryDialect().parser().parse(tokens, sql) if tree]
    except (ParseError, TokenError) as problem:
        places = getattr(problem, "errors", None) or [{}]
        near = places[0].get("highlight") or "the end"
        raise BadQuestion(f"Syntax error at or near {near!r}; write one query as Spark's SQL has it") from None
    if len(trees) != 1:
        raise BadQuestion(f"it has {len(trees)} statements; ask one query at a time")
    for node in trees[0].walk():
        if isinstance(node, exp.Identifier):
            # Spark then takes no name for a keyword.
            node.set("quoted", True)
        elif isinstance(node, exp.Anonymous):
            node.set("this", node.name.lower())
            unit = node.expressions[0] if len(node.expressions) == 3 and node.this in UNITS_FIRST else None
            if isinstance(unit, exp.Column) and unit.name.lower() in UNITS:
                unit.replace(exp.Var(this=unit.name))
        elif isinstance(node, exp.WindowSpec) and not node.args.get("end"):
            node.set("end", "CURRENT ROW")
    return trees[0]


class _Size(NamedTuple):
    """Size of a part of a query, with all names in it replaced by their definitions."""

    nodes: int = 1
    joins: int = 0
    generators: int = 0
    references: int = 0
    """Columns of tables and texts that its value, or the largest of its columns, is made of."""

    def check(self) -> None:
        """Refuse a query that is too large."""
        limit("nodes in its syntax tree", self.nodes, NODES_MAX)
        limit("joins", self.joins, JOINS_MAX)
        limit("generators such as explode", self.generators, GENERATORS_MAX)


class _Check:
    """Walk over a tree that refuses forbidden nodes, measures the rest and notes the known tables it reads."""

    def __init__(self, known: Mapping[str, str]) -> None:
        self._known = known
        self._given: set[str] = set()
        self.asked: set[str] = set()

    def measure(self, node: exp.Expr, queries: Mapping[str, _Size], columns: Mapping[str, int], depth: int) -> _Size:
        """Return the size of a part; ``queries`` and ``columns`` are the names that it can see, "" any other column."""
        if depth > DEPTH_MAX:
            # Reported like a real overflow of the stack, which sqlglot may cause by itself.
            raise RecursionError
        allow(node)
        sources = [self._source(node, queries)] if isinstance(node, exp.Table) else []
        if node.args.get("with_"):
            queries = self._named(node, queries, columns, depth)
        if isinstance(node, exp.Column | exp.Star):
            sources = [_Size(references=_references(node, columns))]
        if isinstance(node, exp.Select):
            return self._select(node, sources, queries, columns, depth)
        parts = [self.measure(child, queries, columns, depth + 1) for child in _children(node)]
        return _sum(node, [*sources, *parts])

    def _source(self, table: exp.Table, queries: Mapping[str, _Size]) -> _Size:
        name = table.name.lower()
        if name in queries:
            return queries[name]
        if name not in self._known:
            raise BadQuestion(f"there is no table {table.name!r}; there are {', '.join(self._known)}")
        self.asked.add(self._known[name])
        return _Size(references=1)

    def _named(
        self, query: exp.Expr, queries: Mapping[str, _Size], columns: Mapping[str, int], depth: int
    ) -> Mapping[str, _Size]:
        """Return the queries that a ``with`` gives names to, each of which sees those before it."""
        found = dict(queries)
        allow(query.args["with_"])
        for named in query.args["with_"].expressions:
            name = named.alias.lower()
            # A name must stand for one thing only, or the sizes of two queries would be confused.
            if name in self._known or name in self._given:
                raise BadQuestion(f"the name {name!r} is given already; give each query of a with its own name")
            self._given.add(name)
            found[name] = self.measure(named, found, columns, depth + 1)
            # At each name, before the next one can multiply it: sizes stay small numbers, however long the chain.
            found[name].check()
        return found

    def _select(
        self, select: exp.Select, sizes: list[_Size], queries: Mapping[str, _Size], outer: Mapping[str, int], depth: int
    ) -> _Size:
        """Return the size of a query; its columns may refer to those of its sources and to aliases before them."""
        columns, largest = dict(outer), 0
        for source in (*_children(select, "from_"), *_children(select, "joins"), *_children(select, "laterals")):
            sizes.append(self.measure(source, queries, columns, depth + 1))
            # From any of the sources: which one a column is of is not worked out, so the largest counts.
            columns = {"": max([1, *columns.values(), sizes[-1].references])}
        for column in select.expressions:
            sizes.append(self.measure(column, queries, columns, depth + 1))
            largest = max(largest, sizes[-1].references)
            if column.alias:
                columns[column.alias.lower()] = max(columns.get("", 1), sizes[-1].references)
        rest = set(select.args) - {"from_", "joins", "laterals", "expressions", "with_"}
        sizes += [self.measure(child, queries, columns, depth + 1) for child in _children(select, *rest)]
        return _sum(select, sizes)._replace(references=largest)


def _children(node: exp.Expr, *names: str) -> list[exp.Expr]:
    """Return the nodes right below one, all but its ``with`` or those of some arguments."""
    values = [node.args.get(name) for name in names or node.args if name != "with_"]
    found = (child for value in values for child in (value if isinstance(value, list) else [value]))
    return [child for child in found if isinstance(child, exp.Expr)]


def _references(node: exp.Expr, columns: Mapping[str, int]) -> int:
    """Return how many columns of tables a column stands for, or the largest one of a star."""
    call = node.parent
    if isinstance(node, exp.Star):
        if isinstance(call, exp.Column):
            return 0
        return columns.get("", 1) * (STAR_COLUMNS if isinstance(call, exp.Anonymous) and call.name != "count" else 1)
    name = "" if node.args.get("table") else node.name.lower()
    return columns.get(name, columns.get("", 1)) * (
        STAR_COLUMNS if node.is_star and isinstance(call, exp.Anonymous) else 1
    )


def _sum(node: exp.Expr, parts: list[_Size]) -> _Size:
    """Return the size of a node with these parts."""
    nodes, joins, generators, references = (sum(numbers) for numbers in zip(_Size(), *parts, strict=True))
    if isinstance(node, exp.SetOperation | exp.In | exp.Values):
        references = max(part.references for part in parts)
    elif isinstance(node, exp.Literal):
        references = int(node.is_string)
    elif isinstance(node, exp.Join):
        joins, references = joins + 1, parts[0].references
    elif isinstance(node, exp.Anonymous):
        generators += node.name in GENERATORS
        references *= GROWTH.get(node.name, 1)
        if node.name in GROWING_BY_TEXT:
            references *= max([1, *(len(text.name) for text in node.find_all(exp.Literal))])
    if not isinstance(node, exp.Select):
        limit("columns and texts in one expression, those behind its names counted", references, REFERENCES_MAX)
    return _Size(nodes, joins, generators, references)
