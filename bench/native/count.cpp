// A fixed set of small cases whose instructions callgrind counts, see bench/instruction_counts.py.
//
// Started with --instr-atstart=no: only what lies between START and STOP is counted, and every case
// leaves one dump with its name. Each runs once before, so that nothing is set up while it counts.
#include <valgrind/callgrind.h>

#include <cstdio>
#include <string>
#include <vector>

#include "../../csrc/isa/select.h"
#include "jobs.h"

namespace tegula::bench {
namespace {

struct Case {
  const char* name;
  Job job;
};

std::vector<Case> cases() {
  const DType f32 = DType::kFloat32, b16 = DType::kBFloat16;
  // batch, heads, key heads, queries, keys, dim: whole tiles and their remainders
  const AttentionShape full{1, 2, 2, 128, 128, 64}, odd{1, 1, 1, 77, 93, 40};
  const AttentionShape causal{1, 1, 1, 200, 200, 64, Mask::kCausal};
  const AttentionShape window{1, 1, 1, 300, 300, 64, Mask::kWindow, 32};
  const AttentionShape tiny{2, 4, 4, 16, 16, 64}, decode{1, 8, 2, 1, 512, 64};
  const AttentionShape far{1, 2, 1, 1, 17000, 64};  // beyond the caches
  std::vector<Case> found;
  found.push_back({"forward full fp32", attention_forward_job(full, f32, 1)});
  found.push_back({"forward full bf16", attention_forward_job(full, b16, 1)});
  found.push_back({"forward odd fp32", attention_forward_job(odd, f32, 1)});
  found.push_back({"forward causal fp32", attention_forward_job(causal, f32, 1)});
  found.push_back({"forward causal bf16", attention_forward_job(causal, b16, 1)});
  found.push_back({"forward window fp32", attention_forward_job(window, f32, 1)});
  found.push_back({"forward tiny fp32", attention_forward_job(tiny, f32, 1)});
  found.push_back({"decode fp32", attention_forward_job(decode, f32, 1)});
  found.push_back({"decode bf16", attention_forward_job(decode, b16, 1)});
  found.push_back({"decode far fp32", attention_forward_job(far, f32, 1)});
  found.push_back({"backward full fp32", attention_backward_job(full, f32, 1)});
  found.push_back({"backward full bf16", attention_backward_job(full, b16, 1)});
  found.push_back({"backward odd fp32", attention_backward_job(odd, f32, 1)});
  found.push_back({"backward causal fp32", attention_backward_job(causal, f32, 1)});
  found.push_back({"backward tiny fp32", attention_backward_job(tiny, f32, 1)});
  found.push_back({"mask fill bool", mask_fill_job(300, 0, DType::kBool, 1)});
  found.push_back({"mask fill fp32", mask_fill_job(300, 32, f32, 1)});
  found.push_back({"mask scan", mask_scan_job(300, 32, 1)});
  found.push_back({"embedding fp32", embedding_job(128, 64, 500, 200, f32, 0.0, 1)});
  found.push_back({"embedding bf16", embedding_job(128, 64, 500, 200, b16, 0.0, 1)});
  found.push_back({"embedding dropout fp32", embedding_job(128, 64, 500, 200, f32, 0.1, 1)});
  found.push_back({"embedding backward fp32", embedding_backward_job(256, 100, 200, f32, 1)});
  found.push_back({"positions fp32", positions_job(100, 100, f32, 1)});
  found.push_back({"positions bf16", positions_job(100, 100, b16, 1)});
  return found;
}

}  // namespace
}  // namespace tegula::bench

int main() {
  std::printf("%s\n", tegula::kernels().name);
  for (const tegula::bench::Case& one : tegula::bench::cases()) {
    one.job.run();
    CALLGRIND_START_INSTRUMENTATION;
    CALLGRIND_ZERO_STATS;
    one.job.run();
    CALLGRIND_DUMP_STATS_AT(one.name);
    CALLGRIND_STOP_INSTRUMENTATION;
  }
  return 0;
}
