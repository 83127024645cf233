// The sessions used last, found by a search, and the turns of the one that is open as a strip of stacked bars.

import { age, clock, count, duration, isNumber, moment, pair, percent } from "./figures.js";
import { byId, put, repeat, repeatKeyed, setBar } from "./page.js";
import { drawStack } from "./missed.js";
import { getJson, problemOf } from "./polling.js";
import { meaning, NOT_REPORTED, outcomeColor, outcomeOf, OUTCOMES } from "./words.js";

const ASKED = 200;
const FEW = 10;
const MORE = 50;
const TYPED_MS = 250;

const shown = { rows: FEW, open: null, search: "", answer: null };

export const sessionsPath = () =>
  `api/sessions?limit=${ASKED}${shown.search === "" ? "" : `&search=${encodeURIComponent(shown.search)}`}`;

export function drawSessions(answer) {
  shown.answer = answer;
  const rows = inOrder(answer.sessions.slice(0, ASKED)).slice(0, shown.rows);
  byId("sessions").hidden = rows.length === 0;
  const nothing = shown.search === "" ? "No sessions yet: none of the requests named or continued a conversation." : "No session has this text.";
  byId("sessions-empty").hidden = rows.length > 0;
  byId("sessions-empty").textContent = nothing;
  byId("sessions-count").textContent = countSentence(answer, rows.length);
  repeatKeyed(byId("sessions"), "session", rows, ({ session }) => session, drawSession);
  const left = Math.min(ASKED, answer.sessions.length) - rows.length;
  byId("sessions-more").hidden = left <= 0;
  byId("sessions-more").textContent = `Show ${Math.min(MORE, left)} more`;
  if (shown.open !== null) drawOpen();
}

function countSentence({ total, sessions }, rows) {
  if (shown.search !== "") return `${sessions.length >= ASKED ? `${ASKED} or more` : count(sessions.length)} found`;
  return total > rows ? `the ${count(rows)} used last of ${count(total)}` : "used last first";
}

/** The rows stay where they are while somebody is at one of them; otherwise those used last come first. */
function inOrder(sessions) {
  const table = byId("sessions");
  if (shown.open === null && !table.contains(document.activeElement)) return sessions;
  const known = new Map(sessions.map((session) => [session.session, session]));
  const kept = [...table.querySelectorAll("[data-row=session]")].map((row) => known.get(row.dataset.key)).filter(Boolean);
  for (const { session } of kept) known.delete(session);
  return [...kept, ...known.values()];
}

function drawSession(body, session) {
  const { session: name, source, backend, engine, turns, hit_ratio: hit, prompt_tokens: prompt, idle_s: idle } = session;
  put(body, "session", name, "Keyed digest of the session id. Press to see its turns");
  put(body, "source", source, `the session id came from ${source}`);
  put(body, "backend", backend, backend);
  put(body, "engine", engine === null ? "" : `engine ${engine}`);
  put(body, "turns", count(turns));
  put(body, "hit", percent(hit), isNumber(hit) ? "of its last turns' prompt tokens, found in the cache" : NOT_REPORTED);
  setBar(body, hit);
  put(body, "prompt", count(prompt), isNumber(prompt) ? "prompt tokens of its last turn" : "no turn is remembered");
  put(body, "idle", duration(idle), "since its last request");
  put(body, "decision", session.last_decision ?? null, meaning(session.last_decision) || "no turn is remembered");
  body.querySelector("[data-field=decision]").dataset.decision = session.last_decision ?? "";
  put(body, "cause", (session.last_cause ?? "").replaceAll("_", " "));
  const open = name === shown.open;
  const button = body.querySelector(".opens");
  const detail = body.querySelector(".detail");
  detail.id = `turns of ${name}`.replaceAll(" ", "-");
  button.setAttribute("aria-expanded", String(open));
  button.setAttribute("aria-controls", detail.id);
  detail.hidden = !open;
  body.classList.toggle("open", open);
  body.querySelector(".session-row").onclick = (event) => {
    if (event.target.closest("button") || getSelection().isCollapsed) toggle(name);
  };
}

