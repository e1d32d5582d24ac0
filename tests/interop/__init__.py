"""The real node-jet clients of npm, as owners and as fetchers, against a real daemon."""
