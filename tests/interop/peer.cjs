// node-jet peers of one version, steered by JSON lines.
//
//   node peer.cjs 1|2|3
//
// stdin   {"id", "peer", "op", ...}                    one request a line; `ops` below lists them
// stdout  {"pid"}                                      the first line
//         {"id", "result"} or {"id", "error"}          its outcome
//         {"peer", "report": "fetch", "fetch", ...}    what a fetcher was told
//         {"peer", "report": "set" | "call", ...}      what an owner was asked
//         {"peer", "report": "frame", "way", "text"}   a frame on the wire
//         {"report": "stray", "text"}                  an error that nobody caught
//
// The process ends with its stdin.
'use strict'

const readline = require('node:readline')

// node-jet 3 makes a CloseEvent when its TCP connection ends, and Node.js has that class only since version 23.
globalThis.CloseEvent ??= class CloseEvent extends Event {}

const version = process.argv[2]
const say = (line) => process.stdout.write(JSON.stringify(line) + '\n')
const stray = (error) => say({ report: 'stray', text: String((error && error.stack) || JSON.stringify(error)) })
process.on('uncaughtException', stray)
process.on('unhandledRejection', stray)

const peers = {} // name -> {peer, elements: {path: State or Method}, fetchers: {name: Fetcher}}
const replies = [] // what a `later` handler still owes, by ticket

// What a handler answers, by name. node-jet 1 and 2 tell a synchronous handler from an asynchronous one by its number
// of parameters, so every entry spells out its own.
const classicSet = (jet, ask) => ({
  accept: (value) => { ask(value) },
  clamp: (value) => { ask(value); return { value: Math.min(value, 100) } },
  quiet: (value) => { ask(value); return { dontNotify: true } },
  refuse: (value) => { ask(value); throw new jet.InvalidArgument('refused by the owner') },
  fail: (value) => { ask(value); throw new Error('broken in the owner') },
  code: (value) => { ask(value); throw { code: 4711, message: 'own code', data: { hint: [1] } } },
  later: (value, reply) => { ask(value, replies.push(reply) - 1) }
})

const classicCall = (jet, ask) => ({
  ...classicSet(jet, ask),
  echo: (args) => { ask(args); return args },
  first: (args) => { ask(args); return args[0] },
  sum: (args) => { ask(args); return args.reduce((a, b) => a + b, 0) }
})

const modernSet = (jet, ask) => ({
  accept: (value) => { ask(value) },
  refuse: (value) => { ask(value); throw new jet.InvalidArgument('refused by the owner') },
  fail: (value) => { ask(value); throw new Error('broken in the owner') }
})

const classic = (jet) => ({
  jet,
  open: (config, trace) => new jet.Peer({
    ...config,
    onSend: (text) => trace('sent', text),
    onReceive: (text) => trace('received', text)
  }),
  state: ({ path, value, access }) => new jet.State(path, value, access),
  method: ({ path, access }) => new jet.Method(path, access),
  onSet: classicSet,
  onCall: classicCall,
  publish: (state, value, confirmed) => state.value(value, confirmed),
  closed: (peer) => peer.closed()
})

const modern = (jet) => ({
  jet,
  open: (config, trace) => new jet.Peer({
    ...config,
    log: {
      logName: '',
      logLevel: jet.LogLevel.socket,
      logCallbacks: [(line) => {
        const [, way, text] = /(Sending|Received) message: *([^]*)$/.exec(line) || []
        if (way) trace(way === 'Sending' ? 'sent' : 'received', text)
      }]
    }
  }),
  state: ({ path, value, access = {} }) => new jet.State(path, value, access.read, access.write),
  method: ({ path, access = {} }) => new jet.Method(path, access.write),
  onSet: modernSet,
  onCall: modernSet,
  publish: (state, value) => { state.value(value) },
  closed: async (peer) => {
    while (peer.isConnected()) await new Promise(setImmediate)
  }
})

