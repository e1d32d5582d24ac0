/** The form that sets a state, made from its schema or, without one, from its value. */

import { useState } from "preact/hooks";
import type { Json, RequestError } from "../shared/bus";
import { Field } from "./fields";
import { applyEdits, checkValue, pointTo, type Schema } from "./schema";

interface FormProps {
  value: Json;
  schema: Schema | undefined;
  /** Set the value; the text says what became of it. */
  onSet(value: Json): Promise<string>;
}

/**
 * Edits survive changes of the value: members that were edited show the edit, all others follow the bus. So a set of
 * one member never takes back what came for another meanwhile.
 */
export function ValueForm({ value, schema, onSet }: FormProps) {
  const [edits, setEdits] = useState<ReadonlyMap<string, Json>>(new Map());
  const [unreadable, setUnreadable] = useState<ReadonlyMap<string, string>>(new Map());
  const [refusal, setRefusal] = useState<{ member: string; text: string } | null>(null);
  const [answer, setAnswer] = useState("");
  const [busy, setBusy] = useState(false);
  // Fields keep half-typed text; a new generation of them has none.
  const [generation, setGeneration] = useState(0);

  const edited = applyEdits(value, edits);
  const isChanged = !isSame(edited, value);
  const problems = isChanged ? checkValue(edited, schema) : new Map<string, string>();
  for (const [member, problem] of unreadable) problems.set(member, problem);
  const isValid = problems.size === 0;
  if (refusal) problems.set(refusal.member, refusal.text);

  const reset = () => {
    setEdits(new Map());
    setUnreadable(new Map());
    setRefusal(null);
    setGeneration(generation + 1);
  };
  const submit = async () => {
    setBusy(true);
    setAnswer("");
    try {
      const text = await onSet(edited);
      reset();
      setAnswer(text);
    } catch (problem) {
      setRefusal({ member: refusedMember(problem as RequestError), text: (problem as Error).message });
    }
    setBusy(false);
  };
  return (
    <form
      class="form"
      aria-label="Set the value"
      onSubmit={(event) => {
        event.preventDefault();
        if (isChanged && isValid && !busy) submit();
      }}
    >
      <Field
        key={generation}
        name="Set to"
        member=""
        value={edited}
        schema={schema?.title ? { ...schema, title: `Set ${schema.title} to` } : schema}
        fields={{
          problems,
          onEdit(member, next) {
            setEdits((now) => new Map(now).set(member, next));
            setRefusal(null);
            setAnswer("");
          },
          onProblem(member, problem) {
            setUnreadable((now) => {
              const next = new Map(now);
              if (problem) next.set(member, problem);
              else next.delete(member);
              return next;
            });
          },
        }}
      />
      <div class="buttons">
        <button type="submit" class="primary" disabled={!isChanged || !isValid || busy}>
          Set
        </button>
        {(isChanged || unreadable.size > 0) && (
          <button type="button" onClick={reset}>
            Discard
          </button>
        )}
        <span role="status" class="hint">
          {answer}
        </span>
      </div>
    </form>
  );
}

/**
 * Return the member that a refusal is about, as a JSON pointer; that of the whole value if it names none.
 *
 * A daemon that checks values itself says `{"valueRefused": "value.limits.low"}`.
 */
export function refusedMember(problem: { data?: Json }): string {
  const data = problem.data;
  if (typeof data !== "object" || data === null || Array.isArray(data)) return "";
  const { valueRefused } = data;
  if (typeof valueRefused !== "string") return "";
  const names = valueRefused
    .replaceAll(/\[(\d+)\]/g, ".$1")
    .split(".")
    .slice(1);
  // An item of a list is edited within the list.
  const upTo = names.findIndex((name) => /^\d+$/.test(name));
  return (upTo < 0 ? names : names.slice(0, upTo)).reduce(pointTo, "");
}

export function isSame(a: Json, b: Json): boolean {
  return JSON.stringify(a) === JSON.stringify(b);
}
