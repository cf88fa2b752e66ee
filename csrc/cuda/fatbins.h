// The kernels, compiled for each kind of GPU and compressed: files that the build puts into the
// module's read-only data.
#pragma once

namespace tegula {

extern const void* const kFatbins[];
extern const int kFatbinCount;

}  // namespace tegula
