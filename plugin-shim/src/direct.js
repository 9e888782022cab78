/**
 * Requests to OpenCode's own server, which no proxy can reach.
 *
 * OpenCode's client goes through `HTTP_PROXY` even to this machine, unless `NO_PROXY` names it. The runtime reads these
 * variables when a request begins, and has no option for one request.
 */

const HERE = ["127.0.0.1", "localhost", "::1"];
const EXCEPTIONS = ["NO_PROXY", "no_proxy"];
const PROXIES = ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"];

/**
 * Let a client of OpenCode call its server directly, if there is a proxy.
 *
 * @param {any} client
 * @param {Record<string, string | undefined>} [env]
 */
export function goDirectly(client, env = process.env) {
  const inner = client?._client;
  if (!PROXIES.some((name) => env[name]) || !inner?.setConfig || !inner.getConfig) return;
  const fetch = inner.getConfig().fetch ?? globalThis.fetch;
  inner.setConfig({ fetch: (/** @type {any[]} */ ...request) => directly(env, fetch, request) });
}

/**
 * @param {Record<string, string | undefined>} env
 * @param {(...request: any[]) => Promise<Response>} fetch begins the request before it returns
 * @param {any[]} request
 */
function directly(env, fetch, request) {
  const before = EXCEPTIONS.map((name) => env[name]);
  for (const name of EXCEPTIONS) env[name] = [env[name], ...HERE].filter(Boolean).join(",");
  try {
    return fetch(...request);
  } finally {
    EXCEPTIONS.forEach((name, at) => {
      if (before[at] === undefined) delete env[name];
      else env[name] = before[at];
    });
  }
}
