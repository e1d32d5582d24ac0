/** The connection to Radar's server: requests with answers, and what the server sends without being asked. */

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
/** A value, when it came (milliseconds), and how many events of it were seen; none if it is older than that. */
export type Shown = [value: Json, ms: number, changes: number];
/** Time and quality of a value, as its owner states them. */
export interface Meta {
  /** RFC 3339. */
  ts?: string;
  quality?: string;
  reason?: string;
}

export interface Status {
  connected: boolean;
  problem: string;
  daemon: { name?: string; version?: string };
  user: string | null;
  /** The daemon has users, so that a login may show more. */
  users: boolean;
  /** The user may close connections. */
  admin: boolean;
  history: boolean;
}

export interface TreeDelta {
  add: [path: string, flags: number][];
  remove: string[];
  reset: boolean;
}

export interface Listener {
  onTree(delta: TreeDelta): void;
  onValues(values: Record<string, Shown>): void;
  /** What watched elements say of themselves; null for one that says nothing any more. */
  onSchemas(schemas: Record<string, Json>): void;
  /** Time and quality of watched values; null where the owner states none. */
  onMeta(metas: Record<string, Meta | null>): void;
  onStatus(status: Status): void;
  /** The connection to the server itself came or went. */
  onLink(open: boolean): void;
}

export class RequestError extends Error {
  constructor(
    message: string,
    readonly type: string,
    readonly data: Json,
  ) {
    super(message);
  }
}

interface Waiting {
  resolve(result: Json): void;
  reject(problem: Error): void;
}

const RETRY_MS_MAX = 5000;

export class Bus {
  private socket: WebSocket | null = null;
  private nextId = 1;
  private retryMs = 250;
  private waiting = new Map<number, Waiting>();
  private watched: string[] = [];

  constructor(
    private url: string,
    private listener: Listener,
  ) {
    this.open();
  }

  private open(): void {
    const socket = new WebSocket(this.url);
    this.socket = socket;
    socket.onopen = () => {
      this.retryMs = 250;
      this.listener.onLink(true);
      this.watch(this.watched);
    };
    socket.onmessage = (event) => this.receive(JSON.parse(event.data as string));
    socket.onclose = () => {
      this.listener.onLink(false);
      for (const one of this.waiting.values())
        one.reject(new RequestError("The connection to Radar was lost.", "ConnectionLost", null));
      this.waiting.clear();
      setTimeout(() => this.open(), this.retryMs);
      this.retryMs = Math.min(Math.max(this.retryMs, 125) * 2, RETRY_MS_MAX);
    };
  }

  private receive(message: {
    tree?: TreeDelta;
    values?: Record<string, Shown>;
    schemas?: Record<string, Json>;
    meta?: Record<string, Meta | null>;
    status?: Status;
    id?: number;
    result?: Json;
    error?: { message: string; type?: string; data?: Json };
  }): void {
    if (message.values) this.listener.onValues(message.values);
    else if (message.tree) this.listener.onTree(message.tree);
    else if (message.schemas) this.listener.onSchemas(message.schemas);
    else if (message.meta) this.listener.onMeta(message.meta);
    else if (message.status) this.listener.onStatus(message.status);
    else if (message.id !== undefined) {
      const waiting = this.waiting.get(message.id);
      this.waiting.delete(message.id);
      if (!waiting) return;
      if (message.error)
        waiting.reject(
          new RequestError(message.error.message, message.error.type ?? "Error", message.error.data ?? null),
        );
      else waiting.resolve(message.result ?? null);
    }
  }

  request(method: string, params: { [key: string]: Json }): Promise<Json> {
    const socket = this.socket;
    if (socket?.readyState !== WebSocket.OPEN)
      return Promise.reject(new RequestError("Radar is not connected.", "NotConnected", null));
    const id = this.nextId++;
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { resolve, reject });
      socket.send(JSON.stringify({ id, method, params }));
    });
  }

  /** Begin anew, as somebody else: the server reads the cookie when it is connected to. */
  reconnect(): void {
    this.retryMs = 0;
    this.socket?.close();
  }

  /** Ask for the values of these paths and of no others. */
  watch(paths: string[]): void {
    this.watched = paths;
    if (this.socket?.readyState === WebSocket.OPEN)
      this.socket.send(JSON.stringify({ method: "watch", params: { paths } }));
  }
}
