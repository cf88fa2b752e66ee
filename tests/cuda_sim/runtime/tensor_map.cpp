// Copies of tiles between global and shared memory (TMA), and bulk copies of bytes.
#include "tensor_map.h"

#include <cuda.h>
#include <string.h>

#include "matrix.h"
#include "proxy.h"

namespace cusim {

namespace {

int bytes_of_type(int type) {
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_UINT8: return 1;
    case CU_TENSOR_MAP_DATA_TYPE_UINT16:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16: return 2;
    case CU_TENSOR_MAP_DATA_TYPE_UINT32:
    case CU_TENSOR_MAP_DATA_TYPE_INT32:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32: return 4;
    case CU_TENSOR_MAP_DATA_TYPE_UINT64:
    case CU_TENSOR_MAP_DATA_TYPE_INT64:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT64: return 8;
    default: return 0;
  }
}

const char* wrong_dimension(const TensorMapArguments& a, uint32_t i) {
  if (a.sizes[i] == 0 || a.sizes[i] > 1ull << 32) return "tensor map: a size of 0 or over 2^32";
  if (a.box[i] == 0 || a.box[i] > 256) return "tensor map: a box of 0 or over 256 elements";
  if (a.element_strides[i] != 1) return "tensor map: element strides are not simulated";
  if (i > 0 && (a.strides[i - 1] % 16 || a.strides[i - 1] >= 1ull << 40)) {
    return "tensor map: a stride is not a multiple of 16 bytes";
  }
  return nullptr;
}

}  // namespace

const char* encode_tensor_map(const TensorMapArguments& a, void* map) {
  const int bytes = bytes_of_type(a.type);
  if (reinterpret_cast<uint64_t>(map) % 64) return "tensor map: not aligned to 64 bytes";
  if (bytes == 0) return "tensor map: a data type that is not simulated";
  if (a.rank < 1 || a.rank > 5) return "tensor map: a rank outside 1 to 5";
  if (reinterpret_cast<uint64_t>(a.base) % 16) return "tensor map: base not aligned to 16 bytes";
  if (a.interleave || a.fill) return "tensor map: interleaving and fills of NaN are not simulated";
  if (a.swizzle < kNoSwizzle || a.swizzle > kSwizzle128) {
    return "tensor map: a swizzle that is not simulated";
  }
  for (uint32_t i = 0; i < a.rank; ++i) {
    if (const char* wrong = wrong_dimension(a, i)) return wrong;
  }
  const uint32_t row = a.box[0] * uint32_t(bytes);
  if (row % 16) return "tensor map: the box's rows are not a multiple of 16 bytes";
  if (a.swizzle != kNoSwizzle && row > 16u << a.swizzle) {
    return "tensor map: the box's rows are longer than the swizzle";
  }
  if (a.swizzle != kNoSwizzle && row < 16u << a.swizzle) {
    return "tensor map: rows shorter than the swizzle are not simulated";
  }
  TensorMap made{};
  made.magic = kTensorMapMagic;
  made.base = static_cast<char*>(a.base);
  for (uint32_t i = 0; i < a.rank; ++i) {
    made.sizes[i] = a.sizes[i];
    made.box[i] = uint16_t(a.box[i]);
    if (i > 0) made.strides[i - 1] = a.strides[i - 1];
  }
  made.rank = uint8_t(a.rank);
  made.type = uint8_t(a.type);
  made.element_bytes = uint8_t(bytes);
  made.swizzle = uint8_t(a.swizzle);
  memset(map, 0, 128);
  memcpy(map, &made, sizeof made);
  return nullptr;
}

