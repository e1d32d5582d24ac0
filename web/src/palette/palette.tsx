/** The palette: type a few letters, press Enter, and be at a path, a page, a search or an action. */

import { signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { bus } from "../shared/store";
import { type Command, listCommands, openElement } from "./commands";
import { rankItems } from "./rank";

const PATHS_MAX = 20;
const isOpen = signal(false);

export function openPalette(): void {
  isOpen.value = true;
}

export function Palette() {
  return isOpen.value ? <OpenPalette /> : null;
}

function OpenPalette() {
  const dialog = useRef<HTMLDialogElement>(null);
  const [text, setText] = useState("");
  const [paths, setPaths] = useState<string[]>([]);
  const [active, setActive] = useState(0);
  // Listed once: what it offers must not change under the reader's fingers.
  const [commands] = useState(listCommands);

  // Before anything else happens, so that no letter typed after the key is lost.
  useLayoutEffect(() => {
    dialog.current?.showModal();
  }, []);
  useEffect(() => {
    if (!text.trim()) {
      setPaths([]);
      return;
    }
    let isCurrent = true;
    const timer = setTimeout(() => {
      bus.request("search", { text, limit: PATHS_MAX }).then(
        (answer) => isCurrent && setPaths((answer as { paths: string[] }).paths),
        () => isCurrent && setPaths([]), // half a rule is no rule yet
      );
    }, 80);
    return () => {
      isCurrent = false;
      clearTimeout(timer);
    };
  }, [text]);

  const entries: Command[] = [
    ...rankItems(commands, text, (command) => `${command.title} ${command.group}`),
    ...paths.map((path) => ({ title: path, group: "Path", run: () => openElement(path) })),
  ];
  const chosen = Math.min(active, entries.length - 1);
  const close = () => {
    isOpen.value = false;
  };
  const run = (entry: Command | undefined) => {
    if (!entry) return;
    close();
    entry.run();
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8 }[event.key];
    if (step !== undefined) {
      event.preventDefault();
      setActive(Math.max(0, Math.min(entries.length - 1, chosen + step)));
    } else if (event.key === "Enter") {
      event.preventDefault();
      run(entries[chosen]);
    }
  };

  return (
    <dialog
      ref={dialog}
      class="palette"
      aria-label="Go to"
      onClose={close}
      onClick={closeOutside}
      onKeyDown={onKeyDown}
    >
      <input
        type="text"
        role="combobox"
        aria-label="Path, page or action"
        aria-expanded="true"
        aria-controls="palette-entries"
        aria-autocomplete="list"
        aria-activedescendant={chosen >= 0 ? `entry-${chosen}` : undefined}
        placeholder="A path, a page, an action"
        spellcheck={false}
        autocomplete="off"
        value={text}
        onInput={(event) => {
          setText(event.currentTarget.value);
          setActive(0);
        }}
      />
      <div class="entries" id="palette-entries" role="listbox" aria-label="Matches">
        {entries.map((entry, index) => (
          <Entry
            key={`${entry.group}:${entry.title}`}
            entry={entry}
            index={index}
            isActive={index === chosen}
            onRun={() => run(entry)}
          />
        ))}
      </div>
      {entries.length === 0 && <p class="empty small">Nothing matches “{text}”.</p>}
    </dialog>
  );
}

/** Close the dialog by a click beside it: such a click is on the dialog itself, not on what is in it. */
function closeOutside(event: MouseEvent): void {
  if (event.target === event.currentTarget) (event.currentTarget as HTMLDialogElement).close();
}

interface EntryProps {
  entry: Command;
  index: number;
  isActive: boolean;
  onRun(): void;
}

function Entry({ entry, index, isActive, onRun }: EntryProps) {
  const item = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (isActive) item.current?.scrollIntoView({ block: "nearest" });
  }, [isActive]);
  return (
    <div
      ref={item}
      id={`entry-${index}`}
      role="option"
      tabIndex={-1}
      aria-selected={isActive}
      class={isActive ? "active" : ""}
      onClick={onRun}
      onKeyDown={() => {}}
    >
      <span class="title">{entry.title}</span>
      <span class="group">{entry.group}</span>
      {entry.key && <kbd>{entry.key}</kbd>}
    </div>
  );
}
