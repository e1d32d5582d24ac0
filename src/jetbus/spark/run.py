"""Run the pipeline as a program of its own.

    python -m jetbus.spark.run --journal DIR|URL --tables DIR [--alarms FILE] [--stages FILE] [--publish PREFIX]
                               [--master URL] [--once | --every 10s]

Prints a JSON line for each batch that has been committed. SIGTERM and Ctrl-C stop it.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from dataclasses import asdict

from jetbus.journal.instants import read_duration
from jetbus.spark.errors import JetSparkError
from jetbus.spark.pipeline import BATCH_EVENTS_MAX, Batch, Pipeline
from jetbus.spark.session import session

LOOK_S = 1
"""How often a running pipeline is looked at, to see whether it has failed."""


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
    parser.add_argument("--user", help="who to log in as at the daemon")
    parser.add_argument("--password", help="the password of that user")
    parser.add_argument("--master", help="Spark's master, local[*] unless given")
    parser.add_argument("--batch-events", type=int, default=BATCH_EVENTS_MAX, help="events of one batch, at the most")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--once", action="store_true", help="end when all that is there now has been read")
    how.add_argument("--every", default="1s", help="how often to look for new events")
    given = parser.parse_args(arguments)
    stopped = threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stopped.set())
    try:
        every_s = read_duration(given.every)
        with Pipeline(
            session(given.master),
            given.journal,
            given.tables,
            alarm_file=given.alarms,
            stage_file=given.stages,
            batch_events_max=given.batch_events,
            on_batch=_tell,
            publish=given.publish,
            publish_url=given.publish_url,
            **{name: getattr(given, name) for name in ("user", "password") if getattr(given, name)},
        ) as pipeline:
            pipeline.start(every_s, once=given.once)
            while not stopped.is_set() and not pipeline.wait(LOOK_S):
                pass
    except (JetSparkError, ValueError) as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


def _tell(batch: Batch) -> None:
    print(json.dumps(asdict(batch)), flush=True)


if __name__ == "__main__":
    sys.exit(main())
