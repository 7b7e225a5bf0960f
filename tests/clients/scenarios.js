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

// At level 5 a session outlives its connection only if the client asks for it.
function kept (options) {
  if (level < 5 || options.clean !== false) return {}
  return { properties: { sessionExpiryInterval: 1000, ...options.properties } }
}

function connect (clientId, options = {}) {
  return within(`connect ${clientId}`, mqtt.connectAsync(url, {
    clientId,
    protocolId: level === 3 ? 'MQIsdp' : 'MQTT',
    protocolVersion: level,
    reconnectPeriod: 0,
    ...options,
    ...kept(options)
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
      clientId: 'persistent', clean: false, reconnectPeriod: 0, protocolVersion: level, protocolId: level === 3 ? 'MQIsdp' : 'MQTT', ...kept({ clean: false })
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
    if (level === 5) return // it gets one from the node
    const options = level === 3 ? ['x'.repeat(24), {}] : ['', { clean: false }]
    await assert.rejects(connect(...options), /(Identifier rejected|Missing clientId)/i)
  }
}

const scenarios5 = {
  async 'a request and its response, with all properties' () {
    const client = await connect('asks')
    const other = await connect('answers')
    await other.subscribeAsync('requests/+', { qos: 1 })
    await client.subscribeAsync('responses/asks', { qos: 1, properties: { subscriptionIdentifier: 5 } })
    const properties = {
      responseTopic: 'responses/asks',
      correlationData: Buffer.from([0, 1]),
      contentType: 'text/plain',
      payloadFormatIndicator: true,
      userProperties: { a: ['1', '2'], b: '3' }
    }
    other.on('message', (_topic, _payload, packet) => {
      const { responseTopic, correlationData, contentType, userProperties } = packet.properties
      assert.equal(contentType, 'text/plain')
      assert.deepEqual({ ...userProperties }, { a: ['1', '2'], b: '3' })
      other.publish(responseTopic, 'answer', { qos: 1, properties: { correlationData } })
    })
    const answer = new Promise((resolve) => client.once('message', (...all) => resolve(all)))
    await client.publishAsync('requests/1', 'question', { qos: 1, properties })
    const [, payload, packet] = await within('answer', answer)
    assert.equal(payload.toString(), 'answer')
    assert.deepEqual([...packet.properties.correlationData], [0, 1])
    assert.equal(packet.properties.subscriptionIdentifier, 5)
    await client.endAsync()
    await other.endAsync()
  },

  async 'topic aliases to the node' () {
    const client = await connect('alias', { autoAssignTopicAlias: true })
    const take = collect(client)
    await client.subscribeAsync('long/topic/name/#', { qos: 1 })
    const sent = Array.from({ length: 100 }, (_, n) => client.publishAsync(`long/topic/name/${n % 30}`, `${n}`, { qos: 1 }))
    const found = await take(100)
    await within('all acknowledged', Promise.all(sent))
    assert.deepEqual(found.map(([topic, payload]) => [topic, payload]),
      Array.from({ length: 100 }, (_, n) => [`long/topic/name/${n % 30}`, `${n}`]))
    await client.endAsync()
  },

  async 'topic aliases from the node' () {
    const client = await connect('aliased', { properties: { topicAliasMaximum: 7 } })
    const take = collect(client)
    await client.subscribeAsync('long/topic/name/#', { qos: 2 })
    const names = Array.from({ length: 200 }, (_, n) => `long/topic/name/${(n * n) % 13}`)
    for (const qos of [0, 1, 2]) {
      const sent = names.map((name) => client.publishAsync(name, name, { qos }))
      assert.deepEqual(await take(200), names.map((name) => [name, name, qos, false]))
      await within('all acknowledged', Promise.all(sent))
    }
    await client.endAsync()
  },

  async 'a Receive Maximum of 1' () {
    const client = await connect('slow', { properties: { receiveMaximum: 1 } })
    const take = collect(client)
    await client.subscribeAsync('one/by/one', { qos: 2 })
    const other = await connect('fast')
    const sent = Array.from({ length: 50 }, (_, n) => other.publishAsync('one/by/one', `${n}`, { qos: 2 }))
    assert.deepEqual((await take(50)).map(([, payload]) => Number(payload)), Array.from({ length: 50 }, (_, n) => n))
    await within('all acknowledged', Promise.all(sent))
    await client.endAsync()
    await other.endAsync()
  },

  async 'a Maximum Packet Size of 128' () {
    const client = await connect('small', { properties: { maximumPacketSize: 128 } })
    const take = collect(client)
    await client.subscribeAsync('sizes', { qos: 1 })
    const other = await connect('sender')
    const payloads = Array.from({ length: 20 }, (_, n) => [`${n}`, 'x'.repeat(200)]).flat()
    const sent = payloads.map((payload) => other.publishAsync('sizes', payload, { qos: 1 }))
    assert.deepEqual((await take(20)).map(([, payload]) => Number(payload)), Array.from({ length: 20 }, (_, n) => n))
    await within('all acknowledged', Promise.all(sent))
    await client.endAsync()
    await other.endAsync()
  },

  async 'a refusal has its reason' () {
    const client = await connect('refused5')
    await assert.rejects(client.publishAsync('$SYS/mine', 'x', { qos: 1 }), /Not authorized/i)
    await client.endAsync()
  }
}

async function main () {
  if (level === 5) Object.assign(scenarios, scenarios5)
  for (const [name, scenario] of Object.entries(scenarios)) {
    await scenario()
    console.log(`ok ${name}`)
  }
}

main().then(() => process.exit(0), (error) => {
  console.error(error)
  process.exit(1)
})
