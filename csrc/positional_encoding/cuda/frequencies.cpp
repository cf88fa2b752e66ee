#include "frequencies.h"

#include <algorithm>

#include "../../cuda/launch.h"

namespace tegula {

void store_frequencies(const Sinusoid& sinusoid, double* to, const Place& place) {
  for (int64_t first = 0; first < sinusoid.half(); first += kFrequenciesPerLaunch) {
    FrequencyParams params;
    params.to = to + first;
    params.count = std::min<int64_t>(kFrequenciesPerLaunch, sinusoid.half() - first);
    std::copy_n(sinusoid.frequencies + first, params.count, params.values);
    launch(place, "store_frequencies", {1, 256, 0}, params);
  }
}

}  // namespace tegula
