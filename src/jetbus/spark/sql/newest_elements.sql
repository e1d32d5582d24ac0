-- Carried descriptions that are valid: the newest row of each element.
--
--   {rows}       rows of carried_elements
--   :cut_seqs    map: the last cut of each bus; rows up to it have ended

with
-- An aggregate: each task sends on one row of a path, where a window function would need all of them.
grouped as (
  select max_by(struct(*), seq) as newest
  from {rows}
  where seq > coalesce(:cut_seqs[bus], -1)
  group by bus, path
)
select newest.*
from grouped
where newest.schema is not null
