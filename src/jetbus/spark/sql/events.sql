-- Events with their values in columns by type.
--
--   {journal}   rows of a journal, as format jet reads them

with
-- Each value read as a number, and its first character, which tells texts, objects and lists apart.
looked as (
  select *, try_cast(value as double) as number, substring(value, 1, 1) as first
  from {journal}
)
-- A number above the greatest double is infinite: none here. Most texts have no escapes, and only lose their quotes.
select
  bus, seq, ts, event, kind, path, value, peer, detail, source_ts,
  if(startswith(quality, '\u007b'), get_json_object(quality, '$.level'), quality) as quality,
  if(abs(number) < double('infinity'), number, null) as num,
  if(first = '"',
    if(contains(value, '\\'), get_json_object(concat('[', value, ']'), '$[0]'), substring(value, 2, length(value) - 2)),
    null) as text,
  case value when 'true' then true when 'false' then false end as flag
from looked
