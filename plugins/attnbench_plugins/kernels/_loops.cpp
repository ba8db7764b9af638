// The loops of additive and Gaussian attention on the CPU; _native.py compiles and calls them.
//
// Scores are sums over hidden units of w tanh(a + b). Up to a constant that is the same for every
// key they are -2 sum of 1 / ((1 + e^2a e^2b) / w): a multiply-add, and a share of a division. Each
// loop has a second form with tanh itself, for what no shift brings into float's range, and a third
// with (a - b)^2 in place of tanh: the difference first, as exact far from the origin as anywhere.

#include "_attend.h"
#include "_slopes.h"

// The variants of the quotients' loops; the first is taken unless another is clearly faster.
#if VECTOR_BYTES == 64
#define VARIANTS(X)                                                           \
  X(64, 3, false, 4) X(64, 4, false, 4) X(64, 4, true, 4) X(64, 8, false, 4)  \
  X(64, 8, true, 4) X(64, 8, false, 8) X(64, 8, true, 8) X(32, 8, true, 4)
#else
#define VARIANTS(X)                                             \
  X(VECTOR_BYTES, 4, false, 4) X(VECTOR_BYTES, 8, false, 4) X(VECTOR_BYTES, 8, false, 8)
#endif

namespace {

typedef Shape<VECTOR_BYTES, 4, false, 4> Plain;

struct Variant {
  int bytes, share, newton, rows;
  decltype(&attend<Plain, float, QUOTIENT>) scores, scores_by_four;
  decltype(&slopes<Plain, float, QUOTIENT>) gradients, wide_gradients;
};

#define VARIANT(...) variant<__VA_ARGS__>(),

// Gradients always take four rows to a division.
template <int BYTES, int SHARE, bool NEWTON, int ROWS> constexpr Variant variant() {
  typedef Shape<BYTES, 4, NEWTON, ROWS> Four;
  return {BYTES, SHARE, NEWTON, ROWS, attend<Shape<BYTES, SHARE, NEWTON, ROWS>, float, QUOTIENT>,
          attend<Four, float, QUOTIENT>, slopes<Four, float, QUOTIENT>,
          slopes<Four, float, WIDE_QUOTIENT>};
}

const Variant variants[] = {VARIANTS(VARIANT)};

}  // namespace

extern "C" {

// The bits of a vector, terms to a division, whether by Newton's step, and rows of a tile; or zeros.
void describe_variant(Int number, Int* facts) {
  const Variant found = number < Int(sizeof variants / sizeof *variants) ? variants[number] : Variant();
  const int given[] = {found.bytes * 8, found.share, found.newton, found.rows};
  std::copy(given, given + 4, facts);
}

void attend_single(const float* a, const float* b, const float* w, const float* value,
                   const void* mask, float* weights, float* output, double reach, const Sizes* s) {
  const Variant& found = variants[s->variant];
  const bool half_empty = (s->units + 7) % 8 < 4;  // the last group of eight units
  (s->form == SQUARES ? attend<Plain, float, SQUARES>
   : s->form == TANH  ? attend<Plain, float, TANH>
   : half_empty       ? found.scores_by_four
                      : found.scores)(a, b, w, value, mask, weights, output, reach, *s);
}

void attend_double(const double* a, const double* b, const double* w, const double* value,
                   const void* mask, double* weights, double* output, double reach,
                   const Sizes* s) {
  (s->form == SQUARES ? attend<Plain, double, SQUARES> : attend<Plain, double, TANH>)(
      a, b, w, value, mask, weights, output, reach, *s);
}

void slopes_single(const float* g, const float* a, const float* b, const float* w, float* da,
                   float* db, float* dw, double reach, const Sizes* s) {
  const Variant& found = variants[s->variant];
  (s->form == SQUARES ? slopes<Plain, float, SQUARES>
   : s->form == TANH  ? slopes<Plain, float, TANH>
   : reach < 10.5     ? found.gradients  // a product of four is finite
                      : found.wide_gradients)(g, a, b, w, da, db, dw, *s);
}

void slopes_double(const double* g, const double* a, const double* b, const double* w, double* da,
                   double* db, double* dw, double, const Sizes* s) {
  (s->form == SQUARES ? slopes<Plain, double, SQUARES> : slopes<Plain, double, TANH>)(
      g, a, b, w, da, db, dw, *s);
}
}
