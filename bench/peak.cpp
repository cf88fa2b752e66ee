// What this machine can do at most, for N threads: multiply-adds, bf16 dot products, memory reads,
// writes and copies. Compiled by peak.py with the flags of the instruction set that is being
// benchmarked, so the ceiling is that of the instructions the kernels may use.
//
// One call runs several short bursts. All threads start a burst together, and its rate is the work
// of all of them over the time from the first start to the last end.

#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

// Enough independent accumulators to hide the latency of a multiply-add (4 cycles on 2 or more
// units), few enough to stay in registers (AVX2 and SSE have 16, AVX-512 and AArch64 32).
#if defined(__AVX512F__)
constexpr int kVectorBytes = 64, kAccumulators = 24;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32, kAccumulators = 12;
#elif defined(__aarch64__)
constexpr int kVectorBytes = 16, kAccumulators = 24;
#else
constexpr int kVectorBytes = 16, kAccumulators = 12;
#endif
constexpr int kLanes = kVectorBytes / 4;
typedef float Floats __attribute__((vector_size(kVectorBytes)));

constexpr long kSteps = 8'400'000 / kAccumulators;            // about a millisecond on a 4 GHz core
constexpr std::size_t kMemoryBytes = std::size_t{256} << 20;  // of all threads; beyond the caches

using Clock = std::chrono::steady_clock;

thread_local volatile float sink;  // results go here so that no work can be dropped

Floats broadcast(float x) { return Floats{} + x; }

void consume(const Floats& v) {
  float sum = 0;
  for (int lane = 0; lane < kLanes; ++lane) sum += v[lane];
  sink = sum;
}

// Returns floating-point operations: a multiply-add is two.
double multiply_add() {
  Floats sums[kAccumulators];
  for (int i = 0; i < kAccumulators; ++i) sums[i] = broadcast(1e-3f * static_cast<float>(i));
  const Floats x = broadcast(0.999f), y = broadcast(1e-3f);
  for (long step = 0; step < kSteps; ++step) {
#pragma GCC unroll 24
    for (int i = 0; i < kAccumulators; ++i) sums[i] = sums[i] * x + y;
  }
  for (int i = 1; i < kAccumulators; ++i) sums[0] += sums[i];
  consume(sums[0]);
  return 2.0 * kLanes * kAccumulators * static_cast<double>(kSteps);
}

#if defined(__AVX512BF16__)
double bf16_dot() {
  Floats sums[kAccumulators];
  for (int i = 0; i < kAccumulators; ++i) sums[i] = broadcast(1e-3f * static_cast<float>(i));
  const __m512bh x = (__m512bh)_mm512_set1_epi32(0x3f703f70);  // 0.9375, 0.9375
  const __m512bh y = (__m512bh)_mm512_set1_epi32(0x3c003c00);  // 2^-7, 2^-7
  for (long step = 0; step < kSteps; ++step) {
#pragma GCC unroll 24
    for (int i = 0; i < kAccumulators; ++i) {
      sums[i] = (Floats)_mm512_dpbf16_ps((__m512)sums[i], x, y);
    }
  }
  for (int i = 1; i < kAccumulators; ++i) sums[0] += sums[i];
  consume(sums[0]);
  return 4.0 * kLanes * kAccumulators * static_cast<double>(kSteps);  // two multiply-adds a lane
}
#endif

struct Part {
  Floats* data;
  std::size_t vectors;
};

double read_memory(Part part) {
  Floats sums[4] = {};
  for (std::size_t i = 0; i + 4 <= part.vectors; i += 4) {
    for (std::size_t j = 0; j < 4; ++j) sums[j] += part.data[i + j];
  }
  consume(sums[0] + sums[1] + sums[2] + sums[3]);
  return static_cast<double>(part.vectors) * kVectorBytes;
}

// Stores that bypass the caches, as a kernel that writes a large output once would use.
void store_past_caches(Floats* to, Floats v) {
#if defined(__AVX512F__)
  _mm512_stream_ps(reinterpret_cast<float*>(to), (__m512)v);
#elif defined(__AVX__)
  _mm256_stream_ps(reinterpret_cast<float*>(to), (__m256)v);
#elif defined(__x86_64__)
  _mm_stream_ps(reinterpret_cast<float*>(to), (__m128)v);
#else
  *to = v;
#endif
}

