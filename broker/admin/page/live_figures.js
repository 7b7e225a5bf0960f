// The figures of all nodes, or of the tenant, each second: the views listen. It keeps the rates of the last two minutes.

import { events, get } from "./api.js";
import { who } from "./sign_in.js";

const KEPT = 120;
const LONGEST_WAIT = 8000;
const EVERY = 1000;

export const pulse = Object.assign(new EventTarget(), { history: [], latest: null, state: "connecting" });

let running = null;

export function start() {
  if (running) return;
  running = new AbortController();
  run(running.signal);
}

export function stop() {
  running?.abort();
  running = null;
}

// Without the figures of the operator before.
export function forget() {
  Object.assign(pulse, { history: [], latest: null });
}

const pause = (time) => new Promise((done) => setTimeout(done, time));

async function* beats(signal) {
  if (!who.tenant) yield* events("/events", signal);
  while (who.tenant) {
    const { items: [{ figures, limits }], failures } = await get("/tenants", {}, signal);
    yield { time: performance.now() / 1000, nodes: { [who.tenant]: figures }, limits, failures };
    await pause(EVERY);
  }
}

async function run(signal) {
  let wait = 500;
  while (!signal.aborted) {
    try {
      for await (const beat of beats(signal)) {
        wait = 500;
        take(beat);
      }
    } catch (error) {
      if (signal.aborted) return;
      become("bad", error.status === 401 || error.status === 403 ? "signed out" : "no answer");
    }
    await pause(wait);
    wait = Math.min(wait * 2, LONGEST_WAIT);
  }
}

function take(beat) {
  const before = pulse.latest;
  pulse.latest = beat;
  if (before && !(who.tenant && (isPartial(before) || isPartial(beat)))) { // a sum without a node gives no rates
    pulse.history.push(moment(before, beat));
    if (pulse.history.length > KEPT) pulse.history.shift();
  }
  const silent = Object.keys(beat.failures).length;
  become(silent ? "warn" : "good", silent ? (who.tenant ? "incomplete" : `${silent} silent`) : "live");
  pulse.dispatchEvent(new Event("beat"));
}

const isPartial = (beat) => Object.keys(beat.failures).length > 0;

function become(state, words) {
  pulse.state = state;
  const link = document.getElementById("link");
  link.className = `link ${state}`;
  if (link.textContent !== words) link.textContent = words;
}

// Sums over the nodes; rates only of nodes that are in both beats.
function moment(before, beat) {
  const seconds = Math.max(0.2, beat.time - before.time);
  const nodes = Object.entries(beat.nodes);
  const total = (name) => nodes.reduce((sum, [, figures]) => sum + figures[name], 0);
  const most = (name) => nodes.reduce((highest, [, figures]) => Math.max(highest, figures[name]), 0);
  const rate = (name) =>
    nodes.reduce((sum, [id, now]) => {
      const then = before.nodes[id];
      return sum + (then ? Math.max(0, now[name] - then[name]) / seconds : 0);
    }, 0);
  if (who.tenant) return {
    in: rate("received"), out: rate("sent"), dropped: rate("dropped"), bytesIn: rate("received_bytes"), bytesOut: rate("sent_bytes"),
    clients: total("connections"), sessions: total("sessions"), subscriptions: total("subscriptions"),
    retained: total("retained"), queued: total("queued_bytes"),
  };
  return {
    in: rate("publish_received"), out: rate("publish_sent"), dropped: rate("publish_dropped"),
    bytesIn: rate("bytes_received"), bytesOut: rate("bytes_sent"), connects: rate("connections_opened"),
    clients: total("clients_connected"), subscriptions: total("subscriptions"), queued: total("queued_messages"),
    inflight: total("inflight_messages"), retained: most("retained"), lag: most("loop_lag_seconds"),
    store: most("store_latency_seconds"),
  };
}
