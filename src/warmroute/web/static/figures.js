// Figures as text: pure functions, and null wherever there is no figure to show.

const wholeFormat = new Intl.NumberFormat("en");
const compactFormat = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
export const count = (value) => (isNumber(value) ? wholeFormat.format(value) : null);
export const compact = (value) => (isNumber(value) ? compactFormat.format(value) : null);

/** Local time of day and local date with time, of seconds since 1970. */
export const clock = (epochS) => new Date(epochS * 1000).toLocaleTimeString("en-GB");
export const moment = (epochS) => new Date(epochS * 1000).toLocaleString("en-GB");

/** "74%" of 0.74. Neither end is rounded to: "<1%" and "99.9%" say that something, or not everything, was found. */
export function percent(ratio) {
  if (!isNumber(ratio)) return null;
  if (ratio > 0 && ratio < 0.01) return "<1%";
  if (ratio >= 0.99 && ratio < 1) return `${(Math.floor(ratio * 1000) / 10).toFixed(1)}%`;
  return `${Math.round(ratio * 100)}%`;
}

/** A span of seconds in its two largest units: "120 ms", "1.4 s", "3 h 12 min". */
export function duration(seconds) {
  if (!isNumber(seconds)) return null;
  const span = Math.max(0, seconds);
  if (span < 0.9995) return `${Math.round(span * 1000)} ms`;
  if (span < 9.95) return `${span.toFixed(1)} s`;
  return largestUnits(Math.round(span), 2);
}

/** A span in whole seconds, minutes, hours or days, never less than 1 s: calm to read while it grows. */
export const age = (seconds) => (isNumber(seconds) ? largestUnits(Math.max(1, Math.floor(seconds)), 1) : null);

function largestUnits(wholeSeconds, howMany) {
  const units = [
    ["d", Math.floor(wholeSeconds / 86_400)],
    ["h", Math.floor(wholeSeconds / 3_600) % 24],
    ["min", Math.floor(wholeSeconds / 60) % 60],
    ["s", wholeSeconds % 60],
  ];
  const first = units.findIndex(([, amount]) => amount > 0);
  const shown = units.slice(first, first + howMany).filter(([, amount]) => amount > 0);
  return shown.map(([unit, amount]) => `${amount} ${unit}`).join(" ");
}

/** "992 / 1,000"; a dash for the one that is unknown, null when both are. */
export function pair(first, second) {
  return isNumber(first) || isNumber(second) ? `${count(first) ?? "–"} / ${count(second) ?? "–"}` : null;
}

/** A line of ratios and nulls in words. */
export function lineInWords(line) {
  const values = line.filter(isNumber);
  if (values.length === 0) return "no prompts in the last hour";
  const [lowest, highest] = [Math.min(...values), Math.max(...values)];
  return `lowest ${percent(lowest)}, highest ${percent(highest)}, latest ${percent(values.at(-1))}`;
}

/** A line of ratios as SVG path data, 100 wide and 24 high: a break where a figure is missing, a dot for a lone one. */
export function sparkPath(line) {
  const step = 100 / Math.max(1, line.length - 1);
  const parts = line.map((ratio, index) => {
    if (!isNumber(ratio)) return "";
    const point = `${(index * step).toFixed(2)} ${(22 - ratio * 20).toFixed(2)}`;
    if (isNumber(line[index - 1])) return `L${point}`;
    return isNumber(line[index + 1]) ? `M${point}` : `M${point}h0.01`;
  });
  return parts.join("");
}

/**
 * The history from its first figure on, so that a young router's fills the chart, but no fewer than `least` steps.
 * `truth` is the tokens by outcome in the same steps, null where they are not counted.
 */
export function fromFirstFigure({ times, fleet, possible, backends, truth }, least) {
  const first = Math.max(0, fleet.findIndex(isNumber) - 1);
  const start = Math.max(0, Math.min(first, times.length - least));
  const cut = (lines) => Object.fromEntries(Object.entries(lines).map(([name, line]) => [name, line.slice(start)]));
  return {
    times: times.slice(start),
    fleet: fleet.slice(start),
    possible: possible?.slice(start) ?? times.slice(start).map(() => null),
    backends: cut(backends),
    truth: truth ? { step_s: truth.step_s, times: truth.times.slice(start), outcomes: cut(truth.outcomes) } : null,
  };
}

/** Each line with all lines before it added. */
export function stacked(lines) {
  let below = lines[0]?.map(() => 0) ?? [];
  return lines.map((line) => (below = line.map((value, index) => value + below[index])));
}

/** Indexes of figures with none on either side. */
export function lonePoints(line) {
  return [...line.keys()].filter((i) => isNumber(line[i]) && !isNumber(line[i - 1]) && !isNumber(line[i + 1]));
}
