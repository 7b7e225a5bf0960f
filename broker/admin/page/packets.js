// MQTT 3.1.1 packets, as far as a console needs them.

export const CONNACK = 2, PUBLISH = 3, PUBACK = 4, PUBREC = 5, PUBREL = 6, PUBCOMP = 7, SUBACK = 9, UNSUBACK = 11;
export const PINGRESP = 13;

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

export function connect(clientId, { username, password } = {}, keepAlive = 30) {
  const flags = 2 | (username ? 128 : 0) | (username && password ? 64 : 0);
  const body = [...text("MQTT"), 4, flags, ...u16(keepAlive), ...text(clientId)];
  if (username) body.push(...text(username));
  if (username && password) body.push(...text(password));
  return packet(0x10, body);
}

export function publish(topic, payload, qos, retain, id) {
  return packet(0x30 | (qos << 1) | Number(retain), [...text(topic), ...(qos ? u16(id) : [])], payload);
}

export const subscribe = (id, filter, qos) => packet(0x82, [...u16(id), ...text(filter), qos]);
export const unsubscribe = (id, filter) => packet(0xa2, [...u16(id), ...text(filter)]);
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
  if (kind === CONNACK) return { kind, code: body[1] };
  if (kind !== PUBLISH) return { kind, id: body.length > 1 ? number(0) : 0, codes: body.subarray(2) };
  const qos = (first >> 1) & 3, end = 2 + number(0);
  return {
    kind, qos, retain: Boolean(first & 1), topic: decoder.decode(body.subarray(2, end)),
    id: qos ? number(end) : 0, payload: body.slice(end + (qos ? 2 : 0)),
  };
}
