#!/usr/bin/env python3
"""Times fa3_combine beside a device-to-device copy of as many bytes, in one process, and checks it against torch.

    python3 tools/fa3-bench/combine.py [--d 64,128,256] [--parts 2,3,8,64] [--shapes 1x8192x16,64x1x32]

Shapes are batch x seqlen x heads. GB/s count all parts and the result with their LSE once, and `share` is that of the
copy's, which reads half as many bytes as it moves and writes the other half. `empty` is the share of parts that have
seen no key: bytes count as if all had. Protocol as in quantize.py.
"""

import argparse
import itertools
import sys

import fa3_ctypes as fa3
from quantize import median_ms

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def check(o_parts, lse_parts, o, lse):
    """Largest error relative to what one rounding and float32 weights may cost; or an AssertionError."""
    import torch

    exact_lse = torch.logsumexp(lse_parts.double(), 0)
    weights = torch.nan_to_num((lse_parts.double() - exact_lse).exp()).transpose(2, 3)[..., None]
    exact, largest = torch.zeros_like(o, dtype=torch.float64), torch.zeros_like(o, dtype=torch.float64)
    for part, weight in zip(o_parts, weights):
        seen = torch.where(weight > 0, part.double(), 0.0)
        exact += weight * seen
        largest = torch.maximum(largest, seen.abs())
    roundoff = torch.finfo(o.dtype).eps / 2
    allowed = roundoff * exact.abs() + (2e-6 + 6e-8 * len(o_parts)) * largest
    error = ((o.double() - exact).abs() / allowed.clamp_min(1e-30)).max().item()
    assert error <= 1.001, f"o: {error} times what is allowed"
    seen = exact_lse > -float("inf")
    assert torch.equal(seen, lse > -float("inf")), "lse"
    assert ((lse.double() - exact_lse)[seen].abs() <= 1.2e-7 * exact_lse[seen].abs() + 6e-6).all(), "lse"
    return error


def measure(library, dims, parts_dtype, o_dtype, empty):
    import torch

    parts, batch, seqlen, heads, d = dims
    o_parts = torch.randn(dims, device="cuda", dtype=torch.float32).to(getattr(torch, DTYPES[parts_dtype]))
    lse_parts = 2 * torch.randn(parts, batch, heads, seqlen, device="cuda")
    nothing = torch.rand_like(lse_parts) < empty
    lse_parts[nothing] = -float("inf")
    o_parts[nothing.transpose(2, 3)] = float("nan")
    o = torch.empty(dims[1:], device="cuda", dtype=getattr(torch, DTYPES[o_dtype]))
    lse = torch.empty(dims[1], heads, seqlen, device="cuda")
    call = library.prepare_combine(o_parts, lse_parts, o, lse)
    call()
    torch.cuda.synchronize()
    error = check(o_parts, lse_parts, o, lse)
    return median_ms(call), error, sum(t.numel() * t.element_size() for t in (o_parts, lse_parts, o, lse))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--d", default="64,128,256", help="head dimensions")
    parser.add_argument("--parts", default="2,3,8,64", help="numbers of parts")
    parser.add_argument("--shapes", default="1x8192x16,8x2048x16,64x1x32,4x1x32", help="batch x seqlen x heads")
    parser.add_argument("--dtypes", default="fp32:bf16,bf16:bf16,fp32:fp32", help="of the parts and of the result")
    parser.add_argument("--empty", type=float, default=0.0, help="share of parts that have seen no key")
    parser.add_argument("--library", help="libfa3.so; otherwise the newest build")
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        sys.exit("combine.py needs torch")
    if not torch.cuda.is_available():
        sys.exit("combine.py needs a GPU")
    torch.manual_seed(1)
    library = fa3.Library(options.library)
    print(torch.cuda.get_device_name(), "with", library.path)
    print(f"{'shape':>12} {'d':>4} {'parts':>5} {'dtypes':>10} {'MB':>8} {'us':>8} {'GB/s':>7} {'copy':>7} {'share':>6}  error")
    numbers = lambda text: map(int, text.split(","))
    for shape, d, dtypes, parts in itertools.product(
        options.shapes.split(","), numbers(options.d), options.dtypes.split(","), numbers(options.parts)
    ):
        dims = (parts, *map(int, shape.split("x")), d)
        ms, error, moved = measure(library, dims, *dtypes.split(":"), options.empty)
        source = torch.zeros(max(moved // 2, 1), dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        copy_ms = median_ms(lambda: target.copy_(source))
        print(
            f"{shape:>12} {d:4} {parts:5} {dtypes:>10} {moved * 1e-6:8.1f} {ms * 1e3:8.1f} {moved / ms * 1e-6:7.0f} "
            f"{moved / copy_ms * 1e-6:7.0f} {copy_ms / ms:6.2f}  {error:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
