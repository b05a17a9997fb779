// Inputs of FP8 points: N(0,1) in e4m3, and V as tiles.
#pragma once
#include <cstdint>
#include <vector>

#include "points/point.h"

namespace fa3::bench {

// The N(0,1) numbers of this seed, rounded to e4m3.
std::vector<uint8_t> normal_e4m3(uint64_t seed, size_t count);

// V of a point, packed rows of e4m3 that repeat themselves after `period` elements, as the tiles that fa3.h describes;
// keys beyond its length are 0.
std::vector<uint8_t> tiles_of(const Point& point, const uint8_t* v, int64_t period = INT64_MAX);

}  // namespace fa3::bench
