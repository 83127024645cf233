// Where the tokens went that no cache gave: stacked over time, all of them since the start, and by cause.

import { clock, compact, count, isNumber, percent, stacked } from "./figures.js";
import { byId, element, put, repeatKeyed } from "./page.js";
import { axis, cssValue, cursor, drawLegend, Plot, rule, WHOLE_MINUTES } from "./plot.js";
import { outcomeColor, outcomeOf, OUTCOMES } from "./words.js";

const MISSED = Object.keys(OUTCOMES).filter((key) => !OUTCOMES[key].had);
const AVOIDABLE = MISSED.filter((key) => OUTCOMES[key].avoidable);
const UNAVOIDABLE = MISSED.filter((key) => !OUTCOMES[key].avoidable && key !== "unknown");
const MOST_CAUSES = 8;

const sum = (values) => values.reduce((total, value) => total + value, 0);
const textOf = (node, text) => {
  if (node.textContent !== text) node.textContent = text;
};

export class MissedChart extends Plot {
  constructor(host, legend) {
    super(host);
    Object.assign(this, { legend, hidden: new Set(), history: null, totals: null });
  }

  /** `history` is {step_s, times, outcomes}. */
  draw(history) {
    this.history = history;
    if (this.plot === null) this.build();
    this.restack();
  }

  total(totals) {
    this.totals = totals;
    this.drawLegend();
  }

  build() {
    const bars = uPlot.paths.bars({ size: [0.82, 48] });
    // The tallest sum is drawn first, and each lower one over it.
    const series = [...MISSED].reverse().map((key) => {
      const color = () => cssValue(outcomeColor(key));
      return { scale: "y", paths: bars, fill: color, stroke: color, width: 0, points: { show: false } };
    });
    this.show({ ...this.options(), series: [{}, ...series] }, [[], ...series.map(() => [])]);
  }

  options() {
    const minutes = (_, ticks) => ticks.map((tick) => clock(tick).slice(0, 5));
    const tokens = (_, ticks) => ticks.map(compact);
    return {
      cursor: cursor(false),
      scales: { x: { range: (_, first, last) => this.span(first, last) }, y: { range: (_, __, most) => [0, most || 1] } },
      axes: [
        { ...axis(), grid: { show: false }, space: 70, size: 32, gap: 9, incrs: WHOLE_MINUTES, values: minutes },
        { ...axis(), grid: rule(), size: 46, space: 34, values: tokens },
      ],
      hooks: { setCursor: [() => this.drawLegend()] },
    };
  }

  span(first, last) {
    const half = (this.history?.step_s ?? 30) / 2;
    return isNumber(first) ? [first - half, last + half] : [0, 1];
  }

  restack() {
    const { step_s: step, times, outcomes } = this.history;
    const shown = MISSED.map((key) => (this.hidden.has(key) ? times.map(() => 0) : outcomes[key]));
    this.plot.setData([times.map((time) => time - step / 2), ...stacked(shown).reverse()]);
    byId("missed-empty").hidden = MISSED.some((key) => outcomes[key].some((tokens) => tokens > 0));
    this.drawLegend();
  }

  /** The figures under the cursor; those since the start while there is no cursor. */
  drawLegend() {
    const { history, totals, index } = this;
    if (history === null && totals === null) return;
    const at = history === null ? null : index;
    byId("missed-time").textContent = at === null ? "since the start" : `half minute to ${clock(history.times[at])}`;
    const items = MISSED.map((key) => {
      const tokens = at === null ? totals?.[key] : history.outcomes[key][at];
      const { name, is } = OUTCOMES[key];
      const kind = OUTCOMES[key].avoidable ? "avoidable" : "outcome";
      const why = isNumber(tokens) ? `${count(tokens)} prompt tokens` : "not known";
      return { key, kind, name, title: is, color: outcomeColor(key), value: compact(tokens), why, hidden: this.hidden.has(key) };
    });
    drawLegend(this.legend, items, (key) => this.toggle(key));
  }

  toggle(key) {
    if (!this.hidden.delete(key)) this.hidden.add(key);
    if (this.history !== null) this.restack();
  }
}

