/* Runs the C entry of a compiled graph from Python with little overhead.
 *
 * Takes the list of graph inputs; fills the pointer table, releases the interpreter lock
 * around the entry and gives back the list of outputs. Only Python.h is
 * needed: torch functions come in as addresses through `configure`.
 *
 * A torch.Tensor object holds its at::Tensor at a fixed offset, and an AOTI tensor handle is
 * a pointer to an at::Tensor. launch.py measures that offset when torch is loaded; where the
 * measurement fails `handle_offset` is negative and `data_ptr()` is called instead.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct Context {
  void **pointers;
  void **owned;
  void *operands;
  const int64_t *numbers;
  void *const *shims;
  int (*python)(struct Context *, int64_t step);
  void *launcher;
  void *thread;
} Context;

typedef int64_t (*Entry)(Context *);

static struct {
  PyTypeObject *tensor_type;
  PyObject *(*wrap)(const void *); /* handle -> tensor that shares it; NULL: use `steal` */
  PyObject *steal; /* list of capsules of tensor handles -> list of tensors */
  Py_ssize_t handle_offset;
  int32_t (*get_data)(void *, void **);
  int32_t (*delete_handle)(void *);
  bool (*grad_enabled)(void);
  void (*set_grad)(bool);
} torch;

static PyObject *run_step_name, *make_output_name, *data_ptr_name;

typedef struct {
  PyObject_HEAD
  Context *context;
  Entry entry;
  PyObject *instance; /* borrowed while a call runs */
  PyObject *tensors;  /* list: the tensor behind each buffer, or None */
  PyObject *inputs;   /* bytes of int64: buffer of each graph input, -1 for a number */
  PyObject *outputs;  /* bytes of int64: buffer, -1 constant, -2 made by the instance */
  PyObject *values;   /* tuple: the constants among the outputs */
  PyObject *passing;  /* bytes of int64: buffers whose tensor is dropped after a call */
} Launch;

static inline const int64_t *numbers_of(PyObject *bytes) {
  return (const int64_t *)PyBytes_AS_STRING(bytes);
}

static inline Py_ssize_t count_of(PyObject *bytes) {
  return PyBytes_GET_SIZE(bytes) / (Py_ssize_t)sizeof(int64_t);
}

static int data_address(PyObject *tensor, void **address) {
  if (torch.handle_offset >= 0 && torch.get_data) {
    if (!torch.get_data((char *)tensor + torch.handle_offset, address)) return 0;
    PyErr_SetString(PyExc_RuntimeError, "eqsat: a graph input has no memory of its own");
    return -1;
  }
  PyObject *number = PyObject_CallMethodNoArgs(tensor, data_ptr_name);
  if (!number) return -1;
  *address = PyLong_AsVoidPtr(number);
  Py_DECREF(number);
  return PyErr_Occurred() ? -1 : 0;
}

static int place(Launch *self, int64_t slot, PyObject *tensor) {
  if (tensor == Py_None) { /* an effect token */
    self->context->pointers[slot] = NULL;
    return 0;
  }
  if (!PyObject_TypeCheck(tensor, torch.tensor_type)) {
    PyErr_Format(PyExc_TypeError, "eqsat: expected a tensor as graph input, got %s",
                 Py_TYPE(tensor)->tp_name);
    return -1;
  }
  if (data_address(tensor, &self->context->pointers[slot])) return -1;
  return PyList_SetItem(self->tensors, slot, Py_NewRef(tensor));
}

static int take_inputs(Launch *self, PyObject *inputs) {
  const int64_t *slots = numbers_of(self->inputs);
  Py_ssize_t count = count_of(self->inputs);
  if (!PyList_CheckExact(inputs) || PyList_GET_SIZE(inputs) != count) {
    PyErr_Format(PyExc_TypeError, "eqsat: expected one list of %zd graph inputs", count);
    return -1;
  }
  for (Py_ssize_t i = 0; i < count; i++) {
    if (slots[i] >= 0 && place(self, slots[i], PyList_GET_ITEM(inputs, i))) return -1;
  }
  return PyList_SetSlice(inputs, 0, count, NULL);
}

