/** The time of an event, as a button that takes the page there. */

import { showInstant } from "../shared/format";
import { travel } from "../shared/store";

export function Moment({ ts }: { ts: number }) {
  return (
    <button
      type="button"
      class="link mono"
      title="Show everything as it was then"
      onClick={() => travel(ts).catch(() => {})}
    >
      {showInstant(ts)}
    </button>
  );
}
