// The node's API: questions, and the stream of figures. A token, where one is needed, lives as long as the tab.

const ROOT = "/api/v1";
const KEY = "flockmq.token";

export const token = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => sessionStorage.setItem(KEY, value),
  clear: () => sessionStorage.removeItem(KEY),
};

export class Problem extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function headers(more = {}) {
  return token.get() ? { Authorization: `Bearer ${token.get()}`, ...more } : more;
}

async function asked(method, path, { query = {}, body, signal } = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null);
  const search = new URLSearchParams(given).toString();
  let response;
  try {
    response = await fetch(`${ROOT}${path}${search ? `?${search}` : ""}`, {
      method,
      signal,
      headers: headers(body === undefined ? {} : { "Content-Type": "application/json" }),
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "The node does not answer.");
  }
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({}));
  if (response.status === 401) dispatchEvent(new Event("token-needed"));
  throw new Problem(response.status, problem.detail ?? response.statusText);
}

async function json(method, path, options) {
  const response = await asked(method, path, options);
  return response.status === 204 ? null : response.json();
}

export const get = (path, query, signal) => json("GET", path, { query, signal });
export const post = (path, body) => json("POST", path, { body });
export const put = (path, body) => json("PUT", path, { body });
export const patch = (path, query, body) => json("PATCH", path, { query, body });
export const remove = (path, query) => json("DELETE", path, { query });

// Each event of a stream, until the signal; EventSource could not show a token.
export async function* events(path, signal) {
  const response = await asked("GET", path, { signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    const parts = text.split("\n\n");
    text = parts.pop();
    for (const part of parts) if (part.startsWith("data: ")) yield JSON.parse(part.slice(6));
  }
}
