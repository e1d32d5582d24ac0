"""Changes of elements: a new value, its source time and quality, another schema or other members.

Every change that the compiled lane does not handle comes here, whatever dialect it is in. It is charged to the owner,
stored in the element, recorded and announced, in this order: a refused change has no effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from jetbus.bus.account import measure_description
from jetbus.bus.descriptions import Description, check_past, describe, is_past, is_repeated, read_meta, read_past
from jetbus.bus.params import require_params, require_path
from jetbus.bus.record import record_description
from jetbus.bus.tree import Element, as_json, set_value
from jetbus.errors import Invalid, MissingParam, NotState, WrongType
from jetbus.wire import legacy
from jetbus.wire.dialects import CLASSIC, LEGACY
from jetbus.wire.jsonrpc import NO_META, Message, Params

if TYPE_CHECKING:
    from jetbus.bus.bus import Bus
    from jetbus.bus.session import Session


class Changes:
    """Changes of values and descriptions."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    def publish(
        self, element: Element, value: bytes, source_us: int | None = None, quality: bytes | None = None
    ) -> None:
        """Set the value of a state, record it and announce it."""
        bus = self._bus
        bus.charge_value(element, len(value) + len(quality or b""))
        set_value(element, value)
        described = source_us is not None or quality is not None
        if described or element.meta is not None:
            bus.staleness.renew(element, source_us, quality, bus.now)
        if bus.record is not None and not bus.builtin.owns(element):
            now = element.value or b""
            if described:
                bus.record.append_described(element.path, now, element.owner.label, source_us, quality, False)
            else:
                bus.record.note((element.path, now, element.owner.label))
        if element.audiences:
            bus.send_change(element)

    def change(self, session: Session, message: Message, _request_id: bytes, _text: bytes) -> bytes:
        """Serve a ``change``."""
        params = require_params(message)
        path = require_path(params)
        if not (params.value or params.element or params.schema):
            raise MissingParam("value")
        element = self._bus.require_owned(session, path)
        if params.element or (element.is_method and params.value and session.dialect.has_nodes):
            if session.dialect is CLASSIC:
                session.dialect = LEGACY
            self.post(session, legacy.Post(path, params.element or params.value, "element"))
        elif params.value and element.is_method:
            raise NotState(path)
        elif params.schema or params.meta != NO_META:
            self.change_described(element, params, params.value or None)
        else:
            self.publish(element, params.value)
        return session.dialect.done

    def change_described(self, element: Element, params: Params, value: bytes | None) -> None:
        """Change the schema of an element, or its value with source time and quality, or both."""
        meta = params.meta
        if value is None and (meta.ts or meta.quality or meta.past):
            raise MissingParam("value")
        source_us, quality = read_meta(meta)
        self._check_quality(quality)
        if read_past(meta) and value is not None and source_us is not None:
            check_past(self._bus, source_us)
            self._count_past(element.owner)
            then = as_json(element, value)
            if is_past(element.meta, source_us) or is_repeated(element, then, source_us, quality):
                if self._bus.record is not None:
                    # A repeated value, too: the present one may have come with an add, long after its time.
                    self._bus.record.append_described(element.path, then, element.owner.label, source_us, quality, True)
                value = None
        if params.schema:
            if element.owner.dialect.has_nodes and params.schema[:1] not in b'"{':
                raise WrongType("params.schema")
            description = describe(element.description, params.schema)
            self._check_description(description)
            self.redescribe(element, description, value, source_us, quality)
        elif value is not None:
            self.publish(element, value, source_us, quality)

    def redescribe(
        self,
        element: Element,
        description: Description,
        value: bytes | None,
        source_us: int | None = None,
        quality: bytes | None = None,
        data: bytes | None = None,
    ) -> None:
        """Replace the description of an element, perhaps with its value, record it and announce it.

        ``data`` has the changed members as peers of 2012 receive them, by default schema and value.
        """
        bus = self._bus
        if value is not None:
            bus.charge_value(element, len(value) + len(quality or b""))
        element.owner.account.charge(measure_description(description) - measure_description(element.description))
        could_be_stale = bool(element.description.stale_s)
        element.description = description
        if value is not None:
            set_value(element, value)
            bus.staleness.renew(element, source_us, quality, bus.now)
        if not element.is_method and (could_be_stale or description.stale_s):
            bus.staleness.end(element)
            bus.staleness.begin(element, bus.now)
        if bus.record is not None:
            record_description(bus.record, element)
            if value is not None:
                label = element.owner.label
                bus.record.append_described(element.path, element.value or b"", label, source_us, quality, False)
        if data is None:
            data = legacy.encode_description(description.schema or b"null", element.value if value else None)
        for audience in element.audiences:
            # Fetches that do not ask see nothing but the value, and only if there is a new one.
            if audience.wants_schema:
                audience.on_described(element, data)
            elif value is not None:
                audience.on_change(element)

    def _count_past(self, session: Session) -> None:
        """Refuse more values of the past in one turn than the journal should take from one peer."""
        bus = self._bus
        if session.past_at != bus.now:
            session.past_at, session.past_count = bus.now, 0
        session.past_count += 1
        if session.past_count > bus.limits.past_values_max:
            raise bus.limit_reached("past_values_max", "too many values of the past at once; wait for an answer")

    def check_described(self, element: Element) -> None:
        """Refuse a new element that is described at too much length."""
        self._check_description(element.description)
        if element.meta is not None:
            self._check_quality(element.meta.quality)

    def _check_description(self, description: Description) -> None:
        if len(description.others) > self._bus.limits.members_max:
            raise self._bus.limit_reached("members_max", "too many members describe the element")
        if description.schema is not None and len(description.schema) > self._bus.limits.schema_bytes_max:
            raise self._bus.limit_reached("schema_bytes_max", "the schema is too long")

    def _check_quality(self, quality: bytes | None) -> None:
        if quality is not None and len(quality) > self._bus.limits.quality_bytes_max:
            raise self._bus.limit_reached("quality_bytes_max", "the quality is too long")

    def post(self, session: Session, post: legacy.Post) -> None:
        """Change any members of an element."""
        element = self._bus.require_owned(session, post.path)
        if post.value and element.is_method:
            raise NotState(post.path)
        if post.type is not None and (post.type == "method") is not element.is_method:
            raise Invalid("type", f"{post.path} keeps its type; remove it and add another element")
        value = bytes(post.value) if post.value else None
        if value is not None and not post.describes:
            self.publish(element, value)
            return
        description = element.description
        if post.others:
            description = replace(description, others={**element.others, **post.others})
        if post.schema is not None:
            description = describe(description, post.schema)
        self._check_description(description)
        self.redescribe(element, description, value, data=post.data)
