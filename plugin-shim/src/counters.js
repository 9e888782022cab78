/**
 * The shim counts faults instead of printing them, because OpenCode owns the terminal.
 * So a counter is the only trace of a fault. All keys exist from the start, so the object
 * cannot grow.
 */

/** @returns counters at zero; all count occurrences since the instance started */
export function newCounters() {
  return {
    /** items that got a seq, gap items included */
    items: 0,
    /** items acknowledged by the sidecar as durable */
    acked: 0,
    /** items sent, including resends */
    sent: 0,
    /** lines written to the spool */
    spooled: 0,
    /** writes that the spool refused: unwritable, disk full, or over its limit */
    spool_failures: 0,
    /** reads of the spool that failed or met a damaged line */
    spool_read_failures: 0,
    /** items lost because the spool failed and memory was full */
    lost_memory_full: 0,
    /** items lost because their lines in the spool were damaged */
    lost_spool_damaged: 0,
    /** hooks whose arguments cannot be expressed as JSON, or that were too big even after cutting */
    lost_unserialisable: 0,
    /** items with long strings that were cut */
    cut: 0,
    lossy_sent: 0,
    lossy_dropped: 0,
    /** errors caught in a hook body; each is a bug or a hostile argument */
    hook_errors: 0,
    connects: 0,
    welcomes: 0,
    /** sockets that ended, for any reason */
    lost_links: 0,
    late_acks: 0,
    handshake_timeouts: 0,
    /** challenges with a wrong proof */
    impostors: 0,
    /** older sidecars that were asked to make room for a sidecar of this shim's version */
    upgrades: 0,
    /** links that failed because shim and sidecar have no common protocol version */
    refusals: 0,
    /** a home, token or sidecar.json that we do not own or that other users may read */
    unsafe_files: 0,
    bad_frames: 0,
    unknown_frames: 0,
    calls: 0,
    call_errors: 0,
    spawns: 0,
    spawn_failures: 0,
    record_failures: 0,
  };
}

/** @typedef {ReturnType<typeof newCounters>} Counters */

/** Where tests find an instance's counters on its hooks object. */
export const COUNTERS = Symbol.for("durable-stream.counters");
