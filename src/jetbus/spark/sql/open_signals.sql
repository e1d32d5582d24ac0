-- Rows of carried_alarms: alarms that are raised or pending now, and those that are no longer.
--
--   {signals}   rows of alarm_signals.sql

select
  alarm, severity, bus, path,
  case when is_raised then 'raised' when is_pending then 'pending' else 'cleared' end as what,
  if(is_raised, raised.due, ts) as ts,
  if(is_raised, raised.seq, seq) as seq,
  case when is_raised then raised.value when is_pending then value end as value,
  case when is_raised then raised.unit when is_pending then unit end as unit,
  if(is_raised, raised.due, null) as raised_at,
  if(is_pending, stale_us, null) as stale_us
from {signals}
where is_carried
