// What happened to conversations and backends, newest first, each in a sentence.

import { clock, count, moment } from "./figures.js";
import { byId, nameOf, repeat } from "./page.js";

const FEW = 8;
const STATE_COLORS = { up: "--good", down: "--bad", resting: "--bad", draining: "--drain", drained: "--drain", sleeping: "--drain" };
const WHY_MOVED = {
  failover: "its backend failed",
  drain: "its backend was drained",
  removed: "its backend is no longer configured",
  sleep: "its backend was put to sleep",
  cold: "its backend had dropped it, and was busy",
  spill: "its backend was full",
  cold: "its backend had dropped it, and was busy",
  owner: "it names a response made there",
  forgotten: "the router had forgotten where it was",
};
const some = (number, one, many) => `${count(number)} ${number === 1 ? one : many}`;
const at = (name) => (name === "" ? "a backend" : nameOf(name));

/** An event's sentence as words and names; the words may be foreign, the names are set apart. */
const SENTENCES = {
  state: (e) => [nameOf(e.backend), ` is ${e.to}`],
  move: (e) => [`${some(e.count, "conversation", "conversations")} moved from `, at(e.backend), " to ", at(e.to)],
  spill: (e) => [`${some(e.count, "request", "requests")} of `, at(e.backend), " served once by ", at(e.to), ": it was full"],
  failure: (e) => [`${some(e.count, "request", "requests")} failed at `, at(e.backend), ...servedBy(e.to)],
  resumed: (e) => [`${some(e.count, "answer", "answers")} broke off at `, at(e.backend), " and went on at ", at(e.to)],
  broken: (e) => [`${some(e.count, "answer", "answers")} broke off at `, at(e.backend), ", and the client was told"],
  backends: () => ["The backends have changed"],
  reload: () => ["The configuration was reloaded"],
  reload_failed: () => ["A reload failed: the configuration of before is in force"],
};
const LEVELS = { failure: "warn", broken: "bad", reload_failed: "bad", spill: "warn", move: "warn", resumed: "good" };

const servedBy = (to) => (to === "" ? [", and nobody served them"] : [", served by ", nameOf(to)]);

function levelOf({ kind, to }) {
  if (kind !== "state") return LEVELS[kind] ?? "plain";
  return { up: "good", down: "bad", resting: "bad" }[to] ?? "plain";
}

function whyOf({ kind, why, tokens }) {
  const reason = kind === "move" ? (WHY_MOVED[why] ?? why) : kind === "spill" ? "" : why;
  const cost = tokens > 0 ? `${count(tokens)} prompt tokens computed` : "";
  return [reason, cost].filter(Boolean).join(" · ");
}

export function drawTimeline(events) {
  byId("timeline").hidden = events.length === 0;
  byId("timeline-empty").hidden = events.length > 0;
  const button = byId("timeline-more");
  const all = button.getAttribute("aria-expanded") === "true";
  button.hidden = events.length <= FEW;
  button.textContent = all ? "Show fewer" : `Show all ${events.length}`;
  button.onclick = () => {
    button.setAttribute("aria-expanded", String(!all));
    drawTimeline(events);
  };
  repeat(byId("timeline"), "event", all ? events : events.slice(0, FEW), drawEvent);
}

function drawEvent(item, event) {
  const { time, last, kind } = event;
  const key = JSON.stringify(event);
  if (item.dataset.event === key) return;
  item.dataset.event = key;
  item.dataset.level = levelOf(event);
  const when = item.querySelector("time");
  when.textContent = clock(time);
  when.dateTime = new Date(time * 1000).toISOString();
  when.title = last - time >= 1 ? `${moment(time)} to ${clock(last)}` : moment(time);
  const words = SENTENCES[kind]?.(event) ?? [String(kind)];
  item.querySelector("[data-field=what]").replaceChildren(...words);
  item.querySelector("[data-field=why]").textContent = whyOf(event);
}

/** Uprights for the chart: changes of a backend's state and reloads. */
export function marksOf(events) {
  return events
    .filter(({ kind }) => kind === "state" || kind === "reload")
    .map(({ time, kind, to }) => ({ time, color: kind === "reload" ? "--muted" : (STATE_COLORS[to] ?? "--warn") }));
}
