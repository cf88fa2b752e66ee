// Which instruction set runs: the best one that was compiled in and that this
// processor and its operating system support, unless TEGULA_ISA or set_isa names one.
#pragma once

#include <string>
#include <vector>

#include "table.h"

namespace tegula {

const KernelTable& kernels();  // read once per call, outside all loops

void set_isa(const std::string& name);  // ValueError when unknown or not available
std::vector<std::string> compiled_isas();
std::vector<std::string> available_isas();

}  // namespace tegula
