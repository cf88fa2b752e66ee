// Arrays of a GPU become Views: torch tensors, and arrays of any library that speaks DLPack. This
// implements arrays.h for the module tegula._cuda.
#pragma once

#include "../../cuda/place.h"
#include "../arrays.h"

namespace tegula {

// Where a call on `like`, an array that Arrays took, runs: on its device, and on the stream that
// its library works on. Kernels are loaded.
Place place_of(py::handle like);

// Device memory that lives as long as this, from the library of `like`. The GIL is held.
class Scratch {
 public:
  Scratch(py::handle like, size_t bytes);
  void* data() const { return data_; }

 private:
  py::object held_;
  void* data_ = nullptr;
};

// IndexError for what kernels found, if something: see take_id_fault.
void raise_id_fault(int device);  // in a call before this one
void raise_id_fault_of_this_call(int device);

}  // namespace tegula
