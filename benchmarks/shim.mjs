/**
 * How long a hook holds OpenCode: run by OpenCode's own runtime, with the real shim.
 *
 *     shim.mjs <shim's plugin.js> <home> <hooks>
 *
 * Prints {"mean": µs, "p99": µs, "awaits": calls that did not return at once}.
 * Hooks come as OpenCode's do: in short bursts, with the event loop free between them.
 */
import { pathToFileURL } from "node:url";

const [shim, home, count] = process.argv.slice(2);
const { create } = await import(pathToFileURL(shim).href);
// The command starts nothing, because the sidecar is already running in each benchmark that needs one.
const plugin = create({ home, command: ["/bin/false"] });
const hooks = await plugin({ client: {}, project: { id: "bench" }, directory: "/bench", worktree: "/bench" });

const text = "x".repeat(500);
/** @param {number} n */
const hookInput = (n) => ({
  event: {
    id: `evt_${n}`,
    type: "message.part.updated",
    properties: {
      sessionID: "ses_bench",
      part: { id: `prt_${n}`, messageID: "msg_a", sessionID: "ses_bench", type: "text", text, time: { start: 1, end: 2 } },
    },
  },
});

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
await pause(500); // give the link time to open, if there is a sidecar
const taken = [];
for (let n = 0; n < Number(count); n += 1) {
  const given = hookInput(n);
  const start = performance.now();
  const promise = hooks.event(given);
  taken.push(performance.now() - start);
  await promise;
  if (n % 20 === 19) await pause(5);
}
const measured = taken.slice(taken.length / 10).sort((a, b) => a - b); // leave out the first tenth, the warm-up
const mean = measured.reduce((sum, one) => sum + one, 0) / measured.length;
console.log(JSON.stringify({ mean: mean * 1000, p99: measured[Math.floor(measured.length * 0.99)] * 1000 }));
process.exit(0);
