// Arrays with an owner, for jobs.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <new>
#include <vector>

#include "../../csrc/base/view.h"

namespace tegula::bench {

// The same numbers in every run, about normal.
class Numbers {
 public:
  uint64_t bits() {  // xorshift64*, Vigna, "An experimental exploration of Marsaglia's xorshift"
    state_ ^= state_ >> 12, state_ ^= state_ << 25, state_ ^= state_ >> 27;
    return state_ * 0x2545F4914F6CDD1Dull;
  }
  float normal() {
    float sum = -6.0f;
    for (int i = 0; i < 12; ++i) sum += static_cast<float>(bits() >> 40) * 0x1p-24f;
    return sum;
  }

 private:
  uint64_t state_ = 2017;
};

// C order, starts at a page, so that every run sees the same alignment.
class Array {
 public:
  Array(DType dtype, std::initializer_list<int64_t> shape) {
    view.dtype = dtype, view.rank = static_cast<int32_t>(shape.size());
    int64_t step = 1;
    for (int axis = view.rank - 1; axis >= 0; --axis) {
      view.shape[axis] = shape.begin()[axis], view.stride[axis] = step;
      step *= view.shape[axis];
    }
    const size_t size = static_cast<size_t>(step * item_size(dtype));
    data_.reset(std::aligned_alloc(kPage, (size + kPage) / kPage * kPage));
    if (!data_) throw std::bad_alloc();
    view.data = data_.get();
    std::memset(view.data, 0, size);
  }

  // Large arrays repeat themselves: drawing numbers would take longer than the benchmark.
  Array& fill(Numbers& numbers) {
    const int64_t count = view.count(), drawn = count < kDrawn ? count : kDrawn;
    for (int64_t i = 0; i < count; ++i) {
      if (i >= drawn) {
        copy(i, i - drawn);
      } else if (view.dtype == DType::kFloat32) {
        *view.at<float>(i) = numbers.normal();
      } else {
        *view.at<uint16_t>(i) = rounded(numbers.normal());
      }
    }
    return *this;
  }

  double bytes() const { return static_cast<double>(view.count() * item_size(view.dtype)); }

  View view;

 private:
  static constexpr size_t kPage = 4096;
  static constexpr int64_t kDrawn = 1'000'003;  // a prime: no two heads are the same

  struct Free {
    void operator()(void* p) const { std::free(p); }
  };

  uint16_t rounded(float x) const {
    uint32_t word;
    std::memcpy(&word, &x, sizeof word);
    return static_cast<uint16_t>(word >> 16);  // bfloat16, towards zero
  }
  void copy(int64_t to, int64_t from) {
    const int64_t size = item_size(view.dtype);
    char* const base = static_cast<char*>(view.data);
    std::memcpy(base + to * size, base + from * size, static_cast<size_t>(size));
  }

  std::unique_ptr<void, Free> data_;
};

// Whoever holds the job holds its arrays.
class Owned {
 public:
  Array& add(DType dtype, std::initializer_list<int64_t> shape) {
    arrays_.push_back(std::make_unique<Array>(dtype, shape));
    return *arrays_.back();
  }

 private:
  std::vector<std::unique_ptr<Array>> arrays_;
};

}  // namespace tegula::bench
