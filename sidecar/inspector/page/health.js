// Is it recording, and is the log intact: what `durable-stream status` says.

import { coded, get, h, isTeam, plural } from "/page/lib.js";

export async function health() {
  const element = h("div", { class: "page" });

  async function draw() {
    const found = await get("health");
    if (isTeam) return element.replaceChildren(h("h1", {}, plural(found.machines.length, "machine")), h("dl", { class: "grid" }, found.machines.map((each) => [h("dt", { dir: "auto" }, each.machine), h("dd", {}, plural(each.records, "record"))])), h("p", { class: "faint" }, coded("`durable-stream verify --team` reads every record.")));
    const good = !found.problems.length;
    const rows = [
      ["home", found.home],
      ["sidecar", found.sidecar ? `running, pid ${found.sidecar.pid}, version ${found.sidecar.version}` : "not running: the next OpenCode starts it"],
      ["linked", found.links?.length ? plural(found.links.length, "OpenCode") : "no OpenCode"],
      ["log", found.log?.head === null || found.log?.head === undefined ? "cannot be opened" : plural(found.log.head + 1 - (found.log.pruned || 0), "record")],
      ["waiting in the spool", found.spool?.bytes ?? found.spool?.files ?? "nothing"],
      ["gaps", found.gaps || "none"],
    ];
    element.replaceChildren(
      h("h1", { class: good ? "good" : "bad" }, found.verdict),
      ...found.problems.map((text) => h("p", { class: "note" }, coded(text))),
      ...found.notes.map((text) => h("p", { class: "quiet" }, coded(text))),
      ...found.asks.map((text) => h("p", { class: "card waits" }, coded(text))),
      h("dl", { class: "grid" }, rows.map(([label, value]) => [h("dt", {}, label), h("dd", {}, String(value))])),
      h("p", { class: "faint" }, coded("`durable-stream doctor` looks closer, and `durable-stream verify` reads every record.")),
    );
  }

  await draw();
  return { element, title: "Health", news: draw };
}
