"""``jet sql``: query tables and journals with Spark."""

from __future__ import annotations

import click

from jetbus.cli.command import Example, command
from jetbus.cli.exit_codes import Failure, usage_error
from jetbus.cli.journals import INSTANT
from jetbus.cli.output import Output
from jetbus.cli.spark import (
    check_journals,
    explain_spark_errors,
    find_tables,
    iterate_rows,
    master_option,
    read_records,
    start_spark,
    storage_option,
)
from jetbus.journal.instants import read_instant


@command(
    examples=[
        Example("jet sql 'select path, count(*) n from events group by path' --tables tables", "query the tables"),
        Example("jet sql 'select max(num) from history' --tables tables --engine duckdb", "answer without Java"),
    ],
    bus=False,
    instants=True,
)
@click.argument("query")
@click.option("--tables", metavar="DIR|URI", help="tables of a pipeline: events, history, rollups_1m, ...")
@click.option("--batch", type=click.IntRange(0), metavar="N", help="query the tables as of this batch")
@click.option("--as-of", type=INSTANT, metavar="INSTANT", help="query the tables as of this time, such as -2h")
@click.option(
    "--journal",
    "-j",
    "journals",
    multiple=True,
    metavar="DIR|URL",
    help="query the events of a journal as the table `log`",
)
@click.option(
    "--engine",
    type=click.Choice(["spark", "duckdb"]),
    default="spark",
    show_default=True,
    help="duckdb answers without Java, over --tables on this machine",
)
@storage_option
@master_option
def sql(
    form: str | None,
    query: str,
    tables: str | None,
    batch: int | None,
    as_of: str | None,
    journals: tuple[str, ...],
    engine: str,
    storage: dict[str, str],
    master: str | None,
) -> None:
    """Run the SQL QUERY over --tables, over --journal or over both, and print its result.

    The query `show tables` lists the tables, `describe NAME` the columns of one. All tables are read as of the same
    batch: the newest one, or an older one with --batch or --as-of, unless `jet tables vacuum` has removed it.
    --engine duckdb starts at once; its SQL is DuckDB's.
    """
    if not tables and not journals:
        raise usage_error(
            "no tables given; give the tables of a pipeline with --tables DIR, or a journal with --journal DIR"
        )
    if batch is not None and as_of is not None:
        raise usage_error("--batch and --as-of exclude each other; give one of them")
    if not tables and (batch is not None or as_of is not None):
        raise usage_error("--batch and --as-of apply to tables; give them with --tables DIR")
    if engine == "duckdb" and (not tables or journals or master or storage):
        raise usage_error("--engine duckdb reads --tables on this machine only; use --engine spark for anything else")
    with explain_spark_errors():
        if engine == "duckdb" and tables:
            return _ask_duckdb(form, query, tables, batch, as_of)
        places = check_journals(journals) if journals else {}
        if as_of is not None:
            # Only a check, before Spark starts.
            read_instant(as_of)
        if tables:
            from jetbus.spark.store import read_progress

            # Fails if there are no tables, before the seconds that Spark takes to start.
            read_progress(find_tables(tables, storage))
        from jetbus.spark.catalog import attach
        from jetbus.spark.diagnosis import JAVA_ERRORS, explain_failure, first_sentence
        from jetbus.spark.spark_errors import JavaGone, SparkFailed
        from jetbus.spark.spark_session import QueryError

        spark = start_spark(master)
        try:
            if tables:
                attach(spark, tables, batch=batch, as_of=as_of, storage=storage)
            if places:
                spark.read.format("jet").options(**places).load().createOrReplaceTempView("log")
            found = spark.sql(query)
            # Within the try as well: Spark is lazy, and finds some mistakes only when it reads rows.
            with Output(found.columns, form, value=found.columns[0] if found.columns else "value") as out:
                out.put_all(iterate_rows(found))
        except (QueryError, *JAVA_ERRORS) as problem:
            place = find_tables(tables, storage).uri if tables else ""
            failure = explain_failure(problem, place)
            # The files of the tables are nothing that the query could be wrong about.
            is_query = isinstance(problem, QueryError) and not (place and place in str(problem))
            if isinstance(failure, SparkFailed | JavaGone) and not is_query:
                raise failure from None
            text = first_sentence(problem)
            raise usage_error(
                f"Spark refuses the query: {text}; `show tables` lists the tables, `describe NAME` the columns of one"
            ) from None


def _ask_duckdb(form: str | None, query: str, tables: str, batch: int | None, as_of: str | None) -> None:
    """Print the result of a query over tables on this machine."""
    try:
        import duckdb
    except ModuleNotFoundError:
        raise Failure("--engine duckdb needs duckdb; install it with: pip install 'jetbus[sql]'") from None
    from jetbus.spark.duck import attach_duckdb

    with duckdb.connect() as connection:
        attach_duckdb(connection, find_tables(tables), batch=batch, as_of=as_of)
        try:
            found = connection.sql(query)
            if found is not None:
                with Output(found.columns, form, value=found.columns[0]) as out:
                    out.put_all(read_records(found.to_arrow_reader()))
        except duckdb.Error as problem:
            text = " ".join(str(problem).split("\n\n")[0].split())
            raise usage_error(
                f"DuckDB refuses the query: {text}; `show tables` lists the tables, `describe NAME` the columns of one"
            ) from None
