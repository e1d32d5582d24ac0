// node-jet's peer as a measured client; the same work as peer_jetbus.py, for bench/peers.py.
//
//   node peer_nodejet.cjs PORT set|call|notified|changes SECONDS WARM_SECONDS
//
// Prints one line of JSON: how many messages, in how much CPU time of this process and how much time.
// It runs in the folder where node-jet is installed.
'use strict'

const { createRequire } = require('node:module')
const jet = createRequire(process.cwd() + '/')('node-jet')

const [port, name, seconds, warmSeconds] = process.argv.slice(2)
const WINDOW = 100 // requests under way
const BURST = 1000 // changes between two confirmations
const BURSTS = 4 // bursts of notifications under way

let count = 0
let running = true

// So many loops at once, each of which waits for its own answer.
const windows = (many, work) => Promise.all(Array.from({ length: many }, work))

const cases = {
  set: (peer) => windows(WINDOW, async () => {
    while (running) {
      await peer.set('bench/value', count)
      count += 1
    }
  }),

  call: (peer) => windows(WINDOW, async () => {
    while (running) {
      await peer.call('bench/echo', [count])
      count += 1
    }
  }),

  notified: async (peer) => {
    let last = 0
    const fetcher = new jet.Fetcher().path('startsWith', 'bench/states/').on('data', (event) => {
      if (event.event === 'change') {
        count += 1
        last = event.value
      }
    })
    await peer.fetch(fetcher)
    const start = await peer.call('bench/pump', [0])
    await windows(BURSTS, async () => {
      while (running) await peer.call('bench/pump', [BURST])
    })
    const end = await peer.call('bench/pump', [0])
    if (last !== end || count !== end - start) throw new Error(`${count} of ${end - start} changes arrived`)
    await peer.unfetch(fetcher)
  },

  changes: async (peer) => {
    const state = new jet.State('bench/mine', 0)
    await peer.add(state)
    while (running) {
      for (let i = 0; i < BURST; i++) state.value(count + i)
      await peer.info()
      count += BURST
    }
  }
}

const usage = () => ({ cpu: process.cpuUsage(), time: process.hrtime.bigint(), count })

const main = async () => {
  const peer = new jet.Peer({ ip: '127.0.0.1', port: Number(port) })
  await peer.connect()
  const work = cases[name](peer)
  let from
  setTimeout(() => { from = usage() }, warmSeconds * 1e3)
  const result = new Promise((resolve) => setTimeout(() => {
    const { user, system } = process.cpuUsage(from.cpu)
    resolve({
      count: count - from.count,
      cpu_s: (user + system) / 1e6,
      wall_s: Number(process.hrtime.bigint() - from.time) / 1e9
    })
    running = false
  }, (Number(warmSeconds) + Number(seconds)) * 1e3))
  await work
  console.log(JSON.stringify(await result))
  await peer.close()
}

main()
