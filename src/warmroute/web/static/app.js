// The dashboard: draws each answer of the admin API, section by section, and says when the answers stop coming.

import { HitRateChart } from "./chart.js";
import { age, clock, compact, count, duration, moment, pair, percent } from "./figures.js";
import { fromFirstFigure, isNumber, lineInWords, sparkPath } from "./figures.js";
import { byId, colorOf, element, put, repeat, setBar } from "./page.js";
import { poll } from "./polling.js";

const STATE_EVERY_MS = 2_000;
const HISTORY_EVERY_MS = 10_000;
const LEAST_STEPS = 20;
const KV_HIGH = 0.9;
const WINDOWS = { "1m": "last minute", "5m": "last 5 minutes", "1h": "last hour" };
const HEADLINE_WINDOWS = ["5m", "1h", "1m"];
const TOTALS = ["sessions", "in_flight", "requests", "moves", "retries", "spills", "client_aborts"];
const NO_PROMPTS = "no prompts in this window";
const NOT_READY = "The router is not ready";
const NO_LOOKUPS = "no look-ups in an external store in this window";
const NOT_REPORTED = "not reported by the server";

// ---------------------------------------------------------------- top of the page

function drawTop(state) {
  const top = byId("top");
  put(top, "readiness", state.ready ? "ready" : "not ready");
  byId("readiness").dataset.level = state.ready ? "good" : "bad";
  put(top, "version", `v${state.version}`);
  put(top, "uptime", `up ${duration(state.uptime_s)}`);
}

function drawAdvice(sentences) {
  byId("advice").hidden = sentences.length === 0;
  const list = byId("advice-list");
  if ([...list.children].map((item) => item.textContent).join("\n") === sentences.join("\n")) return;
  list.replaceChildren(...sentences.map((sentence) => element("li", sentence)));
}

function drawHeadline(fleet) {
  const card = byId("headline");
  const shown = HEADLINE_WINDOWS.find((name) => isNumber(fleet.hit_ratio[name])) ?? HEADLINE_WINDOWS[0];
  put(card, "headline", percent(fleet.hit_ratio[shown]), hitTitle(fleet, shown));
  put(card, "headline-under", headlineSentence(fleet, shown));
  for (const name of Object.keys(WINDOWS)) {
    const tokens = fleet.prompt_tokens[name];
    const external = fleet.external_hit_ratio[name];
    put(card, `hit-${name}`, percent(fleet.hit_ratio[name]), hitTitle(fleet, name));
    put(card, `tokens-${name}`, compact(tokens), isNumber(tokens) ? `${count(tokens)} prompt tokens` : NOT_REPORTED);
    put(card, `external-${name}`, percent(external), externalTitle(external));
  }
}

function headlineSentence(fleet, shown) {
  if (isNumber(fleet.hit_ratio[shown])) return `of prompt tokens came from cache, ${WINDOWS[shown]}`;
  if (fleet.requests === 0) return "No prompts yet. Point a client at the router's data port.";
  return "No prompts in the last hour.";
}

/** `figures` is the fleet or one backend. */
function hitTitle(figures, window) {
  const ratio = figures.hit_ratio[window];
  if (!isNumber(ratio)) return NO_PROMPTS;
  const tokens = figures.prompt_tokens[window];
  const whole = isNumber(tokens) ? `${count(tokens)} prompt tokens` : "the prompt tokens";
  return `${(ratio * 100).toFixed(1)}% of ${whole} came from the prefix cache, ${WINDOWS[window]}`;
}

function externalTitle(ratio) {
  return isNumber(ratio) ? "found in the external KV store, of the tokens looked up there" : NO_LOOKUPS;
}

function drawTiles(fleet) {
  const tiles = byId("tiles");
  put(tiles, "up", `${fleet.backends_up} of ${fleet.backends}`);
  const some = fleet.backends_up === fleet.backends ? "good" : "warn";
  byId("tile-up").dataset.level = fleet.backends_up > 0 ? some : "bad";
  for (const name of TOTALS) {
    tiles.querySelector(`[data-field=${name}]`).parentElement.hidden = fleet[name] === undefined;
    put(tiles, name, count(fleet[name]));
  }
}

/** The external columns are there only when some server has an external store in use. */
function showExternalColumns({ fleet, backends }) {
  const used = [fleet, ...backends].some((figures) => Object.values(figures.external_hit_ratio).some(isNumber));
  document.body.classList.toggle("with-external", used);
}

// ---------------------------------------------------------------- backends

