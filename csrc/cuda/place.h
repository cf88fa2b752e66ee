// Where and how a call runs on a GPU.
//
// Work goes to the caller's stream and nothing waits for it; memory that a call needs besides its
// results is made by the caller's framework beforehand, so that its allocator knows the stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace tegula {

// A driver that is missing, too old or says no: RuntimeError in Python.
struct CudaError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The first id outside its table that a kernel of a device met, in memory that the host sees as
// well: read without waiting for anything, by a later call or by tegula.cuda.check().
struct IdFault {
  uint32_t found;     // 0: none; set last
  uint32_t claimed;   // by the thread that writes the rest
  uint32_t argument;  // an IdArgument
  uint32_t reserved;
  int64_t id;
  int64_t place;  // in C order of the argument
  int64_t limit;  // ids lie in [0, limit)
};
enum IdArgument : uint32_t { kIds, kPositions, kSegments };

// What a device is, as far as launching needs to know.
struct DeviceFacts {
  int major = 0, minor = 0;  // compute capability
  int processors = 0;        // streaming multiprocessors
  int shared_bytes = 0;      // most shared memory of a block
};

struct Place {
  int device = 0;
  void* stream = nullptr;     // CUstream
  void* workspace = nullptr;  // device memory, aligned to 256 bytes
  IdFault* fault = nullptr;   // the device's, as kernels see it
  DeviceFacts facts;
};

}  // namespace tegula