function toggle(name) {
  shown.open = shown.open === name ? null : name;
  if (shown.answer) drawSessions(shown.answer);
}

async function drawOpen() {
  const name = shown.open;
  const body = [...byId("sessions").querySelectorAll("[data-row=session]")].find((row) => row.dataset.key === name);
  if (!body) {
    shown.open = null;
    return;
  }
  try {
    const answer = await getJson(`api/sessions/${encodeURIComponent(name)}/turns`);
    if (shown.open === name) drawTurns(body, answer.turns);
  } catch (error) {
    if (shown.open === name) drawNoTurns(body, problemOf(error));
  }
}

function drawNoTurns(body, { lines }) {
  const message = lines.at(-1);
  body.querySelector(".strip").hidden = true;
  body.querySelector(".key").replaceChildren();
  put(body, "told", message.includes("404") ? "The turns of this session are not remembered." : message);
}

function drawTurns(body, turns) {
  const longest = Math.max(1, ...turns.map((turn) => turn.prompt_tokens));
  put(body, "told", turns.length === 0 ? "No turn of this session has ended yet." : turnsSentence(turns));
  body.querySelector(".strip").hidden = turns.length === 0;
  drawKey(body.querySelector(".key"), turns);
  repeat(body.querySelector(".turn-rows"), "turn", turns, (row, turn) => drawTurn(row, turn, longest));
}

/** Which colour is which outcome, for those that occur. */
function drawKey(list, turns) {
  const keys = Object.keys(OUTCOMES).filter((key) => turns.some((turn) => turn.outcomes[key] > 0));
  repeatKeyed(list, "key-item", keys, (key) => key, (item, key) => {
    item.querySelector(".swatch").style.background = `var(${outcomeColor(key)})`;
    put(item, "name", OUTCOMES[key].name, OUTCOMES[key].is);
  });
}

function turnsSentence(turns) {
  const each = "Each bar is a turn's prompt, as long as it has tokens";
  return turns.length === 1 ? "Its one turn." : `Its last ${turns.length} turns, the oldest first. ${each}.`;
}

function drawTurn(row, turn, longest) {
  put(row, "time", clock(turn.time), moment(turn.time));
  put(row, "idle", isNumber(turn.idle_s) ? `after ${age(turn.idle_s)}` : "", "idle since its last turn there");
  drawStack(row.querySelector(".stack"), turn.outcomes, turn.prompt_tokens / longest);
  put(row, "tokens", pair(turn.cached_tokens, turn.prompt_tokens), "tokens from the cache, of the prompt's");
  put(row, "backend", turn.backend, turn.backend);
  put(row, "decision", turn.decision, meaning(turn.decision));
  row.querySelector("[data-field=decision]").dataset.decision = turn.decision;
  const worst = worstOf(turn.outcomes);
  const why = worst === null ? "" : `${count(turn.outcomes[worst])} ${outcomeOf(worst).name}`;
  put(row, "why", why, worst === null ? "" : outcomeOf(worst).is);
  row.querySelector("[data-field=why]").style.setProperty("--mark", worst === null ? "transparent" : `var(${outcomeColor(worst)})`);
  put(row, "cause", turn.cause === worst ? "" : turn.cause.replaceAll("_", " "), turn.meaning);
}

/** Of the outcomes that a cache could have prevented the one that cost most. */
function worstOf(outcomes) {
  const found = Object.keys(outcomes).filter((key) => outcomeOf(key).avoidable && outcomes[key] > 0);
  return found.sort((a, b) => outcomes[b] - outcomes[a])[0] ?? null;
}

/** `refresh` asks for the sessions again. */
export function followSessions(refresh) {
  let timer = 0;
  byId("sessions-search").addEventListener("input", ({ target }) => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      Object.assign(shown, { search: target.value.trim(), rows: FEW, open: null });
      refresh();
    }, TYPED_MS);
  });
  byId("sessions-more").addEventListener("click", () => {
    shown.rows += MORE;
    if (shown.answer) drawSessions(shown.answer);
  });
  byId("sessions").addEventListener("keydown", (event) => {
    if (event.key === "Escape" && shown.open !== null) toggle(shown.open);
  });
}
