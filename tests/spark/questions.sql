select * from events order by bus, seq
select path, count(*) n from events group by path order by path
select bus, event, count(*), count(distinct path), sum(num), avg(num) from events group by bus, event order by 1, 2
select path, avg(num) as mean from events group by path having count(*) > 1 order by mean desc nulls last, path
select distinct event from events order by event desc limit 2 offset 1
select count_if(num > 1), count(num) filter (where bus = 'plant'), max_by(value, seq), min_by(value, seq) from events
select percentile_approx(num, 0.5), percentile_approx(num, array(0.1, 0.9), 100), approx_count_distinct(path) from events
select stddev(num), var_pop(num), corr(num, seq), skewness(num), kurtosis(num), regr_slope(num, seq) from events
select any_value(bus), first(event, true), last(event), bool_and(num > 0), every(seq > 0), bit_or(seq) from events
select seq, lag(num) over w, lead(num, 2, 0) over w from events window w as (partition by path order by seq) order by bus, seq
select seq, row_number() over (partition by bus order by ts desc) r, rank() over (order by event) from events order by 1, 2, 3
select seq, sum(num) over (order by ts rows between 2 preceding and current row) from events order by ts
select seq, avg(num) over (order by ts range between interval 1 minute preceding and current row) from events order by ts
select seq, sum(num) over (order by ts rows 1 preceding), ntile(2) over (order by ts) from events order by ts
select seq, last_value(num) ignore nulls over (partition by path order by ts) from events order by ts
select path, seq from events qualify row_number() over (partition by path order by seq desc) = 1 order by path
select e.path, h.valid_to from events e join history h on e.bus = h.bus and e.seq = h.seq order by e.ts
select path, valid_to from events join history using (bus, path, seq) order by bus, seq
select e.seq, h.num from events e left outer join history h on e.path = h.path and h.num > 1 order by 1, 2
select count(*) from events e full outer join history h on e.seq = h.seq and e.bus = h.bus and h.num is not null
select path from events e left semi join history h on e.seq = h.seq and h.num > 1 order by path
select path from events e left anti join history h on e.path = h.path and h.valid_to is not null order by path
select path from history natural right join events order by bus, seq
select e.path from events e where exists (select 1 from history h where h.path = e.path and h.num > 1) order by seq
select path from events where seq not in (select seq from history where num > 1) order by bus, seq
select path, (select max(num) from history h where h.path = e.path) as top from events e order by bus, seq
select path from events where (bus, seq) in (select bus, max(seq) from events group by bus) order by path
select path from events where num = (select max(num) from events)
with a as (select path, num from events), b(p, n) as (select path, sum(num) from a group by path) select * from b order by p
with a as (select * from events) select x.path from a x join a y on x.seq = y.seq and x.bus = y.bus order by x.bus, x.seq
select * from (select bus, event, num from events) pivot (sum(num) for event in ('add', 'change')) order by bus
select * from (select bus, event, num from events) pivot (sum(num) as s, count(*) as c for event in ('add' as a, 'change' as c)) order by bus
select * from (select bus, seq, num from events) unpivot (v for n in (seq, num)) order by bus, n, v
select bus, event, sum(num), grouping_id() from events group by rollup(bus, event) order by 1, 2, 4
select bus, event, count(*) from events group by cube(bus, event) order by 1, 2, 3
select bus, event, count(*) from events group by grouping sets ((bus), (bus, event), ()) order by 1, 2, 3
select bus, event, count(*) from events group by bus, event with rollup order by 1, 2, 3
select bus, event, count(*) from events group by all order by all
select path from events union select path from history order by path
select path from events union all select path from history order by 1
select path from events intersect select path from history where num > 1
select path from events except select path from history where num > 1 order by path
select path from events minus (select 'note') order by path
select 1 as a union all select 2 intersect select 2 order by a
(select path from events order by seq limit 1) union all (select 'x') order by 1
from events select path where num > 1
select path, x from events lateral view explode(array(seq, num)) t as x order by bus, seq, x
select p, x from events lateral view outer posexplode(from_json(get_json_object(value, '$.by'), 'array<string>')) t as p, x order by 1, 2
select explode(map('a', 1, 'b', 2)) from events where seq = 4
select * from values (1, 'a'), (2, 'b') as t(n, s) order by n
select t.n + 1 from (values (1), (2)) as t(n) order by 1
select date_trunc('hour', ts) as h, count(*) from events group by date_trunc('hour', ts) order by h
select to_date(ts), date(ts), year(ts), month(ts), day(ts), hour(ts), minute(ts), second(ts), dayofweek(ts) from events order by ts
select extract(hour from ts) as h, extract(week from ts) as w, date_part('minute', ts), weekofyear(ts), last_day(ts) from events order by ts
select ts + interval 1 hour, ts - interval '5' minute, ts + interval '1 day 2 hours', ts - interval '2' day from events order by ts
select ts - timestamp '2026-03-01 00:00:00' as a, date '2026-03-01' + interval 1 month as b, date '2026-03-01' + 3 as c from events order by ts
select ts - lag(ts) over (order by ts) from events order by ts
select timestampdiff(second, timestamp '2026-03-01', ts) as a, datediff(ts, '2026-02-01'), datediff(day, date '2026-01-01', ts) as b from events order by ts
select dateadd(day, 2, ts), date_add(ts, 1), date_sub(ts, 1), add_months(ts, 1), months_between(ts, date '2026-01-01') as m from events order by ts
select unix_timestamp(ts), unix_micros(ts), from_unixtime(0), timestamp_millis(1500), to_timestamp('2026-03-01 01:02', 'yyyy-MM-dd HH:mm') from events order by ts
select date_format(ts, 'yyyy/MM/dd HH:mm:ss.SSS'), to_timestamp('2026-03-01T00:00:00Z'), trunc(ts, 'MM'), from_utc_timestamp(ts, 'CET') from events order by ts
select window(ts, '1 hour') as w, count(*) from events group by w order by w
select count(*) from events where ts between '2026-03-01' and timestamp '2026-03-01 12:00:00' and ts >= date '2026-03-01'
select count(*) from events where ts > current_timestamp or ts < current_timestamp() - interval 1 day or to_date(ts) = current_date
select case when num > 1 then 'high' when num is null then null else 'low' end, case event when 'add' then 1 else 0 end from events order by bus, seq
select if(num > 1, 1, 0), coalesce(num, -1), nvl(num, 0), nullif(num, 1), nvl2(num, 1, 2), greatest(num, 2), least(num, seq), isnull(num) from events order by bus, seq
select cast(num as int), cast(seq as double) / 3, num::string, try_cast(value as double), cast('2026-03-01' as date), cast(num as decimal(10, 2)), double('1.5'), int('3'), string(seq) from events order by bus, seq
select 1L as l, 1.5D as d, 1e3, 1.5BD as bd, .5, 2S as s, 3Y as y, 1F as f, -1, - -1, 1 - -1, 100000000000, 0.1 + 0.2
select 7 / 2, 7 div 2, 7 % 2, mod(7, 2), pmod(-7, 2), 2 + 3 * 4, (2 + 3) * 4, - 2 * 3, 1 - (2 - 3), 8 / (4 / 2), 5 & 3 | 4 ^ 1, ~5
select not true and false, not (true and false), true or false and false, 1 = 1 and not 2 <> 3, not 1 in (1, 2), null <=> null, 1 is distinct from null
select round(num, 1), round(-1234.5, -2), bround(2.5), ceil(num), floor(num), abs(-num), sqrt(num), pow(num, 2), exp(0), ln(1), log(2, 8), log10(100), sign(num) from events order by bus, seq
select path like 'tank/%', path like '%e%', path not like 'n_te', path ilike 'TANK%', path like 'a!_b' escape '!', contains(path, 'an'), startswith(path, 'ta'), endswith(path, 'l') from events order by bus, seq
select path from events where path in ('note', 'it''s') or path = "tank/level" and not num is null order by bus, seq
select upper(path), lower(path), initcap(path), length(path), substring(path, 2, 3), substr(path, -2), left(path, 2), right(path, 2), trim(' x '), reverse(path) from events order by bus, seq
select concat(bus, '/', path), bus || '/' || path, concat_ws('-', bus, path), replace(path, '/', '.'), split_part(path, '/', 1), substring_index(path, '/', -1), instr(path, '/'), translate(path, 'e', 'E') from events order by bus, seq
select md5(path), sha2(path, 256), hash(path), xxhash64(path), crc32(path), hex(seq) from events order by bus, seq
select get_json_object(value, '$.n.a'), variant_get(doc, '$.by[1]', 'double'), try_variant_get(doc, '$.n.a', 'int'), schema_of_variant(doc) from events order by bus, seq
select parse_json('{"a": [1, 2]}'), to_json(named_struct('a', 1, 'b', bus)), from_json(value, 'n struct<a: int>').n.a, json_array_length('[1, 2]') from events order by bus, seq
select array(1, 2)[0], element_at(array(1, 2), -1), size(array(1)), array_contains(array(1, 2), 2), sort_array(array(2, 1), false), slice(array(1, 2, 3), 2, 2), array_max(array(1, 3)), array_join(array('a', 'b'), '-')
select map('a', 1)['a'], map_keys(map('a', 1)), map_values(map('a', 1)), struct(seq as s, bus).s, named_struct('x', 1).x, struct(1, 2).col1, map_contains_key(map('a', 1), 'a') from events where seq = 4
select cast(array('1') as array<int>), cast(map('a', '1') as map<string, int>), cast(named_struct('a', '1') as struct<a: int>), typeof(1)
select * except (doc, value) from events order by bus, seq
select e.*, e.seq + 1 as next from events as e where e.bus = 'lab' order by seq
select seq + 1 as a, a * 2 as b, b - a from events order by bus, seq
select count(*) from events tablesample (100 percent) as s
select max(struct(ts, path)).path, max(named_struct('n', num, 'p', path)).p from events
select sum(distinct num), count(distinct bus, event), count(1), sum(case when event = 'add' then 1 end) from events
select 'it''s', "it's", 'say "hi"', "a""b", 'a -- b', 'a /* b */', ';', '%', '', "a''b", 'ä€😀', '`', ':x ? {y}'
select `path`, events.`num` as `a b`, 1 as `select` from events order by bus, seq
select num from events order by num asc nulls last, seq desc nulls first
select num from events order by num desc nulls first, seq
select num from events order by num nulls last, seq
select cast(1234 as varchar(2)) as v, cast(1234 as char(6)) as c, cast(1 as long) as l, cast(1 as byte) as b, cast(1 as short) as s, cast(1 as real) as r, cast('x' as binary) as bi, cast(1 as numeric(5,2)) as n, cast(1 as dec(5,2)) as d, cast(1 as integer) as i
values (1, 'a'), (2, 'b')
select num from events limit all
select all bus from events order by bus
select num is unknown from events order by seq, bus
select 1 not between 2 and 3, null is not true, null is not false, 1 is not distinct from 1, (null is null) = true, not null <=> null
select grouping(bus), count(*) from events group by bus with cube order by 1, 2
select count(all num), count(*) over () from events
select 1 having count(*) > 0
select * from (select 1 as a union all select 2) x(b) order by b
select (select 1 as a union select 1), (select max(x) from (values (1), (2)) as t(x))
select 1 as a union all (select 2 union select 2) order by a
(select 1 as a union all select 3) except (select 3 intersect select 3) order by a limit 2
select first_value(num, true) over (order by ts), nth_value(num, 2) over (order by ts) from events order by ts
select count(*) filter (where num > 1) over (partition by bus) from events order by bus, seq
select * from (select bus, event, seq, num from events) pivot (sum(num) for (bus, event) in (('plant', 'add') as pa, ('lab', 'add') as la)) order by seq
select * from (select seq, num as a, num * 2 as b from events) unpivot ((x, y) for n in ((a, b) as ab)) order by seq, x
select * from events e join history h using (bus, seq) join events f using (bus, seq) order by bus, seq
select date '2026-03-03' - date '2026-03-01' as d, timestamp '2026-03-01' < '2026-03-02' as t, date('2026-03-01') = '2026-03-01'
select 10 - (4 - 3), 12 / (3 * 2), -(1 + 2), 2 * -3, 10 % (4 % 3), 10 - 4 - 3, 2 + 3 || 'x'
select not (1 = 2), (true or false) and false, not (1 in (1)), 1 in (1 + 0, 2), case when 1 = 1 then case when 2 = 3 then 1 else 2 end end
select array(array(1), array(2))[1][0], map('a', array(1))['a'][0], named_struct('a', named_struct('b', 1)).a.b, array(named_struct('a', 1)).a
select if(1 > 2, 'a', if(2 > 1, 'b', 'c')), nanvl(double('nan'), 0), isnan(double('nan')), double('infinity'), cast('-inf' as double) as x
select left(path, 1), right(path, 1), `left`.path from events `left` order by seq, bus
select seq as `order`, num as `a.b`, bus as `x y` from events order by `order`, `x y`
select e.ts as day, count(*) as second from events e group by day order by day
select hour from (select hour(ts) as hour, ts from events) order by ts
select date, timestamp from (select to_date(ts) as date, ts as timestamp from events) order by timestamp
select max(ts) - min(ts) as span, avg(num) * 2 - 1, sum(num) / count(*) from events
select bus, max(num) as m from events group by 1 having m > 1 order by m
select path, num from events where num is not null and (path like 'tank%' or path = 'note') and not (bus = 'lab') order by seq
select * from events e left join (select bus, max(seq) as top from events group by bus) t on e.bus = t.bus and e.seq = t.top order by e.bus, e.seq
select try_add(1, 2), try_divide(1, 0), try_element_at(map('a', 1), 'b'), element_at(map('a', 1), 'a'), get(array(1), 5)
select position from (select 1 as position)
select stddev_samp(num), variance(num), mean(num), std(num), some(num > 1), bit_and(seq), bit_xor(seq) from events
select width_bucket(num, 0, 10, 5), factorial(5), hypot(3, 4), cbrt(8), degrees(pi()), e(), shiftleft(1, 3), bit_count(5), negative(1), positive(1) from events where seq = 4
select next_day(ts, 'MON'), dayname(ts), monthname(ts), quarter(ts), weekday(ts), dayofyear(ts), unix_seconds(ts), unix_millis(ts), unix_date(date(ts)), date_from_unix_date(1), make_date(2026, 3, 1), make_timestamp(2026, 3, 1, 1, 2, 3) from events order by ts
select ascii('a'), char_length('ab'), octet_length('ä'), bit_length('a'), btrim(' a '), ltrim(' a'), rtrim('a '), lcase('A'), ucase('a'), sha1('a')
select array_append(array(1), 2), array_prepend(array(1), 2), array_compact(array(1, null)), array_min(array(1, 2)), array_position(array(1, 2), 2), array_size(array(1)), cardinality(array(1)), map_entries(map('a', 1)), map_from_arrays(array('a'), array(1))
select typeof(1.0), typeof('a'), equal_null(null, null), nullifzero(0), zeroifnull(null), ifnull(null, 1), boolean('true'), float('1.5'), bigint('1'), smallint('1'), tinyint('1'), decimal('1.5'), timestamp('2026-03-01'), date('2026-03-01')
select is_variant_null(parse_json('null')), try_parse_json('{'), try_variant_get(parse_json('{"a":1}'), '$.b', 'int')
select inline(array(struct(1, 'a'), struct(2, 'b')))
select a, b from events lateral view inline(array(struct(1, 'a'))) t as a, b where seq = 4
select x from events lateral view outer explode_outer(cast(null as array<int>)) t as x where seq = 4
select regr_count(num, seq), regr_intercept(num, seq), regr_r2(num, seq), covar_pop(num, seq), covar_samp(num, seq), try_sum(num), try_avg(num), approx_percentile(num, 0.9) from events
select percent_rank() over (order by ts), cume_dist() over (order by ts), dense_rank() over (order by ts), lag(num, 1, -1) ignore nulls over (order by ts) from events order by ts
select timestampadd(hour, 1, ts), date_diff(ts, ts), datepart('hour', ts), to_unix_timestamp(ts), try_to_timestamp('x'), try_to_date('x') from events order by ts
select 1 a, 2 as b, 'x' c
select `events`.*, events.num + 1 from events order by bus, seq
select struct(*) from (select 1 as a, 2 as b)
select count(*) from events where path > 'a' and num >= 1 and num <= 2 and num < 3
select bus, path from events group by bus, path order by bus, path limit 3 offset 1
select interval '1 02:03:04' day to second as b, interval -1 day as c, - interval 1 day as e, interval '90' minute as f
select !true, not not true, 1 == 1, 1 <> 2, 1 != 2, (1 = 1) = true, 1 = 1 = true, 1e-3, 1E5, 12345678901234567890, 0.00000001, 1., 00012
