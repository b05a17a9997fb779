"""What fa3.flash_attn_interface, fa3.flash_attn, fa3.flash_attn_cute and fa3.vllm_flash_attn take, by the names of
those packages, and what they refuse. Argument: the library. Skipped without torch."""

import inspect
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support import fa3, need, refused  # noqa: E402

need("torch")
import torch  # noqa: E402
from interfaces_cases import ints, normal, run  # noqa: E402

import fa3.flash_attn as two  # noqa: E402
import fa3.flash_attn_cute as four  # noqa: E402
import fa3.flash_attn_interface as three  # noqa: E402
import fa3.vllm_flash_attn as vllm  # noqa: E402


def signatures(device):
    """As in official FlashAttention-3 and -4 (commit 0251105), FlashAttention-2 (2.8) and vLLM (0.33)."""
    descales = "q_descale=None, k_descale=None, v_descale=None"
    masks = "window_size=(-1, -1), attention_chunk=0, softcap=0.0"
    plan = "num_splits=1, pack_gqa=None, deterministic=False, sm_margin=0, return_attn_probs=False"
    lengths = "cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k"
    rest_2 = ("dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, "
              "deterministic=False, return_attn_probs=False")  # fmt: skip
    first_4 = "q, k, v, qv=None, gather_kv_indices=None"
    masks_of_four = ("window_size=(None, None), learnable_sink=None, softcap=0.0, num_splits=1, pack_gqa=None, "
                     "deterministic=False, score_mod=None, score_mod_bwd=None")  # fmt: skip
    cache = "q, k_cache, v_cache, k=None, v=None, "
    for function, expected in (
        (three.flash_attn_func, f"q, k, v, softmax_scale=None, causal=False, qv=None, {descales}, {masks}, {plan}"),
        (three.flash_attn_qkvpacked_func, f"qkv, softmax_scale=None, causal=False, {descales}, {masks}, "
         "deterministic=False, num_heads_q=None, sm_margin=0, return_attn_probs=False"),
        (three.flash_attn_varlen_func, f"q, k, v, {lengths}, seqused_q=None, seqused_k=None, softmax_scale=None, "
         f"causal=False, qv=None, {descales}, {masks}, {plan}"),
        (three.flash_attn_with_kvcache, f"{cache}qv=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None, "
         "cache_batch_idx=None, cache_leftpad=None, page_table=None, cu_seqlens_q=None, cu_seqlens_k_new=None, "
         f"max_seqlen_q=None, rotary_seqlens=None, {descales}, softmax_scale=None, causal=False, {masks}, "
         "rotary_interleaved=True, scheduler_metadata=None, num_splits=0, pack_gqa=None, sm_margin=0, "
         "return_softmax_lse=False"),
        (three.flash_attn_combine, "out_partial, lse_partial, out=None, out_dtype=None"),
        (three.get_scheduler_metadata, "batch_size, max_seqlen_q, max_seqlen_k, num_heads_q, num_heads_kv, headdim, "
         "cache_seqlens, qkv_dtype=torch.bfloat16, headdim_v=None, cu_seqlens_q=None, cu_seqlens_k_new=None, "
         "cache_leftpad=None, page_size=None, max_seqlen_k_new=0, causal=False, window_size=(-1, -1), "
         "attention_chunk=0, has_softcap=False, num_splits=0, pack_gqa=None, sm_margin=0"),
        (two.flash_attn_func, f"q, k, v, {rest_2}"),
        (two.flash_attn_kvpacked_func, f"q, kv, {rest_2}"),
        (two.flash_attn_qkvpacked_func, f"qkv, {rest_2}"),
        (two.flash_attn_varlen_func, f"q, k, v, {lengths}, {rest_2}, block_table=None"),
        (two.flash_attn_varlen_kvpacked_func, f"q, kv, {lengths}, {rest_2}"),
        (two.flash_attn_varlen_qkvpacked_func, f"qkv, cu_seqlens, max_seqlen, {rest_2}"),
        (two.flash_attn_with_kvcache, f"{cache}rotary_cos=None, rotary_sin=None, cache_seqlens=None, "
         "cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, causal=False, "
         "window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0, "
         "return_softmax_lse=False"),
        (four.flash_attn_func, f"{first_4}, softmax_scale=None, causal=False, {masks_of_four}, "
         "mask_mod=None, aux_tensors=None, aux_scalars=None, block_sparse_tensors=None, block_sparse_tensors_bwd=None, "
         "return_lse=False"),
        (four.flash_attn_varlen_func, "q, k, v, qv=None, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, "
         "max_seqlen_k=None, min_seqlen_k=None, seqused_q=None, seqused_k=None, gather_kv_indices=None, "
         f"page_table=None, softmax_scale=None, causal=False, {masks_of_four}, mask_mod=None, "
         "block_sparse_tensors=None, aux_tensors=None, aux_scalars=None, return_lse=False, scheduler_metadata=None, "
         "seqlen_k_per_split=None, disable_scheduler_metadata=False"),
        (four.flash_attn_combine, "out_partial, lse_partial, out=None, out_dtype=None, cu_seqlens=None, seqused=None, "
         "virtual_batch_idx=None, return_lse=True"),
        (vllm.flash_attn_varlen_func, "q, k, v, max_seqlen_q, cu_seqlens_q, max_seqlen_k, cu_seqlens_k=None, "
         "seqused_k=None, q_v=None, dropout_p=0.0, softmax_scale=None, causal=False, window_size=None, softcap=0.0, "
         "alibi_slopes=None, deterministic=False, return_attn_probs=False, block_table=None, return_softmax_lse=False, "
         f"out=None, scheduler_metadata=None, {descales}, num_splits=0, output_scale=None, fa_version=2, s_aux=None, "
         "cp_world_size=1, cp_rank=0, cp_tot_seqused_k=None, mask_mod=None, block_sparse_tensors=None, "
         "aux_tensors=None, aux_tensor_leading_dims=None, dynamic_causal=None, gather_kv_indices=None, "
         "gather_kv_valid_length=None"),
    ):  # fmt: skip
        found = inspect.signature(function).parameters.values()
        found = [x.replace(annotation=x.empty) for x in found if x.kind == x.POSITIONAL_OR_KEYWORD]
        positional = ", ".join(map(str, found))
        assert positional == expected, (function, positional)


