// Scalar functions for the C++ kernels: every function is branch-free where it can be, so that
// gcc vectorises loops that call it. No includes beyond <stdint.h>: a kernel file compiles in
// about 0.1 s. Polynomials come from benchmarks/fit_math.py; what has none calls libm.
// Names start with eq_.
#pragma once
#include "eqsat_numbers.h"
#include "eqsat_transpose.h"

// ---- conversions ----

// gcc 12 makes trunc(x) of (float)(int)x, whatever it knows of -0.0, nan and numbers that are too
// large. It may not look into a weak variable, so that it leaves the sum with it alone.
__attribute__((weak)) int32_t eq_nothing = 0;

// A whole number that was made of a float and becomes one.
template <class T> EQ_INLINE T eq_whole(T x) { return (T)(x + (T)eq_nothing); }

// ---- float32 functions ----

EQ_INLINE float eq_rint(float x) { return __builtin_rintf(x); }
EQ_INLINE double eq_rint(double x) { return __builtin_rint(x); }
EQ_INLINE float eq_power_of_two(int32_t n) { return eq_float((uint32_t)(n + 127) << 23); }

// x = n log 2 + r, and q with exp(r) = 1 + r + r^2 q
struct eq_exp_parts {
  int32_t n;
  float r, q;
};

EQ_INLINE eq_exp_parts eq_exp_split(float x) {
  float whole = eq_rint(x * 1.44269504f);
  float r = eq_fma(whole, -6.93145752e-1f, x);
  r = eq_fma(whole, -1.42860677e-6f, r);
  float q = eq_fma(1.991346653e-04f, r, 1.394097111e-03f);
  q = eq_fma(q, r, 8.333274163e-03f);
  q = eq_fma(q, r, 4.166635498e-02f);
  q = eq_fma(q, r, 1.666666716e-01f);
  q = eq_fma(q, r, 5.000000000e-01f);
  return {(int32_t)whole, r, q};
}

// exp for -87 <= x <= 88, where no scale leaves the normal range
EQ_INLINE float eq_exp_middle(float x) {
  float whole = eq_rint(x * 1.44269504f);
  float r = eq_fma(whole, -6.93145752e-1f, x);
  r = eq_fma(whole, -1.42860677e-6f, r);
  float q = eq_fma(1.394994906e-03f, r, 8.368876763e-03f);
  q = eq_fma(q, r, 4.166621715e-02f);
  q = eq_fma(q, r, 1.666651964e-01f);
  q = eq_fma(q, r, 0.5f);
  return (1.0f + eq_fma(q, r * r, r)) * eq_power_of_two((int32_t)whole);
}

EQ_INLINE float eq_exp(float x) {
  float y = x < -104.0f ? -104.0f : x;
  y = y > 89.0f ? 89.0f : y;
  float whole = eq_rint(y * 1.44269504f);
  float r = eq_fma(whole, -6.93145752e-1f, y);
  r = eq_fma(whole, -1.42860677e-6f, r);
  float q = eq_fma(1.394994906e-03f, r, 8.368876763e-03f);
  q = eq_fma(q, r, 4.166621715e-02f);
  q = eq_fma(q, r, 1.666651964e-01f);
  q = eq_fma(q, r, 0.5f);
  int32_t n = (int32_t)whole;
  int32_t part = n >> 1;  // two steps: the whole scale may leave the normal range
  float result = (1.0f + eq_fma(q, r * r, r)) * eq_power_of_two(part);
  return result * eq_power_of_two(n - part);
}

EQ_INLINE float eq_exp2(float x) {
  float y = x < -151.0f ? -151.0f : x;
  y = y > 129.0f ? 129.0f : y;
  float whole = eq_rint(y);
  float r = y - whole;
  float q = eq_fma(1.547585416e-04f, r, 1.340030343e-03f);
  q = eq_fma(q, r, 9.618005715e-03f);
  q = eq_fma(q, r, 5.550327525e-02f);
  q = eq_fma(q, r, 2.402265072e-01f);
  q = eq_fma(q, r, 6.931471825e-01f);
  int32_t n = (int32_t)whole;
  int32_t part = n >> 1;
  return eq_fma(q, r, 1.0f) * eq_power_of_two(part) * eq_power_of_two(n - part);
}

EQ_INLINE float eq_expm1(float x) {
  float y = x < -20.0f ? -20.0f : x;
  y = y > 89.0f ? 89.0f : y;
  eq_exp_parts p = eq_exp_split(y);
  int32_t part = p.n >> 1;
  float low = eq_power_of_two(part), high = eq_power_of_two(p.n - part);
  float scale = low * high;  // inf for n = 128, taken apart below
  float m = eq_fma(p.q, p.r * p.r, p.r);
  float usual = eq_fma(scale, m, scale - 1.0f);
  float result = p.n >= 127 ? (1.0f + m) * low * high : usual;
  return x == 0.0f ? x : result;
}

