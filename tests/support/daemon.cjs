// A node-jet daemon of one version on one port.
//
//   node daemon.cjs 1|2|3 tcp|ws PORT [batches]
//
// It prints "ready" and ends with its stdin. The versions are those installed for the interop tests.
'use strict'

const path = require('node:path')
const { createRequire } = require('node:module')
const { pathToFileURL } = require('node:url')

// node-jet 3 makes a CloseEvent when a TCP connection ends, and Node.js has that class only since version 23.
globalThis.CloseEvent ??= class CloseEvent extends Event {}

const [version, transport, port, batches] = process.argv.slice(2)
const installed = createRequire(path.join(__dirname, '..', 'interop', 'package.json'))

const main = async () => {
  const { Daemon } = version === '3'
    ? await import(pathToFileURL(installed.resolve('jet3')))
    : installed(`jet${version}`)
  const daemon = new Daemon(version === '3' ? { log: { logLevel: 0 }, features: { batches: Boolean(batches) } } : undefined)
  daemon.listen({ [transport === 'tcp' ? 'tcpPort' : 'wsPort']: Number(port) })
  process.stdin.on('end', () => process.exit(0)).resume()
  process.stdout.write('ready\n')
}

main()
