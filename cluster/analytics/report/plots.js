"use strict";
// Plots over time: uPlot draws the rows of their tables. Small curves have their values in an attribute.

const MINUTE = 60, HOUR = 3600, DAY = 86400; // seconds
const HEIGHT = 230, TALL = 290; // pixels
const TIME_STEPS = [
  ...[1, 2, 5, 10, 15, 30], ...[1, 2, 5, 10, 15, 30].map((n) => n * MINUTE), ...[1, 2, 3, 6, 12].map((n) => n * HOUR),
  ...[1, 2, 7, 14, 28, 91, 182, 364, 1820].map((n) => n * DAY),
];
const BINARY_STEPS = [1, 1024, 1024 ** 2, 1024 ** 3, 1024 ** 4].flatMap(
  (unit) => [1, 2, 4, 8, 16, 32, 64, 128, 256, 512].map((n) => n * unit));

// ---- words of an axis ----

function scaled(value, base, units) {
  const power = units.findLastIndex((_, n) => Math.abs(value) >= base ** n);
  return `${Number((value / base ** Math.max(0, power)).toPrecision(3))}${units[Math.max(0, power)]}`;
}
const number = (value) =>
  Math.abs(value) < 1e16 ? scaled(value, 1000, ["", " k", " M", " G", " T"]) : value.toExponential(0);
const bytes = (value) => scaled(value, 1024, [" B", " KiB", " MiB", " GiB", " TiB"]);
function seconds(value) {
  if (value < 1) return `${Number((value * 1000).toPrecision(3))} ms`;
  const [size, unit, next, below] = value < MINUTE ? [1, "s"]
    : value < HOUR ? [MINUTE, "min", 1, "s"] : value < DAY ? [HOUR, "h", MINUTE, "min"] : [DAY, "d", HOUR, "h"];
  const rest = next ? Math.floor((value % size) / next) : 0;
  if (!next) return `${Number(value.toPrecision(3))} s`;
  return `${Math.floor(value / size)} ${unit}${rest ? ` ${rest} ${below}` : ""}`;
}
const UNITS = {
  number: { words: number },
  rate: { words: (value) => (value ? `${number(value)}/s` : "0") },
  "byte-rate": { words: (value) => (value ? `${bytes(value)}/s` : "0"), binary: true },
  bytes: { words: bytes, binary: true },
  seconds: { words: seconds },
};

// ---- colours and axes, the same for all plots ----

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);
const muted = () => css("--muted");
const font = `12px ${getComputedStyle(document.body).fontFamily}`;
const line = { stroke: () => css("--line"), width: 1 };

// Labels are times of the machine that made the page: `clock` has its time at the times of the rows.
function timeAxis(times, clock) {
  const offset = (time) => {
    const row = Math.max(0, times.findLastIndex((other) => other <= time));
    return Math.round((clock[row] - times[row]) / MINUTE) * MINUTE;
  };
  const splits = (plot, axis, begin, end, step) => {
    const found = [];
    for (let at = Math.ceil((begin + offset(begin)) / step) * step; at <= end + offset(end); at += step) {
      const time = at - offset(at - offset(begin));
      if (time !== found.at(-1)) found.push(time); // an hour is missing when the clock is set forward
    }
    return found;
  };
  const label = (time, step) => {
    const at = time + offset(time);
    const when = new Date(at * 1000);
    if (at % DAY === 0 || step >= DAY) {
      const year = times.at(-1) - times[0] > 300 * DAY ? "numeric" : undefined;
      return when.toLocaleDateString("en-GB", { timeZone: "UTC", day: "numeric", month: "short", year });
    }
    return when.toISOString().slice(11, step < MINUTE ? 19 : 16);
  };
  return {
    stroke: muted, font, incrs: TIME_STEPS, space: 80, size: 26, grid: { show: false }, ticks: { ...line, size: 4 },
    splits, values: (plot, found, axis, space, step) => found.map((time) => label(time, step)),
  };
}

// Labels of a logarithmic scale are powers of its base, labels of a linear scale are round numbers.
function valueAxis({ words, binary }, base) {
  const powers = (plot, axis, low, high) => {
    const first = Math.round(Math.log(low) / Math.log(base)), last = Math.round(Math.log(high) / Math.log(base));
    const every = Math.ceil((last - first) / 5);
    return Array.from({ length: Math.floor((last - first) / every) + 1 }, (_, n) => base ** (first + n * every));
  };
  const logarithmic = {
    splits: powers,
    filter: (plot, found) => found,
    incrs: (plot, axis, low, high) => [Math.max(5, high - low)], // any that fits: uPlot draws no axis without
  };
  const how = base ? logarithmic : binary ? { incrs: BINARY_STEPS } : {};
  return {
    stroke: muted, font, gap: 6, space: 36, grid: line, ticks: { show: false },
    values: (plot, found) => found.map(words),
    size: (plot, labels) => 12 + 7 * Math.max(4, ...(labels ?? []).map((label) => label.length)), ...how,
  };
}

