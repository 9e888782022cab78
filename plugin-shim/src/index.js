/**
 * The package's entry. OpenCode refuses a plugin file whose exports are not
 * all functions, so this file has one export and must never get another.
 */
import { create } from "./plugin.js";

export default create({});
