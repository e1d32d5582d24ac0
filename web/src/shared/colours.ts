/** The colours that the reader's system asks for; they may change while the page is open. */

import { signal } from "@preact/signals";

const wanted = window.matchMedia("(prefers-color-scheme: dark)");

export const isDark = signal(wanted.matches);
wanted.addEventListener("change", () => {
  isDark.value = wanted.matches;
});
