"""The calls that peers.py times for the forward pass: those of the library and of its peers.

Each maker imports what it needs and returns a function: (point, q, k, v) -> a call without arguments that enqueues one
run on torch's current stream and returns the output in (batch, seqlen, heads, head_dim), or None where the peer does
not do it. An attribute input_dtype of that function is the dtype of q, k and v where it is not the point's. Of a call,
output_scale is what its output is to be multiplied by, time_scale what its times are."""

import math

import peers_fp8
import prepared


def make_library(library):
    """Of a prepared.Library."""
    library.preload_for_torch()

    def prepare(point, q, k, v):
        out, lse = prepared.forward_outputs(q, point.head_dim_v)
        kernel, more = None if point.library_chooses else point.kernel, {}
        if point.is_fp8():
            v, more = peers_fp8.library_arguments(point, v)
        call = library.prepare(q, k, v, out, lse, point.mask(), kernel=kernel, **more)
        call.kernel = library.kernel_info(call.params).name
        return call

    return prepare


def make_sdpa(backend_name):
    def make():
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        backend = getattr(SDPBackend, backend_name)

        def prepare(point, q, k, v):
            if point.is_fp8() or (point.causal and point.seqlen not in (1, point.seqlen_k)):
                return None  # the diagonal starts in the other corner
            causal = point.causal and point.seqlen > 1  # one query, the last, sees all keys
            q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
            gqa = {"enable_gqa": True} if point.heads != point.kv_heads else {}

            def call():
                with sdpa_kernel(backend):
                    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, **gqa)
                return out.transpose(1, 2)

            return call

        return prepare

    return make


def make_cudnn():
    sdpa = make_sdpa("CUDNN_ATTENTION")()

    def prepare(point, q, k, v):
        return peers_fp8.prepare_cudnn(point, q, k, v) if point.is_fp8() else sdpa(point, q, k, v)

    return prepare


def make_official():
    import torch
    from fa3_fwd_interface import flash_attn_func, flash_attn_with_kvcache

    def prepare(point, q, k, v):
        if q.dtype == torch.float16:
            return None  # the wheel was built without fp16
        if is_decoding(point) and not point.is_fp8():  # its function for that, which splits the keys
            return lambda: output_of(flash_attn_with_kvcache(q, k, v, causal=point.causal))
        more = peers_fp8.official_arguments(point, q.device) if point.is_fp8() else {}
        return lambda: output_of(flash_attn_func(q, k, v, causal=point.causal, **more))

    return prepare


def is_decoding(point):
    """A few queries on many keys."""
    return point.seqlen <= 64 < point.seqlen_k


def output_of(result):
    return result[0] if isinstance(result, (tuple, list)) else result


def make_fa4():
    from flash_attn.cute import flash_attn_func

    def prepare(point, q, k, v):
        return None if point.is_fp8() else lambda: output_of(flash_attn_func(q, k, v, causal=point.causal))

    return prepare


def make_triton():
    import triton_attention

    def prepare(point, q, k, v):
        return None if point.is_fp8() else triton_attention.prepare(q, k, v, point.causal)

    return prepare


STANDARD_BYTES = 60e9  # what `standard` may take for scores and probabilities


def make_standard():
    import torch

    def attend(q, k, v, mask):
        """A few batch entries: the scores S, the probabilities P, and P V."""
        batch, n, heads, head_dim = q.shape
        keys, head_dim_v = k.shape[1], v.shape[3]
        if heads != k.shape[2]:
            k, v = (tensor.repeat_interleave(heads // k.shape[2], dim=2) for tensor in (k, v))
        q, k, v = (tensor.transpose(1, 2).reshape(batch * heads, -1, tensor.shape[3]) for tensor in (q, k, v))
        s = torch.empty(batch * heads, n, keys, dtype=q.dtype, device=q.device)
        torch.baddbmm(s, q, k.transpose(1, 2), beta=0, alpha=head_dim**-0.5, out=s)
        if mask is not None:
            s.masked_fill_(mask, -math.inf)
        p = torch.softmax(s, dim=-1)
        return torch.bmm(p, v).view(batch, heads, n, head_dim_v).transpose(1, 2)

    def prepare(point, q, k, v):
        if point.is_fp8():
            return None
        entries = standard_entries(point)
        mask = None
        if point.causal:
            mask = torch.ones(point.seqlen, point.seqlen_k, dtype=torch.bool, device=q.device)
            mask.triu_(1 + point.seqlen_k - point.seqlen)

        def call():
            parts = [attend(*part, mask) for part in zip(*(tensor.split(entries) for tensor in (q, k, v)))]
            return parts[0] if len(parts) == 1 else torch.cat(parts)

        return call

    return prepare


def standard_entries(point):
    """How many batch entries `standard` does at a time: 16-bit scores and probabilities, one number a pair each."""
    if point.causal and point.seqlen_k < point.seqlen:
        raise RuntimeError("some rows see no key")
    one = 2 * 2 * point.heads * point.seqlen * point.seqlen_k
    if one > STANDARD_BYTES:
        raise RuntimeError(f"the scores would take {one / 1e9:.0f} GB")
    return min(point.batch, int(STANDARD_BYTES // one))


def make_cublas():
    import torch

    def prepare(point, q, k, v):
        # (M x K) times (K x N) of 2 M N K = the point's FLOPs, large enough that only the matrix units limit it.
        n = 8192
        m = max(128, round(point.flop / (2 * n * n) / 128) * 128)
        a, b = (torch.randn(rows, n, dtype=torch.float32, device=q.device).to(q.dtype) for rows in (m, n))
        if point.is_fp8():
            call = peers_fp8.prepare_product(a, b)
        else:
            out = torch.empty(m, n, dtype=q.dtype, device=q.device)

            def call():
                torch.mm(a, b, out=out)

        call.time_scale = point.flop / (2.0 * m * n * n)  # what rounding M did to the FLOPs
        return call

    return prepare


PEERS = {
    "cudnn": make_cudnn,
    "fa2": make_sdpa("FLASH_ATTENTION"),
    "official": make_official,
    "fa4": make_fa4,
    "triton": make_triton,
    "standard": make_standard,
    "cublas": make_cublas,
}
GIVEN_LIBRARY = set()
FORMS = peers_fp8.FORMS
NO_ATTENTION = {"cublas"}
WITH_FP8 = {"cudnn", "official", "cublas", *FORMS}


def useful_peers(points):
    """Those that do some of the points."""
    fp8, half = (any(point.is_fp8() == which for point in points) for which in (True, False))
    return [name for name in [*PEERS, *FORMS] if (fp8 and name in WITH_FP8) or (half and name in PEERS)]
