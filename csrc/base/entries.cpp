#include "entries.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "check.h"
#include "parallel.h"

namespace tegula {
namespace {

constexpr int64_t kPiece = 1024;   // entries converted at a time
constexpr int64_t kChunk = 65536;  // entries that one thread takes at a time

double widen(Half half) {
  const uint32_t magnitude = half.bits & 0x7FFFu;
  const uint32_t sign = static_cast<uint32_t>(half.bits & 0x8000u) << 16;
  // The product mends the exponent's bias; exponent 31 is Inf or NaN.
  const uint32_t bits =
      magnitude >= 0x7C00u
          ? (magnitude << 13) | 0x7F800000u
          : std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude << 13) * 0x1p112f);
  return std::bit_cast<float>(bits | sign);
}
double widen(BFloat16 number) {
  return std::bit_cast<float>(static_cast<uint32_t>(number.bits) << 16);
}

template <class Out, class In>
Out convert(In value) {
  if constexpr (sizeof(Out) == 8 && std::is_integral_v<Out> && std::is_same_v<In, uint64_t>) {
    return static_cast<Out>(std::min<uint64_t>(value, INT64_MAX));
  } else if constexpr (std::is_same_v<In, Half> || std::is_same_v<In, BFloat16>) {
    return static_cast<Out>(widen(value));
  } else {
    return static_cast<Out>(value);
  }
}

template <class Out, class In>
void read(const View& view, int64_t first, int64_t count, Out* out) {
  if (view.rank == 0) {
    if (count > 0) *out = convert<Out>(*view.at<const In>(0));
    return;
  }
  const int64_t extent = view.size(0), step = view.step(0);
  while (count > 0) {
    const int64_t column = first % extent;
    const int64_t n = std::min(count, extent - column);
    const In* from =
        view.at<const In>(view.lead_offset(first / extent, view.rank - 1) + column * step);
    if (step == 1) {
      for (int64_t i = 0; i < n; ++i) out[i] = convert<Out>(from[i]);
    } else {
      for (int64_t i = 0; i < n; ++i) out[i] = convert<Out>(from[i * step]);
    }
    out += n, first += n, count -= n;
  }
}

template <class Out>
void read_any(const View& view, int64_t first, int64_t count, Out* out) {
  switch (view.dtype) {
    case DType::kInt8: return read<Out, int8_t>(view, first, count, out);
    case DType::kInt16: return read<Out, int16_t>(view, first, count, out);
    case DType::kInt32: return read<Out, int32_t>(view, first, count, out);
    case DType::kInt64: return read<Out, int64_t>(view, first, count, out);
    case DType::kUInt8: return read<Out, uint8_t>(view, first, count, out);
    case DType::kUInt16: return read<Out, uint16_t>(view, first, count, out);
    case DType::kUInt32: return read<Out, uint32_t>(view, first, count, out);
    case DType::kUInt64: return read<Out, uint64_t>(view, first, count, out);
    default: break;
  }
  if constexpr (std::is_same_v<Out, double>) {
    switch (view.dtype) {
      case DType::kFloat64: return read<Out, double>(view, first, count, out);
      case DType::kFloat32: return read<Out, float>(view, first, count, out);
      case DType::kFloat16: return read<Out, Half>(view, first, count, out);
      case DType::kBFloat16: return read<Out, BFloat16>(view, first, count, out);
      default: break;
    }
  }
  throw TypeError(message("entries of type ", name_of(view.dtype), " cannot be read"));
}

Range joined(Range a, Range b) { return {std::min(a.low, b.low), std::max(a.high, b.high)}; }

Range piece_range(const int64_t* values, int64_t n, const int64_t* ignored) {
  Range range;
  if (ignored == nullptr) {
    for (int64_t i = 0; i < n; ++i) range = joined(range, {values[i], values[i]});
    return range;
  }
  for (int64_t i = 0; i < n; ++i) {
    const bool counts = values[i] != *ignored;
    range = joined(range, {counts ? values[i] : INT64_MAX, counts ? values[i] : INT64_MIN});
  }
  return range;
}

}  // namespace

void read_integers(const View& view, int64_t first, int64_t count, int64_t* out) {
  read_any(view, first, count, out);
}

void read_doubles(const View& view, int64_t first, int64_t count, double* out) {
  read_any(view, first, count, out);
}

Range range_of(const View& view, const int64_t* ignored, int threads) {
  const View flat = collapsed(view);
  const int64_t count = view.count();
  const int64_t chunks = (count + kChunk - 1) / kChunk;
  std::vector<Range> ranges(static_cast<size_t>(chunks));
  const double work = 4.0 * static_cast<double>(count);
  parallel_for(chunks, threads_for(work, threads), [&](int64_t chunk) {
    int64_t values[kPiece];
    Range range;
    const int64_t end = std::min(count, (chunk + 1) * kChunk);
    for (int64_t first = chunk * kChunk; first < end; first += kPiece) {
      const int64_t n = std::min(kPiece, end - first);
      read_integers(flat, first, n, values);
      range = joined(range, piece_range(values, n, ignored));
    }
    ranges[static_cast<size_t>(chunk)] = range;
  });
  Range total;
  for (const Range& range : ranges) total = joined(total, range);
  return total;
}

Range checked_range(const View& view, int64_t limit, const int64_t* ignored, const char* noun,
                    const char* name, int threads) {
  const Range range = range_of(view, ignored, threads);
  if (range.low > range.high || (range.low >= 0 && range.high < limit)) return range;
  for (int64_t index = 0; index < view.count(); ++index) {
    int64_t value;
    read_integers(view, index, 1, &value);
    if ((value >= 0 && value < limit) || (ignored != nullptr && value == *ignored)) continue;
    std::string digits = std::to_string(value);
    if (view.dtype == DType::kUInt64) {
      digits = std::to_string(*view.at<const uint64_t>(view.lead_offset(index, view.rank)));
    }
    throw IndexError(message(noun, " ", digits, " at ", name, place_text(view, index),
                             " is outside [0, ", limit, ")"));
  }
  // Somebody has changed the array since; the range must not be used.
  throw IndexError(message(noun, " ", range.low < 0 ? range.low : range.high, " in ", name,
                           " is outside [0, ", limit, ")"));
}

}  // namespace tegula
