"""Jet for Python: a realtime object bus that remembers."""

__version__ = "0.1.0"
