-- Carried rows that count: those after the last cut of their bus. A cut writes no row for each path that it ends.
--
--   {rows}       carried rows with bus and seq
--   :cut_seqs    map: the last cut of each bus

select *
from {rows}
where seq > coalesce(:cut_seqs[bus], -1)
