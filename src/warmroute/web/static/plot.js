// What all charts share: uPlot in the page's look, following its size and the colour scheme, and a legend of buttons.

import { put, repeatKeyed } from "./page.js";

/** Steps of an axis of time, in seconds. */
export const WHOLE_MINUTES = [60, 120, 300, 600, 900, 1_800];
const FONT = "12px system-ui, sans-serif";

export const cssValue = (property) => getComputedStyle(document.documentElement).getPropertyValue(property).trim();

export class Plot {
  constructor(host) {
    this.host = host;
    this.plot = null;
    new ResizeObserver(() => this.plot?.setSize(this.size())).observe(host);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.plot?.redraw());
  }

  size() {
    return { width: Math.max(200, this.host.clientWidth), height: this.host.clientHeight };
  }

  show(options, data) {
    this.plot?.destroy();
    this.plot = new uPlot({ legend: { show: false }, ...this.size(), ...options }, data, this.host);
  }

  get index() {
    return this.plot?.cursor.idx ?? null;
  }
}

/** Colours are functions, so that a redraw follows the colour scheme. */
export const axis = () => ({ stroke: () => cssValue("--muted"), font: FONT, ticks: { show: false } });
export const rule = () => ({ stroke: () => cssValue("--line"), width: 1 });
export const cursor = (points) => ({ y: false, drag: { x: false, y: false }, points: { size: 7, show: points } });

/** Items are {key, kind, name, title, color, value, why, hidden}; `toggle(key)` hides or shows one. */
export function drawLegend(list, items, toggle) {
  repeatKeyed(list, "legend-item", items, (item) => `${item.kind} ${item.key}`, (node, item) => {
    put(node, "name", item.name, item.title);
    put(node, "value", item.value, item.why);
    node.querySelector(".swatch").style.background = `var(${item.color})`;
    node.dataset.series = item.kind;
    const button = node.firstElementChild;
    button.setAttribute("aria-pressed", String(!item.hidden));
    button.onclick = () => toggle(item.key);
  });
}