function drawBackends(state, history) {
  byId("backends").hidden = state.backends.length === 0;
  byId("backends-empty").hidden = state.backends.length > 0;
  repeat(byId("backends"), "backend", state.backends, (body, backend) => {
    drawName(body, backend);
    drawState(body, backend, state.now);
    drawLoad(body, backend);
    drawRates(body, backend);
    drawSpark(body, backend.name, history);
    put(body, "requests", count(backend.requests));
    put(body, "failures", count(backend.failures));
    drawEngines(body, backend.engines);
  });
}

function drawName(body, { name, url, models, weight }) {
  body.querySelector(".swatch").style.background = `var(${colorOf(name)})`;
  put(body, "name", name, name === url ? url : `${name}\n${url}`);
  const small = weight === 1 ? models : [...models, `weight ${weight}`];
  put(body, "models", small.join(", "), `Models: ${models.join(", ") || "none known"}; weight ${weight}`);
}

function drawState(body, { state, since, reason, scrape, drain }, now) {
  body.dataset.state = state;
  put(body, "state", state);
  put(body, "since", `for ${age(now - since)}`, `since ${moment(since)}`);
  const why = state === "up" ? "" : reason || drainSentence(drain);
  put(body, "reason", why, why);
  const metrics = scrapeSentence(scrape, why);
  put(body, "scrape", metrics, metrics && `Running, waiting, KV cache and hit rate are as of then. ${metrics}`);
}

function drainSentence(drain) {
  if (!drain) return "";
  const sessions = `${count(drain.sessions_left)} sessions left`;
  return isNumber(drain.seconds_left) ? `${sessions}, the rest moves in ${age(drain.seconds_left)}` : sessions;
}

function scrapeSentence({ stale, error, age_s }, alreadySaid) {
  if (!stale && !error) return "";
  const when = isNumber(age_s) ? `metrics ${age(age_s)} old` : "no metrics yet";
  return error && error !== alreadySaid ? `${when}: ${error}` : when;
}

/** The figures that a backend and one engine of it share. */
function drawLoad(row, { sessions, in_flight, running, waiting, kv_cache_usage: kv }) {
  put(row, "sessions", count(sessions));
  put(row, "in-flight", count(in_flight));
  put(row, "load", pair(running, waiting), isNumber(running) && isNumber(waiting) ? "" : NOT_REPORTED);
  put(row, "kv", percent(kv), isNumber(kv) ? `${(kv * 100).toFixed(1)}% of the KV cache is in use` : NOT_REPORTED);
  setBar(row, kv).dataset.level = kv >= KV_HIGH ? "warn" : "normal";
}

function drawRates(body, backend) {
  for (const name of Object.keys(WINDOWS)) {
    put(body, `hit-${name}`, percent(backend.hit_ratio[name]), hitTitle(backend, name));
  }
  const external = backend.external_hit_ratio["5m"];
  put(body, "external", percent(external), externalTitle(external));
}

function drawSpark(body, name, history) {
  const line = history && Object.hasOwn(history.backends, name) ? history.backends[name] : [];
  const path = body.querySelector(".spark path");
  path.setAttribute("d", sparkPath(line));
  path.style.stroke = `var(${colorOf(name)})`;
  put(body, "spark", lineInWords(line));
  body.querySelector(".spark").title = lineInWords(line);
}

/** One engine is the backend itself: only several get rows of their own. */
function drawEngines(body, engines) {
  repeat(body, "engine", engines.length > 1 ? engines : [], (row, engine) => {
    put(row, "name", `engine ${engine.engine}`);
    drawLoad(row, engine);
  });
}

// ---------------------------------------------------------------- recent requests

function drawRecent(requests) {
  byId("recent").hidden = requests.length === 0;
  byId("recent-empty").hidden = requests.length > 0;
  repeat(byId("recent-rows"), "request", requests, drawRequest);
  drawMoreButton(requests.length);
}

function drawMoreButton(rows) {
  const button = byId("recent-more");
  const all = button.getAttribute("aria-expanded") === "true";
  button.hidden = rows <= Number(button.dataset.few);
  button.textContent = all ? "Show fewer" : `Show all ${rows}`;
  byId("recent").classList.toggle("all", all);
}

function drawRequest(row, request) {
  const { session, key_source: source, backend, engine, decision } = request;
  put(row, "time", clock(request.time), moment(request.time));
  put(row, "path", `${request.method} ${request.path}`, `${request.method} ${request.path}\nrequest id ${request.id}`);
  put(row, "session", session, session === null ? "no conversation was recognised" : "keyed digest of the session id");
  put(row, "key-source", source ?? "", source === null ? "" : `the session id came from ${source}`);
  put(row, "backend", backend, backend ?? "no backend was asked");
  put(row, "engine", engine === null ? "" : `engine ${engine}`);
  put(row, "decision", decision, meaning(decision));
  row.querySelector(".chip").dataset.decision = decision;
  drawStatus(row, request);
  drawPrompt(row, request.prompt_tokens, request.cached_tokens);
  put(row, "output", count(request.completion_tokens), isNumber(request.completion_tokens) ? "" : NOT_REPORTED);
  put(row, "ttfb", duration(request.ttfb_s), isNumber(request.ttfb_s) ? "" : "no byte of an answer came");
  put(row, "duration", duration(request.duration_s), isNumber(request.duration_s) ? "" : "not ended");
}

