/**
 * Lets the shim and the sidecar prove that they hold the home's token, without sending the token.
 *
 * The port is part of the proof, so a process that relays messages from another port
 * cannot use a proof made for the sidecar's port.
 */
import { createHmac, randomBytes, timingSafeEqual } from "node:crypto";
import { PROTOCOL, SHIM_VERSION, isNewer } from "./version.js";

/** @returns 64 hex chars, different each time */
export function newNonce() {
  return randomBytes(32).toString("hex");
}

/**
 * @param {string} token 64 hex chars, taken as ASCII
 * @param {"sidecar" | "shim"} side the side that proves itself
 * @param {number} port of the sidecar
 * @param {string} clientNonce
 * @param {string} sidecarNonce
 * @returns {string} 64 hex chars
 */
export function makeProof(token, side, port, clientNonce, sidecarNonce) {
  return createHmac("sha256", token).update(`${side}:${port}:${clientNonce}:${sidecarNonce}`).digest("hex");
}

/**
 * @param {unknown} given
 * @param {string} right
 */
export function isProof(given, right) {
  if (typeof given !== "string" || given.length !== right.length) return false;
  const bytes = Buffer.from(given);
  return bytes.length === right.length && timingSafeEqual(bytes, Buffer.from(right));
}

/** @param {unknown} value @returns {value is string} */
export function isNonce(value) {
  return typeof value === "string" && /^[0-9a-f]{64}$/.test(value);
}

/**
 * Decide from an authenticated sidecar's challenge how to continue. This works with every
 * version, because all protocol versions share hello, challenge, identify and bye.
 *
 * usable: identify and wait for the sidecar's answer; a sidecar that no longer speaks our
 * protocol says so, and counts us. outdated: identify and ask the sidecar to make room.
 * hopeless: the sidecar is too old, and asking did not help, because the sidecar that we
 * start is not newer.
 *
 * @param {{protocol?: unknown, sidecar_version?: unknown}} challenge
 * @param {Pick<import("./start.js").Starter, "mayAsk" | "fits">} starter
 * @returns {"usable" | "outdated" | "hopeless"}
 */
export function judge({ protocol, sidecar_version }, starter) {
  const tooOld = typeof protocol !== "number" || protocol < PROTOCOL;
  if (!tooOld && !isNewer(SHIM_VERSION, sidecar_version)) {
    starter.fits();
    return "usable";
  }
  if (starter.mayAsk()) return "outdated";
  return tooOld ? "hopeless" : "usable";
}
