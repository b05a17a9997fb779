#include <algorithm>
#include <cstring>

#include "append/append.h"
#include "error.h"
#include "rules/rotary.h"
#include "rules/tensor.h"

namespace fa3 {
namespace {

using Status = fa3_status;
constexpr Status invalid = FA3_ERROR_INVALID_ARGUMENT, unsupported = FA3_ERROR_UNSUPPORTED;

// No field was ever put into padding, so there is none.
static_assert(sizeof(fa3_append_params) == sizeof(size_t) + sizeof(uint64_t) + 18 * sizeof(fa3_tensor));

constexpr uint64_t known_flags = FA3_APPEND_ROTARY_INTERLEAVED;
constexpr int64_t max_head_dim = 1024;
// Rows and warps are numbered in 32 bits, with a few more than there are.
constexpr int64_t max_count = INT32_MAX - 65536;

Status must_be_absent(const char* name, const fa3_tensor& tensor, const char* why) {
  if (!is_there(tensor)) return FA3_OK;
  return fail(invalid, "%s is given, must be absent %s", name, why);
}

Status must_be_given(const char* name, const fa3_tensor& tensor, const char* why) {
  if (is_there(tensor)) return FA3_OK;
  return fail(invalid, "%s is absent, must be given %s", name, why);
}

Expected input(const char* name, int rank, bool wide) { return {name, rank, false, wide, true, false}; }
Expected output(const char* name, int rank) { return {name, rank, true, true, true, false}; }

// New rows of k, v or q, and their output.
struct Pair {
  const char *name, *out_name, *scale_name, *head_dim;
  fa3_tensor x, y;  // packed ones get a batch of 1 before their dims
  const fa3_tensor& scale;
  Appended& made;
  Expected expected_x = input(name, 4, true), expected_y = output(out_name, 4);
};

// One call's checks.
class Check {
 public:
  Check(const fa3_append_params& p, AppendProblem& problem) : p_(p), problem_(problem) {}

  Status all() {
    if (p_.flags & ~known_flags)
      return fail(invalid, "flags is 0x%llx, has bits that this version does not know",
                  static_cast<unsigned long long>(p_.flags));
    if (Status status = presence()) return status;
    Pair k{"k", "k_cache", "k_scale", "head_dim", p_.k, p_.k_cache, p_.k_scale, problem_.k};
    Pair v{"v", "v_cache", "v_scale", "head_dim_v", p_.v, p_.v_cache, p_.v_scale, problem_.v};
    Pair q{"q", "q_out", "q_scale", "head_dim", p_.q, p_.q_out, p_.q_scale, problem_.q};
    for (const Pair* pair : {&k, &v, &q})
      if (Status status = dtypes(*pair)) return status;
    for (Pair* pair : {&k, &v, &q})
      if (Status status = dims(*pair, problem_.packed && pair == &q)) return status;
    if (Status status = shapes()) return status;
    for (const Pair* pair : {&k, &v, &q})
      if (Status status = elements(*pair)) return status;
    if (Status status = sequences()) return status;
    if (Status status = places()) return status;
    if (Status status = rotary()) return status;
    for (const Pair* pair : {&k, &v, &q})
      if (Status status = scale(*pair)) return status;
    if (Status status = sizes()) return status;
    return overlaps();
  }

 private:
  // Of k or, without it, of q: what the others are compared with.
  const char* first_name() const { return is_there(p_.k) ? "k" : "q"; }
  const fa3_tensor& first() const { return is_there(p_.k) ? p_.k : p_.q; }
  // Dim i of (batch, rows, heads, head_dim); packed tensors have no batch.
  Dim dim(const char* name, const fa3_tensor& tensor, int i) const {
    const int number = i - problem_.packed;
    return {name, number, tensor.dim[number]};
  }

