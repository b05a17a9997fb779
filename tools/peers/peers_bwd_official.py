"""The official FlashAttention-3's backward pass in peers.py, from the wheel flash_attn3_jax: bf16, head dimension 128.

The wheel is made for JAX, but its compiled half needs none: it exports the C++ function that enqueues the official
kernels, run_mha_bwd_<90, bfloat16_t, 128, false>(Flash_bwd_params&, cudaStream_t). It is called here by ctypes on
torch's stream, so that its calls are queued, timed by events and compared like all others. Timed is what the official
call does on the GPU: D and LSE prepared and the float32 sums of dQ cleared, the main kernel, dQ converted, and with
grouped heads the sums of dK and dV cleared and converted. The memory for that is allocated once, before.
"""

import ctypes
import importlib.metadata
import importlib.util

VERSION = "0.2.3"  # whose parameters are laid out as below
FUNCTION = "_Z12run_mha_bwd_ILi90EN7cutlass10bfloat16_tELi128ELb0EEvR16Flash_bwd_paramsP11CUstream_st"
HEAD_DIM, BLOCK_KV = 128, 128
BLOCK_Q = {False: 80, True: 64}  # of its kernel without and with a causal mask

POINTER, INT64, INT, FLOAT, BOOL = (
    ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float, ctypes.c_bool
)  # fmt: skip


def named(kind, names):
    return [(name, kind) for name in names.split()]


class Parameters(ctypes.Structure):
    """Flash_bwd_params, in its order. What stays 0 in these calls has one name for several members."""

    _fields_ = [
        *named(POINTER, "q k v"),
        *named(INT64, "q_batch_stride k_batch_stride v_batch_stride q_row_stride k_row_stride v_row_stride"),
        *named(INT64, "q_head_stride k_head_stride v_head_stride v_dim_stride"),
        *named(INT, "heads kv_heads"),
        *named(POINTER, "o o_parts"),
        *named(INT64, "o_batch_stride o_row_stride o_head_stride"),
        *named(POINTER, "lse lse_parts"),
        *named(INT64 * 9, "fp8_scales"),
        *named(INT, "batch seqlen seqlen_k seqlen_new head_dim seqlen_rounded seqlen_k_rounded head_dim_rounded"),
        *named(INT, "rotary_dim total_q total_k total_new cache_batch head_dim_v head_dim_v_rounded"),
        *named(FLOAT, "softmax_scale softcap"),
        *named(INT64 * 6, "lengths"),
        *named(INT64 * 7, "strides_of_parts"),
        *named(INT64 * 8, "new_keys"),
        *named(INT64 * 4, "qv"),
        *named(INT64 * 4, "rotary"),
        *named(INT64 * 2, "page_table"),
        *named(INT * 2, "pages"),
        *named(BOOL, "pages_by_tma"),
        *named(FLOAT, "kept"),
        *named(ctypes.c_uint8, "kept_of_255"),
        *named(FLOAT, "scale_of_kept"),
        *named(INT, "window_left window_right chunk"),
        *named(POINTER, "random_state"),
        *named(BOOL, "is_bf16 is_fp32 is_e4m3 is_causal is_local is_interleaved"),
        *named(INT, "splits"),
        *named(BOOL, "packs_heads"),
        *named(INT64 * 5, "scheduler"),
        *named(BOOL * 2, "scheduler_flags"),
        *named(INT, "scheduler_offset"),
        *named(BOOL * 2, "scheduler_order"),
        *named(INT, "architecture multiprocessors"),
        *named(POINTER, "do dq dk dv dq_sums dk_sums dv_sums"),
        *named(INT64, "do_batch_stride do_row_stride do_head_stride dq_batch_stride dk_batch_stride dv_batch_stride"),
        *named(INT64, "dq_row_stride dk_row_stride dv_row_stride dq_head_stride dk_head_stride dv_head_stride"),
        *named(POINTER, "d lse_base_2 dq_turns dk_turns dv_turns"),
        *named(BOOL, "deterministic"),
        *named(INT64, "dq_sums_stride"),
    ]


