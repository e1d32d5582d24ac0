-- Descriptions of each element in order, each with the end of its validity.
--
--   {events}   rows of the table events
--   {known}    rows of carried_elements
--   {cuts}     epochs, see cuts.sql

with
-- Events that start or end a description, and the newest descriptions from before.
united as (
  select
    bus, path, seq, ts, event, kind,
    if(event in ('add', 'describe'), get_json_object(detail, '$.schema'), null) as schema,
    false as carried
  from {events}
  where event in ('add', 'describe', 'remove') and path is not null
  union all
  select bus, path, seq, ts, event, kind, schema, true as carried
  from {known}
),
-- Each with the cut after it.
cut_rows as (
  select /*+ broadcast(cuts) */
    united.*, cuts.cut_seq, cuts.cut_ts
  from united
  left join {cuts} cuts on united.bus = cuts.bus and united.seq > cuts.after_seq and united.seq < cuts.cut_seq
),
-- Each with the row after it.
neighbours as (
  select
    *,
    lead(seq) over path as next_seq,
    lead(ts) over path as next_ts,
    coalesce(lead(carried) over path, false) as next_carried,
    max(carried) over (partition by path, bus order by seq rows between unbounded preceding and current row)
      as was_known
  from cut_rows
  window path as (partition by path, bus order by seq)
)
-- Of several carried rows of an element the newest counts.
select
  bus, path, seq, ts, event, kind, schema, carried, next_seq, cut_seq, was_known,
  case
    when next_seq < cut_seq or (next_seq is not null and cut_seq is null) then greatest(ts, next_ts)
    when cut_seq is not null then greatest(ts, cut_ts)
  end as valid_to
from neighbours
where not (carried and next_carried)
