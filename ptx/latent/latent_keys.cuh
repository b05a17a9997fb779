// What loads K and V of latent attention, and of head dimensions above 256: of the same keys, into one stage.
#pragma once
#include "../isa/prefetch.cuh"
#include "../planned/planned_keys.cuh"

namespace fa3 {

// One of the warps that load K and V, all lanes in step.
class LatentKvProducer : PlannedKvProducer<Params> {
 public:
  using PlannedKvProducer::PlannedKvProducer;

  FA3_DEVICE void run() const { PlannedKvProducer::run(*this); }

  // The stage of use i. keys: so many of the block, from its first one on, are the sequence's.
  FA3_DEVICE void load(uint32_t i, const Boxes& boxes, int head, int keys) const {
    if constexpr (config.is_latent()) {
      land(i, boxes, head, keys);
    } else {
#pragma unroll 1
      for (int half = 0; half < 2; half++) load_half(i, half, boxes, head, keys);
    }
  }
  // For a later block to the L2 cache. One of the tiles that share the keys does, and the others then find it there;
  // where there is but one, memory has enough to do. Of a cluster one thread block does.
  FA3_DEVICE void send_ahead(const PlannedPiece& piece, const Boxes& boxes, int head) const {
    if (!(multicasts ? rank_in_cluster() == 0 : piece.q_block == 1)) return;
    each_box(boxes, [&](int, int row, int batch) {
#pragma unroll
      for (int slab = 0; slab < slabs; slab++)
        ptx::cp_async_bulk_prefetch_tensor_4d(&p_.k, slab * slab_columns, row, head, batch);
#pragma unroll
      for (int slab = 0; slab < landed_slabs; slab++)
        ptx::cp_async_bulk_prefetch_tensor_4d(&p_.v, slab * (dv / landed_slabs), row, head, batch);
    });
  }
  // Behind the last one: then the warps that widen end.
  FA3_DEVICE void end(uint32_t i) const {
    if constexpr (!widens_latent) return;
    const uint32_t s = KvRing::index(i);
    LandedLatent& landed = smem_.landed[s];
    wait(smem_.empty_v[s], KvRing::parity(i) ^ 1);
    if (leads()) {
      landed.keys = LandedLatent::end_of_work;
      arrive(landed.full);
    }
    for (int row = threadIdx.x % 32; row < boxed_rows(); row += 32) arrive(landed.full);
  }

 private:
  static constexpr int landed_slabs = config.is_latent() ? config.latent_scales() : v_slabs;

  // Of the stage of use i a half of V's columns, with K if it is the right one.
  FA3_DEVICE void load_half(uint32_t i, int half, const Boxes& boxes, int head, int keys) const {
    const uint32_t s = KvRing::index(i);
    uint64_t& full = (half == 0 ? smem_.full_v : smem_.full_k)[s];
    wait((half == 0 ? smem_.empty_v : smem_.empty_k)[s], KvRing::parity(i) ^ 1);
    if (leads()) expect(full, config.v_block_bytes() / 2 + (half == 0 ? 0 : config.k_block_bytes()));
    if (half == 1 && rank_in_cluster() == 0) load_k(smem_.stage[s].k, full, boxes, head);
    load_v(smem_.stage[s].v, full, boxes, head, keys, half);
  }
  // Of the stage of use i V in bytes, its scales, and K. For warps that widen it: V as soon as its left half is free,
  // where it lands, and K when both are.
  FA3_DEVICE void land(uint32_t i, const Boxes& boxes, int head, int keys) const {
    const uint32_t s = KvRing::index(i), parity = KvRing::parity(i) ^ 1;
    const Stage& stage = smem_.stage[s];
    LandedLatent& landed = smem_.landed[s];
    uint64_t& full_v = widens_latent ? landed.full : smem_.full_k[s];
    wait(widens_latent ? smem_.empty_v[s] : smem_.empty_k[s], parity);
    if (leads()) {
      landed.keys = max(keys, 0);
      expect(full_v, Bc * dv + (widens_latent ? 0 : config.k_block_bytes()));
    }
    if constexpr (!widens_latent) load_k(stage.k, full_v, boxes, head);
    each_box(boxes, [&](int first, int row, int batch) {
#pragma unroll
      for (int n = 0; n < landed_slabs; n++)
        load_box(ptx::shared_address(stage.v) + (n * Bc + first) * slab_row_bytes, p_.v, full_v, n * slab_row_bytes,
                 row, head, batch);
    });
    copy_scales(landed, full_v, boxes, head);
    if constexpr (widens_latent) {
      wait(smem_.empty_k[s], parity);
      if (leads()) expect(smem_.full_k[s], config.k_block_bytes());
      load_k(stage.k, smem_.full_k[s], boxes, head);
    }
  }
  // Of a block's rows, those in boxes of this warp. Each lane copies the scales of one, or of two, and what is outside
  // of the tensor is zeros.
  FA3_DEVICE void copy_scales(LandedLatent& landed, uint64_t& full, const Boxes& boxes, int head) const {
    static_assert(Boxes::each == 1);
    const LatentScales& scales = taken<LatentScaleBlock>(p_).latent_scales;
    const int rows = box_rows();
    for (int n = threadIdx.x % 32; n < boxed_rows(); n += 32) {
      const int box = n / rows, in_box = n % rows, warps = boxed_rows() == Bc ? 1 : Boxes::warps;
      const int row = __shfl_sync(0xffffffffu, boxes.row[0], box) + in_box;
      const int batch = __shfl_sync(0xffffffffu, boxes.batch[0], box);
      const bool exists = uint32_t(row) < uint32_t(scales.rows) && uint32_t(batch) < uint32_t(scales.batches);
      const int64_t at = batch * scales.stride_batch + head * scales.stride_head + row * scales.stride_row;
      const float* from = scales.data + (exists ? at : 0);
      const uint32_t to = ptx::shared_address(landed.scales[(warps * box + warp_) * rows + in_box]);
      if (scales.bytes == 16) {
        ptx::cp_async_cg_16_zfill(to, from, exists ? 16 : 0);
      } else {
        for (int i = 0; i < config.latent_scales(); i++) {
          const bool has_scale = exists && 4 * i < scales.bytes;
          ptx::cp_async_ca_4_zfill(to + 4 * i, from + (has_scale ? i : 0), has_scale ? 4 : 0);
        }
      }
      ptx::cp_async_mbarrier_arrive_noinc(ptx::shared_address(&full));
    }
  }
  FA3_DEVICE int boxed_rows() const { return box_rows() == Bc ? Bc : Bc / Boxes::warps; }
};

}  // namespace fa3
