// The table of recent requests.

import { clock, count, duration, isNumber, moment, pair, percent } from "./figures.js";
import { byId, put, repeat, setBar } from "./page.js";
import { meaning, NOT_REPORTED } from "./words.js";

export function drawRecent(requests) {
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

byId("recent-more").addEventListener("click", ({ currentTarget: button }) => {
  button.setAttribute("aria-expanded", String(button.getAttribute("aria-expanded") !== "true"));
  drawMoreButton(byId("recent-rows").childElementCount);
});