// Base of a logarithmic scale; its ends are powers.
function valueScale(base) {
  if (!base) return { range: (plot, low, high) => [0, high > 0 ? high * 1.06 : 1] };
  const power = (value, round) => base ** round(Math.log(value) / Math.log(base));
  const range = (plot, low, high) => {
    const first = power(low, (x) => Math.floor(x + 1e-9));
    return [first, Math.max(first * base, power(high, (x) => Math.ceil(x - 1e-9)))];
  };
  return { distr: 3, range };
}

// ---- uPlot and the page ----

const drawn = [];

function draw(host, height, options, data) {
  const { width } = host.getBoundingClientRect();
  const plot = new uPlot({ width, height, legend: { show: false }, padding: [8, 26, 0, 0], ...options }, data, host);
  new ResizeObserver(() => plot.setSize({ width: host.getBoundingClientRect().width, height })).observe(host);
  drawn.push(plot);
  return plot;
}

function redraw() {
  for (const plot of drawn) plot.redraw(false);
}

const lonely = (plot, number) => { // values without a neighbour: a line does not show them
  const values = plot.data[number];
  const missing = (n) => (values[n] ?? null) === null;
  return values.flatMap((_, n) => (!missing(n) && missing(n - 1) && missing(n + 1) ? [n] : []));
};

// The readout follows the pointer and the arrow keys. parts: from the number of a row to elements.
function follow(plot, host, parts, row = () => plot.cursor.idx) {
  const last = plot.data[0].length - 1;
  const leave = () => plot.setCursor({ left: -10, top: -10 });
  let at = last;
  plot.hooks.setCursor = [() => {
    const { left, top } = plot.cursor;
    const found = row();
    if (left < 0 || found === null || found === undefined) return readout.hide();
    at = found;
    const box = plot.over.getBoundingClientRect();
    readout.show(parts(at), box.left + left, box.top + top);
  }];
  for (const kind of ["pointermove", "pointerdown"]) {
    plot.over.addEventListener(kind, (event) => {
      if (event.pointerType === "mouse") return; // uPlot itself follows it
      const box = plot.over.getBoundingClientRect();
      plot.setCursor({ left: event.clientX - box.left, top: event.clientY - box.top });
    });
  }
  host.tabIndex = 0;
  host.addEventListener("blur", leave);
  host.addEventListener("keydown", (event) => {
    if (event.key === "Escape") leave();
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 }[event.key];
    if (!step) return;
    event.preventDefault();
    at = Math.max(0, Math.min(last, plot.cursor.left < 0 ? at : at + step));
    const value = plot.data[1][at];
    plot.setCursor({ left: plot.valToPos(plot.data[0][at], "x"), top: value === null ? 0 : plot.valToPos(value, "y") });
  });
}

// ---- the plots ----

const CURSOR = { y: false, drag: { x: false, y: false } };

function amount(cell) {
  const value = "v" in cell.dataset ? Number(cell.dataset.v) : NaN;
  return Number.isFinite(value) ? value : null;
}

// The time that the page shows, in seconds as if it were UTC.
const shown = (moment) => Date.parse(`${moment.textContent.replace(" ", "T")}Z`) / 1000;

function told(head, cells, names, colours = []) {
  const lines = names.map((name, n) => {
    const told = element("div");
    if (colours[n]) told.append(element("i", undefined, colours[n]));
    told.append(element("span", name), element("b", cells[n].textContent));
    return told;
  });
  return [element("p", head.textContent), ...lines];
}

