// Gradients of sums of w tanh(a + b) or w (a - b)^2.

#pragma once

#include "_vectors.h"

namespace {

// Over some slots and ROWS rows, a vector of units wide: sums of g t, and of g t'.
template <class T, Form FORM>
INLINE void slope_tile(const T* const* g, const T* a, const T* b, Int from, Int to, T* da, T* db,
                       V<T>& plain) {
  constexpr int K = Vector<T>::lanes;
  V<T> row[ROWS], sums[ROWS] = {}, even = {}, odd = {};
  for (int r = 0; r < ROWS; r++) row[r] = load(a + r * K);
  for (Int j = from; j < to; j++) {
    const V<T> slot = load(b + j * K);
    V<T> both[ROWS / 2];
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; r += 2) {
      V<T> first, second, s0, s1;
      if (FORM == SQUARES) {
        const V<T> x = row[r] - slot, y = row[r + 1] - slot;
        s0 = x * g[r][j], s1 = y * g[r + 1][j];
        first = x * s0, second = y * s1;
      } else if (FORM == TANH) {
        const V<T> t0 = tanh<T>(row[r] + slot), t1 = tanh<T>(row[r + 1] + slot);
        first = t0 * g[r][j], second = t1 * g[r + 1][j];
        s0 = g[r][j] - first * t0, s1 = g[r + 1][j] - second * t1;
      } else {
        V<T> x = row[r] * slot + 1, y = row[r + 1] * slot + 1;
        if (FORM == WIDE_QUOTIENT) {  // the product of two is finite
          x = x > T(9e18) ? all<T>(9e18) : x;
          y = y > T(9e18) ? all<T>(9e18) : y;
        }
        const V<T> inverse = 1 / (x * y), r0 = inverse * y, r1 = inverse * x;
        first = r0 * g[r][j], second = r1 * g[r + 1][j];
        s0 = first - first * r0, s1 = second - second * r1;
      }
      even += first;
      odd += second;
      sums[r] += s0;
      sums[r + 1] += s1;
      both[r / 2] = s0 + s1;
    }
    store<T>(db + j * K, load(db + j * K) + (both[0] + both[1]));
  }
  for (int r = 0; r < ROWS; r++) store<T>(da + r * K, load(da + r * K) + sums[r]);
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
          store<T>(to + i * K, FORM == TANH || FORM == SQUARES ? x : exp<T>(2 * x));
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
          if (width == K) store<T>(to + i * stride + h, x);
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
