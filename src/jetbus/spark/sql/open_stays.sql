-- States and methods that are there, in the columns of the table availability.
--
--   {paths}   rows of newest_paths.sql

select
  bus, path, kind, stay.owner, stay.seq, stay.since, cast(null as timestamp) as until, cast(null as double) as up_s,
  stay.changes, ts as last_ts, stay.quiet_us / 1e6D as quiet_s, cast(null as string) as ended_by
from {paths}
