/** Which plugins are loaded, as the sidecar hears it. */
import assert from "node:assert/strict";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { test } from "node:test";
import { pathToFileURL } from "node:url";
import { listed, remember } from "../src/plugins.js";

test("each configured plugin is imported when the sidecar asks, and runs no second time", async (t) => {
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), "plugins-"));
  t.after(() => fs.rmSync(dir, { recursive: true }));
  const url = (/** @type {string} */ name) => pathToFileURL(path.join(dir, name)).href;
  fs.writeFileSync(path.join(dir, "good.mjs"), "globalThis.pluginsRan = (globalThis.pluginsRan ?? 0) + 1;");
  fs.writeFileSync(path.join(dir, "broken.mjs"), 'import "./not-there.mjs";');
  for (const [name, about] of Object.entries({ main: { main: "m.mjs" }, server: { exports: { "./server": { import: "./m.mjs" } } } })) {
    fs.mkdirSync(path.join(dir, name));
    fs.writeFileSync(path.join(dir, name, "package.json"), JSON.stringify(about));
    fs.writeFileSync(path.join(dir, name, "m.mjs"), "export default 1;");
  }
  await import(url("good.mjs")); // as OpenCode did
  const client = {};
  remember(client, { plugin: [url("good.mjs"), [url("broken.mjs"), { some: "option" }], url("gone.mjs"), url("main"), url("server"), "a-package@1"] });
  const { data } = await listed(client);
  assert.deepEqual(data?.map((each) => [path.basename(each.name), Boolean(each.error)]), [
    ["good.mjs", false],
    ["broken.mjs", true],
    ["gone.mjs", true],
    ["main", false],
    ["server", false],
    ["a-package@1", false],
  ]);
  assert.match(String(data?.[1].error), /not-there/);
  assert.equal(/** @type {any} */ (globalThis).pluginsRan, 1);
});

test("an unknown configuration does not give an empty list", async () => {
  for (const [client, config] of [[{}, null], [undefined, {}], [{}, { plugin: 1 }]]) {
    remember(client, config);
    assert.match(String((await listed(client)).error), /not named/);
  }
  const client = {};
  remember(client, {});
  assert.deepEqual(await listed(client), { data: [] });
});
