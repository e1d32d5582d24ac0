-- Rows of carried_requests: requests of minutes that are not over.
--
--   {rows}   rows of request_rows.sql, with now of their bus

select bus, window_start, event, path, caller, failed, us
from {rows}
where unix_micros(window_start) + 60000000L > unix_micros(now)
