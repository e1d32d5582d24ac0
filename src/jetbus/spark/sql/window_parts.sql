-- Parts of windows of 1 s, 1 min and 1 h: sums of this batch, and those that were carried of windows that it ends.
--
--   {values}        rows of the table history, among them values in force, whose valid_to is null
--   {carried}       rows of carried_windows
--   :before_seqs    map: the last event of each bus before this batch; values up to it are in the parts already
--   :before_us      map: the time of each bus before this batch, in microseconds
--   :now_us         map: the time of each bus after it

with
-- Values that are numbers; true and false are 1 and 0. A value whose quality is bad is none.
numbers as (
  select
    bus, path, seq, coalesce(num, cast(cast(flag as int) as double)) as x, unit,
    unix_micros(valid_from) as begin_us,
    unix_micros(valid_to) as end_us,
    coalesce(quality, 'good') = 'good' as good,
    seq > coalesce(:before_seqs[bus], -1) as is_new
  from {values}
  where coalesce(num, cast(cast(flag as int) as double)) is not null and coalesce(quality, 'good') != 'bad'
),
-- The windows that each value came in and ended in. All of it is computed before the elements below, each once: Java
-- does not compile generated code above 8 KB.
placed as (
  select
    *,
    begin_us - pmod(begin_us, 1000000L) as begun_1s,
    begin_us - pmod(begin_us, 60000000L) as begun_1m,
    begin_us - pmod(begin_us, 3600000000L) as begun_1h,
    end_us - pmod(end_us, 1000000L) as ended_1s,
    end_us - pmod(end_us, 60000000L) as ended_1m,
    end_us - pmod(end_us, 3600000000L) as ended_1h
  from numbers
),
-- Elements of a value: its head in the second it came in, the tail in the window it ended in, and the time by which a
-- carried value ended before its window did, which is taken back. Most values have a head only.
elements as (
  select
    bus, path, seq, x, unit, good,
    least(coalesce(end_us, begun_1s + 1000000L), begun_1s + 1000000L) - begin_us as head_1s,
    least(coalesce(end_us, begun_1m + 60000000L), begun_1m + 60000000L) - begin_us as head_1m,
    least(coalesce(end_us, begun_1h + 3600000000L), begun_1h + 3600000000L) - begin_us as head_1h,
    explode(
      if(
        is_new and coalesce(begun_1s = ended_1s, true),
        array(struct('1s' as size, begun_1s as start_us, true as came, 0L as us)),
        array(
          if(is_new, struct('1s' as size, begun_1s as start_us, true as came, 0L as us), null),
          if(ended_1s > begin_us and end_us > ended_1s,
            struct('1s' as size, ended_1s as start_us, false as came, end_us - ended_1s as us), null),
          if(not is_new and end_us - begun_1s - 1000000L < 0,
            struct('1s' as size, begun_1s as start_us, false as came, end_us - begun_1s - 1000000L as us), null),
          if(ended_1m > begin_us and end_us > ended_1m,
            struct('1m' as size, ended_1m as start_us, false as came, end_us - ended_1m as us), null),
          if(not is_new and end_us - begun_1m - 60000000L < 0,
            struct('1m' as size, begun_1m as start_us, false as came, end_us - begun_1m - 60000000L as us), null),
          if(ended_1h > begin_us and end_us > ended_1h,
            struct('1h' as size, ended_1h as start_us, false as came, end_us - ended_1h as us), null),
          if(not is_new and end_us - begun_1h - 3600000000L < 0,
            struct('1h' as size, begun_1h as start_us, false as came, end_us - begun_1h - 3600000000L as us), null)
        )
      )
    ) as part
  from placed
),
-- Sums by second, each with the weight of its heads in the minute and the hour, too; tails by their own window. By
-- unit, too: texts that are no keys would keep Spark from summing up by hash.
seconds as (
  select
    bus, path, part.size, part.start_us, unit,
    count_if(part.came) as count,
    min(if(part.came, x, null)) as min,
    max(if(part.came, x, null)) as max,
    avg(if(part.came, x, null)) as mean,
    coalesce(var_pop(if(part.came, x, null)) * count_if(part.came), 0D) as squares,
    min_by(x, if(part.came, seq, null)) as first,
    max_by(x, if(part.came, seq, null)) as last,
    min(if(part.came, seq, null)) as first_seq,
    max(if(part.came, seq, null)) as last_seq,
    sum(if(part.came, head_1s, if(part.size = '1s', part.us, 0L))) as us_1s,
    sum(if(part.came, head_1m, if(part.size = '1m', part.us, 0L))) as us_1m,
    sum(if(part.came, head_1h, if(part.size = '1h', part.us, 0L))) as us_1h,
    sum(x * if(part.came, head_1s, if(part.size = '1s', part.us, 0L)) / 1e6D) as area_1s,
    sum(x * if(part.came, head_1m, if(part.size = '1m', part.us, 0L)) / 1e6D) as area_1m,
    sum(x * if(part.came, head_1h, if(part.size = '1h', part.us, 0L)) / 1e6D) as area_1h,
    sum(if(good, if(part.came, head_1s, if(part.size = '1s', part.us, 0L)), 0L)) as good_1s,
    sum(if(good, if(part.came, head_1m, if(part.size = '1m', part.us, 0L)), 0L)) as good_1m,
    sum(if(good, if(part.came, head_1h, if(part.size = '1h', part.us, 0L)), 0L)) as good_1h
  from elements
  where part is not null
  group by bus, path, part.size, part.start_us, unit
),
-- Parts of windows of every size, from the sums by second; a tail is part of its own window only.
sized as (
  select
    bus, path, count, min, max, mean, squares, first, last, first_seq, last_seq, unit,
    explode(
      array(
        if(size = '1s',
          struct('1s' as size, start_us, us_1s as known_us, good_1s as good_us, area_1s as area), null),
        if(size = '1m' or count > 0,
          struct('1m' as size, start_us - pmod(start_us, 60000000L) as start_us, us_1m as known_us,
            good_1m as good_us, area_1m as area), null),
        if(size = '1h' or count > 0,
          struct('1h' as size, start_us - pmod(start_us, 3600000000L) as start_us, us_1h as known_us,
            good_1h as good_us, area_1h as area), null)
      )
    ) as part
  from seconds
),
-- They, and those that were carried of windows that end now: each carried part is read by one batch only.
united as (
  select
    bus, path, part.size, part.start_us, count, min, max, mean, squares, part.known_us, part.good_us, part.area,
    first, last, first_seq, last_seq, unit
  from sized
  where part is not null
  union all
  select
    bus, path, size, start_us, count, min, max, mean, squares, known_us, good_us, area,
    first, last, first_seq, last_seq, unit
  from {carried}
  where start_us + case size when '1s' then 1000000L when '1m' then 60000000L else 3600000000L end > :before_us[bus]
    and start_us + case size when '1s' then 1000000L when '1m' then 60000000L else 3600000000L end <= :now_us[bus]
),
-- The mean of each window. Sorted by one number first: to compare long paths takes longer than all sums.
averaged as (
  select
    *,
    sum(count * mean) over same / nullif(sum(count) over same, 0) as common
  from (select *, xxhash64(bus, path, size, start_us) as key from united)
  window same as (partition by key, bus, path, size, start_us)
)
-- Squared distances are moved to the common mean before they are added: sums of squares would lose all digits of large
-- numbers that differ little.
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
group by key, bus, path, size, start_us
