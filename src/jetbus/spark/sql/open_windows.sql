-- Rows of carried_windows: parts of windows that are not over.
--
--   {parts}   rows of window_parts.sql, with now of their bus

select
  bus, path, size, start_us, count, min, max, mean, squares, known_us, good_us, area, first, last, first_seq, last_seq,
  unit
from {parts}
where start_us + case size when '1s' then 1000000L when '1m' then 60000000L else 3600000000L end > unix_micros(now)
