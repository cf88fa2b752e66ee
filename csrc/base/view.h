// A strided array that somebody else owns: the only form in which data reaches
// a kernel. Plain data, so that a CUDA kernel can take it by value.
//
// A call makes and copies dozens of views. So only the axes that a view has are ever set or copied:
// its entries from `rank` on hold nothing.
#pragma once

#include <cstdint>

#include "dtype.h"
#include "macros.h"

namespace tegula {

inline constexpr int kMaxRank = 16;

struct View {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  int32_t rank = 0;
  int64_t shape[kMaxRank];
  int64_t stride[kMaxRank];  // in elements; 0 and negative allowed

  View() = default;
  TEGULA_INLINE View(const View& other) { *this = other; }
  TEGULA_INLINE View& operator=(const View& other) {
    data = other.data, dtype = other.dtype, rank = other.rank;
    for (int axis = 0; axis < rank; ++axis) {
      shape[axis] = other.shape[axis], stride[axis] = other.stride[axis];
    }
    return *this;
  }

  TEGULA_INLINE explicit operator bool() const { return data != nullptr; }

  // Extent and stride counted from the last axis: size(0) is the last one.
  TEGULA_INLINE int64_t size(int from_end) const { return shape[rank - 1 - from_end]; }
  TEGULA_INLINE int64_t step(int from_end) const { return stride[rank - 1 - from_end]; }

  // The axis shows the same elements again and again.
  TEGULA_INLINE bool repeats(int from_end) const {
    return size(from_end) > 1 && step(from_end) == 0;
  }

  TEGULA_INLINE int64_t count() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= shape[i];
    return n;
  }

  // Element offset of entry `index` of the first `axes` axes, taken as one axis
  // in C order.
  TEGULA_INLINE int64_t lead_offset(int64_t index, int axes) const {
    int64_t offset = 0;
    for (int i = axes - 1; i > 0; --i) {
      offset += (index % shape[i]) * stride[i];
      index /= shape[i];
    }
    return axes > 0 ? offset + index * stride[0] : 0;
  }

  // Address of the element at `offset`, counted in elements.
  template <class T>
  TEGULA_INLINE T* at(int64_t offset) const {
    return static_cast<T*>(data) + offset;
  }
};

}  // namespace tegula
