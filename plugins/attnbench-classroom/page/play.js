"use strict";
/* The page to play with: state, drawing and input. All mathematics is in scores.js. */
(function () {
  const $ = (id) => document.getElementById(id);
  const NAMES = Object.keys(attention.scorings);
  const HIDDEN = 16, MOST = 16, SIZES = [2, 4, 8, 16, 32, 64, 128, 256, 512];
  const VIRIDIS = ["#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725"]
    .map((hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)));
  const LINES = ["#888", "#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#e377c2", "#8c564b", "#bcbd22", "#7f7fff"];
  const state = { seed: 1, name: "scaled_dot", points: [], chosen: 0, parameters: {} };
  let variances = {}, waiting = 0;

  const setting = (id) => $(id).value;
  const factor = (id) => Math.pow(10, Number(setting(id)) / 20);
  const size = () => SIZES[setting("size") - 1];
  const counts = () => [Number(setting("queries")), Number(setting("keys"))];
  const text = (x) => (Math.abs(x) >= 1e4 ? x.toExponential(1) : x.toFixed(2)).replace("-", "−");
  const color = (css) => getComputedStyle(document.documentElement).getPropertyValue(css);

  /* New places, features beyond the plane, and parameters, all from the seed. */
  function drawNumbers() {
    const draw = attention.generator(state.seed);
    const place = () => [0, 1].map(() => Math.max(-2.8, Math.min(2.8, draw.normal())));
    state.points = Array.from({ length: 2 * MOST }, (_, i) => ({
      kind: i < MOST ? "query" : "key", number: (i % MOST) + 1, place: place(),
      rest: draw.vector(SIZES[SIZES.length - 1] - 2, 1),
    }));
    state.parameters = {};
  }

  /* Parameters of a function at a size, drawn once. */
  function parametersOf(name, d) {
    const id = `${name} ${d}`;
    if (!state.parameters[id]) {
      const draw = attention.generator(1000 * state.seed + NAMES.indexOf(name));
      state.parameters[id] = attention.scorings[name].init(draw, d, HIDDEN);
    }
    const own = state.parameters[id];
    return name === "gaussian" ? { bandwidth: own.bandwidth * factor("bandwidth") } : own;
  }

  function visible(kind) {
    const [L, S] = counts();
    return state.points.filter((p) => p.kind === kind && p.number <= (kind === "query" ? L : S));
  }

  /* Whether each query may see each key, (L, S). */
  function allowed() {
    const [L, S] = counts(), mask = setting("mask"), valid = Number(setting("valid"));
    const may = (i, j) => mask === "none" ||
      (mask === "causal" ? j - i <= S - L : j < valid && !(mask === "empty" && i === 0));
    return Array.from({ length: L }, (_, i) => Array.from({ length: S }, (_, j) => may(i, j)));
  }

  function inputs() {
    const d = size(), features = (p) => p.place.concat(p.rest.slice(0, d - 2));
    return [visible("query").map(features), visible("key").map(features)];
  }

  function computed(name, queries, keys) {
    const d = size(), times = factor("scale") / factor("temperature"), shift = Number(setting("shift"));
    const scores = attention.scores(name, parametersOf(name, d), queries, keys)
      .map((row) => row.map((x) => x * times + shift));
    const fill = setting("fill") === "exact" ? null : Number(setting("fill"));
    const may = allowed();
    const weights = scores.map((row, i) => attention.softmax(row, may[i], fill));
    const values = visible("key").map((p) => p.place);
    return { scores, weights, outputs: weights.map((row) => attention.pooled(row, values)) };
  }

  /* Canvases: heat maps and lines. */
  function prepared(canvas, width, height) {
    const dense = Math.min(window.devicePixelRatio || 1, 2);
    if (canvas.width !== Math.round(width * dense) || canvas.height !== Math.round(height * dense)) {
      canvas.width = Math.round(width * dense);
      canvas.height = Math.round(height * dense);
      canvas.style.aspectRatio = `${width} / ${height}`;
    }
    const context = canvas.getContext("2d");
    context.setTransform(dense, 0, 0, dense, 0, 0);
    context.clearRect(0, 0, width, height);
    return context;
  }

  /* 256 colours from dark to bright, and grey for what is no number. */
  const SHADES = Array.from({ length: 256 }, (_, i) => {
    const at = (i / 255) * (VIRIDIS.length - 1), low = Math.min(Math.floor(at), VIRIDIS.length - 2);
    return VIRIDIS[low].map((c, j) => Math.round(c + (at - low) * (VIRIDIS[low + 1][j] - c)));
  });
  const small = document.createElement("canvas").getContext("2d", { willReadFrequently: true });

  /* One pixel a cell, which the canvas then enlarges: much faster than a rectangle a cell. */
  function pixels(rows, low, high) {
    const image = small.createImageData(rows[0].length, rows.length), range = high > low ? high - low : 1;
    rows.flat().forEach((x, i) => {
      const part = Math.max(0, Math.min(1, (x - low) / range));
      image.data.set(isFinite(x) ? SHADES[Math.round(255 * part)] : [136, 136, 136], 4 * i);
      image.data[4 * i + 3] = 255;
    });
    if (small.canvas.width !== image.width) small.canvas.width = image.width;
    if (small.canvas.height !== image.height) small.canvas.height = image.height;
    small.putImageData(image, 0, 0);
    return small.canvas;
  }

  function heat(canvas, rows, low, high, labelled) {
    const width = 320, cell = width / Math.max(rows[0].length, labelled ? 4 : 1);
    const tall = Math.min(cell, width / rows.length, labelled ? 60 : width);
    const context = prepared(canvas, width, Math.max(tall * rows.length, 1));
    context.imageSmoothingEnabled = false;
    context.drawImage(pixels(rows, low, high), 0, 0, cell * rows[0].length, tall * rows.length);
    if (!labelled || cell < 26) return;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.font = `${Math.min(12, cell / 3)}px system-ui, sans-serif`;
    rows.forEach((row, i) => row.forEach((x, j) => {
      context.fillStyle = (x - low) / (high - low) > 0.6 ? "#000" : "#fff";
      context.fillText(text(x), (j + 0.5) * cell, (i + 0.5) * tall);
    }));
  }

  function panel(id, what, rows, low, high) {
    heat($(id), rows, low, high, true);
    const flat = rows.flat(), least = Math.min(...flat), most = Math.max(...flat);
    $(`${id}-text`).textContent = `${what}: ${text(least)} to ${text(most)}; dark is ${text(low)}, bright ${text(high)}`;
    $(id).setAttribute("aria-label", `${what} of ${state.name}, ${rows.length} rows of ${rows[0].length}, ` +
      `from ${text(least)} to ${text(most)}. The numbers are below.`);
  }

  function drawPlane(outputs) {
    const made = ['<path class="axis" d="M-3 0H3M0-3V3"/>'];
    state.points.forEach((p, index) => {
      const [L, S] = counts(), [x, y] = p.place;
      if (p.number > (p.kind === "query" ? L : S)) return;
      const chosen = index === state.chosen ? " chosen" : "";
      const body = p.kind === "query"
        ? `<circle class="query${chosen}" data-index="${index}" cx="${x}" cy="${-y}" r="0.19"/>`
        : `<rect class="key${chosen}" data-index="${index}" x="${x - 0.17}" y="${-y - 0.17}" width="0.34" height="0.34"/>`;
      made.push(`${body}<text x="${x}" y="${-y}">${p.number}</text>`);
    });
    outputs.forEach(([x, y]) => {
      if (isFinite(x)) made.push(`<path class="output" d="M${x} ${-y - 0.16}l.16 .16l-.16 .16l-.16-.16z"/>`);
    });
    $("plane").innerHTML = made.join("");
  }

  function drawAll(results) {
    NAMES.forEach((name) => {
      const button = $(`all-${name}`), weights = results[name].weights;
      const sharp = weights.reduce((sum, row) => sum + Math.max(...row), 0) / weights.length;
      heat(button.querySelector("canvas"), weights, 0, 1, false);
      button.querySelector("span").textContent = `largest weights ${text(sharp)} on average`;
      button.setAttribute("aria-pressed", String(name === state.name));
    });
  }

  function drawEmpty(scores) {
    const row = scores[0], half = row.map((_, j) => j < Math.ceil(row.length / 2)), none = row.map(() => false);
    const low = row.map((x) => x - 2e6);
    const cases = [
      ["the second half of the keys", row, half],
      ["all keys: an empty row", row, none],
      ["the second half, and all scores lie below −1e6", low, half],
    ];
    const said = (weights, may) => {
      const lost = weights.reduce((sum, w, j) => (may[j] ? sum : sum + w), 0);
      const all = weights.map((w) => w.toFixed(2)).join(" ");
      const values = visible("key").map((p) => p.place);
      return `${all}<br>on masked keys: ${text(lost)}; output (${attention.pooled(weights, values).map(text).join(", ")})`;
    };
    $("empty").tBodies[0].innerHTML = cases.map(([what, x, may]) =>
      `<tr><th scope="row">${what}</th>` +
      [null, -1e6].map((fill) => `<td>${said(attention.softmax(x, may, fill), may)}</td>`).join("") + "</tr>").join("");
  }

  function drawTable({ scores, weights, outputs }) {
    if (!$("numbers").open) return;
    const head = scores[0].map((_, j) => `<th scope="col">key ${j + 1}</th>`).join("");
    const body = scores.map((row, i) => `<tr><th scope="row">query ${i + 1}</th>` +
      row.map((x, j) => `<td>${text(x)}<br>${weights[i][j].toFixed(3)}</td>`).join("") +
      `<td>(${outputs[i].map(text).join(", ")})</td></tr>`).join("");
    $("numbers").querySelector("div").innerHTML =
      `<table><caption>Score above weight</caption><thead><tr><th></th>${head}<th scope="col">output</th></tr></thead><tbody>${body}</tbody></table>`;
  }

  function drawPoint() {
    const p = state.points[state.chosen], [x, y] = p.place;
    $("point").value = state.chosen;
    $("x").value = x;
    $("y").value = y;
    $("point-state").textContent = `${p.kind} ${p.number} at ${text(x)}, ${text(y)}`;
  }

  function drawLabels() {
    const shown = {
      queries: setting("queries"), keys: setting("keys"), size: size(), valid: setting("valid"),
      bandwidth: factor("bandwidth").toPrecision(2), temperature: factor("temperature").toPrecision(2),
      scale: factor("scale").toPrecision(2), x: setting("x"), y: setting("y"),
    };
    document.querySelectorAll("output[for]").forEach((o) => {
      o.textContent = shown[o.htmlFor];
      $(o.htmlFor.value).setAttribute("aria-valuetext", String(shown[o.htmlFor]));
    });
    $("valid").disabled = !["length", "empty"].includes(setting("mask"));
  }

  function draw() {
    const [queries, keys] = inputs();
    const results = Object.fromEntries(NAMES.map((name) => [name, computed(name, queries, keys)]));
    const { scores, weights, outputs } = results[state.name], flat = scores.flat(), reach = outputs.flat();
    $("chosen-title").textContent = `${state.name}: ${attention.scorings[state.name].formula}`;
    panel("scores", "Scores", scores, Math.min(...flat), Math.max(...flat));
    panel("weights", "Weights", weights, 0, 1);
    panel("outputs", "Outputs (x, y)", outputs, Math.min(...reach), Math.max(...reach));
    const alike = scores.length > 1 && weights.every((row) => row.every((w, j) => Math.abs(w - weights[0][j]) < 1e-9));
    $("alike").textContent = alike
      ? "All queries get the same weights: where what a score says of its query is the same for each key, softmax cancels it."
      : "";
    drawPlane(outputs);
    drawAll(results);
    drawEmpty(scores);
    drawTable(results[state.name]);
    drawPoint();
    drawLabels();
  }

  function redraw() {
    if (!waiting) waiting = requestAnimationFrame(() => { waiting = 0; draw(); });
  }

  /* The chart of variances, computed once, a point at a time. */
  function measureVariances(todo) {
    const next = todo.shift();
    if (!next) return drawVariances();
    const [name, d] = next;
    (variances[name] = variances[name] || []).push(attention.variance(name, d, HIDDEN, d > 100 ? 24 : 96, 7));
    setTimeout(measureVariances, 0, todo);
  }

  function drawVariances() {
    const width = Math.min(720, $("variance").clientWidth || 320), height = 260, left = 44, bottom = 24;
    const context = prepared($("variance"), width, height);
    const x = (d) => left + ((Math.log2(d) - 1) / 8) * (width - left - 20);
    const y = (v) => 8 + ((3 - Math.max(-2, Math.log10(v))) / 5) * (height - bottom - 8);
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = color("--ink");
    context.strokeStyle = color("--line");
    [0.01, 0.1, 1, 10, 100, 1000].forEach((v) => {
      context.beginPath();
      context.moveTo(left, y(v));
      context.lineTo(width - 10, y(v));
      context.stroke();
      context.fillText(String(v), 4, y(v) + 4);
    });
    SIZES.forEach((d) => context.fillText(String(d), x(d) - 8, height - 8));
    NAMES.forEach((name, i) => {
      context.strokeStyle = LINES[i];
      context.lineWidth = name === state.name ? 4 : 1.5;
      context.beginPath();
      variances[name].forEach((v, j) => context[j ? "lineTo" : "moveTo"](x(SIZES[j]), y(v)));
      context.stroke();
    });
    $("variance-key").innerHTML = NAMES.map((n, i) => `<span><i style="background:${LINES[i]}"></i>${n}</span>`).join("");
    $("variance-table").innerHTML = `<thead><tr><th scope="col">d</th>${SIZES.map((d) => `<th scope="col">${d}</th>`).join("")}</tr></thead><tbody>` +
      NAMES.map((n) => `<tr><th scope="row">${n}</th>${variances[n].map((v) => `<td>${v.toPrecision(2)}</td>`).join("")}</tr>`).join("") + "</tbody>";
    const [first, last] = [variances.dot[0], variances.dot[SIZES.length - 1]];
    $("variance").setAttribute("aria-label", `Variance of the scores against d, from 2 to 512. That of dot grows from ` +
      `${first.toPrecision(2)} to ${last.toPrecision(2)}; that of scaled_dot stays near 1. The numbers are below.`);
  }

  /* Input. */
  function move(index, x, y) {
    const inside = (v) => Math.max(-3, Math.min(3, v));
    state.points[index].place = [inside(x), inside(y)];
    redraw();
  }

  function choose(index) {
    state.chosen = Number(index);
    redraw();
  }

  function listPoints() {
    const some = [...visible("query"), ...visible("key")];
    $("point").innerHTML = some.map((p) => `<option value="${state.points.indexOf(p)}">${p.kind} ${p.number}</option>`).join("");
    if (!some.includes(state.points[state.chosen])) state.chosen = 0;
  }

  function listen() {
    const plane = $("plane");
    const at = (event) => {
      const box = plane.getBoundingClientRect();
      return [((event.clientX - box.left) / box.width) * 6 - 3, 3 - ((event.clientY - box.top) / box.height) * 6];
    };
    let held = null;
    plane.addEventListener("pointerdown", (event) => {
      const [x, y] = at(event);
      const near = [...visible("query"), ...visible("key")]
        .map((p) => [Math.hypot(p.place[0] - x, p.place[1] - y), state.points.indexOf(p)]).sort((a, b) => a[0] - b[0])[0];
      if (near[0] > 0.5) return;
      held = near[1];
      choose(held);
      try { plane.setPointerCapture(event.pointerId); } catch { /* a made event has no pointer */ }
    });
    plane.addEventListener("pointermove", (event) => held !== null && move(held, ...at(event)));
    ["pointerup", "pointercancel"].forEach((kind) => plane.addEventListener(kind, () => { held = null; }));
    plane.addEventListener("keydown", (event) => {
      const step = event.shiftKey ? 0.5 : 0.1, [x, y] = state.points[state.chosen].place;
      const moves = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] };
      const options = [...$("point").options].map((o) => Number(o.value)), here = options.indexOf(state.chosen);
      const turn = { PageDown: 1, PageUp: -1 }[event.key];
      if (moves[event.key]) move(state.chosen, x + moves[event.key][0], y + moves[event.key][1]);
      else if (turn) choose(options[(here + turn + options.length) % options.length]);
      else return;
      event.preventDefault();
    });
    $("point").addEventListener("change", () => choose(setting("point")));
    ["x", "y"].forEach((id) => $(id).addEventListener("input", () => move(state.chosen, Number(setting("x")), Number(setting("y")))));
    $("controls").addEventListener("submit", (event) => event.preventDefault());
    $("controls").addEventListener("input", () => { listPoints(); redraw(); });
    $("name").addEventListener("change", () => pick(setting("name")));
    $("again").addEventListener("click", () => { state.seed += 1; drawNumbers(); redraw(); });
    $("numbers").addEventListener("toggle", redraw);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawVariances);
    window.addEventListener("resize", () => variances.self_tanh && drawVariances());
  }

  function pick(name) {
    state.name = name;
    $("name").value = name;
    redraw();
    if ((variances[NAMES[NAMES.length - 1]] || []).length === SIZES.length) drawVariances();
  }

  $("name").innerHTML = NAMES.map((name) => `<option>${name}</option>`).join("");
  $("name").value = state.name;
  $("all").innerHTML = NAMES.map((name) =>
    `<button type="button" id="all-${name}"><b>${name}</b><canvas aria-hidden="true"></canvas><span></span></button>`).join("");
  NAMES.forEach((name) => $(`all-${name}`).addEventListener("click", () => pick(name)));
  drawNumbers();
  listPoints();
  listen();
  draw();
  setTimeout(measureVariances, 50, NAMES.flatMap((name) => SIZES.map((d) => [name, d])));
})();
