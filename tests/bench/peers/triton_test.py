"""The Triton kernel of the benchmark in Triton's interpreter, without a GPU, against float64. Skipped without torch and
Triton."""

import math
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tests/python"))
from support import need  # noqa: E402

need("torch", "triton", "numpy")
from test_helpers import SKIPPED, expect, inputs, made_point, reference, relative  # noqa: E402


def test_triton():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
    import torch
    from triton.runtime.errors import InterpreterError

    import triton_attention

    # fp16 only: the interpreter multiplies bf16's bits as integers.
    generator = torch.Generator().manual_seed(1)
    worst = count = 0
    try:
        for head_dim in triton_attention.BLOCKS:
            for config in triton_attention.configs(head_dim):
                for causal in (0, 1):
                    for batch, seqlen, heads, kv_heads in (
                        (2, 130, 4, 2),
                        (1, 256, 1, 1),
                        (1, 257, 1, 1),
                        (2, 1, 2, 1),
                    ):
                        point = made_point("fp16", head_dim, causal, batch, seqlen, heads, kv_heads)
                        q, k, v = inputs(generator, point, torch.float16)
                        out = triton_attention.prepare(q, k, v, causal, config)()
                        error = relative(out, reference(q, k, v, causal))
                        assert error < 1e-3, (point, str(config), error)
                        worst, count = max(worst, error), count + 1
    except InterpreterError as error:
        if "0-dimensional arrays" not in str(error):
            raise
        print("SKIPPED: this Triton's interpreter does not run with this NumPy (it needs one below 2.4)")
        return SKIPPED

    # Any strides: views of larger tensors, whose other rows hold NaN; and a transposed layout.
    q, k, v = (torch.full((2, 200, 6, 64), math.nan, dtype=torch.float16)[:, 3:194, 1:5] for _ in range(3))
    for tensor in (q, k, v):
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
    for causal in (False, True):
        exact = reference(q, k, v, causal)
        assert relative(triton_attention.attention(q, k, v, causal), exact) < 1e-3
        across = [tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in (q, k, v)]
        assert relative(triton_attention.attention(*across, causal), exact) < 1e-3

    test_tuning(torch, triton_attention)

    q, k, v = (torch.zeros(1, 8, heads, 64, dtype=torch.float16) for heads in (4, 2, 2))
    for wrong, text in (
        ((q, k.float(), v), "bf16 or fp16"),
        ((q, k[:, :4], v[:, :4]), "of one batch, length"),
        ((q, k, v[:, :4]), "of one batch, length"),
        ((q[0], k[0], v[0]), "of one batch, length"),
        ((q[..., :32], k[..., :32], v[..., :32]), "head_dim"),
        ((q[:, :, :3], k, v), "3 query heads over 2 key heads"),
        ((q[:, :0], k[:, :0], v[:, :0]), "query heads"),
        ((q.transpose(2, 3).contiguous().transpose(2, 3), k, v), "TMA"),
        ((torch.zeros(4 * 8 * 64 + 1, dtype=torch.float16)[1:].view(1, 8, 4, 64), k, v), "TMA"),
    ):
        try:
            triton_attention.attention(*wrong, True)
        except ValueError as error:
            expect(str(error), text)
        else:
            raise AssertionError(f"accepted, expected: {text}")
    print(f"the Triton kernel agrees at {count} points, largest relative error {worst:.1e}")
    return 0


def test_tuning(torch, triton_attention):
    """Tuning with a stand-in for the clock: every configuration runs once, the fastest one is taken and kept."""
    plain, calls = triton_attention.triton.autotune, []

    def clock(call, quantiles):
        call()
        calls.append(None)
        return [abs(len(calls) - 3) + 1.0] * 3  # the third is the fastest

    triton_attention.triton.autotune = lambda *a, **k: plain(*a, **k, do_bench=clock)
    shape = triton_attention.TUNING_TOKENS, triton_attention.TUNING_SEQLEN, triton_attention.TUNING_HIDDEN
    triton_attention.TUNING_TOKENS, triton_attention.TUNING_SEQLEN, triton_attention.TUNING_HIDDEN = 256, 128, 128
    try:
        for _ in range(2):
            best = triton_attention.tuned(torch.device("cpu"), torch.float16, 64, True)
            assert str(best) == str(triton_attention.configs(64)[2]), best
            assert len(calls) == len(triton_attention.BLOCKS[64]), len(calls)
    finally:
        triton_attention.triton.autotune = plain
        triton_attention.TUNING_TOKENS, triton_attention.TUNING_SEQLEN, triton_attention.TUNING_HIDDEN = shape
        triton_attention.tuned.cache_clear()


if __name__ == "__main__":
    sys.exit(test_triton())
