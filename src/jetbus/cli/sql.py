"""``jet sql``: questions to tables and journals, answered by Spark."""

from __future__ import annotations

import click

from jetbus.cli.failures import usage
from jetbus.cli.frame import Example, command
from jetbus.cli.output import Output
from jetbus.cli.spark import check_journals, master_option, rows_of, spark_explained, started


@command(
    examples=[
        Example("jet sql 'select path, count(*) n from events group by path' --tables tables", "over the tables"),
        Example("jet sql 'select event, count(*) n from log group by event' --journal log", "over a journal itself"),
    ],
    bus=False,
)
@click.argument("query")
@click.option("--tables", metavar="DIR", help="the tables of a pipeline: events, history, rollups_1m, ...")
@click.option("--journal", "-j", "journals", multiple=True, metavar="DIR|URL", help="all their events are `log`")
@master_option
def sql(form: str | None, query: str, tables: str | None, journals: tuple[str, ...], master: str | None) -> None:
    """Print the answer to the QUERY in SQL, over --tables, over --journal or over both.

    The tables and their columns are those of docs/spark.md.
    """
    if not tables and not journals:
        raise usage("which tables? Give the folder of a pipeline's with --tables DIR, or a journal with --journal DIR")
    with spark_explained():
        places = check_journals(journals) if journals else {}
        from jetbus.spark.manifest import read_manifest
        from jetbus.spark.store import attach

        if tables:
            from pathlib import Path

            read_manifest(Path(tables))
        from jetbus.spark.queries import QueryError, first_sentence

        spark = started(master)
        if tables:
            attach(spark, tables)
        if places:
            spark.read.format("jet").options(**places).load().createOrReplaceTempView("log")
        try:
            found = spark.sql(query)
            with Output(found.columns, form, value=found.columns[0] if found.columns else "value") as out:
                out.put_all(rows_of(found))
        except QueryError as problem:
            text = first_sentence(problem)
            raise usage(f"Spark refuses the query: {text}; docs/spark.md has the tables and their columns") from None
