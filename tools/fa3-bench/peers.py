#!/usr/bin/env python3
"""libfa3.so beside whatever peers this Python can import, on the same GPU, interleaved point by point in one process.

Protocol (as fa3-bench): inputs N(0,1) in (batch, seqlen, heads, head_dim), 100 ms idle, 5 warm-ups, 30 runs each with
its own pair of CUDA events queued without host waits, median. FLOPs: 4 N^2 d H B, half if causal. Before the warm-ups
the GPU spins for some milliseconds, so that peers whose calls take the host long are queued by then, too. Every peer's
output is compared with the library's before anything is timed. With several passes, the peers' order rotates and a point's
figure is the median of the passes' medians. Calls so slow that their runs would exceed --point-ms run fewer times, at
least 5; that bounds what slow peers and very long sequences take.

Peers: cudnn and fa2 (backends of torch's scaled_dot_product_attention), official (FlashAttention-3, wheel fa3-fwd),
fa4 (flash-attn-4), triton (triton_attention.py beside this file), standard (matrix products and a softmax of torch,
with the scores in memory; refused where they would not fit), cublas (a matrix product of the point's FLOPs: a ceiling,
not attention).

Point sets: grid (the paper's, or as the options say), fp16 (its points at d 128 in fp16) and extra (grouped heads, odd
lengths, long contexts, few heads, the paper's ablation point).
"""

import argparse
import collections
import csv
import math
import os
import statistics
import sys
import time

import fa3_ctypes


class Point(collections.namedtuple("Point", "dtype head_dim causal batch seqlen heads kv_heads")):
    def flop(self):
        return 4.0 * self.seqlen**2 * self.head_dim * self.heads * self.batch / (2 if self.causal else 1)

    def label(self):
        heads = f"{self.heads}" if self.heads == self.kv_heads else f"{self.heads}/{self.kv_heads}"
        return (
            f"{self.dtype} d{self.head_dim} {'causal' if self.causal else 'full'} batch {self.batch} "
            f"seqlen {self.seqlen} heads {heads}"
        )

    def group(self):
        return f"{self.dtype} d{self.head_dim} {'causal' if self.causal else 'full'}"


DTYPES = {"bf16": "bfloat16", "fp16": "float16"}  # and torch's names


# --- peers ------------------------------------------------------------------------------------------------------------
# Each maker imports what it needs and returns a function: (point, q, k, v) -> a call without arguments that enqueues
# one run on torch's current stream and returns the output in (batch, seqlen, heads, head_dim), or None where the peer
# does not do it.


def make_fa3(options):
    import torch

    library = fa3_ctypes.Library(options.library)
    torch.cuda.init()
    torch.zeros(1, device="cuda")  # makes torch's context current
    library.preload()

    def prepare(point, q, k, v):
        lse = torch.empty(point.batch, point.heads, point.seqlen, dtype=torch.float32, device=q.device)
        return library.prepare(
            q, k, v, torch.full_like(q, math.nan), lse, "causal_bottom_right" if point.causal else "none"
        )

    return prepare


def make_sdpa(backend_name):
    def make(_options):
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        backend = getattr(SDPBackend, backend_name)

        def prepare(point, q, k, v):
            q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
            gqa = {"enable_gqa": True} if point.heads != point.kv_heads else {}

            def call():
                with sdpa_kernel(backend):
                    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=bool(point.causal), **gqa)
                return out.transpose(1, 2)

            return call

        return prepare

    return make


def make_official(_options):
    import torch
    from fa3_fwd_interface import flash_attn_func

    def prepare(point, q, k, v):
        if q.dtype != torch.bfloat16:
            return None  # the wheel was built without fp16
        return lambda: first(flash_attn_func(q, k, v, causal=bool(point.causal)))

    return prepare


def make_fa4(_options):
    from flash_attn.cute import flash_attn_func

    def prepare(point, q, k, v):
        return lambda: first(flash_attn_func(q, k, v, causal=bool(point.causal)))

    return prepare


