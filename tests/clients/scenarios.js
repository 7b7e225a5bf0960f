// What MQTT.js is made to do against a node: `node scenarios.js URL LEVEL`. Prints one line a scenario; exits 0 if all are well.
'use strict'
const assert = require('node:assert/strict')
const mqtt = require('mqtt')

const [url, level] = [process.argv[2], Number(process.argv[3])]
const DEADLINE = 900000

function within (what, promise) {
  let timer
  const late = new Promise((_resolve, reject) => {
    timer = setTimeout(() => reject(new Error(`${what}: did not happen`)), DEADLINE)
  })
  return Promise.race([promise, late]).finally(() => clearTimeout(timer))
}

function connect (clientId, options = {}) {
  return within(`connect ${clientId}`, mqtt.connectAsync(url, {
    clientId,
    protocolId: level === 3 ? 'MQIsdp' : 'MQTT',
    protocolVersion: level,
    reconnectPeriod: 0,
    ...options
  }))
}

// Keeps all messages of a client; `take(n)` resolves with the next n.
function collect (client) {
  const messages = []
  let wake = () => {}
  client.on('message', (topic, payload, packet) => {
    messages.push([topic, payload.toString(), packet.qos, packet.retain])
    wake()
  })
  return async (count) => {
    while (messages.length < count) {
      await within(`message ${messages.length + 1} of ${count}`, new Promise((resolve) => { wake = resolve }))
    }
    return messages.splice(0, count)
  }
}

const scenarios = {
  async 'publish and subscribe at each QoS' () {
    const client = await connect('each')
    const take = collect(client)
    for (const granted of [0, 1, 2]) {
      await client.subscribeAsync('t/+', { qos: granted })
      for (const qos of [0, 1, 2]) {
        await client.publishAsync('t/a', `${qos}`, { qos })
        assert.deepEqual(await take(1), [['t/a', `${qos}`, Math.min(qos, granted), false]])
      }
    }
    await client.unsubscribeAsync('t/+')
    await client.endAsync()
  },

  async 'many QoS 2 messages at once, each once and in order' () {
    const client = await connect('many')
    const take = collect(client)
    await client.subscribeAsync('many', { qos: 2 })
    const sent = []
    for (let n = 0; n < 900; n++) sent.push(client.publishAsync('many', `${n}`, { qos: 2 }))
    const found = (await take(900)).map(([, payload]) => Number(payload))
    assert.deepEqual(found, Array.from({ length: 900 }, (_, n) => n))
    await within('all acknowledged', Promise.all(sent))
    await client.endAsync()
  },

  async 'a large message' () {
    const client = await connect('large')
    const take = collect(client)
    await client.subscribeAsync('large', { qos: 1 })
    await client.publishAsync('large', 'x'.repeat(1500000), { qos: 1 })
    assert.equal((await take(1))[0][1].length, 1500000)
    await client.endAsync()
  },

  async 'retained messages' () {
    const client = await connect('retained')
    const take = collect(client)
    await client.publishAsync('kept/js', 'here', { qos: 1, retain: true })
    await client.subscribeAsync('kept/#', { qos: 1 })
    assert.deepEqual(await take(1), [['kept/js', 'here', 1, true]])
    await client.publishAsync('kept/js', '', { qos: 1, retain: true })
    assert.deepEqual(await take(1), [['kept/js', '', 1, false]])
    await client.endAsync()
  },

  async 'a will' () {
    const watcher = await connect('watcher')
    const take = collect(watcher)
    await watcher.subscribeAsync('will/#', { qos: 2 })
    const client = await connect('dies', { will: { topic: 'will/js', payload: 'gone', qos: 1 } })
    client.stream.destroy()
    assert.deepEqual(await take(1), [['will/js', 'gone', 1, false]])
    await watcher.endAsync()
  },

  async 'a persistent session' () {
    const first = await connect('persistent', { clean: false })
    await first.subscribeAsync('later', { qos: 2 })
    await first.endAsync()
    const other = await connect('other')
    await other.publishAsync('later', 'waited', { qos: 2 })
    const second = mqtt.connect(url, {
      clientId: 'persistent', clean: false, reconnectPeriod: 0, protocolVersion: level, protocolId: level === 3 ? 'MQIsdp' : 'MQTT'
    })
    const take = collect(second)
    const [connack] = await within('connack', new Promise((resolve) => second.once('connect', (...all) => resolve(all))))
    assert.equal(connack.sessionPresent, level > 3)
    assert.deepEqual(await take(1), [['later', 'waited', 2, false]])
    await second.endAsync()
    await other.endAsync()
  },

  async 'a filter that is refused' () {
    if (level === 3) return // it has no word for it
    const client = await connect('refused')
    await assert.rejects(client.subscribeAsync(`${'l/'.repeat(300)}#`))
    await client.endAsync()
  },

  async 'a client id that is refused' () {
    const options = level === 3 ? ['x'.repeat(24), {}] : ['', { clean: false }]
    await assert.rejects(connect(...options), /(Identifier rejected|Missing clientId)/i)
  }
}

async function main () {
  for (const [name, scenario] of Object.entries(scenarios)) {
    await scenario()
    console.log(`ok ${name}`)
  }
}

main().then(() => process.exit(0), (error) => {
  console.error(error)
  process.exit(1)
})
