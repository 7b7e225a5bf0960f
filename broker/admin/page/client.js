// An MQTT 3.1.1 client over WebSocket: clean sessions, QoS 0 to 2 both ways, subscriptions that survive a reconnect.

import { token } from "./api.js";
import * as packets from "./packets.js";

const KEEP_ALIVE = 30;
const LONGEST_WAIT = 10000;
const REASONS = ["", "the protocol is refused", "the client id is refused", "the broker is not available",
  "wrong user name or password", "not authorized"];

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

  // Begin anew, as somebody else.
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

  subscribe(filter, qos = 0) {
    this.filters.set(filter, qos);
    if (this.state !== "open") return Promise.resolve(qos);
    return this.#asking((id) => packets.subscribe(id, filter, qos)).then((answer) => answer.codes[0]);
  }

  unsubscribe(filter) {
    this.filters.delete(filter);
    if (this.state === "open") this.#asking((id) => packets.unsubscribe(id, filter));
  }

  // Resolves when the broker has acknowledged it.
  publish(topic, payload, qos = 0, retain = false) {
    if (this.state !== "open") return Promise.reject(new Error("Not connected to the broker."));
    const data = typeof payload === "string" ? packets.bytesOf(payload) : payload;
    if (!qos) {
      this.#send(packets.publish(topic, data, 0, retain, 0));
      return Promise.resolve();
    }
    return this.#asking((id) => packets.publish(topic, data, qos, retain, id));
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
    if (packet.kind === packets.CONNACK) this.#connected(packet.code);
    else if (packet.kind === packets.PUBLISH) this.#published(packet);
    else if (packet.kind === packets.PUBREC) this.#send(packets.acknowledge(packets.PUBREL, packet.id));
    else if (packet.kind === packets.PUBREL) this.#send(packets.acknowledge(packets.PUBCOMP, packet.id));
    else if (packet.kind !== packets.PINGRESP) {
      this.waiting.get(packet.id)?.resolve(packet);
      this.waiting.delete(packet.id);
    }
  }

  #connected(code) {
    if (code) {
      this.wanted = code === 3;
      this.refusal = code;
      this.socket.close();
      return;
    }
    this.wait = 500;
    this.pinging = setInterval(() => this.#send(packets.pingreq()), (KEEP_ALIVE * 1000) / 2);
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
    const refusal = this.refusal;
    this.refusal = 0;
    if (refusal) this.#become("refused", REASONS[refusal] ?? `return code ${refusal}`);
    else this.#become("closed", this.wanted ? "the connection ended" : "");
    if (!this.wanted) return;
    this.wait = Math.min((this.wait ?? 500) * 2, LONGEST_WAIT);
    this.again = setTimeout(() => this.wanted && this.open(), this.wait);
  }
}
