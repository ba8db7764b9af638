"use strict";
/* The built-in scoring functions, masks and pooling on plain arrays, as the references in Python
   state them. tests/test_scores_js.py holds them equal. Parameters have the names that
   they have in the state_dict of the module in Python. */
var attention = (function () {
  const dot = (x, y) => {
    let sum = 0;
    for (let i = 0; i < x.length; i++) sum += x[i] * y[i];
    return sum;
  };
  const matvec = (matrix, x) => matrix.map((row) => dot(row, x));
  const nothing = () => ({});
  const itself = (parameters, x) => x;

  /* E[tanh² z] of a sum z of products of normals, by which scores with a hidden layer are scaled.
     Terms are pairs (features, variance); see tanh_moment in Python. */
  function tanhMoment(terms) {
    const count = 4096, width = 40 / count;
    let sum = 0;
    for (let i = 0; i < count; i++) {
      const t = (i + 0.5) * width;
      let density = (0.5 * t) / Math.sinh(0.5 * Math.PI * t);
      for (const [features, variance] of terms) {
        density *= Math.pow(1 + (variance * t * t) / features, -features / 2);
      }
      sum += density;
    }
    return 1 - 2 * sum * width;
  }

  /* Uniform and standard normal numbers from a seed (mulberry32, Box and Muller). */
  function generator(seed) {
    let state = seed >>> 0;
    const uniform = () => {
      state = (state + 0x6d2b79f5) >>> 0;
      let t = Math.imul(state ^ (state >>> 15), 1 | state);
      t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
      return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
    };
    const normal = () =>
      Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
    const vector = (size, deviation) => Array.from({ length: size }, () => deviation * normal());
    const matrix = (rows, columns, deviation) =>
      Array.from({ length: rows }, () => vector(columns, deviation));
    return { uniform, normal, vector, matrix };
  }

  /* Each function: `init(draw, d, h)` draws parameters for query and key of size d; `query` and
     `key` are computed once a query and once a key, `pair` for each pair of their results. */
  const scorings = {
    average: { formula: "0", init: nothing, query: itself, key: itself, pair: () => 0 },
    gaussian: {
      formula: "−½ ‖(q − k)·w‖²",
      init: (draw, d) => ({ bandwidth: Math.pow(2 * d, -0.25) }),
      query: itself,
      key: itself,
      pair: (p, q, k) => {
        let sum = 0;
        for (let i = 0; i < q.length; i++) sum += (q[i] - k[i]) * (q[i] - k[i]);
        return -0.5 * sum * p.bandwidth * p.bandwidth;
      },
    },
    dot: { formula: "qᵀk", init: nothing, query: itself, key: itself, pair: (p, q, k) => dot(q, k) },
    scaled_dot: {
      formula: "qᵀk / √d",
      init: nothing,
      query: itself,
      key: itself,
      pair: (p, q, k) => dot(q, k) / Math.sqrt(q.length),
    },
    bilinear: {
      formula: "qᵀWk / √d",
      init: (draw, d) => ({ weight: draw.matrix(d, d, Math.pow(d, -0.5)) }),
      query: itself,
      key: (p, k) => {
        const scale = Math.pow(p.weight.length * k.length, -0.25);
        return matvec(p.weight, k).map((x) => x * scale);
      },
      pair: (p, q, projected) => dot(q, projected),
    },
    additive: {
      formula: "w_vᵀ tanh(W_q q + W_k k)",
      init: (draw, d, h) => ({
        "query_proj.weight": draw.matrix(h, d, Math.pow(2 * d, -0.5)),
        "key_proj.weight": draw.matrix(h, d, Math.pow(2 * d, -0.5)),
        score_vector: draw.vector(h, Math.pow(tanhMoment([[d, 0.5], [d, 0.5]]) * h, -0.5)),
      }),
      query: (p, q) => matvec(p["query_proj.weight"], q),
      key: (p, k) => matvec(p["key_proj.weight"], k),
      pair: (p, a, b) => {
        let sum = 0;
        for (let i = 0; i < a.length; i++) sum += p.score_vector[i] * Math.tanh(a[i] + b[i]);
        return sum;
      },
    },
    concat_tanh_sum: {
      formula: "c Σ tanh(W[q; k] + b)",
      init: (draw, d, h) => ({
        weight: draw.matrix(h, 2 * d, Math.pow(2 * d, -0.5)),
        bias: draw.vector(h, 0),
        scale: Math.pow(tanhMoment([[d, 0.5], [d, 0.5]]) * h, -0.5),
      }),
      query: (p, q) => p.weight.map((row, i) => dot(q, row) + p.bias[i]),
      key: (p, k) => p.weight.map((row) => dot(k, row.slice(-k.length))),
      pair: (p, a, b) => {
        let sum = 0;
        for (let i = 0; i < a.length; i++) sum += Math.tanh(a[i] + b[i]);
        return sum * p.scale;
      },
    },
    vector_sum: {
      formula: "w_qᵀq + w_kᵀk",
      init: (draw, d) => ({
        query_vector: draw.vector(d, Math.pow(2 * d, -0.5)),
        key_vector: draw.vector(d, Math.pow(2 * d, -0.5)),
      }),
      query: (p, q) => dot(p.query_vector, q),
      key: (p, k) => dot(p.key_vector, k),
      pair: (p, a, b) => a + b,
    },
    concat_linear: {
      formula: "wᵀ[q; k] + b",
      init: (draw, d) => ({ weight: draw.vector(2 * d, Math.pow(2 * d, -0.5)), bias: 0 }),
      query: (p, q) => dot(q, p.weight) + p.bias,
      key: (p, k) => dot(k, p.weight.slice(-k.length)),
      pair: (p, a, b) => a + b,
    },
    self_additive: {
      formula: "v_aᵀ tanh(W_a k)",
      init: (draw, d, h) => ({
        "key_proj.weight": draw.matrix(h, d, Math.pow(d, -0.5)),
        score_vector: draw.vector(h, Math.pow(tanhMoment([[d, 1]]) * h, -0.5)),
      }),
      query: nothing,
      key: (p, k) => dot(p.score_vector, matvec(p["key_proj.weight"], k).map(Math.tanh)),
      pair: (p, a, b) => b,
    },
    self_tanh: {
      formula: "tanh(wᵀk + b)",
      init: (draw, d) => ({ weight: draw.vector(d, Math.pow(d, -0.5)), bias: 0 }),
      query: nothing,
      key: (p, k) => Math.tanh(dot(p.weight, k) + p.bias),
      pair: (p, a, b) => b,
    },
  };

  /* Scores (L, S) of all queries and keys. */
  function scores(name, parameters, queries, keys) {
    const scoring = scorings[name];
    const left = queries.map((q) => scoring.query(parameters, q));
    const right = keys.map((k) => scoring.key(parameters, k));
    return left.map((a) => right.map((b) => scoring.pair(parameters, a, b)));
  }

  /* Weights of one row. `fill` is null for a mask that means what it says: masked keys get exactly
     0, and a row without any key is all 0. A number stands in for masked scores, as many textbooks
     write it. */
  function softmax(row, allowed, fill) {
    const filled = row.map((x, j) => (allowed[j] ? x : fill === null ? -Infinity : fill));
    const top = Math.max(...filled);
    if (top === -Infinity) return filled.map(() => 0);
    const raw = filled.map((x) => Math.exp(x - top));
    const total = raw.reduce((a, b) => a + b, 0);
    return raw.map((x) => x / total);
  }

  /* The sum of the values, each times its weight. */
  function pooled(weights, values) {
    const sum = values[0].map(() => 0);
    weights.forEach((w, j) => w && values[j].forEach((x, e) => { sum[e] += w * x; }));
    return sum;
  }

  /* Variance of the scores of standard normal queries and keys, over freshly drawn parameters. */
  function variance(name, d, h, modules, seed) {
    const draw = generator(seed);
    const found = [];
    for (let i = 0; i < modules; i++) {
      const parameters = scorings[name].init(draw, d, h);
      const rows = scores(name, parameters, draw.matrix(8, d, 1), draw.matrix(8, d, 1));
      for (let j = 0; j < 8; j++) found.push(rows[j][j]);
    }
    const mean = found.reduce((a, b) => a + b, 0) / found.length;
    return found.reduce((sum, x) => sum + (x - mean) * (x - mean), 0) / (found.length - 1);
  }

  return { scorings, scores, softmax, pooled, variance, generator, tanhMoment };
})();
