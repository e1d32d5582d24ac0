-- Events with the column doc: objects and lists, parsed.
--
--   {events}   rows of the table events

select *, if(substring(value, 1, 1) in ('\u007b', '['), try_parse_json(value), null) as doc
from {events}