/* Called by the entry without the interpreter lock. */
static int run_step(Context *context, int64_t step) {
  Launch *self = context->launcher;
  PyEval_RestoreThread(context->thread);
  PyObject *number = PyLong_FromLongLong(step);
  PyObject *done =
      number ? PyObject_CallMethodOneArg(self->instance, run_step_name, number) : NULL;
  Py_XDECREF(number);
  Py_XDECREF(done);
  context->thread = PyEval_SaveThread();
  return done == NULL;
}

static PyObject *take_over(void **owned) {
  PyObject *capsule = PyCapsule_New(*owned, NULL, NULL);
  PyObject *list = capsule ? PyList_New(1) : NULL;
  if (!list) {
    Py_XDECREF(capsule);
    return NULL;
  }
  PyList_SET_ITEM(list, 0, capsule);
  *owned = NULL; /* the tensor deletes the handle */
  PyObject *made = PyObject_CallOneArg(torch.steal, list);
  Py_DECREF(list);
  PyObject *tensor = made ? PySequence_GetItem(made, 0) : NULL;
  Py_XDECREF(made);
  return tensor;
}

static PyObject *tensor_of(Launch *self, int64_t slot) {
  PyObject *tensor = PyList_GET_ITEM(self->tensors, slot);
  if (tensor != Py_None) return Py_NewRef(tensor);
  void **owned = &self->context->owned[slot];
  if (!*owned) return Py_NewRef(Py_None); /* an effect token */
  PyObject *made = torch.wrap ? torch.wrap(*owned) : take_over(owned);
  if (made) PyList_SetItem(self->tensors, slot, Py_NewRef(made));
  return made;
}

static PyObject *make_output(Launch *self, Py_ssize_t position) {
  PyObject *number = PyLong_FromSsize_t(position);
  if (!number) return NULL;
  PyObject *made = PyObject_CallMethodOneArg(self->instance, make_output_name, number);
  Py_DECREF(number);
  return made;
}

static PyObject *collect(Launch *self) {
  const int64_t *slots = numbers_of(self->outputs);
  Py_ssize_t count = count_of(self->outputs);
  PyObject *list = PyList_New(count);
  for (Py_ssize_t i = 0; list && i < count; i++) {
    PyObject *value = slots[i] >= 0    ? tensor_of(self, slots[i])
                      : slots[i] == -1 ? Py_NewRef(PyTuple_GET_ITEM(self->values, i))
                                       : make_output(self, i);
    if (!value) {
      Py_CLEAR(list);
      break;
    }
    PyList_SET_ITEM(list, i, value);
  }
  return list;
}

static void forget(Launch *self) {
  const int64_t *slots = numbers_of(self->passing);
  for (Py_ssize_t i = 0; i < count_of(self->passing); i++) {
    void **owned = &self->context->owned[slots[i]];
    if (*owned) torch.delete_handle(*owned);
    *owned = NULL;
    PyList_SetItem(self->tensors, slots[i], Py_NewRef(Py_None));
  }
}

static PyObject *run(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
  if (count != 3) return PyErr_Format(PyExc_TypeError, "run(launch, instance, inputs)");
  Launch *self = (Launch *)arguments[0];
  Context *context = self->context;
  PyObject *list = NULL;
  bool grad = torch.grad_enabled();
  if (grad) torch.set_grad(false);
  self->instance = arguments[1];
  if (!take_inputs(self, arguments[2])) {
    context->thread = PyEval_SaveThread();
    int64_t failed = self->entry(context);
    PyEval_RestoreThread(context->thread);
    if (!failed) list = collect(self);
    if (failed < 0 && !PyErr_Occurred())
      PyErr_Format(PyExc_RuntimeError, "eqsat: a kernel could not be launched (CUDA %lld)",
                   (long long)-failed);
    if (failed && !PyErr_Occurred()) PyErr_NoMemory(); /* an output could not be allocated */
  }
  PyObject *type, *value, *trace; /* dropping tensors may run code: keep the exception safe */
  PyErr_Fetch(&type, &value, &trace);
  forget(self);
  PyErr_Restore(type, value, trace);
  self->instance = NULL;
  if (grad) torch.set_grad(true);
  return list;
}

