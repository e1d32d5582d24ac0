/** Everything the palette offers beside paths: pages, actions on what is chosen, saved searches, favourites. */

import { addToBoard } from "../boards/boardstore";
import { copyText } from "../shared/copy";
import { favourites, searches, toggleFavourite, toggleSearch } from "../shared/saved";
import {
  closeAll,
  instant,
  liveTree,
  query,
  search,
  select,
  selected,
  shownTree,
  travel,
  VIEWS,
  type View,
  view,
} from "../shared/store";

export interface Command {
  title: string;
  /** The group it is listed in. */
  group: string;
  /** Its key, where it has one. */
  key?: string;
  run(): void;
}

/** Show an element in the tree. */
export function openElement(path: string): void {
  view.value = "tree";
  select(path, true);
}

export function openSearch(text: string): void {
  view.value = "tree";
  search(text);
}

export function openView(name: View): void {
  view.value = name;
}

/** Put the cursor into the search; at once if it is there, so that no letter typed after the key is lost. */
export function focusSearch(): void {
  if (!document.getElementById("search")) view.value = "tree";
  const focus = () => document.getElementById("search")?.focus();
  focus();
  requestAnimationFrame(focus);
}

/** List what can be done now; what makes no sense now is not listed. */
export function listCommands(): Command[] {
  const commands: Command[] = [];
  const add = (group: string, title: string, run: () => void, key?: string) =>
    commands.push({ group, title, run, key });
  const path = selected.value;
  if (path && shownTree().find(path)) {
    const isFavourite = favourites.value.includes(path);
    add(
      "Chosen",
      isFavourite ? `Remove ${path} from favourites` : `Add ${path} to favourites`,
      () => toggleFavourite(path),
      "f",
    );
    add("Chosen", `Put ${path} on the board`, () => addToBoard(path), "b");
    add("Chosen", `Copy the path ${path}`, () => copyText(path), "c");
  }
  for (const [name, title] of VIEWS) add("Go to", title, () => openView(name));
  add("Go to", "Search", focusSearch, "/");
  const text = query.value.trim();
  if (text)
    add(
      "Search",
      searches.value.includes(text) ? `Forget the search ${text}` : `Save the search ${text}`,
      () => toggleSearch(text),
    );
  for (const saved of searches.value) add("Search", saved, () => openSearch(saved));
  for (const favourite of favourites.value)
    if (liveTree.find(favourite)) add("Favourites", favourite, () => openElement(favourite));
  add("Page", "Copy a link to what is shown", () => copyText(location.href));
  add("Page", "Close all nodes", closeAll);
  if (instant.value !== null) add("Page", "Return to the present", () => void travel(null));
  return commands;
}
