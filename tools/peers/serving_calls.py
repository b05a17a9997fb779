"""The planned calls that serving.py times: those of the library and of peers that take lengths and pages.

As in peers_fwd.py, each maker imports what it needs and returns a function: case -> a call without arguments that
enqueues one run on torch's current stream, or None where the peer does not do it. A forward call returns o, a backward
call dq, dk and dv, in the rows that the case has, or in batches of them. Plans are made before the call, as servers
make them once for all layers; a name that ends in :inline has them in it. The calls of cuDNN, FlashInfer and
FlexAttention stand in serving_cudnn.py, serving_flashinfer.py and serving_flex.py."""

import math
import os
import pathlib

import prepared
from prepared import fa3


def first(result):
    return result[0] if isinstance(result, (tuple, list)) else result


def autograd(forward, inputs, dout):
    """The backward pass alone of what torch differentiates: its graph is kept."""
    import torch

    inputs = [x.detach().requires_grad_() for x in inputs]
    out = first(forward(*inputs))
    dout = dout.view(out.shape)
    return lambda: torch.autograd.grad(out, inputs, dout, retain_graph=True)


# --- libfa3 -----------------------------------------------------------------------------------------------------------


def library_fields(case):
    """What calls of both directions have beside q, k and v."""
    tensors = {"sinks": case.sinks, "alibi_slopes": case.slopes}
    if case.packed:
        tensors |= {"cu_seqlens_q": case.cu_q, "cu_seqlens_k": case.cu_k}
    fields = {name: fa3.describe(x, name) for name, x in tensors.items() if x is not None}
    fields |= {"max_seqlen_q": case.max_q, "max_seqlen_k": case.max_k, "softcap": case.softcap}
    mask = "window" if case.left >= 0 else "causal_bottom_right" if case.causal else "none"
    fields["mask"] = fa3.MASKS[mask]
    if case.left >= 0:
        fields |= {"window_left": case.left, "window_right": 0 if case.causal else case.left}
    return fields


def as_the_library_has_it(case, x):
    """Rows of sequences of one length are a batch."""
    return x if case.packed or x.ndim == 4 else case.batched(x)


def forward_tensors(case):
    """The call's inputs and outputs; what is not written stays NaN."""
    import torch

    q, k, v = (as_the_library_has_it(case, x) for x in (case.q, case.k, case.v))
    out = torch.full((*q.shape[:-1], case.dv), math.nan, dtype=torch.bfloat16, device=case.device)
    *batch, rows, heads, _ = q.shape
    lse = torch.empty(*batch, heads, rows, dtype=torch.float32, device=case.device)
    tensors = {"q": q, "k": k, "v": v, "o": out, "lse": lse}
    if case.page:
        tensors |= {"page_table": case.table, "seqused_k": case.used_k}
    if case.key_dtype != torch.bfloat16:
        scale = torch.full((1, 1, 1), case.key_scale, device=case.device)
        tensors |= {"k_scale": scale, "v_scale": scale}
    return tensors


def backward_tensors(case, forward):
    import torch

    gradients = {f"d{name}": torch.empty_like(forward[name]) for name in ("q", "k", "v")}
    if case.sinks is not None:
        gradients["dsinks"] = torch.empty_like(case.sinks)
    inputs = {name: forward[name] for name in ("q", "k", "v", "o", "lse")}
    return {**inputs, "dout": as_the_library_has_it(case, case.dout), **gradients}


def make_schedule(library, params, device):
    """The same parameters with a schedule, and the memory that it lies in."""
    import torch

    size = library.schedule_size(params)
    schedule = torch.empty(max(size, 16), dtype=torch.uint8, device=device)
    stream = torch.cuda.current_stream(device).cuda_stream
    library.enqueue_schedule(params, schedule.data_ptr(), size, stream)
    params.schedule, params.schedule_bytes = schedule.data_ptr(), size
    return schedule


def make_library(library, plans_before=True):
    """Of a prepared.Library."""
    library.preload_for_torch()

    def prepare(case):
        tensors, fields = forward_tensors(case), library_fields(case)
        params = fa3.ForwardParams(**fields, **prepared.described(tensors))
        if not case.backward:
            schedule = make_schedule(library, params, case.device) if plans_before else None
            return library.prepare_call(params, case.device, tensors["o"], [tensors, case, schedule])
        library.prepare_call(params, case.device, None, [tensors, case])()
        tensors = backward_tensors(case, tensors)
        params = fa3.BackwardParams(**fields, **prepared.described(tensors))
        gradients = [tensors[name] for name in ("dq", "dk", "dv")]
        return library.prepare_call(params, case.device, gradients, [tensors, case])

    return prepare


# --- FlashAttention-3 -------------------------------------------------------------------------------------------------


def make_official():
    """The wheel fa3-fwd: varlen sequences and softcap, without pages and windows."""
    from fa3_fwd_interface import flash_attn_func, flash_attn_varlen_func

    def prepare(case):
        if case.backward or case.page or case.left >= 0 or case.sinks is not None or case.slopes is not None:
            return None
        if case.packed:
            lengths = (case.cu_q, case.cu_k)
            how = {"max_seqlen_q": case.max_q, "max_seqlen_k": case.max_k, "causal": case.causal}
            return lambda: first(flash_attn_varlen_func(case.q, case.k, case.v, *lengths, **how))
        q, k, v = (case.batched(x) for x in (case.q, case.k, case.v))
        return lambda: first(flash_attn_func(q, k, v, causal=case.causal, softcap=case.softcap))

    return prepare


