-- Rows of carried_elements: descriptions that are valid now, and that one which was carried is no longer.
--
--   {rows}   rows of element_rows.sql

select bus, path, seq, ts, event, kind, schema
from {rows}
where not carried and next_seq is null and cut_seq is null and (schema is not null or was_known)
