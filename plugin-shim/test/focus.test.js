import assert from "node:assert/strict";
import { EventEmitter } from "node:events";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { test } from "node:test";
import { FOLDER, tellFocus } from "../src/focus.js";

test("a terminal tells its session, its focus once it knows it, and nothing after its end", (t) => {
  t.mock.timers.enable({ apis: ["setInterval"] });
  const home = fs.mkdtempSync(path.join(os.tmpdir(), "focus-"));
  const file = path.join(home, FOLDER, `${process.pid}.json`);
  const told = () => JSON.parse(fs.readFileSync(file, "utf8"));
  const renderer = new EventEmitter();
  const end = tellFocus(renderer, home, () => "ses_1");
  t.mock.timers.tick(1000);
  assert.deepEqual(told(), { session: "ses_1", focus: "unknown" });
  renderer.emit("blur");
  assert.deepEqual(told(), { session: "ses_1", focus: "away" });
  assert.equal(fs.statSync(file).mode & 0o777, 0o600);
  renderer.emit("focus");
  assert.deepEqual(told(), { session: "ses_1", focus: "front" });
  end();
  renderer.emit("blur");
  assert.equal(fs.existsSync(file), false);
});

test("a terminal that cannot tell its focus, or has no home, is no error", () => {
  tellFocus(undefined, "/nowhere", () => undefined)();
  const renderer = new EventEmitter();
  const end = tellFocus(renderer, "/dev/null", () => "ses_1");
  renderer.emit("blur");
  assert.doesNotThrow(end);
});
