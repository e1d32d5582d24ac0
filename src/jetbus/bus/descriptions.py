"""Descriptions of elements, and meta data of their values.

An element has two optional slots, which are shared constants as long as its owner says nothing special::

    element.description    schema, further members, check     changes rarely         UNDESCRIBED
    element.meta           source time, quality, staleness    of the present value   None

``meta`` is None for a state if its next plain ``change`` needs no care: no time or quality to forget, no deadline to
move. The lane serves such states only, so that they pay nothing for meta data. Methods have ``METHOD``, which keeps the
lane off them as well.

Both are replaced and never modified, apart from the cache in ``Meta``. Whoever remembers them can tell by identity
whether something has changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

from msgspec import Struct
from msgspec.structs import replace

from jetbus.errors import Invalid, MissingParam, ValueRefused, WrongType
from jetbus.schema import Schema, find_fault, read_quality, read_schema, read_time, write_time
from jetbus.wire import jsonrpc
from jetbus.wire.dialects import NO_MEMBERS

if TYPE_CHECKING:
    from jetbus.bus.bus import Bus
    from jetbus.bus.replay import PastElement
    from jetbus.bus.tree import Element
    from jetbus.wire.jsonrpc import MetaParams

_TRUE, _FALSE = b"true", b"false"
_GOOD = b'"good"'
_CHECK = b'"schema"'


class Description(Struct, frozen=True, weakref=True):
    """All that an owner says of an element, apart from its value and access."""

    schema: bytes | None = None
    """The schema as JSON."""
    others: Mapping[str, bytes] = NO_MEMBERS
    """Further members, as in 2012."""
    stale_s: float = 0.0
    """Seconds without a change after which the state is stale; 0 for never."""
    checks: bool = False
    """True if the owner wants values of sets to be checked against the schema."""
    limits: Schema | None = None
    """Schema that values of sets must fit; None if they are not checked."""


UNDESCRIBED = Description()


def describe(before: Description, schema: bytes) -> Description:
    """Return a description with another schema; equal ones are one object, since many elements have the same schema."""
    if before.others:
        return _describe(before, schema)
    key = schema, before.checks
    description = _shared.get(key)
    if description is None:
        description = _shared[key] = _describe(before, schema)
    return description


_shared: WeakValueDictionary[tuple[bytes, bool], Description] = WeakValueDictionary()
"""Descriptions without further members that elements have, by schema and ``checks``."""


def _describe(before: Description, schema: bytes) -> Description:
    """Return a description with another schema. Only objects have members that the daemon acts on."""
    if not before.checks and b'"stale"' not in schema:
        return replace(before, schema=schema, stale_s=0.0)
    members = jsonrpc.loads(schema)
    if not isinstance(members, dict):
        if before.checks:
            raise Invalid("schema", "values can only be checked against a schema that is an object")
        return replace(before, schema=schema, stale_s=0.0)
    # Owners may write anything into a schema; the members that the daemon acts on have to be right.
    fault = find_fault(members if before.checks else {"stale": members["stale"]} if "stale" in members else {})
    if fault is not None:
        raise Invalid(fault.member, str(fault))
    read = read_schema(members)
    return replace(before, schema=schema, stale_s=read.stale_s or 0.0, limits=read if before.checks else None)


def read_check(meta: MetaParams) -> bool:
    """Return True if the owner wants values of sets to be checked."""
    if meta.check and meta.check != _CHECK:
        raise Invalid("check", 'check is "schema", or left out')
    return bool(meta.check)


def check_fits(element: Element, value: bytes) -> None:
    """Refuse the value of a set that does not fit the schema of the state."""
    limits = element.description.limits
    mismatch = None if limits is None else limits.find_mismatch(jsonrpc.loads(value))
    if mismatch is not None:
        raise ValueRefused(mismatch.member, f"{element.path} does not fit its schema: {mismatch}")


class Meta(Struct):
    """Meta data of the present value of a state."""

    source_us: int | None = None
    """Time by its owner, in microseconds since 1970; None if the owner has left it out."""
    quality: bytes | None = None
    """Quality as JSON; None for good."""
    changed_at: float = 0.0
    """Time of the last change, by the clock of the bus, if the state can be stale."""
    stale: bool | None = None
    """True while the state is stale, False from the change that ends this until the next change."""
    _members: bytes | None = None

    @property
    def members(self) -> bytes:
        """The members of an event for peers that ask for them, each with a comma in front."""
        if self._members is None:
            self._members = encode_meta(self.source_us, self.quality, self.stale)
        return self._members


class Asked(NamedTuple):
    """The parts of a description that a fetch or get asks for."""

    schema: bool = False
    meta: bool = False
    recorded: bool = False
    """True for the place of each event in the journal, which an audience adds; see ``audiences.recorded``."""

    def encode(self, element: Element, *, schema: bool = True) -> bytes:
        """Encode them as members, each with a comma in front; without ``schema``, only the meta data."""
        members = b""
        if schema and self.schema and element.schema is not None:
            members = b',"schema":' + element.schema
        if self.meta and element.meta is not None:
            members += element.meta.members
        return members

    def encode_past(self, element: PastElement, *, schema: bool = True, time: bool = True) -> bytes:
        """Encode the same of an element of the past, with or without its ``time``."""
        members = b""
        if schema and self.schema and element.schema is not None:
            members = b',"schema":' + element.schema
        if self.meta:
            members += encode_meta(element.source_us if time else None, element.quality)
        return members

    def choose_time(self, element: PastElement) -> str:
        """Return the time of an event of the past: the owner's, if asked for and known, or that of the journal."""
        return write_time(element.source_us) if self.meta and element.source_us is not None else element.ts


