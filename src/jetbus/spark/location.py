"""Location of tables: a folder of this machine, or a URI of any file system that both Spark and Delta Lake know.

    /var/lib/jet/tables    file:///var/lib/jet/tables    s3a://bucket/tables    hdfs://host/tables

Credentials of an object store are one mapping, in the words of delta-rs (``AWS_ACCESS_KEY_ID`` and so on); Spark gets
the same under its own names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from pyspark.sql import SparkSession

from jetbus.spark.spark_errors import BadOption

__all__ = ["Location", "read_location"]

SCHEMES = ("file", "s3", "s3a", "hdfs", "abfss", "gs")

_SPARK_NAMES: Mapping[str, str] = {
    "AWS_ACCESS_KEY_ID": "fs.s3a.access.key",
    "AWS_SECRET_ACCESS_KEY": "fs.s3a.secret.key",
    "AWS_SESSION_TOKEN": "fs.s3a.session.token",
    "AWS_ENDPOINT_URL": "fs.s3a.endpoint",
    "AWS_REGION": "fs.s3a.endpoint.region",
}
"""Options of delta-rs, and the settings of Spark that say the same; an option that is not listed is for delta-rs."""


@dataclass(frozen=True)
class Location:
    """A folder for tables."""

    uri: str
    """An absolute path for a folder of this machine, else the URI."""
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def local(self) -> Path | None:
        """The folder, if it is on a file system of this machine."""
        return None if "://" in self.uri else Path(self.uri)

    def at(self, *names: str) -> str:
        """Return the place of something below, for Spark and for Delta Lake."""
        return "/".join([self.uri.rstrip("/"), *names])

    def configure(self, spark: SparkSession) -> None:
        """Tell a session the credentials."""
        for name, value in self.options.items():
            if name in _SPARK_NAMES:
                spark.conf.set(_SPARK_NAMES[name], value)


def read_location(
    place: str | Path | Location, options: Mapping[str, str] | None = None, *, option: str = "tables"
) -> Location:
    """Read the place of tables, or the place that another ``option`` names, as users write it."""
    if isinstance(place, Location):
        return place
    text = str(place)
    scheme, found, rest = text.partition("://")
    if not found:
        return Location(str(Path(text).absolute()), dict(options or {}))
    if scheme not in SCHEMES:
        raise BadOption(option, f"{text!r} is at no file system that is known; take one of {', '.join(SCHEMES)}")
    if scheme == "file":
        return Location("/" + unquote(rest).lstrip("/"), dict(options or {}))
    return Location(text.rstrip("/"), dict(options or {}))
