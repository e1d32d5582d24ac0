"""Making a session, and what is said where there is no Java; the example of a notebook."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from jetbus.spark import JavaMissing, session
from jetbus.spark.spark_session import check_java
from support.notebooks import read_notebook, run_notebook
from support.program import EXAMPLES

NOTEBOOK = EXAMPLES / "notebook.py"


def test_a_running_session_is_used(spark: SparkSession) -> None:
    """An existing session is used; it is in UTC."""
    assert session("local[7]").sparkContext is spark.sparkContext
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


@pytest.mark.parametrize("place", ["option", "environment"])
def test_another_collector(place: str, tmp_path: Path) -> None:
    """A session takes options of Java, also those that replace our own choice of a garbage collector."""
    program = (
        "import sys; from jetbus.spark import session\n"
        "spark = session('local[1]', spark__driver__extraJavaOptions=sys.argv[1])\n"
        "print(spark.range(3).count(), spark.conf.get('spark.driver.extraJavaOptions'))\n"
    )
    collector = "-XX:+UseSerialGC"
    words, extra = (f"{collector} -Dours=1", "") if place == "option" else ("-Dours=1", collector)
    ended = subprocess.run(
        [sys.executable, "-c", program, words],
        cwd=tmp_path,
        env={**os.environ, "JAVA_TOOL_OPTIONS": extra},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("3 -Dlog4j2.configurationFile=")
    assert ended.stdout.endswith(f"log4j2.properties {words}\n")


def test_spark_submit_is_obeyed(tmp_path: Path) -> None:
    """In a program of spark-submit its master and settings count, and ours where it says nothing."""
    program = tmp_path / "program.py"
    program.write_text(
        "from jetbus.spark import session\n"
        "spark = session()\n"
        "names = ('spark.master', 'spark.sql.shuffle.partitions', 'spark.sql.parquet.compression.codec')\n"
        "print(spark.range(3).count(), *(spark.conf.get(name) for name in names))\n"
        "print(spark.conf.get('spark.sql.session.timeZone'))\n"
    )
    words = ("--master", "local[3]", "--conf", "spark.sql.shuffle.partitions=7", "--conf", "spark.ui.enabled=false")
    ended = subprocess.run(
        [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), *words, str(program)],
        cwd=tmp_path,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "TZ": "Asia/Tokyo"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout.splitlines() == ["3 local[3] 7 zstd", "UTC"], ended.stderr


def test_missing_java_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without Java the error says what to install; a wrong JAVA_HOME is named."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissing, match="apt install openjdk-17-jre-headless"):
        check_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match="there is no bin/java in it"):
        check_java()


def test_the_notebook_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The example records a plant, makes tables, answers questions and draws a picture."""
    assert spark is not None
    monkeypatch.setattr(sys, "argv", [str(NOTEBOOK), str(tmp_path)])
    runpy.run_path(str(NOTEBOOK), run_name="__main__")
    received = capsys.readouterr().out
    assert "605 events" in received
    assert received.count("|hot") == 4
    assert "the pump ran for 200 s" in received
    assert (tmp_path / "boiler.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_the_notebook_of_tables_runs(spark: SparkSession) -> None:
    """Every cell of the notebook runs, and shows the kinds of things that are stored in it."""
    assert spark is not None
    file = EXAMPLES / "tables.ipynb"
    assert run_notebook(file) == read_notebook(file)
