-- Windows of any length, over or not, in the columns of the table rollups, from all rows of history at once.
--
--   {values}    rows of the table history
--   :size       name of the length
--   :size_us    the length in microseconds

with
-- Values that are numbers, and where the windows start that each came in and ended in.
numbers as (
  select
    bus, path, seq, coalesce(num, cast(cast(flag as int) as double)) as x, unit,
    coalesce(quality, 'good') = 'good' as good,
    unix_micros(valid_from) as begin_us,
    unix_micros(valid_to) as end_us,
    unix_micros(valid_from) - pmod(unix_micros(valid_from), :size_us) as begun,
    unix_micros(valid_from) - pmod(unix_micros(valid_from), :size_us) + :size_us as next,
    unix_micros(valid_to) - pmod(unix_micros(valid_to), :size_us) as ended
  from {values}
  where coalesce(num, cast(cast(flag as int) as double)) is not null and coalesce(quality, 'good') != 'bad'
),
-- The head of each value in the window it came in, and its tail in the one it ended in, if that is a later one.
parts as (
  select
    bus, path, seq, x, unit, good,
    inline(
      if(
        end_us is not null and ended > begin_us and end_us > ended,
        array(
          struct(begun as start_us, true as came, least(coalesce(end_us, next), next) - begin_us as us),
          struct(ended as start_us, false as came, end_us - ended as us)
        ),
        array(struct(begun as start_us, true as came, least(coalesce(end_us, next), next) - begin_us as us))
      )
    )
  from numbers
),
-- A tail weighs in its window, but is none of the values that came there.
summed as (
  select
    bus, path, start_us,
    count_if(came) as count,
    min(if(came, x, null)) as min,
    max(if(came, x, null)) as max,
    avg(if(came, x, null)) as mean,
    sum(us) as us,
    sum(x * us / 1e6D) as area,
    sum(if(good, us, 0L)) as good_us,
    min_by(x, if(came, seq, null)) as first,
    max_by(x, if(came, seq, null)) as last,
    stddev_samp(if(came, x, null)) as stddev,
    max_by(unit, if(came, seq, null)) as unit
  from parts
  group by bus, path, start_us
)
select
  bus, path, :size as size, timestamp_micros(start_us) as window_start,
  timestamp_micros(start_us + :size_us) as window_end,
  count, min, max, mean, if(us > 0, area / (us / 1e6D), null) as time_mean,
  us / 1e6D as known_s, good_us / 1e6D as good_s, first, last, stddev, unit
from summed
where count > 0
