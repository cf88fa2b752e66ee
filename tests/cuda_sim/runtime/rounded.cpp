// Operations in a directed rounding, by the rounding mode of the host.
#include <fenv.h>
#include <math.h>

#include "arithmetic.h"

namespace rounded {

namespace {

class Rounding {
 public:
  explicit Rounding(Mode mode) : before_(fegetround()) {
    fesetround(mode == rz ? FE_TOWARDZERO : mode == rm ? FE_DOWNWARD : FE_UPWARD);
  }
  ~Rounding() { fesetround(before_); }

 private:
  int before_;
};

// Through volatile variables, so that the compiler computes nothing before the mode is set.
template <class T, class Compute>
T compute(Mode mode, T x, T y, T z, Compute formula) {
  const Rounding rounding(mode);
  volatile T a = x, b = y, c = z;
  volatile T result = formula(T(a), T(b), T(c));
  return result;
}

}  // namespace

template <class T>
T add(Mode mode, T x, T y) {
  return compute<T>(mode, x, y, 0, [](T a, T b, T) { return a + b; });
}
template <class T>
T sub(Mode mode, T x, T y) {
  return compute<T>(mode, x, y, 0, [](T a, T b, T) { return a - b; });
}
template <class T>
T mul(Mode mode, T x, T y) {
  return compute<T>(mode, x, y, 0, [](T a, T b, T) { return a * b; });
}
template <class T>
T div(Mode mode, T x, T y) {
  return compute<T>(mode, x, y, 0, [](T a, T b, T) { return a / b; });
}
template <class T>
T sqrt(Mode mode, T x) {
  return compute<T>(mode, x, 0, 0, [](T a, T, T) { return T(::sqrt(a)); });
}
template <>
float sqrt<float>(Mode mode, float x) {
  return compute<float>(mode, x, 0, 0, [](float a, float, float) { return sqrtf(a); });
}
template <class T>
T fma(Mode mode, T x, T y, T z) {
  return compute<T>(mode, x, y, z, [](T a, T b, T c) { return fused(a, b, c); });
}

template <class T, class V>
static T converted(Mode mode, V x) {
  const Rounding rounding(mode);
  volatile V value = x;
  volatile T result = T(value);
  return result;
}
template <class T>
T convert(Mode mode, double x) {
  return converted<T>(mode, x);
}
template <class T>
T convert(Mode mode, int64_t x) {
  return converted<T>(mode, x);
}
template <class T>
T convert(Mode mode, uint64_t x) {
  return converted<T>(mode, x);
}

template float add(Mode, float, float);
template double add(Mode, double, double);
template float sub(Mode, float, float);
template double sub(Mode, double, double);
template float mul(Mode, float, float);
template double mul(Mode, double, double);
template float div(Mode, float, float);
template double div(Mode, double, double);
template double sqrt(Mode, double);
template float fma(Mode, float, float, float);
template double fma(Mode, double, double, double);
template float convert(Mode, double);
template double convert(Mode, double);
template float convert(Mode, int64_t);
template double convert(Mode, int64_t);
template float convert(Mode, uint64_t);
template double convert(Mode, uint64_t);

}  // namespace rounded
