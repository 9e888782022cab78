/**
 * One hook call as JSON text.
 *
 * OpenCode mutates the objects it hands to hooks, so the text is made while
 * the hook runs and never later. From here on an item is text: the frames and
 * the spool are put together by concatenation, never parsed again.
 */

/** Items above this are cut: a frame may hold 16 MiB, and the rest is its envelope. */
export const MAX_ITEM_BYTES = 15 * 1024 * 1024;

/** Strings longer than this (UTF-16 units) are cut in an item that is too big. */
const CUT_ABOVE = 1024 * 1024;
/** What stays of a cut string (UTF-16 units). */
const CUT_TO = 64 * 1024;

/**
 * @typedef {object} Encoded
 * @property {string} text JSON of {hook, t, input, output}
 * @property {number} bytes its length in UTF-8
 * @property {boolean} cut whether long strings were shortened
 */

/**
 * @param {string} hook
 * @param {number} t when the hook was called, ms UTC
 * @param {unknown} input
 * @param {unknown} output
 * @returns {Encoded | null} null when JSON cannot express it (circular, BigInt,
 *   a getter that throws) or cutting did not make it small enough
 */
export function encodeItem(hook, t, input, output) {
  // A missing output is null, not absent: the four keys are the contract.
  const item = { hook, t, input: input ?? null, output: output ?? null };
  try {
    const text = JSON.stringify(item);
    const bytes = Buffer.byteLength(text);
    if (bytes <= MAX_ITEM_BYTES) return { text, bytes, cut: false };
    const short = JSON.stringify(item, cutLongString);
    const shortBytes = Buffer.byteLength(short);
    return shortBytes <= MAX_ITEM_BYTES ? { text: short, bytes: shortBytes, cut: true } : null;
  } catch {
    // Counted by the caller as lost; there is nothing else to say about it.
    return null;
  }
}

/**
 * A cut string stays a string, so that readers which expect text still get it.
 *
 * @param {string} _key
 * @param {unknown} value
 */
function cutLongString(_key, value) {
  if (typeof value !== "string" || value.length <= CUT_ABOVE) return value;
  return `${value.slice(0, CUT_TO)}{"$cut":${value.length}}`;
}

/**
 * @typedef {object} Gap
 * @property {number} lost items
 * @property {"memory_full" | "unserialisable" | "spool_damaged"} reason
 * @property {number} [bytes] of their text; 0 when no text could be made. Not known of damaged lines
 * @property {number} [first_seq] of the lost items. Only those that the spool lost had seqs
 * @property {number} [last_seq] of the lost items
 */

/**
 * The item that tells the sidecar what is missing.
 *
 * @param {Gap} gap
 * @param {number} t ms UTC
 */
export function encodeGap(gap, t) {
  return JSON.stringify({ hook: "capture.gap", t, input: gap, output: null });
}
