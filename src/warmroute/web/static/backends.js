// The table of backends and their engines.

import { age, count, isNumber, lineInWords, moment, pair, percent, sparkPath } from "./figures.js";
import { byId, colorOf, put, repeat, setBar } from "./page.js";
import { externalTitle, hitTitle, NOT_REPORTED, WINDOWS } from "./words.js";

const KV_HIGH = 0.9;

export function drawBackends(state, history) {
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
