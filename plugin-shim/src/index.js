/**
 * The package's entry: one export, which OpenCode 1 (from 1.18.29 on) and OpenCode 2 both load.
 */
import { plugin } from "./plugin.js";

export default plugin({}, import.meta.url);
