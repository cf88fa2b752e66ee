// Google Benchmark's view of the kernels: no Python, results in arrays that exist.
//
// Names say kernel, type, shape and threads. FLOPS counts two operations for the multiply-add of
// every visible pair; bytes_per_second what has to move at least once. Set TEGULA_ISA to pin the
// instruction set.
#include <benchmark/benchmark.h>

#include <string>

#include "../../csrc/base/check.h"
#include "../../csrc/isa/select.h"
#include "jobs.h"

namespace tegula::bench {
namespace {

constexpr DType kFloats[] = {DType::kFloat32, DType::kBFloat16};

template <class Make>
void add(const std::string& name, Make make) {
  for (const int threads : {1, 2}) {
    const std::string full = message(name, "/threads:", threads);
    benchmark::RegisterBenchmark(
        full.c_str(),
        [=](benchmark::State& state) {
          const Job job = make(threads);
          job.run();  // takes the page faults
          for (auto _ : state) job.run();
          const auto each = benchmark::Counter::kIsIterationInvariantRate;
          if (job.operations > 0)
            state.counters["FLOPS"] = benchmark::Counter(job.operations, each);
          state.SetBytesProcessed(static_cast<int64_t>(job.bytes) * state.iterations());
        })
        ->UseRealTime()
        ->Unit(benchmark::kMicrosecond);
  }
}

std::string text(const AttentionShape& s) {
  const auto unless = [](int64_t given, int64_t usual) {
    return given == usual ? "" : message("(", given, ")");
  };
  std::string words = message(s.batch, "x", s.heads, unless(s.key_heads, s.heads), "x", s.q_len,
                              unless(s.k_len, s.q_len), "x", s.dim);
  if (s.mask == Mask::kCausal) words += "/causal";
  if (s.mask == Mask::kWindow) words += message("/window:", s.window);
  return words;
}

void add_attention() {
  const AttentionShape shapes[] = {
      {1, 12, 12, 16, 16, 64},    {8, 12, 12, 128, 128, 64},
      {2, 12, 12, 512, 512, 64},  {2, 12, 12, 512, 512, 64, Mask::kCausal},
      {1, 8, 8, 2048, 2048, 128}, {1, 2, 2, 8192, 8192, 64, Mask::kWindow, 256},
  };
  const AttentionShape decode[] = {{1, 32, 8, 1, 4096, 128}, {1, 12, 12, 1, 512, 64}};
  for (const DType dtype : kFloats) {
    const std::string type = message("/", name_of(dtype), "/");
    for (const AttentionShape& s : shapes) {
      add(message("forward", type, text(s)),
          [=](int t) { return attention_forward_job(s, dtype, t); });
    }
    for (const AttentionShape& s : shapes) {
      add(message("backward", type, text(s)),
          [=](int t) { return attention_backward_job(s, dtype, t); });
    }
    for (const AttentionShape& s : decode) {
      add(message("decode", type, text(s)),
          [=](int t) { return attention_forward_job(s, dtype, t); });
    }
  }
}

void add_layers() {
  for (const int64_t length : {512, 4096}) {
    const std::string size = message(length);
    add(message("mask_fill/bool/", size),
        [=](int t) { return mask_fill_job(length, 0, DType::kBool, t); });
    add(message("mask_fill/float32/", size, "/window:256"),
        [=](int t) { return mask_fill_job(length, 256, DType::kFloat32, t); });
    add(message("mask_scan/bool/", size), [=](int t) { return mask_scan_job(length, 0, t); });
  }
  for (const DType dtype : kFloats) {
    const std::string type = message("/", name_of(dtype), "/");
    for (const int64_t count : {512, 16384}) {
      const std::string size = message(count, "x768");
      add(message("embedding", type, size),
          [=](int t) { return embedding_job(count, 512, 30522, 768, dtype, 0.0, t); });
      add(message("embedding_dropout", type, size),
          [=](int t) { return embedding_job(count, 512, 30522, 768, dtype, 0.1, t); });
      add(message("embedding_backward", type, size),
          [=](int t) { return embedding_backward_job(count, 30522, 768, dtype, t); });
    }
    add(message("positions", type, "2048x768"),
        [=](int t) { return positions_job(2048, 768, dtype, t); });
  }
}

}  // namespace
}  // namespace tegula::bench

int main(int argc, char** argv) {
  benchmark::AddCustomContext("instruction_set", tegula::kernels().name);
  tegula::bench::add_attention();
  tegula::bench::add_layers();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
