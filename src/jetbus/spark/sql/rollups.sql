-- The table rollups: windows that are over. A window in which no value came has no row, even if one weighs in it.
--
--   {parts}   rows of window_parts.sql, with now of their bus

with
-- The end of each window.
sized as (
  select *, start_us + case size when '1s' then 1000000L when '1m' then 60000000L else 3600000000L end as end_us
  from {parts}
)
select
  bus, path, size, timestamp_micros(start_us) as window_start, timestamp_micros(end_us) as window_end,
  count, min, max, mean,
  if(known_us > 0, area / (known_us / 1e6D), null) as time_mean,
  known_us / 1e6D as known_s,
  good_us / 1e6D as good_s,
  first, last,
  if(count > 1, sqrt(squares / (count - 1)), null) as stddev,
  unit
from sized
where end_us <= unix_micros(now) and count > 0