def make_triton(_options):
    import triton_attention

    def prepare(point, q, k, v):
        return triton_attention.prepare(q, k, v, point.causal)

    return prepare


STANDARD_BYTES = 60e9  # what `standard` may take for scores and probabilities


def make_standard(_options):
    import torch

    def attend(q, k, v, mask):
        """A few batch entries: the scores S, the probabilities P, and P V."""
        batch, n, heads, head_dim = q.shape
        if heads != k.shape[2]:
            k, v = (tensor.repeat_interleave(heads // k.shape[2], dim=2) for tensor in (k, v))
        q, k, v = (tensor.transpose(1, 2).reshape(batch * heads, n, head_dim) for tensor in (q, k, v))
        s = torch.empty(batch * heads, n, n, dtype=q.dtype, device=q.device)
        torch.baddbmm(s, q, k.transpose(1, 2), beta=0, alpha=head_dim**-0.5, out=s)
        if mask is not None:
            s.masked_fill_(mask, -math.inf)
        p = torch.softmax(s, dim=-1)
        return torch.bmm(p, v).view(batch, heads, n, head_dim).transpose(1, 2)

    def prepare(point, q, k, v):
        entries = standard_entries(point)
        square = (point.seqlen, point.seqlen)
        mask = torch.ones(square, dtype=torch.bool, device=q.device).triu_(1) if point.causal else None

        def call():
            parts = [attend(*part, mask) for part in zip(*(tensor.split(entries) for tensor in (q, k, v)))]
            return parts[0] if len(parts) == 1 else torch.cat(parts)

        return call

    return prepare


def standard_entries(point):
    """How many batch entries `standard` does at a time: 16-bit scores and probabilities, one number a pair each."""
    one = 2 * 2 * point.heads * point.seqlen**2
    if one > STANDARD_BYTES:
        raise RuntimeError(f"the scores would take {one / 1e9:.0f} GB")
    return min(point.batch, int(STANDARD_BYTES // one))


def make_cublas(_options):
    import torch

    def prepare(point, q, k, v):
        # (M x K) times (K x N) of 2 M N K = the point's FLOPs, large enough that only the matrix units limit it.
        n = 8192
        m = max(128, round(point.flop() / (2 * n * n) / 128) * 128)
        a, b = (torch.randn(rows, n, dtype=torch.float32, device=q.device).to(q.dtype) for rows in (m, n))
        out = torch.empty(m, n, dtype=q.dtype, device=q.device)
        scale = point.flop() / (2.0 * m * n * n)  # what rounding M did to the FLOPs

        def call():
            torch.mm(a, b, out=out)

        call.time_scale = scale
        return call

    return prepare


PEERS = {
    "cudnn": make_sdpa("CUDNN_ATTENTION"),
    "fa2": make_sdpa("FLASH_ATTENTION"),
    "official": make_official,
    "fa4": make_fa4,
    "triton": make_triton,
    "standard": make_standard,
    "cublas": make_cublas,
}
NO_ATTENTION = {"cublas"}


def first(result):
    return result[0] if isinstance(result, (tuple, list)) else result


def import_peers(names, options):
    """The peers that work here; the others are named with the reason."""
    found = {}
    for name in names:
        try:
            found[name] = PEERS[name](options)
        except Exception as error:  # a peer may fail to import in any way; none is needed
            print(f"absent: {name}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
    return found


# --- measurement ------------------------------------------------------------------------------------------------------


LEAST_REPS = 5


def runs(ms, options):
    """Warm-ups and timed runs for calls of this length: as the options say, or what fits into --point-ms."""
    reps = min(options.reps, max(LEAST_REPS, int(options.point_ms / ms))) if ms > 0 else options.reps
    return options.warmups if reps == options.reps else min(options.warmups, 1), reps


def time_call(call, options):
    """Median and minimum in milliseconds on the GPU, and what one call took on the host, head start deducted."""
    import torch

    def events(count):
        return [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(count)]

    ((start, stop),) = events(1)
    start.record()
    call()
    stop.record()
    torch.cuda.synchronize()
    warmups, reps = runs(start.elapsed_time(stop), options)
    pairs = events(reps)
    time.sleep(options.idle_ms / 1000)
    if options.head_start_ms:
        torch.cuda._sleep(int(options.head_start_ms * 2e6))  # cycles of about 2 GHz
    began = time.perf_counter()
    for _ in range(warmups):
        call()
    for start, stop in pairs:
        start.record()
        call()
        stop.record()
    host = ((time.perf_counter() - began) * 1e3 - options.head_start_ms) / (warmups + reps)
    torch.cuda.synchronize()
    times = [start.elapsed_time(stop) for start, stop in pairs]
    return statistics.median(times), min(times), host


def difference(ours, theirs):
    """Relative RMS difference, in float32 and in parts, so that long sequences fit."""
    squares = sizes = 0.0
    for a, b in zip(ours, theirs):
        a, b = a.float(), b.float()
        squares += (a - b).square().sum().item()
        sizes += b.square().sum().item()
    return math.sqrt(squares / sizes) if sizes > 0 else (0.0 if squares == 0 else math.inf)


class Row:
    """The measurements of one point."""

    def __init__(self, point):
        self.point, self.passes, self.minima = point, collections.defaultdict(list), {}
        self.differences, self.notes, self.host_bound = {}, {}, {}

    def ms(self, name):
        return statistics.median(self.passes[name]) if self.passes[name] else None

    def tflops(self, name):
        return self.point.flop() / self.ms(name) * 1e-9 if self.ms(name) else None

    def ratio(self, name):
        return self.tflops("fa3") / self.tflops(name) if self.tflops("fa3") and self.tflops(name) else None

    def checked(self, tolerance):
        """None if no peer could be compared."""
        return all(d <= tolerance for d in self.differences.values()) if self.differences else None


def measure(row, prepare, number, options):
    import torch

    torch.cuda.empty_cache()  # what the last point's peers left
    point = row.point
    dtype = getattr(torch, DTYPES[point.dtype])
    generator = torch.Generator(device="cuda").manual_seed(options.seed)

    def normal(heads):
        shape = (point.batch, point.seqlen, heads, point.head_dim)
        return torch.randn(shape, generator=generator, dtype=torch.float32, device="cuda").to(dtype)

    q, k, v = normal(point.heads), normal(point.kv_heads), normal(point.kv_heads)
    calls = {}
    for name, make in prepare.items():
        if name in row.notes:
            continue
        try:
            call = make(point, q, k, v)
            if call is None:
                row.notes[name] = "not supported"
                continue
            out = call()
            torch.cuda.synchronize()
        except Exception as error:  # a peer may refuse a point in any way, and goes without a figure there
            if name == "fa3":
                raise
            row.notes[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            continue
        if name == "fa3":
            ours = out
        elif name not in NO_ATTENTION and name not in row.differences:
            row.differences[name] = difference(ours, out)
        calls[name] = call

    # The order rotates, so that no peer always runs on a card that another has warmed.
    names = list(calls)
    turn = number % len(names)
    for name in names[turn:] + names[:turn]:
        scale = getattr(calls[name], "time_scale", 1.0)
        middle, least, host = time_call(calls[name], options)
        if host > 0.9 * middle:  # then the GPU waited for the host, and the figure is not the kernel's
            row.host_bound[name] = host
        row.passes[name].append(middle * scale)
        row.minima[name] = min(least * scale, row.minima.get(name, math.inf))


# --- reports ----------------------------------------------------------------------------------------------------------


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def print_row(row, names, options):
    cells = [f"{row.point.label():50s} fa3 {row.tflops('fa3'):6.1f}"]
    for name in names:
        cells.append(f"{name} {row.tflops(name):6.1f} ({row.ratio(name):.3f})" if row.tflops(name) else f"{name} -")
    checked = row.checked(options.tolerance)
    worst = max(row.differences.values(), default=0)
    cells.append("agrees" if checked else "not compared" if checked is None else f"DIFFERS by {worst:.2g}")
    print("  ".join(cells), flush=True)
    for name, note in row.notes.items():
        if note != "not supported":
            print(f"    {name}: {note}", flush=True)
    for name, host in row.host_bound.items():
        print(f"    {name}: bound by the host, {host:.3f} ms a call (a longer --head-start-ms helps)", flush=True)


def print_means(rows, names):
    print("\nGeometric means of fa3 / peer, with the smallest ratio:")
    groups = collections.OrderedDict()
    for row in rows:
        groups.setdefault(row.point.group(), []).append(row)
    if len(groups) > 1:
        groups["all"] = rows

    def best(row):
        ratios = [row.ratio(name) for name in names if name not in NO_ATTENTION and row.ratio(name)]
        return min(ratios) if ratios else None

    for group, members in groups.items():
        cells = [f"{group:18s} fa3 {geometric_mean([row.tflops('fa3') for row in members]):6.1f} TFLOP/s"]
        columns = [(name, lambda row, name=name: row.ratio(name)) for name in names] + [("best of the peers", best)]
        for name, ratio in columns:
            ratios = [ratio(row) for row in members if ratio(row)]
            if ratios:
                cells.append(f"{name} {geometric_mean(ratios):.3f} (min {min(ratios):.3f})")
        print("  ".join(cells))


def write_csv(path, rows, names, options):
    """Whole or not at all, so that a run cut short keeps the points before."""
    with open(f"{path}.part", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            [
                "direction",
                "dtype",
                "head_dim",
                "causal",
                "batch",
                "seqlen",
                "heads",
                "kv_heads",
                "median_ms",
                "min_ms",
                "tflops",
                "checked",
            ]
            + [f"{name}_tflops" for name in names]
        )
        for row in rows:
            p = row.point
            writer.writerow(
                [
                    "fwd",
                    p.dtype,
                    p.head_dim,
                    p.causal,
                    p.batch,
                    p.seqlen,
                    p.heads,
                    p.kv_heads,
                    f"{row.ms('fa3'):.5f}",
                    f"{row.minima['fa3']:.5f}",
                    f"{row.tflops('fa3'):.1f}",
                    int(bool(row.checked(options.tolerance))),
                ]
                + [f"{row.tflops(name):.1f}" if row.tflops(name) else "" for name in names]
            )
    os.replace(f"{path}.part", path)


# --- command line -----------------------------------------------------------------------------------------------------


def parse(arguments):
    numbers = lambda text: [int(part) for part in text.split(",")]
    words = lambda text: text.split(",")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", help="libfa3.so (default: FA3_LIBRARY, or the newest build)")
    parser.add_argument("--peers", type=words, default=list(PEERS), help=f"of {','.join(PEERS)} (default: all)")
    parser.add_argument("--dtype", type=words, default=["bf16"], help="of bf16,fp16 (default: bf16)")
    parser.add_argument("--set", type=words, default=["grid"], help=f"of {','.join(SETS)} (default: grid)")
    group = parser.add_argument_group("points of the grid (the other sets have their own)")
    group.add_argument("--head-dim", type=numbers, default=[64, 128, 256])
    group.add_argument("--causal", type=numbers, default=[0, 1])
    group.add_argument("--seqlen", type=numbers, default=[512, 1024, 2048, 4096, 8192, 16384])
    group.add_argument("--batch", type=int, default=0, help="default: tokens / seqlen")
    group.add_argument("--heads", type=int, default=0, help="default: hidden / head_dim")
    group.add_argument("--kv-heads", type=int, default=0, help="default: heads")
    group.add_argument("--tokens", type=int, default=16384)
    group.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--passes", type=int, default=1)
    parser.add_argument("--reps", type=int, default=30)
    parser.add_argument("--warmups", type=int, default=5)
    parser.add_argument("--idle-ms", type=int, default=100)
    parser.add_argument(
        "--head-start-ms",
        type=float,
        default=10,
        help="the GPU spins this long before the warm-ups, so that a slow host can queue ahead (%(default)s)",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--tolerance", type=float, default=0.01, help="relative RMS difference of two outputs (%(default)s)"
    )
    parser.add_argument(
        "--point-ms",
        type=float,
        default=2000,
        help="most GPU time for one point and peer; slower calls run fewer times, at least 5 (%(default)s)",
    )
    parser.add_argument("--csv", help="file for the results, written after every point")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.peers if name not in PEERS]:
        parser.error(f"unknown peers: {', '.join(unknown)}")
    if unknown := [name for name in options.set if name not in SETS]:
        parser.error(f"unknown point sets: {', '.join(unknown)}")
    if unknown := [name for name in options.dtype if name not in DTYPES]:
        parser.error(f"unknown dtypes: {', '.join(unknown)}")
    return options


def grid(options):
    for dtype in options.dtype:
        for head_dim in options.head_dim:
            for causal in options.causal:
                for seqlen in options.seqlen:
                    heads = options.heads or max(1, options.hidden // head_dim)
                    yield Point(
                        dtype,
                        head_dim,
                        causal,
                        options.batch or max(1, options.tokens // seqlen),
                        seqlen,
                        heads,
                        options.kv_heads or heads,
                    )


def fp16(options):
    options = argparse.Namespace(**{**vars(options), "dtype": ["fp16"], "head_dim": [128]})
    return grid(options)


def extra(options):
    for dtype in options.dtype:
        for head_dim, causal, batch, seqlen, heads, kv_heads in (
            (128, 1, 2, 4096, 32, 8),
            (128, 1, 1, 32768, 32, 8),
            (128, 1, 1, 131072, 8, 8),
            (128, 1, 16, 1000, 16, 16),
            (128, 1, 4, 4095, 16, 16),
            (128, 1, 1, 8192, 4, 4),
            (128, 1, 1, 4096, 8, 8),
            (64, 1, 1, 16384, 3, 3),
            (256, 1, 1, 8192, 3, 3),
            (128, 1, 1, 2048, 8, 8),
            (128, 1, 1, 2048, 16, 16),
            (128, 1, 1, 8192, 9, 9),
            (128, 0, 1, 8192, 4, 4),
            (64, 1, 4, 2048, 64, 8),
            (128, 0, 4, 8448, 16, 16),
        ):
            yield Point(dtype, head_dim, causal, batch, seqlen, heads, kv_heads)


SETS = {"grid": grid, "fp16": fp16, "extra": extra}


def main(arguments=None):
    options = parse(arguments)
    try:
        import torch
    except ImportError as error:
        print(f"peers.py needs torch: {error}")
        return 77
    if not torch.cuda.is_available():
        print("peers.py needs a GPU: torch finds none")
        return 77

    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}")
    peers = import_peers(options.peers, options)
    prepare = {"fa3": make_fa3(options), **peers}
    rows = [Row(point) for name in options.set for point in SETS[name](options)]
    with torch.no_grad():
        for number in range(options.passes):
            if options.passes > 1:
                print(f"\npass {number + 1} of {options.passes}")
            for row in rows:
                measure(row, prepare, number, options)
                print_row(row, peers, options)
                if options.csv:
                    write_csv(options.csv, [row for row in rows if row.passes["fa3"]], list(peers), options)
    print_means(rows, list(peers))
    differing = [row.point.label() for row in rows if row.checked(options.tolerance) is False]
    if differing:
        print(f"\n{len(differing)} points differ: {'; '.join(differing)}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
