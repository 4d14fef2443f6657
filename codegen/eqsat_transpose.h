// Transposes blocks of memory: what loops over tiles do first where loads and stores run along
// different axes.
#pragma once
#include <stdint.h>

// Eight elements of 1, 2, 4 or 8 bytes, without regard to what they mean.
template <int BYTES>
struct eq_word;
template <>
struct eq_word<1> {
  typedef uint8_t lanes __attribute__((vector_size(8)));
};
template <>
struct eq_word<2> {
  typedef uint16_t lanes __attribute__((vector_size(16)));
};
template <>
struct eq_word<4> {
  typedef uint32_t lanes __attribute__((vector_size(32)));
};
template <>
struct eq_word<8> {
  typedef uint64_t lanes __attribute__((vector_size(64)));
};

// to[r][c] = from[c][r] for 8 x 8 elements. Rows of `from` are `from_step` elements apart, rows of
// `to` `to_step`. Three times, the first half of the rows is interleaved with the second half.
template <class T>
static inline __attribute__((always_inline)) void eq_transpose_block(const T *from,
                                                                     int64_t from_step, T *to,
                                                                     int64_t to_step) {
  typedef typename eq_word<sizeof(T)>::lanes lanes;
  lanes a[8], b[8];
#pragma GCC unroll 8
  for (int k = 0; k < 8; k++) __builtin_memcpy(&a[k], from + k * from_step, sizeof(lanes));
#pragma GCC unroll 3
  for (int pass = 0; pass < 3; pass++) {
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
      b[2 * k] = __builtin_shufflevector(a[k], a[k + 4], 0, 8, 1, 9, 2, 10, 3, 11);
      b[2 * k + 1] = __builtin_shufflevector(a[k], a[k + 4], 4, 12, 5, 13, 6, 14, 7, 15);
    }
#pragma GCC unroll 8
    for (int k = 0; k < 8; k++) a[k] = b[k];
  }
#pragma GCC unroll 8
  for (int k = 0; k < 8; k++) __builtin_memcpy(to + k * to_step, &a[k], sizeof(lanes));
}

// to[r][c] = from[c][r] for rows x columns elements.
template <class T>
static inline void eq_transpose(const T *from, int64_t from_step, T *to, int64_t to_step,
                                int64_t rows, int64_t columns) {
  const int64_t row_end = rows & ~(int64_t)7, column_end = columns & ~(int64_t)7;
  for (int64_t column = 0; column < column_end; column += 8) {
    for (int64_t row = 0; row < row_end; row += 8) {
      eq_transpose_block(from + column * from_step + row, from_step, to + row * to_step + column,
                         to_step);
    }
  }
  if (row_end == rows && column_end == columns) return;
  for (int64_t column = 0; column < columns; column++) {
    for (int64_t row = column < column_end ? row_end : 0; row < rows; row++) {
      to[row * to_step + column] = from[column * from_step + row];
    }
  }
}