def load_of_vllm(name, variable):
    """One of the libraries in vLLM's wheel, which the environment variable may name."""
    import torch
    import vllm

    folder = pathlib.Path(vllm.__file__).parent
    found = [folder / f"{name}.abi3.so", folder / "vllm_flash_attn" / f"{name}.abi3.so"]
    torch.ops.load_library(os.environ.get(variable) or str(next(path for path in found if path.exists())))
    return getattr(torch.ops, name)


def make_vllm(plans_before=True):
    """vLLM's FlashAttention-3, by the call that its flash_attn_varlen_func makes: varlen sequences and pages."""
    import torch

    ops = load_of_vllm("_vllm_fa3_C", "VFA3_SO")

    def plan(case, right):
        used = case.used_k if case.page else None
        return ops.get_scheduler_metadata(
            len(case.lengths), case.max_q, case.max_k, case.heads, case.kv_heads, 64 if case.latent else case.d,
            case.dv, torch.bfloat16, used, case.cu_q, None, None, None, None, case.page or None, 0, case.causal,
            case.left, right, False, 0, None, 0,
        )  # fmt: skip

    def prepare(case):
        packed = case.packed or case.page
        if case.backward or not packed or case.slopes is not None or case.softcap or case.key_scale != 1:
            return None
        q, k, v, qv = case.q, case.k, case.v, None
        if case.latent:  # the part with positions, and the latent one
            (qv, q), (v, k) = ((x[..., : case.dv].contiguous(), x[..., case.dv :].contiguous()) for x in (q, k))
        right = 0 if case.causal and case.left >= 0 else -1
        metadata = plan(case, right) if plans_before and case.page else None
        sinks = None if case.sinks is None else case.sinks.bfloat16()
        cu_k, used_k = (None, case.used_k) if case.page else (case.cu_k, None)
        return lambda: ops.fwd(
            q, k, v, None, None, qv, None, case.cu_q, cu_k, None, None, used_k, case.max_q, case.max_k, case.table,
            None, None, None, None, None, None, None, None, case.d**-0.5, case.causal, case.left, right, 0.0, True,
            metadata, 0, None, 0, sinks, 1, 0, None,
        )[0]  # fmt: skip

    return prepare


# --- FlashAttention-4 -------------------------------------------------------------------------------------------------


def sides(case):
    """A window as FlashAttention-4 has it."""
    return (case.left, 0) if case.left >= 0 else (None, None)


def make_fa4():
    from flash_attn.cute import interface

    def prepare(case):
        if case.slopes is not None or case.latent or case.key_scale != 1:
            return None
        sinks = None if case.sinks is None else case.sinks.bfloat16()
        how = {"causal": True, "window_size": sides(case), "softcap": case.softcap, "learnable_sink": sinks}
        if not case.packed and not case.page:
            q, k, v = (case.batched(x) for x in (case.q, case.k, case.v))
            forward = lambda q, k, v: interface.flash_attn_func(q, k, v, **how)
        else:
            q, k, v = case.q, case.k, case.v
            lengths = {"cu_seqlens_q": case.cu_q, "max_seqlen_q": case.max_q, "max_seqlen_k": case.max_k}
            pages = {"seqused_k": case.used_k, "page_table": case.table}
            lengths |= pages if case.page else {"cu_seqlens_k": case.cu_k}
            forward = lambda q, k, v: interface.flash_attn_varlen_func(q, k, v, **lengths, **how)
        return autograd(forward, (q, k, v), case.dout) if case.backward else lambda: first(forward(q, k, v))

    return prepare


def make_vllm_fa4():
    """vLLM's copy of FlashAttention-4, which splits keys on this card: for pages."""
    from vllm.vllm_flash_attn.cute import interface

    def prepare(case):
        if not case.page or case.latent:
            return None
        left, right = sides(case)
        how = {"causal": True, "window_size_left": left, "window_size_right": right, "num_splits": 0}
        how["learnable_sink"] = None if case.sinks is None else case.sinks.bfloat16()
        if case.key_scale != 1:
            scale = case.used_k.new_full((len(case.lengths), case.kv_heads), case.key_scale, dtype=case.q.dtype).float()
            how |= {"k_descale": scale, "v_descale": scale, "fp8_kv_dequant": True}
        lengths = {"cu_seqlens_q": case.cu_q, "seqused_k": case.used_k, "page_table": case.table}
        maxima = {"max_seqlen_q": case.max_q, "max_seqlen_k": case.max_k}
        return lambda: interface._flash_attn_fwd(case.q, case.k, case.v, **lengths, **maxima, **how)[0]

    return prepare


# --- FlashMLA ---------------------------------------------------------------------------------------------------------


def make_flashmla():
    ops = load_of_vllm("_flashmla_C", "FLASHMLA_SO")

    def prepare(case):
        if not case.latent or len(set(case.lengths)) > 1:
            return None
        q, plan = case.batched(case.q), [None, None]  # of the first call, as servers keep it for a step

        def call():
            scale, causal = case.d**-0.5, case.max_q > 1
            out = ops.dense_decode_fwd(q, case.k, case.dv, case.used_k, case.table, scale, causal, *plan, None)
            plan[:] = out[2], out[3]
            return out[0]

        return call

    return prepare


PEERS = {
    "fa3fwd": make_official,
    "vfa3": make_vllm,
    "vfa3:inline": lambda: make_vllm(plans_before=False),
    "fa4": make_fa4,
    "vfa4": make_vllm_fa4,
    "flashmla": make_flashmla,
}
