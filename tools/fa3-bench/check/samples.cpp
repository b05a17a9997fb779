#include "check/samples.h"

#include <atomic>
#include <cstring>
#include <numeric>

#include "half.h"
#include "parallel.h"
#include "random.h"

namespace fa3::bench {

Place sample(uint64_t seed, int64_t n, const std::vector<int64_t>& rows, int64_t heads) {
  tools::Random random(tools::mix(seed, uint64_t(n)));
  size_t b = 0;
  if (n % 2 == 0) {
    do b = size_t(random.between(0, int64_t(rows.size()) - 1));
    while (rows[b] == 0);
  } else {
    int64_t row = random.between(0, std::reduce(rows.begin(), rows.end()) - 1);
    while (row >= rows[b]) row -= rows[b++];
  }
  const int64_t h = random.between(0, heads - 1), last = rows[b] - 1;
  return {int64_t(b), n == 0 ? 0 : n == 1 ? last : random.between(0, last), h};
}

std::string first_problem(int64_t count, const std::function<std::string(int64_t n)>& check) {
  std::vector<std::string> answers(static_cast<size_t>(count));
  tools::parallel_for(count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) answers[size_t(n)] = check(n);
  });
  for (const std::string& answer : answers)
    if (!answer.empty()) return answer;
  return "";
}

std::string wrong(const char* what, const Place& place, double is, double should) {
  return std::string(what) + " of batch " + std::to_string(place.batch) + " row " + std::to_string(place.row) +
         " head " + std::to_string(place.head) + " is " + std::to_string(is) + ", should be " + std::to_string(should);
}

Vector read_row(const void* tensor, int64_t at, int64_t count, fa3_dtype dtype, int64_t period) {
  Vector row(static_cast<size_t>(count));
  at %= period;
  for (double& x : row) {
    x = tools::read_element(tensor, at, dtype);
    if (++at == period) at = 0;
  }
  return row;
}

double dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (size_t c = 0; c < a.size(); ++c) sum += a[c] * b[c];
  return sum;
}

template <class T>
static std::string find_poison(const char* what, const T* data, int64_t count) {
  T poison;
  std::memset(&poison, poison_byte, sizeof poison);
  std::atomic<bool> found = false;
  tools::parallel_for(count, 1 << 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      if (std::memcmp(&data[i], &poison, sizeof poison) == 0) {
        found = true;
        return;
      }
  });
  return found ? std::string("an element of ") + what + " was not written" : "";
}

std::string unwritten(const char* what, const uint16_t* data, int64_t count) { return find_poison(what, data, count); }
std::string unwritten(const char* what, const float* data, int64_t count) { return find_poison(what, data, count); }

}  // namespace fa3::bench
