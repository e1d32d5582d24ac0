-- Values in force, in the columns of the table history.
--
--   {paths}   rows of newest_paths.sql

select
  bus, path, seq, ts as valid_from, cast(null as timestamp) as valid_to, event, cast(null as string) as ended_by,
  value, num, text, flag, peer, source_ts, quality, unit, misfit
from {paths}
where kind = 'state'
