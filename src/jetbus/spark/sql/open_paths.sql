-- Rows of carried_paths: the newest of each path that is there, or that it has gone.
--
--   {line}   rows of timeline.sql

select bus, path, seq, ts, event, kind, value, num, text, flag, peer, stay, source_ts, quality, unit, misfit
from {line}
where is_last and ((event in ('add', 'change') and ended_by is null) or (event = 'remove' and not carried))
