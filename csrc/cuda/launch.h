// The one way to start a kernel. A kernel takes one struct by value:
//
//   extern "C" __global__ void name(const __grid_constant__ SomeParams params)
//
// The name finds it; that the struct has the size the kernel was compiled with is checked when it
// is first launched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "place.h"
#include "tensor_map.h"

namespace tegula {

// Most parameter bytes of one kernel.
inline constexpr size_t kMaxParamBytes = 16384;

// Blocks of `threads` threads; none at all launches nothing. Shared bytes are dynamic ones.
struct LaunchShape {
  int64_t blocks = 0;  // along x, below 2^31
  int threads = 0;
  size_t shared_bytes = 0;
};

void launch_bytes(const Place& place, const std::string& kernel, const LaunchShape& shape,
                  const void* params, size_t bytes);

template <class Params>
void launch(const Place& place, const std::string& kernel, const LaunchShape& shape,
            const Params& params) {
  static_assert(sizeof(Params) <= kMaxParamBytes);
  launch_bytes(place, kernel, shape, &params, sizeof(Params));
}

// How the device's copy engine is told of boxes of an array.
TensorMap encode_tensor_map(const Place& place, const TensorBoxes& boxes);

// Sets device memory to zero bytes, on the stream.
void clear(const Place& place, void* data, size_t bytes);

// Parts of a workspace, one after the other, each aligned to 256 bytes. With a null base it only
// adds up, so that the same code says how much is needed and hands it out.
class Workspace {
 public:
  explicit Workspace(void* base) : base_(static_cast<char*>(base)) {}

  template <class T>
  T* take(int64_t count) {
    T* const found = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    used_ += (static_cast<size_t>(count) * sizeof(T) + 255) / 256 * 256;
    return found;
  }
  size_t bytes() const { return used_; }

 private:
  char* base_;
  size_t used_ = 0;
};

}  // namespace tegula
