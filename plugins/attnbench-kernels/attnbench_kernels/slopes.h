// Gradients of sums of w tanh(a + b) or w (a - b)^2.

#pragma once

#include "vectors.h"

namespace {

// Four x = 1 + row slot on their way to 1 / x, with one division.
template <class T, bool WIDE> struct Inverses {
  static constexpr T SCALE = T(1) / (Int(1) << 31);
  V<T> x[4], low, high, both;
  INLINE void begin(const V<T>* row, V<T> slot) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
      x[i] = row[i] * slot + 1;
      if (WIDE) {  // so that products are normal; what lies above 2^62 is nothing
        x[i] *= SCALE;
        x[i] = x[i] > 1 / SCALE ? all<T>(1 / SCALE) : x[i];
      }
    }
    low = x[0] * x[1], high = x[2] * x[3];
    both = 1 / (low * high);
  }
  INLINE void end(V<T>* found) const {
    V<T> left = both * high, right = both * low;
    if (WIDE) left *= SCALE, right *= SCALE;
    found[0] = left * x[1], found[1] = left * x[0];
    found[2] = right * x[3], found[3] = right * x[2];
  }
};

// Over some slots and rows, a vector of units wide: sums of g t, and of g t'.
template <class T, Form FORM>
INLINE void slope_tile(const T* const* g, const T* a, const T* b, Int from, Int to, T* da, T* db,
                       V<T>& plain) {
  constexpr int K = Vector<T>::lanes;
  constexpr bool QUOTIENTS = FORM == QUOTIENT || FORM == WIDE_QUOTIENT;
  V<T> row[ROWS], sums[ROWS] = {}, even = {}, odd = {};
  for (int r = 0; r < ROWS; r++) row[r] = load(a + r * K);
  Inverses<T, FORM == WIDE_QUOTIENT> now, next;
  if (QUOTIENTS && from < to) now.begin(row, load(b + from * K));
  for (Int j = from; j < to; j++) {
    const V<T> slot = load(b + (QUOTIENTS ? std::min(j + 1, to - 1) : j) * K);
    V<T> own = load(db + j * K);
    V<T> x[4];
    if constexpr (QUOTIENTS) {  // one slot ahead: the division takes long
      next.begin(row, slot);
      now.end(x);
      now = next;
    }
#pragma GCC unroll 4
    for (int i = 0; i < ROWS; i++) {
      const V<T> up = all<T>(g[i][j]);
      const V<T> t = FORM == SQUARES ? row[i] - slot : FORM == TANH ? tanh<T>(row[i] + slot) : x[i];
      const V<T> slope = FORM == SQUARES ? t : FORM == TANH ? 1 - t * t : t - t * t;
      (i % 2 ? odd : even) += (FORM == SQUARES ? t * t : t) * up;
      sums[i] += slope * up;
      own += slope * up;
    }
    store(db + j * K, own);
  }
  for (int r = 0; r < ROWS; r++) store(da + r * K, load(da + r * K) + sums[r]);
  plain += even + odd;
}

// Gradients of rows, slots and weights of the units; those of the slots and weights in parts.
template <class T, Form FORM>
void slopes(const T* g, const T* a, const T* b, const T* w, T* da, T* db, T* dw, const Sizes& s) {
  constexpr int K = Vector<T>::lanes, H = 32, COLUMNS = 128;
  const Int strips = up(s.units, K), height = up(up(s.rows, s.parts), ROWS) * ROWS;
#pragma omp parallel num_threads(s.threads)
  {
    Buffer<T> rows(height * K), slots(s.slots * K), row_sums(height * K), slot_sums(s.slots * K);
    Buffer<T> nothing(s.slots);
    memset(nothing.data, 0, s.slots * sizeof(T));
#pragma omp for schedule(dynamic, 1)
    for (Int task = 0; task < s.parts * s.items * strips; task++) {
      const Int part = task / strips / s.items, n = task / strips % s.items, h = task % strips * K;
      const Int first = part * height, count = std::max<Int>(0, std::min(height, s.rows - first));
      const Int width = std::min<Int>(K, s.units - h);
      const auto pack = [&](const T* from, Int stride, Int many, T* to) {
        for (Int i = 0; i < many; i++) {
          V<T> x = {};
          if (width == K) x = load(from + i * stride + h);
          else memcpy(&x, from + i * stride + h, width * sizeof(T));
          store(to + i * K, FORM == TANH || FORM == SQUARES ? x : exp<T>(2 * x));
        }
      };
      memset(rows.data, 0, height * K * sizeof(T));
      memset(row_sums.data, 0, height * K * sizeof(T));
      memset(slot_sums.data, 0, s.slots * K * sizeof(T));
      pack(a + n * s.a_item + first * s.a_row, s.a_row, count, rows.data);
      pack(b + n * s.b_item, s.b_row, s.slots, slots.data);
      V<T> plain = {};
      for (Int top = 0; top < count; top += H)
        for (Int from = 0; from < s.slots; from += COLUMNS)
          for (Int i = top; i < std::min(count, top + H); i += ROWS) {
            const T* grads[ROWS];
            for (int r = 0; r < ROWS; r++)
              grads[r] = i + r >= count ? nothing.data
                                        : g + n * s.weights_item + (first + i + r) * s.weights_row;
            const Int to = std::min({from + COLUMNS, s.slots, s.visible + first + i + ROWS - 1});
            slope_tile<T, FORM>(grads, rows.data + i * K, slots.data, from, to,
                                row_sums.data + i * K, slot_sums.data, plain);
          }
      V<T> weight = {};
      memcpy(&weight, w + n * s.w_item + h, width * sizeof(T));
      weight *= T(FORM == TANH ? 1 : FORM == SQUARES ? 2 : 4);
      const Int at = part * s.items + n;
      const auto unpack = [&](const T* from, Int many, T* to, Int stride) {
        for (Int i = 0; i < many; i++) {
          const V<T> x = load(from + i * K) * weight;
          if (width == K) store(to + i * stride + h, x);
          else memcpy(to + i * stride + h, &x, width * sizeof(T));
        }
      };
      unpack(row_sums.data, count, da + n * s.output_item + first * s.output_row, s.output_row);
      if (FORM == SQUARES) weight = -weight;
      unpack(slot_sums.data, s.slots, db + at * s.slots * s.units, s.units);
      plain *= T(FORM == TANH || FORM == SQUARES ? 1 : -2);
      memcpy(dw + at * s.units + h, &plain, width * sizeof(T));
    }
  }
}

}  // namespace
