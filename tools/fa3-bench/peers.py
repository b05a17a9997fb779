#!/usr/bin/env python3
"""libfa3.so beside whatever peers this Python can import, and beside other builds of itself, on the same GPU,
interleaved point by point in one process.

Points, protocol and the columns of the CSV are fa3-bench's: every option that is not listed below goes to it
(`fa3-bench --help`), and it answers with the points and the numbers. By that protocol inputs are N(0,1) in (batch,
seqlen, heads, head_dim), and after a pause and warm-ups each run has its own pair of CUDA events, queued without
host waits; a point's figure is the median of its runs, or with several passes the median of the passes' medians.
Beyond it, here: before the warm-ups the GPU spins for some milliseconds, so that peers whose calls take the host
long are queued by then, too; every output is compared with the first library's before anything is timed; with
several passes the order rotates. Calls so slow that their runs would exceed --point-ms run fewer times, at least 5;
that bounds what slow peers and very long sequences take.

With --direction bwd it is the backward pass of the points, for a gradient of O of N(0,1): all that a call of
fa3_backward does, and the gradients by torch of those peers that have them (cudnn, fa2 and fa4). What a peer compiles
at its first call is compiled when its output is compared. Beside them stands another way of the first library itself:
deterministic (the same with FA3_FLAG_DETERMINISTIC).

With several --library, the first is what all others are compared with. A ratio is the speed of the other over that
of the first: above 1 the other is faster.

Peers: cudnn and fa2 (backends of torch's scaled_dot_product_attention), official (FlashAttention-3, wheel fa3-fwd),
fa4 (flash-attn-4), triton (triton_attention.py beside this file), standard (matrix products and a softmax of torch,
with the scores in memory; refused where they would not fit), cublas (a matrix product of the point's FLOPs: a
ceiling, not attention).

Points of e4m3 have q, k and v of N(0,1) cast to it, and scales of 1; official reads the same and writes bf16, cudnn
(by the package nvidia-cudnn-frontend, as torch does not offer it) writes e4m3. Beside them stand other ways of the
first library itself: tiles (V as tiles), two_level and blocks (the same with FA3_FLAG_TWO_LEVEL, and with scales for
blocks), bf16 (the forward pass on the same numbers in bf16), and quantize, which begins with the N(0,1) numbers in bf16
that the others have cast to e4m3: three calls of fa3_quantize (block scales, incoherent processing, V as tiles without
its mean) and the forward pass, timed together. What is only for points of e4m3 stands in peers_fp8.py.
"""

import argparse
import collections
import csv
import json
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time
import types

import fa3_ctypes
import peers_bwd
import peers_fp8

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Point(types.SimpleNamespace):
    """A point as fa3-bench describes it: dtype, head_dim, causal, batch, seqlen, seqlen_k, heads, kv_heads, kernel, v,
    scales, two_level, library_chooses, flop, label."""

    def group(self):
        return f"{self.dtype} d{self.head_dim} {'causal' if self.causal else 'full'}"

    def is_fp8(self):
        return self.dtype == "e4m3"

    def mask(self):
        return "causal_bottom_right" if self.causal else "none"


# --- peers ------------------------------------------------------------------------------------------------------------
# Each maker imports what it needs and returns a function: (point, q, k, v) -> a call without arguments that enqueues
# one run on torch's current stream and returns the output in (batch, seqlen, heads, head_dim), or None where the peer
# does not do it. An attribute input_dtype of that function is the dtype of q, k and v where it is not the point's.


def make_library(library):
    """Of a fa3_ctypes.Library."""
    library.preload_for_torch()

    def prepare(point, q, k, v):
        out, lse = fa3_ctypes.forward_outputs(q)
        kernel, more = None if point.library_chooses else point.kernel, {}
        if point.is_fp8():
            v, more = peers_fp8.library_arguments(point, v)
        call = library.prepare(q, k, v, out, lse, point.mask(), kernel=kernel, **more)
        call.kernel = library.kernel_info(call.params).name.decode()
        return call

    return prepare


