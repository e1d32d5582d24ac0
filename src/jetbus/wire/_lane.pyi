from collections.abc import Callable
from typing import Any

from msgspec import UnsetType

from jetbus.wire.jsonrpc import Message, MetaParams, Params

class Reader:
    def __new__(
        cls,
        message: type[Message],
        params: type[Params],
        meta: type[MetaParams],
        unset: UnsetType,
        decode_text: Callable[[bytes], str],
        look_again: Callable[[bytes], Any],
        depth_max: int,
        chars_max: int,
        /,
    ) -> Reader: ...
    def read(self, text: bytes, /) -> Any: ...

def is_too_deep(text: bytes, depth_max: int, /) -> bool: ...
def count_outer(text: bytes, separator: int, /) -> int: ...
def judge_numbers(text: bytes, chars_max: int, /) -> int: ...