def refusals(device):
    q, k = normal(device, 2, 5, 4, 16), normal(device, 2, 9, 2, 16)
    no = NotImplementedError
    q.requires_grad_()  # only who asks for a gradient is refused
    o = three.flash_attn_func(q, k, k, qv=q)
    refused(no, "fa3.forward with qv has no derivative", o.sum().backward)
    o = three.flash_attn_with_kvcache(q, k, k, cache_seqlens=3, page_table=ints(device, 1, 0).view(2, 1))
    refused(no, "fa3.forward with page_table has no derivative", o.sum().backward)
    q = q.detach()
    refused(no, "dropout_p is 0.1: fa3 has no dropout", two.flash_attn_func, q, k, k, dropout_p=0.1)
    one = (q.flatten(0, 1), k.flatten(0, 1), k.flatten(0, 1), 5, ints(device, 0, 5, 10), 9, ints(device, 0, 9, 18))
    for name in ("output_scale", "mask_mod", "block_sparse_tensors", "dynamic_causal", "gather_kv_indices"):
        refused(no, f"{name} is given", vllm.flash_attn_varlen_func, *one, **{name: q})
    refused(no, "cp_world_size is 2", vllm.flash_attn_varlen_func, *one, cp_world_size=2)
    refused(ValueError, "fa_version is 5, must be one of 2, 3, 4", vllm.flash_attn_varlen_func, *one, fa_version=5)
    refused(ValueError, "one of them must be given", vllm.flash_attn_varlen_func, *one[:-1])
    cache = lambda **how: three.flash_attn_with_kvcache(q, k.clone(), k.clone(), **how)
    refused(ValueError, "k is given, but cache_seqlens is not", cache, k=q[:, :1, :2], v=q[:, :1, :2])
    refused(ValueError, "k is given, but v is not", cache, k=q[:, :1, :2], cache_seqlens=3)
    refused(ValueError, "rotary_cos is given, but k is not", cache, rotary_cos=torch.ones(9, 8, device=device))
    refused(ValueError, "k.dtype is torch.float64", cache, k=q.double(), v=q, cache_seqlens=3)
    heads_first = k.transpose(1, 2).contiguous().transpose(1, 2)
    refused(no, "k_cache has gaps between pages", three.flash_attn_with_kvcache, q, heads_first, k,
            page_table=ints(device, 0, 1).view(2, 1), cache_leftpad=ints(device, 1, 1))  # fmt: skip
    refused(ValueError, "num_heads_q is None", three.flash_attn_qkvpacked_func, q)
    refused(TypeError, "max_seqlen_q is a tensor", three.flash_attn_varlen_func, *one[:3], one[4], one[6],
            ints(device, 5), 9)  # fmt: skip
    if device == "cuda":  # the reference takes any strides; caches are not copied for them
        apart = k.transpose(1, 3).contiguous().transpose(1, 3)
        refused(ValueError, "k.stride[1] is 1", three.flash_attn_with_kvcache, q, apart, k, cache_seqlens=3)
        refused(TypeError, "window_size is a tensor", three.flash_attn_func, q, k, k, window_size=ints(device, 1, 1))


fa3.load(sys.argv[1])
run(signatures, refusals)
