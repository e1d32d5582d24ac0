-- The table history: a row per value of a state; valid_to is null while it is in force.
--
--   {line}   rows of timeline.sql

select
  bus, path, seq, ts as valid_from, valid_to, event, ended_by, value, num, text, flag, peer, source_ts, quality, unit,
  misfit
from {line}
where event in ('add', 'change') and kind = 'state'
