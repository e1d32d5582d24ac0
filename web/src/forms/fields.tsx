/**
 * Fields of forms: one for each kind of value, nested for objects.
 *
 * A field gets its value from outside and reports edits by JSON pointer. What was typed and cannot be read as a value is
 * kept in the field and reported as a problem, so that a half-typed number never becomes an edit.
 */

import { useId, useState } from "preact/hooks";
import type { Json } from "../shared/bus";
import { showValue } from "../shared/format";
import { emptyValue, fieldKind, memberNames, memberOf, pointTo, type Schema } from "./schema";

export interface Fields {
  /** Problems to show, by JSON pointer. */
  problems: ReadonlyMap<string, string>;
  onEdit(member: string, value: Json): void;
  /** Report what cannot be read; an empty text takes the report back. */
  onProblem(member: string, problem: string): void;
}

export interface FieldProps {
  name: string;
  member: string;
  value: Json | undefined;
  schema: Schema | undefined;
  fields: Fields;
}

export function Field(props: FieldProps) {
  const { value, schema, name, member, fields } = props;
  if (value === undefined)
    return (
      <div class="field absent-member">
        <span>{schema?.title ?? name}</span>
        <button type="button" class="chip" onClick={() => fields.onEdit(member, emptyValue(schema))}>
          Add
        </button>
      </div>
    );
  if (schema?.readOnly && member)
    return (
      <div class="field">
        <span>{schema.title ?? name}</span>
        <output>{showValue(value)}</output>
      </div>
    );
  const View = FIELDS[fieldKind(value, schema)];
  return <View {...props} value={value} />;
}

type Present = FieldProps & { value: Json };

/** The label of a field, what it holds, its unit and what is wrong with it. */
function Labelled(
  props: Present & { id: string; children: preact.ComponentChildren; range?: preact.ComponentChildren },
) {
  const { name, schema, fields, member, id } = props;
  const problem = fields.problems.get(member);
  return (
    <div class="field">
      <div class="label">
        <label for={id}>{schema?.title ?? name}</label>
        {schema?.minimum !== undefined && schema.maximum !== undefined && (
          <span>
            {schema.minimum} … {schema.maximum}
          </span>
        )}
      </div>
      <div class="input">
        {props.children}
        {schema?.unit && <span class="unit">{schema.unit}</span>}
      </div>
      {props.range}
      {problem && (
        <p class="hint problem" id={`${id}-problem`}>
          {problem}
        </p>
      )}
      {member && schema?.description && <p class="hint">{schema.description}</p>}
    </div>
  );
}

function describe(props: Present, id: string) {
  const isInvalid = props.fields.problems.has(props.member);
  return {
    id,
    "aria-invalid": isInvalid,
    "aria-describedby": isInvalid ? `${id}-problem` : undefined,
    disabled: false,
  };
}

function SwitchField(props: Present) {
  const id = useId();
  const { value, name, schema, member, fields } = props;
  const problem = fields.problems.get(member);
  return (
    <div class="field switch">
      <label for={id}>{schema?.title ?? name}</label>
      <input
        {...describe(props, id)}
        type="checkbox"
        role="switch"
        aria-checked={value === true}
        checked={value === true}
        onChange={(event) => fields.onEdit(member, event.currentTarget.checked)}
      />
      {problem && (
        <p class="hint problem" id={`${id}-problem`}>
          {problem}
        </p>
      )}
    </div>
  );
}

function ChoiceField(props: Present) {
  const id = useId();
  const { value, schema, member, fields } = props;
  const choices = schema?.enum ?? [];
  const chosen = choices.findIndex((one) => JSON.stringify(one) === JSON.stringify(value));
  return (
    <Labelled {...props} id={id}>
      <select
        {...describe(props, id)}
        value={String(chosen)}
        onChange={(event) => fields.onEdit(member, choices[Number(event.currentTarget.value)] as Json)}
      >
        {chosen < 0 && <option value="-1">{showValue(value)}</option>}
        {choices.map((one, index) => (
          <option key={showValue(one)} value={String(index)}>
            {showValue(one)}
          </option>
        ))}
      </select>
    </Labelled>
  );
}

function NumberField(props: Present) {
  const id = useId();
  const { value, schema, member, fields } = props;
  const [text, setText] = useState<string | null>(null);
  const edit = (next: string) => {
    const number = readNumber(next);
    setText(next);
    fields.onProblem(member, number === null ? `${next || "Nothing"} is not a number.` : "");
    if (number !== null) fields.onEdit(member, number);
  };
  const { minimum, maximum } = schema ?? {};
  const slider = minimum !== undefined && maximum !== undefined && (
    <input
      type="range"
      aria-label={`${schema?.title ?? props.name}, slider`}
      min={minimum}
      max={maximum}
      step={schema?.type === "integer" ? 1 : (maximum - minimum) / 1000}
      value={typeof value === "number" ? value : minimum}
      onInput={(event) => {
        // A slider has no use for more digits than it has steps.
        edit(String(Number(Number(event.currentTarget.value).toPrecision(6))));
        setText(null);
      }}
    />
  );
  return (
    <Labelled {...props} id={id} range={slider}>
      <input
        {...describe(props, id)}
        type="text"
        inputMode="decimal"
        class="number"
        autocomplete="off"
        value={text ?? String(value)}
        onInput={(event) => edit(event.currentTarget.value)}
        onBlur={() => {
          if (text !== null && readNumber(text) !== null) setText(null);
        }}
      />
    </Labelled>
  );
}

function TextField(props: Present) {
  const id = useId();
  return (
    <Labelled {...props} id={id}>
      <input
        {...describe(props, id)}
        type="text"
        spellcheck={false}
        autocomplete="off"
        value={String(props.value)}
        onInput={(event) => props.fields.onEdit(props.member, event.currentTarget.value)}
      />
    </Labelled>
  );
}

function JsonField(props: Present) {
  const id = useId();
  const { value, member, fields } = props;
  const [text, setText] = useState<string | null>(null);
  return (
    <Labelled {...props} id={id}>
      <textarea
        {...describe(props, id)}
        rows={4}
        spellcheck={false}
        value={text ?? JSON.stringify(value)}
        onInput={(event) => {
          const next = event.currentTarget.value;
          setText(next);
          try {
            fields.onEdit(member, JSON.parse(next) as Json);
            fields.onProblem(member, "");
          } catch (problem) {
            fields.onProblem(member, `This is not JSON: ${(problem as Error).message}`);
          }
        }}
      />
    </Labelled>
  );
}

function MembersField({ name, member, value, schema, fields }: Present) {
  const problem = fields.problems.get(member);
  return (
    <fieldset class="members">
      <legend>{schema?.title ?? name}</legend>
      {memberNames(value, schema).map((key) => (
        <Field
          key={key}
          name={key}
          member={pointTo(member, key)}
          value={memberOf(value, key)}
          schema={schema?.properties?.[key]}
          fields={fields}
        />
      ))}
      {problem && <p class="hint problem">{problem}</p>}
    </fieldset>
  );
}

const FIELDS = {
  switch: SwitchField,
  choice: ChoiceField,
  number: NumberField,
  text: TextField,
  members: MembersField,
  json: JsonField,
};

/** Return the number that a text says, or null. */
export function readNumber(text: string): number | null {
  const trimmed = text.trim();
  return /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i.test(trimmed) && Number.isFinite(Number(trimmed))
    ? Number(trimmed)
    : null;
}
