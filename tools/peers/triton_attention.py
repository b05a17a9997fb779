"""A forward pass in Triton for Hopper: what a kernel without hand-written instructions reaches beside the library.

FlashAttention-2's loop (one program a block of query rows, no warp specialisation), in Triton's vocabulary:
  - K, V and O travel through host-made tensor descriptors (TMA) over (batch, seqlen, heads, head_dim) in any strides;
    rows beyond seqlen read as zeros and are not written;
  - Q, loaded once, goes by pointers: Triton keeps it in shared memory only then, and head_dim 256 needs the registers;
  - blocks that every row sees in full run in one loop without a mask, those at the diagonal or at the end of an odd
    sequence in a second one;
  - the softmax works in powers of two, its scale folded into the exponent's multiply-add.

Triton tunes once for each (dtype, head_dim, causal), at one fixed shape rather than at the first caller's.
"""

import functools
import math

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

# Block_m (query rows), block_n (keys), warps, stages. With Triton 3.6 none spills, and ptxas serialises no wgmma.
BLOCKS = {
    64: [(128, 128, 8, 3), (128, 64, 4, 3), (64, 128, 4, 2), (64, 64, 4, 3)],
    128: [(128, 128, 8, 2), (128, 128, 8, 3), (128, 64, 8, 3), (64, 64, 4, 2)],
    256: [(128, 64, 8, 2), (128, 32, 8, 3), (64, 32, 4, 2)],
}
TUNING_TOKENS, TUNING_SEQLEN, TUNING_HIDDEN = 16384, 4096, 2048


@triton.jit
def load_tile(tensor, batch, row, head, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr):
    return tensor.load([batch, row, head, 0]).reshape(ROWS, HEAD_DIM)


