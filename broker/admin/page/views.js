// The views, in the order of the menu: name in the address, title, the module that shows it, and for whom it is.

import { mayChange, who } from "./sign_in.js";

const all = () => true;
const operators = () => !who.tenant;
const administrators = () => !who.tenant && who.role === "admin";
const withTenants = () => who.tenant || who.tenants.length;

const VIEWS = [
  ["overview", "Overview", () => (who.tenant ? import("./view_tenant.js") : import("./view_overview.js")), all],
  ["tenants", "Tenants", () => import("./view_tenants.js"), () => who.tenants.length],
  ["clients", "Clients", () => import("./view_clients.js"), all],
  ["subscriptions", "Subscriptions", () => import("./view_subscriptions.js"), withTenants],
  ["topics", "Topics", () => import("./view_topics.js"), operators],
  ["groups", "Groups", () => import("./view_groups.js"), all],
  ["doctor", "Doctor", () => import("./view_doctor.js"), administrators],
  ["limits", "Limits", () => import("./view_limits.js"), operators],
  ["links", "Links", () => import("./view_links.js"), operators],
  ["retained", "Retained", () => import("./view_retained.js"), all],
  ["wills", "Wills", () => import("./view_wills.js"), withTenants],
  ["delayed", "Delayed", () => import("./view_delayed.js"), all],
  ["publish", "Publish", () => import("./view_publish.js"), () => who.tenant && mayChange()],
  ["console", "Console", () => import("./view_console.js"), operators],
  ["analytics", "Analytics", () => import("./view_analytics.js"), operators],
  ["trace", "Trace", () => import("./view_trace.js"), all],
  ["bans", "Bans", () => import("./view_bans.js"), all],
  ["operators", "Operators", () => import("./view_operators.js"), administrators],
  ["audit", "Audit", () => import("./view_audit.js"), () => who.role === "admin"],
  ["log", "Log", () => import("./view_log.js"), operators],
];

export const BY_TENANT = ["clients", "subscriptions", "groups", "wills", "delayed"]; // lists of one tenant, if an operator chooses one

export const views = () => VIEWS.filter(([, , , shown]) => shown());
