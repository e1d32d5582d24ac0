/** Logging in: who one is, what a login changes, and the form. */

import { signal } from "@preact/signals";
import { useState } from "preact/hooks";
import { bus, linked, mayAdminister, status } from "../shared/store";

const isAsking = signal(false);

/** The user in the bar: a button to log in, or the name and a button to leave. Only where the daemon has users. */
export function UserMenu() {
  const now = status.value;
  if (!now?.connected) return null;
  if (now.user)
    return (
      <span class="user">
        <span title={mayAdminister() ? "administrator" : undefined}>{now.user}</span>
        <button type="button" class="chip" onClick={logOut}>
          Log out
        </button>
      </span>
    );
  if (!now.users) return null;
  return (
    <button
      type="button"
      class="chip"
      onClick={() => {
        isAsking.value = true;
      }}
    >
      Log in
    </button>
  );
}

/** A sentence for pages that show nothing: perhaps a login would. */
export function LoginHint() {
  const now = status.value;
  if (!now?.connected || !now.users || now.user) return null;
  return <p>This daemon has users: log in to see what is open to you.</p>;
}

/** The form, over the page: where it is asked for, or where nothing can be seen without it. */
export function LoginDialog() {
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  if (!isAsking.value || !linked.value) return null;
  const submit = async (form: HTMLFormElement) => {
    const data = new FormData(form);
    setBusy(true);
    try {
      const response = await fetch("login", {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: JSON.stringify({ user: data.get("user"), password: data.get("password") }),
      });
      if (response.ok) {
        setProblem("");
        isAsking.value = false;
        bus.reconnect();
      } else setProblem(((await response.json()) as { error: string }).error);
    } catch (failure) {
      setProblem((failure as Error).message);
    }
    setBusy(false);
  };
  const cancel = () => {
    isAsking.value = false;
    setProblem("");
  };
  return (
    <div class="veil" role="dialog" aria-modal="true" aria-label="Log in">
      <form
        class="form dialog"
        onSubmit={(event) => {
          event.preventDefault();
          submit(event.currentTarget);
        }}
        onKeyDown={(event) => {
          if (event.key === "Escape") cancel();
        }}
      >
        <h2>Log in</h2>
        <p class="hint">
          The daemon decides what you may see, set and call. Your browser keeps a cookie until you log out;
          the password stays with Radar.
        </p>
        <label class="field">
          <span>User</span>
          <input type="text" name="user" autocomplete="username" required ref={(input) => input?.focus()} />
        </label>
        <label class="field">
          <span>Password</span>
          <input type="password" name="password" autocomplete="current-password" />
        </label>
        {problem && (
          <p class="hint problem" role="alert">
            {problem}
          </p>
        )}
        <div class="buttons">
          <button type="submit" class="primary" disabled={busy}>
            Log in
          </button>
          <button type="button" onClick={cancel}>
            Cancel
          </button>
        </div>
      </form>
    </div>
  );
}

async function logOut(): Promise<void> {
  await fetch("logout", { method: "POST" });
  bus.reconnect();
}
