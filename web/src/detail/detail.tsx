/** One element: its value, its form, its history, and how to reach it from elsewhere. */

import { useEffect, useState } from "preact/hooks";
import { addToBoard } from "../boards/boardstore";
import { ValueForm } from "../forms/form";
import { MethodDetail } from "../forms/method";
import { isAbnormal, type Schema, showPrecise } from "../forms/schema";
import type { Json } from "../shared/bus";
import { Copy, Snippets } from "../shared/copy";
import { asBlob, decodeText, showAge, showAgo, showInstant, showValue } from "../shared/format";
import { favourites, toggleFavourite } from "../shared/saved";
import {
  bus,
  frame,
  instant,
  type Live,
  metaOf,
  ownerOf,
  schemas,
  select,
  selected,
  shownTree,
  shownValues,
  status,
  structure,
} from "../shared/store";
import { wantOwners } from "../tree/owners";
import { METHOD, READ_ONLY } from "../tree/tree";
import { Badges, Star } from "../tree/treegrid";
import { DifferenceTable, showStep } from "./difference";
import { StateHistory } from "./statehistory";

export function Detail() {
  const path = selected.value;
  structure.value;
  if (path === null)
    return (
      <section class="panel detail nothing" aria-label="Detail">
        <div class="empty">
          <strong>Choose a state or a method.</strong>
          <p>
            Press <kbd>/</kbd> to search, <kbd>Ctrl K</kbd> to go anywhere.
          </p>
          <p>
            In the tree: arrow keys move, <kbd>Enter</kbd> opens, <kbd>f</kbd> marks a favourite, <kbd>b</kbd>{" "}
            puts it on the board, <kbd>c</kbd> copies its path.
          </p>
        </div>
      </section>
    );
  const node = shownTree().find(path);
  return (
    <section class="panel detail" aria-label="Detail">
      <Head path={path} isPresent={node !== undefined} />
      {!node || node.flags === null ? (
        <div class="empty">
          <strong>
            {path} is not on the bus{instant.value === null ? "" : " at this instant"}.
          </strong>
          <p>It is shown again as soon as a program adds it.</p>
        </div>
      ) : node.flags & METHOD ? (
        <MethodDetail key={path} path={path} flags={node.flags} />
      ) : (
        <StateDetail key={path} path={path} flags={node.flags} />
      )}
    </section>
  );
}

function Head({ path, isPresent }: { path: string; isPresent: boolean }) {
  const isFavourite = favourites.value.includes(path);
  const cut = path.lastIndexOf("/") + 1;
  return (
    <header class="head">
      <button type="button" class="icon back" aria-label="Back to the list" onClick={() => select(null)}>
        <svg width="14" height="14" viewBox="0 0 14 14" aria-hidden="true" class="glyph">
          <path d="M9 2 4 7l5 5" />
        </svg>
      </button>
      <h2 title={path}>
        <span class="quiet">{path.slice(0, cut)}</span>
        {path.slice(cut)}
      </h2>
      <Copy text={path} label="Copy path" />
      <button
        type="button"
        class="icon"
        aria-pressed={isFavourite}
        title="Favourite"
        aria-label="Favourite"
        onClick={() => toggleFavourite(path)}
      >
        <Star isOn={isFavourite} />
      </button>
      <span class="grow" />
      {isPresent && (
        <button type="button" class="chip" onClick={() => addToBoard(path)}>
          Put on board
        </button>
      )}
    </header>
  );
}

