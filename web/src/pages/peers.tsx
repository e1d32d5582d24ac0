/** Who is connected: what each peer owns and fetches, how far behind it is, and a way to close it. */

import { useEffect, useState } from "preact/hooks";
import type { Json, RequestError } from "../shared/bus";
import { type Fields, fieldsOf, numberOf, textOf } from "../shared/facts";
import { showBytes } from "../shared/format";
import {
  bus,
  frame,
  live,
  liveTree,
  mayAdminister,
  pinPaths,
  search,
  structure,
  view,
} from "../shared/store";

const OWNED_SHOWN = 200;

export function PeersPage() {
  frame.value;
  structure.value;
  const paths = [...liveTree.paths()].filter((path) => /^\$jet\/peers\/\d+$/.test(path));
  const key = paths.join();
  useEffect(() => {
    pinPaths([...paths, "$jet/logins"]);
    return () => pinPaths([]);
  }, [key]);
  const [open, setOpen] = useState<number | null>(null);
  const [problem, setProblem] = useState("");
  const users = fieldsOf(live.get("$jet/logins")?.value);
  const kick = (number: number) =>
    bus
      .request("call", { path: "$jet/kick", args: [number] })
      .then(() => setProblem(""))
      .catch((failure: RequestError) => setProblem(failure.message));
  const peers = paths
    .map((path) => ({
      number: Number(path.slice(path.lastIndexOf("/") + 1)),
      peer: fieldsOf(live.get(path)?.value),
    }))
    .sort((one, other) => one.number - other.number);
  const slow = peers.filter(({ peer }) => peer.slow).length;
  return (
    <main class="page-body">
      <h2>Peers</h2>
      {problem && <p class="hint problem">{problem}</p>}
      {paths.length === 0 ? (
        <p class="hint">This daemon does not say who is connected.</p>
      ) : (
        <>
          <p class="hint">
            {peers.length} connected{slow > 0 ? `, ${slow} slow` : ""}
          </p>
          <div class="scroll">
            <table>
              <thead>
                <tr>
                  <th>Peer</th>
                  <th class="lesser">Address</th>
                  <th class="lesser">Dialect</th>
                  <th class="num">Elements</th>
                  <th class="num">Fetches</th>
                  <th class="num">Queue</th>
                  <th class="num">Conflated</th>
                  <th>
                    <span class="hidden">Actions</span>
                  </th>
                </tr>
              </thead>
              <tbody>
                {peers.map(({ number, peer }) => (
                  <PeerRows
                    key={number}
                    number={number}
                    peer={peer}
                    user={textOf(users[String(number)])}
                    isOpen={open === number}
                    onToggle={() => setOpen(open === number ? null : number)}
                    onKick={mayAdminister() ? () => kick(number) : null}
                  />
                ))}
              </tbody>
            </table>
          </div>
        </>
      )}
    </main>
  );
}

interface PeerProps {
  number: number;
  peer: Fields;
  user: string;
  isOpen: boolean;
  onToggle(): void;
  onKick: (() => void) | null;
}

function PeerRows({ number, peer, user, isOpen, onToggle, onKick }: PeerProps) {
  const name = textOf(peer.name);
  return (
    <>
      <tr class={peer.slow ? "slow" : ""}>
        <td>
          <button type="button" class="link" aria-expanded={isOpen} onClick={onToggle}>
            {name || `peer ${number}`}
          </button>{" "}
          <span class="quiet">#{number}</span> {user && <span class="badge">{user}</span>}{" "}
          {peer.slow ? <span class="badge alarm">slow</span> : null}
        </td>
        <td class="lesser">
          {textOf(peer.transport)} {textOf(peer.address)}
        </td>
        <td class="quiet lesser">{textOf(peer.dialect)}</td>
        <td class="num">{numberOf(peer.elements)}</td>
        <td class="num">{numberOf(peer.fetches)}</td>
        <td class="num">{showBytes(numberOf(peer.outbox_bytes))}</td>
        <td class="num">{peer.conflated === undefined ? "" : numberOf(peer.conflated)}</td>
        <td class="num">
          {onKick && (
            <button
              type="button"
              class="chip"
              aria-label={`Close ${name || `peer ${number}`}`}
              onClick={onKick}
            >
              Close
            </button>
          )}
        </td>
      </tr>
      {isOpen && (
        <tr class="about">
          <td colSpan={8}>
            <About number={number} />
          </td>
        </tr>
      )}
    </>
  );
}

interface Holdings {
  owns: string[];
  total: number;
  fetches: Json[];
}

/** What one peer owns and fetches, as the daemon tells it. */
function About({ number }: { number: number }) {
  const [holdings, setHoldings] = useState<Holdings | null>(null);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    bus
      .request("call", { path: "$jet/holdings", args: { peer: number, limit: OWNED_SHOWN } })
      .then((answer) => setHoldings((answer as unknown as { result: Holdings }).result))
      .catch((failure: RequestError) => setProblem(failure.message));
  }, [number]);
  if (problem) return <p class="hint problem">{problem}</p>;
  if (!holdings) return <p class="hint">Asking the daemon.</p>;
  const { owns, total, fetches } = holdings;
  return (
    <div class="holdings">
      <section aria-label="Owns">
        <h4>Owns</h4>
        {owns.length === 0 && <p class="hint">nothing</p>}
        <ul>
          {owns.map((path) => (
            <li key={path}>
              <button
                type="button"
                class="link"
                onClick={() => {
                  search(path);
                  view.value = "tree";
                }}
              >
                {path}
              </button>
            </li>
          ))}
        </ul>
        {total > owns.length && <p class="hint">and {total - owns.length} more</p>}
      </section>
      <section aria-label="Fetches">
        <h4>Fetches</h4>
        {fetches.length === 0 && <p class="hint">nothing</p>}
        <ul>
          {fetches.map((rule) => (
            <li key={JSON.stringify(rule)} class="mono">
              {Object.keys(fieldsOf(rule)).length === 0 ? "everything" : JSON.stringify(rule)}
            </li>
          ))}
        </ul>
      </section>
    </div>
  );
}
