// A client of MQTT 5.0 over WebSocket: clean sessions, QoS 0 to 2 both ways, subscriptions that survive a reconnect.

import { token } from "./api.js";
import * as packets from "./packets.js";
import { value } from "./properties.js";

const KEEP_ALIVE = 30;
const LONGEST_WAIT = 10000;
const PASSING = [136, 137, 151, 159]; // codes of CONNACK that may pass by themselves

export class Client extends EventTarget {
  constructor() {
    super();
    Object.assign(this, { state: "closed", reason: "", filters: new Map(), waiting: new Map(), number: 0, credentials: {} });
  }

  // Begin, and begin again whenever it ends; "state" is said at each change, "message" for each message.
  open(credentials = this.credentials) {
    this.credentials = credentials;
    this.wanted = true;
    if (this.socket) return;
    const place = `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/mqtt`;
    const shown = token.get() ? [`flockmq.token.${token.get()}`] : [];
    const socket = (this.socket = new WebSocket(place, ["mqtt", ...shown]));
    socket.binaryType = "arraybuffer";
    this.rest = new Uint8Array();
    socket.onopen = () => socket.send(packets.connect(`page-${crypto.getRandomValues(new Uint32Array(2)).join("-")}`, credentials, KEEP_ALIVE));
    socket.onmessage = (event) => this.#feed(new Uint8Array(event.data));
    socket.onclose = () => this.#ended();
    this.#become("connecting");
  }

  // Connect again, with other credentials.
  become(credentials) {
    Object.assign(this, { credentials, wanted: true, wait: 1 });
    if (this.socket) this.socket.close();
    else this.open();
  }

  close() {
    this.wanted = false;
    clearTimeout(this.again);
    if (this.state === "open") this.#send(packets.disconnect());
    this.socket?.close();
  }

  // Resolves to the code of SUBACK, and the reason of a refusal.
  subscribe(filter, qos = 0) {
    this.filters.set(filter, qos);
    if (this.state !== "open") return Promise.resolve({ code: qos });
    return this.#asking((id) => packets.subscribe(id, filter, qos)).then(({ codes: [code], properties }) => ({
      code, reason: code < packets.FAILURE ? "" : packets.reason(code, properties),
    }));
  }

  unsubscribe(filter) {
    this.filters.delete(filter);
    if (this.state === "open") this.#asking((id) => packets.unsubscribe(id, filter));
  }

  // Resolves to the acknowledgement of the broker, if there is one. `properties`: a list of [identifier, value].
  async publish(topic, payload, qos = 0, retain = false, properties = []) {
    if (this.state !== "open") throw new Error("Not connected to the broker.");
    const data = typeof payload === "string" ? packets.bytesOf(payload) : payload;
    if (!qos) {
      this.#send(packets.publish(topic, data, 0, retain, 0, properties));
      return null;
    }
    return this.#asking((id) => packets.publish(topic, data, qos, retain, id, properties));
  }

  #asking(make) {
    do this.number = (this.number % 65535) + 1;
    while (this.waiting.has(this.number));
    const id = this.number;
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { resolve, reject });
      this.#send(make(id));
    });
  }

  #send(data) {
    this.socket.send(data);
  }

  #become(state, reason = "") {
    Object.assign(this, { state, reason });
    this.dispatchEvent(new Event("state"));
  }

  #feed(data) {
    const all = new Uint8Array(this.rest.length + data.length);
    all.set(this.rest);
    all.set(data, this.rest.length);
    const [found, rest] = packets.split(all);
    this.rest = rest;
    found.forEach((packet) => this.#take(packet));
  }

  #take(packet) {
    if (packet.kind === packets.CONNACK) this.#connected(packet);
    else if (packet.kind === packets.PUBLISH) this.#published(packet);
    else if (packet.kind === packets.DISCONNECT) this.ending = packets.reason(packet.code, packet.properties);
    else if (packet.kind === packets.PUBREC && packet.code < packets.FAILURE) this.#send(packets.acknowledge(packets.PUBREL, packet.id));
    else if (packet.kind === packets.PUBREL) this.#send(packets.acknowledge(packets.PUBCOMP, packet.id));
    else if (packet.kind !== packets.PINGRESP) {
      const asked = this.waiting.get(packet.id);
      this.waiting.delete(packet.id);
      if (packet.code >= packets.FAILURE) asked?.reject(new Error(`It was refused: ${packets.reason(packet.code, packet.properties)}.`));
      else asked?.resolve(packet);
    }
  }

  #connected({ code, properties }) {
    if (code) {
      this.wanted = PASSING.includes(code);
      this.refusal = packets.reason(code, properties);
      this.socket.close();
      return;
    }
    this.wait = 500;
    const keepAlive = value(properties, "keep alive") || KEEP_ALIVE;
    this.pinging = setInterval(() => this.#send(packets.pingreq()), (keepAlive * 1000) / 2);
    this.#become("open");
    for (const [filter, qos] of this.filters) this.subscribe(filter, qos);
  }

  #published(packet) {
    if (packet.qos === 1) this.#send(packets.acknowledge(packets.PUBACK, packet.id));
    else if (packet.qos === 2) this.#send(packets.acknowledge(packets.PUBREC, packet.id));
    this.dispatchEvent(new CustomEvent("message", { detail: packet }));
  }

  #ended() {
    clearInterval(this.pinging);
    this.socket = null;
    for (const { reject } of this.waiting.values()) reject(new Error("The connection ended before it was acknowledged."));
    this.waiting.clear();
    const { refusal, ending } = this;
    this.refusal = this.ending = "";
    if (refusal) this.#become("refused", refusal);
    else this.#become("closed", this.wanted ? ending || "the connection ended" : "");
    if (!this.wanted) return;
    this.wait = Math.min((this.wait ?? 500) * 2, LONGEST_WAIT);
    this.again = setTimeout(() => this.wanted && this.open(), this.wait);
  }
}
