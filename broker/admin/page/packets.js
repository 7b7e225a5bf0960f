// Packets of MQTT 5.0, as far as a console needs them.

import { read, value, write } from "./properties.js";

export const CONNACK = 2, PUBLISH = 3, PUBACK = 4, PUBREC = 5, PUBREL = 6, PUBCOMP = 7, SUBACK = 9, UNSUBACK = 11;
export const PINGRESP = 13, DISCONNECT = 14;
export const NOBODY = 16; // a code of PUBACK: no subscription matches
export const FAILURE = 128; // codes from here on refuse
const LEVEL = 5; // of the protocol
const REASONS = {
  128: "unspecified error", 129: "malformed packet", 130: "protocol error", 131: "implementation specific error",
  132: "the protocol is refused", 133: "the client id is refused", 134: "wrong user name or password", 135: "not authorized",
  136: "the broker is not available", 137: "the broker is busy", 138: "banned", 139: "the broker shuts down",
  140: "bad authentication method", 141: "keep alive ran out", 142: "taken over by another client", 143: "invalid topic filter",
  144: "invalid topic name", 145: "packet identifier in use", 146: "packet identifier not found", 147: "receive maximum exceeded",
  148: "invalid topic alias", 149: "packet too large", 150: "too many messages", 151: "quota exceeded", 152: "ended by the operator",
  153: "invalid payload format", 154: "retain is not supported", 155: "the QoS is not supported", 156: "use another server",
  157: "the server has moved", 158: "shared subscriptions are not supported", 159: "too many connections", 160: "maximum connect time",
  161: "subscription identifiers are not supported", 162: "wildcards are not supported",
};

// A refusal in words: its code, and the broker's reason string.
export function reason(code, properties) {
  const name = REASONS[code] ?? `code ${code}`, text = value(properties, "reason");
  return text ? `${name}: ${text}` : name;
}

const encoder = new TextEncoder();
const decoder = new TextDecoder();
export const bytesOf = (text) => encoder.encode(text);

const u16 = (n) => [n >> 8, n & 255];

function text(value) {
  const data = typeof value === "string" ? bytesOf(value) : value;
  return [...u16(data.length), ...data];
}

function packet(first, body, payload = new Uint8Array()) {
  const length = [];
  let rest = body.length + payload.length;
  do {
    length.push((rest & 127) | (rest > 127 ? 128 : 0));
    rest >>= 7;
  } while (rest);
  const data = new Uint8Array(1 + length.length + body.length + payload.length);
  data.set([first, ...length, ...body]);
  data.set(payload, 1 + length.length + body.length);
  return data;
}

const NONE = 0; // an empty property block

export function connect(clientId, { username, password } = {}, keepAlive = 30) {
  const flags = 2 | (username ? 128 : 0) | (username && password ? 64 : 0);
  const body = [...text("MQTT"), LEVEL, flags, ...u16(keepAlive), NONE, ...text(clientId)];
  if (username) body.push(...text(username));
  if (username && password) body.push(...text(password));
  return packet(0x10, body);
}

export function publish(topic, payload, qos, retain, id, properties = []) {
  return packet(0x30 | (qos << 1) | Number(retain), [...text(topic), ...(qos ? u16(id) : []), ...write(properties)], payload);
}

export const subscribe = (id, filter, qos) => packet(0x82, [...u16(id), NONE, ...text(filter), qos]);
export const unsubscribe = (id, filter) => packet(0xa2, [...u16(id), NONE, ...text(filter)]);
export const acknowledge = (kind, id) => packet((kind << 4) | (kind === PUBREL ? 2 : 0), u16(id));
export const pingreq = () => packet(0xc0, []);
export const disconnect = () => packet(0xe0, []);

// The packets in what has come so far, and the bytes that are left.
export function split(data) {
  const found = [];
  let start = 0;
  for (;;) {
    let at = start + 1, length = 0, shift = 0, more = true;
    while (more && at < data.length && shift < 28) {
      length |= (data[at] & 127) << shift;
      more = data[at++] > 127;
      shift += 7;
    }
    if (more || at + length > data.length) return [found, data.subarray(start)];
    found.push(decode(data[start], data.subarray(at, at + length)));
    start = at + length;
  }
}

function decode(first, body) {
  const kind = first >> 4;
  const number = (at) => (body[at] << 8) | body[at + 1];
  if (kind === CONNACK) return { kind, code: body[1], properties: read(body, 2)[0] };
  if (kind === DISCONNECT) return { kind, code: body[0] ?? 0, properties: read(body, 1)[0] };
  if (kind === SUBACK || kind === UNSUBACK) {
    const [properties, at] = read(body, 2);
    return { kind, id: number(0), codes: body.subarray(at), properties };
  }
  if (kind !== PUBLISH) return { kind, id: body.length > 1 ? number(0) : 0, code: body[2] ?? 0, properties: read(body, 3)[0] };
  const qos = (first >> 1) & 3, end = 2 + number(0);
  const [properties, at] = read(body, end + (qos ? 2 : 0));
  return {
    kind, qos, retain: Boolean(first & 1), topic: decoder.decode(body.subarray(2, end)), id: qos ? number(end) : 0,
    payload: body.slice(at), properties,
  };
}