def make_sdpa(backend_name):
    def make():
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        backend = getattr(SDPBackend, backend_name)

        def prepare(point, q, k, v):
            if point.is_fp8() or (point.causal and point.seqlen != point.seqlen_k):
                return None  # the diagonal starts in the other corner
            q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
            gqa = {"enable_gqa": True} if point.heads != point.kv_heads else {}

            def call():
                with sdpa_kernel(backend):
                    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=point.causal, **gqa)
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
    from fa3_fwd_interface import flash_attn_func

    def prepare(point, q, k, v):
        if q.dtype == torch.float16:
            return None  # the wheel was built without fp16
        more = peers_fp8.official_arguments(point, q.device) if point.is_fp8() else {}
        return lambda: output_of(flash_attn_func(q, k, v, causal=point.causal, **more))

    return prepare


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
        keys = k.shape[1]
        if heads != k.shape[2]:
            k, v = (tensor.repeat_interleave(heads // k.shape[2], dim=2) for tensor in (k, v))
        q, k, v = (tensor.transpose(1, 2).reshape(batch * heads, -1, head_dim) for tensor in (q, k, v))
        s = torch.empty(batch * heads, n, keys, dtype=q.dtype, device=q.device)
        torch.baddbmm(s, q, k.transpose(1, 2), beta=0, alpha=head_dim**-0.5, out=s)
        if mask is not None:
            s.masked_fill_(mask, -math.inf)
        p = torch.softmax(s, dim=-1)
        return torch.bmm(p, v).view(batch, heads, n, head_dim).transpose(1, 2)

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
PEERS_OF_BACKWARD = {name: peers_bwd.make_gradients(PEERS[name]) for name in ("cudnn", "fa2", "fa4")}
FORMS = {**peers_fp8.FORMS, **peers_bwd.FORMS}  # other ways of the first library itself
NO_ATTENTION = {"cublas"}
WITH_FP8 = {"cudnn", "official", "cublas", *peers_fp8.FORMS}


def output_of(result):
    return result[0] if isinstance(result, (tuple, list)) else result


def import_peers(names, library, backward):
    """The peers that work here; the others are named with the reason. library: the first one."""
    makers, prepare_library = (PEERS_OF_BACKWARD, peers_bwd.make_library) if backward else (PEERS, make_library)
    found = {}
    for name in names:
        try:
            found[name] = makers[name]() if name in makers else FORMS[name](library, prepare_library(library))
        except Exception as error:  # a peer may fail to import in any way; none is needed
            print(f"absent: {name}: {reason(error)}")
    return found


def reason(error):
    """In one plain line. Errors of FlashAttention-4's compiler begin with an empty line, are in colour, and have what
    happened as `message`, below an explanation that is the same for all."""
    lines = re.sub(r"\x1b\[[0-9;]*m", "", str(getattr(error, "message", "") or error)).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip() if lines else ''}"


# --- measurement ------------------------------------------------------------------------------------------------------


LEAST_REPS = 5


def runs(ms, options):
    """Warm-ups and timed runs for calls of this length: the protocol's, or what fits into --point-ms."""
    protocol = options.protocol
    reps = min(protocol.reps, max(LEAST_REPS, int(options.point_ms / ms))) if ms > 0 else protocol.reps
    return protocol.warmups if reps == protocol.reps else min(protocol.warmups, 1), reps


def time_call(call, options):
    """Milliseconds of each run on the GPU, and what one call took on the host, head start deducted."""
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
    time.sleep(options.protocol.idle_ms / 1000)
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
    return [start.elapsed_time(stop) for start, stop in pairs], host


def difference(ours, theirs, scale=1.0):
    """Relative RMS difference, in float32 and in parts, so that long sequences fit. scale: theirs is to be times it."""
    squares = sizes = 0.0
    for a, b in zip(ours, theirs):
        a, b = a.float(), b.float()
        if scale != 1.0:
            b = b * scale
        squares += (a - b).square().sum().item()
        sizes += b.square().sum().item()
    return math.sqrt(squares / sizes) if sizes > 0 else (0.0 if squares == 0 else math.inf)


# Relative RMS difference of two outputs. Each output of e4m3 is 3% away from the exact one, as P is rounded to it; that
# of `quantize` 8% from the first library's, as each rounds q, k and v in its own way.
TOLERANCE = {"bf16": 0.01, "fp16": 0.01, "e4m3": 0.1}


class Row:
    """The measurements of one point. first: the name of the library that all others are compared with."""

    def __init__(self, point, first):
        self.point, self.first, self.kernel = point, first, ""
        self.passes, self.minima, self.times = collections.defaultdict(list), {}, {}
        self.differences, self.notes, self.host_bound = {}, {}, {}

    def add_pass(self, name, times):
        self.passes[name].append(statistics.median(times))
        self.minima[name] = min(*times, self.minima.get(name, math.inf))
        self.times[name] = times

    def ms(self, name):
        return statistics.median(self.passes[name]) if self.passes[name] else None

    def spread(self, name):
        """As fa3-bench's: of one pass's runs, or of the medians of several passes."""
        times, medians = self.times[name], self.passes[name]
        if len(medians) > 1:
            return (max(medians) - min(medians)) / self.ms(name)
        tenths = statistics.quantiles(times, n=10, method="inclusive") if len(times) > 1 else times
        return (tenths[-1] - tenths[0]) / self.ms(name)

    def tflops(self, name):
        return self.point.flop / self.ms(name) * 1e-9 if self.ms(name) else None

    def ratio(self, name):
        """Its speed over the first library's."""
        return self.ms(self.first) / self.ms(name) if self.ms(self.first) and self.ms(name) else None

    def checked(self, options):
        """None if no peer could be compared."""
        tolerance = options.tolerance or TOLERANCE[self.point.dtype]
        return all(d <= tolerance for d in self.differences.values()) if self.differences else None


def inputs(point, dtype, seed):
    """q, k and v of N(0,1): the same numbers in every dtype."""
    import torch

    generator = torch.Generator(device="cuda").manual_seed(seed)

    def normal(seqlen, heads):
        shape = (point.batch, seqlen, heads, point.head_dim)
        numbers = torch.randn(shape, generator=generator, dtype=torch.float32, device="cuda")
        return numbers.to(getattr(torch, fa3_ctypes.TORCH_DTYPE[dtype]))

    return normal(point.seqlen, point.heads), *(normal(point.seqlen_k, point.kv_heads) for _ in range(2))


def measure(row, prepare, number, options):
    """One pass, its number counted from 0, of one point. prepare: {name: maker}, the first library's first."""
    import torch

    torch.cuda.empty_cache()  # what the last point's peers left
    point, seed = row.point, options.protocol.seed
    shared = inputs(point, point.dtype, seed)
    calls = {}
    for name, make in prepare.items():
        if name in row.notes:
            continue
        try:
            dtype = getattr(make, "input_dtype", point.dtype)
            # Drawn again, not cast back: V on e4m3's grid, rounded without its small mean, keeps it and gets it twice.
            call = make(point, *(shared if dtype == point.dtype else inputs(point, dtype, seed)))
            if call is None:
                row.notes[name] = "not supported"
                continue
            out = call()
            torch.cuda.synchronize()
        except Exception as error:  # a peer may refuse a point in any way, and goes without a figure there
            if name == row.first:
                raise
            row.notes[name] = reason(error)
            continue
        if name == row.first:
            ours, row.kernel = out, call.kernel
        elif name not in NO_ATTENTION and name not in row.differences:
            row.differences[name] = difference(ours, out, getattr(call, "output_scale", 1.0))
        calls[name] = call

    # The order rotates, so that no peer always runs on a card that another has warmed.
    names = list(calls)
    turn = number % len(names)
    for name in names[turn:] + names[:turn]:
        scale = getattr(calls[name], "time_scale", 1.0)
        times, host = time_call(calls[name], options)
        if host > 0.9 * statistics.median(times):  # the GPU waited for the host, and the figure is not the kernel's
            row.host_bound[name] = host
        row.add_pass(name, [scale * ms for ms in times])


# --- reports ----------------------------------------------------------------------------------------------------------


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def print_row(row, names, options):
    cells = [f"{row.point.label:50s} {row.first} {row.tflops(row.first):6.1f}"]
    for name in names:
        cells.append(f"{name} {row.tflops(name):6.1f} ({row.ratio(name):.3f})" if row.tflops(name) else f"{name} -")
    checked = row.checked(options)
    worst = max(row.differences.values(), default=0)
    cells.append("agrees" if checked else "not compared" if checked is None else f"DIFFERS by {worst:.2g}")
    print("  ".join(cells), flush=True)
    for name, note in row.notes.items():
        if note != "not supported":
            print(f"    {name}: {note}", flush=True)
    for name, host in row.host_bound.items():
        print(f"    {name}: bound by the host, {host:.3f} ms a call (a longer --head-start-ms helps)", flush=True)


def print_means(rows, names, first, peers):
    print(f"\nSpeed over that of {first}: geometric mean (smallest to largest ratio)")
    groups = collections.OrderedDict()
    for row in rows:
        groups.setdefault(row.point.group(), []).append(row)
    if len(groups) > 1:
        groups["all"] = rows

    def best(row):
        ratios = [row.ratio(name) for name in peers if name not in NO_ATTENTION and row.ratio(name)]
        return max(ratios) if ratios else None

    for group, members in groups.items():
        cells = [f"{group:18s} {first} {geometric_mean([row.tflops(first) for row in members]):6.1f} TFLOP/s"]
        columns = [(name, lambda row, name=name: row.ratio(name)) for name in names] + [("best of the peers", best)]
        for name, ratio in columns:
            ratios = [ratio(row) for row in members if ratio(row)]
            if ratios:
                cells.append(f"{name} {geometric_mean(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
        print("  ".join(cells))


def print_absences(rows, names):
    """Peers without a figure, so that nobody takes an empty column for a slow one."""
    for name in names:
        reasons = collections.Counter(row.notes[name] for row in rows if name in row.notes)
        for reason, count in reasons.items():
            print(f"NO FIGURE of {name} at {count} of {len(rows)} points: {reason}")


def write_csv(path, rows, names, options):
    """fa3-bench's columns for the first library, and two for each of the other names. Whole or not at all, so that a
    run cut short keeps the points before."""
    with open(f"{path}.part", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(options.csv_columns + [f"{name}_{what}" for name in names for what in ("tflops", "ratio")])
        for row in rows:
            values = {
                **vars(row.point),
                "causal": int(row.point.causal),
                "two_level": int(row.point.two_level),
                "kernel": row.kernel,
                "median_ms": f"{row.ms(row.first):.5f}",
                "min_ms": f"{row.minima[row.first]:.5f}",
                "tflops": f"{row.tflops(row.first):.1f}",
                "checked": int(bool(row.checked(options))),
                "spread": f"{row.spread(row.first):.4f}",
                "passes": len(row.passes[row.first]),
                "reps": len(row.times[row.first]),
            }
            cells = [values[column] for column in options.csv_columns]
            for name in names:
                cells += [f"{row.tflops(name):.1f}", f"{row.ratio(name):.4f}"] if row.tflops(name) else ["", ""]
            writer.writerow(cells)
    os.replace(f"{path}.part", path)


# --- command line -----------------------------------------------------------------------------------------------------


def library(text):
    name, _, path = text.partition("=")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]*", name) or not path:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=PATH")
    if name in PEERS or name in FORMS:
        raise argparse.ArgumentTypeError(f"{name!r} is a peer's name")
    return name, path


def peer_names(text):
    names = [] if text == "none" else text.split(",")
    if unknown := [name for name in names if name not in PEERS and name not in FORMS]:
        raise argparse.ArgumentTypeError(f"unknown peers: {', '.join(map(repr, unknown))}")
    return names


DIRECTIONS = {"fwd": "forward", "bwd": "backward"}


def of_direction(direction):
    """The peers and the other ways of the library that have this pass."""
    return [*PEERS_OF_BACKWARD, *peers_bwd.FORMS] if direction == "bwd" else [*PEERS, *peers_fp8.FORMS]


def useful_peers(points):
    """Those that do some of the forward passes of the points."""
    fp8, others = (any(point.is_fp8() == which for point in points) for which in (True, False))
    return [name for name in of_direction("fwd") if (fp8 and name in WITH_FP8) or (others and name in PEERS)]


def csv_file(text):
    if not text.endswith(".csv"):
        raise argparse.ArgumentTypeError(f"{text!r} does not end in .csv")
    return text


def parse(arguments):
    """The options. points, protocol and csv_columns among them are fa3-bench's answer to those it does not list."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "--library",
        type=library,
        action="append",
        metavar="NAME=PATH",
        help="a libfa3.so and what to call it; may be given several times (default: fa3, which is the one that "
        "FA3_LIBRARY names, or that of the newest build)",
    )
    parser.add_argument(
        "--peers",
        type=peer_names,
        help=f"of {','.join([*PEERS, *FORMS])}, or none (default: all that do some of the points)",
    )
    parser.add_argument(
        "--direction",
        choices=DIRECTIONS,
        default="fwd",
        help="bwd: the backward pass of the points, beside %s (%%(default)s)" % ", ".join(of_direction("bwd")),
    )
    parser.add_argument(
        "--bench",
        default=ROOT / "build/tools/fa3-bench/fa3-bench",
        help="the program fa3-bench, which is asked for points and protocol (default: %(default)s)",
    )
    parser.add_argument(
        "--head-start-ms",
        type=float,
        default=10,
        help="the GPU spins this long before the warm-ups, so that a slow host can queue ahead (%(default)s)",
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        help="relative RMS difference of two outputs (%s)" % ", ".join(f"{name} {t}" for name, t in TOLERANCE.items()),
    )
    parser.add_argument(
        "--point-ms",
        type=float,
        default=2000,
        help="most GPU time for one point and peer; slower calls run fewer times, at least 5 (%(default)s)",
    )
    parser.add_argument("--csv", type=csv_file, help="file for the results, written after every point")
    options, others = parser.parse_known_args(arguments)
    options.library = options.library or [("fa3", None)]
    if len(dict(options.library)) < len(options.library):
        parser.error("--library: a name is given twice")
    try:
        done = subprocess.run([options.bench, *others, "--list", "--json", "-"], stdout=subprocess.PIPE, text=True)
    except OSError as error:
        parser.error(f"fa3-bench cannot be asked for the points (--bench): {error}")
    if done.returncode:
        sys.exit(done.returncode)  # it has said why
    answer = json.loads(done.stdout)
    options.points = [Point(**point) for point in answer["points"]]
    for point in options.points:
        if point.problem:
            parser.error(f"{point.label}: {point.problem}")
    if options.direction == "bwd":
        for point in options.points:
            if point.is_fp8():
                parser.error(f"{point.label}: e4m3 has no backward pass")
            point.direction, point.flop, point.label = "bwd", peers_bwd.FLOP * point.flop, f"bwd {point.label}"
    known = of_direction(options.direction)
    if options.peers is None:
        options.peers = known if options.direction == "bwd" else useful_peers(options.points)
    if unknown := [name for name in options.peers if name not in known]:
        parser.error(f"no {DIRECTIONS[options.direction]} pass of {', '.join(unknown)} is measured")
    options.protocol = types.SimpleNamespace(**answer["protocol"])
    options.csv_columns = answer["csv_columns"].split(",")
    return options


def main(arguments=None):
    options = parse(arguments)
    try:
        libraries = {name: fa3_ctypes.Library(path) for name, path in options.library}
    except (OSError, AttributeError) as error:  # no such file, or one that is no libfa3.so
        print(f"peers.py: --library: {error}", file=sys.stderr)
        return 2
    try:
        import torch
    except ImportError as error:
        print(f"peers.py needs torch: {error}")
        return 77
    if not torch.cuda.is_available():
        print("peers.py needs a GPU: torch finds none")
        return 77

    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}")
    for name, loaded in libraries.items():
        print(f"{name}: {loaded.path}")
    backward = options.direction == "bwd"
    peers = import_peers(options.peers, next(iter(libraries.values())), backward)
    make = peers_bwd.make_library if backward else make_library
    prepare = {**{name: make(loaded) for name, loaded in libraries.items()}, **peers}
    first, *names = prepare
    rows = [Row(point, first) for point in options.points]
    with torch.no_grad():
        for number in range(options.protocol.passes):
            if options.protocol.passes > 1:
                print(f"\npass {number + 1} of {options.protocol.passes}")
            for row in rows:
                measure(row, prepare, number, options)
                print_row(row, names, options)
                if options.csv:
                    write_csv(options.csv, [row for row in rows if row.passes[first]], names, options)
    print_means(rows, names, first, [name for name in peers if name not in FORMS])
    print_absences(rows, names)
    differing = [row.point.label for row in rows if row.checked(options) is False]
    if differing:
        print(f"\n{len(differing)} points differ: {'; '.join(differing)}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
