// Errors that the bindings turn into the Python exception of the same name.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

#include "view.h"

namespace tegula {

struct ValueError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct TypeError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct IndexError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// A tensor that is not plain memory of this machine's processor. torch's dispatcher may still know
// what to do with it.
struct NotPlainError : TypeError {
  using TypeError::TypeError;
};

// message("k has ", 3, " heads") -> "k has 3 heads"
template <class... Parts>
std::string message(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

inline std::string shape_text(const View& view) {
  std::ostringstream text;
  text << '(';
  for (int i = 0; i < view.rank; ++i) text << (i ? ", " : "") << view.shape[i];
  text << (view.rank == 1 ? ",)" : ")");
  return text.str();
}

}  // namespace tegula