  Status presence() {
    const struct {
      const char *name, *other_name;
      const fa3_tensor &tensor, &other;
    } pairs[] = {{"k_cache", "k", p_.k_cache, p_.k},
                 {"v_cache", "v", p_.v_cache, p_.v},
                 {"q_out", "q", p_.q_out, p_.q}};
    for (const auto& [name, other_name, tensor, other] : pairs)
      if (is_there(tensor) != is_there(other))
        return fail(invalid, "%s is absent, must be given where %s is", is_there(tensor) ? other_name : name,
                    is_there(tensor) ? name : other_name);
    if (is_there(p_.v))
      if (Status status = must_be_given("k", p_.k, "where v is")) return status;
    if (!is_there(p_.k) && !is_there(p_.q)) return fail(invalid, "k and q are absent, one of them must be given");
    const int rank = first().rank;
    if (rank != 3 && rank != 4)
      return fail(invalid, "%s.rank is %d, must be 4, or 3 for packed rows", first_name(), rank);
    problem_.packed = rank == 3;
    problem_.rows_alone = problem_.packed && !is_there(p_.cu_seqlens_new);
    problem_.has_pages = is_there(p_.page_table);
    return FA3_OK;
  }

  Status dtypes(const Pair& pair) const {
    if (!is_there(pair.x)) return FA3_OK;
    if (Status status = check_dtype(pair.name, pair.x.dtype)) return status;
    if (pair.x.dtype != FA3_DTYPE_BF16 && pair.x.dtype != FA3_DTYPE_FP16)
      return fail(unsupported, "%s.dtype is %s; rows are appended in bf16 and fp16", pair.name,
                  dtype_name(pair.x.dtype));
    if (pair.x.dtype != first().dtype)
      return fail(invalid, "%s.dtype is %s, must be that of %s, %s", pair.name, dtype_name(pair.x.dtype), first_name(),
                  dtype_name(first().dtype));
    if (Status status = check_dtype(pair.out_name, pair.y.dtype)) return status;
    if (pair.y.dtype != pair.x.dtype && pair.y.dtype != FA3_DTYPE_E4M3)
      return fail(invalid, "%s.dtype is %s, must be that of %s, %s, or e4m3", pair.out_name, dtype_name(pair.y.dtype),
                  pair.name, dtype_name(pair.x.dtype));
    return FA3_OK;
  }

  Status dims(Pair& pair, bool packs_output) const {
    if (!is_there(pair.x)) return FA3_OK;
    if (Status status = problem_.packed ? lift(pair.expected_x, pair.x) : check_dims(pair.expected_x, pair.x))
      return status;
    if (Status status = packs_output ? lift(pair.expected_y, pair.y) : check_dims(pair.expected_y, pair.y))
      return status;
    const Dim columns{pair.name, 3 - problem_.packed, pair.x.dim[3]};
    return check_head_dim(columns, pair.head_dim, pair.y.dtype == FA3_DTYPE_E4M3 ? 16 : 8, max_head_dim);
  }

  static Status elements(const Pair& pair) {
    if (!is_there(pair.x)) return FA3_OK;
    if (Status status = check_tensor(pair.expected_x, pair.x, pair.made.x)) return status;
    return check_tensor(pair.expected_y, pair.y, pair.made.y);
  }

  Status shapes() const {
    const auto equal = [&](const char* name, const fa3_tensor& tensor, const char* as, const fa3_tensor& like,
                           std::initializer_list<int> dims) {
      for (const int i : dims)
        if (i >= problem_.packed)
          if (Status status = must_equal(dim(name, tensor, i), dim(as, like, i))) return status;
      return FA3_OK;
    };
    if (is_there(p_.k)) {
      for (const int i : {2, 3})
        if (Status status = must_equal({"k_cache", i, p_.k_cache.dim[i]}, dim("k", p_.k, i))) return status;
    }
    if (is_there(p_.v)) {
      if (Status status = equal("v", p_.v, "k", p_.k, {0, 1, 2})) return status;
      for (const int i : {0, 1, 2})
        if (Status status = must_equal({"v_cache", i, p_.v_cache.dim[i]}, {"k_cache", i, p_.k_cache.dim[i]}))
          return status;
      if (Status status = must_equal({"v_cache", 3, p_.v_cache.dim[3]}, dim("v", p_.v, 3))) return status;
    }
    if (!is_there(p_.q)) return FA3_OK;
    if (is_there(p_.k))
      if (Status status = equal("q", p_.q, "k", p_.k, {0, 1, 3})) return status;
    return equal("q_out", p_.q_out, "q", p_.q, {0, 1, 2, 3});
  }

