-- Carried rows that a batch needs: those of paths that it touched and of buses that it cut, and pending alarms.
--
--   {rows}         carried rows with bus, path and is_pending
--   {paths}        bus and path of each path that was touched, once; as a broadcast if they are few
--   :cut_buses     array: the buses that were cut

select rows.* except (is_pending)
from {rows} rows
left join (select *, true as is_touched from {paths}) paths on rows.bus = paths.bus and rows.path = paths.path
where is_touched or array_contains(:cut_buses, rows.bus) or is_pending
