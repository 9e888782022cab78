/** The shim's version; a test checks that package.json has the same version. */
export const SHIM_VERSION = "0.1.0";

/** The link protocol this shim speaks. */
export const PROTOCOL = 1;

/**
 * True if one release is later than another. A version that does not begin with
 * three numbers is never newer; anything after the three numbers is ignored. The sidecar
 * uses the same rule.
 *
 * @param {unknown} one
 * @param {unknown} other
 */
export function isNewer(one, other) {
  const [first, second] = [release(one), release(other)];
  if (!first || !second) return false;
  const place = first.findIndex((part, i) => part !== second[i]);
  return place >= 0 && first[place] > second[place];
}

/** @param {unknown} version @returns {number[] | null} */
function release(version) {
  const found = String(version).match(/^(\d{1,9})\.(\d{1,9})\.(\d{1,9})/);
  return found && found.slice(1).map(Number);
}
