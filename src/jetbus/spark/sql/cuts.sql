-- Epochs of each bus, each with the cut that ends it: a stop, a start after a crash, or a gap in the record.
--
--   {events}      rows of the table events
--   :before_us    map: the instant up to which a bus was known before these events, in microseconds

with
-- The events that end every value of their bus, once for each bucket of seqs that may have the event before it.
cuts as (
  select bus, seq, ts, event, try_to_timestamp(get_json_object(detail, '$.since')) as since,
    explode(array(floor(seq / 1024), floor(seq / 1024) - 1)) as bucket
  from {events}
  where event in ('stop', 'start', 'gap')
),
-- Each cut with the events of these buckets, itself among them; an equality lets Spark join by hash.
near as (
  select /*+ broadcast(cuts) */ cuts.*, if(events.seq < cuts.seq, events.ts, null) as earlier
  from {events} events
  join cuts on events.bus = cuts.bus and floor(events.seq / 1024) = cuts.bucket and events.seq <= cuts.seq
),
-- The instant up to which values are known: of the event before, of the batch before, or of the cut itself.
known as (
  select bus, seq, ts, event, since, coalesce(max(earlier), timestamp_micros(:before_us[bus]), ts) as last
  from near
  group by bus, seq, ts, event, since
)
-- A stop is the very moment. A start or a gap tells that values had ended by then: since the event before, or since the
-- instant that a gap names, if that is later.
select
  bus,
  coalesce(lag(seq) over (partition by bus order by seq), -1) as after_seq,
  seq as cut_seq,
  case
    when event = 'stop' then ts
    when since is null then last
    else least(greatest(since, last), ts)
  end as cut_ts,
  event as cut_event
from known
