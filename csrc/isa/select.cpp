#include "select.h"

#include <atomic>
#include <cstdlib>

#include "../base/check.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace tegula {

extern const KernelTable kernels_scalar;
#if defined(__x86_64__)
extern const KernelTable kernels_avx2;
extern const KernelTable kernels_avx512;
#if defined(TEGULA_WITH_AVX512BF16)
extern const KernelTable kernels_avx512bf16;
#endif
#elif defined(__aarch64__)
extern const KernelTable kernels_neon;
#endif

namespace {

struct Level {
  const KernelTable* table;
  bool (*supported)();
};

bool always() { return true; }

#if defined(__x86_64__)

struct Registers {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(unsigned leaf, unsigned subleaf = 0) {
  Registers r;
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);  // zeros when absent
  return r;
}

bool has(unsigned value, std::initializer_list<int> bits) {
  for (const int bit : bits) {
    if ((value >> bit & 1u) == 0) return false;
  }
  return true;
}

// The register state that the operating system saves (XCR0).
bool saves(unsigned state) {
  if (!has(cpuid(1).ecx, {27})) return false;  // OSXSAVE
  unsigned low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & state) == state;
}

// x86-64-v3: AVX2 FMA BMI1 BMI2 F16C LZCNT MOVBE
bool supports_avx2() {
  return saves(0x06) && has(cpuid(1).ecx, {12, 22, 28, 29}) && has(cpuid(7).ebx, {3, 5, 8}) &&
         has(cpuid(0x80000001u).ecx, {5});
}

// x86-64-v4: AVX512 F DQ CD BW VL
bool supports_avx512() {
  return supports_avx2() && saves(0xE6) && has(cpuid(7).ebx, {16, 17, 28, 30, 31});
}

[[maybe_unused]] bool supports_avx512bf16() {
  return supports_avx512() && has(cpuid(7, 1).eax, {5});
}

#endif

// From the plainest to the best.
constexpr Level kLevels[] = {
    {&kernels_scalar, always},
#if defined(__x86_64__)
    {&kernels_avx2, supports_avx2},
    {&kernels_avx512, supports_avx512},
#if defined(TEGULA_WITH_AVX512BF16)
    {&kernels_avx512bf16, supports_avx512bf16},
#endif
#elif defined(__aarch64__)
    {&kernels_neon, always},
#endif
};

template <class Keep>
std::vector<std::string> names(Keep keep) {
  std::vector<std::string> list;
  for (const Level& level : kLevels) {
    if (keep(level)) list.emplace_back(level.table->name);
  }
  return list;
}

std::string joined(const std::vector<std::string>& list) {
  std::string text;
  for (const std::string& name : list) text += (text.empty() ? "" : ", ") + name;
  return text;
}

const KernelTable* find(const std::string& name, const char* source) {
  for (const Level& level : kLevels) {
    if (name != level.table->name) continue;
    if (level.supported()) return level.table;
    throw ValueError(message(source, ": this processor does not support '", name, "'; it supports ",
                             joined(available_isas())));
  }
  throw ValueError(message(source, ": unknown instruction set '", name, "'; expected one of ",
                           joined(compiled_isas())));
}

std::atomic<const KernelTable*> active{nullptr};

}  // namespace

const KernelTable& kernels() {
  const KernelTable* table = active.load(std::memory_order_acquire);
  if (table == nullptr) {
    const char* pinned = std::getenv("TEGULA_ISA");
    table = pinned != nullptr && *pinned != '\0' ? find(pinned, "TEGULA_ISA")
                                                 : find(available_isas().back(), "instruction set");
    active.store(table, std::memory_order_release);
  }
  return *table;
}

void set_isa(const std::string& name) { active.store(find(name, "set_isa")); }

std::vector<std::string> compiled_isas() {
  return names([](const Level&) { return true; });
}

std::vector<std::string> available_isas() {
  return names([](const Level& level) { return level.supported(); });
}

}  // namespace tegula
