// What the entry of a compiled graph needs besides its own steps. No torch header: every
// torch function comes in through Context.shims, resolved when the graph is loaded.
#pragma once
#include <stdint.h>

// A strided tensor over one buffer, made from its address when first used and kept until the
// buffer moves. numbers[geometry..] holds the sizes, then the strides, both `rank` long.
struct Operand {
  void *handle;
  void *built_for;
  int64_t buffer, dtype, rank, geometry, offset, place;
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

// Operand.place: the number of a CUDA device, or CPU.
static const int64_t CPU = -1;

static inline int32_t device_type(int64_t place) { return place == CPU ? 0 : 1; }
static inline int32_t device_number(int64_t place) { return place == CPU ? 0 : (int32_t)place; }

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
           (int32_t)o->dtype, device_type(o->place), device_number(o->place), &made)) {
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
  return call(c->shims[EMPTY], o->rank, sizes, sizes + o->rank, (int32_t)o->dtype,
              device_type(o->place), device_number(o->place), place) ||
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
    difference = call(c->shims[EMPTY], o->rank, sizes, sizes + o->rank, (int32_t)o->dtype,
                      device_type(o->place), device_number(o->place), &copy) ||
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

// A kernel for CUDA memory: c->shims[slot] is for pointers that are multiples of 16, the one after
// it for any. It is compiled when it is first needed; `python` puts it in its place.
static inline void *variant(Context *c, int64_t slot, uintptr_t pointers) {
  if (!(pointers & 15)) return c->shims[slot];
  if (!c->shims[slot + 1] && c->python(c, INT64_MIN + slot + 1)) return nullptr;
  return c->shims[slot + 1];
}

// 0, or the driver's error code.
static inline int launch(void *launcher, void *function, int64_t programs, unsigned threads,
                         unsigned shared, void *stream, void **arguments) {
  if (programs <= 0) return 0;
  return call(launcher, function, (unsigned)programs, 1u, 1u, threads, 1u, 1u, shared, stream,
              arguments, (void **)nullptr);
}
