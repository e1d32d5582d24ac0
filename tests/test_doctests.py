"""The examples in docstrings do what they show."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import jetbus

MODULES = ["jetbus", *(found.name for found in pkgutil.walk_packages(jetbus.__path__, "jetbus."))]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name: str) -> None:
    """Every example in a module's docstrings gives the answer that stands below it."""
    outcome = doctest.testmod(importlib.import_module(name))
    assert outcome.failed == 0


def test_examples_are_found() -> None:
    """There are examples to run, so that the test above cannot pass by finding none."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = finder.find(importlib.import_module("jetbus.paths"))
    assert sum(len(one.examples) for one in found) > 0