const describe = (library, error) => {
  const base = library.jet.BaseError || library.jet.JSONRPCError
  const { name, message, code, data } = Object(error)
  return {
    kind: error instanceof base ? name.replace('jet.', '') : null,
    message: message || String(error),
    code,
    data
  }
}

// What a fetcher hands to its listener: one event, a whole sorted array, or its changes and its length.
const told = (first, second) => (typeof second === 'number' ? { changes: first, n: second } : first)

const operations = (library) => {
  const { jet } = library

  const element = (here, kind, args) => {
    const made = library[kind](args)
    const name = kind === 'state' ? 'set' : 'call'
    const ask = (value, ticket) => say({ peer: args.peer, report: name, path: args.path, value, ticket })
    if (args.handler) made.on(name, library[kind === 'state' ? 'onSet' : 'onCall'](jet, ask)[args.handler])
    here.elements[args.path] = made
    return here.peer.add(made)
  }

  const ops = {
    connect: async (_, { peer: name, config }) => {
      const trace = (way, text) => say({ peer: name, report: 'frame', way, text })
      const peer = library.open(config, trace)
      peers[name] = { peer, elements: {}, fetchers: {} }
      await peer.connect()
      return peer.access
    },
    reconnect: async ({ peer }) => { await peer.connect() },
    close: async ({ peer }) => { await peer.close() },
    closed: async ({ peer }) => { await library.closed(peer) },
    isConnected: async ({ peer }) => peer.isConnected(),
    daemonInfo: async ({ peer }) => peer.daemonInfo,
    info: ({ peer }) => peer.info(),
    configure: ({ peer }, { params }) => peer.configure(params),
    authenticate: ({ peer }, { user, password }) => peer.authenticate(user, password),
    addUser: ({ peer }, { user, password, groups }) => peer.addUser(user, password, groups),
    addState: (here, args) => element(here, 'state', args),
    addMethod: (here, args) => element(here, 'method', args),
    remove: ({ peer, elements }, { path }) => peer.remove(elements[path]),
    change: async ({ elements }, { path, value, confirmed }) => library.publish(elements[path], value, confirmed),
    value: async ({ elements }, { path }) => elements[path].value(),
    reply: async (_, { ticket, answer }) => { replies[ticket](answer) },
    set: ({ peer }, { path, value, options }) => peer.set(path, value, options),
    call: ({ peer }, { path, args, options }) => peer.call(path, args, options),
    get: ({ peer }, { expression }) => peer.get(expression),
    fetch: async ({ peer, fetchers }, { peer: name, fetch, rules, asNotification }) => {
      const fetcher = new jet.Fetcher()
      for (const [rule, ...operands] of rules) fetcher[rule](...operands)
      fetcher.on('data', (first, second) => say({ peer: name, report: 'fetch', fetch, event: told(first, second) }))
      fetchers[fetch] = fetcher
      await peer.fetch(fetcher, asNotification)
    },
    refetch: async ({ peer, fetchers }, { fetch }) => { await peer.fetch(fetchers[fetch]) },
    unfetch: async ({ peer, fetchers }, { fetch }) => { await peer.unfetch(fetchers[fetch]) },
    batch: async (here, { peer, steps }) => {
      let started
      here.peer.batch(() => { started = steps.map((step) => ops[step.op](here, { ...step, peer })) })
      const outcomes = await Promise.allSettled(started)
      return outcomes.map(({ value = null, reason }) =>
        reason ? { error: describe(library, reason) } : { result: value })
    }
  }
  return ops
}

const main = async () => {
  const library = version === '3' ? modern(await import('jet3')) : classic(require(`jet${version}`))
  const ops = operations(library)
  say({ pid: process.pid })
  readline.createInterface({ input: process.stdin })
    .on('close', () => process.exit(0))
    .on('line', async (line) => {
      const request = JSON.parse(line)
      try {
        const result = await ops[request.op](peers[request.peer], request)
        say({ id: request.id, result })
      } catch (error) {
        say({ id: request.id, error: describe(library, error) })
      }
    })
}

main()
