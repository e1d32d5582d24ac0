-- The time of each bus at the end of a log.
--
--   {events}     rows of the table events
--   :until_us    nothing more came until this instant, in microseconds; 0 if that is not known

select bus, greatest(max(ts), timestamp_micros(:until_us)) as now
from {events}
group by bus
