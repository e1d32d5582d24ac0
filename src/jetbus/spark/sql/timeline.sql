-- The timeline: events of each path in order, each with what ended it. One sort serves all tables of paths.
--
--   {rows}   rows of timeline_rows.sql, described by descriptions.sql if there are descriptions

with
-- Each row with those before and after it, and totals up to it. A carried change is in the totals of its stay already.
neighbours as (
  select
    *,
    lead(seq) over path as next_seq,
    lead(ts) over path as next_ts,
    lead(event) over path as next_event,
    coalesce(lead(carried) over path, false) as next_carried,
    lag(event) over path as before_event,
    lag(cut_seq) over path as before_cut,
    sum(if(not carried and event = 'change', 1L, 0L)) over so_far as changes,
    sum(if(event = 'change', 0L, 1L)) over so_far as breaks
  from {rows}
  where event != 'describe'
  window
    path as (partition by path, bus order by seq),
    so_far as (partition by path, bus order by seq rows between unbounded preceding and current row)
),
-- What ended each value: the next row of its path, or a cut if that came first. Of several carried rows of a path the
-- newest counts. A stay starts where a path is added, was not there, or was cut off since.
ended as (
  select
    *,
    case
      when next_seq < cut_seq or (next_seq is not null and cut_seq is null) then greatest(ts, next_ts)
      when cut_seq is not null then greatest(ts, cut_ts)
    end as valid_to,
    if(next_seq < cut_seq or (next_seq is not null and cut_seq is null), next_event, cut_event) as ended_by,
    next_seq is null as is_last,
    not carried and event in ('add', 'change')
      and (event = 'add' or before_event is null or before_event = 'remove' or before_cut < seq) as begins,
    carried and event in ('add', 'change') as goes_on
  from neighbours
  where not (carried and next_carried)
),
-- Facts about the stay that each row is part of. These numbers never fall along a path, so the greatest so far is that
-- of the latest stay. An unknown owner is an empty text here, since last passes over nulls.
stays as (
  select
    *,
    max(case when begins then seq when goes_on then stay.seq end) over so_far as stay_seq,
    max(case when begins then ts when goes_on then stay.since end) over so_far as since,
    max(
      case
        when begins then changes - if(not carried and event = 'change', 1L, 0L)
        when goes_on then changes - stay.changes
      end
    ) over so_far as changes_before,
    last(case when begins then coalesce(peer, '') when goes_on then coalesce(stay.owner, '') end, true) over so_far
      as owner,
    max(
      struct(
        coalesce(cut_seq, 9223372036854775807L),
        breaks,
        if(
          event in ('add', 'change'),
          greatest(unix_micros(valid_to) - unix_micros(ts), if(carried, stay.quiet_us, null)),
          null
        ) as gap_us
      )
    ) over so_far.gap_us as quiet_us
  from ended
  window so_far as (partition by path, bus order by seq rows between unbounded preceding and current row)
)
-- Only a row that anything but a change ends, or nothing yet, has the final totals of its stay.
select
  bus, path, seq, ts, event, kind, value, num, text, flag, peer, source_ts, quality, unit, misfit, carried,
  valid_to, ended_by, is_last,
  if(
    event in ('add', 'change') and coalesce(ended_by, '') != 'change',
    named_struct(
      'seq', stay_seq, 'since', since, 'owner', nullif(owner, ''), 'changes', changes - changes_before,
      'quiet_us', quiet_us
    ),
    null
  ) as stay
from stays
