// Figures in words.

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

export const count = (n) => (n < 100000 ? whole.format(Math.round(n)) : short.format(n));

export function rate(n) {
  return n > 0 && n < 10 ? n.toFixed(1) : count(n);
}

export function bytes(n) {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (n < 1024) return `${unit === "B" ? n : n.toFixed(n < 10 ? 1 : 0)} ${unit}`;
    n /= 1024;
  }
  return `${n.toFixed(1)} TiB`;
}

export function seconds(s) {
  if (s < 0.001) return `${Math.round(s * 1e6)} µs`;
  if (s < 1) return `${(s * 1000).toFixed(s < 0.01 ? 1 : 0)} ms`;
  return `${s.toFixed(1)} s`;
}

export function span(s) {
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const first = units.findIndex(([, size]) => s >= size);
  if (first < 0) return "0 s";
  const [unit, size] = units[first];
  const next = units[first + 1];
  const rest = next ? Math.floor((s % size) / next[1]) : 0;
  return `${Math.floor(s / size)} ${unit}${rest ? ` ${rest} ${next[0]}` : ""}`;
}

export const moment = (s) => new Date(s * 1000).toLocaleString();
export const some = (n, one, more = `${one}s`) => `${count(n)} ${n === 1 ? one : more}`;
