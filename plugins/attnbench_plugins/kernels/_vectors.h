// Vectors of GCC and clang, of whatever width the processor has, and functions of them.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

#if defined(__AVX512F__)
#include <immintrin.h>
#define VECTOR_BYTES 64
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif
#define INLINE inline __attribute__((always_inline))

typedef int64_t Int;

// What a unit adds: w tanh(a + b), by a quotient or by tanh itself; or w (a - b)^2.
enum Form { QUOTIENT, TANH, SQUARES, WIDE_QUOTIENT };

// As in _native.py, field by field. Strides count elements; the last dimension is contiguous.
struct Sizes {
  Int items, rows, slots, units, features;
  Int a_item, a_row, b_item, b_row, w_item, value_item, value_row;
  Int weights_item, weights_row, output_item, output_row;
  Int mask_kind, mask_item, mask_row, mask_slot;  // 0 none, 1 boolean, 2 floating
  Int visible;  // how many slots the first row sees; each row sees one more than the one above
  Int form, parts, threads, variant;
};

namespace {

// How the loops are shaped. All variants give the same, up to rounding; which is the fastest depends
// on the processor.
template <int BYTES, int SHARE, bool NEWTON, int ROWS> struct Shape {
  static constexpr int bytes = BYTES;      // of a vector
  static constexpr int share = SHARE;      // units whose terms share a division: 3, 4 or 8
  static constexpr int group = SHARE == 3 ? 8 : SHARE;  // units taken together: 3, 3 and 2, or all
  static constexpr bool newton = NEWTON;   // an approximate reciprocal and a Newton step divide
  static constexpr int rows = ROWS;        // what is loaded serves so many
};

// For what does not depend on the rest: compiled once for a width.
template <class P> using Common = Shape<P::bytes, 4, false, 4>;

template <class P, class T> struct Vector {
  typedef T Type __attribute__((vector_size(P::bytes)));
  typedef typename std::conditional<sizeof(T) == 4, int32_t, int64_t>::type Bits;
  typedef Bits BitsType __attribute__((vector_size(P::bytes)));
  static constexpr int lanes = P::bytes / sizeof(T);
};

template <class P, class T> using V = typename Vector<P, T>::Type;

template <class P, class T> INLINE V<P, T> load(const T* from) {
  V<P, T> found;
  memcpy(&found, from, sizeof found);
  return found;
}

template <class P, class T> INLINE void store(T* to, V<P, T> vector) {
  memcpy(to, &vector, sizeof vector);
}

template <class P, class T> INLINE V<P, T> all(T value) { return value - V<P, T>{}; }

// A first approximation of 1 / x, x normal and its inverse too; `inverse` makes it one to about a
// unit in the last place. They are two steps, so that the first can be taken early.
template <class P, class T> INLINE V<P, T> near_inverse(V<P, T> x) {
#ifdef __AVX512F__
  if constexpr (P::newton && P::bytes == 64) return (V<P, T>)_mm512_rcp14_ps((__m512)x);
#ifdef __AVX512VL__
  if constexpr (P::newton && P::bytes == 32) return (V<P, T>)_mm256_rcp14_ps((__m256)x);
#endif
#endif
  return 1 / x;
}

template <class P, class T> INLINE V<P, T> inverse(V<P, T> x, V<P, T> near) {
  if constexpr (P::newton) return near * (1 - x * near) + near;
  return near;
}

template <class T> struct Buffer {
  T* const data;
  explicit Buffer(Int count)
      : data(static_cast<T*>(aligned_alloc(64, (count * sizeof(T) + 127) / 64 * 64))) {}
  ~Buffer() { free(data); }
  Buffer(const Buffer&) = delete;
};

INLINE Int up(Int size, Int step) { return (size + step - 1) / step; }

// e^x = power (1 + rest): a power of two, and a polynomial of what is left of x.
template <class P, class T> INLINE void split_exp(V<P, T> x, V<P, T>& power, V<P, T>& rest) {
  constexpr bool single = sizeof(T) == 4;
  constexpr int degree = single ? 7 : 13, mantissa = single ? 23 : 52;
  constexpr T magic = single ? T(12582912) : T(6755399441055744);  // adding it rounds to integers
  const V<P, T> shifted = x * T(1.4426950408889634) + magic, n = shifted - magic;
  V<P, T> left = x - n * (single ? T(0.693145751953125) : T(0.693147180369123816490));
  left -= n * (single ? T(1.42860682030941723e-6) : T(1.90821492927058770e-10));
  constexpr T inverse[] = {T(1), T(1), T(1.0 / 2), T(1.0 / 6), T(1.0 / 24), T(1.0 / 120),
                           T(1.0 / 720), T(1.0 / 5040), T(1.0 / 40320), T(1.0 / 362880),
                           T(1.0 / 3628800), T(1.0 / 39916800), T(1.0 / 479001600),
                           T(1.0 / 6227020800)};
  V<P, T> sum = all<P, T>(inverse[degree]);
#pragma GCC unroll 16
  for (int i = degree - 1; i > 0; i--) sum = sum * left + inverse[i];
  rest = sum * left;
  typedef typename Vector<P, T>::BitsType Bits;
  power = (V<P, T>)(((Bits)shifted << mantissa) + (Bits)all<P, T>(1));
}

template <class P, class T> INLINE V<P, T> exp(V<P, T> x) {
  const T least = sizeof(T) == 4 ? T(-87) : T(-708);
  V<P, T> power, rest;
  split_exp<P, T>(x < least ? all<P, T>(least) : x, power, rest);
  return x < least ? V<P, T>{} : power * rest + power;
}

template <class P, class T> INLINE V<P, T> tanh(V<P, T> x) {
  const V<P, T> far = all<P, T>(sizeof(T) == 4 ? 20 : 40);
  V<P, T> power, rest, y = 2 * x;
  y = y > far ? far : y;
  split_exp<P, T>(y < -far ? -far : y, power, rest);
  const V<P, T> less_one = power * rest + (power - 1);
  return less_one / (less_one + 2);
}

}  // namespace
