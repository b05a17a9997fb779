// Behind forward kernels whose O is in two halves: the parts of split tiles become O and LSE.
//
// The pass behind kernels whose O is in two halves: adds the parts of split tiles up (part_strip.cuh), in the order of
// the keys, and stores O and LSE. In the kernel itself the last part of a tile would do it, alone: measured, 50 us for
// 64 rows of 8 parts, most of them waiting for the L2 cache.
//
// An item is 16 rows of a tile. Of few parts the eight warps of a thread block have 32 columns each, of many all have
// the same 32, and every eighth part each. Items are counted through the list of pieces, as which tiles are split is
// in nothing else.
#include "../isa/grid.cuh"
#include "../isa/math.cuh"
#include "../params/params.h"
#include "../tile/config.cuh"
#include "../tile/epilogue/part_strip.cuh"
#include "../tile/row_sums.cuh"
#include "../tile/shared.cuh"

namespace fa3 {

class AddParts {
 public:
  static constexpr int threads = 256, warps = threads / 32;

  FA3_DEVICE explicit AddParts(const PlannedForwardParams& p)
      : p_(p), shared_(*reinterpret_cast<Shared*>(shared_memory())) {}

  FA3_DEVICE void run() const {
    const int entries = __ldcg(&p_.counts->slots) > 0 ? __ldcg(&p_.counts->entries) : 0;
    int item = blockIdx.x;
    for (int first = 0; first < entries; first += threads) {
      item -= count_items(first, entries);
      for (; item < 0; item += gridDim.x) add_up(first, item + shared_.before[threads]);
      __syncthreads();
    }
    ptx::griddepcontrol_wait();  // so that this pass does not end before that kernel
  }

 private:
  static constexpr int columns = 32, chunk_groups = columns / 8;  // of a warp
  static constexpr int many_parts = 2 * warps + 1, batch = 4;     // parts

  struct Shared {
    int before[threads + 1];  // items of the entries before each of `threads`
    int warp_sums[warps];
    float4 o[warps][chunk_groups][32];
    float4 sums[warps][32];
  };
  static_assert(sizeof(Shared) <= config.smem_bytes());

  // Of two rows of a lane: m and l, and O of the warp's columns, two of each row and group.
  struct PartSums {
    float m[2] = {-1e30f, -1e30f}, l[2] = {};
    float4 o[chunk_groups] = {};

    FA3_DEVICE void grow(float low, float high) {
      const float largest[2] = {fmaxf(m[0], low), fmaxf(m[1], high)};
      const float weight[2] = {part_weight(m[0], largest[0]), part_weight(m[1], largest[1])};
#pragma unroll
      for (int i = 0; i < 2; i++) l[i] *= weight[i], m[i] = largest[i];
#pragma unroll
      for (int g = 0; g < chunk_groups; g++)
        o[g].x *= weight[0], o[g].y *= weight[0], o[g].z *= weight[1], o[g].w *= weight[1];
    }
    // m is not below `sums`' own: m and l of the first row, then of the second one.
    FA3_DEVICE void add(const float4& sums, const float4 (&more)[chunk_groups]) {
      const float weight[2] = {part_weight(sums.x, m[0]), part_weight(sums.z, m[1])};
      l[0] = add_in_order(l[0], weight[0], sums.y), l[1] = add_in_order(l[1], weight[1], sums.w);
#pragma unroll
      for (int g = 0; g < chunk_groups; g++) {
        o[g].x = add_in_order(o[g].x, weight[0], more[g].x), o[g].y = add_in_order(o[g].y, weight[0], more[g].y);
        o[g].z = add_in_order(o[g].z, weight[1], more[g].z), o[g].w = add_in_order(o[g].w, weight[1], more[g].w);
      }
    }
  };

  FA3_DEVICE int strips() const { return p_.tile_rows / PartStrip::rows; }
  FA3_DEVICE static int chunks(int parts) {
    return parts >= many_parts ? PartStrip::columns / columns : PartStrip::columns / columns / warps;
  }

  // Of the entries from `first` on, by all threads; all in all.
  FA3_DEVICE int count_items(int first, int entries) const {
    const int entry = first + int(threadIdx.x), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int own = 0;
    if (entry < entries) {
      const int part = __ldcg(&p_.entries[entry].part), parts = __ldcg(&p_.entries[entry].parts);
      if (part == 0 && parts > 1) own = p_.tiles.heads * strips() * chunks(parts);
    }
    int sum = own;
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) {
      const int more = __shfl_up_sync(0xffffffffu, sum, lanes);
      if (lane >= lanes) sum += more;
    }
    if (lane == 31) shared_.warp_sums[warp] = sum;
    __syncthreads();
    for (int w = 0; w < warp; w++) sum += shared_.warp_sums[w];
    shared_.before[threadIdx.x + 1] = sum;
    if (threadIdx.x == 0) shared_.before[0] = 0;
    __syncthreads();
    return shared_.before[threads];
  }

