-- Signals of alarms: when each was raised and cleared, and which are open.
--
--   {changes}      rows of alarm_changes.sql, with now of their bus
--   {carried}      the newest row of each alarm and path, from carried_alarms, with now of its bus
--   {cuts}         epochs, see cuts.sql
--   :alarms        array: names of the alarms, in the order of their places
--   :severities    array: severity of each
--   :holds_us      array: hold time of each, in microseconds

with
-- Alarms that are open, as rows to go on from. Those that are no longer in the file are forgotten.
open_alarms as (
  select /*+ broadcast(cuts) */
    carried.bus, path, seq, ts, value, unit, cut_seq, cut_ts,
    cast(array_position(:alarms, alarm) as int) - 1 as place,
    true as is_on, false as is_off, coalesce(stale_us, 0L) as stale_us,
    true as carried, what = 'raised' as was_raised, now
  from {carried} carried
  left join {cuts} cuts on carried.bus = cuts.bus and seq > after_seq and seq < cut_seq
  where what in ('raised', 'pending') and array_contains(:alarms, alarm)
),
-- They and what changes.
united as (
  select
    bus, path, seq, ts, value, unit, cut_seq, cut_ts, place, is_on, is_off, stale_us,
    false as carried, false as was_raised, now
  from {changes}
  union all
  select * from open_alarms
),
-- A cut that follows a row is an end for every alarm, so it becomes a row of its own.
with_cuts as (
  select
    place, bus, path, now,
    inline(
      if(
        cut_seq is null,
        array(struct(seq, ts, value, unit, is_on, is_off, stale_us, carried, was_raised)),
        array(
          struct(seq, ts, value, unit, is_on, is_off, stale_us, carried, was_raised),
          struct(
            cut_seq as seq, cut_ts as ts, cast(null as string) as value, cast(null as string) as unit, false as is_on,
            true as is_off, 0L as stale_us, false as carried, false as was_raised
          )
        )
      )
    )
  from united
),
-- Where a run of rows starts and ends. A value that can be stale has two rows, of which the one that ends comes first.
runs as (
  select
    *,
    is_on and not coalesce(lag(is_on) over alarm, false) as begins,
    not is_on and coalesce(lag(is_on) over alarm, false) as ends
  from with_cuts
  window alarm as (partition by place, bus, path order by seq, is_on)
),
-- How long a run lasts, and when its hold time is over. A row that was carried as raised has waited already.
lasting as (
  select
    *,
    coalesce(lead(ts) over alarm, now) as lasts_until,
    lead(ts) over alarm is null as goes_on,
    if(was_raised, ts, timestamp_micros(unix_micros(ts) + element_at(:holds_us, place + 1) + stale_us)) as due
  from runs
  where begins or ends or is_off or carried
  window alarm as (partition by place, bus, path order by seq, is_on)
),
-- What each row says by itself. To be pending decides nothing: decided passes over it.
judged as (
  select
    *,
    case
      when was_raised or (begins and lasts_until >= due) then 'raised'
      when begins and goes_on then 'pending'
      when is_off then 'cleared'
    end as signal,
    case when was_raised or (begins and lasts_until >= due) then 'raised'
      when begins and goes_on then null
      when is_off then 'cleared'
    end as decided
  from lasting
),
-- The state of the alarm before and after each row.
states as (
  select
    *,
    coalesce(last(decided, true) over earlier = 'raised', false) as was_on_before,
    last(decided, true) over so_far as state,
    max(carried) over so_far as was_carried,
    lead(seq) over alarm is null as is_last
  from judged
  window
    alarm as (partition by place, bus, path order by seq, is_on),
    earlier as (
      partition by place, bus, path order by seq, is_on rows between unbounded preceding and 1 preceding
    ),
    so_far as (
      partition by place, bus, path order by seq, is_on rows between unbounded preceding and current row
    )
),
-- Rows that change the state.
news as (
  select
    *,
    coalesce(case signal when 'raised' then not was_on_before when 'cleared' then was_on_before end, false) as is_new
  from states
),
-- The row on which the alarm was raised last, and what the alarm is after each row.
raisings as (
  select
    *,
    last(if(is_new and signal = 'raised', struct(seq, value, unit, due, was_raised), null), true) over so_far as raised,
    coalesce(state = 'raised', false) as is_raised,
    not coalesce(state = 'raised', false) and coalesce(signal = 'pending', false) as is_pending
  from news
  window so_far as (
    partition by place, bus, path order by seq, is_on rows between unbounded preceding and current row
  )
),
-- Rows to report, and rows to carry: only those that say something else than the one that was carried before.
chosen as (
  select
    *,
    is_new and not (signal = 'raised' and was_raised) as is_reported,
    is_last and coalesce(
      case when is_raised then not raised.was_raised when is_pending then not carried end,
      was_carried
    ) as is_carried
  from raisings
)
select
  element_at(:alarms, place + 1) as alarm,
  element_at(:severities, place + 1) as severity,
  bus, path, seq, ts, value, unit, signal, due, stale_us, raised, is_raised, is_pending, is_reported, is_carried
from chosen
where is_reported or is_carried
