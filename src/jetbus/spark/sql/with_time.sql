-- Rows with now, the time of their bus at the end of a batch.
--
--   {rows}     any rows with bus
--   :now_us    map: the time of each bus, in microseconds; to look up a constant takes no job, to join a frame does

select *, timestamp_micros(:now_us[bus]) as now
from {rows}
