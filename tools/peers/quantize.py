#!/usr/bin/env python3
"""Times fa3_quantize beside a device-to-device copy of as many bytes, in one process, and checks it against torch.

    python3 tools/peers/quantize.py [--d 64,128,256] [--shapes 1x16384,8x2048] [--hidden 2048]

GB/s count x once and y once, and `share` is that of the copy's, which reads half as many bytes as it moves and writes
the other half. `moved` is the same share with all that must be moved: x twice where means or scales of more than 64
rows are wanted, and the angles of rotary embedding as often as x. (What the L2 cache keeps of x from the first time
need not come from memory again, so it may exceed 1.) Protocol as in peers.py: 100 ms idle, 5 warm-ups, 30 runs each
with its own pair of events, queued while the GPU sleeps; the median.
"""

import argparse
import itertools
import statistics
import time

import prepared
from peers_start import start
from prepared import fa3

SEED = 20240711


# What torch makes of it ---------------------------------------------------------------------------------------------


def is_negative(seed, column):
    mask = (1 << 64) - 1
    z = (seed + column + 0x9E3779B97F4A7C15) & mask
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & mask
    return (z ^ z >> 31) >> 63 == 1


def mixing(d, seed):
    """Signs and Hadamard matrix as one d x d matrix, from the right."""
    import torch

    n = d & -d
    hadamard = torch.tensor([[(-1) ** bin(i & j).count("1") for j in range(n)] for i in range(n)], dtype=torch.float64)
    whole = torch.block_diag(*[hadamard / n**0.5] * (d // n))
    signs = torch.tensor([-1.0 if is_negative(seed, c) else 1.0 for c in range(d)], dtype=torch.float64)
    return (signs[:, None] * whole).cuda()


def transformed(x, case, cos, sin):
    import torch

    y = x.double()
    if case["rotary"]:
        half = x.shape[3] // 2
        a, b = y[..., :half], y[..., half:]
        c, s = cos.double()[None, :, None], sin.double()[None, :, None]
        y = torch.cat((a * c - b * s, a * s + b * c), 3)
    return y @ mixing(x.shape[3], SEED) if case["incoherent"] else y


def from_tiles(y, seqlen):
    """(batch, heads, tiles, d, 16) to (batch, seqlen, heads, d)."""
    batch, heads, tiles, d, _ = y.shape
    y = y.reshape(batch, heads, tiles, d // 16, 2, 8, 4, 2, 2)  # a, c, r, q, b, e
    y = y.permute(0, 2, 7, 6, 8, 1, 3, 5, 4)  # tile, b, q, e, head, a, r, c
    return y.reshape(batch, tiles * 16, heads, d)[:, :seqlen]


def check(x, y, scale, mean, case, cos, sin):
    """Share of elements that differ from torch's, all by a step of e4m3; or an AssertionError."""
    import torch

    batch, seqlen, heads, d = x.shape
    different = 0
    for b in range(batch):
        exact = transformed(x[b : b + 1], case, cos, sin)
        if mean is not None:
            means = exact.mean(1, keepdim=True)
            assert (means[0, 0] - mean[b]).abs().max() < 1e-5 * exact.abs().max(), "mean"
            exact -= mean[b][None, None].double()
        scales = scale[b if scale.shape[0] > 1 else 0]
        if scales.shape[1] > 1:
            scales = scales.repeat_interleave(64, 1)[:, :seqlen]
        scales = scales.t()[None, :, :, None].double()
        must = (exact / scales).clamp(-448, 448).float().to(torch.float8_e4m3fn).view(torch.uint8).int()
        ours = (from_tiles(y[b : b + 1], seqlen) if case["tiles"] else y[b : b + 1]).int()
        rank = lambda code: torch.where(code >= 128, 128 - code, code)
        distance = (rank(must) - rank(ours)).abs()
        assert distance.max() <= 1, "y"
        different += int((distance > 0).sum())
        if case["scale"] == "block":
            blocks = exact.abs().amax(3)[0]
            blocks = torch.nn.functional.pad(blocks, (0, 0, 0, -seqlen % 64)).reshape(-1, 64, heads).amax(1)
            assert ((blocks.t() / 448 - scale[b]).abs() <= 3e-6 * scale[b]).all(), "scale"
        elif case["scale"] == "head":
            assert ((exact.abs().amax((1, 3))[0] / 448 - scale[b, :, 0]).abs() <= 3e-6 * scale[b, :, 0]).all(), "scale"
        else:
            assert exact.abs().max() / 448 <= scale.max() * (1 + 3e-6), "scale"
    return different / x.numel()


# Times --------------------------------------------------------------------------------------------------------------


def median_ms(call, warm_ups=5, runs=30):
    import torch

    torch.cuda.synchronize()
    time.sleep(0.1)
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(runs)]
    torch.cuda._sleep(4_000_000)  # 2 ms, in which the host gets ahead
    for _ in range(warm_ups):
        call()
    for start, stop in pairs:
        start.record()
        call()
        stop.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(stop) for start, stop in pairs)


OPTIONS = ("mean", "incoherent", "rotary", "tiles", "lse")
CASES = (
    "block",
    "block tiles",
    "block incoherent",
    "block incoherent lse",
    "block rotary",
    "block incoherent rotary",
    "block mean",
    "block mean tiles",
    "block mean incoherent",
    "block mean rotary",
    "head",
    "head tiles",
    "head mean",
    "tensor",
    "tensor mean",
)


def case_of(text):
    scale, *options = text.split()
    return {"scale": scale, **{option: option in options for option in OPTIONS}}


def bytes_moved(x, case):
    reads = 2 if case["mean"] or case["scale"] != "block" else 1
    angles = 4 * x.shape[1] * x.shape[3] if case["rotary"] else 0
    return reads * (2 * x.numel() + angles) + x.numel()


def measure(library, x, case):
    import torch

    batch, seqlen, heads, d = x.shape
    new = lambda *dims: torch.empty(dims, dtype=torch.float32, device="cuda")
    y, scale = prepared.quantize_outputs(x, case["scale"], case["tiles"])
    optional = {}
    cos = sin = None
    if case["mean"]:
        optional["mean"] = new(batch, heads, d)
    if case["rotary"]:
        angle = torch.arange(seqlen)[:, None] * 10000.0 ** (-torch.arange(0, d, 2) / d)[None]
        cos, sin = angle.cos().float().cuda(), angle.sin().float().cuda()
        optional["rotary_cos"], optional["rotary_sin"] = cos, sin
    if case["lse"]:
        optional["k_mean"] = torch.randn(batch, heads, d, device="cuda")
        optional["lse_offset"] = new(batch, heads, seqlen)
    flags = fa3.QUANTIZE_INCOHERENT if case["incoherent"] else 0
    call = library.prepare_quantize(x, y, scale, flags, SEED, **optional)
    call()
    torch.cuda.synchronize()
    different = check(x, y.view(torch.uint8), scale, optional.get("mean"), case, cos, sin)
    if case["lse"]:
        must = torch.einsum("bshd,bhd->bhs", transformed(x, case, cos, sin), optional["k_mean"].double()) / d**0.5
        assert (must - optional["lse_offset"]).abs().max() < 1e-4, "lse_offset"
    return median_ms(call), different


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--d", default="64,128,256", help="head dimensions")
    parser.add_argument("--shapes", default="1x16384,8x2048", help="batch x seqlen")
    parser.add_argument("--hidden", type=int, default=2048, help="heads * head dimension")
    parser.add_argument("--dtype", choices=("bf16", "fp16"), default="bf16")
    parser.add_argument("--library", help="libfa3.so; otherwise the newest build")
    options = parser.parse_args()
    library = start("quantize.py", {"libfa3": options.library})[0]["libfa3"]
    import torch

    print(f"{'shape':>8} {'d':>4} {'case':24} {'us':>8} {'GB/s':>7} {'share':>6} {'moved':>6}  elements a step off")
    for shape, d in itertools.product(options.shapes.split(","), map(int, options.d.split(","))):
        batch, seqlen = map(int, shape.split("x"))
        torch.manual_seed(1)
        dtype = torch.bfloat16 if options.dtype == "bf16" else torch.float16
        x = torch.randn(batch, seqlen, options.hidden // d, d, device="cuda", dtype=dtype) + 0.5
        once = 3 * x.numel()
        source = torch.zeros(once // 2, dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        copy_ms = median_ms(lambda: target.copy_(source))
        print(f"{shape:>8} {d:4} {'copy':24} {copy_ms * 1e3:8.1f} {once / copy_ms * 1e-6:7.0f}", flush=True)
        for text in CASES:
            case = case_of(text)
            ms, different = measure(library, x, case)
            share = copy_ms / ms
            figures = f"{share:6.2f} {share * bytes_moved(x, case) / once:6.2f}  {different:.1e}"
            print(f"{shape:>8} {d:4} {text:24} {ms * 1e3:8.1f} {once / ms * 1e-6:7.0f} {figures}", flush=True)


if __name__ == "__main__":
    main()
