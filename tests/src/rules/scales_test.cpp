// The rules of the header about FP8: e4m3 with its scales, V as tiles, v_mean, lse_offset and flags.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <limits>
#include <string>

#include "../call.h"
#include "../validated.h"

namespace fa3::test {
namespace {

using Catch::Matchers::ContainsSubstring;

void* at(uintptr_t n) { return reinterpret_cast<void*>(n << 42); }

// Of the shape that imaginary_e4m3 has: batch 2, 130 queries, 300 keys, heads 4 and 2, head_dim 32.
void all_scales(P& p) {
  p.q_scale = tensor(at(6), FA3_DTYPE_FP32, {2, 4, 3});
  p.k_scale = tensor(at(7), FA3_DTYPE_FP32, {2, 2, 5});
  p.v_scale = tensor(at(8), FA3_DTYPE_FP32, {2, 2, 5});
}
void e4m3_o(P& p) { p.o.dtype = FA3_DTYPE_E4M3, p.o_scale = tensor(at(9), FA3_DTYPE_FP32, {1}); }
void v_mean(P& p) { p.v_mean = tensor(at(10), FA3_DTYPE_FP32, {2, 2, 32}); }
void lse_offset(P& p) { p.lse_offset = tensor(at(11), FA3_DTYPE_FP32, {2, 4, 130}); }
void v_tiles(P& p) { p.v = tensor(p.v.data, FA3_DTYPE_E4M3, {2, 2, 19, 32, 16}); }
void everything(P& p) { all_scales(p), e4m3_o(p), v_mean(p), lse_offset(p), v_tiles(p); }

// Refused whatever the pointers are.
const Change bad_shapes[] = {
    {"q.dtype is e5m2, which no function takes", unsupported, [](P& p) { p.q.dtype = FA3_DTYPE_E5M2; }},
    {"k.dtype is e5m2", unsupported, [](P& p) { p.k.dtype = FA3_DTYPE_E5M2; }},
    {"o.dtype is e5m2", unsupported, [](P& p) { p.o.dtype = FA3_DTYPE_E5M2; }},
    {"k.dtype is bf16, must be e4m3 as q's", invalid, [](P& p) { p.k.dtype = FA3_DTYPE_BF16; }},
    {"v.dtype is fp16, must be e4m3 as q's", invalid, [](P& p) { p.v.dtype = FA3_DTYPE_FP16; }},
    {"q_scale.rank is 3, must be 0 (absent): q_scale is for e4m3, and q.dtype is bf16", invalid,
     [](P& p) { p.q.dtype = FA3_DTYPE_BF16; }},
    {"o.dtype is fp32", unsupported, [](P& p) { p.o.dtype = FA3_DTYPE_FP32; }},
    {"o.dtype is e4m3, must be fp16 as q's", invalid,
     [](P& p) { e4m3_o(p), p.q.dtype = p.k.dtype = p.v.dtype = FA3_DTYPE_FP16; }},
    {"q_scale.dtype is e5m2", unsupported, [](P& p) { p.q_scale.dtype = FA3_DTYPE_E5M2; }},

    {"q.dim[3] (head_dim) is 24, must be a multiple of 16 from 16 to 256", invalid,
     [](P& p) { p.q.dim[3] = p.k.dim[3] = p.v.dim[3] = p.o.dim[3] = 24; }},
    {"q.dim[3] (head_dim) is 272; the largest", unsupported,
     [](P& p) { p.q.dim[3] = p.k.dim[3] = p.v.dim[3] = p.o.dim[3] = 272; }},
    {"q.stride[2] is 40, must be a multiple of 16", invalid, [](P& p) { p.q.stride[2] = 40; }},
    {"k.stride[1] is 72, must be a multiple of 16", invalid, [](P& p) { p.k.stride[1] = 72; }},
    {"v.stride[0] is 20008, must be a multiple of 16", invalid, [](P& p) { p.v.stride[0] = 20008; }},
    {"o.stride[0] is 16644, must be a multiple of 8", invalid, [](P& p) { p.o.stride[0] = 16644; }},
    {"o.stride[0] is 16648, must be a multiple of 16", invalid, [](P& p) { e4m3_o(p), p.o.stride[0] = 16648; }},

    {"q_scale is absent (its rank is 0), and q.dtype is e4m3", invalid, [](P& p) { p.q_scale = {}; }},
    {"k_scale is absent", invalid, [](P& p) { p.k_scale.rank = 0; }},
    {"v_scale is absent", invalid, [](P& p) { p.v_scale = {}; }},
    {"o_scale is absent (its rank is 0), and o.dtype is e4m3", invalid, [](P& p) { p.o.dtype = FA3_DTYPE_E4M3; }},
    {"o_scale.rank is 1, must be 0 (absent): o_scale is for e4m3, and o.dtype is bf16", invalid,
     [](P& p) { e4m3_o(p), p.o.dtype = FA3_DTYPE_BF16; }},

    {"q_scale.rank is 2, must be 3", invalid, [](P& p) { p.q_scale.rank = 2; }},
    {"k_scale.rank is -1, must be 3", invalid, [](P& p) { p.k_scale.rank = -1; }},
    {"v_scale.rank is 4, must be 3", invalid, [](P& p) { p.v_scale.rank = 4; }},
    {"q_scale.dtype is bf16, must be fp32", invalid, [](P& p) { p.q_scale.dtype = FA3_DTYPE_BF16; }},
    {"v_scale.dtype is 0, must be a fa3_dtype", invalid, [](P& p) { p.v_scale.dtype = FA3_DTYPE_NONE; }},
    {"q_scale.dim[0] is 3, must be 1 or q.dim[0], which is 2", invalid, [](P& p) { p.q_scale.dim[0] = 3; }},
    {"q_scale.dim[1] is 2, must be 1 or q.dim[2], which is 4", invalid, [](P& p) { p.q_scale.dim[1] = 2; }},
    {"q_scale.dim[2] is 2, must be 1 or the blocks of 64 rows in q.dim[1], 3", invalid,
     [](P& p) { p.q_scale.dim[2] = 2; }},
    {"k_scale.dim[0] is 0, must be 1 or k.dim[0], which is 2", invalid, [](P& p) { p.k_scale.dim[0] = 0; }},
    {"k_scale.dim[1] is 4, must be 1 or k.dim[2], which is 2", invalid, [](P& p) { p.k_scale.dim[1] = 4; }},
    {"k_scale.dim[2] is 3, must be 1 or the blocks of 64 rows in k.dim[1], 5", invalid,
     [](P& p) { p.k_scale.dim[2] = 3; }},
    {"v_scale.dim[2] is 4, must be 1 or the blocks of 64 rows in k.dim[1], 5", invalid,
     [](P& p) { p.v_scale.dim[2] = 4; }},
    {"k_scale.dim[2] is -1, must be from 0 to", invalid, [](P& p) { p.k_scale.dim[2] = -1; }},
    {"q_scale.stride[1] is -3, must be >= 0", invalid, [](P& p) { all_scales(p), p.q_scale.stride[1] = -3; }},
    {"k_scale.stride[0] is 2147483648, must be at most 2147483647", invalid,
     [](P& p) { all_scales(p), p.k_scale.stride[0] = int64_t{1} << 31; }},
    {"v_scale.dim[2] * v_scale.stride[2]", invalid,
     [](P& p) { all_scales(p), p.v_scale.stride[2] = int64_t{1} << 40; }},

    {"o_scale.rank is 3, must be 1", invalid, [](P& p) { e4m3_o(p), p.o_scale = p.q_scale; }},
    {"o_scale.dim[0] is 2, must be 1", invalid, [](P& p) { e4m3_o(p), p.o_scale.dim[0] = 2; }},
    {"o_scale.dim[0] is 0, must be 1", invalid, [](P& p) { e4m3_o(p), p.o_scale.dim[0] = 0; }},
    {"o_scale.dtype is fp16, must be fp32", invalid, [](P& p) { e4m3_o(p), p.o_scale.dtype = FA3_DTYPE_FP16; }},

    {"v_mean.rank is 4, must be 3", invalid, [](P& p) { v_mean(p), p.v_mean.rank = 4; }},
    {"v_mean.dtype is bf16, must be fp32", invalid, [](P& p) { v_mean(p), p.v_mean.dtype = FA3_DTYPE_BF16; }},
    {"v_mean.dim[0] is 1, must equal q.dim[0], which is 2", invalid, [](P& p) { v_mean(p), p.v_mean.dim[0] = 1; }},
    {"v_mean.dim[1] is 4, must equal k.dim[2], which is 2", invalid, [](P& p) { v_mean(p), p.v_mean.dim[1] = 4; }},
    {"v_mean.dim[2] is 16, must equal v.dim[3], which is 32", invalid, [](P& p) { v_mean(p), p.v_mean.dim[2] = 16; }},
    {"v_mean.stride[2] is 2, must be 1", invalid, [](P& p) { v_mean(p), p.v_mean.stride[2] = 2; }},
    {"v_mean.stride[1] is 34, must be a multiple of 4", invalid, [](P& p) { v_mean(p), p.v_mean.stride[1] = 34; }},
    {"v_mean.stride[0] is -64, must be >= 0", invalid, [](P& p) { v_mean(p), p.v_mean.stride[0] = -64; }},
    {"v_mean.stride[0] is 2147483648, must be at most", invalid,
     [](P& p) { v_mean(p), p.v_mean.stride[0] = int64_t{1} << 31; }},

    {"lse_offset.rank is 2, must be 3", invalid, [](P& p) { lse_offset(p), p.lse_offset.rank = 2; }},
    {"lse_offset.dtype is fp16", invalid, [](P& p) { lse_offset(p), p.lse_offset.dtype = FA3_DTYPE_FP16; }},
    {"lse_offset.dim[0] is 1, must equal q.dim[0]", invalid, [](P& p) { lse_offset(p), p.lse_offset.dim[0] = 1; }},
    {"lse_offset.dim[1] is 2, must equal q.dim[2]", invalid, [](P& p) { lse_offset(p), p.lse_offset.dim[1] = 2; }},
    {"lse_offset.dim[2] is 1, must equal q.dim[1]", invalid, [](P& p) { lse_offset(p), p.lse_offset.dim[2] = 1; }},
    {"lse_offset.stride[2] is -1, must be >= 0", invalid, [](P& p) { lse_offset(p), p.lse_offset.stride[2] = -1; }},

    {"v.rank is 3, must be 4, or 5 for tiles", invalid, [](P& p) { p.v.rank = 3; }},
    {"v.rank is 6, must be 4, or 5 for tiles", invalid, [](P& p) { p.v.rank = 6; }},
    {"v.dim[0] is 1, must equal q.dim[0]", invalid, [](P& p) { v_tiles(p), p.v.dim[0] = 1; }},
    {"v.dim[1] is 4, must equal k.dim[2], which is 2", invalid, [](P& p) { v_tiles(p), p.v.dim[1] = 4; }},
    {"v.dim[2] is 18, must be the groups of 16 keys in k.dim[1], 19", invalid,
     [](P& p) { v_tiles(p), p.v.dim[2] = 18; }},
    {"v.dim[2] is 20, must be the groups", invalid, [](P& p) { v_tiles(p), p.v.dim[2] = 20; }},
    {"v.dim[2] is -1, must be from 0 to", invalid, [](P& p) { v_tiles(p), p.v.dim[2] = -1; }},
    {"o.dim[3] is 32, must equal v.dim[3], which is 16", invalid, [](P& p) { v_tiles(p), p.v.dim[3] = 16; }},
    {"v.dim[3] (head_dim_v) is 24, must be a multiple of 16", invalid, [](P& p) { p.v.dim[3] = p.o.dim[3] = 24; }},
    {"v.dim[4] is 8, must be 16", invalid, [](P& p) { v_tiles(p), p.v.dim[4] = 8; }},
    {"v.stride[4] is 2, must be 1: a tile is", invalid, [](P& p) { v_tiles(p), p.v.stride[4] = 2; }},
    {"v.stride[3] is 32, must be 16: a tile is", invalid, [](P& p) { v_tiles(p), p.v.stride[3] = 32; }},
    {"v.stride[2] is 520, must be a multiple of 16", invalid, [](P& p) { v_tiles(p), p.v.stride[2] = 520; }},
    {"v.stride[1] is -16, must be >= 0", invalid, [](P& p) { v_tiles(p), p.v.stride[1] = -16; }},
    {"v.dim[0] * v.stride[0]", invalid, [](P& p) { v_tiles(p), p.v.stride[0] = int64_t{1} << 40; }},

    {"flags is 0x8", invalid, [](P& p) { p.flags = 8; }},
};

// Wrong in where the tensors lie.
const Change bad_pointers[] = {
    {"q_scale.data is NULL", invalid, [](P& p) { p.q_scale.data = nullptr; }},
    {"k_scale.data is NULL", invalid, [](P& p) { p.k_scale.data = nullptr; }},
    {"v_scale.data is NULL", invalid, [](P& p) { p.v_scale.data = nullptr; }},
    {"o_scale.data is NULL", invalid, [](P& p) { e4m3_o(p), p.o_scale.data = nullptr; }},
    {"v_mean.data is NULL", invalid, [](P& p) { v_mean(p), p.v_mean.data = nullptr; }},
    {"lse_offset.data is NULL", invalid, [](P& p) { lse_offset(p), p.lse_offset.data = nullptr; }},
    {"v.data is NULL", invalid, [](P& p) { v_tiles(p), p.v.data = nullptr; }},
    {"must be aligned to 16 bytes", invalid, [](P& p) { move(p.q, 8); }},
    {"must be aligned to 16 bytes", invalid, [](P& p) { v_tiles(p), move(p.v, 8); }},
    {"v_mean.data is 0x", invalid, [](P& p) { v_mean(p), move(p.v_mean, 8); }},
    {"k_scale.data is 0x", invalid, [](P& p) { move(p.k_scale, 2); }},
    {"lse_offset.data is 0x", invalid, [](P& p) { lse_offset(p), move(p.lse_offset, 1); }},
    {"q_scale reaches beyond the address space", invalid,
     [](P& p) { all_scales(p), p.q_scale.data = reinterpret_cast<void*>(UINTPTR_MAX - 63); }},
    {"o may overlap q_scale", invalid, [](P& p) { p.q_scale.data = p.o.data; }},
    {"o may overlap k_scale", invalid,
     [](P& p) { p.k_scale.data = p.o.data, move(p.k_scale, 2 * 130 * 4 * 32 * 2 - 4); }},
    {"lse may overlap v_scale", invalid, [](P& p) { p.v_scale.data = p.lse.data; }},
    {"o may overlap o_scale", invalid, [](P& p) { e4m3_o(p), p.o_scale.data = p.o.data; }},
    {"o may overlap v_mean", invalid, [](P& p) { v_mean(p), p.v_mean.data = p.o.data; }},
    {"lse may overlap lse_offset", invalid, [](P& p) { lse_offset(p), p.lse_offset.data = p.lse.data; }},
    {"o may overlap v", invalid,
     [](P& p) { v_tiles(p), p.o.data = p.v.data, move(p.o, 2 * 2 * 19 * 32 * 16 - 16); }},
};

// What is unusual, and right.
const Change good[] = {
    {"one scale each", FA3_OK, [](P&) {}},
    {"everything", FA3_OK, everything},
    {"scales of each head", FA3_OK,
     [](P& p) {
       p.q_scale = tensor(at(6), FA3_DTYPE_FP32, {2, 4, 1}), p.k_scale = tensor(at(7), FA3_DTYPE_FP32, {2, 2, 1});
     }},
    {"scales that repeat", FA3_OK,
     [](P& p) { all_scales(p), set_strides(p.q_scale, {0, 0, 0}), set_strides(p.v_scale, {1, 0, 2}); }},
    {"strides of scales up to 2^31", FA3_OK, [](P& p) { all_scales(p), p.k_scale.stride[0] = INT32_MAX; }},
    {"one scale, any stride", FA3_OK,
     [](P& p) { set_strides(p.q_scale, {-1, std::numeric_limits<int64_t>::max(), int64_t{1} << 40}); }},
    {"inputs may overlap", FA3_OK, [](P& p) { p.k_scale.data = p.v_scale.data = p.q_scale.data; }},
    {"o fp16", FA3_OK, [](P& p) { p.o.dtype = FA3_DTYPE_FP16; }},
    {"two levels", FA3_OK, [](P& p) { p.flags = FA3_FLAG_TWO_LEVEL | FA3_FLAG_DETERMINISTIC; }},
    {"v_mean with gaps", FA3_OK, [](P& p) { v_mean(p), set_strides(p.v_mean, {0, 36, 1}); }},
    {"lse_offset that repeats", FA3_OK, [](P& p) { lse_offset(p), set_strides(p.lse_offset, {0, 0, 0}); }},
    {"lse_offset without lse", FA3_OK,
     [](P& p) { lse_offset(p), p.lse = {}, p.lse_offset.dim[0] = -7, p.lse_offset.data = nullptr; }},
    {"tiles shared by heads and batch", FA3_OK, [](P& p) { v_tiles(p), p.v.stride[0] = p.v.stride[1] = 0; }},
    {"no keys", FA3_OK,
     [](P& p) {
       everything(p), p.k.dim[1] = p.v.dim[2] = p.k_scale.dim[2] = 0, p.v_scale.dim[2] = 1;
       p.k.data = p.v.data = p.k_scale.data = nullptr;
     }},
};

}  // namespace

TEST_CASE("bad FP8 arguments are refused", "[scales]") {
  for (const Change& change : bad_shapes) {
    P p = imaginary_e4m3();
    change.apply(p);
    expect(fa3_forward_check(&p), change);
    for (const Rules rules : {Rules::device, Rules::shapes}) refuse(p, rules, change);
  }
  for (const Change& change : bad_pointers) {
    P p = imaginary_e4m3();
    change.apply(p);
    expect(fa3_forward_check(&p), change);
    refuse(p, Rules::device, change);
    accept(p, Rules::shapes);
  }
}

TEST_CASE("the tensors of FP8 are for nothing else", "[scales]") {
  const auto refused = [](void (*add)(P&), const char* name) {
    P p = imaginary({2, 130, 300, 4, 2, 32});
    add(p);
    const Change change{name, invalid, add};
    expect(fa3_forward_check(&p), change);
    expect(fa3_reference_forward(&p, 1), change);
  };
  refused([](P& p) { p.q_scale = imaginary_e4m3().q_scale; },
          "q_scale.rank is 3, must be 0 (absent): q_scale is for e4m3, and q.dtype is bf16");
  refused([](P& p) { p.k_scale.rank = 1; }, "k_scale.rank is 1, must be 0 (absent)");
  refused([](P& p) { p.v_scale.rank = -1; }, "v_scale.rank is -1, must be 0 (absent)");
  refused([](P& p) { p.o_scale.rank = 1; }, "o_scale.rank is 1, must be 0 (absent)");
  refused(v_mean, "v_mean.rank is 3, must be 0 (absent)");
  refused(lse_offset, "lse_offset.rank is 3, must be 0 (absent)");
  refused([](P& p) { v_tiles(p), p.v.dtype = FA3_DTYPE_BF16; }, "v.rank is 5, must be 4");
  refused([](P& p) { p.flags = FA3_FLAG_TWO_LEVEL; },
          "flags has FA3_FLAG_TWO_LEVEL, which is for e4m3; q.dtype is bf16");
}

TEST_CASE("unusual FP8 arguments that are right", "[scales]") {
  for (const Change& change : good) {
    INFO(change.name);
    P p = imaginary_e4m3();
    change.apply(p);
    for (const Rules rules : {Rules::device, Rules::shapes}) accept(p, rules);
  }
  // Where no pointer is looked at, none need be there.
  P p = imaginary_e4m3();
  everything(p);
  for (fa3_tensor* t : {&p.q, &p.k, &p.v, &p.o, &p.q_scale, &p.k_scale, &p.v_scale, &p.o_scale, &p.v_mean,
                        &p.lse_offset})
    t->data = nullptr;
  accept(p, Rules::shapes);
}

TEST_CASE("the reference takes scales at any distance", "[scales]") {
  P p = imaginary_e4m3();
  all_scales(p);
  p.k_scale.stride[0] = int64_t{1} << 31;
  accept(p, Rules::reference);
}

TEST_CASE("what is there is described, what is absent is empty", "[scales]") {
  P p = imaginary_e4m3();
  ForwardProblem problem = accept(p, Rules::device);
  for (const View* view : {&problem.o_scale, &problem.v_mean, &problem.lse_offset})
    CHECK((view->data == nullptr && view->empty()));
  CHECK((!problem.v_tiles && !problem.kv_blocks && !problem.two_level));
  check_view(problem.q_scale, p.q_scale, {1, 1, 1, 1}, {0, 0, 0, 0});
  check_view(problem.v, p.v, {2, 300, 2, 32}, {300 * 64, 64, 32, 1});

  everything(p);
  p.flags = FA3_FLAG_TWO_LEVEL;
  problem = accept(p, Rules::device);
  CHECK((problem.v_tiles && problem.kv_blocks && problem.two_level));
  check_view(problem.q_scale, p.q_scale, {2, 4, 3, 1}, {12, 3, 1, 0});
  check_view(problem.k_scale, p.k_scale, {2, 2, 5, 1}, {10, 5, 1, 0});
  check_view(problem.v_scale, p.v_scale, {2, 2, 5, 1}, {10, 5, 1, 0});
  check_view(problem.o_scale, p.o_scale, {1, 1, 1, 1}, {0, 0, 0, 0});
  check_view(problem.v_mean, p.v_mean, {2, 2, 32, 1}, {64, 32, 1, 0});
  check_view(problem.lse_offset, p.lse_offset, {2, 4, 130, 1}, {520, 130, 1, 0});
  check_view(problem.v, p.v, {2, 19, 2, 512}, {2 * 19 * 512, 512, 19 * 512, 1});

  p = imaginary_e4m3();
  p.q_scale = tensor(at(6), FA3_DTYPE_FP32, {1, 1, 3});
  CHECK(!accept(p, Rules::device).kv_blocks);
  p.v_scale = tensor(at(8), FA3_DTYPE_FP32, {1, 1, 5});
  CHECK(accept(p, Rules::device).kv_blocks);
  p.v_scale = p.k_scale, p.k_scale = tensor(at(7), FA3_DTYPE_FP32, {1, 2, 5});
  CHECK(accept(p, Rules::device).kv_blocks);
  // Without lse there is nothing to add an offset to.
  lse_offset(p), p.lse = {};
  CHECK(accept(p, Rules::device).lse_offset.empty());
}

TEST_CASE("rows with scales for blocks are for blocks, unless they are named", "[scales]") {
  const auto rows_for = [](const P& p) {
    Fit found;
    REQUIRE(fit(accept(p, Rules::device), found) == FA3_OK);
    REQUIRE(found.count == 1);
    return std::string(rows[found.rows[0]].name);
  };
  P p = imaginary_e4m3();
  CHECK(rows_for(p) == "fa3_fwd_e4m3_d64_full_256x64");
  p.kernel = "fa3_fwdblockscales_e4m3_d64_full_256x64";
  CHECK(rows_for(p) == p.kernel);

  all_scales(p);
  CHECK(rows_for(p) == p.kernel);
  p.kernel = nullptr;
  CHECK(rows_for(p) == "fa3_fwdblockscales_e4m3_d64_full_256x64");
  p.kernel = "fa3_fwd_e4m3_d64_full_256x64";
  Fit none;
  CHECK(fit(accept(p, Rules::device), none) == FA3_ERROR_INVALID_ARGUMENT);
  CHECK_THAT(last_message(), ContainsSubstring("takes one scale for each head of K and V; k_scale and v_scale have 5"));
}

TEST_CASE("a named kernel for another form of FP8 is refused, and the message says which", "[scales]") {
  const auto refused = [](P p, const char* kernel, const char* why) {
    p.kernel = kernel;
    CHECK(fa3_forward_check(&p) == invalid);
    CHECK(fa3_last_error_message() == "params->kernel is " + std::string(kernel) + ", which " + why);
  };
  P p = imaginary_e4m3();
  refused(p, "fa3_fwdvtiles_e4m3_d64_full_256x64", "is for v as tiles; v.rank is 4");
  refused(p, "fa3_fwdtwolevel_e4m3_d64_full_192x64", "is for calls with FA3_FLAG_TWO_LEVEL");
  p.flags = FA3_FLAG_TWO_LEVEL;
  refused(p, "fa3_fwd_e4m3_d64_full_256x64", "is for calls without FA3_FLAG_TWO_LEVEL");
  v_tiles(p);
  refused(p, "fa3_fwdtwolevel_e4m3_d64_full_192x64", "is for v row by row; v.rank is 5");
}

TEST_CASE("the workspace is apart from the tensors of FP8, too", "[scales]") {
  P p = imaginary_e4m3();
  everything(p);
  const ForwardProblem problem = accept(p, Rules::device);
  const struct {
    const char* name;
    const fa3_tensor& tensor;
  } tensors[] = {{"v", p.v},          {"q_scale", p.q_scale}, {"k_scale", p.k_scale},      {"v_scale", p.v_scale},
                 {"o_scale", p.o_scale}, {"v_mean", p.v_mean},   {"lse_offset", p.lse_offset}};
  for (const auto& t : tensors) {
    CHECK(validate_workspace(problem, t.tensor.data, 64, 64) == invalid);
    CHECK_THAT(last_message(), ContainsSubstring("workspace may overlap " + std::string(t.name)));
    CHECK(validate_workspace(problem, static_cast<char*>(t.tensor.data) - 64, 64, 64) == FA3_OK);
  }
}

}  // namespace fa3::test