/** The sentence for a decision's code, out of the glossary at the foot of the page. */
function meaning(decision) {
  return byId(`decision-${decision}`)?.nextElementSibling.textContent ?? "";
}

function drawStatus(row, { status, aborted, attempts, failures = [] }) {
  put(row, "status", status > 0 ? status : null, status > 0 ? "" : "no status was sent");
  row.dataset.level = status >= 500 ? "bad" : status >= 400 ? "warn" : "normal";
  const notes = [aborted ? "cut short" : "", attempts > 1 ? `${attempts} attempts` : ""].filter(Boolean).join(", ");
  const why = aborted ? ["the client left, or the answer broke off, before its end"] : [];
  put(row, "status-note", notes, [...why, ...failures].join("\n"));
}

function drawPrompt(row, prompt, cached) {
  const known = isNumber(prompt) && isNumber(cached) && prompt > 0;
  const title = known ? `${percent(cached / prompt)} of the prompt came from the cache` : NOT_REPORTED;
  put(row, "tokens", pair(cached, prompt), title);
  setBar(row, known ? cached / prompt : null);
}

// ---------------------------------------------------------------- what the page knows, and whether it is fresh

const known = { state: null, history: null, answeredAtMs: null, problem: null };
const chart = new HitRateChart(byId("chart"), byId("legend"));

function onState(state) {
  drawTop(state);
  drawAdvice(state.advice);
  showExternalColumns(state);
  drawHeadline(state.fleet);
  drawTiles(state.fleet);
  drawBackends(state, known.history);
  drawRecent(state.recent);
  Object.assign(known, { state, answeredAtMs: Date.now(), problem: null });
  drawFreshness();
}

function onHistory(answer) {
  const history = fromFirstFigure(answer, LEAST_STEPS);
  known.history = history;
  if (known.state) drawBackends(known.state, history);
  chart.draw(history);
}

function drawFreshness() {
  const { state, problem, answeredAtMs } = known;
  document.body.dataset.phase = problem === null ? "live" : state === null ? "error" : "stale";
  byId("loading").hidden = true;
  drawBanner(problem ?? (state.ready ? null : { title: NOT_READY, lines: state.reasons }));
  const word = problem ? "no answer" : state.ready ? percent(state.fleet.hit_ratio["5m"]) : "not ready";
  document.title = word === null ? "warmroute" : `${word} · warmroute`;
  if (problem) byId("readiness").dataset.level = "unknown";
  if (problem) put(byId("top"), "readiness", "no answer");
  if (state) put(byId("top"), "updated", `updated ${clock(answeredAtMs / 1000)}`);
  drawAge();
}

/** The banner is a live region: it is touched only when its words change, so that they are read out once. */
function drawBanner(notice) {
  const banner = byId("banner");
  const words = notice === null ? [] : [notice.title, ...notice.lines];
  if (banner.dataset.words === words.join("\n")) return;
  banner.dataset.words = words.join("\n");
  const box = element("div", "", "notice");
  box.append(...words.map((line, index) => element(index === 0 ? "strong" : "p", line)));
  banner.replaceChildren(...(notice === null ? [] : [box]));
}

/** Counts up every second, so it stands outside the live region. */
function drawAge() {
  const { problem, answeredAtMs } = known;
  byId("age").hidden = problem === null;
  const last = answeredAtMs === null ? "No answer yet" : `Last update ${age((Date.now() - answeredAtMs) / 1000)} ago`;
  byId("age").textContent = `${last}, retrying.`;
}

byId("recent-more").addEventListener("click", ({ currentTarget: button }) => {
  button.setAttribute("aria-expanded", String(button.getAttribute("aria-expanded") !== "true"));
  drawMoreButton(byId("recent-rows").childElementCount);
});
poll("api/state", STATE_EVERY_MS, onState, (problem) => {
  known.problem = problem;
  drawFreshness();
});
poll("api/history", HISTORY_EVERY_MS, onHistory, (problem) => {
  byId("chart-time").textContent = `not up to date: ${problem.lines.at(-1)}`;
});
setInterval(drawAge, 1_000);
