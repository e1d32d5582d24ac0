-- Carried alarms that are raised or pending: the newest row of each alarm and path.
--
--   {rows}   rows of carried_alarms

with
-- A pending alarm that is raised keeps the number of its event, and is later by its hold time.
grouped as (
  select max_by(struct(*), struct(seq, ts)) as newest
  from {rows}
  group by alarm, bus, path
)
select newest.*
from grouped
where newest.what != 'cleared'
