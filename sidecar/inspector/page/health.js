// Is it recording, and is the log intact: what `durable-stream status` says.

import { ago, amount, clock, coded, day, get, h, isTeam, plural } from "/page/lib.js";

export async function health() {
  const element = h("div", { class: "page" });

  async function draw() {
    const found = await get("health");
    if (isTeam) return element.replaceChildren(h("h1", {}, plural(found.machines.length, "machine")), h("dl", { class: "grid" }, found.machines.map((each) => [h("dt", { dir: "auto" }, each.machine), h("dd", {}, plural(each.records, "record"))])), h("p", { class: "faint" }, coded("`durable-stream verify --team` reads every record.")));
    const good = !found.problems.length;
    const { log } = found;
    const isOpen = typeof log?.head === "number";
    const stopped = found.running ? "does not answer" : `not running${good ? "; OpenCode starts it when it needs it" : ""}`;
    const rows = [
      ["home", found.home],
      ["sidecar", found.sidecar ? `running, pid ${found.sidecar.pid}, version ${found.sidecar.version}` : stopped],
      ["linked", found.links?.length ? plural(found.links.length, "OpenCode") : "no OpenCode"],
      ["log", isOpen ? `${plural(log.head + 1 - (log.pruned || 0), "record")}${typeof log.streams === "number" ? ` in ${plural(log.streams, "stream")}` : ""}` : "cannot be opened"],
      ["last record", isOpen && log.last_ts ? `${day(log.last_ts)} ${clock(log.last_ts)}, ${ago(log.last_ts, Date.now())}` : "–"],
      ["intact", log?.damaged ? "no: see above" : "as far as it was read; `durable-stream verify` reads every record"],
      ["waiting in the spool", found.spool?.files ? `${plural(found.spool.files, "file")}, ${amount(found.spool.bytes)} bytes` : "nothing"],
      ["gaps", found.gaps || "none"],
    ];
    element.replaceChildren(
      h("h1", { class: good ? "good" : "bad" }, found.verdict.replace(/(, but)?:$/, ".")),
      ...found.problems.map((text) => h("p", { class: "note" }, coded(text))),
      ...found.notes.map((text) => h("p", { class: "quiet" }, coded(text))),
      ...found.asks.map((text) => h("p", { class: "card waits" }, coded(text))),
      h("dl", { class: "grid" }, rows.map(([label, value]) => [h("dt", {}, label), h("dd", {}, coded(String(value)))])),
      h("p", { class: "faint" }, coded("`durable-stream doctor` looks closer.")),
    );
  }

  await draw();
  return { element, title: "Health", news: draw };
}