double write_memory(Part part) {
  const Floats value = broadcast(1e-3f);
  for (std::size_t i = 0; i < part.vectors; ++i) store_past_caches(part.data + i, value);
#if defined(__x86_64__)
  _mm_sfence();
#endif
  consume(part.data[part.vectors - 1]);
  return static_cast<double>(part.vectors) * kVectorBytes;
}

double copy_memory(Part part) {
  const std::size_t half = part.vectors / 2;
  const Floats* from = part.data;
  Floats* to = part.data + half;
  for (std::size_t i = 0; i < half; ++i) store_past_caches(to + i, from[i]);
#if defined(__x86_64__)
  _mm_sfence();
#endif
  consume(to[half - 1]);
  return 2.0 * static_cast<double>(half) * kVectorBytes;  // read and written bytes
}

// Kept from call to call, so that no burst pays for page faults.
char* memory() {
  static char* const base = [] {
    void* p =
        mmap(nullptr, kMemoryBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return static_cast<char*>(nullptr);
#if defined(MADV_HUGEPAGE)
    madvise(p, kMemoryBytes, MADV_HUGEPAGE);
#endif
    for (std::size_t i = 0; i < kMemoryBytes; i += 4096) static_cast<char*>(p)[i] = 1;
    return static_cast<char*>(p);
  }();
  return base;
}

enum Kind { kFma = 0, kBf16Dot = 1, kRead = 2, kCopy = 3, kWrite = 4 };

double work(int kind, Part part) {
  switch (kind) {
    case kFma: return multiply_add();
#if defined(__AVX512BF16__)
    case kBf16Dot: return bf16_dot();
#endif
    case kRead: return read_memory(part);
    case kCopy: return copy_memory(part);
    case kWrite: return write_memory(part);
    default: return 0;
  }
}

struct Burst {
  Clock::time_point start, end;
  double work = 0;
};

}  // namespace

// Writes `bursts` rates (operations or bytes per second). Returns 0, or 1 when this build lacks the
// kind, or 2 when memory or threads ran out.
extern "C" int tegula_bench_rates(int kind, int threads, int bursts, double* rates) {
#if !defined(__AVX512BF16__)
  if (kind == kBf16Dot) return 1;
#endif
  if (kind < kFma || kind > kWrite || threads < 1 || bursts < 1) return 1;

  std::vector<Part> parts(static_cast<std::size_t>(threads), Part{nullptr, 0});
  if (kind >= kRead) {
    char* const base = memory();
    if (base == nullptr) return 2;
    const std::size_t share =
        kMemoryBytes / static_cast<std::size_t>(threads) / (8 * kVectorBytes) * (8 * kVectorBytes);
    for (std::size_t t = 0; t < parts.size(); ++t) {
      parts[t] = {reinterpret_cast<Floats*>(base + t * share), share / kVectorBytes};
    }
  }

  std::vector<std::vector<Burst>> log(parts.size(),
                                      std::vector<Burst>(static_cast<std::size_t>(bursts)));
  std::atomic<int> arrived{0};
  const auto run = [&](std::size_t t) {
    for (int b = 0; b < bursts; ++b) {
      arrived.fetch_add(1);
      // Spin: a thread that slept would start late. Yield at times, there may be fewer cores.
      for (long spins = 1; arrived.load() < threads * (b + 1); ++spins) {
        if (spins % 10000 == 0) std::this_thread::yield();
      }
      Burst& burst = log[t][static_cast<std::size_t>(b)];
      burst.start = Clock::now();
      burst.work = work(kind, parts[t]);
      burst.end = Clock::now();
    }
  };
  std::vector<std::thread> others;
  try {
    others.reserve(parts.size() - 1);
    for (std::size_t t = 1; t < parts.size(); ++t) others.emplace_back(run, t);
  } catch (const std::system_error&) {
    // Let those that did start leave their barriers.
    arrived.store(threads * (bursts + 1));
    for (std::thread& other : others) other.join();
    return 2;
  }
  run(0);
  for (std::thread& other : others) other.join();

  for (std::size_t b = 0; b < static_cast<std::size_t>(bursts); ++b) {
    Burst all = log[0][b];
    for (std::size_t t = 1; t < parts.size(); ++t) {
      all.start = log[t][b].start < all.start ? log[t][b].start : all.start;
      all.end = log[t][b].end > all.end ? log[t][b].end : all.end;
      all.work += log[t][b].work;
    }
    rates[b] = all.work / std::chrono::duration<double>(all.end - all.start).count();
  }
  return 0;
}
