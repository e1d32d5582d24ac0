"""Shared helpers of the tests of Spark: sessions, drivers that are killed, logs, and the reference in plain Python."""
