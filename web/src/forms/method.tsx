/** A method: its arguments as JSON or as fields, saved calls, and what came of the latest calls. */

import { useState } from "preact/hooks";
import { checkArguments } from "../shared/answers";
import type { Json } from "../shared/bus";
import { Copy, Snippets } from "../shared/copy";
import { showInstant } from "../shared/format";
import { calls, removeCall, saveCall } from "../shared/saved";
import { bus, frame, instant, schemas } from "../shared/store";
import { READ_ONLY } from "../tree/tree";
import { type ArgumentRow, argsOf, checkRows, rowsOf } from "./call";
import { Field } from "./fields";
import { applyEdits, checkValue, emptyValue, type Schema, showType } from "./schema";

interface Answer {
  number: number;
  args: string;
  at: number;
  ms: number;
  text: string;
  failed: boolean;
}

const ANSWERS_MAX = 10;

export function MethodDetail({ path, flags }: { path: string; flags: number }) {
  frame.value;
  const schema = schemas.get(path);
  if (instant.value !== null)
    return (
      <div class="body">
        <p class="hint">Methods can be called in the present only.</p>
      </div>
    );
  return (
    <div class="body">
      {schema?.title && <p class="description">{schema.title}</p>}
      {schema?.description && <p class="description">{schema.description}</p>}
      {schema?.result && <p class="hint">It returns {showType(schema.result)}.</p>}
      {flags & READ_ONLY ? (
        <p class="hint">You may see this method, but not call it.</p>
      ) : (
        <>
          {/* A description may come later than the method, and makes another form of it. */}
          <CallForm key={schema ? "described" : "plain"} path={path} schema={schema} />
          <Snippets path={path} isMethod={true} canSet={false} />
        </>
      )}
    </div>
  );
}

function CallForm({ path, schema }: { path: string; schema: Schema | undefined }) {
  const argsSchema = describeArguments(schema);
  const [mode, setMode] = useState<"json" | "fields">(argsSchema ? "fields" : "json");
  const [text, setText] = useState(argsSchema ? JSON.stringify(beginArguments(argsSchema)) : "[]");
  const [rows, setRows] = useState<ArgumentRow[]>([]);
  const [unreadable, setUnreadable] = useState("");
  const [answers, setAnswers] = useState<Answer[]>([]);
  const [busy, setBusy] = useState(false);
  const isFields = mode === "fields";
  const problem =
    unreadable || (isFields && !argsSchema ? checkRows(rows) : "") || checkArguments(text) || "";

  const call = async (args: string) => {
    setBusy(true);
    const started = performance.now();
    const answer = { number: (answers[0]?.number ?? 0) + 1, args, at: Date.now() };
    let next: Answer;
    try {
      const { result, ms } = (await bus.request("call", { path, args: JSON.parse(args || "[]") })) as {
        result: Json;
        ms: number;
      };
      next = { ...answer, ms, text: JSON.stringify(result, null, 2), failed: false };
    } catch (failure) {
      next = { ...answer, ms: performance.now() - started, text: (failure as Error).message, failed: true };
    }
    setAnswers((now) => [next, ...now].slice(0, ANSWERS_MAX));
    setBusy(false);
  };
  const choose = (next: "json" | "fields") => {
    if (next === "fields") setRows(rowsOf(text));
    setUnreadable("");
    setMode(next);
  };
  return (
    <>
      <form
        class="form"
        aria-label="Call the method"
        onSubmit={(event) => {
          event.preventDefault();
          if (!problem && !busy) call(text);
        }}
      >
        <div class="modes" role="group" aria-label="Way of writing">
          {(["fields", "json"] as const).map((name) => (
            <button
              key={name}
              type="button"
              class="chip"
              aria-pressed={mode === name}
              onClick={() => choose(name)}
            >
              {name === "json" ? "JSON" : "Fields"}
            </button>
          ))}
        </div>
        {!isFields && <JsonArguments text={text} problem={problem} onText={setText} />}
        {isFields && argsSchema && (
          <SchemaArguments schema={argsSchema} text={text} onText={setText} onUnreadable={setUnreadable} />
        )}
        {isFields && !argsSchema && (
          <FreeArguments
            rows={rows}
            onRows={(next) => {
              setRows(next);
              setText(argsOf(next));
            }}
          />
        )}
        {problem && (
          <p class="hint problem" id="call-problem">
            {problem}
          </p>
        )}
        <div class="buttons">
          <button type="submit" class="primary" disabled={problem !== "" || busy}>
            {busy ? "Calling" : "Call"}
          </button>
          <SaveCall path={path} text={text} isOff={problem !== ""} />
        </div>
        <SavedCalls
          path={path}
          onChoose={(args) => {
            setText(args);
            setRows(rowsOf(args));
          }}
        />
      </form>
      {answers.length > 0 && (
        <section class="answers" aria-label="Results" aria-live="polite">
          {answers.map((answer) => (
            <article key={answer.number} class={answer.failed ? "answer failed" : "answer"}>
              <header>
                <time>{showInstant(answer.at * 1000).slice(11, 19)}</time>
                <code>{answer.args}</code>
                <span class="ms">{answer.ms.toFixed(1)} ms</span>
                <button type="button" class="chip" disabled={busy} onClick={() => call(answer.args)}>
                  Repeat
                </button>
                <Copy text={answer.text} label="Copy the result" />
              </header>
              <pre class="json">{answer.text}</pre>
            </article>
          ))}
        </section>
      )}
    </>
  );
}