  // A tensor of rank 1 whose numbers are without gaps; of int32, or, if `wide`, also of int64.
  static Status numbers(const char* name, const fa3_tensor& tensor, bool wide, View& view) {
    if (Status status = wide ? must_be_integer(name, tensor.dtype) : must_be_int32(name, tensor.dtype)) return status;
    if (Status status = check_dims(input(name, 1, false), tensor)) return status;
    if (Status status = check_contiguous(name, tensor)) return status;
    return check_tensor(input(name, 1, false), tensor, view);
  }

  // One number for each sequence; absent is fine.
  Status per_sequence(const char* name, const fa3_tensor& tensor, bool wide, View& view) const {
    if (!is_there(tensor)) return FA3_OK;
    if (problem_.rows_alone)
      return must_be_absent(name, tensor, "where packed rows have no cu_seqlens_new: there are no sequences");
    if (Status status = numbers(name, tensor, wide, view)) return status;
    return is_batch(name, tensor);
  }
  Status is_batch(const char* name, const fa3_tensor& tensor) const {
    if (tensor.dim[0] == problem_.batch) return FA3_OK;
    return fail(invalid, "%s.dim[0] is %lld, must be the number of sequences, which is %lld", name, ll(tensor.dim[0]),
                ll(problem_.batch));
  }

  Status sequences() {
    const fa3_tensor& cu = p_.cu_seqlens_new;
    problem_.rows = dim(first_name(), first(), 1).value;
    if (!problem_.packed) {
      if (Status status = must_be_absent("cu_seqlens_new", cu, "where rows are not packed, that is, of rank 3"))
        return status;
      problem_.batch = first().dim[0], problem_.sequence_rows = first().dim[1];
      problem_.rows *= problem_.batch;
    } else if (is_there(cu)) {
      if (Status status = numbers("cu_seqlens_new", cu, false, problem_.cu_seqlens)) return status;
      if (cu.dim[0] == 0) return fail(invalid, "cu_seqlens_new.dim[0] is 0, must be the number of sequences and 1");
      problem_.batch = cu.dim[0] - 1;
    }
    return per_sequence("seqused_new", p_.seqused_new, false, problem_.seqused);
  }

  // Where k and v go.
  Status places() {
    if (is_there(p_.k)) problem_.caches = p_.k_cache.dim[0], problem_.cache_rows = p_.k_cache.dim[1];
    if (is_there(p_.slot_mapping)) return slots();
    for (const auto& [name, tensor] : {std::pair<const char*, const fa3_tensor&>{"page_table", p_.page_table},
                                       {"cache_batch_idx", p_.cache_batch_idx}})
      if (!is_there(p_.k))
        if (Status status = must_be_absent(name, tensor, "where k is")) return status;
    if (is_there(p_.k)) {
      if (problem_.rows_alone)
        if (Status status = must_be_given("slot_mapping", p_.slot_mapping,
                                          "for packed rows, or cu_seqlens_new with cache_seqlens"))
          return status;
      if (Status status = must_be_given("cache_seqlens", p_.cache_seqlens, "with k, or slot_mapping for packed rows"))
        return status;
    }
    if (Status status = per_sequence("cache_seqlens", p_.cache_seqlens, false, problem_.cache_seqlens)) return status;
    if (!is_there(p_.k)) return FA3_OK;
    if (problem_.has_pages && is_there(p_.cache_batch_idx))
      return fail(unsupported, "page_table and cache_batch_idx cannot be had together (of an absent tensor the rank is "
                  "0)");
    if (problem_.has_pages) return pages();
    problem_.capacity = problem_.cache_rows;
    if (is_there(p_.cache_batch_idx))
      return per_sequence("cache_batch_idx", p_.cache_batch_idx, false, problem_.cache_batch_idx);
    return is_batch("k_cache", p_.k_cache);
  }

