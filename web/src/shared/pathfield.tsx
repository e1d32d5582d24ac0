/** Paths in pages: a field to type one, with suggestions below it, and text that breaks between names only. */

import { Fragment } from "preact";

export function PathText({ path }: { path: string }) {
  const names = path.split("/");
  return (
    <>
      {names.map((name, index) => (
        <Fragment key={index}>
          {name}
          {index < names.length - 1 && (
            <>
              /<wbr />
            </>
          )}
        </Fragment>
      ))}
    </>
  );
}

interface Props {
  class: string;
  label: string;
  placeholder: string;
  text: string;
  onText: (text: string) => void;
  suggestions: string[];
  onAdd: (path: string) => void;
}

export function PathField({ class: name, label, placeholder, text, onText, suggestions, onAdd }: Props) {
  const listId = `${name}-suggestions`;
  return (
    <form
      class={name}
      onSubmit={(event) => {
        event.preventDefault();
        const path = text.trim();
        if (!path) return;
        onAdd(path);
        onText("");
      }}
    >
      <input
        type="text"
        list={listId}
        aria-label={label}
        placeholder={placeholder}
        spellcheck={false}
        autocomplete="off"
        value={text}
        onInput={(event) => onText(event.currentTarget.value)}
      />
      <datalist id={listId}>
        {suggestions.map((path) => (
          <option key={path} value={path} />
        ))}
      </datalist>
      <button type="submit" class="chip" disabled={!text.trim()}>
        Add
      </button>
    </form>
  );
}
