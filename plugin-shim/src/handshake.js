/**
 * Proving that both sides hold the home's token without sending it.
 *
 * The port is part of the message, so a proof made for the sidecar's port is
 * worth nothing to a process that took another one and relays.
 */
import { createHmac, randomBytes, timingSafeEqual } from "node:crypto";

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
