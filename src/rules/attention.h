// Rules of fa3.h that attention's functions share: the heads, head dimensions, lengths, mask and softmax_scale of q, k
// and v.
#pragma once
#include "problem.h"
#include "rules/tensor.h"

namespace fa3 {

// Kernels round rows up to whole blocks in int32.
constexpr int64_t max_seqlen = INT32_MAX - 1024;

// The dims of q and k that are their heads.
fa3_status check_heads(Dim heads, Dim heads_kv);
// The dims of q and v that are head_dim and head_dim_v: multiples of `unit`.
fa3_status check_head_dims(Dim head_dim, Dim head_dim_v, int unit);
// The dims of a number for each row of each head (batch, heads, seqlen_q), as LSE is.
fa3_status check_rows_of(Dims rows, Dims q);
// Are the sequences short enough for the kernels?
fa3_status check_lengths(const AttentionShape& shape);
fa3_status check_mask(int32_t mask);
fa3_status check_softmax_scale(float scale);

double resolved_softmax_scale(float scale, int64_t head_dim);  // 0 is the default
// What q, k, v, mask and softmax_scale say, all of them valid.
AttentionShape shape_of(const fa3_tensor& q, const fa3_tensor& k, const fa3_tensor& v, int32_t mask,
                        float softmax_scale);

}  // namespace fa3
