// Bits, half floats, extremes, integers and the division family for the C++ kernels.
// Half floats live in `float` variables that hold representable values.
#pragma once
#include <stdint.h>

#define EQ_INLINE static inline __attribute__((always_inline))
#define EQ_INF __builtin_inff()
#define EQ_NAN __builtin_nanf("")

#ifdef __FP_FAST_FMAF
EQ_INLINE float eq_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#else
EQ_INLINE float eq_fma(float a, float b, float c) { return a * b + c; }
#endif
#ifdef __FP_FAST_FMA
EQ_INLINE double eq_fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
#else
EQ_INLINE double eq_fma(double a, double b, double c) { return a * b + c; }
#endif

EQ_INLINE uint32_t eq_bits(float x) { return __builtin_bit_cast(uint32_t, x); }
EQ_INLINE float eq_float(uint32_t bits) { return __builtin_bit_cast(float, bits); }
EQ_INLINE uint64_t eq_bits(double x) { return __builtin_bit_cast(uint64_t, x); }
EQ_INLINE double eq_double(uint64_t bits) { return __builtin_bit_cast(double, bits); }
EQ_INLINE float eq_abs(float x) { return __builtin_fabsf(x); }
EQ_INLINE double eq_abs(double x) { return __builtin_fabs(x); }
EQ_INLINE float eq_copysign(float x, float y) { return __builtin_copysignf(x, y); }
EQ_INLINE double eq_copysign(double x, double y) { return __builtin_copysign(x, y); }
EQ_INLINE bool eq_signbit(float x) { return (eq_bits(x) >> 31) != 0; }
EQ_INLINE bool eq_signbit(double x) { return (eq_bits(x) >> 63) != 0; }
EQ_INLINE bool eq_isinf(float x) { return eq_abs(x) == EQ_INF; }
EQ_INLINE bool eq_isinf(double x) { return eq_abs(x) == (double)EQ_INF; }

// ---- half floats: values are floats, memory is 16 bits ----

EQ_INLINE float eq_from_bf16(uint16_t bits) { return eq_float((uint32_t)bits << 16); }

EQ_INLINE float eq_round_bf16(float x) {
  uint32_t u = eq_bits(x);
  uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u;
  return eq_float(x != x ? 0x7fc00000u : rounded);
}

EQ_INLINE uint16_t eq_to_bf16(float x) {  // x is representable
  return (uint16_t)(eq_bits(x) >> 16);
}

EQ_INLINE uint16_t eq_pack_bf16(float x) {  // rounds and packs
  return eq_to_bf16(eq_round_bf16(x));
}

EQ_INLINE float eq_from_f16(uint16_t half) {
  // The exponent is rebased by a multiplication, which also normalises denormals.
  uint32_t magnitude = ((uint32_t)half & 0x7fffu) << 13;
  float value = eq_float(magnitude) * eq_float(0x77800000u);  // 2**112
  uint32_t special = eq_bits(value) | 0x7f800000u;
  uint32_t bits = magnitude >= 0x0f800000u ? special : eq_bits(value);
  return eq_float(bits | (((uint32_t)half & 0x8000u) << 16));
}

// The step of halves around x, times 1.5 * 2**23: adding it to |x| leaves whole steps. Exponents
// are held between that of the denormals and the first that overflows.
EQ_INLINE int32_t eq_f16_exponent(float x) {
  int32_t bits = (int32_t)(eq_bits(x) & 0x7f800000u);
  bits = bits < 0x38800000 ? 0x38800000 : bits;
  return bits > 0x47800000 ? 0x47800000 : bits;
}
#define EQ_F16_SHIFT 0x06c00000

EQ_INLINE float eq_round_f16(float x) {  // to nearest even
  float shift = eq_float((uint32_t)(eq_f16_exponent(x) + EQ_F16_SHIFT));
  float result = (eq_abs(x) + shift) - shift;
  result = result > 65504.0f ? EQ_INF : result;
  return eq_copysign(result, x);
}

EQ_INLINE uint16_t eq_pack_f16(float x) {  // rounds and packs
  int32_t exponent = eq_f16_exponent(x);
  float shifted = eq_abs(x) + eq_float((uint32_t)(exponent + EQ_F16_SHIFT));
  int32_t steps = (int32_t)eq_bits(shifted) - (exponent + EQ_F16_SHIFT);
  int32_t half = steps + ((exponent - 0x38800000) >> 13);
  half = half > 0x7c00 ? 0x7c00 : half;
  half = x != x ? 0x7e00 : half;
  return (uint16_t)((uint32_t)half | ((eq_bits(x) >> 16) & 0x8000u));
}

EQ_INLINE uint16_t eq_to_f16(float x) {  // x is representable
  uint32_t sign = (eq_bits(x) >> 16) & 0x8000u;
  float a = eq_abs(x);
  uint32_t small = eq_bits(a + 0.5f) - 0x3f000000u;
  uint32_t normal = (eq_bits(a) - 0x38000000u) >> 13;
  uint32_t result = a < 6.103515625e-05f ? small : normal;
  uint32_t special = a != a ? 0x7e00u : 0x7c00u;
  return (uint16_t)((a <= 65504.0f ? result : special) | sign);
}

// ---- minimum, maximum: nan wins ----

template <class T>
EQ_INLINE T eq_max(T a, T b) {
  T larger = a > b ? a : b;  // one test per choice: gcc gives up on `|` of two after a relu
  return a != a ? a : larger;
}
template <class T>
EQ_INLINE T eq_min(T a, T b) {
  T smaller = a < b ? a : b;
  return a != a ? a : smaller;
}
template <class T>  // the number wins over nan
EQ_INLINE T eq_fmax(T a, T b) {
  return (a >= b) | (b != b) ? a : b;
}
template <class T>
EQ_INLINE T eq_fmin(T a, T b) {
  return (a <= b) | (b != b) ? a : b;
}

