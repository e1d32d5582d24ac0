-- The table requests: counts per minute, path and caller, of minutes that are over.
--
--   {rows}   rows of request_rows.sql, with now of their bus

with
-- Sums and exact percentiles.
counted as (
  select
    bus, window_start, event, path, caller,
    count(*) as count,
    count_if(failed) as errors,
    count_if(failed) / count(*) as error_rate,
    min(us) as us_min,
    avg(us) as us_mean,
    percentile(us, array(0.5, 0.9, 0.99)) as shares,
    max(us) as us_max
  from {rows}
  where unix_micros(window_start) + 60000000L <= unix_micros(now)
  group by bus, window_start, event, path, caller
)
select
  bus, window_start, event, path, caller, count, errors, error_rate, us_min, us_mean,
  shares[0] as us_p50, shares[1] as us_p90, shares[2] as us_p99, us_max
from counted