  Status slots() {
    constexpr const char* why = "where slot_mapping is";
    if (!is_there(p_.k)) return must_be_absent("slot_mapping", p_.slot_mapping, "where k is");
    if (!problem_.packed)
      return fail(invalid, "slot_mapping is given, k.rank must be 3 then, is %d: it is for packed rows", p_.k.rank);
    for (const auto& [name, tensor] : {std::pair<const char*, const fa3_tensor&>{"cu_seqlens_new", p_.cu_seqlens_new},
                                       {"cache_seqlens", p_.cache_seqlens},
                                       {"page_table", p_.page_table},
                                       {"cache_batch_idx", p_.cache_batch_idx}})
      if (Status status = must_be_absent(name, tensor, why)) return status;
    if (Status status = numbers("slot_mapping", p_.slot_mapping, true, problem_.slots)) return status;
    if (Status status = must_equal({"slot_mapping", 0, p_.slot_mapping.dim[0]}, {"k", 0, p_.k.dim[0]})) return status;
    if (const int64_t all = p_.k_cache.dim[0] * p_.k_cache.dim[1]; all > INT32_MAX)
      return fail(unsupported, "k_cache.dim[0] * k_cache.dim[1] is %lld; with slot_mapping the largest supported is %d",
                  ll(all), INT32_MAX);
    if (problem_.cache_rows == 0) problem_.caches = 0;
    return FA3_OK;
  }

  Status pages() {
    const Expected expected = input("page_table", 2, false);
    if (Status status = must_be_int32("page_table", p_.page_table.dtype)) return status;
    if (Status status = check_dims(expected, p_.page_table)) return status;
    if (Status status = is_batch("page_table", p_.page_table)) return status;
    if (Status status = check_contiguous("page_table", p_.page_table)) return status;
    problem_.capacity = std::min<int64_t>(p_.page_table.dim[1] * problem_.cache_rows, INT32_MAX);
    return check_tensor(expected, p_.page_table, problem_.page_table);
  }

  Status rotary() {
    const int64_t head_dim = dim(first_name(), first(), 3).value;
    problem_.rotary.interleaved = p_.flags & FA3_APPEND_ROTARY_INTERLEAVED;
    if (Status status = check_rotary(p_.rotary_cos, p_.rotary_sin, head_dim, true, problem_.rotary)) return status;
    if (!is_there(p_.rotary_cos)) return must_be_absent("rotary_positions", p_.rotary_positions, "where rotary_cos is");
    if (Status status = must_equal({"rotary_sin", 0, p_.rotary_sin.dim[0]}, {"rotary_cos", 0, p_.rotary_cos.dim[0]}))
      return status;
    if (!is_there(p_.cache_seqlens))
      if (Status status = must_be_given("rotary_positions", p_.rotary_positions,
                                        "where rotary_cos is and cache_seqlens is not"))
        return status;
    if (!problem_.rows_alone)
      return per_sequence("rotary_positions", p_.rotary_positions, true, problem_.positions);
    if (Status status = numbers("rotary_positions", p_.rotary_positions, true, problem_.positions)) return status;
    return must_equal({"rotary_positions", 0, p_.rotary_positions.dim[0]}, dim(first_name(), first(), 1));
  }