function StateDetail({ path, flags }: { path: string; flags: number }) {
  frame.value;
  const data = shownValues().get(path);
  const schema = schemas.get(path);
  const isPast = instant.value !== null;
  const canSet = (flags & READ_ONLY) === 0 && !isPast;
  useEffect(() => wantOwners([path]), [path, isPast]);
  if (!data) return <div class="empty">Waiting for the value.</div>;
  const { ts, quality, reason } = metaOf(path);
  const step = showStep(data.previous, data.value);
  const isNested = typeof data.value === "object" && data.value !== null && !asBlob(data.value);
  return (
    <div class="body">
      {schema?.description && <p class="description">{schema.description}</p>}
      <dl class="facts">
        {!isNested && (
          <div>
            <dt>{schema?.title ?? "Value"}</dt>
            <dd class="large">
              {asBlob(data.value) ? <BlobView value={data.value} /> : showPrecise(data.value, schema)}
              {schema?.unit && <span class="unit">{schema.unit}</span>}
            </dd>
          </div>
        )}
        <div>
          <dt>{isPast ? "Held since" : "Changed"}</dt>
          <dd>{isPast ? showInstant(data.ms * 1000) : describeChange(data)}</dd>
        </div>
        {ts && (
          <div>
            <dt>Measured</dt>
            <dd title="Time of the value by its owner">{showInstant(Date.parse(ts) * 1000)}</dd>
          </div>
        )}
        {quality && quality !== "good" && (
          <div>
            <dt>Quality</dt>
            <dd class={quality === "bad" ? "problem" : "warning"}>
              {quality}
              {reason ? `: ${reason}` : ""}
            </dd>
          </div>
        )}
        {!isPast && data.previous !== undefined && !isNested && !asBlob(data.value) && (
          <div>
            <dt>Before</dt>
            <dd>
              {showPrecise(data.previous, schema)} {step && <span class="quiet">{step}</span>}
            </dd>
          </div>
        )}
        {ownerOf(path) && (
          <div>
            <dt>Owner</dt>
            <dd>{ownerOf(path)}</dd>
          </div>
        )}
        {status.value?.history && !isPast && <LastSet path={path} />}
      </dl>
      <p class="badges">
        <Badges flags={flags & ~READ_ONLY} isAbnormal={isAbnormal(data.value, schema)} reason={reason} />
      </p>
      {canSet && !asBlob(data.value) && (
        <ValueForm value={data.value} schema={schema} onSet={(value) => setValue(path, value)} />
      )}
      {!canSet && !isPast && <p class="hint">Read-only: its owner accepts no set, or none from you.</p>}
      {isPast && isNested && <pre class="json">{JSON.stringify(data.value, null, 2)}</pre>}
      {!isPast && isNested && data.previous !== undefined && (
        <details class="more" open>
          <summary>Last change</summary>
          <DifferenceTable before={data.previous} after={data.value} />
        </details>
      )}
      {status.value?.history && <StateHistory path={path} value={data.value} />}
      <RawJson value={data.value} schema={schema} />
      <Snippets path={path} value={data.value} isMethod={false} canSet={canSet} />
    </div>
  );
}

/** Say when a value has changed, as far as this page can know. */
function describeChange(data: Live): string {
  const age = showAgo(Date.now() - data.ms);
  if (data.changes === 0) return age === "now" ? "before this page was opened" : `more than ${age} ago`;
  return age === "now" ? "just now" : `${age} ago`;
}

async function setValue(path: string, value: Json): Promise<string> {
  const result = (await bus.request("set", { path, value })) as { adapted: boolean; warning: string | null };
  return result.adapted ? result.warning || "The owner adapted the value." : "Set.";
}

interface SetEvent {
  peer: string | null;
  ts: number;
  value: Json;
  detail: string | null;
}

const LAST_SET_MS = 10_000;

/** Who has set it last, by the journal; asked again now and then, since others set it, too. */
function LastSet({ path }: { path: string }) {
  const [last, setLast] = useState<SetEvent | null>(null);
  useEffect(() => {
    const stop = new AbortController();
    const load = () =>
      fetch(`api/last?${new URLSearchParams({ path, event: "set" })}`, { signal: stop.signal })
        .then((response) => (response.ok ? response.json() : null))
        .then((answer) => setLast((answer as { event: SetEvent | null } | null)?.event ?? null))
        .catch(() => {});
    load();
    const timer = setInterval(() => document.hidden || load(), LAST_SET_MS);
    return () => {
      stop.abort();
      clearInterval(timer);
    };
  }, [path]);
  if (!last) return null;
  const isRefused = last.detail !== null && !last.detail.includes('"outcome":"ok"');
  return (
    <div>
      <dt>Last set by</dt>
      <dd title={showInstant(last.ts)}>
        {last.peer || "unknown"}{" "}
        <span class="quiet">
          to {showValue(last.value)}, {showAge(Date.now() - last.ts / 1000)} ago
          {isRefused ? ", refused" : ""}
        </span>
      </dd>
    </div>
  );
}

function BlobView({ value }: { value: Json }) {
  const blob = asBlob(value);
  if (!blob) return null;
  if (/^image\/(png|jpeg|gif|webp)$/.test(blob.mime))
    return (
      <img
        class="blob"
        alt={`Picture, ${showValue(value)}`}
        src={`data:${blob.mime};base64,${blob.base64}`}
      />
    );
  if (/^(text\/|application\/json)/.test(blob.mime))
    return <pre class="json">{decodeText(blob.base64).slice(0, 20_000)}</pre>;
  return <span>{showValue(value)}</span>;
}

const JSON_CHARS_MAX = 200_000;

function RawJson({ value, schema }: { value: Json; schema: Schema | undefined }) {
  const text = JSON.stringify(value, null, 2);
  return (
    <details class="more">
      <summary>JSON</summary>
      <div class="with-copy">
        <pre class="json">{text.slice(0, JSON_CHARS_MAX)}</pre>
        <Copy text={text} label="Copy value" />
      </div>
      {schema && (
        <>
          <h3>Schema</h3>
          <pre class="json">{JSON.stringify(schema, null, 2)}</pre>
        </>
      )}
    </details>
  );
}