// Curves, the last one drawn first; areas stand on each other, the first one at the bottom.
function overTime(host, names, rows, colours) {
  const { kind, unit, log, begin, step } = host.dataset;
  let times = rows.map((_, n) => Number(begin) + n * Number(step));
  const areas = kind === "areas";
  let curves = names.map((_, n) => rows.map((cells) => amount(cells[n + 1])));
  const base = log === undefined ? 0 : UNITS[unit].binary ? 4 : 10;
  if (areas) { // each begins at the sum of those below
    const below = times.map(() => 0);
    curves = curves.map((one) => one.map((value, row) => (below[row] += value)));
  }
  if (base) {
    const least = Math.min(...curves.flat().filter((value) => value > 0));
    curves = curves.map((one) => one.map((value) => (value === null ? null : Math.max(value, least))));
  }
  const axis = timeAxis(times, rows.map(([moment]) => shown(moment)));
  if (rows.length === 1) { // as wide as the plot
    times = [times[0], times[0] + Number(step)];
    curves = curves.map(([value]) => [value, value]);
  }
  const series = colours.map((colour) => areas
    ? { stroke: () => css("--card"), width: 1, fill: () => css(`--${colour}`), points: { show: false } }
    : { stroke: () => css(`--${colour}`), width: 2, points: { show: false, filter: lonely } });
  const plot = draw(host, host.classList.contains("tall") ? TALL : HEIGHT, {
    cursor: { ...CURSOR, points: { show: !areas } },
    scales: { x: { time: false, range: (plot, low, high) => [low, high] }, y: valueScale(base) },
    axes: [axis, valueAxis(UNITS[unit], base)],
    series: [{}, ...series.reverse()],
  }, [times, ...curves.reverse()]);
  follow(plot, host, (row) => {
    const [moment, ...cells] = rows[Math.min(row, rows.length - 1)];
    const [head, ...lines] = told(moment, cells, names, colours);
    return [head, ...lines.reverse()];
  });
}

// A dot for each row, at its time and as high as its last amount; the readout tells of the nearest one.
function dots(host, names, rows) {
  const time = names.indexOf("time") + 1;
  const height = (cells) => amount(cells.at(-1));
  const sorted = rows.filter((cells) => height(cells)).sort((a, b) => amount(a[time]) - amount(b[time]));
  if (!sorted.length) return;
  const times = sorted.map((cells) => amount(cells[time]) / 1e6);
  const heights = sorted.map((cells) => Math.max(1e-100, Math.min(1e199, Math.abs(height(cells)))));
  const { begin, end } = host.dataset;
  const colour = () => css("--c5");
  const points = { show: true, size: 8, width: 1, stroke: colour, fill: () => `${colour()}8c` };
  const nearest = (plot) => {
    const { left, top } = plot.cursor;
    const place = (n) => [plot.valToPos(times[n], "x"), plot.valToPos(heights[n], "y")];
    const far = times.map((_, n) => place(n)).map(([x, y]) => Math.hypot(x - left, y - top));
    return far.indexOf(Math.min(...far));
  };
  const plot = draw(host, HEIGHT, {
    cursor: { ...CURSOR, x: false, dataIdx: nearest, points: { size: 13 } },
    scales: { x: { time: false, range: [Number(begin), Number(end)] }, y: valueScale(10) },
    axes: [timeAxis(times, sorted.map((cells) => shown(cells[time]))), valueAxis(UNITS.number, 10)],
    series: [{}, { stroke: colour, paths: () => null, points }],
  }, [times, heights]);
  follow(plot, host, (row) => told(sorted[row][0], sorted[row].slice(1), names), () => plot.cursor.idxs[1]);
}

// A curve, perhaps with an area from the least to the most.
function small(host) {
  const curves = JSON.parse(host.dataset.values);
  const fromZero = "fromZero" in host.dataset;
  const values = curves.flat().filter((value) => value !== null);
  let low = Math.min(...values, ...(fromZero ? [0] : [])), high = Math.max(...values);
  if (!(high > low)) {
    const margin = Math.max(1, Math.abs(low) / 1000);
    [low, high] = [low - margin, fromZero ? high : high + margin];
  }
  const mean = { stroke: () => css("--c0"), width: 1.6, points: { show: false, filter: lonely } };
  const edge = { stroke: () => "transparent", points: { show: false } };
  draw(host, host.clientHeight, {
    cursor: { show: false }, padding: [2, 2, 2, 2], axes: [{ show: false }, { show: false }],
    scales: { x: { time: false }, y: { range: [low, high] } },
    series: [{}, mean, ...curves.slice(1).map(() => edge)],
    bands: curves.length > 1 ? [{ series: [3, 2], fill: () => `${css("--c0")}29` }] : [],
  }, [curves[0].map((_, n) => n), ...curves]);
}

for (const host of document.querySelectorAll(".plot")) {
  const figure = host.closest("figure");
  const names = [...figure.querySelectorAll("thead th")].map((head) => head.textContent).slice(1);
  const rows = [...figure.querySelectorAll("tbody tr")].map((row) => [...row.cells]);
  const colours = [...figure.querySelectorAll(".legend i")].map((key) => key.className);
  (host.dataset.kind === "dots" ? dots : overTime)(host, names, rows, colours);
}
document.querySelectorAll(".small-plot").forEach(small);

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
for (const [kind, paper] of [["beforeprint", true], ["afterprint", false]]) {
  addEventListener(kind, () => {
    document.documentElement.classList.toggle("paper", paper);
    redraw();
  });
}
