// Attention on the processor.
#include "attention_calls.h"

namespace tegula {
namespace {

struct OnProcessor {
  static constexpr bool kNorms = true;
  struct PerHead {
    std::vector<double> held;
    const double* values = nullptr;

    PerHead(Arrays& arrays, py::handle array, int64_t heads, const char* name) {
      if (array.is_none()) return;
      const View view = arrays.input(array, name);
      check_per_head(view, heads, name);
      for (int64_t h = 0; h < heads; ++h) held.push_back(*view.at<double>(h * view.stride[0]));
      held.reserve(1);  // no heads: still something to point to
      values = held.data();
    }
  };

  static Dropout dropout(Arrays&, double p, py::handle seed) {
    return make_dropout(p, py::cast<uint64_t>(seed));
  }
  static void forward(const AttentionArgs& args, py::handle, int threads) {
    GilRelease unlocked;
    attention_forward(args, threads);
  }
  static void backward(const AttentionGradArgs& args, py::handle, int threads) {
    GilRelease unlocked;
    attention_backward(args, threads);
  }
};

}  // namespace

void bind_attention(py::module_& module) { define_attention<OnProcessor>(module); }

}  // namespace tegula
