-- The table availability: a row per stay of a state or method; until is null while it is there.
--
--   {line}   rows of timeline.sql

select
  bus, path, kind, stay.owner, stay.seq, stay.since, valid_to as until,
  (unix_micros(valid_to) - unix_micros(stay.since)) / 1e6D as up_s,
  stay.changes, ts as last_ts, stay.quiet_us / 1e6D as quiet_s, ended_by
from {line}
where event in ('add', 'change') and stay is not null
