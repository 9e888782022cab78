import assert from "node:assert/strict";
import test from "node:test";
import { goDirectly } from "../src/direct.js";

/** @param {any} [fetch] */
function client(fetch) {
  /** @type {any} */
  const config = { fetch };
  return { _client: { getConfig: () => config, setConfig: (/** @type {any} */ more) => Object.assign(config, more) } };
}

test("a request begins while this machine is excepted from the proxy, and the variables stay as they were", async () => {
  /** @type {Record<string, string | undefined>} */
  const env = { HTTP_PROXY: "http://proxy", NO_PROXY: "corp" };
  const one = client(async () => `${env.NO_PROXY} ${env.no_proxy}`);
  goDirectly(one, env);
  const here = "127.0.0.1,localhost,::1";
  assert.equal(await one._client.getConfig().fetch("http://127.0.0.1"), `corp,${here} ${here}`);
  assert.deepEqual(env, { HTTP_PROXY: "http://proxy", NO_PROXY: "corp" });
});

test("without a proxy, a client stays as it is", () => {
  const one = client();
  goDirectly(one, {});
  assert.equal(one._client.getConfig().fetch, undefined);
  goDirectly(undefined, { http_proxy: "http://proxy" });
});
