/**
 * The real shim in a process of its own, told what to do by JSON lines on stdin; answers one line each.
 *
 *   {"do": "events", "from": 1, "count": 3, "text": "…"}   hooks of that many events, one each tick
 *   {"do": "replay", "file": "…", "from": 0, "to": 9}      the hooks of a recording, by the places of its lines
 *   {"do": "wait", "counter": "acked", "least": 3}         answers when the counter is that high
 *   {"do": "new", "version": "1.18.3"}                     another instance, of an OpenCode that makes a session at once
 *   {"do": "counters"} {"do": "dispose"}                   the newest instance's counters; its end
 *
 * Ends when stdin does. The first argument is the shim's plugin.js, the second its options as JSON.
 */
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import readline from "node:readline";
import { pathToFileURL } from "node:url";

const [file, options] = process.argv.slice(2);
const { create } = await import(pathToFileURL(file).href);
// Node 20 has no WebSocket of its own; Bun, which OpenCode runs in, has.
const WebSocket = globalThis.Bun ? globalThis.WebSocket : createRequire(path.resolve(file, "../../package.json"))("ws");
const COUNTERS = Symbol.for("durable-stream.counters");
const input = { project: { id: "prj" }, directory: "/home/ada/dir", worktree: "/home/ada", client: {} };
const plugin = create({ WebSocket, ...JSON.parse(options) });
let hooks = await plugin(input);

const tick = () => new Promise((resolve) => setTimeout(resolve, 0));
for await (const line of readline.createInterface({ input: process.stdin })) {
  const order = JSON.parse(line);
  if (order.do === "events") {
    for (let n = order.from; n < order.from + order.count; n += 1) {
      hooks.event({ event: { id: `evt_${n}`, type: "life.tick", properties: { n, text: order.text } } });
      await tick();
    }
  }
  if (order.do === "replay") {
    const lines = readFileSync(order.file, "utf8").trim().split("\n").slice(order.from, order.to);
    for (const { hook, input, output } of lines.map((each) => JSON.parse(each))) await hooks[hook]?.(input, output);
  }
  if (order.do === "wait") while (hooks[COUNTERS][order.counter] < order.least) await tick();
  if (order.do === "new") {
    hooks = await plugin(input);
    const info = { id: `ses_${order.version}`, version: order.version, directory: "/home/ada/dir", time: { created: 1 } };
    if (order.version) hooks.event({ event: { type: "session.created", properties: { sessionID: info.id, info } } });
  }
  if (order.do === "dispose") await hooks.dispose();
  process.stdout.write(`${JSON.stringify(hooks[COUNTERS])}\n`);
}
process.exit(0);