// log(x) = e log 2 + (f - f^2 / 2 + f^3 q)
struct eq_log_parts {
  float e, f, cubic;
};

EQ_INLINE eq_log_parts eq_log_split(float x) {
  bool tiny = x < 1.17549435e-38f;
  float y = tiny ? x * 8388608.0f : x;
  uint32_t u = eq_bits(y) - 0x3f3504f3u;
  float e = (float)((int32_t)u >> 23) - (tiny ? 23.0f : 0.0f);
  float f = eq_float((u & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
  float q = eq_fma(6.916005909e-02f, f, -1.178890988e-01f);
  q = eq_fma(q, f, 1.187220290e-01f);
  q = eq_fma(q, f, -1.238447428e-01f);
  q = eq_fma(q, f, 1.421878934e-01f);
  q = eq_fma(q, f, -1.666924655e-01f);
  q = eq_fma(q, f, 2.000221908e-01f);
  q = eq_fma(q, f, -2.499998659e-01f);
  q = eq_fma(q, f, 3.333331048e-01f);
  return {e, f, q * f * f * f};
}

EQ_INLINE float eq_log_special(float x, float result) {
  result = x == EQ_INF ? x : result;
  result = x == 0.0f ? -EQ_INF : result;
  return (x < 0.0f) | (x != x) ? EQ_NAN : result;
}

EQ_INLINE float eq_log(float x) {
  eq_log_parts p = eq_log_split(x);
  float tail = eq_fma(p.e, -2.12194440e-4f, p.cubic);
  tail = eq_fma(-0.5f * p.f, p.f, tail);
  return eq_log_special(x, eq_fma(p.e, 6.93359375e-1f, p.f + tail));
}

EQ_INLINE double eq_log2_wide(double m_minus_one, double m_plus_one) {
  double s = m_minus_one / m_plus_one, t = s * s;
  double q = eq_fma(2.82912046572809162e-01, t, 3.19904838297594585e-01);
  q = eq_fma(q, t, 4.12209274031565875e-01);
  q = eq_fma(q, t, 5.77077942144214817e-01);
  q = eq_fma(q, t, 9.61796694114095518e-01);
  return s * eq_fma(q, t, 2.88539008177784950e+00);
}

// log2 of x > 0 with about 40 correct bits
EQ_INLINE double eq_log2_double(float x) {
  uint64_t u = eq_bits((double)x) - 0x3fe6a09e667f3bcdull;
  double e = (double)((int32_t)(u >> 32) >> 20);
  double m = eq_double((u & 0x000fffffffffffffull) + 0x3fe6a09e667f3bcdull);
  return e + eq_log2_wide(m - 1.0, m + 1.0);
}

// 2**x for -1000 < x < 1000 with about 40 correct bits
EQ_INLINE double eq_exp2_double(double x) {
  double whole = eq_rint(x), r = x - whole;
  double q = eq_fma(1.32639681610191014e-06, r, 1.53101022004832252e-05);
  q = eq_fma(q, r, 1.54034121238294736e-04);
  q = eq_fma(q, r, 1.33333450482200747e-03);
  q = eq_fma(q, r, 9.61812922773319125e-03);
  q = eq_fma(q, r, 5.55041094129561374e-02);
  q = eq_fma(q, r, 2.40226506954715063e-01);
  q = eq_fma(q, r, 6.93147180545911845e-01);
  q = eq_fma(q, r, 1.0);
  return q * eq_double((uint64_t)((int64_t)(int32_t)whole + 1023) << 52);
}

EQ_INLINE float eq_log2(float x) { return eq_log_special(x, (float)eq_log2_double(x)); }
EQ_INLINE float eq_log10(float x) {
  return eq_log_special(x, (float)(eq_log2_double(x) * 0.30102999566398119521));
}

EQ_INLINE float eq_log1p(float x) {
  float u = 1.0f + x;
  float lost = (x - (u - 1.0f)) / u;  // what rounding 1 + x took away
  float result = eq_log(u) + (eq_abs(x) < EQ_INF ? lost : 0.0f);
  result = u == 0.0f ? -EQ_INF : result;
  return eq_abs(x) < 1e-8f ? x : result;
}

EQ_INLINE float eq_tanh(float x) {
  float a = eq_abs(x), t = x * x;
  float q = eq_fma(-5.721734371e-03f, t, 2.065529674e-02f);
  q = eq_fma(q, t, -5.374516547e-02f);
  q = eq_fma(q, t, 1.333151609e-01f);
  q = eq_fma(q, t, -3.333328366e-01f);
  float small = eq_fma(q * t, x, x);
  float b = a > 10.0f ? 10.0f : a;
  float large = 1.0f - 2.0f / (eq_exp_middle(2.0f * b) + 1.0f);
  return eq_copysign(a < 0.625f ? small : large, x);
}

EQ_INLINE float eq_erf(float x) {
  float a = eq_abs(x), t = x * x;
  float q = eq_fma(7.889010158e-05f, t, -8.020805544e-04f);
  q = eq_fma(q, t, 5.189531017e-03f);
  q = eq_fma(q, t, -2.685444243e-02f);
  q = eq_fma(q, t, 1.128360033e-01f);
  q = eq_fma(q, t, -3.761262596e-01f);
  q = eq_fma(q, t, 1.283791661e-01f);
  float small = eq_fma(q, x, x);
  float y = (a > 4.0f ? 4.0f : a) - 2.5f;
  float p = eq_fma(8.596067346e-06f, y, -2.129920722e-05f);
  p = eq_fma(p, y, -5.871587200e-05f);
  p = eq_fma(p, y, 2.802539093e-04f);
  p = eq_fma(p, y, -2.935850935e-04f);
  p = eq_fma(p, y, -5.729148979e-04f);
  p = eq_fma(p, y, 2.825379837e-03f);
  p = eq_fma(p, y, -6.101185456e-03f);
  p = eq_fma(p, y, 8.612047881e-03f);
  p = eq_fma(p, y, -8.353904821e-03f);
  p = eq_fma(p, y, 5.447185598e-03f);
  p = eq_fma(p, y, -2.178021008e-03f);
  p = eq_fma(p, y, 4.069179122e-04f);
  float large = a > 3.92f ? 1.0f : 1.0f - p;  // exactly, as x * (1 + erf) of large x needs
  return eq_copysign(a < 1.0f ? small : large, x);
}

EQ_INLINE float eq_sigmoid(float x) { return 1.0f / (1.0f + eq_exp(-x)); }

// Sine (turn 0) and cosine (turn 1) up to this size; the reduction is exact through fma.
#ifdef __FP_FAST_FMAF
#define EQ_CIRCLE_END 30000.0f
#else
#define EQ_CIRCLE_END 0.0f
#endif

EQ_INLINE float eq_circle(float x, int32_t turn) {
  float whole = eq_rint(x * 0.636619772f);
  float r = eq_fma(whole, -1.57079637e+00f, x);
  r = eq_fma(whole, 4.37113883e-08f, r);
  r = eq_fma(whole, 1.71512451e-15f, r);
  float t = r * r;
  float s = eq_fma(2.718163159e-06f, t, -1.983932016e-04f);
  s = eq_fma(s, t, 8.333329111e-03f);
  s = eq_fma(s, t, -1.666666716e-01f);
  s = eq_fma(s * t, r, r);
  float c = eq_fma(2.443784251e-05f, t, -1.388736418e-03f);
  c = eq_fma(c, t, 4.166664556e-02f);
  c = eq_fma(c, t * t, eq_fma(-0.5f, t, 1.0f));
  uint32_t quadrant = (uint32_t)((int32_t)whole + turn);
  float value = quadrant & 1u ? c : s;
  return eq_float(eq_bits(value) ^ ((quadrant & 2u) << 30));
}

// Out of line, so that the loop around stays vectorised: lanes far out go to libm one by one.
#pragma omp declare simd notinbranch
static __attribute__((noinline)) float eq_sin_far(float x, float near) {
  return eq_abs(x) <= EQ_CIRCLE_END ? near : __builtin_sinf(x);
}
#pragma omp declare simd notinbranch
static __attribute__((noinline)) float eq_cos_far(float x, float near) {
  return eq_abs(x) <= EQ_CIRCLE_END ? near : __builtin_cosf(x);
}

EQ_INLINE float eq_sin(float x) {
  float result = eq_circle(x, 0);
  return eq_sin_far(x, x == 0.0f ? x : result);
}
EQ_INLINE float eq_cos(float x) { return eq_cos_far(x, eq_circle(x, 1)); }

EQ_INLINE float eq_pow(float x, float y) {
  float a = eq_abs(x), b = eq_abs(y);
  double power = (double)y * eq_log2_double(a);
  power = power < -300.0 ? -300.0 : power;
  power = power > 300.0 ? 300.0 : power;
  float result = (float)eq_exp2_double(power);
  bool whole = eq_floor(y) == y;
  bool odd = whole & (eq_floor(y * 0.5f) * 2.0f != y) & (b < 16777216.0f);
  float low = y < 0.0f ? EQ_INF : 0.0f, high = y < 0.0f ? 0.0f : EQ_INF;
  result = a == 0.0f ? low : result;
  result = a == EQ_INF ? high : result;
  float wide = (a > 1.0f) == (y > 0.0f) ? EQ_INF : 0.0f;
  result = b == EQ_INF ? (a == 1.0f ? 1.0f : wide) : result;
  result = eq_signbit(x) & odd ? -result : result;
  result = (x < 0.0f) & (a < EQ_INF) & (b < EQ_INF) & !whole ? EQ_NAN : result;
  result = (x != x) | (y != y) ? EQ_NAN : result;
  return (y == 0.0f) | (x == 1.0f) ? 1.0f : result;
}

// ---- everything else: libm ----

#define EQ_LIBM(name)                                                       \
  EQ_INLINE float eq_##name(float x) { return __builtin_##name##f(x); }     \
  EQ_INLINE double eq_##name(double x) { return __builtin_##name(x); }
#define EQ_LIBM_DOUBLE(name) \
  EQ_INLINE double eq_##name(double x) { return __builtin_##name(x); }
#define EQ_LIBM_TWO(name)                                                              \
  EQ_INLINE float eq_##name(float x, float y) { return __builtin_##name##f(x, y); }    \
  EQ_INLINE double eq_##name(double x, double y) { return __builtin_##name(x, y); }

EQ_LIBM_DOUBLE(exp)
EQ_LIBM_DOUBLE(exp2)
EQ_LIBM_DOUBLE(expm1)
EQ_LIBM_DOUBLE(log)
EQ_LIBM_DOUBLE(log2)
EQ_LIBM_DOUBLE(log10)
EQ_LIBM_DOUBLE(log1p)
EQ_LIBM_DOUBLE(sin)
EQ_LIBM_DOUBLE(cos)
EQ_LIBM_DOUBLE(tanh)
EQ_LIBM_DOUBLE(erf)
EQ_LIBM(sqrt)
EQ_LIBM(ceil)
EQ_LIBM(trunc)
EQ_LIBM(tan)
EQ_LIBM(asin)
EQ_LIBM(acos)
EQ_LIBM(atan)
EQ_LIBM(sinh)
EQ_LIBM(cosh)
EQ_LIBM(asinh)
EQ_LIBM(acosh)
EQ_LIBM(atanh)
EQ_LIBM(erfc)
EQ_LIBM(lgamma)
EQ_LIBM_TWO(atan2)
EQ_LIBM_TWO(hypot)
EQ_LIBM_TWO(nextafter)
EQ_INLINE double eq_pow(double x, double y) { return __builtin_pow(x, y); }
EQ_INLINE double eq_sigmoid(double x) { return 1.0 / (1.0 + __builtin_exp(-x)); }

static inline double eq_digamma(double x) {
  const double pi = 3.14159265358979323846;
  if (x == 0) return __builtin_copysign((double)EQ_INF, -x);
  if (x < 0) {
    if (x == __builtin_trunc(x)) return EQ_NAN;
    double part = x - __builtin_trunc(x);
    return eq_digamma(1 - x) - pi / __builtin_tan(pi * part);
  }
  double result = 0;
  while (x < 10) {
    result -= 1 / x;
    x += 1;
  }
  double t = 1 / (x * x);
  double series =
      t * (1.0 / 12 -
           t * (1.0 / 120 -
                t * (1.0 / 252 - t * (1.0 / 240 -
                       t * (1.0 / 132 - t * (691.0 / 32760 - t / 12))))));
  return result + __builtin_log(x) - 0.5 / x - (x < 1e17 ? series : 0);
}
static inline float eq_digamma(float x) { return (float)eq_digamma((double)x); }

static inline double eq_erfinv(double y) {
  double a = __builtin_fabs(y);
  if (!(a <= 1)) return EQ_NAN;
  if (a == 1) return __builtin_copysign((double)EQ_INF, y);
  if (a < 1e-10) return y * 0.88622692545275801365;
  double c = 0.147, l = __builtin_log1p(-a * a);
  double k = 2 / (3.14159265358979323846 * c) + l / 2;
  double x = __builtin_sqrt(__builtin_sqrt(k * k - l / c) - k);
  for (int step = 0; step < 4; step++) {  // Halley's iteration on erf(x) = a
    double miss = a > 0.5 ? (1 - a) - __builtin_erfc(x) : __builtin_erf(x) - a;
    double slope = miss / (1.12837916709551257390 * __builtin_exp(-x * x));
    x -= slope / (1 + x * slope);
  }
  return __builtin_copysign(x, y);
}
static inline float eq_erfinv(float y) { return (float)eq_erfinv((double)y); }
