-- Requests one by one: those of this batch, and of minutes that it ends.
--
--   {events}       rows of the table events
--   {carried}      rows of carried_requests
--   :before_us     map: the time of each bus before this batch, in microseconds
--   :now_us        map: the time of each bus after it

with
-- Requests by minute. A peer is named name#17, with the number of its connection; callers are counted by name.
asked as (
  select
    bus, timestamp_micros(unix_micros(ts) - pmod(unix_micros(ts), 60000000L)) as window_start, event, path,
    coalesce(nullif(regexp_replace(peer, '#[0-9]+$', ''), ''), peer) as caller,
    from_json(detail, 'outcome string, us bigint') as answer
  from {events}
  where event in ('set', 'call')
)
select bus, window_start, event, path, caller, coalesce(answer.outcome = 'error', false) as failed, answer.us
from asked
union all
select bus, window_start, event, path, caller, failed, us
from {carried}
where unix_micros(window_start) + 60000000L > :before_us[bus] and unix_micros(window_start) + 60000000L <= :now_us[bus]
