// Vectors of GCC and clang, of whatever width they are compiled for, and functions of them.

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

// As in native.py, field by field. Strides count elements; the last dimension is contiguous.
struct Sizes {
  Int items, rows, slots, units, features;
  Int a_item, a_row, b_item, b_row, w_item, value_item, value_row;
  Int weights_item, weights_row, output_item, output_row;
  Int mask_kind, mask_item, mask_row, mask_slot;  // 0 none, 1 boolean, 2 floating
  Int visible;  // how many slots the first row sees; each row sees one more than the one above
  Int form, parts, threads;
};

namespace {

constexpr int ROWS = 4;  // of a tile: what is loaded serves so many

template <class T> struct Vector {
  typedef T Type __attribute__((vector_size(VECTOR_BYTES)));
  typedef typename std::conditional<sizeof(T) == 4, int32_t, int64_t>::type Bits;
  typedef Bits BitsType __attribute__((vector_size(VECTOR_BYTES)));
  static constexpr int lanes = VECTOR_BYTES / sizeof(T);
};

template <class T> using V = typename Vector<T>::Type;

template <class T> INLINE V<T> load(const T* from) {
  V<T> found;
  memcpy(&found, from, sizeof found);
  return found;
}

template <class T> INLINE void store(T* to, V<T> vector) {
  memcpy(to, &vector, sizeof vector);
}

template <class T> INLINE V<T> all(T value) { return value - V<T>{}; }

template <class T> struct Buffer {
  T* const data;
  explicit Buffer(Int count)
      : data(static_cast<T*>(aligned_alloc(64, (count * sizeof(T) + 127) / 64 * 64))) {}
  ~Buffer() { free(data); }
  Buffer(const Buffer&) = delete;
};

INLINE Int up(Int size, Int step) { return (size + step - 1) / step; }

// e^x = power (1 + rest): a power of two, and a polynomial of what is left of x.
template <class T> INLINE void split_exp(V<T> x, V<T>& power, V<T>& rest) {
  constexpr bool single = sizeof(T) == 4;
  constexpr int degree = single ? 7 : 13, mantissa = single ? 23 : 52;
  constexpr T magic = single ? T(12582912) : T(6755399441055744);  // adding it rounds to integers
  const V<T> shifted = x * T(1.4426950408889634) + magic, n = shifted - magic;
  V<T> left = x - n * (single ? T(0.693145751953125) : T(0.693147180369123816490));
  left -= n * (single ? T(1.42860682030941723e-6) : T(1.90821492927058770e-10));
  constexpr T inverse[] = {T(1), T(1), T(1.0 / 2), T(1.0 / 6), T(1.0 / 24), T(1.0 / 120),
                           T(1.0 / 720), T(1.0 / 5040), T(1.0 / 40320), T(1.0 / 362880),
                           T(1.0 / 3628800), T(1.0 / 39916800), T(1.0 / 479001600),
                           T(1.0 / 6227020800)};
  V<T> sum = all<T>(inverse[degree]);
#pragma GCC unroll 16
  for (int i = degree - 1; i > 0; i--) sum = sum * left + inverse[i];
  rest = sum * left;
  typedef typename Vector<T>::BitsType Bits;
  power = (V<T>)(((Bits)shifted << mantissa) + (Bits)all<T>(1));
}

template <class T> INLINE V<T> exp(V<T> x) {
  const T least = sizeof(T) == 4 ? T(-87) : T(-708);
  V<T> power, rest;
  split_exp<T>(x < least ? all<T>(least) : x, power, rest);
  return x < least ? V<T>{} : power * rest + power;
}

template <class T> INLINE V<T> tanh(V<T> x) {
  const V<T> far = all<T>(sizeof(T) == 4 ? 20 : 40);
  V<T> power, rest, y = 2 * x;
  y = y > far ? far : y;
  split_exp<T>(y < -far ? -far : y, power, rest);
  const V<T> less_one = power * rest + (power - 1);
  return less_one / (less_one + 2);
}

}  // namespace
