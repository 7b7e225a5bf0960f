// The views, in the order of the menu: name in the address, title, and the module that shows it.

export const VIEWS = [
  ["overview", "Overview", () => import("./view_overview.js")],
  ["clients", "Clients", () => import("./view_clients.js")],
  ["topics", "Topics", () => import("./view_topics.js")],
  ["groups", "Groups", () => import("./view_groups.js")],
  ["links", "Links", () => import("./view_links.js")],
  ["retained", "Retained", () => import("./view_retained.js")],
  ["console", "Console", () => import("./view_console.js")],
  ["analytics", "Analytics", () => import("./view_analytics.js")],
  ["trace", "Trace", () => import("./view_trace.js")],
  ["bans", "Bans", () => import("./view_bans.js")],
  ["log", "Log", () => import("./view_log.js")],
];
