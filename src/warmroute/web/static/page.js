// Writing into the page: fields, copies of templates, bars, colours. Text goes in through textContent only.

import { isNumber } from "./figures.js";

const SERIES_COLORS = 8;
const LONGEST_NAME = 60;
const colorNumbers = new Map();

export const byId = (id) => document.getElementById(id);

export function element(tag, text = "", className = "") {
  const node = document.createElement(tag);
  node.textContent = text;
  node.className = className;
  return node;
}

/**
 * Writes one field under `root`, touching the page only where it changes. A null text shows an en dash, and `title`
 * then says why there is no figure. Without `title` the one in the page stays.
 */
export function put(root, field, text, title) {
  const node = root.querySelector(`[data-field="${field}"]`);
  if (title !== undefined && node.title !== title) node.title = title;
  node.classList.toggle("none", text === null);
  if (text === null) putNoData(node, title ?? "not known");
  else if (node.childElementCount > 0 || node.textContent !== String(text)) node.textContent = text;
}

function putNoData(node, why) {
  const spoken = `no data: ${why}`;
  if (node.lastElementChild?.textContent === spoken) return;
  const dash = element("span", "–");
  dash.setAttribute("aria-hidden", "true");
  node.replaceChildren(dash, element("span", spoken, "sr"));
}

/** Fills the bar under `root` to `ratio`; without a ratio there is no bar. */
export function setBar(root, ratio) {
  const bar = root.querySelector(".bar");
  bar.hidden = !isNumber(ratio);
  bar.style.setProperty("--fill", isNumber(ratio) ? Math.min(1, Math.max(0, ratio)) : 0);
  return bar;
}

/** Keeps as many copies of a template in `container` as there are items, and draws each item into its copy. */
export function repeat(container, templateId, items, draw) {
  const rows = [...container.querySelectorAll(`:scope > [data-row="${templateId}"]`)];
  for (const spare of rows.splice(items.length)) spare.remove();
  while (rows.length < items.length) {
    rows.push(copyOf(templateId));
    container.append(rows.at(-1));
  }
  items.forEach((item, index) => draw(rows[index], item));
}

/** As `repeat`, but a copy stays with its item, known by `keyOf(item)`: what a person has opened or focused moves along. */
export function repeatKeyed(container, templateId, items, keyOf, draw) {
  const rows = new Map([...container.querySelectorAll(`:scope > [data-row="${templateId}"]`)].map((r) => [r.dataset.key, r]));
  let after = null;
  for (const item of items) {
    const key = keyOf(item);
    const row = rows.get(key) ?? copyOf(templateId);
    rows.delete(key);
    row.dataset.key = key;
    const place = after === null ? container.querySelector(`:scope > [data-row="${templateId}"]`) : after.nextElementSibling;
    if (row !== place) container.insertBefore(row, place);
    draw(row, item);
    after = row;
  }
  for (const spare of rows.values()) spare.remove();
}

function copyOf(templateId) {
  const row = byId(templateId).content.firstElementChild.cloneNode(true);
  row.dataset.row = templateId;
  return row;
}

/** A foreign name inside a sentence: as text that cannot turn its direction, cut where it is very long. */
export function nameOf(name) {
  const node = element("bdi", name.length > LONGEST_NAME ? `${name.slice(0, LONGEST_NAME)}…` : name, "name");
  node.title = name;
  return node;
}

/** Name of the CSS property with a backend's colour; a name keeps its colour while the page is open. */
export function colorOf(name) {
  if (!colorNumbers.has(name)) colorNumbers.set(name, (colorNumbers.size % SERIES_COLORS) + 1);
  return `--series-${colorNumbers.get(name)}`;
}
