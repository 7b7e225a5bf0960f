// Who has signed in, for which tenant, and the tenants that an operator may choose from.

import { get } from "./api.js";

const MOST = 1000; // tenants in a choice

// tenant: of the token, "" is the whole broker; chosen: of an operator, "" is all and "/" is none.
export const who = { role: "", tenant: "", tenants: [], chosen: "" };

export async function ask() {
  const me = await get("/me");
  const { items } = me.tenant ? { items: [] } : await get("/tenants", { limit: MOST }).catch(() => ({ items: [] }));
  Object.assign(who, me, { tenants: items.map((item) => item.tenant), chosen: "" });
}

// The query for lists of one tenant.
export const scope = () => (who.chosen ? { tenant: who.chosen } : {});

// Whether controls that change something are shown. Readers of the whole broker see it, and are refused.
export const mayChange = () => !who.tenant || who.role !== "viewer";
