-- Extent and contents of a batch: a row for each bus.
--
--   {rows}      rows of the batch, rows of time included, with is_event, true for those that are events of the tables
--   :has_end    true if journals go on after the end of what is read: rows of time then tell nothing of seqs
--   :prefix     path below which the pipeline publishes, with a slash; empty if it does not

with
-- Rows with the seq that counts, and whether anybody else caused them: publishing and reading from afar leave events.
marked as (
  select
    *,
    if(:has_end and event = 'time', null, seq) as told_seq,
    :prefix = '' or not (coalesce(startswith(path, :prefix), false) or event in ('peer', 'gone')) as is_other
  from {rows}
)
-- Stages that have no events start no job.
select
  bus,
  max(unix_micros(ts)) as us,
  min(told_seq) as first_seq,
  max(told_seq) as last_seq,
  max(if(is_event and event in ('stop', 'start', 'gap'), seq, null)) as cut_seq,
  count_if(is_event) as events,
  count_if(is_event and event in ('add', 'change', 'remove')) as signs,
  count_if(is_event and event in ('add', 'remove')) as stays,
  count_if(is_event and event in ('add', 'describe', 'remove')) as describes,
  count_if(is_event and event in ('add', 'describe') and contains(detail, '"schema"')) as schemas,
  count_if(is_event and event in ('set', 'call')) as requests,
  count_if(is_event and is_other) as foreign
from marked
group by bus
