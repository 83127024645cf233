// The chart of the last hour: a bold line for the fleet over thin ones for the backends, and a legend beside it.

import { clock, isNumber, lineInWords, lonePoints, percent } from "./figures.js";
import { byId, colorOf, put, repeat } from "./page.js";

const HOUR_S = 3_600;
const FLEET_COLOR = "--accent";
const FONT = "12px system-ui, sans-serif";

const cssValue = (property) => getComputedStyle(document.documentElement).getPropertyValue(property).trim();

export class HitRateChart {
  constructor(host, legend) {
    this.host = host;
    this.legend = legend;
    this.hidden = new Set();
    this.names = null;
    this.plot = null;
    this.history = null;
    new ResizeObserver(() => this.plot?.setSize(this.size())).observe(host);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.plot?.redraw());
  }

  size() {
    return { width: Math.max(200, this.host.clientWidth), height: this.host.clientHeight };
  }

  draw(history) {
    this.history = history;
    const names = Object.keys(history.backends);
    if (this.names === null || this.names.join("\n") !== names.join("\n")) this.build(names);
    this.plot.setData([history.times, ...names.map((name) => history.backends[name]), history.fleet]);
    this.drawLegend();
    byId("chart-empty").hidden = history.fleet.some(isNumber);
    byId("chart-summary").textContent = `Hit rate of the fleet: ${lineInWords(history.fleet)}.`;
  }

  build(names) {
    this.plot?.destroy();
    this.names = names;
    const backends = names.map((name) => this.series(name, 1.25, colorOf(name)));
    const series = [{}, ...backends, this.series(null, 2.75, FLEET_COLOR)];
    this.plot = new uPlot({ ...this.options(), ...this.size(), series }, [[]], this.host);
  }

  /** `name` is null for the fleet. Colours are functions, so that a redraw follows the colour scheme. */
  series(name, width, color) {
    const stroke = () => cssValue(color);
    const filter = (plot, number) => lonePoints(plot.data[number]);
    const points = { show: false, filter, size: width + 3, fill: stroke };
    return { show: !this.hidden.has(name), scale: "y", width, stroke, points };
  }

  options() {
    const axis = { stroke: () => cssValue("--muted"), font: FONT, ticks: { show: false } };
    const rule = { stroke: () => cssValue("--line"), width: 1 };
    const minutes = (_, ticks) => ticks.map((tick) => clock(tick).slice(0, 5));
    return {
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 7 } },
      scales: { x: { range: wholeLine }, y: { range: [0, 1] } },
      axes: [
        { ...axis, grid: { show: false }, space: 70, size: 32, gap: 9, values: minutes },
        { ...axis, grid: rule, size: 46, splits: [0, 0.25, 0.5, 0.75, 1], values: (_, ticks) => ticks.map(percent) },
      ],
      hooks: { setCursor: [() => this.drawLegend()] },
    };
  }

  /** The figures under the cursor; the latest ones while there is no cursor. */
  drawLegend() {
    if (this.history === null || this.plot === null) return;
    const { times, fleet, backends } = this.history;
    const cursor = this.plot.cursor.idx;
    const index = cursor ?? times.length - 1;
    const prefix = cursor == null ? "latest, " : "at ";
    byId("chart-time").textContent = times.length === 0 ? "" : prefix + clock(times[index]);
    const lines = [[null, fleet], ...this.names.map((name) => [name, backends[name]])];
    repeat(this.legend, "legend-item", lines, (item, [name, line]) => this.drawLegendItem(item, name, line[index]));
  }

  drawLegendItem(item, name, ratio) {
    put(item, "name", name ?? "fleet", name ?? "all backends together");
    put(item, "value", percent(ratio), isNumber(ratio) ? "" : "no prompts in this half minute");
    item.querySelector(".swatch").style.background = `var(${name === null ? FLEET_COLOR : colorOf(name)})`;
    item.dataset.series = name === null ? "fleet" : "backend";
    const button = item.firstElementChild;
    button.setAttribute("aria-pressed", String(!this.hidden.has(name)));
    button.onclick = () => this.toggle(name);
  }

  toggle(name) {
    if (!this.hidden.delete(name)) this.hidden.add(name);
    const number = name === null ? this.names.length + 1 : this.names.indexOf(name) + 1;
    this.plot.setSeries(number, { show: !this.hidden.has(name) });
    this.drawLegend();
  }
}

function wholeLine(_, first, last) {
  const now = Date.now() / 1000;
  return isNumber(first) && first < last ? [first, last] : [now - HOUR_S, now];
}
