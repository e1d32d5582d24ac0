from collections.abc import Callable

from msgspec import UnsetType

from jetbus.wire.jsonrpc import Message, MetaParams, Params

def bind(
    message: type[Message],
    params: type[Params],
    meta: type[MetaParams],
    unset: UnsetType,
    decode_text: Callable[[bytes], str],
    /,
) -> None: ...
def read_message(text: bytes, depth_max: int, chars_max: int, /) -> Message | None: ...
def is_too_deep(text: bytes, depth_max: int, /) -> bool: ...
def count_outer(text: bytes, separator: int, /) -> int: ...
def judge_numbers(text: bytes, chars_max: int, /) -> int: ...