  // The item of this number among those of the entries from `first` on.
  FA3_DEVICE void add_up(int first, int item) const {
    int low = 0;
#pragma unroll
    for (int step = threads / 2; step > 0; step /= 2)
      if (shared_.before[low + step] <= item) low += step;
    const PlannedPiece piece = p_.entries[first + low];
    item -= shared_.before[low];
    const int parts = piece.parts, strip_chunks = chunks(parts), chunk = item % strip_chunks;
    const int head = item / strip_chunks / strips(), strip = item / strip_chunks - head * strips();
    const bool shares = parts >= many_parts;
    const int warp = threadIdx.x / 32, group = chunk_groups * (shares ? chunk : warps * chunk + warp);
    const int row = PartStrip::rows * strip;
    const Packing packing = p_.visible.packing;
    if (piece.q_block * p_.tile_rows + row >= packing.rows(piece.sequence.seqlen_q)) return;
    ptx::griddepcontrol_wait();  // what stands above the pass before that kernel has written
    const int slot_rows = Packing::slot_rows(int(packing.rows(p_.visible.seqlen_q)), p_.tile_rows, PartStrip::rows);
    const int64_t first_slot = int64_t{piece.slot} * p_.tiles.heads + head * parts;

    PartSums sums;
    const int step = shares ? warps : 1;
    const auto strip_of = [&](int part) { return PartStrip(p_.partials, (first_slot + part) * slot_rows + row); };
    for (int part = shares ? warp : 0; part < parts; part += batch * step) {
      const int lane = threadIdx.x % 32;
      float4 o[batch][chunk_groups], row_sums[batch];
#pragma unroll
      for (int n = 0; n < batch; n++) {
        const bool exists = part + n * step < parts;
        const PartStrip part_strip = strip_of(exists ? part + n * step : part);
        const float2 upper = __ldcg(part_strip.sums(lane / 4)), lower = __ldcg(part_strip.sums(lane / 4 + 8));
        row_sums[n] = exists ? make_float4(upper.x, upper.y, lower.x, lower.y) : make_float4(-1e30f, 0.f, -1e30f, 0.f);
#pragma unroll
        for (int g = 0; g < chunk_groups; g++)
          o[n][g] = exists ? __ldcg(part_strip.o(group + g, lane)) : float4{};
      }
      sums.grow(fmaxf(fmaxf(row_sums[0].x, row_sums[1].x), fmaxf(row_sums[2].x, row_sums[3].x)),
                fmaxf(fmaxf(row_sums[0].z, row_sums[1].z), fmaxf(row_sums[2].z, row_sums[3].z)));
#pragma unroll
      for (int n = 0; n < batch; n++) sums.add(row_sums[n], o[n]);
    }
    if (shares) {
      const int lane = threadIdx.x % 32;
#pragma unroll
      for (int g = 0; g < chunk_groups; g++) shared_.o[warp][g][lane] = sums.o[g];
      shared_.sums[warp][lane] = make_float4(sums.m[0], sums.l[0], sums.m[1], sums.l[1]);
      __syncthreads();
      if (warp == 0)
        for (int w = 1; w < warps; w++) {
          float4 o[chunk_groups];
          const float4 row_sums = shared_.sums[w][lane];
#pragma unroll
          for (int g = 0; g < chunk_groups; g++) o[g] = shared_.o[w][g][lane];
          sums.grow(row_sums.x, row_sums.z);
          sums.add(row_sums, o);
        }
      __syncthreads();
      if (warp > 0) return;
    }
    store(sums, piece, head, piece.q_block * p_.tile_rows + row, group);
  }

  // From these groups of columns on, rows from `first` on.
  FA3_DEVICE void store(const PartSums& sums, const PlannedPiece& piece, int head_kv, int first, int group) const {
    const int lane = threadIdx.x % 32, column = 8 * (group + lane % 4);
    const Output& out = p_.output;
    const Packing packing = p_.visible.packing;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int row = first + lane / 4 + 8 * i, query = packing.query(row), in_group = packing.head(row);
      const bool exists = query < piece.sequence.seqlen_q && in_group < p_.heads_per_kv;
      const int head = head_kv * p_.heads_per_kv + in_group;
      const float sink = p_.sinks && exists ? __ldg(p_.sinks + head * p_.sinks_stride) : -INFINITY;
      const FinishedRow finished = finish_row(sums.m[i], sums.l[i], sink);
      uint32_t pairs[chunk_groups];
#pragma unroll
      for (int g = 0; g < chunk_groups; g++) {
        const float x = (i ? sums.o[g].z : sums.o[g].x) * finished.weight;
        const float y = (i ? sums.o[g].w : sums.o[g].y) * finished.weight;
        pairs[g] = out.dtype == Dtype::bf16 ? ptx::cvt_rn_bf16x2_f32(y, x) : ptx::cvt_rn_f16x2_f32(y, x);
      }
      const uint4 eight = transpose_quad(pairs);
      if (!exists) continue;
      const int at = piece.sequence.q_row + query;
      if (column < out.head_dim)
        *reinterpret_cast<uint4*>(static_cast<uint16_t*>(out.o) + piece.sequence.q_batch * out.o_stride_batch +
                                  head * out.o_stride_head + at * out.o_stride_row + column) = eight;
      if (out.lse && group == 0 && lane % 4 == 0)
        out.lse[piece.sequence.q_batch * out.lse_stride_batch + head * out.lse_stride_head +
                at * out.lse_stride_row] = finished.lse;
    }
  }

  const PlannedForwardParams& p_;
  Shared& shared_;
};

}  // namespace fa3

FA3_GLOBAL(const __grid_constant__ fa3::PlannedForwardParams p) { fa3::AddParts(p).run(); }
