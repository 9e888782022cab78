/**
 * Proving that both sides hold the home's token without sending it.
 *
 * The port is part of the message, so a proof made for the sidecar's port is
 * worth nothing to a process that took another one and relays.
 */
import { createHmac, randomBytes, timingSafeEqual } from "node:crypto";
import { PROTOCOL, SHIM_VERSION, isNewer } from "./version.js";

/** @returns 64 hex chars, never used twice */
export function newNonce() {
  return randomBytes(32).toString("hex");
}

/**
 * @param {string} token 64 hex chars, taken as ASCII
 * @param {"sidecar" | "shim"} side whose proof it is
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
 * What a proved sidecar's challenge says of going on with it. hello, challenge,
 * identify and bye are the same in every protocol, so that this can be told.
 *
 * usable: identify and wait for its word; one that no longer speaks our protocol
 * says so, and counts us. outdated: identify and ask it to make room. hopeless:
 * it is too old for us and asking did not help, because what we start is not newer.
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
