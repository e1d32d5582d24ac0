"""Run the pipeline as a program of its own.

    python -m jetbus.spark.run --journal DIR|URL --tables DIR|URI [--alarms FILE] [--stages FILE] [--expectations FILE]
                               [--publish PREFIX] [--query-groups GROUP ... | --query-open] [--checkpoint DIR|URI]
                               [--storage KEY=VALUE] [--merge-every N] [--master URL] [--ui PORT|off]
                               [--once | --every 10s]

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
from jetbus.spark.errors import JetSparkError
from jetbus.spark.pipeline import BATCH_EVENTS_MAX, MERGE_EVERY, Batch, Pipeline
from jetbus.spark.session import PORT_MAX, PORT_MIN, session, ui_address, ui_settings


def main(arguments: list[str] | None = None) -> int:
    """Run until there is nothing more to read, or until stopped; gives the exit code."""
    parser = argparse.ArgumentParser(prog="python -m jetbus.spark.run", description="Journals into tables, by Spark.")
    parser.add_argument(
        "--journal", required=True, action="append", help="directory, glob or jet://host; may be given several times"
    )
    parser.add_argument("--tables", required=True, metavar="DIR|URI", help="where the tables are, or are to be")
    parser.add_argument("--alarms", help="TOML file of alarms")
    parser.add_argument("--stages", help="TOML file of stages of your own")
    parser.add_argument("--expectations", help="TOML file of conditions that rows must meet")
    parser.add_argument("--publish", metavar="PREFIX", help="show lag, rollups and alarms as states below this path")
    parser.add_argument("--publish-url", metavar="URL", help="daemon to publish at, if not the one that is read")
    asking = parser.add_mutually_exclusive_group()
    asking.add_argument(
        "--query-groups", nargs="+", default=(), metavar="GROUP", help="who may ask the tables over the bus; nobody"
    )
    asking.add_argument("--query-open", action="store_true", help="everybody may ask")
    parser.add_argument("--checkpoint", metavar="DIR|URI", help="where Spark keeps how far it is; below the tables")
    parser.add_argument(
        "--storage",
        action="append",
        default=[],
        type=_setting,
        metavar="KEY=VALUE",
        help="a setting of the object store; may be given several times",
    )
    parser.add_argument("--user", help="who to log in as at the daemon")
    parser.add_argument("--password", help="the password of that user")
    parser.add_argument("--master", help="Spark's master, local[*] unless given")
    parser.add_argument(
        "--ui", type=_port, metavar="PORT|off", help="port of Spark's UI, 4040; on a cluster off unless given"
    )
    parser.add_argument("--batch-events", type=int, default=BATCH_EVENTS_MAX, help="events of one batch, at the most")
    parser.add_argument(
        "--merge-every", type=int, default=MERGE_EVERY, metavar="N", help="merge small files after N batches; 0 never"
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--once", action="store_true", help="end when all that is there now has been read")
    how.add_argument("--every", default="1s", help="how often to look for new events")
    given = parser.parse_args(arguments)
    # From the very beginning, because Spark takes seconds to start and a signal may come meanwhile.
    came: list[int] = []
    _note(came)
    try:
        every_s = read_duration(given.every)
        settings = {} if given.ui == "off" else ui_settings(given.master, given.ui)
        spark = session(given.master, **settings)
        _note(came)  # Spark has a handler of its own for Ctrl-C
        address = ui_address(spark) if settings else None
        if address is not None:
            print(f"Spark's UI is at {address}", file=sys.stderr, flush=True)
        with Pipeline(
            spark,
            given.journal,
            given.tables,
            alarm_file=given.alarms,
            stage_file=given.stages,
            expectation_file=given.expectations,
            batch_events_max=given.batch_events,
            on_batch=_tell,
            publish=given.publish,
            publish_url=given.publish_url,
            query_groups=given.query_groups,
            query_open=given.query_open,
            storage=dict(given.storage),
            checkpoint=given.checkpoint,
            merge_every=given.merge_every,
            **{name: getattr(given, name) for name in ("user", "password") if getattr(given, name)},
        ) as pipeline:
            pipeline.start(every_s, once=given.once)
            pipeline.follow(lambda: len(came))
    except (JetSparkError, ValueError) as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


def _setting(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return name, value


def _port(text: str) -> int | str:
    if text == "off":
        return text
    if not text.isdigit() or not PORT_MIN <= int(text) <= PORT_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is no port, nor off")
    return int(text)


def _note(came: list[int]) -> None:
    """Note signals instead of raising: calls to Spark must not be interrupted."""
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda number, _: came.append(number))


def _tell(batch: Batch) -> None:
    print(json.dumps(asdict(batch), default=str), flush=True)


if __name__ == "__main__":
    sys.exit(main())
