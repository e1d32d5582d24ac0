/** How well words fit a text: whole words before beginnings, beginnings before any other place. */

/** Return the rank of a text, lower is better; null if a word is not in it. The server ranks paths the same way. */
export function rankText(text: string, words: string[]): number | null {
  const lower = text.toLowerCase();
  const parts = lower.split(/[\s/._-]+/);
  let worst = 0;
  for (const word of words) {
    if (!lower.includes(word)) return null;
    if (parts.includes(word)) continue;
    worst = Math.max(worst, parts.some((part) => part.startsWith(word)) ? 1 : 2);
  }
  return worst;
}

/** Return the items that fit what was typed, best first; all of them, as they are, if nothing was. */
export function rankItems<T>(items: T[], typed: string, textOf: (item: T) => string): T[] {
  const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) return items;
  const ranked: [number, number, T][] = [];
  items.forEach((item, index) => {
    const rank = rankText(textOf(item), words);
    if (rank !== null) ranked.push([rank, index, item]);
  });
  return ranked.sort((a, b) => a[0] - b[0] || a[1] - b[1]).map(([, , item]) => item);
}