def load():
    """The function that enqueues the kernels."""
    found = importlib.metadata.version("flash_attn3_jax")
    if found != VERSION:
        raise ImportError(f"flash_attn3_jax is {found}, and only the calls of {VERSION} are known here")
    spec = importlib.util.find_spec("flash_attn3_jax_lib.flash_api")
    if not spec:
        raise ImportError("flash_attn3_jax has no library for this version of Python")
    function = ctypes.CDLL(spec.origin)[FUNCTION]
    function.argtypes, function.restype = [ctypes.POINTER(Parameters), ctypes.c_void_p], None
    return function


def rounded(n, multiple):
    return -(-n // multiple) * multiple


def parameters(point, tensors, memory, multiprocessors):
    """tensors: q, k, v, o, do, dq, dk and dv by name, and lse; memory: the others by name, None where not needed."""
    p = Parameters()
    for name, tensor in {**tensors, **memory}.items():
        setattr(p, name, tensor.data_ptr() if tensor is not None else None)
    for name, tensor in tensors.items():
        if name != "lse":
            for what, stride in zip(("batch", "row", "head"), tensor.stride()):
                setattr(p, f"{name}_{what}_stride", stride)
    p.v_dim_stride = 1
    p.heads, p.kv_heads, p.batch = point.heads, point.kv_heads, point.batch
    p.seqlen, p.seqlen_rounded = point.seqlen, rounded(point.seqlen, BLOCK_Q[point.causal])
    p.seqlen_k, p.seqlen_k_rounded = point.seqlen_k, rounded(point.seqlen_k, BLOCK_KV)
    p.total_q, p.total_k = point.batch * point.seqlen, point.batch * point.seqlen_k
    p.head_dim = p.head_dim_rounded = p.head_dim_v = p.head_dim_v_rounded = HEAD_DIM
    p.softmax_scale = HEAD_DIM**-0.5
    p.kept = p.scale_of_kept = 1.0  # without dropout
    p.kept_of_255 = 255
    p.window_left, p.window_right = point.seqlen_k - 1, 0 if point.causal else point.seqlen - 1
    p.is_bf16, p.is_causal = True, point.causal
    p.architecture, p.multiprocessors = 90, multiprocessors
    return p


def memory_of(point, device):
    """What the official call allocates."""
    import torch

    rows, keys = rounded(point.seqlen, BLOCK_Q[point.causal]), rounded(point.seqlen_k, BLOCK_KV)
    numbers = lambda *shape, dtype=torch.float32: torch.empty(shape, dtype=dtype, device=device)
    grouped = point.heads != point.kv_heads
    sums = lambda: numbers(point.batch, point.kv_heads, keys, HEAD_DIM) if grouped else None
    return {
        "d": numbers(point.batch, point.heads, rows),
        "lse_base_2": numbers(point.batch, point.heads, rows),
        "dq_sums": numbers(point.batch, point.heads, rows, HEAD_DIM),
        "dq_turns": numbers(point.batch, point.heads, rows, dtype=torch.int32),
        "dk_sums": sums(),
        "dv_sums": sums(),
    }


def make_official(inputs):
    """inputs: (point, q, k, v) -> O and LSE of the forward pass, and a gradient of O."""
    import torch

    enqueue = load()

    def prepare(point, q, k, v):
        if point.dtype != "bf16" or (point.head_dim, point.head_dim_v) != (HEAD_DIM, HEAD_DIM):
            return None
        out, lse, dout = inputs(point, q, k, v)
        gradients = [torch.full_like(tensor, float("nan")) for tensor in (q, k, v)]
        tensors = dict(zip("q k v o do dq dk dv lse".split(), (q, k, v, out, dout, *gradients, lse)))
        memory = memory_of(point, q.device)
        cleared = [memory[name] for name in ("dk_sums", "dv_sums") if memory[name] is not None]
        multiprocessors = torch.cuda.get_device_properties(q.device).multi_processor_count
        reference = ctypes.byref(parameters(point, tensors, memory, multiprocessors))
        stream = torch.cuda.current_stream(q.device).cuda_stream

        def call(keep_alive=(tensors, memory)):
            for tensor in cleared:
                tensor.zero_()
            enqueue(reference, stream)
            return gradients

        return call

    return prepare
