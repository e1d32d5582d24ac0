-- Rows of the timeline, not yet in order: events of this batch, and what was carried to it.
--
--   {events}     rows of the table events
--   {carried}    rows of carried_paths
--   {known}      rows of carried_elements
--   {cuts}       epochs, see cuts.sql

with
-- Signs of life of a path, and descriptions.
signs as (
  select
    bus, path, seq, ts, event, value, num, text, flag, peer, source_ts, quality,
    coalesce(kind, 'state') as kind,
    cast(null as struct<seq: bigint, since: timestamp, owner: string, changes: bigint, quiet_us: bigint>) as stay,
    cast(null as string) as unit,
    cast(null as string) as misfit,
    false as carried,
    if(event in ('add', 'describe'), get_json_object(detail, '$.schema'), null) as schema
  from {events}
  where event in ('add', 'change', 'remove', 'describe') and path is not null
),
-- The newest rows of paths, which say how they go on; they know already what described them.
open_rows as (
  select
    bus, path, seq, ts, event, value, num, text, flag, peer, source_ts, quality, kind, stay, unit, misfit,
    true as carried,
    cast(null as string) as schema
  from {carried}
),
-- The newest descriptions, as if they came again.
known_rows as (
  select
    bus, path, seq, ts, 'describe' as event, null as value, null as num, null as text, null as flag, null as peer,
    null as source_ts, null as quality, kind, null as stay, null as unit, null as misfit,
    true as carried,
    schema
  from {known}
),
-- All of them.
united as (
  select * from signs union all select * from open_rows union all select * from known_rows
)
select /*+ broadcast(cuts) */
  united.*, cuts.cut_seq, cuts.cut_ts, cuts.cut_event
from united
left join {cuts} cuts on united.bus = cuts.bus and united.seq > cuts.after_seq and united.seq < cuts.cut_seq
