// Arithmetic of the CPU references: products of matrices and exponentials in float64, several numbers at a time. Every
// sum has an order of its own that does not depend on how many.
#pragma once
#include <bit>
#include <cstdint>

namespace fa3 {

inline constexpr int lanes = 8;  // rows side by side in a panel; columns computed together

constexpr int round_up(int n, int multiple) { return (n + multiple - 1) / multiple * multiple; }

// `width` doubles that are computed together; the code below is compiled for each width that machines have.
template <int width>
struct Vectors {
  typedef double Doubles __attribute__((vector_size(width * sizeof(double)), may_alias));
  typedef int64_t Integers __attribute__((vector_size(width * sizeof(int64_t)), may_alias));
};

// Function::run<width>, compiled for a machine that has such vectors together with all that computes with them, which
// has to be always_inline.
template <class Function, class... Arguments>
void run_with_2(Arguments... arguments) {
  Function::template run<2>(arguments...);
}
// Of clang only late versions can ask for these machines by name.
#if defined(__x86_64__) && !defined(__clang__)
#define FA3_WIDE_VECTORS
template <class Function, class... Arguments>
[[gnu::target("arch=x86-64-v3")]] void run_with_4(Arguments... arguments) {
  Function::template run<4>(arguments...);
}
template <class Function, class... Arguments>
[[gnu::target("arch=x86-64-v4")]] void run_with_8(Arguments... arguments) {
  Function::template run<8>(arguments...);
}
#endif
// The widest that this machine has, up to so many doubles.
template <class Function, class... Arguments>
auto choose_width([[maybe_unused]] int widest) -> void (*)(Arguments...) {
#ifdef FA3_WIDE_VECTORS
  if (widest >= 8 && __builtin_cpu_supports("x86-64-v4")) return run_with_8<Function, Arguments...>;
  if (widest >= 4 && __builtin_cpu_supports("x86-64-v3")) return run_with_4<Function, Arguments...>;
#endif
  return run_with_2<Function, Arguments...>;
}

// C (rows x lanes) += A (rows x depth) B (depth x lanes), A being at a[row * a_row + column * a_column]. With `width`
// rows the sums fill eight registers, which hides the latency of an addition.
template <int width, int rows>
[[gnu::always_inline]] inline void multiply(int depth, const double* a, int a_row, int a_column, const double* b,
                                            int b_row, double* c, int c_row) {
  using Vector = typename Vectors<width>::Doubles;
  constexpr int vectors = lanes / width;
  Vector sum[rows][vectors];
  for (int r = 0; r < rows; ++r)
    for (int i = 0; i < vectors; ++i) sum[r][i] = reinterpret_cast<const Vector*>(c + r * c_row)[i];
  for (int x = 0; x < depth; ++x)
    for (int r = 0; r < rows; ++r)
      for (int i = 0; i < vectors; ++i)
        sum[r][i] += a[r * a_row + x * a_column] * reinterpret_cast<const Vector*>(b + x * b_row)[i];
  for (int r = 0; r < rows; ++r)
    for (int i = 0; i < vectors; ++i) reinterpret_cast<Vector*>(c + r * c_row)[i] = sum[r][i];
}

// x = exp(x), to 0.8 units in the last place: exp(x) = 2^n exp(r) with r = x - n ln 2. r is kept in
// two parts, high and low, of which high is exact, and so is 1 + high, as sum and lost. The Taylor series is that of
// (exp(r) - 1 - r) / r^2; the first term left out of exp(r) is below 2^-57. 2^n comes in two factors, as it may be
// subnormal. (By reference, because how a function takes and returns vectors depends on the machine.)
template <class Vector>
[[gnu::always_inline]] inline void exponentiate(Vector& x) {
  typedef uint64_t Bits __attribute__((vector_size(sizeof(Vector))));
  constexpr double log2_e = 0x1.71547652b82fep+0;
  constexpr double ln2_high = 0x1.62e42fefa38p-1, ln2_low = 0x1.ef35793c7673p-45;  // n * ln2_high is exact
  constexpr double to_integer = 0x1.8p52;  // added, it leaves no bits for a fraction
  constexpr double factorials[] = {2, 6, 24, 120, 720, 5040, 40320, 362880, 3628800, 39916800, 479001600, 6227020800};
  x = x < -746 ? Vector{} - 746 : x;  // exp(-746) is 0
  x = x > 710 ? Vector{} + 710 : x;   // and exp(710) infinite
  const Vector shifted = x * log2_e + to_integer, n = shifted - to_integer;
  const Vector high = x - n * ln2_high, low = -(n * ln2_low), r = high + low;
  Vector series{};
  for (int i = 11; i >= 0; --i) series = series * r + 1 / factorials[i];
  const Vector sum = 1 + high, lost = high - (sum - 1);
  const Vector power = sum + (lost + (low + series * (r * r)));
  const Bits exponents = reinterpret_cast<Bits>(shifted) - std::bit_cast<uint64_t>(to_integer) + 2 * 1023;  // of both
  const Bits half = exponents >> 1;
  x = power * reinterpret_cast<Vector>(half << 52) * reinterpret_cast<Vector>((exponents - half) << 52);
}

// x becomes tanh(x), near 0 by its series, elsewhere by the exponential.
template <class Vector>
[[gnu::always_inline]] inline void to_tanh(Vector& x) {
  const Vector square = x * x, magnitude = x < 0 ? -x : x;
  const Vector small = x + x * square * (-1.0 / 3 + square * (2.0 / 15 - square * (17.0 / 315)));
  Vector e = magnitude * -2;
  exponentiate(e);
  const Vector large = (1 - e) / (1 + e);
  x = magnitude < 0.01 ? small : x < 0 ? -large : large;
}

}  // namespace fa3
