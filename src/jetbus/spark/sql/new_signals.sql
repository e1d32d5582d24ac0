-- The table alarms: a row for each alarm that was raised or cleared.
--
--   {signals}   rows of alarm_signals.sql

select
  alarm, severity, bus, path, signal as what, if(signal = 'raised', due, ts) as ts, seq, value, unit,
  raised.due as raised_at
from {signals}
where is_reported
