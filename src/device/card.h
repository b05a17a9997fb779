// What plans depend on of a GPU, and the GPUs that are known. Of the current context's device the driver says it.
#pragma once
#include <cstdint>

namespace fa3 {

struct Card {
  int32_t multiprocessors;
  int32_t memory_bytes_per_us;  // as the driver has it, of all memory; 0: it does not say
  int32_t cache_bytes;          // of the L2 cache
  int32_t clock_kilohertz;      // the highest of a multiprocessor
  int32_t product_clocks = 1;   // its matrix products take so many times the clocks of an H100's

  constexpr bool operator==(const Card&) const = default;
};

// HBM moves data twice in a clock.
constexpr int32_t memory_bytes_per_us(int64_t kilohertz, int64_t bits) {
  return static_cast<int32_t>(kilohertz * bits / (8 * 1000 / 2));
}

struct NamedCard {
  const char* name;
  Card card;
};
// The driver's attributes: multiprocessors, memory clock and bus, L2 cache, clock.
inline constexpr NamedCard known_cards[] = {
    // Read on these cards: "NVIDIA H100 80GB HBM3", "NVIDIA H200".
    {"h100", {132, memory_bytes_per_us(2'619'000, 5120), 50 << 20, 1'980'000}},
    {"h200", {132, memory_bytes_per_us(3'201'000, 6016), 60 << 20, 1'980'000}},
    // By data sheets: 2.0 TB/s of HBM2e, boost clock 1755 MHz.
    {"h100-pcie", {114, memory_bytes_per_us(1'593'000, 5120), 50 << 20, 1'755'000}},
    // 4.0 TB/s with 96 GB, 4.9 TB/s with 144 GB.
    {"gh200", {132, memory_bytes_per_us(2'619'000, 6144), 60 << 20, 1'980'000}},
    {"gh200-144", {132, memory_bytes_per_us(3'201'000, 6144), 60 << 20, 1'980'000}},
    // 4.0 TB/s; 148 TFLOP/s in 16 bits on 78 multiprocessors are a quarter of an H100's on each.
    {"h20", {78, memory_bytes_per_us(2'619'000, 6144), 60 << 20, 1'980'000, 4}},
};

// What is assumed where only a number of multiprocessors is known: an H200 with so many.
constexpr Card assumed_card(int32_t multiprocessors) {
  Card card = known_cards[1].card;
  card.multiprocessors = multiprocessors;
  return card;
}

// By what the driver says. It does not say how many clocks products take: of Hopper cards, an H20 has 78
// multiprocessors, and no other one has.
constexpr Card card_of_device(int32_t multiprocessors, int32_t memory_bytes_per_us, int32_t cache_bytes,
                              int32_t clock_kilohertz) {
  return {multiprocessors, memory_bytes_per_us, cache_bytes, clock_kilohertz, multiprocessors == 78 ? 4 : 1};
}

}  // namespace fa3
