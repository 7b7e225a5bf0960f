// The properties of MQTT 5.0: read from packets, and written for eyes.

const decoder = new TextDecoder();
const hex = (data) => [...data].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");

// Identifier -> name and type.
const KNOWN = {
  0x01: ["payload format", "byte"], 0x02: ["expires in", "four"], 0x03: ["content type", "text"], 0x08: ["response topic", "text"],
  0x09: ["correlation data", "data"], 0x0b: ["subscription", "varint"], 0x11: ["session expiry", "four"],
  0x12: ["client id", "text"], 0x13: ["keep alive", "two"], 0x15: ["authentication method", "text"],
  0x16: ["authentication data", "data"], 0x1a: ["response information", "text"], 0x1c: ["server reference", "text"],
  0x1f: ["reason", "text"], 0x21: ["receive maximum", "two"], 0x22: ["topic alias maximum", "two"], 0x23: ["topic alias", "two"],
  0x24: ["maximum QoS", "byte"], 0x25: ["retain available", "byte"], 0x26: ["user property", "pair"],
  0x27: ["maximum packet size", "four"], 0x28: ["wildcards available", "byte"],
  0x29: ["subscription identifiers available", "byte"], 0x2a: ["shared subscriptions available", "byte"],
};

// The property block at `at`: a list of [name, value, whether it is a user property], and the place behind the block.
export function read(body, at) {
  const found = [];
  if (at >= body.length) return [found, at];
  const number = (size) => {
    let value = 0;
    for (let i = 0; i < size; i++) value = value * 256 + body[at++];
    return value;
  };
  const varint = () => {
    let value = 0, shift = 0, byte;
    do {
      byte = body[at++];
      value += (byte & 127) * 2 ** shift;
      shift += 7;
    } while (byte > 127 && shift < 28);
    return value;
  };
  const data = () => {
    const size = number(2);
    return body.subarray(at, (at += size));
  };
  const text = () => decoder.decode(data());
  const end = varint() + at;
  while (at < end) {
    const [name, type] = KNOWN[body[at++]] ?? ["unknown", ""];
    if (type === "pair") found.push([text(), text(), true]);
    else if (type === "text") found.push([name, text()]);
    else if (type === "data") found.push([name, hex(data())]);
    else if (type === "varint") found.push([name, varint()]);
    else if (type) found.push([name, number({ byte: 1, two: 2, four: 4 }[type])]);
    else break;
  }
  return [found, end];
}

// A property block with its length, from a list of [identifier, value]; a user property's value is [name, value].
export function write(properties) {
  const encoder = new TextEncoder();
  const sized = (text) => {
    const data = encoder.encode(text);
    if (data.length > 65535) throw new Error("A property is longer than 65535 bytes.");
    return [data.length >> 8, data.length & 255, ...data];
  };
  const put = {
    byte: (value) => [value],
    four: (value) => [(value >>> 24) & 255, (value >>> 16) & 255, (value >>> 8) & 255, value & 255],
    text: sized,
    data: sized,
    pair: ([name, value]) => [...sized(name), ...sized(value)],
  };
  const block = properties.flatMap(([identifier, value]) => [identifier, ...put[KNOWN[identifier][1]](value)]);
  const length = [];
  let rest = block.length;
  do {
    length.push((rest & 127) | (rest > 127 ? 128 : 0));
    rest >>= 7;
  } while (rest);
  return [...length, ...block];
}

export const value = (properties, name) => properties?.find(([key, , own]) => key === name && !own)?.[1];

// Properties of a message in words: a list of [name, text].
export function told(properties = []) {
  return properties.map(([name, value, own]) => {
    if (name === "expires in" && !own) return [name, `${value} s`];
    if (name === "payload format" && !own) return [name, value ? "text" : "bytes"];
    return [name, String(value)];
  });
}
