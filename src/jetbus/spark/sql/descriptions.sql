-- Rows with the description that was valid at each; the rows that do nothing but describe are left out.
--
--   {rows}   rows of timeline_rows.sql or alarm_rows.sql

with
-- The newest description up to each row, with the epoch it is of. An add or a remove ends the one before.
latest as (
  select
    *,
    last(
      case when event = 'describe' or (not carried and event in ('add', 'remove')) then
        struct(
          cut_seq,
          from_json(
            schema,
            'type string, enum array<string>, unit string, minimum double, maximum double, normal array<double>, stale double',
            map('allowNonNumericNumbers', 'false')
          ) as about
        )
      end,
      true
    ) over (partition by path, bus order by seq rows between unbounded preceding and current row) as described
  from {rows}
),
-- A cut ends a description, too.
valid as (
  select * except (schema, described), if(described.cut_seq <=> cut_seq, described.about, null) as about
  from latest
  where event != 'describe'
),
-- The type of each value in the words of a schema, and whether the range that is normal is one.
typed as (
  select
    *,
    case
      when num is not null then 'number'
      when text is not null then 'string'
      when flag is not null then 'boolean'
      when value = 'null' then 'null'
      when startswith(value, '\u007b') then 'object'
      else 'array'
    end as json_type,
    size(about.normal) = 2 and coalesce(get(about.normal, 0) <= get(about.normal, 1), true) as is_range
  from valid
),
-- What a value fits. A list of types is read as its JSON text, in which it is enough to look for a name: no name of a
-- type is part of another one. Texts and numbers that are written alike are the same to enum.
fitting as (
  select
    *,
    contains(about.type, json_type) or (coalesce(num = floor(num), false) and contains(about.type, 'integer'))
      as fits_type,
    about.type rlike '^[^a-z]*(array|boolean|integer|null|number|object|string)([^a-z]+(array|boolean|integer|null|number|object|string))*[^a-z]*$'
      as is_type,
    case
      when num is not null then exists(about.enum, one -> try_cast(one as double) <=> num)
      when text is not null then array_contains(about.enum, text)
      when flag is not null then array_contains(about.enum, value)
      when value = 'null' then exists(about.enum, one -> one is null)
      else exists(about.enum, one -> left(one, 1) = left(value, 1))
    end as is_allowed
  from typed
)
-- Members that are malformed are null. Carried rows keep what described them when they came.
select
  * except (about, unit, misfit, json_type, is_range, fits_type, is_type, is_allowed),
  if(carried, unit, about.unit) as unit,
  about.minimum as minimum,
  about.maximum as maximum,
  if(is_range, get(about.normal, 0), null) as normal_low,
  if(is_range, get(about.normal, 1), null) as normal_high,
  if(about.stale > 0 and about.stale <= 31622400D, about.stale, null) as stale_s,
  if(
    carried,
    misfit,
    case
      when value is null or about is null then null
      when not fits_type and is_type then 'type'
      when size(about.enum) > 0 and not coalesce(is_allowed, false) then 'enum'
      when num < about.minimum then 'minimum'
      when num > about.maximum then 'maximum'
    end
  ) as misfit
from fitting
