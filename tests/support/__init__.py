"""Shared helpers of the tests. Every other file in ``tests`` is a test, a ``conftest`` or data.

The raw clients (``wire``, ``rawws``, ``binary``, ``node``) and ``daemon`` do not import jetbus: they are strangers to
the code that they test. The others may, and have fixtures, models and processes that several groups of tests use.
"""
