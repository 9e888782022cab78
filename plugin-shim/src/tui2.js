/**
 * The TUI plugin of OpenCode 2: `/background` as a native list, the status card, and toasts about background work.
 *
 * OpenCode 2 runs TUI plugins in the terminal's process, and the server plugin in the service, which shows nothing. So
 * this plugin reads the file that the sidecar writes, and answers and cancels with the command line, as a person would.
 * OpenCode 2 loads it from `plugins/durable-stream/tui.js` in a config directory.
 */
import { cardOf, terminal } from "./card.js";
import { tellFocus } from "./focus.js";
import { ABOUT, List, TITLE, runner } from "./list.js";

/** Two copies of the plugin have the same id, because then OpenCode loads only one of them. */
const ID = "durable-stream.tui";
const TOAST_MS = 6000;

/**
 * Make the TUI plugin.
 *
 * @param {import("./list.js").Options} options
 * @param {() => Promise<import("./card.js").Drawing>} [drawing]
 */
export function tui2(options, drawing = terminal) {
  return {
    id: ID,
    /** @param {any} context OpenCode's API @returns {Promise<() => void>} what ends the plugin */
    setup: async (context) => {
      const list = new List(screen2(context.ui), runner(options));
      context.ui.slot({ append: "app", render: () => command(context, list) });
      const end = tellFocus(context.renderer, options.home, () => context.ui.router.current?.()?.sessionID);
      const endWork = await showWork(context, options.home, drawing);
      return () => (end(), endWork());
    },
  };
}

/** Register `/background`. OpenCode accepts a command only while a slot is drawn. @param {any} context @param {List} list */
function command(context, list) {
  context.keymap.layer(() => ({
    mode: "global", // while the menu of commands is open, no command of another mode can be reached
    commands: [
      {
        id: "durable-stream.background",
        title: TITLE,
        description: ABOUT,
        group: "Durable Stream",
        palette: true,
        slash: { name: "background" },
        run: () => void list.open(),
      },
    ],
  }));
  return null;
}

/** @param {any} ui OpenCode's dialogs, toasts and router @returns {import("./list.js").Screen} */
export function screen2(ui) {
  return {
    select: (title, options, placeholder) => {
      const shown = options.map(({ onSelect: _, ...option }) => option);
      // OpenCode closes the dialog after it has answered, so the next dialog must come later.
      void ui.dialog.select({ title, placeholder, options: shown }).then((/** @type {string | undefined} */ value) => {
        options.find((option) => option.value === value)?.onSelect();
      });
    },
    prompt: (title, placeholder, onConfirm) => {
      void ui.dialog.prompt({ title, placeholder }).then((/** @type {string | undefined} */ text) => {
        if (text !== undefined) onConfirm(text);
      });
    },
    clear: () => ui.dialog.clear(),
    toast: (variant, message) => ui.toast.show({ variant, message }),
    open: (session) => ui.router.navigate({ type: "session", sessionID: session }),
    isLive: true,
  };
}

/**
 * Draw the card and show toasts from now on. If this OpenCode cannot draw, only `/background` is there.
 *
 * @param {any} context
 * @param {string} home
 * @param {() => Promise<import("./card.js").Drawing>} drawing
 * @returns {Promise<() => void>}
 */
async function showWork(context, home, drawing) {
  try {
    const toasts = new Toasts(context);
    let isOpen = false; // nobody wants to read what happened before this terminal was opened
    const color = (/** @type {string} */ name) => {
      const { base, feedback, muted } = context.theme.text;
      return { text: base, warning: feedback?.warning?.base }[name] ?? muted;
    };
    const card = cardOf(await drawing(), home, color, (all) => (isOpen ? toasts.show(all) : toasts.skip(all)));
    await card.look();
    isOpen = true;
    context.ui.slot({
      append: "sidebar.content",
      render: (/** @type {any} */ { sessionID }) => card.column(() => card.work(sessionID)),
    });
    context.ui.slot({
      append: "session.composer.top",
      render: (/** @type {any} */ { sessionID }) =>
        card.column(() => [...card.notes(sessionID), ...card.summary(sessionID, " · /background")]),
    });
    return card.follow();
  } catch {
    // This version of OpenCode draws differently. `/background` and `durable-stream top` show the same work.
    return () => {};
  }
}

/** Shows each toast of the sidecar once, if this terminal knows the toast's session. */
export class Toasts {
  #context;
  /** @type {Set<string>} */
  #seen = new Set();

  /** @param {any} context */
  constructor(context) {
    this.#context = context;
  }

  /** @param {import("./card.js").Toast[]} toasts */
  skip(toasts) {
    this.#seen = new Set(toasts.map(({ id }) => id));
  }

  /** @param {import("./card.js").Toast[]} toasts all that the file has */
  show(toasts) {
    const fresh = toasts.filter(({ id }) => !this.#seen.has(id));
    this.skip(toasts);
    for (const { session, title, text } of fresh) {
      if (this.#context.data.session.get(session) === undefined) continue;
      this.#context.ui.toast.show({ title, message: text, variant: "info", duration: TOAST_MS, sessionID: session });
    }
  }
}
