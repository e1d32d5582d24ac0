-- Rows with now, the time of their bus at the end of a log.
--
--   {rows}     any rows with bus
--   {times}    bus and now, see bus_times.sql

select /*+ broadcast(times) */ rows.*, times.now
from {rows} rows join {times} times on rows.bus = times.bus
