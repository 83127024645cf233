// The top of the page: is the router ready, the fleet's hit rate beside what was possible, and the totals.

import { compact, count, duration, isNumber, percent } from "./figures.js";
import { byId, put } from "./page.js";
import { externalTitle, hitTitle, NO_PROMPTS, NOT_REPORTED, WINDOWS } from "./words.js";

const HEADLINE_WINDOWS = ["5m", "1h", "1m"];
const TOTALS = ["sessions", "in_flight", "requests", "moves", "retries", "client_aborts"];

export function drawTop(state) {
  const top = byId("top");
  put(top, "readiness", state.ready ? "ready" : "not ready");
  byId("readiness").dataset.level = state.ready ? "good" : "bad";
  put(top, "version", `v${state.version}`);
  put(top, "uptime", `up ${duration(state.uptime_s)}`);
}

export function drawHeadline(fleet) {
  const card = byId("headline");
  const shown = HEADLINE_WINDOWS.find((name) => isNumber(fleet.hit_ratio[name])) ?? HEADLINE_WINDOWS[0];
  const [hit, possible] = [fleet.hit_ratio[shown], fleet.possible_ratio?.[shown]];
  put(card, "headline", percent(hit), hitTitle(fleet, shown));
  put(card, "headline-under", headlineSentence(fleet, shown));
  put(card, "headline-possible", possibleSentence(hit, possible));
  drawMeter(hit, possible);
  for (const name of Object.keys(WINDOWS)) drawWindow(card, fleet, name);
}

function drawWindow(card, fleet, name) {
  const tokens = fleet.prompt_tokens[name];
  const external = fleet.external_hit_ratio[name];
  const possible = fleet.possible_ratio?.[name];
  put(card, `hit-${name}`, percent(fleet.hit_ratio[name]), hitTitle(fleet, name));
  put(card, `possible-${name}`, percent(possible), possibleTitle(fleet.hit_ratio[name], possible));
  put(card, `tokens-${name}`, compact(tokens), isNumber(tokens) ? `${count(tokens)} prompt tokens` : NOT_REPORTED);
  put(card, `external-${name}`, percent(external), externalTitle(external));
}

function headlineSentence(fleet, shown) {
  if (isNumber(fleet.hit_ratio[shown])) return `of prompt tokens came from cache, ${WINDOWS[shown]}`;
  if (fleet.requests === 0) return "No prompts yet. Point a client at the router's data port.";
  return "No prompts in the last hour.";
}

function possibleSentence(hit, possible) {
  if (!isNumber(hit) || !isNumber(possible)) return "";
  return possible - hit < 0.005 ? "That is all that was possible." : `${percent(possible)} was possible.`;
}

function possibleTitle(hit, possible) {
  if (!isNumber(possible)) return isNumber(hit) ? "what was possible is not known" : NO_PROMPTS;
  return `${((possible - hit) * 100).toFixed(1)}% of the prompt tokens were lost to evictions, moves and changed prompts`;
}

function drawMeter(hit, possible) {
  const meter = byId("meter");
  meter.hidden = !isNumber(hit);
  meter.style.setProperty("--fill", hit ?? 0);
  meter.style.setProperty("--possible", isNumber(possible) ? possible : (hit ?? 0));
}

export function drawTiles({ fleet, truth }) {
  const tiles = byId("tiles");
  put(tiles, "up", `${fleet.backends_up} of ${fleet.backends}`);
  const some = fleet.backends_up === fleet.backends ? "good" : "warn";
  byId("tile-up").dataset.level = fleet.backends_up > 0 ? some : "bad";
  for (const name of TOTALS) put(tiles, name, count(fleet[name]));
  for (const name of ["saved-tokens", "saved-time"]) tiles.querySelector(`[data-field=${name}]`).parentElement.hidden = !truth;
  if (truth) drawSaved(tiles, truth);
}

function drawSaved(tiles, truth) {
  const saved = truth.tokens.reused + truth.tokens.reloaded;
  put(tiles, "saved-tokens", compact(saved), `${count(saved)} prompt tokens came from a cache since the router started`);
  const measured = Object.values(truth.backends).some((backend) => isNumber(backend.prefill_tokens_per_s));
  const why = "no backend tells how fast it computes prompts";
  put(tiles, "saved-time", measured ? duration(truth.saved_s) : null, measured ? "computing them would have taken so long, at each backend's own prefill rate" : why);
}

/** The external columns are there only when some server has an external store in use. */
export function showExternalColumns({ fleet, backends }) {
  const used = [fleet, ...backends].some((figures) => Object.values(figures.external_hit_ratio).some(isNumber));
  document.body.classList.toggle("with-external", used);
}
