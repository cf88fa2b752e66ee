// Operations in a directed rounding, by the rounding mode of the host.
#include <fenv.h>
#include <math.h>

#include "device_code.h"

namespace cusim {

namespace {

class HostRounding {
 public:
  explicit HostRounding(Rounding rounding) : before_(fegetround()) {
    fesetround(rounding == kToZero ? FE_TOWARDZERO : rounding == kDown ? FE_DOWNWARD : FE_UPWARD);
  }
  ~HostRounding() { fesetround(before_); }

 private:
  int before_;
};

// Through volatile variables, so that the compiler computes nothing before the mode is set.
template <class T, class Formula>
T compute(Rounding rounding, T x, T y, T z, Formula formula) {
  const HostRounding host(rounding);
  volatile T a = x, b = y, c = z;
  volatile T result = formula(T(a), T(b), T(c));
  return result;
}

template <class T, class V>
T converted(Rounding rounding, V x) {
  const HostRounding host(rounding);
  volatile V value = x;
  volatile T result = T(value);
  return result;
}

template <class T>
T sum(T x, T y, T) {
  return x + y;
}
template <class T>
T difference(T x, T y, T) {
  return x - y;
}
template <class T>
T product(T x, T y, T) {
  return x * y;
}
template <class T>
T quotient(T x, T y, T) {
  return x / y;
}

}  // namespace

extern "C" {

float add_f32_rounded(Rounding r, float x, float y) { return compute(r, x, y, 0.f, sum<float>); }
float sub_f32_rounded(Rounding r, float x, float y) {
  return compute(r, x, y, 0.f, difference<float>);
}
float mul_f32_rounded(Rounding r, float x, float y) {
  return compute(r, x, y, 0.f, product<float>);
}
float div_f32_rounded(Rounding r, float x, float y) {
  return compute(r, x, y, 0.f, quotient<float>);
}
float sqrt_f32_rounded(Rounding r, float x) {
  return compute(r, x, 0.f, 0.f, [](float a, float, float) { return sqrtf(a); });
}
float fma_f32_rounded(Rounding r, float x, float y, float z) {
  return compute(r, x, y, z, fused_f32);
}
float f32_of_double_rounded(Rounding r, double x) { return converted<float>(r, x); }
float f32_of_signed_rounded(Rounding r, int64_t x) { return converted<float>(r, x); }
float f32_of_unsigned_rounded(Rounding r, uint64_t x) { return converted<float>(r, x); }

double add_f64_rounded(Rounding r, double x, double y) { return compute(r, x, y, 0., sum<double>); }
double sub_f64_rounded(Rounding r, double x, double y) {
  return compute(r, x, y, 0., difference<double>);
}
double mul_f64_rounded(Rounding r, double x, double y) {
  return compute(r, x, y, 0., product<double>);
}
double div_f64_rounded(Rounding r, double x, double y) {
  return compute(r, x, y, 0., quotient<double>);
}
double sqrt_f64_rounded(Rounding r, double x) {
  return compute(r, x, 0., 0., [](double a, double, double) { return sqrt(a); });
}
double fma_f64_rounded(Rounding r, double x, double y, double z) {
  return compute(r, x, y, z, fused_f64);
}
double f64_of_signed_rounded(Rounding r, int64_t x) { return converted<double>(r, x); }
double f64_of_unsigned_rounded(Rounding r, uint64_t x) { return converted<double>(r, x); }

}  // extern "C"

}  // namespace cusim