NOTHING_ASKED = Asked()


def read_asked(params: Mapping[str, Any], *, fetches: bool = False) -> Asked | None:
    """Return the parts of descriptions and records that a fetch or get asks for; None for none."""
    asked = Asked(params.get("schema") is True, params.get("meta") is True, fetches and params.get("recorded") is True)
    return asked if any(asked) else None


METHOD = Meta()
"""Meta data of all methods: there are none."""


def encode_meta(source_us: int | None, quality: bytes | None, stale: bool | None = None) -> bytes:
    """Encode meta data as members of an event, each with a comma in front."""
    ts = b"" if source_us is None else b',"ts":"%b"' % write_time(source_us).encode()
    trust = b"" if quality is None else b',"quality":' + quality
    return ts + trust + (b"" if stale is None else b',"stale":true' if stale else b',"stale":false')


def read_meta(params: MetaParams) -> tuple[int | None, bytes | None]:
    """Return source time and quality of a value; None for each that the owner has left out."""
    source_us, quality = None, None
    if params.ts:
        try:
            source_us = read_time(jsonrpc.loads(params.ts))
        except ValueError as problem:
            raise Invalid("ts", f"ts: {problem}") from None
    if params.quality:
        try:
            read_quality(jsonrpc.loads(params.quality))
        except ValueError as problem:
            raise Invalid("quality", str(problem)) from None
        quality = params.quality
    return source_us, None if quality == _GOOD else quality


def read_past(params: MetaParams) -> bool:
    """Return True if an owner says that a value may be older than the present one."""
    if params.past and params.past not in (_TRUE, _FALSE):
        raise WrongType("past")
    if params.past == _TRUE and not params.ts:
        raise MissingParam("ts")
    return params.past == _TRUE


def check_past(bus: Bus, source_us: int) -> None:
    """Refuse a value of the past with a time that cannot be right."""
    if bus.record is None:
        return
    now_us, limits = bus.record.now_us, bus.limits
    if source_us > now_us + limits.future_s_max * 1_000_000:
        raise bus.limit_reached("future_s_max", f"the time {write_time(source_us)} is in the future")
    if source_us < now_us - limits.past_s_max * 1_000_000:
        raise bus.limit_reached("past_s_max", f"the time {write_time(source_us)} is too long ago")


def is_past(present: Meta | None, source_us: int | None) -> bool:
    """Return True if a value of this time is older than the present one; a present one without a time is from now."""
    if source_us is None:
        return False
    return present is None or present.source_us is None or source_us < present.source_us


def is_repeated(element: Element, value: bytes, source_us: int | None, quality: bytes | None) -> bool:
    """Return True if a value of the past is the present one, of the same time: its owner does not know it arrived."""
    present = element.meta
    return (
        present is not None and present.source_us == source_us and element.value == value and present.quality == quality
    )
