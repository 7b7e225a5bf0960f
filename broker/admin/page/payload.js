// Payloads for eyes: JSON in lines, text as it is, bytes as hexadecimal. Long ones are cut.

const SHOWN_MOST = 4000;

export function bytesOf(message) {
  if (message.payload instanceof Uint8Array) return message.payload;
  if (message.encoding === "base64") return Uint8Array.from(atob(message.payload), (c) => c.charCodeAt(0));
  return new TextEncoder().encode(message.payload);
}

function textOf(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return null;
  }
}

export function shown(bytes, { pretty = true, most = SHOWN_MOST } = {}) {
  if (!bytes.length) return "(empty)";
  const text = textOf(bytes.subarray(0, most * 4));
  if (text === null) {
    const hex = [...bytes.subarray(0, most / 3)].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    return bytes.length > most / 3 ? `${hex} …` : hex;
  }
  if (text.length > most) return `${text.slice(0, most)}…`;
  if (pretty && /^\s*[[{]/.test(text)) {
    try {
      return JSON.stringify(JSON.parse(text), null, 2);
    } catch {
      return text;
    }
  }
  return text;
}
