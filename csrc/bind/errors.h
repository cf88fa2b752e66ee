// Errors of check.h become Python's of the same name.
#pragma once

#include <pybind11/pybind11.h>

#include <exception>

#include "../base/check.h"

namespace tegula {

// For a translator of pybind11, which asks others about what it does not catch.
inline void translate(std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const ValueError& e) {
    PyErr_SetString(PyExc_ValueError, e.what());
  } catch (const TypeError& e) {
    PyErr_SetString(PyExc_TypeError, e.what());
  } catch (const IndexError& e) {
    PyErr_SetString(PyExc_IndexError, e.what());
  }
}

}  // namespace tegula
