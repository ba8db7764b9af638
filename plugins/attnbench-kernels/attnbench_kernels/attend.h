// Softmax over sums of w tanh(a + b) or w (a - b)^2, and its product with the values.

#pragma once

#include "vectors.h"

#if VECTOR_BYTES == 64
#include <immintrin.h>
#endif

namespace {

// Products of eight numbers from SMALL to LARGE are normal in float, and so are their inverses.
constexpr float LARGE = 32768, SMALL = 1 / LARGE;

// How the sum of quotients is computed. All shapes give the same, up to rounding.
template <int SHARE, bool NEWTON> struct Shape {
  static constexpr int share = SHARE;      // units whose terms share a division: 3, 4 or 8
  static constexpr int group = SHARE == 3 ? 8 : SHARE;  // units taken together: 3, 3 and 2, or all
  static constexpr bool newton = NEWTON;   // an approximate reciprocal and a Newton step divide
};

// What rows and slots are multiplied by (in `exact` form: added), with units in groups.
template <class P, class T> struct Units {
  Int count, groups, depth;
  Buffer<T> rate, over, middle;  // 2 or -2; SMALL (largest w) / |w|; of a group: see below
  T scale = 1;
  bool wide = false;  // a product of a group may leave the range of float
  bool even = true;  // all weights are the same: the scale
  Units(const T* w, Int count, Form form, T reach)
      : count(count), groups(up(count, P::group)), depth(groups * P::group), rate(depth),
        over(depth), middle(groups) {
    for (Int h = 1; h < count; h++) even &= w[h] == w[0];
    if (form == SQUARES && even) scale = w[0];
    if (form != QUOTIENT) {  // a unit more adds nothing
      for (Int h = 0; h < depth; h++) over.data[h] = h < count ? w[h] : 0;
      return;
    }
    const T least = T(1) / (1 << 30);
    T largest = T(1e-28);  // less is nothing; its share of 2^-30 is still a normal number
    for (Int h = 0; h < count; h++) largest = std::max(largest, std::abs(w[h]));
    for (Int h = 0; h < depth; h++) {
      const T weight = h < count ? w[h] : 0;
      rate.data[h] = weight < 0 ? -2 : 2;  // tanh is odd: so all weights are positive
      over.data[h] = h < count ? SMALL * largest / std::max(std::abs(weight), largest * least) : 1;
    }
    scale = -2 * SMALL * largest;
    for (Int q = 0; q < groups; q++) {
      T product = 1, sum = 0;
      for (Int i = 0; i < P::group; i++) {
        const Int h = q * P::group + i;
        sum += T(0.5) / over.data[h];
        const T most = over.data[h] * (1 + (h < count ? std::exp(2 * reach) : 0));
        product = (i % P::share ? product : 1) * std::max(T(1), most);
        wide |= !(product < T(1.3e36));  // 2^120: of all but one, times a sum of eight, too
      }
      // less its middle, a term is as often positive as negative: the sum's rounding stays small
      middle.data[q] = sum;
    }
  }
};

// One row of a or b: as the factors e^2a or e^2b, or as it is.
template <class P, class T, Form FORM> void factors(const T* row, const Units<P, T>& units, T* to) {
  constexpr int K = Vector<T>::lanes;
  Int h = 0;
  if (FORM != QUOTIENT) {
    memcpy(to, row, units.count * sizeof(T));
    h = units.count;
  }
  for (; h + K <= units.count; h += K)
    store(to + h, exp<T>(load(row + h) * load(units.rate.data + h)));
  for (; h < units.count; h++) to[h] = exp<T>(all<T>(row[h] * units.rate.data[h]))[0];
  for (; h < units.depth; h++) to[h] = 0;
}

constexpr int HEIGHT = 16, POOLED = 4;  // rows of a task, and of those that share a load of values

// The sum of 1 / (over + key row) over COUNT units, as a quotient.
template <class P, class T, bool WIDE, int COUNT>
INLINE void quotient(const V<T>* key, const V<T>* over, const T* row, V<T>& above,
                     V<T>& below) {
  if constexpr (COUNT == 1) {
    above = all<T>(1);
    below = *key * *row + *over;
    // so that the product of all is finite; what lies above adds less than 2^-30 of the largest
    if (WIDE) below = below > T(LARGE) ? all<T>(LARGE) : below;
  } else {
    constexpr int HALF = COUNT / 2;
    V<T> a, b, c, d;
    quotient<P, T, WIDE, HALF>(key, over, row, a, b);
    quotient<P, T, WIDE, COUNT - HALF>(key + HALF, over + HALF, row + HALF * ROWS, c, d);
    above = a * d + c * b;
    below = b * d;
  }
}

// The same as a number: as many quotients as it takes with P::share units in each.
template <class P, class T, bool WIDE, int COUNT>
INLINE V<T> quotients(const V<T>* key, const V<T>* over, const T* row) {
  constexpr int FIRST = std::min(COUNT, P::share), REST = COUNT - FIRST;
  V<T> above, below;
  quotient<P, T, WIDE, FIRST>(key, over, row, above, below);
  V<T> found;
#if VECTOR_BYTES == 64
  if constexpr (P::newton) {
    const V<T> near = (V<T>)_mm512_rcp14_ps((__m512)below);
    found = above * (near * (1 - below * near) + near);
  } else
#endif
    found = above / below;
  if constexpr (REST > 0)
    return found + quotients<P, T, WIDE, REST>(key + FIRST, over + FIRST, row + FIRST * ROWS);
  return found;
}

// Add to a sum, and keep what that rounds away.
template <class V> INLINE void add(const V& part, V& sum, V& lost) {
  const V more = sum + part;
  lost += part - (more - sum);
  sum = more;
}

// Sums of w (a - b)^2 of some rows and a vector of slots, in parts of 16 units: all terms have one
// sign, and without parts the rounding of a long sum would be that of the sum.
template <class P, class T, bool EVEN>
INLINE void square_tile(const T* a, const T* b, const Units<P, T>& units, T* scores, Int stride) {
  constexpr int K = Vector<T>::lanes;
  V<T> sums[ROWS] = {}, lost[ROWS] = {};
  for (Int h = 0; h < units.depth;) {
    V<T> part[ROWS] = {};
    for (const Int end = std::min(h + 16, units.depth); h < end; h += 4, a += 4 * ROWS, b += 4 * K)
#pragma GCC unroll 4
      for (int i = 0; i < 4; i++)
        for (int r = 0; r < ROWS; r++) {
          const V<T> x = load(b + i * K) - a[i * ROWS + r];
          part[r] += (EVEN ? x : x * units.over.data[h + i]) * x;
        }
    for (int r = 0; r < ROWS; r++) add(part[r], sums[r], lost[r]);
  }
  for (int r = 0; r < ROWS; r++)
    store(scores + r * stride, (sums[r] + lost[r]) * units.scale);
}

// Sums of w tanh(a + b).
template <class P, class T>
INLINE void tanh_tile(const T* a, const T* b, const Units<P, T>& units, T* scores, Int stride) {
  constexpr int K = Vector<T>::lanes;
  V<T> sums[ROWS] = {}, lost[ROWS] = {};
  for (Int h = 0; h < units.depth; h += 4, a += 4 * ROWS, b += 4 * K)
    for (int r = 0; r < ROWS; r++) {
      V<T> part = {};
      for (int i = 0; i < 4; i++)
        part += tanh<T>(load(b + i * K) + a[i * ROWS + r]) * units.over.data[h + i];
      add(part, sums[r], lost[r]);
    }
  for (int r = 0; r < ROWS; r++) store(scores + r * stride, sums[r] + lost[r]);
}

// Scores of some rows and a vector of slots.
template <class P, class T, bool WIDE>
INLINE void quotient_tile(const T* a, const T* b, const Units<P, T>& units, T* scores, Int stride) {
  constexpr int K = Vector<T>::lanes, N = P::group;
  V<T> sums[ROWS] = {};
  for (Int q = 0; q < units.groups; q++, a += N * ROWS, b += N * K) {
    V<T> key[N], over[N];
    for (int i = 0; i < N; i++) {
      key[i] = load(b + i * K);
      over[i] = all<T>(units.over.data[q * N + i]);
    }
    const V<T> middle = all<T>(units.middle.data[q]);
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
      sums[r] += quotients<P, T, WIDE, N>(key, over, a + r) - middle;
  }
  for (int r = 0; r < ROWS; r++) store(scores + r * stride, sums[r] * units.scale);
}

template <class P, class T, Form FORM>
INLINE void score_tile(const T* a, const T* b, const Units<P, T>& units, T* scores, Int stride) {
  if constexpr (FORM == SQUARES)
    return (units.even ? square_tile<P, T, true> : square_tile<P, T, false>)(a, b, units, scores,
                                                                             stride);
  if constexpr (FORM == TANH) return tanh_tile<P, T>(a, b, units, scores, stride);
  (units.wide ? quotient_tile<P, T, true> : quotient_tile<P, T, false>)(a, b, units, scores, stride);
}

template <class T>
void add_mask(T* row, const void* mask, const Sizes& s, Int item, Int i, Int seen) {
  const Int first = item * s.mask_item + i * s.mask_row, step = s.mask_slot;
  const T* bias = static_cast<const T*>(mask) + first;
  const bool* open = static_cast<const bool*>(mask) + first;
  if (s.mask_kind == 2)
    for (Int j = 0; j < seen; j++) row[j] += bias[j * step];
  if (s.mask_kind == 1)
    for (Int j = 0; j < seen; j++) row[j] = open[j * step] ? row[j] : -INFINITY;
}

// Scores to their exponentials, up to a factor; gives that factor. `width` fills whole vectors.
template <class T> __attribute__((noinline)) T exponentials(T* row, Int seen, Int width) {
  constexpr int K = Vector<T>::lanes;
  for (Int j = seen; j < width; j++) row[j] = -INFINITY;
  V<T> tops = load(row), sums = {};
  for (Int j = K; j < width; j += K) {
    const V<T> x = load(row + j);
    tops = x > tops ? x : tops;
  }
  T top = tops[0], sum = 0;
  for (int k = 1; k < K; k++) top = std::max(top, tops[k]);
  for (Int j = 0; j < width; j += K) {
    const V<T> e = exp<T>(load(row + j) - top);
    sums += e;
    store(row + j, e);
  }
  for (int k = 0; k < K; k++) sum += sums[k];
  return 1 / sum;
}

constexpr int WIDTH = VECTOR_BYTES == 64 ? 4 : 2;  // vectors of features that share a weight

// To `sums`, POOLED rows of C vectors, what `count` slots add.
template <class T, int C>
INLINE void pool_tile(const T* weights, Int stride, const T* value, Int value_row, Int count,
                      T* sums, Int sums_row) {
  constexpr int K = Vector<T>::lanes;
  V<T> sum[POOLED][C];
  for (int r = 0; r < POOLED; r++)
    for (int c = 0; c < C; c++) sum[r][c] = load(sums + r * sums_row + c * K);
#pragma GCC unroll 2
  for (Int j = 0; j < count; j++, value += value_row) {
    V<T> v[C];
    for (int c = 0; c < C; c++) v[c] = load(value + c * K);
    for (int r = 0; r < POOLED; r++)
      for (int c = 0; c < C; c++) sum[r][c] += v[c] * weights[r * stride + j];
  }
  for (int r = 0; r < POOLED; r++)
    for (int c = 0; c < C; c++) store(sums + r * sums_row + c * K, sum[r][c]);
}

// Weights of some tiles times values, the features filling whole vectors.
template <class T>
__attribute__((noinline)) void pool(const T* weights, Int stride, Int tiles, const T* value, Int value_row, Int slots,
          Int features, T* sums) {
  constexpr int K = Vector<T>::lanes, SLOTS = 64;
  memset(sums, 0, tiles * POOLED * features * sizeof(T));
  for (Int j = 0; j < slots; j += SLOTS)
    for (Int f = 0; f < features; f += WIDTH * K)
      for (Int t = 0; t < tiles; t++) {
        const T *from = weights + t * POOLED * stride + j, *values = value + j * value_row + f;
        T* to = sums + t * POOLED * features + f;
        const Int count = std::min<Int>(SLOTS, slots - j);
        if (f + WIDTH * K <= features)
          pool_tile<T, WIDTH>(from, stride, values, value_row, count, to, features);
        else
          for (Int c = 0; f + c < features; c += K)
            pool_tile<T, 1>(from, stride, values + c, value_row, count, to + c, features);
      }
}

// The output, and where there is a place for them the weights.
template <class P, class T, Form FORM>
void attend(const T* a, const T* b, const T* w, const T* value, const void* mask, T* weights,
            T* output, double reach, const Sizes& s) {
  constexpr int K = Vector<T>::lanes, H = HEIGHT;
  const Int blocks = up(s.slots, K), tasks = up(s.rows, H), features = up(s.features, K) * K;
  const Int stride = (blocks + 1) * K;  // one more vector: no stride a power of two
  const bool ragged = features != s.features;
  std::vector<std::unique_ptr<Units<P, T>>> units(s.w_item ? s.items : 1);
  for (Int n = 0; n < Int(units.size()); n++)
    units[n].reset(new Units<P, T>(w + n * s.w_item, s.units, FORM, T(reach)));
  const Int depth = units[0]->depth;
  Buffer<T> keys(s.items * blocks * K * depth), values(ragged ? s.items * s.slots * features : 0);
#pragma omp parallel num_threads(s.threads)
  {
    Buffer<T> row(depth), rows(H * depth), scores(H * stride), sums(H * features);
#pragma omp for
    for (Int j = 0; j < s.items * blocks * K; j++) {
      const Int n = j / (blocks * K), slot = j % (blocks * K);
      T* to = keys.data + j / K * K * depth + j % K;
      if (slot < s.slots)
        factors<P, T, FORM>(b + n * s.b_item + slot * s.b_row, *units[s.w_item ? n : 0], row.data);
      for (Int h = 0; h < depth; h++) to[h * K] = slot < s.slots ? row.data[h] : 0;
      if (!ragged || slot >= s.slots) continue;
      T* padded = values.data + (n * s.slots + slot) * features;
      memset(padded + features - K, 0, K * sizeof(T));
      memcpy(padded, value + n * s.value_item + slot * s.value_row, s.features * sizeof(T));
    }
#pragma omp for schedule(dynamic, 1)
    for (Int task = 0; task < s.items * tasks; task++) {
      const Int n = task / tasks, first = task % tasks * H, count = std::min<Int>(H, s.rows - first);
      const Units<P, T>& unit = *units[s.w_item ? n : 0];
      const Int tiles = up(count, ROWS), seen = std::min(s.slots, s.visible + first + count - 1);
      const Int width = up(seen, K) * K;
      for (Int i = 0; i < tiles * ROWS; i++) {
        const Int from = n * s.a_item + (first + std::min(i, count - 1)) * s.a_row;
        factors<P, T, FORM>(a + from, unit, row.data);
        T* to = rows.data + i / ROWS * ROWS * depth + i % ROWS;
        for (Int h = 0; h < depth; h++)
          to[h * ROWS] = row.data[h] * (FORM == QUOTIENT ? unit.over.data[h] : 1);
      }
      for (Int j = 0; j < width; j += K)
        for (Int t = 0; t < tiles; t++)
          score_tile<P, T, FORM>(rows.data + t * ROWS * depth, keys.data + (n * blocks * K + j) * depth,
                               unit, scores.data + t * ROWS * stride + j, stride);
      T share[H];
      for (Int i = 0; i < count; i++) {
        T* const found = scores.data + i * stride;
        const Int own = std::min(seen, s.visible + first + i);
        if (s.mask_kind) add_mask(found, mask, s, n, first + i, own);
        share[i] = exponentials<T>(found, own, width);
        if (!weights) continue;
        T* const to = weights + n * s.weights_item + (first + i) * s.weights_row;
        for (Int j = 0; j < seen; j++) to[j] = found[j] * share[i];
        for (Int j = seen; j < s.slots; j++) to[j] = 0;
      }
      if (!output) continue;
      const T* const from = ragged ? values.data + n * s.slots * features : value + n * s.value_item;
      pool<T>(scores.data, stride, up(count, POOLED), from, ragged ? features : s.value_row, seen, features,
           sums.data);
      for (Int i = 0; i < count; i++) {
        T* const to = output + n * s.output_item + (first + i) * s.output_row;
        for (Int f = 0; f < s.features; f++) to[f] = sums.data[i * features + f] * share[i];
      }
    }
  }
}

}  // namespace
