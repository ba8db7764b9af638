// The loops of additive and Gaussian attention on the CPU, as native.py calls them.
//
// Scores are sums over hidden units of w tanh(a + b). Up to a constant that is the same for every
// key they are -2 sum of 1 / ((1 + e^2a e^2b) / w): a multiply-add, and a share of a division. Each
// loop has a second form with tanh itself, for what no shift brings into float's range, and a third
// with (a - b)^2 in place of tanh: the difference first, as exact far from the origin as anywhere.

#include "attend.h"
#include "slopes.h"

namespace {

typedef Shape<4, false> Four;

decltype(&attend<Four, float, QUOTIENT>) attend_quotients(Int units) {
#if VECTOR_BYTES == 64
  // A vector of 512 bits occupies Intel's divider for 10 cycles, and AMD's for 6.
  static const bool slow_divider = __builtin_cpu_is("intel");
  const bool half_empty = (units + 7) % 8 < 4;  // the last group of eight units
  if (!half_empty)
    return slow_divider ? attend<Shape<8, true>, float, QUOTIENT>
                        : attend<Shape<3, false>, float, QUOTIENT>;
#endif
  return attend<Four, float, QUOTIENT>;
}

}  // namespace

extern "C" {

void attend_single(const float* a, const float* b, const float* w, const float* value,
                   const void* mask, float* weights, float* output, double reach, const Sizes* s) {
  (s->form == SQUARES ? attend<Four, float, SQUARES>
   : s->form == TANH  ? attend<Four, float, TANH>
                      : attend_quotients(s->units))(a, b, w, value, mask, weights, output, reach,
                                                    *s);
}

void attend_double(const double* a, const double* b, const double* w, const double* value,
                   const void* mask, double* weights, double* output, double reach,
                   const Sizes* s) {
  (s->form == SQUARES ? attend<Four, double, SQUARES> : attend<Four, double, TANH>)(
      a, b, w, value, mask, weights, output, reach, *s);
}

void slopes_single(const float* g, const float* a, const float* b, const float* w, float* da,
                   float* db, float* dw, double reach, const Sizes* s) {
  (s->form == SQUARES ? slopes<float, SQUARES>
   : s->form == TANH  ? slopes<float, TANH>
   : reach < 10.5     ? slopes<float, QUOTIENT>  // a product of four is finite
                      : slopes<float, WIDE_QUOTIENT>)(g, a, b, w, da, db, dw, *s);
}

void slopes_double(const double* g, const double* a, const double* b, const double* w, double* da,
                   double* db, double* dw, double, const Sizes* s) {
  (s->form == SQUARES ? slopes<double, SQUARES> : slopes<double, TANH>)(g, a, b, w, da, db, dw, *s);
}
}
