"""What users trip over is said in their words: each message names the argument as the caller wrote it, and what to
write instead. Wrong numbers in lengths, tables and slopes are refused on the CPU, and FA3_LOG=1 shows calls. Argument:
the library. Skipped without torch."""

import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support import ROOT, fa3, need, refused  # noqa: E402

need("torch", "numpy")
import numpy  # noqa: E402
import torch  # noqa: E402

import fa3.flash_attn as two  # noqa: E402
import fa3.flash_attn_cute as four  # noqa: E402
import fa3.flash_attn_interface as three  # noqa: E402
import fa3.flash_mla as mla  # noqa: E402
import fa3.vllm_flash_attn as vllm  # noqa: E402

fa3.load(sys.argv[1])
torch.manual_seed(1)
Q, K = torch.randn(2, 5, 4, 16), torch.randn(2, 9, 2, 16)
ROWS, KEYS = Q.flatten(0, 1), K.flatten(0, 1)


def ints(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


def ranks():
    text = "q has 3 dimensions, must have 4: batch, seqlen, heads, head_dim; or give cu_seqlens_q"
    for call in (fa3.forward, fa3.attention, two.flash_attn_func, three.flash_attn_with_kvcache):
        refused(ValueError, text, call, ROWS, KEYS, KEYS)
    refused(ValueError, "k has 3 dimensions, must have 4", fa3.forward, Q, KEYS, KEYS)
    sums = {"cu_seqlens_q": ints(0, 10), "cu_seqlens_k": ints(0, 18)}
    refused(ValueError, "v has 4 dimensions, must have 3 with cu_seqlens_k", fa3.forward, ROWS, KEYS, K, **sums)
    o, lse = fa3.forward(ROWS, KEYS, KEYS, **sums, return_lse=True)
    refused(ValueError, "q has 3 dimensions, must have 4", fa3.backward, o, ROWS, K, K, o, lse)


def absent():
    o, lse = fa3.forward(Q, K, K, return_lse=True)
    text = "dq is absent (None), must be a torch tensor"
    refused(TypeError, text, fa3.backward, o, Q, K, K, o, lse, out=(None, K, K))
    text = "out must be three tensors, dq, dk and dv"
    refused(TypeError, text, fa3.backward, o, Q, K, K, o, lse, out=(K, K))
    refused(TypeError, "v is absent (None)", fa3.forward, Q, K, None)


def names():
    """Of other functions, and of other packages."""
    for call, name, text in (
        (fa3.forward, "centered_k", "forward has no argument centered_k: attention and backward have it"),
        (fa3.forward, "accumulate", "forward has no argument accumulate: backward has it"),
        (fa3.attention, "kernel", "attention has no argument kernel: forward and backward have it"),
        (fa3.attention, "is_causal", "attention has no argument is_causal: did you mean causal?"),
        (fa3.forward, "scale", "forward has no argument scale: did you mean softmax_scale?"),
        (fa3.forward, "window_size", "forward has no argument window_size: did you mean window?"),
        (fa3.forward, "block_table", "forward has no argument block_table: did you mean page_table?"),
        (fa3.attention, "s_aux", "attention has no argument s_aux: did you mean sinks?"),
        (fa3.forward, "q_v", "forward has no argument q_v: did you mean qv?"),
        (fa3.forward, "v_descale", "forward has no argument v_descale: did you mean v_scale?"),
        (fa3.attention, "logits_soft_cap", "attention has no argument logits_soft_cap: did you mean softcap?"),
        (fa3.attention, "widow", "attention has no argument widow: did you mean window?"),
        (fa3.forward_schedule, "seqlens", "forward_schedule has no argument seqlens"),
        (fa3.kernel_info, "return_attn_probs", "did you mean return_lse?"),
    ):
        refused(TypeError, text, call, Q, K, K, **{name: True})
    text = "flags has FLAG_ACCUMULATE, which is not for fa3_forward, but fa3_backward"
    refused(fa3.InvalidArgument, text, fa3.ForwardParams, flags=fa3.FLAG_ACCUMULATE)
    text = "flags has FLAG_TWO_LEVEL, which is not for fa3_backward, but fa3_forward"
    refused(fa3.InvalidArgument, text, fa3.BackwardParams, flags=fa3.FLAG_DETERMINISTIC | fa3.FLAG_TWO_LEVEL)


def dtypes():
    wide = [numpy.zeros(x.shape) for x in (Q, K, K)]
    text = "q.dtype is float64, must be bfloat16, float16 or float8_e4m3fn, on the CPU also float32: give q.astype"
    refused(ValueError, text, fa3.forward, *wide)
    refused(ValueError, "q.dtype is float64, must be bfloat16", fa3.forward, *(x.double() for x in (Q, K, K)))
    long, table = torch.tensor([3, 4]), torch.tensor([[0], [1]])
    text = "cache_seqlens.dtype is int64, must be int32"
    refused(ValueError, text, three.flash_attn_with_kvcache, Q, K, K, cache_seqlens=long)
    refused(ValueError, text, two.flash_attn_with_kvcache, Q, K, K, cache_seqlens=long)
    refused(ValueError, text, mla.flash_mla_with_kvcache, Q, K, ints(0, 1)[:, None], long, 8, None)
    new = [x.bfloat16() for x in (Q, K, K, K[:, :1], K[:, :1])]
    refused(ValueError, text, three.flash_attn_with_kvcache, *new, cache_seqlens=long)
    text = "block_table.dtype is int64, must be int32"
    refused(ValueError, text, two.flash_attn_with_kvcache, Q, K, K, cache_seqlens=ints(3, 4), block_table=table)
    how = {"seqused_k": ints(3, 4), "block_table": table}
    refused(ValueError, text, vllm.flash_attn_varlen_func, ROWS, K, K, 5, ints(0, 5, 10), 9, **how)
    text = "cache_leftpad.dtype is int64, must be int32"
    refused(ValueError, text, three.flash_attn_with_kvcache, Q, K, K, cache_seqlens=ints(3, 4), cache_leftpad=long)


def windows():
    for interface in (two, three, four):
        text = "window_size is 16, must be (left, right)"
        refused(TypeError, text, interface.flash_attn_func, Q, K, K, window_size=16)
    refused(TypeError, "window is 16, must be (left, right)", fa3.forward, Q, K, K, window=16)
    text = "mask is window, but window_left and window_right are not given"
    refused(fa3.InvalidArgument, text, fa3.ForwardParams, mask=fa3.MASKS["window"])
    assert fa3.ForwardParams(mask=fa3.MASKS["window"], window_left=0).window_left == 0
    # Asked for by both numbers it is what it says: each query sees the key at its own position.
    o = fa3.forward(Q, K, K, window=(0, 0))
    assert torch.allclose(o, K[:, 4:].repeat_interleave(2, 2), atol=1e-6)


def stacked():
    q, kv = torch.zeros(2, 5, 4, 16), torch.zeros(2, 5, 3, 2, 16)
    text = "qkv has dims (2, 5, 4, 16), must have 5: batch, seqlen, 3, heads, head_dim"
    refused(ValueError, text, two.flash_attn_qkvpacked_func, q)
    text = "kv has dims (2, 5, 3, 2, 16), must have 5: batch, seqlen, 2, heads, head_dim"
    refused(ValueError, text, two.flash_attn_kvpacked_func, q, kv)
    text = "qkv has dims (5, 4, 16), must have 4: total, 3, heads, head_dim"
    refused(ValueError, text, two.flash_attn_varlen_qkvpacked_func, q[0], ints(0, 5), 5)
    text = "kv has dims (5, 4, 16), must have 4: total_k, 2, heads, head_dim"
    refused(ValueError, text, two.flash_attn_varlen_kvpacked_func, q[0], q[0], *[ints(0, 5)] * 2, 5, 5)
    text = "qkv has dims (2, 5, 2, 4, 16), must have 5: batch, seqlen, 3, heads, head_dim"
    refused(ValueError, text, three.flash_attn_qkvpacked_func, torch.zeros(2, 5, 2, 4, 16))


def without_gpu():
    if torch.cuda.is_available():
        return
    refused(RuntimeError, "fa3.preload loads kernels onto a GPU, and torch finds none here", fa3.preload)


def numbers():
    """Of lengths, tables, slopes and sinks, by whatever function they come; also in calls that were made before."""
    pages, table = torch.randn(4, 4, 2, 16), ints(3, 1, 0, 2).view(2, 2)
    used = {"seqused_k": ints(8, 3), "page_table": table}
    with torch.no_grad():
        for turn in range(2):  # the second one is made again
            fa3.forward(Q, pages, pages, **used)
            text = "seqused_k[1] is 9, must be from 0 to 8, the keys that there is room for in sequence 1"
            refused(fa3.InvalidArgument, text, fa3.forward, Q, pages, pages, **{**used, "seqused_k": ints(8, 9)})
            text = "page_table[0][1] is 4, must be from 0 to 3, the pages, as it holds keys in use, of 8"
            wrong = {**used, "page_table": ints(3, 4, 0, 2).view(2, 2)}
            refused(fa3.InvalidArgument, text, fa3.forward, Q, pages, pages, **wrong)
    fa3.forward(Q, pages, pages, **{**used, "page_table": ints(3, 1, 0, -1).view(2, 2)})  # which holds no key in use
    fa3.forward(Q[:, :1], *[torch.randn(70, 4, 2, 16)] * 2, page_table=torch.where(torch.arange(64) < 30, -1, 1).int()
                .expand(2, 64), window=(0, 0))  # far before the window  # fmt: skip
    sums = {"cu_seqlens_q": ints(0, 5, 10), "cu_seqlens_k": ints(0, 9, 18)}
    for wrong, text in (
        ({"cu_seqlens_q": ints(0, 11, 10)}, "cu_seqlens_q[1] is 11, but q has 10 rows"),
        ({"cu_seqlens_k": ints(0, 9, 7)}, "cu_seqlens_k[2] is 7, must be at least cu_seqlens_k[1], 9"),
        ({"cu_seqlens_k": ints(-1, 9, 18)}, "cu_seqlens_k[0] is -1, must be at least 0"),
        ({"cu_seqlens_k": ints(0, 0, 9), "seqused_k": ints(1, 9)}, "seqused_k[0] is 1, must be from 0 to 0"),
        ({"seqused_q": ints(5, 6)}, "seqused_q[1] is 6, must be from 0 to 5, the rows of sequence 1"),
        ({"leftpad_k": ints(10, 0)}, "leftpad_k[0] is 10, must be from 0 to 9, the keys in use of sequence 0"),
    ):
        refused(fa3.InvalidArgument, text, fa3.forward, ROWS, KEYS, KEYS, **{**sums, **wrong})
    unused = {"cu_seqlens_q": ints(0, 5, 10, 0, 0), "cu_seqlens_k": ints(0, 9, 18, 0, 0)}
    assert torch.equal(fa3.forward(ROWS, KEYS, KEYS, **unused), fa3.forward(ROWS, KEYS, KEYS, **sums))
    text = "cache_batch_idx[1] is 2, must be from 0 to 1, the entries of k, for sequence 1"
    refused(fa3.InvalidArgument, text, fa3.forward, Q, K, K, cache_batch_idx=ints(0, 2))
    arrays = [x.numpy() for x in (Q, K, K)]
    text = "alibi_slopes[1, 2] is -0.5, must be at least 0"
    slopes = torch.tensor([[1.0] * 4, [0, 1, -0.5, 0]])
    refused(fa3.InvalidArgument, text, fa3.forward, *arrays, alibi_slopes=slopes.numpy())
    refused(fa3.InvalidArgument, "alibi_slopes[0] is -1.0", two.flash_attn_func, Q, K, K, alibi_slopes=-torch.ones(4))
    sinks = torch.tensor([0, -torch.inf, torch.nan, 0])
    refused(fa3.InvalidArgument, "sinks[2] is nan, must be a number below inf", fa3.attention, Q, K, K, sinks=sinks)


def program(code, **environment):
    """What a new process says on stderr."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tools/python"), "FA3_LIBRARY": sys.argv[1], **environment}
    done = subprocess.run([sys.executable, "-B", "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr


def environment():
    code = """
import torch, fa3
q, cache = torch.zeros(1, 1, 2, 64).bfloat16(), torch.zeros(1, 4, 2, 64).bfloat16()
for turn in range(2):
    fa3.forward(q, cache, cache, causal=True, seqused_k=torch.tensor([3], dtype=torch.int32))
    try:
        fa3.append(q, q, cache, cache.clone(), cache_seqlens=torch.tensor([4], dtype=torch.int32))
    except fa3.InvalidArgument as error:
        assert "cache_seqlens[0] is 4, must be from 0 to 3, as 4 keys have room beside new ones" in str(error), error
    else:
        print("left out")
"""
    said = program(code.replace('print("left out")', "pass"), FA3_LOG="1").splitlines()
    call = "fa3: fa3_reference_forward: q bfloat16 (1, 1, 2, 64), k bfloat16 (1, 4, 2, 64), v bfloat16 (1, 4, 2, 64), "
    assert len(said) == 4 and said[0] == said[2] and said[0].startswith(call), said
    assert "mask causal_bottom_right" in said[0] and "seqused_k int32 (1)" in said[0], said
    assert said[1].startswith("fa3: fa3_reference_append: k bfloat16 (1, 1, 2, 64)"), said
    assert program(code.replace('print("left out")', 'raise AssertionError("left out")'), FA3_CHECK="1") == ""


def maxima():
    """Rows beyond a maximum are a fault with FA3_CHECK=1 alone; places of a batch that are not in use are none."""
    code = """
import sys, torch, fa3
q, k = torch.randn(10, 4, 16), torch.randn(18, 2, 16)
ints = lambda *numbers: torch.tensor(numbers, dtype=torch.int32)
how = {"cu_seqlens_q": ints(0, 5, 10, 0), "cu_seqlens_k": ints(0, 9, 18, 0), "max_seqlen_q": 5, "max_seqlen_k": 9}
o, lse = fa3.forward(q, k, k, **how, return_lse=True)
for wrong in {}, {"max_seqlen_k": 8}, {"max_seqlen_q": 4}:
    for call, inputs in (fa3.forward, (q, k, k)), (fa3.backward, (o, q, k, k, o, lse)):
        try:
            call(*inputs, **{**how, **wrong})
        except fa3.InvalidArgument as error:
            print(error, file=sys.stderr)
        else:
            print("taken", file=sys.stderr)
"""
    taken, said = ["taken"] * 2, program(code, FA3_CHECK="1").splitlines()
    assert said[:2] == taken, said
    assert all("max_seqlen_k is 8, but sequence 0 has 9 rows" in line for line in said[2:4]), said
    assert all("max_seqlen_q is 4, but sequence 0 has 5 rows" in line for line in said[4:]) and len(said) == 6, said
    assert program(code).splitlines() == taken * 3


for case in (ranks, absent, names, dtypes, windows, stacked, without_gpu, numbers, environment, maxima):
    case()
    print(case.__name__, flush=True)
