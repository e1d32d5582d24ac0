-- The table elements: a row per time that a description was valid.
--
--   {rows}   descriptions with bus, path, kind, seq, schema, ts and valid_to, see element_rows.sql

with
-- Schemas, parsed.
parsed as (
  select
    *,
    from_json(
      schema,
      'unit string, minimum double, maximum double, normal array<double>, stale double',
      map('allowNonNumericNumbers', 'false')
    ) as about
  from {rows}
  where schema is not null
),
-- Whether the range that is normal is one.
ranged as (
  select *, size(about.normal) = 2 and coalesce(get(about.normal, 0) <= get(about.normal, 1), true) as is_range
  from parsed
)
-- Members that are malformed are null.
select
  bus, path, kind, seq, schema,
  about.unit as unit,
  about.minimum as minimum,
  about.maximum as maximum,
  if(is_range, get(about.normal, 0), null) as normal_low,
  if(is_range, get(about.normal, 1), null) as normal_high,
  if(about.stale > 0 and about.stale <= 31622400D, about.stale, null) as stale_s,
  ts as valid_from, valid_to
from ranged
