// How long a paused conversation stays warm on each backend: a figure, and the curve that it is read from.

import { age, compact, count, duration, isNumber, percent } from "./figures.js";
import { byId, colorOf, put, repeatKeyed } from "./page.js";
import { axis, cssValue, cursor, Plot, rule } from "./plot.js";

const WARM = 0.9;
const ENOUGH_TURNS = 4;

export class WarmChart extends Plot {
  /** `backends` is name -> figures of its tokens. Pauses stand at even distances, since they grow by factors. */
  draw(backends) {
    const names = Object.keys(backends);
    const pauses = names.length === 0 ? [] : backends[names[0]].idle.map(({ up_to_s: bound }) => bound);
    const lines = names.map((name) => backends[name].idle.map(({ share, turns }) => (turns >= ENOUGH_TURNS ? share : null)));
    const used = pauses.map((_, index) => lines.some((line) => isNumber(line[index])));
    const until = used.lastIndexOf(true);
    // One point is no curve.
    this.host.hidden = until < 1;
    byId("warm-hint").hidden = until >= 1;
    const key = JSON.stringify([names, lines]);
    if (until < 1 || key === this.key) return;
    this.key = key;
    const shown = pauses.slice(0, until + 1);
    const series = names.map((name) => this.series(name));
    const level = { scale: "y", width: 1, dash: [5, 4], stroke: () => cssValue("--muted"), points: { show: false } };
    const data = [shown.map((_, index) => index), shown.map(() => WARM), ...lines.map((line) => line.slice(0, until + 1))];
    this.show({ ...this.options(shown), series: [{}, level, ...series] }, data);
  }

  series(name) {
    const stroke = () => cssValue(colorOf(name));
    return { scale: "y", width: 2, stroke, spanGaps: true, points: { show: true, size: 6, fill: stroke } };
  }

  options(pauses) {
    const label = (index) => (isNumber(pauses[index]) ? `≤ ${age(pauses[index])}` : "longer");
    return {
      cursor: cursor(true),
      scales: { x: { time: false, range: [-0.3, pauses.length - 0.7] }, y: { range: [0, 1.02] } },
      axes: [
        { ...axis(), grid: { show: false }, space: 56, size: 32, gap: 9, incrs: [1, 2, 3, 4], values: (_, at) => at.map(label) },
        { ...axis(), grid: rule(), size: 46, splits: [0, 0.25, 0.5, 0.75, 1], values: (_, at) => at.map(percent) },
      ],
    };
  }
}

export function drawWarm(truth) {
  byId("warm").hidden = truth === null;
  if (truth === null) return;
  const rows = Object.entries(truth.backends);
  repeatKeyed(byId("warm-rows"), "warm-row", rows, ([name]) => name, (row, [name, figures]) => drawBackend(row, name, figures));
}

function drawBackend(row, name, figures) {
  row.querySelector(".swatch").style.background = `var(${colorOf(name)})`;
  put(row, "name", name, name);
  const [words, why] = warmFor(figures);
  put(row, "warm", words, why);
  const rate = figures.prefill_tokens_per_s;
  put(row, "rate", isNumber(rate) ? `${compact(rate)}/s` : null, isNumber(rate) ? `${count(Math.round(rate))} prompt tokens a second` : "not reported by the server");
  put(row, "saved", isNumber(rate) ? duration(figures.saved_s) : null, isNumber(rate) ? "time that computing the reused tokens would have taken" : "needs the prefill rate");
  const turns = figures.idle.reduce((total, bucket) => total + bucket.turns, 0);
  put(row, "seen", count(turns), "turns that came back to this backend with a prompt that had only grown");
}

function warmFor({ warm_s: warm, always_warm: always, idle }) {
  if (always) return ["always so far", "at least 90% was found after every pause that was seen"];
  if (!isNumber(warm)) return [null, "too few turns came back to say"];
  if (warm === 0) return [`under ${age(idle[0].up_to_s)}`, "less than 90% was found after the shortest pauses"];
  const later = idle.some(({ up_to_s: bound, turns }) => (bound === null || bound > warm) && turns >= ENOUGH_TURNS);
  return [`up to ${age(warm)}`, later ? "less than 90% was found after longer pauses" : "no turns came after longer pauses yet"];
}
