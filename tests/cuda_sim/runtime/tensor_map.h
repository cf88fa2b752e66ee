// What cuTensorMapEncodeTiled writes and a tensor copy reads.
#pragma once

#include <stdint.h>

namespace cusim {

enum Swizzle { kNoSwizzle, kSwizzle32, kSwizzle64, kSwizzle128 };  // as in CUtensorMapSwizzle

// The place in shared memory that a byte of a tile goes to: bits 4 to 6 are changed by those above.
inline uint32_t swizzled(uint32_t offset, int swizzle) {
  const uint32_t mask = swizzle == kSwizzle128  ? 7
                        : swizzle == kSwizzle64 ? 3
                                                : swizzle == kSwizzle32;
  return offset ^ (offset >> 7 & mask) << 4;
}

// Fits in the 128 bytes of a CUtensorMap.
struct TensorMap {
  uint64_t magic;
  char* base;
  uint64_t sizes[5];
  uint64_t strides[4];  // in bytes, of dimensions 1 and up
  uint16_t box[5];
  uint8_t rank, type, element_bytes, swizzle;
};
static_assert(sizeof(TensorMap) <= 128);
constexpr uint64_t kTensorMapMagic = 0x70614D726F736E54;  // "TnsorMap"

struct TensorMapArguments {
  int type;
  uint32_t rank;
  void* base;
  const uint64_t *sizes, *strides;
  const uint32_t *box, *element_strides;
  int interleave, swizzle, fill;
};

// Null, or what is wrong with the arguments.
const char* encode_tensor_map(const TensorMapArguments& arguments, void* map);

}  // namespace cusim
