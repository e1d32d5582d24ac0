/** A text field that tells of its text when the typing is done: on Enter, or when the field is left. */

import { useState } from "preact/hooks";

interface Props {
  value: string;
  onDone: (text: string) => void;
  class?: string;
  placeholder?: string;
  "aria-label"?: string;
  "aria-invalid"?: boolean;
}

export function DraftInput({ value, onDone, ...rest }: Props) {
  // What is typed is state of its own: the page is drawn again whenever the bus moves, and a field that is bound to
  // the old value would lose it.
  const [draft, setDraft] = useState<string | null>(null);
  return (
    <input
      type="text"
      spellcheck={false}
      {...rest}
      value={draft ?? value}
      onInput={(event) => setDraft(event.currentTarget.value)}
      onChange={(event) => {
        setDraft(null);
        onDone(event.currentTarget.value);
      }}
    />
  );
}
