// Limits of a tenant, in words.

import { bytes, count } from "./format.js";

const LIMITS = [
  ["max_connections", "Connections", count], ["max_sessions", "Sessions", count], ["max_subscriptions", "Subscriptions", count],
  ["max_subscription_bytes", "Memory of subscriptions", bytes],
  ["messages_per_second", "Messages", (n) => `${count(n)} /s`], ["bytes_per_second", "Traffic", (n) => `${bytes(n)}/s`],
  ["max_retained_messages", "Retained messages", count], ["max_retained_bytes", "Retained", bytes],
  ["max_delayed_messages", "Delayed messages", count], ["max_queued_bytes", "Queued", bytes],
];

// A list of [name, words] of those that there are.
export const told = (limits) => LIMITS.filter(([name]) => limits[name]).map(([name, title, words]) => [title, words(limits[name])]);
