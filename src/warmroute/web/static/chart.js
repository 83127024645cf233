// The hit rate over the last hour: a bold line for the fleet below what was possible, thin lines for the backends.

import { clock, isNumber, lineInWords, lonePoints, percent } from "./figures.js";
import { byId, colorOf } from "./page.js";
import { axis, cssValue, cursor, drawLegend, Plot, rule, WHOLE_MINUTES } from "./plot.js";

const HOUR_S = 3_600;
const FLEET = { kind: "fleet", color: "--accent", name: "fleet", title: "all backends together" };
const POSSIBLE = {
  kind: "possible",
  color: "--ink",
  name: "possible",
  title: "the fleet's, had nothing been lost to evictions, moves and changed prompts",
};

export class HitRateChart extends Plot {
  constructor(host, legend) {
    super(host);
    this.legend = legend;
    this.hidden = new Set();
    this.names = null;
    this.history = null;
    this.marks = [];
  }

  draw(history) {
    this.history = history;
    const names = Object.keys(history.backends);
    if (this.names === null || this.names.join("\n") !== names.join("\n")) this.build(names);
    const lines = names.map((name) => history.backends[name]);
    this.plot.setData([history.times, ...lines, history.possible, history.fleet]);
    this.drawLegend();
    byId("chart-empty").hidden = history.fleet.some(isNumber);
    byId("chart-summary").textContent = this.inWords();
  }

  inWords() {
    const { fleet, possible } = this.history;
    const ceiling = possible.some(isNumber) ? ` What was possible: ${lineInWords(possible)}.` : "";
    return `Hit rate of the fleet: ${lineInWords(fleet)}.${ceiling}`;
  }

  /** Marks are {time, color}: uprights where something happened. */
  mark(marks) {
    this.marks = marks;
    this.plot?.redraw(false);
  }

  build(names) {
    this.names = names;
    const backends = names.map((name) => this.series(`backend ${name}`, 1.25, colorOf(name)));
    const possible = { ...this.series("possible", 1.5, POSSIBLE.color), dash: [5, 4] };
    const series = [{}, ...backends, possible, this.series("fleet", 2.75, FLEET.color)];
    const bands = [{ series: [names.length + 1, names.length + 2], fill: () => cssValue("--lost-wash") }];
    this.show({ ...this.options(), series, bands }, [[]]);
  }

  series(key, width, color) {
    const stroke = () => cssValue(color);
    const filter = (plot, number) => lonePoints(plot.data[number]);
    const points = { show: false, filter, size: width + 3, fill: stroke };
    return { show: !this.hidden.has(key), scale: "y", width, stroke, points };
  }

  options() {
    const minutes = (_, ticks) => ticks.map((tick) => clock(tick).slice(0, 5));
    return {
      cursor: cursor(true),
      scales: { x: { range: wholeLine }, y: { range: [0, 1] } },
      axes: [
        { ...axis(), grid: { show: false }, space: 70, size: 32, gap: 9, incrs: WHOLE_MINUTES, values: minutes },
        { ...axis(), grid: rule(), size: 46, splits: [0, 0.25, 0.5, 0.75, 1], values: (_, ticks) => ticks.map(percent) },
      ],
      hooks: { setCursor: [() => this.drawLegend()], drawAxes: [(plot) => this.drawMarks(plot)] },
    };
  }

  drawMarks({ ctx, bbox, scales, valToPos }) {
    ctx.save();
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([2 * devicePixelRatio, 3 * devicePixelRatio]);
    for (const { time, color } of this.marks) {
      if (!(time >= scales.x.min && time <= scales.x.max)) continue;
      const x = Math.round(valToPos(time, "x", true));
      ctx.strokeStyle = cssValue(color);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }

  /** The figures under the cursor; the latest ones while there is no cursor. */
  drawLegend() {
    if (this.history === null || this.plot === null) return;
    const { times, fleet, possible, backends } = this.history;
    const at = this.index ?? times.length - 1;
    const prefix = this.index === null ? "latest, " : "at ";
    byId("chart-time").textContent = times.length === 0 ? "" : prefix + clock(times[at]);
    const lines = [
      { ...FLEET, key: "fleet", line: fleet },
      { ...POSSIBLE, key: "possible", line: possible },
      ...this.names.map((name) => this.backendItem(name, backends[name])),
    ];
    const items = lines.map(({ line, ...item }) => ({
      ...item,
      value: percent(line[at]),
      why: isNumber(line[at]) ? "" : "no prompts in this half minute",
      hidden: this.hidden.has(item.key),
    }));
    drawLegend(this.legend, items, (key) => this.toggle(key));
  }

  backendItem(name, line) {
    return { kind: "backend", key: `backend ${name}`, color: colorOf(name), name, title: name, line };
  }

  toggle(key) {
    if (!this.hidden.delete(key)) this.hidden.add(key);
    const keys = [...this.names.map((name) => `backend ${name}`), "possible", "fleet"];
    this.plot.setSeries(keys.indexOf(key) + 1, { show: !this.hidden.has(key) });
    this.drawLegend();
  }
}

function wholeLine(_, first, last) {
  const now = Date.now() / 1000;
  return isNumber(first) && first < last ? [first, last] : [now - HOUR_S, now];
}
