"""Guard of the SQL that peers ask: which queries pass, what is refused, and that Spark gets what was checked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jetbus.spark import BadQuestion
from jetbus.spark.schemas import TABLES
from jetbus.spark.sql_allowed import FUNCTIONS
from jetbus.spark.sql_guard import check_question

QUERIES = {
    "plain": ("select * from events", {"events"}),
    "case": ("SELECT * FROM Events e", {"events"}),
    "end": ("select * from events;", {"events"}),
    "twice": ("with h as (select * from history) select * from h join events using (seq)", {"history", "events"}),
    "natural": ("select * from history natural left join events", {"history", "events"}),
    "below": ("select (select max(num) from history) - (select 1) from events", {"history", "events"}),
    "windows": ("select lag(num) over w from events window w as (partition by path order by seq)", {"events"}),
    "union": ("select 1 union all select num from events intersect values (2)", {"events"}),
    "lateral": ("select x from events lateral view explode(array(1, 2)) t as x", {"events"}),
    "having": ("select path, avg(num) from events group by path having count(*) > 1 order by 2 limit 3", {"events"}),
    "pivot": ("select * from (select event, num from events) pivot (sum(num) for event in ('add'))", {"events"}),
    "with in with": (
        "with a as (with b as (select * from events) select * from b) select (select max(seq) from history) from a",
        {"events", "history"},
    ),
    "quoted": ("select `num` from `events`", {"events"}),
    "none": ("select 1", set()),
}


@pytest.mark.parametrize("case", QUERIES)
def test_queries_name_their_tables(case: str) -> None:
    """Of a query the known tables that it asks are found, and no names that it gives itself."""
    sql, tables = QUERIES[case]
    assert check_question(sql, TABLES).tables == tables


REFUSED = {
    # other statements
    "insert": ("insert into events select * from events", "begin with select or with"),
    "insert first": ("from events insert into history select *", "inserts"),
    "insert after with": ("with x as (select 1) insert into events select * from x", "insert"),
    "create": ("create table x as select 1", "near 'create'"),
    "view": ("create temporary view events as select 1", "near 'create'"),
    "drop": ("drop table events", "near 'drop'"),
    "delete": ("delete from events", "near 'delete'"),
    "merge": ("merge into events using history on true when matched then delete", "near 'merge'"),
    "set": ("set spark.sql.ansi.enabled=false", "near 'set'"),
    "reset": ("reset", "near 'reset'"),
    "add jar": ("add jar '/tmp/x.jar'", "near 'ADD JAR'"),
    "cache": ("cache table events", "near 'cache'"),
    "explain": ("explain select 1", "near 'explain'"),
    "describe": ("describe events", "near 'describe'"),
    "show": ("show tables", "near 'show'"),
    "use": ("use x", "near 'use'"),
    "call": ("call x.y()", "near 'call'"),
    "a script": ("begin select 1; end", "near 'begin'"),
    "execute": ("execute immediate 'drop table events'", "near 'execute'"),
    "a variable": ("declare x int", "near 'declare'"),
    "two": ("select 1; select 2", "2 statements"),
    "a query and more": ("select 1; drop table events", "2 statements"),
    "into": ("select * into x from events", "'into' in a select"),
    "no SQL": ("what is the level?", "Syntax error at or near 'what'"),
    "half": ("select (1", "Syntax error"),
    "an open text": ("select 'x", "Syntax error"),
    "nothing": (" ", "there is no SQL in it"),
    "a comment": ("-- nothing", "0 statements"),
    # tables
    "no such table": ("select * from pumps", "there is no table 'pumps'; there are events, history"),
    "a file": ("select * from text.`/etc/passwd`", "no table"),
    "a file in full": ("select * from spark_catalog.text.`/etc/passwd`", "no table"),
    "a file below": ("select 1 where 1 in (select value from text.`/etc/passwd`)", "no table"),
    "a file in a with": ("with x as (select * from csv.`/etc/passwd`) select 1", "no table"),
    "a file in a join": ("select * from events e join parquet.`/x` p on e.seq = p.seq", "no table"),
    "a file as text": ("select * from '/etc/passwd'", "there is no table '/etc/passwd'"),
    "a file by name": ("select * from identifier('text.`/etc/passwd`')", "functions are no tables"),
    "another source": ("select * from jet.`/srv/journal`", "no table"),
    "a schema": ("select * from default.events", "by its name alone"),
    "a name of a subquery": (
        "select (with x as (select 1 as n) select max(n) from x), (select max(n) from x)",
        "there is no table 'x'",
    ),
    "a name before it is given": ("with a as (select * from b), b as (select 1) select * from a", "no table 'b'"),
    "a table's name again": ("with events as (select 1) select * from events", "its own name"),
    "endless rows": ("select * from range(1000000000000)", "functions are no tables"),
    "files by function": ("select * from read_files('/etc')", "functions are no tables"),
    "streams": ("select * from stream(events)", "functions are no tables"),
    "a lateral function": ("select * from events, lateral explode(array(1)) as t(x)", "join needs an equality"),
    "an older version": ("select * from events version as of 3", "'version' in a table"),
    "an older time": ("select * from events timestamp as of '2020-01-01'", "'version' in a table"),
    "metadata": ("select _metadata.file_path from events", "_metadata"),
    "a program": ("select transform(path) using 'cat' from events", "Syntax error|transform"),
    "a program below": ("select * from (select transform(path) using 'cat' from events)", "Syntax error|transform"),
    "a map": ("from events map path using 'cat' as x", "Syntax error"),
    # functions
    "java": ("select reflect('java.lang.System', 'getProperty', 'user.home')", "the function 'reflect'"),
    "java tried": ("select try_reflect('java.lang.System', 'exit', 1)", "the function 'try_reflect'"),
    "java below": ("select 1 from events where exists (select java_method('a', 'b', 1))", "the function 'java_method'"),
    "java in a window": ("select sum(num) over w from events window w as (order by reflect('a', 'b'))", "'reflect'"),
    "java in a frame": (
        "select sum(num) over (order by seq rows reflect('a', 'b') preceding) from events",
        "'reflect'",
    ),
    "java in a limit": ("select 1 limit reflect('a', 'b')", "'reflect'"),
    "java in an interval": ("select interval (reflect('a', 'b')) hour", "'reflect'"),
    "java in a pivot": ("select * from events pivot (sum(num) for event in (reflect('a', 'b')))", "'reflect'"),
    "java in a sample": ("select * from events tablesample (reflect('a', 'b') rows)", "'reflect'|Syntax error"),
    "java in a lateral view": ("select 1 from events lateral view reflect('a', 'b') t as x", "only lateral view with"),
    "java in a struct": ("select struct(reflect('a', 'b') as x).x", "'reflect'"),
    "java by name": ("select identifier('reflect')('java.lang.System', 'exit', 1)", "identifier|Syntax error"),
    "java in full": ("select system.builtin.reflect('java.lang.System', 'exit', 1)", "'reflect'"),
    "java quoted": ("select `reflect`('java.lang.System', 'exit', 1)", "'reflect'"),
    "java in capitals": ("select REFLECT('java.lang.System', 'exit', 1)", "'reflect'"),
    "a function of a catalog": ("select x.y.max(num) from events", "'max'"),
    "input files": ("select input_file_name() from events", "'input_file_name'"),
    "input blocks": ("select input_file_block_start() from events", "'input_file_block_start'"),
    "a user's function": ("select my_udf(num) from events", "'my_udf'"),
    "the user": ("select current_user()", "'current_user'"),
    "the user as a name": ("select current_user", "'current_user'"),
    "the user quoted": ("select `session_user`", "'session_user'"),
    "the version": ("select version()", "'version'"),
    "the catalog": ("select current_database()", "'current_database'"),
    "secrets": ("select secret('a', 'b')", "'secret'"),
    "a model": ("select ai_query('x', 'y')", "'ai_query'"),
    "waiting": ("select pause(100)", "'pause'"),
    "raising": ("select raise_error('x')", "'raise_error'"),
    "a name of a function": ("select identifier('path') from events", "'identifier'"),
    # what grows or goes back within one row
    "format": ("select format_string('%1000000000d', 1)", "'format_string'"),
    "printf": ("select printf('%1000000000d', 1)", "'printf'"),
    "a great row": ("select sequence(1, 2000000000)", "'sequence'"),
    "repeat": ("select repeat('x', 2000000000)", "'repeat'"),
    "space": ("select space(2000000000)", "'space'"),
    "lpad": ("select lpad('x', 2000000000, 'y')", "'lpad'"),
    "rpad": ("select rpad('x', 2000000000, 'y')", "'rpad'"),
    "array_repeat": ("select array_repeat(1, 2000000000)", "'array_repeat'"),
    "many digits": ("select round(num, 1000000000) from events", "too large for 'round'"),
    "digits of a column": ("select round(num, seq) from events", "'round' needs texts or numbers"),
    "a great exponent": ("select round(num, 1e999) from events", "too large for 'round'"),
    "accuracy": ("select percentile_approx(num, 0.5, 2000000000) from events", "too large for 'percentile_approx'"),
    "accuracy of distinct": ("select approx_count_distinct(num, 0.0000001) from events", "at most 1"),
    "sliding windows": ("select window(ts, '1 day', '1 microsecond') as w from events", "at most 2"),
    "every row in memory": ("select collect_list(value) from events", "'collect_list'.*; ask for rows"),
    "exact percentiles": ("select median(num) from events", "'median'.*; use percentile_approx"),
    "lambdas": ("select transform(array(1), x -> x + 1)", "'transform'.*; use explode"),
    "reduce": ("select aggregate(array(1), '', (a, x) -> concat(a, a))", "'aggregate'"),
    "rlike": ("select path rlike '(a+)+b' from events", "regexp like.*; use like"),
    "regexp": ("select path regexp '(a+)+b' from events", "regexp like.*; use like"),
    "rlike called": ("select rlike(path, '(a+)+b') from events", "'rlike'.*; use like"),
    "regexp_replace": ("select regexp_replace(path, '(a+)+b', '') from events", "'regexp_replace'"),
    "regexp_extract": ("select regexp_extract(path, '(a+)+b') from events", "'regexp_extract'"),
    "split": ("select split(path, '(a+)+b') from events", "'split'.*; use like, contains or split_part"),
    "like of a column": ("select path like value from events", "like needs a text"),
    "like that goes back": ("select path like '%a%a%a%b' from events", "too many %"),
    "ilike that goes back": ("select path ilike '%a%a%a%b' from events", "too many %"),
    "like any": ("select path like any ('a', '%b%c%d') from events", "like needs a text"),
    "replace by a column": ("select replace(value, 'a', value) from events", "'replace' needs texts or numbers"),
    "trim of many characters": ("select btrim(value, 'abc') from events", "at most 1"),
    "contains of a column": ("select contains(value, path) from events", "'contains' needs texts or numbers"),
    # joins
    "every row with every row": ("select count(*) from events cross join history", "join needs an equality"),
    "the same with a comma": ("select count(*) from events, history", "join needs an equality"),
    "the same without a condition": ("select count(*) from events join history", "join needs an equality"),
    "the same with true": ("select count(*) from events join history on true", "join needs an equality"),
    "the same with constants": ("select count(*) from events join history on 1 = 1", "join needs an equality"),
    "the same with itself": ("select 1 from events e join history h on e.seq = e.seq", "join needs an equality"),
    "a comparison": ("select 1 from events e left join history h on e.seq < h.seq", "join needs an equality"),
    "an alternative": ("select 1 from events e join history h on e.seq = h.seq or true", "join needs an equality"),
    "a lateral query": ("select * from events join lateral (select 1)", "join needs an equality"),
    # syntax
    "a hint": ("select /*+ broadcast(events) */ * from events", "'hint' in a select"),
    "recursion": ("with recursive r as (select 1 n union all select n + 1 from r) select n from r", "'recursive' in a"),
    "a marker": ("select * from events where path = :path", "placeholder"),
    "a question mark": ("select * from events where path = ?", "placeholder"),
    "a setting": ("select ${spark.app.name}", r"a \$\{"),
    "a setting in a text": ("select '${env:HOME}'", r"a \$\{"),
    "a setting in a name": ("select 1 as `${env:HOME}`", r"a \$\{"),
    "a variable in braces": ("select {x}", "placeholder"),
    "a session variable": ("select @@x", "parameter"),
    "a backslash": (r"select 'a\' or 1 = 1 --'", "backslash"),
    "a control character": ("select 1\x00", "control character"),
    "a space of another script": ("select\u00a01", "control character"),
    "texts side by side": ("select 'a' 'b'", "concat"),
    "a raw text": ("select r'a'", "Syntax error"),
    "binary": ("select X'1F'", "Syntax error"),
    "a backtick in a name": ("select 1 as `a``b`", "another one"),
    "a clause as a name": (
        "select 1 from events lateral view explode(array(1)) `t as x cross join secret` as y",
        "not a plain word",
    ),
    "named arguments": ("select round(num => 1, 2) from events", "kwarg|needs texts"),
    "sort by": ("select num from events sort by num", "'sort' in a select"),
    "distribute by": ("select num from events distribute by num", "'distribute' in a select"),
    "two intervals in one": ("select ts - interval 2 days 3 hours from events", "ambiguous"),
    "for update": ("select num from events for update", "locks|Syntax error"),
    "another type": ("select cast(num as json) from events", "there is no type"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_everything_else_is_refused(case: str) -> None:
    """A question that would write, run, reach out or grow is refused with a sentence that says what to do."""
    sql, message = REFUSED[case]
    with pytest.raises(BadQuestion) as caught:
        check_question(sql, TABLES)
    assert re.search(message, str(caught.value))
    assert "\n" not in str(caught.value)


def doubled(step: str, times: int) -> str:
    """Return a query that applies a step to its own result again and again."""
    query = "select path as x from events"
    for _ in range(times):
        query = f"select {step} as x from ({query})"  # noqa: S608 - nobody runs it
    return query


def named(step: str, times: int) -> str:
    """Return a query of a ``with`` whose queries each use the one before."""
    queries = ["q0 as (select path as x from events)"]
    queries += [f"q{n} as ({step.replace('LAST', f'q{n - 1}')})" for n in range(1, times + 1)]
    return f"with {', '.join(queries)} select * from q{times}"  # noqa: S608 - nobody runs it


def aliased(times: int) -> str:
    """Return a query whose columns each use the alias before."""
    columns = ", ".join(f"concat(a{n}, a{n}) as a{n + 1}" for n in range(times))
    return f"select path as a0, {columns} from events"  # noqa: S608 - nobody runs it


def joined(times: int) -> str:
    """Return a query with some joins."""
    return " ".join(["select 1 from events", *(f"join history h{n} using (seq)" for n in range(times))])


WITHIN = {
    "characters": ("select 1" + " " * 19_000, "select 1" + " " * 20_000, "characters, more than 20000"),
    "nodes": ("select " + ",".join(["1"] * 2_000), "select " + ",".join(["1"] * 3_000), "nodes in its syntax tree"),
    "depth": ("select " + "(" * 20 + "1" + ")" * 20, "select " + "(" * 300 + "1" + ")" * 300, "nested deeper than"),
    "depth without brackets": ("select " + "- " * 20 + "1", "select " + "- " * 90 + "1", "nested deeper than"),
    "joins": (
        joined(6),
        joined(7),
        "7 joins, more than 6",
    ),
    "joins of names": (
        named("select a.x from LAST a join LAST b using (x)", 2),
        named("select a.x from LAST a join LAST b using (x)", 3),
        "7 joins, more than 6",
    ),
    "unions of names": (
        named("select x from LAST union all select x from LAST", 5),
        named("select x from LAST union all select x from LAST", 20),
        "nodes in its syntax tree",
    ),
    "generators": (
        named("select y as x from LAST lateral view explode(array(x, x)) t as y", 2),
        named("select y as x from LAST lateral view explode(array(x, x)) t as y", 3),
        "3 generators such as explode, more than 2",
    ),
    "a text in a text": (
        doubled("concat(x, x)", 9),
        doubled("concat(x, x)", 10),
        "columns and texts in one expression",
    ),
    "the same by ||": (doubled("x || x", 9), doubled("x || x", 10), "columns and texts in one expression"),
    "the same by names": (
        named("select concat(x, x) as x from LAST", 9),
        named("select concat(x, x) as x from LAST", 10),
        "columns and texts in one expression",
    ),
    "the same by aliases": (aliased(9), aliased(10), "columns and texts in one expression"),
    "the same by arrays": (
        doubled("array(x, x)", 9),
        doubled("array(x, x)", 10),
        "columns and texts in one expression",
    ),
    "the same by lateral views": (
        "select y from events lateral view explode(array(concat(path, path))) t as y",
        named("select concat(y, y) as x from LAST lateral view explode(array(x, x, x, x, x, x, x, x)) t as y", 3),
        "columns and texts in one expression",
    ),
    "the same by subqueries": (
        "select (select max(concat(e.path, h.path)) from history h where h.path = e.path) from events e",
        doubled("concat(x, x)", 9).replace("path", "(select concat(h.path, h.path) from history h)"),
        "columns and texts in one expression",
    ),
    "the same by hex": (doubled("hex(x)", 9), doubled("hex(x)", 10), "columns and texts in one expression"),
    "the same by JSON": (
        doubled("to_json(array(x))", 3),
        doubled("to_json(array(x))", 4),
        "columns and texts in one expression",
    ),
    "the same by replace": (
        doubled("replace(x, 'a', 'bbbb')", 4),
        doubled("replace(x, 'a', 'bbbb')", 5),
        "columns and texts in one expression",
    ),
    "the same by texts alone": (
        "select replace(replace('aa', 'a', 'aaaaaaaaaa'), 'a', 'aaaaaaaaaa')",
        "select replace(replace(replace('aa', 'a', 'aaaaaaaaaa'), 'a', 'aaaaaaaaaa'), 'a', 'aaaaaaaaaa')",
        "columns and texts in one expression",
    ),
    "the same by an alias in a subquery": (
        "select concat(path, path) as a, (select max(concat(a, a)) from history) as b from events",
        aliased(9).replace(" from", ", (select max(concat(a9, a9)) from history) as b from"),
        "columns and texts in one expression",
    ),
    "a long list": (
        "select 1 in (" + ", ".join(["'x'"] * 1_500) + ")",
        "select 1 in (" + ", ".join(["'x'"] * 2_500) + ")",
        "nodes in its syntax tree",
    ),
    "expressions": (doubled("x + x", 9), doubled("x + x", 10), "columns and texts in one expression"),
    "cube": (
        "select 1 from events group by cube(bus, seq, ts, event, kind, path)",
        "select 1 from events group by cube(bus, seq, ts, event, kind, path, num)",
        "sets of columns to group by, more than 64",
    ),
    "rollups": (
        "select 1 from events group by rollup(bus, seq, ts), rollup(event, kind, path)",
        "select 1 from events group by rollup(bus, seq, ts), rollup(event, kind, path), rollup(num, doc, value, peer)",
        "sets of columns to group by, more than 64",
    ),
    "steps": (
        "select " + "struct(" * 8 + "1" + ")" * 8,
        "select " + "struct(" * 20 + "1" + ")" * 20,
        "steps to be read in, more than 50000",
    ),
    "types": (
        "select cast(doc as " + "array<" * 20 + "int" + ">" * 20 + ")",
        "select cast(doc as " + "array<" * 21 + "int" + ">" * 21 + ")",
        "21 types such as array<...>, more than 20",
    ),
    "text": (f"select '{'x' * 1_000}'", f"select '{'x' * 1_001}'", "characters in one text, more than 1000"),
}


@pytest.mark.parametrize("case", WITHIN)
def test_questions_have_limits(case: str) -> None:
    """A question of the largest size passes and a larger one does not, whichever way it is written."""
    small, large, message = WITHIN[case]
    check_question(small, TABLES)
    with pytest.raises(BadQuestion, match=message):
        check_question(large, TABLES)


REWRITTEN = {
    "names": ("select Num n from Events", "SELECT `Num` AS `n` FROM `Events`"),
    "comments": ("select /* ; drop */ 1 as x -- y", "SELECT 1 AS `x`"),
    "nested comments": ("select 1 /* a /* b */ c */ as x", "SELECT 1 AS `x`"),
    "quotes": ("select 'it''s', \"it's\", 'say \"hi\"'", "SELECT 'it''s', 'it''s', 'say \"hi\"'"),
    "doubled quotes of the other kind": ("select \"a''b\", 'a\"\"b'", "SELECT 'a''''b', 'a\"\"b'"),
    "statements in a text": ("select '; drop table x --'", "SELECT '; drop table x --'"),
    "functions": ("select NVL(num, 0), Len from events", "SELECT nvl(`num`, 0), `Len` FROM `events`"),
    "units": (
        "select timestampdiff(second, ts, ts) from events",
        "SELECT timestampdiff(second, `ts`, `ts`) FROM `events`",
    ),
    "words as names": (
        "select `select`, `from` from events `where`",
        "SELECT `select`, `from` FROM `events` AS `where`",
    ),
}


@pytest.mark.parametrize("case", REWRITTEN)
def test_the_query_to_run_is_made_from_the_tree(case: str) -> None:
    """Spark is given new text: names quoted, comments gone, functions as they were written."""
    sql, rewritten = REWRITTEN[case]
    assert check_question(sql, TABLES).sql == rewritten


VIEWS = {
    "events": """
        select bus, cast(seq as bigint) as seq, cast(ts as timestamp) as ts, event, path, value,
            try_cast(value as double) as num, try_parse_json(value) as doc
        from values
            ('plant', 1, '2026-03-01 00:00:00', 'add', 'tank/level', '1'),
            ('plant', 2, '2026-03-01 00:00:10.5', 'change', 'tank/level', '2.5'),
            ('plant', 3, '2026-03-01 00:01:00', 'change', 'tank/level', null),
            ('plant', 4, '2026-03-01 01:00:00', 'add', 'pump/on', 'true'),
            ('lab', 1, '2026-03-02 00:00:00', 'add', 'note', '{"by": ["x", 1.5], "n": {"a": 7}}'),
            ('lab', 2, '2026-03-02 12:30:00', 'add', 'it''s', '"a"'),
            ('lab', 3, '2026-03-31 23:59:59.999999', 'remove', 'note', null)
            as t(bus, seq, ts, event, path, value)
    """,
    "history": """
        select bus, path, seq, ts as valid_from, num, lead(ts) over (partition by bus, path order by seq) as valid_to
        from events
    """,
}
TYPICAL = Path(__file__).with_name("questions.sql").read_text().splitlines()


@pytest.fixture(scope="module")
def plant(spark: SparkSession) -> SparkSession:
    session = spark.newSession()
    for name, sql in VIEWS.items():
        session.sql(sql).createOrReplaceTempView(name)
    return session


def test_spark_has_every_allowed_function(plant: SparkSession) -> None:
    """The list of functions names what Spark has; two of them are part of its grammar."""
    known = {row.function for row in plant.sql("show functions").collect()}
    assert FUNCTIONS - known == {"timestampadd", "timestampdiff"}


@pytest.mark.parametrize("sql", TYPICAL, ids=lambda sql: sql[:60])
def test_what_is_run_means_what_was_asked(plant: SparkSession, sql: str) -> None:
    """The text that is made from the tree has the same types and rows for Spark as the text of the caller."""
    asked = plant.sql(sql)
    run = plant.sql(check_question(sql, VIEWS).sql)
    assert [field.dataType for field in run.schema] == [field.dataType for field in asked.schema]
    assert run.columns == asked.columns
    assert str(run.collect()) == str(asked.collect())
