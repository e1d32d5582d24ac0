"""Screening: one pass over all texts of a read, so that common texts need no checks of their own.

Most texts are plain: ASCII, with few brackets, without a number that could be too big or too long. The compiled
``are_plain`` (``_scan.c``) finds that out for all texts of a read at once. If they are not plain, they are checked one
by one: encoding and nesting by ``jsonrpc.check_text``, numbers by ``numbers``. Without a compiler they always are.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

SCREENED_BYTES = 256 * 1024
"""Maximum total length of texts to screen. A turn may end before the last of many texts, and screening be repeated."""


def are_plain_in_python(_texts: list[bytes], _depth_max: int, _longest: int, _bytes_max: int) -> bool:
    """Return False, which is always safe: a scan in Python would cost more than it saves."""
    return False


are_plain: Callable[[list[bytes], int, int, int], bool] = are_plain_in_python
with suppress(ImportError):
    from jetbus.wire import _scan

    are_plain = _scan.are_plain

COMPILED = are_plain is not are_plain_in_python
"""True if the function is the compiled one."""
