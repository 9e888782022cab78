/**
 * The package's entry: one export, which OpenCode 1 and 2 both load.
 */
import { plugin } from "./plugin.js";

export default plugin({}, import.meta.url);
