/** The frame of the page: bar, navigation, panels, and the time bar. */

import { useEffect } from "preact/hooks";
import { Announcement, BoardsPage } from "./boards/boards";
import { ChartsPage } from "./charts/charts";
import { Detail } from "./detail/detail";
import { JournalPage } from "./pages/journal";
import { LoginDialog, UserMenu } from "./pages/login";
import { PeersPage } from "./pages/peers";
import { PipelinePage } from "./pages/pipeline";
import { focusSearch } from "./palette/commands";
import { openPalette, Palette } from "./palette/palette";
import { instant, linked, selected, status, VIEWS, view } from "./shared/store";
import { ComparePage } from "./time/compare";
import { PastBanner, TimeBar } from "./time/timebar";
import { SearchBox, TreeGrid } from "./tree/treegrid";

export function App() {
  useEffect(() => {
    document.addEventListener("keydown", pressKey);
    return () => document.removeEventListener("keydown", pressKey);
  }, []);
  useEffect(() => {
    // On a narrow screen the tabs scroll, and the chosen one must be seen.
    document.querySelector(".tab[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  }, [view.value]);
  const isPast = instant.value !== null;
  return (
    <div class={`page${isPast ? " past" : ""}`}>
      <header class="bar">
        <h1>Radar</h1>
        <nav aria-label="Pages">
          {VIEWS.map(([name, title]) => (
            <button
              key={name}
              type="button"
              class="tab"
              aria-current={view.value === name ? "page" : undefined}
              onClick={() => {
                view.value = name;
              }}
            >
              {title}
            </button>
          ))}
        </nav>
        <span class="grow" />
        <button type="button" class="opener" aria-keyshortcuts="Control+K" onClick={openPalette}>
          <span>Go to</span> <kbd>Ctrl K</kbd>
        </button>
        <UserMenu />
        <Connection />
      </header>
      {isPast && <PastBanner />}
      {view.value === "tree" && (
        <main class={`panels${selected.value ? " has-detail" : ""}`}>
          <section class="panel list" aria-label="Elements">
            <SearchBox />
            <TreeGrid />
          </section>
          <Detail />
        </main>
      )}
      {view.value === "boards" && <BoardsPage />}
      {view.value === "charts" && <ChartsPage />}
      {view.value === "compare" && <ComparePage />}
      {view.value === "peers" && <PeersPage />}
      {view.value === "pipeline" && <PipelinePage />}
      {view.value === "journal" && <JournalPage />}
      <TimeBar />
      <Palette />
      <Announcement />
      <LoginDialog />
    </div>
  );
}

/** Handle the keys that work everywhere: Ctrl+K for the palette, a slash for the search. */
function pressKey(event: KeyboardEvent): void {
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
    event.preventDefault();
    openPalette();
    return;
  }
  const target = event.target as HTMLElement;
  if (event.key !== "/" || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)) return;
  event.preventDefault();
  focusSearch();
}

/** Tell whether what is shown is live, and of which daemon. */
function Connection() {
  const now = status.value;
  const daemon = now?.daemon.name ? `${now.daemon.name} ${now.daemon.version ?? ""}` : "";
  const [kind, text] = !linked.value
    ? ["lost", "Radar is not reachable, trying again"]
    : !now?.connected
      ? ["lost", now?.problem ? "The daemon is not reachable, trying again" : "Connecting"]
      : ["live", daemon || "connected"];
  return (
    <output class={`connection ${kind}`} title={now?.problem || undefined}>
      <span class="dot" aria-hidden="true" />
      <span class="text">{text}</span>
    </output>
  );
}
