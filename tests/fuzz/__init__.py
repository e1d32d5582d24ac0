"""Fuzzing: targets, a corpus, and two ways to run them."""