/** `truth` is null where the router does not account for tokens. */
export function drawMissed(truth) {
  byId("missed").hidden = truth === null;
  if (truth === null) return;
  const { tokens } = truth;
  const whole = sum(Object.values(tokens));
  textOf(byId("missed-sentence"), whole === 0 ? "No prompts yet." : inWords(tokens, whole));
  drawStack(byId("missed-stack"), tokens, 1);
  byId("missed-stack").hidden = whole === 0;
  drawCauses(truth.missed, whole);
}

function inWords(tokens, whole) {
  const share = (keys) => percent(sum(keys.map((key) => tokens[key] ?? 0)) / whole);
  const had = Object.keys(OUTCOMES).filter((key) => OUTCOMES[key].had);
  const unknown = tokens.unknown > 0 ? `, and of ${share(["unknown"])} it is not known` : "";
  return `Of ${compact(whole)} prompt tokens ${share(had)} came from a cache. ${share(AVOIDABLE)} could have, and did not; ${share(UNAVOIDABLE)} were new${unknown}.`;
}

function drawCauses(missed, whole) {
  const causes = byCause(missed);
  byId("causes").hidden = causes.length === 0;
  repeatKeyed(byId("cause-rows"), "cause-row", causes, ({ outcome, cause }) => `${outcome} ${cause}`, (row, cause) => {
    const { name, is } = outcomeOf(cause.outcome);
    row.querySelector(".swatch").style.background = `var(${outcomeColor(cause.outcome)})`;
    put(row, "outcome", name, is);
    put(row, "cause", cause.cause === cause.outcome ? "" : cause.cause.replaceAll("_", " "));
    put(row, "meaning", cause.meaning);
    put(row, "tokens", count(cause.tokens));
    put(row, "share", percent(cause.tokens / whole), `of ${count(whole)} prompt tokens`);
    const where = [...cause.backends].map(([backend, tokens]) => `${backend}: ${count(tokens)}`).join("\n");
    const names = [...cause.backends.keys()].join(", ");
    put(row, "backends", names, where);
  });
}

/** The causes over all backends, those that cost most first. */
function byCause(missed) {
  const found = new Map();
  for (const { backend, outcome, cause, meaning, tokens } of missed) {
    if (!(tokens > 0)) continue;
    const key = `${outcome} ${cause}`;
    if (!found.has(key)) found.set(key, { outcome, cause, meaning, tokens: 0, backends: new Map() });
    const row = found.get(key);
    row.tokens += tokens;
    row.backends.set(backend, (row.backends.get(backend) ?? 0) + tokens);
  }
  return [...found.values()].sort((a, b) => b.tokens - a.tokens).slice(0, MOST_CAUSES);
}

/** Fills a bar with one part for each outcome, `share` of its width together; its words are its label. */
export function drawStack(bar, tokens, share) {
  const order = Object.keys(OUTCOMES);
  const known = order.filter((key) => tokens[key] > 0);
  const others = Object.keys(tokens).filter((key) => !order.includes(key) && tokens[key] > 0);
  const words = [...known, ...others].map((key) => `${count(tokens[key])} ${outcomeOf(key).name}`).join(", ");
  bar.style.setProperty("--width", share);
  if (bar.title === words) return;
  bar.title = words;
  bar.setAttribute("aria-label", words || "no tokens");
  const parts = [...known, ...others].map((key) => {
    const part = element("span", "", outcomeOf(key).avoidable ? "avoidable" : "");
    part.style.flexGrow = tokens[key];
    part.style.background = `var(${outcomeColor(key)})`;
    return part;
  });
  bar.replaceChildren(...parts);
}

// ---------------------------------------------------------------- advice

const LEVELS = { bad: "mend", cost: "costs tokens", good: "works" };

export function drawAdvice(pieces) {
  const order = Object.keys(LEVELS);
  const sorted = [...pieces].sort((a, b) => order.indexOf(a.level) - order.indexOf(b.level));
  byId("advice").dataset.level = sorted[0]?.level ?? "";
  byId("advice-empty").hidden = sorted.length > 0;
  repeatKeyed(byId("advice-list"), "advice-item", sorted, ({ text }) => text, (item, { level, text, evidence, settings }) => {
    item.dataset.level = level;
    put(item, "level", LEVELS[level] ?? level);
    put(item, "text", text);
    put(item, "evidence", evidence);
    const details = item.querySelector("details");
    details.hidden = settings.length === 0;
    const list = details.querySelector("ul");
    if (list.childElementCount !== settings.length) list.replaceChildren(...settings.map((s) => element("li", s)));
  });
}

