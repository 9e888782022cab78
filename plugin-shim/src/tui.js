/**
 * The TUI plugin of OpenCode 1: `/background` as a native list, without a model call, and the status card.
 *
 * The TUI plugin runs in the terminal's own process, beside the server plugin. `tui2.js` is the one of OpenCode 2.
 */
import { createHash } from "node:crypto";
import { showCard } from "./card.js";
import { tellFocus } from "./focus.js";
import { ABOUT, List, TITLE, runner } from "./list.js";

/**
 * Make the TUI plugin.
 *
 * @param {import("./list.js").Options} options
 * @param {string} [file] the URL of the plugin file
 */
export function tui(options, file = "") {
  const copy = createHash("sha256").update(file).digest("hex").slice(0, 8);
  return {
    id: `durable-stream-tui-${copy}`,
    /** @param {any} api OpenCode's TUI API */
    tui: async (api) => {
      const list = new List(screen(api), runner(options));
      api.command.register(() => [
        {
          title: TITLE,
          value: "durable-stream.background",
          description: ABOUT,
          category: "Durable Stream",
          slash: { name: "background" },
          onSelect: () => void list.open(),
        },
      ]);
      const end = tellFocus(api.renderer, options.home, () => api.route.current?.params?.sessionID);
      api.lifecycle?.onDispose(end);
      await showCard(api, options.home);
    },
  };
}

/** @param {any} api OpenCode's TUI API @returns {import("./list.js").Screen} */
export function screen(api) {
  const { dialog } = api.ui;
  return {
    select: (title, options, placeholder) =>
      dialog.replace(() => api.ui.DialogSelect({ title, placeholder, options })),
    prompt: (title, placeholder, onConfirm) =>
      dialog.replace(() => api.ui.DialogPrompt({ title, placeholder, onConfirm })),
    clear: () => dialog.clear(),
    toast: (variant, message) => api.ui.toast({ variant, message }),
    open: (session) => api.route.navigate("session", { sessionID: session }),
    isLive: false,
  };
}