// Integers in the order of the floats, nan above (max) or below (min) everything.
EQ_INLINE int32_t eq_rank(float x) {
  int32_t u = (int32_t)eq_bits(x);
  return u ^ ((u >> 31) & INT32_MAX);
}
EQ_INLINE int64_t eq_rank(double x) {
  int64_t u = (int64_t)eq_bits(x);
  return u ^ ((u >> 63) & INT64_MAX);
}
EQ_INLINE int32_t eq_rank_max(float x) { return x != x ? 0x7fc00000 : eq_rank(x); }
EQ_INLINE int64_t eq_rank_max(double x) { return x != x ? INT64_MAX : eq_rank(x); }
EQ_INLINE int32_t eq_rank_min(float x) { return x != x ? INT32_MIN : eq_rank(x); }
EQ_INLINE int64_t eq_rank_min(double x) { return x != x ? INT64_MIN : eq_rank(x); }
EQ_INLINE float eq_unrank(int32_t u) { return eq_float((uint32_t)(u ^ ((u >> 31) & INT32_MAX))); }
EQ_INLINE double eq_unrank(int64_t u) {
  return eq_double((uint64_t)(u ^ ((u >> 63) & INT64_MAX)));
}

// ---- integers ----

template <class T>
EQ_INLINE T eq_shift_left(T a, T b) {
  bool outside = (b < 0) | (b >= (T)(sizeof(T) * 8));
  return outside ? (T)0 : (T)((uint64_t)a << (outside ? 0 : (uint64_t)b));
}
template <class T>
EQ_INLINE T eq_shift_right(T a, T b) {
  const T most = (T)(sizeof(T) * 8 - ((T)-1 < (T)0));
  bool outside = (b < 0) | (b >= most);
  return (T)(a >> (outside ? most - (most == (T)(sizeof(T) * 8)) : b) >>
             (outside & (most == (T)(sizeof(T) * 8))));
}
template <class T>
EQ_INLINE T eq_floor_div_int(T a, T b) {
  T q = (T)(a / b);
  T r = (T)(a - q * b);
  return (T)(q - (T)((r != 0) & ((r < 0) != (b < 0))));
}
template <class T>
EQ_INLINE T eq_remainder_int(T a, T b) {
  T r = (T)(a % b);
  return (T)(r + (((r != 0) & ((r < 0) != (b < 0))) ? b : (T)0));
}
template <class T>
EQ_INLINE T eq_pow_int(T base, T exponent) {
  if (exponent < 0) {
    if (base == 1) return 1;
    if (base == (T)-1) return (exponent & 1) ? (T)-1 : (T)1;
    return 0;
  }
  uint64_t result = 1, square = (uint64_t)base;
  for (uint64_t left = (uint64_t)exponent; left; left >>= 1) {
    if (left & 1) result *= square;
    square *= square;
  }
  return (T)result;
}
template <class T>
EQ_INLINE T eq_gcd(T a, T b) {
  a = a < 0 ? (T)-a : a;
  b = b < 0 ? (T)-b : b;
  while (a != 0) {
    T rest = (T)(b % a);
    b = a;
    a = rest;
  }
  return b;
}

// The first two words of Philox 4x32-10 (Salmon et al., SC'11) for the counter (position, draw) and
// the key `seed`, low halves first. Words lie in 64-bit lanes, whose upper halves products ignore.
EQ_INLINE int64_t eq_random_bits(int64_t seed, int64_t draw, int64_t position) {
  uint64_t a = (uint64_t)position, b = a >> 32, c = (uint64_t)draw, d = c >> 32;
  uint32_t low = (uint32_t)seed, high = (uint32_t)((uint64_t)seed >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < 10; round++) {
    uint64_t first = (uint64_t)(uint32_t)a * 0xD2511F53u;
    uint64_t second = (uint64_t)(uint32_t)c * 0xCD9E8D57u;
    a = (second >> 32) ^ b ^ low;
    b = second;
    c = (first >> 32) ^ d ^ high;
    d = first;
    low += 0x9E3779B9u;
    high += 0xBB67AE85u;
  }
  return (int64_t)(b << 32 | (uint32_t)a);
}

// ---- float division family, as eager computes it ----

EQ_INLINE float eq_fmod(float a, float b) { return __builtin_fmodf(a, b); }
EQ_INLINE double eq_fmod(double a, double b) { return __builtin_fmod(a, b); }
EQ_INLINE float eq_floor(float x) { return __builtin_floorf(x); }
EQ_INLINE double eq_floor(double x) { return __builtin_floor(x); }

template <class T>
EQ_INLINE T eq_remainder(T a, T b) {
  T r = eq_fmod(a, b);
  return (r != 0) & ((r < 0) != (b < 0)) ? r + b : r;
}
template <class T>
EQ_INLINE T eq_floor_div(T a, T b) {
  T r = eq_fmod(a, b);
  T q = (a - r) / b;
  q = (r != 0) & ((b < 0) != (r < 0)) ? q - 1 : q;
  T whole = eq_floor(q);
  whole = q - whole > (T)0.5 ? whole + 1 : whole;
  T zero = eq_copysign((T)0, a / b);
  return b == 0 ? a / b : (q != 0 ? whole : zero);
}

template <class T>
EQ_INLINE T eq_lerp(T a, T b, T weight) {  // from the nearer end, with one rounding as eager
  bool near = eq_abs(weight) < (T)0.5;
  return eq_fma(near ? weight : weight - 1, b - a, near ? a : b);
}
