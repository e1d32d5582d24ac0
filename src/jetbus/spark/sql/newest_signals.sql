-- The newest row of each alarm and path to publish, null if there is none, and the numbers of rows of both kinds.
--
--   {signals}   rows of alarm_signals.sql

with
-- The rows as the table alarms has them.
reported as (
  select
    alarm, severity, bus, path, signal as what, if(signal = 'raised', due, ts) as ts, seq, value, unit,
    raised.due as raised_at, is_reported, is_carried
  from {signals}
)
select
  alarm, bus, path,
  count_if(is_reported) as reported,
  count_if(is_carried) as carried,
  max_by(struct(what, severity, ts, raised_at, value, unit), struct(seq, ts)) filter (where is_reported) as newest
from reported
group by alarm, bus, path