  Status scale(const Pair& pair) const {
    const bool needed = is_there(pair.x) && pair.y.dtype == FA3_DTYPE_E4M3;
    const char* const name = pair.scale_name;
    if (!needed && is_there(pair.scale))
      return fail(invalid, "%s is given, must be absent where %s is not e4m3", name, pair.out_name);
    if (!needed) return FA3_OK;
    if (!is_there(pair.scale))
      return fail(invalid, "%s is absent, must be given where %s is e4m3", name, pair.out_name);
    const Expected expected = input(name, 3, false);
    if (Status status = must_be_fp32(name, pair.scale.dtype)) return status;
    if (Status status = check_dims(expected, pair.scale)) return status;
    const int64_t batch = problem_.rows_alone ? 1 : problem_.batch, heads = pair.made.x.dim[2];
    const int64_t* const dims = pair.scale.dim;
    if (dims[0] != 1 && dims[0] != batch)
      return fail(invalid, "%s.dim[0] is %lld, must be 1 or the number of sequences, which is %lld", name, ll(dims[0]),
                  ll(batch));
    if (dims[1] != 1 && dims[1] != heads)
      return fail(invalid, "%s.dim[1] is %lld, must be 1 or the heads of %s, which are %lld", name, ll(dims[1]),
                  pair.name, ll(heads));
    if (dims[2] != 1)
      return fail(invalid, "%s.dim[2] is %lld, must be 1: rows are not measured, and so have no scales for blocks of "
                  "them", name, ll(dims[2]));
    pair.made.has_scale = true;
    return check_tensor(expected, pair.scale, pair.made.scale);
  }

  Status sizes() const {
    if (problem_.rows > max_count)
      return fail(unsupported, "%s has %lld rows; the largest number supported is %lld", first_name(),
                  ll(problem_.rows), ll(max_count));
    const int64_t rotary_dim = problem_.rotary.dim;
    const int64_t quads = quads_of_row(problem_.q, rotary_dim) + quads_of_row(problem_.k, rotary_dim) +
                          quads_of_row(problem_.v, 0);
    if (problem_.rows > 0 && (quads > max_count || AppendSegments::of(problem_.rows, quads).warps > max_count))
      return fail(unsupported, "%s has %lld rows of %lld heads, more work than the kernel counts", first_name(),
                  ll(problem_.rows), ll(dim(first_name(), first(), 2).value));
    return FA3_OK;
  }

  Status overlaps() const {
    const AppendProblem& problem = problem_;
    const View &q = problem.q.x, &q_out = problem.q.y, none{};
    // In place, q need not be apart from q_out.
    const bool in_place = q.data == q_out.data && q.dtype == q_out.dtype &&
                          std::equal(std::begin(q.stride), std::end(q.stride), q_out.stride);
    const NamedView tensors[] = {{"k_cache", &problem.k.y},
                                 {"v_cache", &problem.v.y},
                                 {"q_out", &q_out},
                                 {"k", &problem.k.x},
                                 {"v", &problem.v.x},
                                 {"q", in_place ? &none : &q},
                                 {"cache_seqlens", &problem.cache_seqlens},
                                 {"cu_seqlens_new", &problem.cu_seqlens},
                                 {"seqused_new", &problem.seqused},
                                 {"page_table", &problem.page_table},
                                 {"cache_batch_idx", &problem.cache_batch_idx},
                                 {"slot_mapping", &problem.slots},
                                 {"rotary_cos", &problem.rotary.cos},
                                 {"rotary_sin", &problem.rotary.sin},
                                 {"rotary_positions", &problem.positions},
                                 {"k_scale", &problem.k.scale},
                                 {"v_scale", &problem.v.scale},
                                 {"q_scale", &problem.q.scale}};
    return check_overlap(tensors, std::size(tensors), 3);
  }

  const fa3_append_params& p_;
  AppendProblem& problem_;
};

}  // namespace

Status validate(const fa3_append_params* params, AppendProblem& problem) {
  // Without a cache and its lengths there is nothing to do; every later field has a default.
  fa3_append_params p{};
  size_t size = 0;
  if (Status status = check_struct_size("params", params, offsetof(fa3_append_params, cu_seqlens_new), sizeof p, size))
    return status;
  std::memcpy(&p, params, std::min(size, sizeof p));
  problem = {};
  return Check(p, problem).all();
}

}  // namespace fa3