@triton.jit
def attend(
    acc,
    m,
    l,
    q,
    k_tensor,
    v_tensor,
    batch,
    kv_head,
    row,
    column,
    seqlen,
    scale,
    MASKED: tl.constexpr,
    CAUSAL: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One block of keys: the new accumulator, row maxima (in the exponent's units) and row sums."""
    k = load_tile(k_tensor, batch, column, kv_head, BLOCK_N, HEAD_DIM)
    s = tl.dot(q, k.T)
    if MASKED:
        columns = column + tl.arange(0, BLOCK_N)[None, :]
        if CAUSAL:  # every row that is stored is below seqlen, and so is all that it sees
            s = tl.where(columns <= row + tl.arange(0, BLOCK_M)[:, None], s, float("-inf"))
        else:
            s = tl.where(columns < seqlen, s, float("-inf"))
    m_new = tl.maximum(m, tl.max(s, 1) * scale)  # finite: the first block shows every row a key
    p = tl.exp2(s * scale - m_new[:, None])
    alpha = tl.exp2(m - m_new)
    l = l * alpha + tl.sum(p, 1)
    v = load_tile(v_tensor, batch, column, kv_head, BLOCK_N, HEAD_DIM)
    acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
    return acc, m_new, l


@triton.jit(do_not_specialize=["seqlen", "heads", "group"])
def forward(
    q_pointer,
    q_batch_stride,
    q_row_stride,
    q_head_stride,
    k_tensor,
    v_tensor,
    o_tensor,
    seqlen,
    heads,
    group,
    scale,
    RAGGED: tl.constexpr,
    CAUSAL: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    # Neighbours share a head, so that its K and V stay in L2; causal heads start with their longest rows.
    blocks = tl.cdiv(seqlen, BLOCK_M)
    block = tl.program_id(0) % blocks
    head = tl.program_id(0) // blocks % heads
    batch = tl.program_id(0) // blocks // heads
    if CAUSAL:
        block = blocks - 1 - block
    row = block * BLOCK_M
    kv_head = head // group

    rows = row + tl.arange(0, BLOCK_M)[:, None]
    q_pointer += batch.to(tl.int64) * q_batch_stride + head.to(tl.int64) * q_head_stride
    q = tl.load(q_pointer + rows.to(tl.int64) * q_row_stride + tl.arange(0, HEAD_DIM)[None, :], rows < seqlen, 0.0)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    full = (row if CAUSAL else seqlen) // BLOCK_N * BLOCK_N
    for column in range(0, full, BLOCK_N):
        acc, m, l = attend(
            acc, m, l, q, k_tensor, v_tensor, batch, kv_head, row, column, seqlen, scale,
            False, CAUSAL, HEAD_DIM, BLOCK_M, BLOCK_N,
        )  # fmt: skip
    if CAUSAL or RAGGED:
        end = tl.minimum(row + BLOCK_M, seqlen) if CAUSAL else seqlen
        for column in range(full, end, BLOCK_N):
            acc, m, l = attend(
                acc, m, l, q, k_tensor, v_tensor, batch, kv_head, row, column, seqlen, scale,
                True, CAUSAL, HEAD_DIM, BLOCK_M, BLOCK_N,
            )  # fmt: skip
    out = (acc / l[:, None]).to(q.dtype)
    o_tensor.store([batch, row, head, 0], out.reshape(1, BLOCK_M, 1, HEAD_DIM))


# --- host -------------------------------------------------------------------------------------------------------------


def set_block_shapes(arguments):
    for name, block in (("k", "BLOCK_N"), ("v", "BLOCK_N"), ("o", "BLOCK_M")):
        arguments[f"{name}_tensor"].block_shape = [1, arguments[block], 1, arguments["HEAD_DIM"]]


def configs(head_dim):
    return [
        triton.Config({"BLOCK_M": m, "BLOCK_N": n}, num_warps=warps, num_stages=stages, pre_hook=set_block_shapes)
        for m, n, warps, stages in BLOCKS[head_dim]
    ]


def kernel_arguments(q, k, v, out, causal):
    """All but what a configuration decides. Its pre-hook gives the descriptors their boxes."""
    head_dim = q.shape[3]
    arguments = {
        f"{name}_tensor": TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), [1, 1, 1, head_dim])
        for name, tensor in (("k", k), ("v", v), ("o", out))
    }
    arguments |= {"q_pointer": q, **dict(zip(("q_batch_stride", "q_row_stride", "q_head_stride"), q.stride()))}
    arguments |= {"seqlen": q.shape[1], "heads": q.shape[2], "group": q.shape[2] // k.shape[2]}
    return arguments | {"scale": math.log2(math.e) / math.sqrt(head_dim), "CAUSAL": causal, "HEAD_DIM": head_dim}


def programs(batch, seqlen, heads):
    return lambda meta: (triton.cdiv(seqlen, meta["BLOCK_M"]) * heads * batch,)


@functools.cache
def tuned(device, dtype, head_dim, causal):
    """The fastest configuration, found on inputs like the callers' (zeros would let the chip clock higher)."""
    batch, seqlen, heads = TUNING_TOKENS // TUNING_SEQLEN, TUNING_SEQLEN, TUNING_HIDDEN // head_dim
    generator = torch.Generator(device=device).manual_seed(1)
    q, k, v = (
        torch.randn(batch, seqlen, heads, head_dim, generator=generator, device=device).to(dtype) for _ in range(3)
    )
    tuner = triton.autotune(configs(head_dim), key=["HEAD_DIM", "CAUSAL"])(forward)
    arguments = kernel_arguments(q, k, v, torch.empty_like(q), causal)
    tuner[programs(batch, seqlen, heads)](**arguments, RAGGED=False)
    return tuner.best_config


def check(q, k, v):
    if not q.dtype == k.dtype == v.dtype or q.dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(f"q, k and v must share bf16 or fp16, not {q.dtype}, {k.dtype}, {v.dtype}")
    if any(tensor.dim() != 4 for tensor in (q, k, v)) or k.shape != v.shape or q.shape[:2] != k.shape[:2]:
        raise ValueError("q, k and v must be (batch, seqlen, heads, head_dim) of one batch, length and head_dim")
    if q.shape[3] != k.shape[3] or q.shape[3] not in BLOCKS:
        raise ValueError(f"head_dim must be one of {', '.join(map(str, BLOCKS))}, not {q.shape[3]}")
    if not q.numel() or not k.numel() or q.shape[2] % k.shape[2]:
        raise ValueError(f"{q.shape[2]} query heads over {k.shape[2]} key heads")
    for tensor in (q, k, v):
        if tensor.stride(3) != 1 or tensor.data_ptr() % 16 or any(stride % 8 for stride in tensor.stride()[:3]):
            raise ValueError("TMA needs addresses and strides in multiples of 16 bytes, and packed rows")


def prepare(q, k, v, causal, config=None):
    """A function that enqueues one run and returns its output, the same tensor each time. Preparing once keeps
    Python's share out of timed loops. `config` (one of `configs`) stands in for the tuned one."""
    check(q, k, v)
    causal = bool(causal)
    batch, seqlen, heads, head_dim = q.shape
    if config is None:  # the interpreter (TRITON_INTERPRET=1) runs on the CPU, where there is nothing to tune
        config = tuned(q.device, q.dtype, head_dim, causal) if q.is_cuda else configs(head_dim)[0]
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    arguments = kernel_arguments(q, k, v, out, causal)
    arguments |= config.all_kwargs() | {"RAGGED": seqlen % config.kwargs["BLOCK_N"] != 0}
    set_block_shapes(arguments)
    launch = forward[programs(batch, seqlen, heads)]

    def call():
        launch(**arguments)
        return out

    return call


def attention(q, k, v, causal):
    """softmax(q k^T / sqrt(head_dim)) v of (batch, seqlen, heads, head_dim) tensors, by heads / kv_heads groups."""
    return prepare(q, k, v, causal)()
