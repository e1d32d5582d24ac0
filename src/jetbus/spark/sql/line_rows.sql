-- Rows of a timeline that any table needs, with the columns of history first.
--
--   {line}   rows of timeline.sql

select
  bus, path, seq, ts as valid_from, valid_to, event, ended_by, value, num, text, flag, peer, source_ts, quality, unit,
  misfit, kind, if(event in ('add', 'change'), stay, null) as stay, is_last, carried
from {line}
where (event in ('add', 'change') and kind = 'state') or stay is not null or is_last
