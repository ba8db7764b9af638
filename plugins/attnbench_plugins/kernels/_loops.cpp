// The loops of additive attention on the CPU; _native.py compiles and calls them.
//
// Scores are sums over hidden units of w tanh(a + b). Up to a constant that is the same for every
// key they are -2 sum of 1 / ((1 + e^2a e^2b) / w): a multiply-add, and a share of a division. Each
// loop has a second form with tanh itself (`exact`), for what no shift brings into float's range.

#include "_attend.h"
#include "_slopes.h"

extern "C" {

void attend_single(const float* a, const float* b, const float* w, const float* value,
                   const void* mask, float* weights, float* output, double reach, const Sizes* s) {
  (s->exact ? attend<float, true> : attend<float, false>)(a, b, w, value, mask, weights, output,
                                                          reach, *s);
}

void attend_double(const double* a, const double* b, const double* w, const double* value,
                   const void* mask, double* weights, double* output, double reach,
                   const Sizes* s) {
  attend<double, true>(a, b, w, value, mask, weights, output, reach, *s);
}

void slopes_single(const float* g, const float* a, const float* b, const float* w, float* da,
                   float* db, float* dw, double reach, const Sizes* s) {
  (s->exact      ? slopes<float, EXACT_FORM>
   : reach < 21  ? slopes<float, QUOTIENT>
                 : slopes<float, WIDE_QUOTIENT>)(g, a, b, w, da, db, dw, *s);
}

void slopes_double(const double* g, const double* a, const double* b, const double* w, double* da,
                   double* db, double* dw, double, const Sizes* s) {
  slopes<double, EXACT_FORM>(g, a, b, w, da, db, dw, *s);
}
}
