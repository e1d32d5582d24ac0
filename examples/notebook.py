"""Spark in ten minutes: a small plant is recorded, becomes tables, is asked questions and drawn.

    python examples/notebook.py [DIRECTORY]

Each part of ``main`` is a cell of a notebook. The curve is drawn without any library, so that nothing else has to be
installed. Needs ``pip install 'jetbus[spark]'`` and Java 17.
"""

from __future__ import annotations

import math
import struct
import sys
import tempfile
import zlib
from pathlib import Path

from jetbus import journal
from jetbus.spark import Pipeline, attach, session

BEGIN_US = 1_772_323_200_000_000
MINUTES = 10


def record(directory: Path) -> None:
    """Ten minutes of a boiler that gets hot twice, and of a pump that stops once; a daemon would write the same."""
    with journal.Writer(directory, journal.Settings(bus="plant", fsync="never"), now_us=lambda: BEGIN_US) as writer:
        writer.append("start")
        writer.append("add", "state", "boiler/temperature", b"60.0", "boiler#1")
        writer.append("add", "state", "pump/running", b"true", "pump#2")
        for second in range(1, MINUTES * 60 + 1):
            writer.now_us = BEGIN_US + second * 1_000_000
            writer.change("boiler/temperature", b"%.2f" % (70 + 20 * math.sin(second / 50)), "boiler#1")
            if second in (200, 260):
                writer.change("pump/running", b"false" if second == 200 else b"true", "pump#2")


def draw(file: Path, curve: list[float], width: int = 640, height: int = 240) -> None:
    """A curve as a PNG, without any library."""
    low, high = min(curve), max(curve)
    rows = [bytearray(b"\xff" * width) for _ in range(height)]
    for x in range(width):
        value = curve[x * len(curve) // width]
        y = round((high - value) / ((high - low) or 1) * (height - 5)) + 2
        for thick in (-1, 0, 1):
            rows[y + thick][x] = 0x40

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + bytes(row) for row in rows))
    file.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b""))


def main() -> None:
    here = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="jetbus-notebook-"))

    # %% Something to look at
    record(here / "journal")

    # %% Spark, and the journal as a table of events
    spark = session("local[2]")
    log = spark.read.format("jet").load(str(here / "journal"))
    print(f"{log.count()} events")

    # %% Alarms are a file
    alarms = here / "alarms.toml"
    alarms.write_text('[alarm.hot]\nrule = "boiler/**"\nwhen = "num > 85"\nclear = "num < 80"\nhold = "5s"\n')

    # %% From events to tables; run it again later and it goes on where it was
    with Pipeline(spark, here / "journal", here / "tables", alarm_file=alarms) as pipeline:
        pipeline.run_once()
    attach(spark, here / "tables")

    # %% Questions
    spark.sql("""
        select window_start, count, round(time_mean, 1) as mean, min, max
        from rollups_1m where path = 'boiler/temperature' order by window_start
    """).show(truncate=False)
    spark.sql("select alarm, what, ts, value from alarms order by ts").show(truncate=False)
    running = spark.sql("""
        select round(sum(unix_micros(valid_to) - unix_micros(valid_from)) / 1e6) as seconds
        from history where path = 'pump/running' and flag and valid_to is not null
    """).first()
    print(f"the pump ran for {running['seconds'] if running else 0:.0f} s until it was last started")

    # %% A picture
    rows = spark.sql("select num from history where path = 'boiler/temperature' order by seq").collect()
    draw(here / "boiler.png", [row["num"] for row in rows])
    print(f"drawn: {here / 'boiler.png'}")


if __name__ == "__main__":
    main()
