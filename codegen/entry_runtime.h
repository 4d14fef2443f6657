// What the entry of a compiled graph needs besides its own steps. No torch header: every
// torch function comes in through Context.shims, resolved when the graph is loaded.
#pragma once
#include <stdint.h>

// A strided tensor over one buffer, made from its address when first used and kept until the
// buffer moves. numbers[geometry..] holds the sizes, then the strides, both `rank` long.
struct Operand {
  void *handle;
  void *built_for;
  int64_t buffer, dtype, rank, geometry, offset;
};

// The state of one instance; launch.c and launch.py know this layout.
struct Context {
  void **pointers;         // address of each buffer
  void **owned;            // tensor handles that shim calls returned, one place per buffer
  Operand *operands;
  const int64_t *numbers;
  void *const *shims;
  int (*python)(Context *, int64_t step);  // non-zero: a Python exception is set
  void *launcher;
  void *thread;
};

enum { BLOB, DELETE, DATA, RANK, SIZES, STRIDES, EMPTY, COPY };

static const int32_t CPU = 0, DEVICE = 0;

// Calls a C function whose parameter types are those of the arguments; 0 is success.
template <class... Arguments>
static inline int32_t call(void *function, Arguments... arguments) {
  return ((int32_t (*)(Arguments...))function)(arguments...);
}

static void drop(Context *c, void **handle) {
  if (*handle) call(c->shims[DELETE], *handle);
  *handle = nullptr;
}

static __attribute__((noinline)) void *rebuild(Context *c, Operand *o, void *address) {
  drop(c, &o->handle);
  const int64_t *sizes = c->numbers + o->geometry;
  void *made = nullptr;
  if (call(c->shims[BLOB], address, o->rank, sizes, sizes + o->rank, c->numbers[o->offset],
           (int32_t)o->dtype, CPU, DEVICE, &made)) {
    return nullptr;
  }
  o->built_for = address;
  return o->handle = made;
}

static inline void *operand(Context *c, int64_t index) {
  Operand *o = c->operands + index;
  void *address = c->pointers[o->buffer];
  return o->handle && o->built_for == address ? o->handle : rebuild(c, o, address);
}

// Allocates the memory of an output buffer, given by the operand over all of it.
static __attribute__((noinline)) int allocate(Context *c, int64_t index) {
  const Operand *o = c->operands + index;
  const int64_t *sizes = c->numbers + o->geometry;
  void **place = &c->owned[o->buffer];
  return call(c->shims[EMPTY], o->rank, sizes, sizes + o->rank, (int32_t)o->dtype, CPU, DEVICE,
              place) ||
         call(c->shims[DATA], *place, &c->pointers[o->buffer]);
}

// 0: the layout is as expected; 1: the same shape with other strides; 2: another shape.
static int compare(Context *c, const Operand *o, void *result) {
  int64_t rank = 0, *sizes = nullptr, *strides = nullptr;
  if (call(c->shims[RANK], result, &rank) || rank != o->rank) return 2;
  if (call(c->shims[SIZES], result, &sizes)) return 2;
  if (call(c->shims[STRIDES], result, &strides)) return 2;
  const int64_t *wanted = c->numbers + o->geometry;
  bool moved = false, empty = false;
  for (int64_t d = 0; d < rank; d++) {
    if (sizes[d] != wanted[d]) return 2;
    empty |= sizes[d] == 0;
    moved |= sizes[d] != 1 && strides[d] != wanted[rank + d];
  }
  return moved && !empty;
}

// Takes over `result` as the memory of the operand's buffer; non-zero where it does not fit.
static __attribute__((noinline)) int adopt(Context *c, int64_t index, void *result) {
  const Operand *o = c->operands + index;
  int difference = compare(c, o, result);
  if (difference == 1) {
    const int64_t *sizes = c->numbers + o->geometry;
    void *copy = nullptr;
    difference = call(c->shims[EMPTY], o->rank, sizes, sizes + o->rank, (int32_t)o->dtype, CPU,
                      DEVICE, &copy) ||
                 call(c->shims[COPY], copy, result, (int32_t)0);
    drop(c, &result);
    result = copy;
  }
  if (difference == 0) {
    drop(c, &c->owned[o->buffer]);
    c->owned[o->buffer] = result;
    return call(c->shims[DATA], result, &c->pointers[o->buffer]);
  }
  drop(c, &result);
  return 1;
}
