/** Copying: a button, and the text of an element for use in shells and programs. */

import { useState } from "preact/hooks";
import type { Json } from "./bus";

/** Put a text into the clipboard; where pages may not (plain HTTP from another machine), by a selection. */
export async function copyText(text: string): Promise<void> {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "hidden";
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

export function Copy({ text, label }: { text: string; label: string }) {
  const [done, setDone] = useState(false);
  return (
    <button
      type="button"
      class="icon"
      title={label}
      aria-label={label}
      onClick={() => {
        copyText(text).then(
          () => {
            setDone(true);
            setTimeout(() => setDone(false), 1500);
          },
          () => {},
        );
      }}
    >
      <svg width="14" height="14" viewBox="0 0 14 14" aria-hidden="true" class="glyph">
        {done ? <path d="M2 7.5 5.5 11 12 3.5" /> : <path d="M4.5 4.5h7v7h-7zM2.5 9.5v-7h7" />}
      </svg>
    </button>
  );
}

/** Quote a text for a POSIX shell. */
export function quoteShell(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/** Quote a text for Python, Spark SQL in a Python string included. */
export function quotePython(text: string): string {
  return JSON.stringify(text);
}

/** Return a JSON value as Python writes it. */
export function showPython(value: Json): string {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "string") return quotePython(value);
  if (Array.isArray(value)) return `[${value.map(showPython).join(", ")}]`;
  if (typeof value === "object")
    return `{${Object.entries(value)
      .map(([key, part]) => `${quotePython(key)}: ${showPython(part)}`)
      .join(", ")}}`;
  return String(value);
}

const VALUE_CHARS_MAX = 200;

/** Return commands and programs that do elsewhere what the page does here. */
export function listSnippets(path: string, kind: { value?: Json; isMethod: boolean; canSet: boolean }) {
  const shell = quoteShell(path);
  const python = quotePython(path);
  const snippets: [title: string, text: string][] = [];
  if (kind.isMethod) {
    snippets.push(["jet", `jet call ${shell}`], ["Python", `peer.call(${python})`]);
    return snippets;
  }
  snippets.push(["jet", `jet get ${shell}`], ["jet", `jet watch ${shell}`]);
  const json = JSON.stringify(kind.value ?? null);
  const isShort = json.length <= VALUE_CHARS_MAX;
  // A negative number would be taken as an option.
  const dash = json.startsWith("-") ? "-- " : "";
  if (kind.canSet && isShort) snippets.push(["jet", `jet set ${dash}${shell} ${quoteShell(json)}`]);
  snippets.push(["Python", `for event in peer.fetch(${python}): print(event.value)`]);
  if (kind.canSet && isShort)
    snippets.push(["Python", `peer.set(${python}, ${showPython(kind.value ?? null)})`]);
  snippets.push(["Spark", `spark.read.format("jet").option("rule", ${python}).load(journal).show()`]);
  return snippets;
}

export function Snippets(props: { path: string; value?: Json; isMethod: boolean; canSet: boolean }) {
  return (
    <details class="more">
      <summary>Use it elsewhere</summary>
      {listSnippets(props.path, props).map(([name, line]) => (
        <div class="snippet" key={line}>
          <span>{name}</span>
          <code>{line}</code>
          <Copy text={line} label={`Copy ${line}`} />
        </div>
      ))}
    </details>
  );
}
