// Words that several sections share: windows of time, why there is no figure, decisions, outcomes of tokens.

import { count, isNumber } from "./figures.js";
import { byId } from "./page.js";

export const WINDOWS = { "1m": "last minute", "5m": "last 5 minutes", "1h": "last hour" };
export const NO_PROMPTS = "no prompts in this window";
export const NOT_REPORTED = "not reported by the server";
const NO_LOOKUPS = "no look-ups in an external store in this window";

/** What can become of a prompt token: those that were not computed first, then those that need not have been. */
export const OUTCOMES = {
  reused: { name: "reused", had: true, is: "found in the prefix cache" },
  reloaded: { name: "reloaded", had: true, is: "brought back from the memory behind the cache" },
  evicted: { name: "evicted", avoidable: true, is: "was in this cache, and is gone" },
  moved: { name: "moved", avoidable: true, is: "is in the cache of another backend or engine" },
  prompt_changed: { name: "prompt changed", avoidable: true, is: "the client sent another text than last time" },
  unknown: { name: "unknown", is: "the backend did not say what was cached, or the turn before is not known" },
  first_turn: { name: "first turn", is: "of a prompt that goes on from none" },
  new: { name: "new text", is: "the turn's own text" },
  block_rounding: { name: "block rounding", is: "the rest of a block that is not full" },
};

export const outcomeOf = (key) =>
  Object.hasOwn(OUTCOMES, key) ? OUTCOMES[key] : { name: String(key).replaceAll("_", " "), is: "" };

/** Name of the CSS property with an outcome's colour. */
export const outcomeColor = (key) => (Object.hasOwn(OUTCOMES, key) ? `--outcome-${key}` : "--outcome-unknown");

/** The sentence for a decision's code, out of the glossary at the foot of the page. */
export function meaning(decision) {
  return byId(`decision-${decision}`)?.nextElementSibling.textContent ?? "";
}

/** `figures` is the fleet or one backend. */
export function hitTitle(figures, window) {
  const ratio = figures.hit_ratio[window];
  if (!isNumber(ratio)) return NO_PROMPTS;
  const tokens = figures.prompt_tokens[window];
  const whole = isNumber(tokens) ? `${count(tokens)} prompt tokens` : "the prompt tokens";
  return `${(ratio * 100).toFixed(1)}% of ${whole} came from the prefix cache, ${WINDOWS[window]}`;
}

export function externalTitle(ratio) {
  return isNumber(ratio) ? "found in the external KV store, of the tokens looked up there" : NO_LOOKUPS;
}
