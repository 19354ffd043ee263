// What a client program for Node needs: as check.py.
import assert from "node:assert/strict";

export { assert };
export const URL = process.env.NEXTN_URL;
export const KEY = process.env.NEXTN_KEY;
export const MODEL = "pocket";

export async function run(checks) {
  let failed = false;
  for (const [name, check] of Object.entries(checks)) {
    try {
      await check();
      console.log(`ok ${name}`);
    } catch (error) {
      failed = true;
      console.error(error);
      console.log(`FAIL ${name}: ${String(error).replaceAll("\n", " ").slice(0, 300)}`);
    }
  }
  process.exit(failed ? 1 : 0);
}
