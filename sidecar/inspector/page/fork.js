// "Fork here": says what a new session from an event will be, and makes it only if a person agrees.

import { act, coded, h, isTeam, visible } from "/page/lib.js";

/** The button beside an event of a session. */
export const forkButton = (stream, event) => isTeam ? null : h("button", { class: "button", onclick: () => open(stream, event) }, "Fork here …");

function open(stream, event) {
  const said = h("p", { role: "status" }, "Looking what OpenCode has …");
  const runs = h("p", { class: "quiet" });
  const prompt = h("textarea", { rows: 3, placeholder: "A first prompt, if you want one", "aria-label": "A first prompt", disabled: true, oninput: draw });
  const make = h("button", { class: "button main", disabled: true, onclick: fork }, "Fork");
  const close = h("button", { class: "button", onclick: () => dialog.close() }, "Cancel");
  const dialog = h("dialog", { class: "fork", "aria-label": "Fork" }, h("h2", {}, "Fork here?"), said, prompt, runs, h("div", { class: "buttons" }, make, close));
  const given = () => ({ stream, event, prompt: prompt.value.trim() || null });

  function draw() {
    runs.textContent = prompt.value.trim() ? "Your prompt runs in the fork, and may do what your OpenCode allows." : "Nothing runs in the fork.";
  }

  /** What the sidecar answers. Until it does, and if it refuses, nothing can be asked of it. */
  async function answered(action) {
    make.disabled = prompt.disabled = true;
    try {
      return await action;
    } catch (error) {
      said.replaceChildren(...coded(visible(error.message)));
      said.className = "bad";
      runs.textContent = "";
      return null;
    }
  }

  async function fork() {
    const made = await answered(act("fork", given()));
    if (!made) return;
    said.replaceChildren("The fork is made: ", h("a", { href: `/s/${encodeURIComponent(made.fork)}`, onclick: () => dialog.close() }, "open it"), ".");
    for (const part of [prompt, runs, make]) part.remove();
    close.textContent = "Close";
  }

  document.body.append(dialog);
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("keydown", (press) => press.stopPropagation()); // Escape closes only the dialog
  dialog.showModal();
  answered(act("fork", { ...given(), preview: true })).then((plan) => {
    if (!plan) return;
    said.textContent = visible(plan.text);
    make.disabled = prompt.disabled = false;
    draw();
    prompt.focus();
  });
}
