-- Views of DuckDB over the tables of one batch: those of values in force and states on the bus have their open rows.
--
-- The schema disk has the tables as they are on disk, and the last cut of each bus as cut_seqs. What a view means is said
-- in sql/NAME.sql, which Spark runs.

-- The newest row of each path that is there; see newest_paths.sql.
create view disk.newest_paths as
select newest.*
from (
  select arg_max(rows, seq) as newest
  from disk.carried_paths as rows
  left join disk.cut_seqs using (bus)
  where seq > coalesce(cut_seq, -1)
  group by bus, path
)
where newest.event != 'remove';

-- Values that have ended, and those in force; see open_values.sql.
create view history as
select * from disk.history
union all by name
select
  bus, path, seq, ts as valid_from, event, value, num, text, flag, peer, source_ts, quality, unit, misfit,
  cast(ts as date) as day
from disk.newest_paths
where kind = 'state';

-- Stays that have ended, and those of states and methods that are there; see open_stays.sql.
create view availability as
select * from disk.availability
union all by name
select
  bus, path, kind, stay.owner as owner, stay.seq as seq, stay.since as since, stay.changes as changes, ts as last_ts,
  stay.quiet_us / 1e6 as quiet_s, cast(stay.since as date) as day
from disk.newest_paths;

-- The newest description of each element, its schema as JSON where it is an object; see newest_elements.sql.
create view disk.newest_elements as
select newest.*, case when json_valid(newest.schema) then cast(newest.schema as json) end as about
from (
  select arg_max(rows, seq) as newest
  from disk.carried_elements as rows
  left join disk.cut_seqs using (bus)
  where seq > coalesce(cut_seq, -1)
  group by bus, path
)
where newest.schema is not null;

-- The number at a place in a JSON text; null if something else is there.
create macro disk.number_at(about, place) as
  case when json_type(about, place) in ('BIGINT', 'UBIGINT', 'HUGEINT', 'DOUBLE')
    then cast(json_extract(about, place) as double) end;

-- Descriptions that have ended, and those that are valid; see elements.sql. A range is one if its ends are in order.
create view elements as
select * from disk.elements
union all by name
select
  bus, path, kind, seq, schema, ts as valid_from, cast(ts as date) as day,
  case when json_type(about, '$.unit') = 'VARCHAR' then json_extract_string(about, '$.unit') end as unit,
  disk.number_at(about, '$.minimum') as minimum,
  disk.number_at(about, '$.maximum') as maximum,
  case when is_range then disk.number_at(about, '$.normal[0]') end as normal_low,
  case when is_range then disk.number_at(about, '$.normal[1]') end as normal_high,
  case when disk.number_at(about, '$.stale') > 0 and disk.number_at(about, '$.stale') <= 31622400
    then disk.number_at(about, '$.stale') end as stale_s
from (
  select
    *,
    json_array_length(about, '$.normal') = 2
      and coalesce(disk.number_at(about, '$.normal[0]') <= disk.number_at(about, '$.normal[1]'), true) as is_range
  from disk.newest_elements
);

-- Alarms that are raised or pending; see newest_alarms.sql.
create view alarms_open as
select newest.* exclude (stale_us)
from (select arg_max(rows, row(seq, ts)) as newest from disk.carried_alarms as rows group by alarm, bus, path)
where newest.what != 'cleared';

-- Every event, with objects and lists as JSON; see documents.sql.
create view events as
select *, case when value[1] in ('{', '[') and json_valid(value) then cast(value as json) end as doc
from disk.events;
