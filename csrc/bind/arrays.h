// NumPy arrays and torch tensors become Views, and Views NumPy arrays.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

#include <bit>
#include <memory>
#include <vector>

#include "../base/check.h"
#include "../base/view.h"

namespace tegula {

namespace py = pybind11;

// The GIL is free while this lives. When the interpreter shuts down meanwhile, taking it back
// would unwind a daemon thread through destructors and abort the process; the thread stops
// here for good instead.
class GilRelease {
 public:
  GilRelease() : state_(PyEval_SaveThread()) {}
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;
  ~GilRelease() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      for (;;) pause();
    }
  }

 private:
  PyThreadState* state_;
};

// The arrays of one call. Views point into them, so an Arrays outlives its Views and
// is destroyed with the GIL held.
class Arrays {
 public:
  // Any strides, read-only too. Big-endian and misaligned arrays, which no kernel
  // reads, are copied. TypeError unless `array` is an ndarray or a tensor of a known dtype,
  // and of the same kind as the arrays before it.
  View input(py::handle array, const char* name);
  // None gives an empty View.
  View optional_input(py::handle array, const char* name) {
    return array.is_none() ? View{} : input(array, name);
  }
  // A writable array of exactly this dtype and shape, whatever its strides, that shares no
  // memory with the inputs taken so far: those are never written to.
  View output(py::handle array, const char* name, DType dtype, const std::vector<int64_t>& shape);

 private:
  struct Taken {
    View view;
    const char* name;
  };
  void check_kind(py::handle array, const char* name);
  // ValueError when elements of `view` overlap each other or what was taken before.
  void add_output(const View& view, const char* name);
  void check_overlap(const View& view, const char* name) const;

  py::handle first_;  // what the others have to be like
  const char* first_name_ = nullptr;

  std::vector<Taken> views_;
  std::vector<py::object> copies_;
};

bool aligned(const View& view);

// TypeError or ValueError unless a result of this dtype and shape can be written to the view.
void check_result(const View& view, const char* name, DType dtype,
                  const std::vector<int64_t>& shape);

// The strides of torch.empty_like(model): those of `model` where they leave no gaps, or else its
// axes in their order in memory.
void set_strides_like(View& view, const View& model);

// A view whose axes of size 1 repeat, so that it has the first `rank` sizes of `sizes`.
// TypeError or ValueError when it has another dtype or does not fit.
View spread(View view, const char* name, DType dtype, int rank, const View& sizes);

// dtype: one of the floats or int32; `like` supplies NumPy's descriptor for bfloat16.
py::array new_array(DType dtype, const std::vector<int64_t>& shape, py::handle like = {});
// Large ones lie in memory of the result pool. `zeros`: whether it holds nothing but zeros.
py::array new_array(const py::dtype& dtype, const std::vector<int64_t>& shape,
                    bool* zeros = nullptr);
View view_of(const py::array& array, DType dtype);

// A fresh array or tensor, of the kind of `like`.
struct Result {
  py::object array;
  View view;
};
Result new_result(py::handle like, DType dtype, const std::vector<int64_t>& shape);
// Of the shape and dtype of `model`, the View of `like`. A tensor's axes lie in memory as the
// model's.
Result new_result_like(py::handle like, const View& model);

// Dtype, shape and memory of an array or a tensor, and strides where they are whole elements:
// for looking at it, before Arrays takes it. TypeError when its dtype is not a known one.
View look_at(py::handle array, const char* name);

// "float32 array of shape (2, 3)", "list", "torch.Tensor"
std::string kind_of(py::handle object);

// Registers each operation's functions; one definition in each bind/<op>.cpp.
void bind_memory(py::module_& module);
void bind_dropout(py::module_& module);
void bind_positional_encoding(py::module_& module);
void bind_embedding(py::module_& module);
void bind_mask(py::module_& module);
void bind_attention(py::module_& module);
void bind_explain(py::module_& module);

}  // namespace tegula
