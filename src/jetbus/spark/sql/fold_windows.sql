-- Rows of carried_windows with the parts of each window that is still open added up.
--
--   {parts}   rows of carried_windows, with now of their bus

with
-- Parts of open windows, with the mean of each window.
averaged as (
  select *, sum(count * mean) over same / nullif(sum(count) over same, 0) as common
  from {parts}
  where start_us + case size when '1s' then 1000000L when '1m' then 60000000L else 3600000000L end > unix_micros(now)
  window same as (partition by bus, path, size, start_us)
)
-- As in window_parts.sql.
select
  bus, path, size, start_us,
  sum(count) as count,
  min(min) as min,
  max(max) as max,
  first(common) as mean,
  sum(squares + coalesce(count * (mean - common) * (mean - common), 0D)) as squares,
  sum(known_us) as known_us,
  sum(good_us) as good_us,
  sum(area) as area,
  min_by(first, first_seq) as first,
  max_by(last, last_seq) as last,
  min(first_seq) as first_seq,
  max(last_seq) as last_seq,
  max_by(unit, last_seq) as unit
from averaged
group by bus, path, size, start_us
