// One of several nodes of Aedes over one Redis, as its documentation shows it: `node server.js PORT REDIS_PORT`.
import { createServer } from 'node:net'
import { Aedes } from 'aedes'
import persistence from 'aedes-persistence-redis'
import emitter from 'mqemitter-redis'

const [port, redisPort] = process.argv.slice(2).map(Number)
const redis = { host: '127.0.0.1', port: redisPort }
// The emitter subscribes as soon as it is connected: the INFO of ioredis' ready check may then be an error, which ends Aedes.
const mq = emitter({ ...redis, enableReadyCheck: false })
const broker = await Aedes.createBroker({ persistence: persistence(redis), mq })
const server = createServer((socket) => {
  socket.setNoDelay(true)
  broker.handle(socket)
})
server.listen(port, '127.0.0.1')
process.on('SIGTERM', () => process.exit(0))
