/**
 * The package's entry: one export, which OpenCode 1 and 2 both load.
 */
import { packaged } from "./packaged.js";

export default packaged(process.env, import.meta.url);