static PyObject *launch_new(PyTypeObject *type, PyObject *arguments, PyObject *names) {
  unsigned long long context, entry;
  PyObject *tensors, *inputs, *outputs, *values, *passing;
  if (!PyArg_ParseTuple(arguments, "KKO!SSO!S", &context, &entry, &PyList_Type, &tensors,
                        &inputs, &outputs, &PyTuple_Type, &values, &passing))
    return NULL;
  Launch *self = (Launch *)type->tp_alloc(type, 0);
  if (!self) return NULL;
  self->context = (Context *)(uintptr_t)context;
  self->entry = (Entry)(uintptr_t)entry;
  self->context->python = run_step;
  self->context->launcher = self;
  self->tensors = Py_NewRef(tensors);
  self->inputs = Py_NewRef(inputs);
  self->outputs = Py_NewRef(outputs);
  self->values = Py_NewRef(values);
  self->passing = Py_NewRef(passing);
  return (PyObject *)self;
}

static void launch_free(Launch *self) {
  Py_XDECREF(self->tensors);
  Py_XDECREF(self->inputs);
  Py_XDECREF(self->outputs);
  Py_XDECREF(self->values);
  Py_XDECREF(self->passing);
  Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyTypeObject LaunchType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "eqsat_launch.Launch",
    .tp_basicsize = sizeof(Launch),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = launch_new,
    .tp_dealloc = (destructor)launch_free,
};

static PyObject *configure(PyObject *module, PyObject *arguments) {
  PyObject *type, *steal;
  unsigned long long wrap, get_data, delete_handle, grad_enabled, set_grad;
  if (!PyArg_ParseTuple(arguments, "O!OnKKKKK", &PyType_Type, &type, &steal,
                        &torch.handle_offset, &wrap, &get_data, &delete_handle, &grad_enabled,
                        &set_grad))
    return NULL;
  torch.tensor_type = (PyTypeObject *)Py_NewRef(type);
  torch.steal = Py_NewRef(steal);
  torch.wrap = (PyObject * (*)(const void *))(uintptr_t) wrap;
  torch.get_data = (int32_t (*)(void *, void **))(uintptr_t)get_data;
  torch.delete_handle = (int32_t (*)(void *))(uintptr_t)delete_handle;
  torch.grad_enabled = (bool (*)(void))(uintptr_t)grad_enabled;
  torch.set_grad = (void (*)(bool))(uintptr_t)set_grad;
  Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"configure", configure, METH_VARARGS, "Hand in what is needed from torch."},
    {"run", (PyCFunction)(void (*)(void))run, METH_FASTCALL, "run(launch, instance, inputs)"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "eqsat_launch", .m_size = -1, .m_methods = methods};

PyMODINIT_FUNC PyInit_eqsat_launch(void) {
  run_step_name = PyUnicode_InternFromString("run_step");
  make_output_name = PyUnicode_InternFromString("make_output");
  data_ptr_name = PyUnicode_InternFromString("data_ptr");
  if (!run_step_name || !make_output_name || !data_ptr_name) return NULL;
  if (PyType_Ready(&LaunchType)) return NULL;
  PyObject *module = PyModule_Create(&definition);
  if (module && PyModule_AddObjectRef(module, "Launch", (PyObject *)&LaunchType)) {
    Py_CLEAR(module);
  }
  return module;
}