namespace {

TensorMap read_map(uint64_t address, int rank, At at) {
  if (address % 64) fail(at, "tensor copy: the tensor map is not aligned to 64 bytes");
  TensorMap map;
  char bytes[128];
  // A map in the parameters of the kernel, in constant or in global memory.
  for (uint32_t i = 0; i < 128; i += 16)
    memcpy(bytes + i, read_generic(address + i, 16, kWeak, at), 16);
  memcpy(&map, bytes, sizeof map);
  if (map.magic != kTensorMapMagic) fail(at, "tensor copy: this is no tensor map");
  if (map.rank != rank)
    fail(at, "tensor copy: %d coordinates, the map has rank %d", rank, map.rank);
  return map;
}

uint32_t tile_bytes(const TensorMap& map) {
  uint32_t elements = 1;
  for (int i = 0; i < map.rank; ++i) elements *= map.box[i];
  return elements * map.element_bytes;
}

// The rows of a tile: visit(offset in the tile, address in memory, bytes), the part within the
// tensor only.
template <class Visit>
void for_each_row(const TensorMap& map, const int32_t* place, Visit visit) {
  const uint32_t row_bytes = uint32_t(map.box[0]) * map.element_bytes;
  const uint32_t rows = tile_bytes(map) / row_bytes;
  const int64_t first = std::max<int64_t>(place[0], 0);
  const int64_t end = std::min<int64_t>(int64_t(place[0]) + map.box[0], int64_t(map.sizes[0]));
  for (uint32_t row = 0; row < rows && first < end; ++row) {
    uint32_t rest = row;
    bool inside = true;
    char* address = map.base + first * map.element_bytes;
    for (int i = 1; i < map.rank; ++i) {
      const int64_t at = int64_t(place[i]) + rest % map.box[i];
      rest /= map.box[i];
      inside = inside && at >= 0 && at < int64_t(map.sizes[i]);
      address += at * int64_t(map.strides[i - 1]);
    }
    if (!inside) continue;
    const uint32_t skipped = uint32_t(first - place[0]) * map.element_bytes;
    visit(row * row_bytes + skipped, reinterpret_cast<uint64_t>(address),
          uint32_t(end - first) * map.element_bytes);
  }
}

void check_tile(uint64_t offset, At at) {
  if (offset % 128) fail(at, "tensor copy: shared memory not aligned to 128 bytes");
}

template <class T, class Add>
void add_elements(uint64_t to, const char* from, uint32_t bytes, At at, Add add) {
  for (uint32_t i = 0; i < bytes; i += sizeof(T)) {
    char* word = update_generic(to + i, sizeof(T), kWeak, at);
    store<T>(word, T(add(load<T>(word), load<T>(from + i))));
  }
}

void put(uint64_t to, const char* from, uint32_t bytes, StoreKind kind, At at) {
  switch (kind) {
    case kReplace: write_bytes(to, from, bytes, at); return;
    case kAddFloat32:
      add_elements<float>(to, from, bytes, at, [](float x, float y) { return x + y; });
      return;
    case kAddUint32:
      add_elements<uint32_t>(to, from, bytes, at, [](uint32_t x, uint32_t y) { return x + y; });
      return;
    case kAddBFloat16: add_elements<uint16_t>(to, from, bytes, at, add_bfloats); return;
    case kAddFloat16: add_elements<uint16_t>(to, from, bytes, at, add_halves); return;
    default: fail(at, "a reduction of a type that is not simulated");
  }
}

StoreKind kind_for(StoreKind asked, int type) {
  if (asked != kAddTensor) return asked;
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32: return kAddFloat32;
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16: return kAddBFloat16;
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16: return kAddFloat16;
    case CU_TENSOR_MAP_DATA_TYPE_UINT32:
    case CU_TENSOR_MAP_DATA_TYPE_INT32: return kAddUint32;
    default: return kAddTensor;
  }
}

// Reads the bytes that a store sends; they must stay as they are until the store was waited for.
std::vector<char> take(uint32_t offset, uint32_t bytes, int swizzle, At at) {
  std::vector<char> data(bytes);
  for (uint32_t i = 0; i < bytes; i += 16) {
    memcpy(&data[i], proxy_read(swizzled(offset + i, swizzle), at), 16);
  }
  Fiber* fiber = current();
  fiber->bulk_stores.push_back(
      {offset, bytes, fiber->bulk_group, at, hash_of(block.shared + offset, bytes)});
  return data;
}

}  // namespace

void bulk_load(uint64_t target, uint64_t source, uint32_t bytes, uint64_t barrier, At at) {
  if ((target | source | bytes) % 16) fail(at, "cp.async.bulk: not a multiple of 16 bytes");
  std::vector<char> data(bytes);
  read_bytes(data.data(), source, bytes, at);
  land_later(barrier, uint32_t(target), std::move(data), kNoSwizzle, at);
}

void bulk_store(uint64_t target, uint64_t source, uint32_t bytes, StoreKind kind, At at) {
  if ((target | source | bytes) % 16) fail(at, "cp.async.bulk: not a multiple of 16 bytes");
  const std::vector<char> data = take(uint32_t(source), bytes, kNoSwizzle, at);
  put(target, data.data(), bytes, kind, at);
}

void tensor_load(uint64_t target, uint64_t address, const int32_t* place, int rank,
                 uint64_t barrier, At at) {
  const TensorMap map = read_map(address, rank, at);
  check_tile(target, at);
  std::vector<char> data(tile_bytes(map));  // zero where the tile leaves the tensor
  for_each_row(map, place, [&](uint32_t offset, uint64_t from, uint32_t bytes) {
    read_bytes(&data[offset], from, bytes, at);
  });
  land_later(barrier, uint32_t(target), std::move(data), map.swizzle, at);
}

void tensor_store(uint64_t address, const int32_t* place, int rank, uint64_t source, StoreKind kind,
                  At at) {
  const TensorMap map = read_map(address, rank, at);
  check_tile(source, at);
  const std::vector<char> data = take(uint32_t(source), tile_bytes(map), map.swizzle, at);
  for_each_row(map, place, [&](uint32_t offset, uint64_t to, uint32_t bytes) {
    put(to, &data[offset], bytes, kind_for(kind, map.type), at);
  });
}

void commit_bulk_stores() { ++current()->bulk_group; }

void wait_for_bulk_stores(uint32_t pending, At at) {
  Fiber* fiber = current();
  std::vector<BulkStore> kept;
  for (const BulkStore& sent : fiber->bulk_stores) {
    if (sent.group + pending >= fiber->bulk_group) {
      kept.push_back(sent);
    } else if (hash_of(block.shared + sent.offset, sent.bytes) != sent.hash) {
      fail(at, "shared memory+%u changed under a bulk store that was not waited for", sent.offset);
    }
  }
  fiber->bulk_stores.swap(kept);
}

}  // namespace cusim
