/** The shim's version; a test holds it equal to package.json's. */
export const SHIM_VERSION = "0.1.0";

/** The link protocol this shim speaks. */
export const PROTOCOL = 1;
