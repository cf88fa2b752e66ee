// Attention on a GPU.
#include "../../attention/cuda/dispatch.h"
#include "../attention_calls.h"
#include "../exchange.h"
#include "device_arrays.h"
#include "seed.h"

namespace tegula {
namespace {

struct OnDevice {
  static constexpr bool kNorms = false;
  struct PerHead {
    const double* values = nullptr;

    PerHead(Arrays& arrays, py::handle array, int64_t heads, const char* name) {
      if (array.is_none()) return;
      const View view = arrays.input(array, name);
      check_per_head(view, heads, name);
      if (heads > 1 && view.stride[0] != 1) {
        throw ValueError(message(name, " must be contiguous here"));
      }
      values = view.at<const double>(0);
    }
  };

  static Dropout dropout(Arrays& arrays, double p, py::handle seed) {
    return dropout_of(arrays, p, seed);
  }
  static void forward(const AttentionArgs& args, py::handle like, int) {
    Place place = place_of(like);
    const Scratch scratch(like, workspace_of_forward(args, place.facts));
    place.workspace = scratch.data();
    GilRelease unlocked;
    attention_forward(args, place);
  }
  static void backward(const AttentionGradArgs& args, py::handle like, int) {
    Place place = place_of(like);
    const Scratch scratch(like, workspace_of_backward(args, place.facts));
    place.workspace = scratch.data();
    GilRelease unlocked;
    attention_backward(args, place);
  }
};

}  // namespace

void bind_attention(py::module_& module) { define_attention<OnDevice>(module); }

}  // namespace tegula
