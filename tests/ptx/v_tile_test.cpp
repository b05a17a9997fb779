// 8-bit P V byte by byte: the instructions that make P the A operand, that transpose V into its tiles, that multiply
// and that store, all emulated from the PTX ISA's descriptions. What stands where is followed, not numbers: a key of P
// must meet the same key of V, and every column of O must leave to its own place.
#include "params/v_tile.h"

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <vector>

#include "table/row.h"

namespace fa3::test {
namespace {

// An element of a matrix, wherever its byte is.
struct Element {
  int row = -1, column = -1;
  bool operator==(const Element&) const = default;
};
using Word = std::array<Element, 4>;  // a register of bytes
using Memory = std::vector<Element>;  // shared memory, a byte each

constexpr int lanes = 32;

// wgmma, register fragment of the accumulator D (m64nN): of the row and column in register `i` of a lane.
Element in_accumulator(int warp, int lane, int i) {
  return {16 * warp + lane / 4 + i / 2 % 2 * 8, i / 4 * 8 + lane % 4 * 2 + i % 2};
}

// wgmma, register fragment of A of 8 bits (m64k32): of the row and k in byte `byte` of register `i`.
Element in_a(int warp, int lane, int i, int byte) {
  return {16 * warp + lane / 4 + i % 2 * 8, i / 2 * 16 + lane % 4 * 4 + byte};
}

// prmt, in its default mode: each digit of the selector names a byte of b and a, from a's lowest on.
Word permute(const Word& a, const Word& b, uint32_t selector) {
  Word result;
  for (size_t i = 0; i < 4; ++i) {
    const uint32_t digit = selector >> 4 * i & 7;
    result[i] = digit < 4 ? a[digit] : b[digit - 4];
  }
  return result;
}

// ldmatrix.x4.trans: four 8 x 8 matrices of 16-bit elements; lanes 8 m .. 8 m + 7 address the rows of matrix m. A lane
// gets of each two elements below each other: of rows 2 (lane % 4) and the next, in column lane / 4.
std::array<std::array<Word, 4>, lanes> ldmatrix_x4_trans(const Memory& memory, const std::array<int, lanes>& address) {
  std::array<std::array<Word, 4>, lanes> result;
  for (size_t lane = 0; lane < lanes; ++lane)
    for (size_t m = 0; m < 4; ++m)
      for (size_t half = 0; half < 2; ++half)
        for (size_t byte = 0; byte < 2; ++byte)
          result[lane][m][2 * half + byte] =
              memory.at(size_t(address[8 * m + lane % 4 * 2 + half]) + lane / 4 * 2 + byte);
  return result;
}

// stmatrix.x4: lane l's register m holds the bytes 4 (l % 4) .. + 3 of row l / 4 of matrix m.
void stmatrix_x4(Memory& memory, const std::array<int, lanes>& address,
                 const std::array<std::array<Word, 4>, lanes>& registers) {
  for (size_t lane = 0; lane < lanes; ++lane)
    for (size_t m = 0; m < 4; ++m)
      for (size_t byte = 0; byte < 4; ++byte) {
        Element& to = memory.at(size_t(address[8 * m + lane / 4]) + lane % 4 * 4 + byte);
        REQUIRE(to == Element{});
        to = registers[lane][m][byte];
      }
}

// TMA with a swizzle, as it puts a box of rows into shared memory: slabs of slab_bytes, in which bits 4-6 of the
// address are xor-ed with bits 7-9, or, in rows of 64 bytes, bits 4-5 with bits 7-8.
Memory loaded_rows(const ForwardRow& row) {
  Memory memory(size_t(row.v_block_bytes()));
  const int bytes = row.slab_bytes();
  for (int key = 0; key < row.Bc; ++key)
    for (int column = 0; column < row.dv; ++column) {
      const int at = column / bytes * row.Bc * bytes + key * bytes + column % bytes;
      memory.at(size_t(at ^ (at >> 7 & (bytes == 128 ? 7 : 3)) << 4)) = {key, column};
    }
  return memory;
}

// ptx/tile/loads/transpose.cuh, both warps.
Memory transposed(const ForwardRow& row) {
  const Memory source = loaded_rows(row);
  Memory target(source.size());
  const int slab_bytes = row.slab_bytes(), half_bytes = row.dv / 2;
  const auto swizzled = [&](int key) { return slab_bytes == 128 ? key % 8 : key / 2 % 4; };
  for (int half = 0; half < 2; ++half)
    for (int key = 0; key < row.Bc; key += 32)
      for (int chunk = 0; chunk < half_bytes / 16; ++chunk) {
        std::array<int, lanes> from, to;
        for (int lane = 0; lane < lanes; ++lane) {
          const int first = half * (half_bytes / slab_bytes) * (row.Bc * slab_bytes) + lane * slab_bytes +
                            ((half * (half_bytes / 16) % 8 ^ swizzled(lane)) << 4);
          // Chunks beyond a slab would need another one.
          REQUIRE(half_bytes <= slab_bytes);
          from[size_t(lane)] = (first + key * slab_bytes) ^ chunk << 4;
          to[size_t(lane)] = (lane / 16 * row.dv + half * half_bytes + lane % 16) * 16 + key * row.dv + chunk * 256;
        }
        const auto keys = ldmatrix_x4_trans(source, from);
        std::array<std::array<Word, 4>, lanes> out;
        for (size_t lane = 0; lane < lanes; ++lane) {
          const auto& k = keys[lane];
          out[lane] = {permute(k[0], k[1], 0x6420), permute(k[0], k[1], 0x7531), permute(k[2], k[3], 0x6420),
                       permute(k[2], k[3], 0x7531)};
        }
        stmatrix_x4(target, to, out);
      }
  return target;
}

// A tile as fa3.h describes it, in its words.
Memory documented(const ForwardRow& row) {
  Memory memory(size_t(row.v_block_bytes()));
  for (int g = 0; g < row.Bc / 16; ++g)
    for (int a = 0; a < row.dv / 16; ++a)
      for (int c = 0; c < 2; ++c)
        for (int r = 0; r < 8; ++r)
          for (int q = 0; q < 4; ++q)
            for (int b = 0; b < 2; ++b)
              for (int e = 0; e < 2; ++e)
                memory.at(size_t((g * row.dv + 16 * a + 8 * c + r) * 16 + 4 * q + 2 * b + e)) = {
                    16 * g + 8 * b + 2 * q + e, 16 * a + 2 * r + c};
  return memory;
}

// The B operand without a swizzle, k contiguous: core matrices of 8 columns and 16 bytes, `leading` apart along k and
// `stride` along n.
Element in_b(const Memory& memory, int start, int leading, int stride, int k, int n) {
  return memory.at(size_t(start + k / 16 * leading + n / 8 * stride + n % 8 * 16 + k % 16));
}

template <class Check>
void for_rows_of_8_bits(Check check) {
  for (const ForwardRow& row : forward_rows) {
    if (!row.is_8bit()) continue;
    INFO(row.name);
    check(row);
  }
}

}  // namespace

TEST_CASE("the functions of V's tiles are what fa3.h says, and each other's inverses", "[v_tile]") {
  for (int a = 0; a < 16; ++a)
    for (int c = 0; c < 2; ++c)
      for (int r = 0; r < 8; ++r) {
        CHECK(v_tile_column(16 * a + 8 * c + r) == 16 * a + 2 * r + c);
        CHECK(v_tile_row(16 * a + 2 * r + c) == 16 * a + 8 * c + r);
      }
  for (int q = 0; q < 4; ++q)
    for (int b = 0; b < 2; ++b)
      for (int e = 0; e < 2; ++e) {
        CHECK(v_tile_key(4 * q + 2 * b + e) == 8 * b + 2 * q + e);
        CHECK(v_tile_byte(8 * b + 2 * q + e) == 4 * q + 2 * b + e);
      }
}

TEST_CASE("ldmatrix, prmt and stmatrix make V's tiles of its rows", "[v_tile]") {
  int transposing = 0;
  for_rows_of_8_bits([&](const ForwardRow& row) {
    if (!row.transposes_v()) return;
    ++transposing;
    CHECK(transposed(row) == documented(row));
  });
  CHECK(transposing > 0);
}

TEST_CASE("each key of P meets the same key of V", "[v_tile]") {
  for_rows_of_8_bits([](const ForwardRow& row) {
    const Memory v = documented(row);
    std::vector<bool> met(size_t(row.Bc));
    for (int step = 0; step < row.Bc / 32; ++step) {
      // convert in ptx/tile/scores/softmax.cuh, then the A operand of this step: the key in each of its columns.
      std::array<std::array<int, 32>, 64> keys;
      for (int warp = 0; warp < 4; ++warp)
        for (int lane = 0; lane < lanes; ++lane)
          for (int i = 0; i < 4; ++i) {
            const int first = 8 * (2 * step + i / 2) + 2 * (i % 2);
            const int packed[4] = {first, first + 1, first + 4, first + 5};
            for (int byte = 0; byte < 4; ++byte) {
              const Element score = in_accumulator(warp, lane, packed[byte]), a = in_a(warp, lane, i, byte);
              REQUIRE(score.row == a.row);
              keys[size_t(a.row)][size_t(a.column)] = score.column;
            }
          }
      for (int k = 0; k < 32; ++k) {
        const int key = keys[0][size_t(k)];
        met.at(size_t(key)) = true;
        for (int r = 0; r < 64; ++r) REQUIRE(keys[size_t(r)][size_t(k)] == key);
        // issue_pv and v_descriptor in ptx/tile/gemm.cuh
        for (int n = 0; n < row.dv; ++n)
          REQUIRE(in_b(v, step * 32 * row.dv, 16 * row.dv, 8 * 16, k, n) == Element{key, v_tile_column(n)});
      }
    }
    CHECK(met == std::vector<bool>(size_t(row.Bc), true));
  });
}

TEST_CASE("every column of O is stored in its place", "[v_tile]") {
  for_rows_of_8_bits([](const ForwardRow& row) {
    std::vector<std::vector<bool>> stored(64, std::vector<bool>(size_t(row.dv)));
    for (int warp = 0; warp < 4; ++warp)
      for (int lane = 0; lane < lanes; ++lane)
        for (int i = 0; i < 2; ++i)
          for (int k = 0; k < row.dv / 16; ++k) {
            // store_scaled_o in ptx/tile/epilogue/epilogue.cuh
            const int to_row = 16 * warp + lane / 4 + 8 * i, to_column = 16 * k + 4 * (lane % 4);
            const int from[4] = {8 * k + 2 * i, 8 * k + 4 + 2 * i, 8 * k + 2 * i + 1, 8 * k + 4 + 2 * i + 1};
            for (int x = 0; x < 4; ++x) {
              const Element o = in_accumulator(warp, lane, from[x]);
              REQUIRE(o.row == to_row);
              REQUIRE(v_tile_column(o.column) == to_column + x);
              REQUIRE_FALSE(stored[size_t(to_row)][size_t(to_column + x)]);
              stored[size_t(to_row)][size_t(to_column + x)] = true;
            }
          }
    for (const std::vector<bool>& columns : stored) CHECK(columns == std::vector<bool>(size_t(row.dv), true));
  });
}

}  // namespace fa3::test
