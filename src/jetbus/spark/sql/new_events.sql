-- Rows of a batch without the events that are in the tables already; rows of time stay.
--
--   {rows}         rows of a journal, with rows of time
--   :last_seqs     map: the last event of each bus that is in the tables

select *
from {rows}
where event = 'time' or seq > coalesce(:last_seqs[bus], -1)