/** Return what the arguments of a method are, as the schema of an object or of a list; undefined if it does not say. */
function describeArguments(schema: Schema | undefined): Schema | undefined {
  if (schema?.args) return { args: schema.args };
  if (schema?.properties) return { type: "object", properties: schema.properties, required: schema.required };
  return undefined;
}

function beginArguments(schema: Schema): Json {
  if (schema.args) return schema.args.map(emptyValue);
  // An argument with a default may be left out, and is added by hand.
  const described = Object.entries(schema.properties ?? {});
  const names =
    schema.required ?? described.filter(([, one]) => one.default === undefined).map(([name]) => name);
  return Object.fromEntries(names.map((name) => [name, emptyValue(schema.properties?.[name])]));
}

function JsonArguments(props: { text: string; problem: string; onText(text: string): void }) {
  return (
    <div class="field">
      <label for="call-arguments">Arguments</label>
      <textarea
        id="call-arguments"
        rows={3}
        spellcheck={false}
        value={props.text}
        aria-invalid={props.problem !== ""}
        aria-describedby={props.problem ? "call-problem" : undefined}
        onInput={(event) => props.onText(event.currentTarget.value)}
      />
    </div>
  );
}

interface SchemaArgumentsProps {
  schema: Schema;
  text: string;
  onText(text: string): void;
  onUnreadable(problem: string): void;
}

/** One field for each argument that the schema names; arguments by position are members 0, 1, ... of an object. */
function SchemaArguments({ schema, text, onText, onUnreadable }: SchemaArgumentsProps) {
  const args = readJson(text);
  const isList = schema.args !== undefined;
  const properties = isList
    ? Object.fromEntries((schema.args ?? []).map((one, index) => [String(index), one]))
    : schema.properties;
  const asObject: Schema = { type: "object", title: "Arguments", properties, required: schema.required };
  const value = Array.isArray(args) ? { ...args } : ((args ?? {}) as { [key: string]: Json });
  const problems = checkValue(value as Json, asObject);
  const firstProblem = [...problems.values()][0] ?? "";
  return (
    <Field
      name="Arguments"
      member=""
      value={value as Json}
      schema={asObject}
      fields={{
        problems,
        onEdit(member, part) {
          const edited = applyEdits(value as Json, new Map([[member, part]])) as { [key: string]: Json };
          onText(JSON.stringify(isList ? Object.values(edited) : edited));
          onUnreadable([...checkValue(edited, asObject).values()][0] ?? "");
        },
        onProblem: (_member, problem) => onUnreadable(problem || firstProblem),
      }}
    />
  );
}

function readJson(text: string): Json {
  try {
    return JSON.parse(text) as Json;
  } catch {
    return null;
  }
}

function FreeArguments({ rows, onRows }: { rows: ArgumentRow[]; onRows(rows: ArgumentRow[]): void }) {
  const change = (index: number, part: Partial<ArgumentRow>) =>
    onRows(rows.map((row, at) => (at === index ? { ...row, ...part } : row)));
  return (
    <div class="arguments">
      {rows.length === 0 && <p class="hint">It is called without arguments.</p>}
      {rows.map((row, index) => (
        <div class="argument" key={index}>
          <input
            aria-label={`Name of argument ${index + 1}`}
            placeholder="name, or none"
            spellcheck={false}
            value={row.name}
            onInput={(event) => change(index, { name: event.currentTarget.value })}
          />
          <input
            aria-label={`Value of argument ${index + 1}`}
            placeholder="JSON or text"
            spellcheck={false}
            value={row.text}
            onInput={(event) => change(index, { text: event.currentTarget.value })}
          />
          <button
            type="button"
            class="chip"
            aria-label={`Remove argument ${index + 1}`}
            onClick={() => onRows(rows.filter((_, at) => at !== index))}
          >
            Remove
          </button>
        </div>
      ))}
      <button type="button" class="chip" onClick={() => onRows([...rows, { name: "", text: "" }])}>
        Add an argument
      </button>
    </div>
  );
}

function SaveCall({ path, text, isOff }: { path: string; text: string; isOff: boolean }) {
  const [name, setName] = useState<string | null>(null);
  const save = () => {
    if (name?.trim()) saveCall({ path, name: name.trim(), args: text });
    setName(null);
  };
  if (name === null)
    return (
      <button type="button" disabled={isOff} onClick={() => setName("")}>
        Save
      </button>
    );
  return (
    <span class="naming">
      <input
        aria-label="Name of the saved call"
        placeholder="Name"
        value={name}
        ref={(input) => input?.focus()}
        onInput={(event) => setName(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === "Escape") setName(null);
          if (event.key !== "Enter") return;
          event.preventDefault(); // the form would call the method
          save();
        }}
      />
      <button type="button" disabled={!name.trim()} onClick={save}>
        Save
      </button>
    </span>
  );
}

function SavedCalls({ path, onChoose }: { path: string; onChoose(args: string): void }) {
  const saved = calls.value.filter((call) => call.path === path);
  if (saved.length === 0) return null;
  return (
    <div class="saved" role="group" aria-label="Saved calls">
      {saved.map((call) => (
        <span class="saved-call" key={call.name}>
          <button type="button" class="chip" title={call.args} onClick={() => onChoose(call.args)}>
            {call.name}
          </button>
          <button
            type="button"
            class="chip"
            aria-label={`Forget the call ${call.name}`}
            onClick={() => removeCall(call)}
          >
            ×
          </button>
        </span>
      ))}
    </div>
  );
}
