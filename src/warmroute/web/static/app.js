// The dashboard: gives each answer of the admin API to the sections, and says when the answers stop coming.

import { drawBackends } from "./backends.js";
import { HitRateChart } from "./chart.js";
import { age, clock, fromFirstFigure, percent } from "./figures.js";
import { Live } from "./live.js";
import { drawAdvice, drawMissed, MissedChart } from "./missed.js";
import { byId, element, put } from "./page.js";
import { poll, problemOf } from "./polling.js";
import { drawRecent } from "./requests.js";
import { drawSessions, followSessions, sessionsPath } from "./sessions.js";
import { drawTimeline, marksOf } from "./timeline.js";
import { drawHeadline, drawTiles, drawTop, showExternalColumns } from "./top.js";
import { drawWarm, WarmChart } from "./warm.js";

const STATE_EVERY_MS = 2_000;
const HISTORY_EVERY_MS = 10_000;
const EVENTS_EVERY_MS = 5_000;
const SESSIONS_EVERY_MS = 3_000;
const LEAST_STEPS = 8;
const NOT_READY = "The router is not ready";

const known = { state: null, history: null, answeredAtMs: null, problem: null };
const hitRates = new HitRateChart(byId("chart"), byId("legend"));
const missed = new MissedChart(byId("missed-chart"), byId("missed-legend"));
const warm = new WarmChart(byId("warm-chart"));

function onState(state) {
  drawTop(state);
  drawAdvice(state.advice);
  showExternalColumns(state);
  drawHeadline(state.fleet);
  drawTiles(state);
  drawBackends(state, known.history);
  drawTruth(state.truth ?? null);
  drawRecent(state.recent);
  Object.assign(known, { state, answeredAtMs: Date.now(), problem: null });
  drawFreshness();
}

function drawTruth(truth) {
  drawMissed(truth);
  drawWarm(truth);
  if (truth === null) return;
  missed.total(truth.tokens);
  warm.draw(truth.backends);
}

function onHistory(answer) {
  const history = fromFirstFigure(answer, LEAST_STEPS);
  known.history = history;
  if (known.state) drawBackends(known.state, history);
  hitRates.draw(history);
  if (history.truth) missed.draw(history.truth);
}

function onEvents({ events }) {
  byId("timeline-hint").textContent = "newest first";
  drawTimeline(events);
  hitRates.mark(marksOf(events));
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
  if (state) put(byId("top"), "updated", `${live.flows ? "live" : "updated"} ${clock(answeredAtMs / 1000)}`);
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

function onProblem(problem) {
  known.problem = problem;
  drawFreshness();
}

/** What fails beside the state is told where it is shown. */
const tellIn = (id) => (problem) => {
  byId(id).textContent = `not up to date: ${problem.lines.at(-1)}`;
};

const uses = { state: onState, history: onHistory, events: onEvents };
const live = new Live("api/live", uses, (error) => onProblem(problemOf(error)));
const asked = () => live.flows;
poll(() => "api/state", STATE_EVERY_MS, onState, onProblem, asked);
poll(() => "api/history", HISTORY_EVERY_MS, onHistory, tellIn("chart-time"), asked);
poll(() => "api/events", EVENTS_EVERY_MS, onEvents, tellIn("timeline-hint"), asked);
followSessions(poll(sessionsPath, SESSIONS_EVERY_MS, drawSessions, tellIn("sessions-count")));
setInterval(drawAge, 1_000);
