"""Run the pipeline as a program of its own.

    python -m jetbus.spark.run --journal DIR|URL --tables DIR [--alarms FILE] [--stages FILE] [--publish PREFIX]
                               [--master URL] [--once | --every 10s]

The same as ``jet pipeline run``, for those who start a program of Python such as ``spark-submit`` does. Prints a JSON
line for each batch that has been committed. SIGTERM and Ctrl-C stop it after its batch, a second one at once.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from dataclasses import asdict

from jetbus.journal.instants import read_duration
from jetbus.spark.batch import FEW_EVENTS
from jetbus.spark.errors import JetSparkError
from jetbus.spark.pipeline import BATCH_EVENTS_MAX, Batch, Pipeline
from jetbus.spark.session import session


def main(arguments: list[str] | None = None) -> int:
    """Run until there is nothing more to read, or until stopped; gives the exit code."""
    parser = argparse.ArgumentParser(prog="python -m jetbus.spark.run", description="Journals into tables, by Spark.")
    parser.add_argument(
        "--journal", required=True, action="append", help="directory, glob or jet://host; may be given several times"
    )
    parser.add_argument("--tables", required=True, help="directory of the tables")
    parser.add_argument("--alarms", help="TOML file of alarms")
    parser.add_argument("--stages", help="TOML file of stages of your own")
    parser.add_argument("--publish", metavar="PREFIX", help="show lag, rollups and alarms as states below this path")
    parser.add_argument("--publish-url", metavar="URL", help="daemon to publish at, if not the one that is read")
    parser.add_argument(
        "--query-groups", nargs="+", default=(), metavar="GROUP", help="who may ask the tables over the bus; everybody"
    )
    parser.add_argument("--user", help="who to log in as at the daemon")
    parser.add_argument("--password", help="the password of that user")
    parser.add_argument("--master", help="Spark's master, local[*] unless given")
    parser.add_argument("--batch-events", type=int, default=BATCH_EVENTS_MAX, help="events of one batch, at the most")
    parser.add_argument(
        "--few-events", type=int, default=FEW_EVENTS, help="batches of no more events are made without a job of Spark"
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--once", action="store_true", help="end when all that is there now has been read")
    how.add_argument("--every", default="1s", help="how often to look for new events")
    given = parser.parse_args(arguments)
    came: list[int] = []
    _note(came)
    try:
        every_s = read_duration(given.every)
        spark = session(given.master)
        _note(came)  # Spark has a handler of its own for Ctrl-C
        with Pipeline(
            spark,
            given.journal,
            given.tables,
            alarm_file=given.alarms,
            stage_file=given.stages,
            batch_events_max=given.batch_events,
            few_events=given.few_events,
            on_batch=_tell,
            publish=given.publish,
            publish_url=given.publish_url,
            query_groups=given.query_groups,
            **{name: getattr(given, name) for name in ("user", "password") if getattr(given, name)},
        ) as pipeline:
            pipeline.start(every_s, once=given.once)
            pipeline.follow(lambda: len(came))
    except (JetSparkError, ValueError) as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


def _note(came: list[int]) -> None:
    """Only note signals from now on: what Spark is asked must not be broken into."""
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda number, _: came.append(number))


def _tell(batch: Batch) -> None:
    print(json.dumps(asdict(batch)), flush=True)


if __name__ == "__main__":
    sys.exit(main())
