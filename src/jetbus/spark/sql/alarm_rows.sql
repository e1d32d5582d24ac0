-- Rows that conditions of alarms look at, not yet described: events of states, and descriptions that were carried.
--
--   {events}   rows of the table events with doc, of the paths that alarms are about
--   {known}    rows of carried_elements, of the same paths
--   {cuts}     epochs, see cuts.sql

with
-- Events and, as if they came again, the newest descriptions.
united as (
  select
    bus, seq, ts, event, kind, path, value, peer, detail, source_ts, quality, num, text, flag, doc,
    if(event in ('add', 'describe'), get_json_object(detail, '$.schema'), null) as schema,
    false as carried
  from {events}
  where event in ('add', 'change', 'remove', 'describe')
  union all
  select
    bus, seq, ts, 'describe', kind, path, null, null, null, null, null, null, null, null, null,
    schema,
    true
  from {known}
)
-- Columns of a description are null until descriptions.sql finds it.
select /*+ broadcast(cuts) */
  united.*, cast(null as string) as unit, cast(null as string) as misfit, cuts.cut_seq, cuts.cut_ts
from united
left join {cuts} cuts on united.bus = cuts.bus and united.seq > cuts.after_seq and united.seq < cuts.cut_seq
