-- Rows on which something changes for an alarm: a row for each alarm and event.
--
--   {seen}   events of states in which the column seen has what all alarms see, such as 0+,3-: the place of an alarm in
--            its file and a sign, + on, - off, = neither, ~ on once the value is stale. It is empty if no alarm looks.

with
-- Each row with what was seen before it. Most rows show the same again, and go no further.
compared as (
  select *, lag(seen) over path as before, lag(cut_seq) over path as before_cut
  from {seen}
  where seen != ''
  window path as (partition by path, bus order by seq)
),
-- The signs of single alarms. A new value starts to wait anew until it is stale.
signs as (
  select *, explode(split(seen, ',')) as one
  from compared
  where before is null or before != seen or before_cut < seq or contains(seen, '~')
)
select
  bus, path, seq, ts, value, unit, cut_seq, cut_ts,
  cast(substring(one, 1, length(one) - 1) as int) as place,
  substring(one, -1, 1) in ('+', '~') as is_on,
  substring(one, -1, 1) = '-' as is_off,
  if(substring(one, -1, 1) = '~', stale_us, 0L) as stale_us
from signs
