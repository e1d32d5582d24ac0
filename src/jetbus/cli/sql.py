"""``jet sql``: questions to tables and journals, answered by Spark."""

from __future__ import annotations

import click

from jetbus.cli.failures import usage
from jetbus.cli.frame import Example, command
from jetbus.cli.output import Output
from jetbus.cli.past import INSTANT
from jetbus.cli.spark import check_journals, master_option, rows_of, spark_explained, started, storage_option
from jetbus.journal.instants import read_instant


@command(
    examples=[
        Example("jet sql 'select path, count(*) n from events group by path' --tables tables", "over the tables"),
        Example("jet sql 'select event, count(*) n from log group by event' --journal log", "over a journal itself"),
    ],
    bus=False,
    instants=True,
)
@click.argument("query")
@click.option("--tables", metavar="DIR|URI", help="the tables of a pipeline: events, history, rollups_1m, ...")
@click.option("--batch", type=click.IntRange(0), metavar="N", help="the tables as they were after this batch")
@click.option("--as-of", type=INSTANT, metavar="INSTANT", help="the tables as they were then, such as -2h")
@click.option("--journal", "-j", "journals", multiple=True, metavar="DIR|URL", help="all their events are `log`")
@storage_option
@master_option
def sql(
    form: str | None,
    query: str,
    tables: str | None,
    batch: int | None,
    as_of: str | None,
    journals: tuple[str, ...],
    storage: dict[str, str],
    master: str | None,
) -> None:
    """Print the answer to the QUERY in SQL, over --tables, over --journal or over both.

    The tables and their columns are those of docs/spark.md. All tables are as of the same batch: the newest one, unless
    --batch or --as-of goes back in time, as far as `jet tables vacuum` has left old versions.
    """
    if not tables and not journals:
        raise usage("which tables? Give the place of a pipeline's with --tables DIR, or a journal with --journal DIR")
    if batch is not None and as_of is not None:
        raise usage("--batch and --as-of both say when; give one of them")
    if not tables and (batch is not None or as_of is not None):
        raise usage("--batch and --as-of go back in time in tables; give their place with --tables DIR")
    with spark_explained():
        places = check_journals(journals) if journals else {}
        if as_of is not None:
            read_instant(as_of)
        if tables:
            from jetbus.spark.location import read_location
            from jetbus.spark.store import read_progress

            read_progress(read_location(tables, storage))
        from jetbus.spark.catalog import attach
        from jetbus.spark.queries import QueryError, first_sentence

        spark = started(master)
        if tables:
            attach(spark, tables, batch=batch, as_of=as_of, storage=storage)
        if places:
            spark.read.format("jet").options(**places).load().createOrReplaceTempView("log")
        try:
            found = spark.sql(query)
            with Output(found.columns, form, value=found.columns[0] if found.columns else "value") as out:
                out.put_all(rows_of(found))
        except QueryError as problem:
            text = first_sentence(problem)
            raise usage(f"Spark refuses the query: {text}; docs/spark.md has the tables and their columns") from None
