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

class ElementCore: ...
class SessionCore: ...
class AudienceCore: ...
class OutboxCore: ...
class RouteCore: ...
class LevelCore: ...
class RoutesCore: ...
class AccountCore: ...

class Lane:
    def __new__(
        cls,
        reader: Reader,
        elements: dict[str, Any],
        judge_element: Callable[[Any], int],
        judge_session: Callable[[Any], int],
        clock: Callable[[], float],
        route_type: type[RouteCore],
        routes: RoutesCore,
        timeout_s: float,
        limits: tuple[int, ...],
        /,
    ) -> Lane: ...
    def serve(
        self,
        session: SessionCore,
        data: bytes,
        at: int,
        turn_ends: float,
        now: float,
        record: Any,
        bytes_max: int,
        long_bytes: int,
        /,
    ) -> tuple[int, int, bytes | None, Any]: ...
    def take(self, session: SessionCore, text: bytes, now: float, record: Any, /) -> Any: ...

def is_too_deep(text: bytes, depth_max: int, /) -> bool: ...
def count_outer(text: bytes, separator: int, /) -> int: ...
def judge_numbers(text: bytes, chars_max: int, /) -> int: ...
