#!/usr/bin/env python3
"""libfa3's planned calls beside whatever peers this Python can import, on the same GPU, interleaved point by point in
one process: what servers and training on packed documents ask for, and tests/records keeps as serving.csv.

Points are fa3-bench's: every option that is not listed below goes to it, such as --set serve_decode,documents,
--batches FILE or --direction bwd (`fa3-bench --help`); without --set and --batches they are those of all its sets of
planned calls. Inputs are N(0,1) in bf16, of calls with softcap such that scores are N(0,16). Before anything is timed,
the result of each peer is compared with float32, in some rows of some sequences. Then rounds of runs by turns: each run
has its own pair of CUDA events, queued without host waits behind a spinning GPU, and a figure is the median of all.
Calls over pages begin with an empty L2 cache, as other layers of a model leave it, and plans are made before the call.

Each line of the CSV has microseconds, and TFLOP/s, or of steps of decoding GB/s (K and V counted once). checked: ok, or
BAD, and the error relative to float32.

Peers: fa3fwd (official FlashAttention-3, the wheel fa3-fwd), vfa3 and flashmla (of vLLM's wheel, of which the libraries
are enough), fa4 (flash-attn-4), vfa4 (vLLM's copy of it), cudnn (nvidia-cudnn-frontend), fi-fa3 and fi-fa2
(FlashInfer), flex (FlexAttention of torch). A peer that cannot be imported, or refuses a point, goes without a figure.
"""

import argparse
import pathlib
import statistics
import sys
import time

import peers_points
import serving_calls
import serving_csv
import serving_cudnn
import serving_flashinfer
import serving_flex
from peers_csv import WHERE_COLUMNS
from peers_measure import reason
from peers_merge import MergeError
from peers_start import card, import_each, names_among, new_parser, start
from serving_case import Case
from serving_check import check_of, tolerance

PEERS = serving_calls.PEERS | serving_cudnn.PEERS | serving_flashinfer.PEERS | serving_flex.PEERS
SETS = {"fwd": "serve_decode,serve_prefill,serve_mixed,documents,masks", "bwd": "documents,masks"}
CACHE_BYTES = 192 << 20  # read between cold runs: several times the L2 cache
WARMUPS, HEAD_START_CYCLES = 3, 12_000_000


def count(text):
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return int(text)


def parse(arguments):
    """The options; points is fa3-bench's answer to those it does not list."""
    parser = new_parser(__doc__)
    parser.add_argument("--library", metavar="PATH", help="a libfa3.so (FA3_LIBRARY, or that of the newest build)")
    parser.add_argument(
        "--peers", type=names_among(PEERS), default=list(PEERS), help=f"of {','.join(PEERS)}, or none (default: all)"
    )
    parser.add_argument("--direction", choices=SETS, default="fwd", help="of the calls (%(default)s)")
    parser.add_argument("--rounds", type=count, default=2, help="of runs, by turns (%(default)s)")
    parser.add_argument("--reps", type=count, default=12, help="runs of a round (%(default)s)")
    parser.add_argument("--csv", type=pathlib.Path, help="file for the results, written after every point")
    parser.add_argument("--record", action="store_true", help="merge the results into what is kept of this card")
    options, bench_words = parser.parse_known_args(arguments)
    if not {"--set", "--batches", "--lengths"} & {word.split("=")[0] for word in bench_words}:
        bench_words += ["--set", SETS[options.direction]]
    bench_words += ["--direction", options.direction]
    try:
        options.points, _, _ = peers_points.ask(options.bench, bench_words)
    except OSError as error:
        parser.error(f"fa3-bench cannot be asked for the points (--bench): {error}")
    for point in options.points:
        if point.problem:
            parser.error(f"{point.label}: {point.problem}")
        if not point.planned:
            parser.error(f"{point.label}: calls that are not planned are timed by peers.py")
        if point.dtype != "bf16":
            parser.error(f"{point.label}: planned calls are timed in bf16")
    return options


def time_call(call, reps, cold):
    """Microseconds of each run. cold: what empties the L2 cache, or None."""
    import torch

    torch.cuda.synchronize()
    time.sleep(0.02)
    for _ in range(WARMUPS):
        call()
    torch.cuda.synchronize()
    torch.cuda._sleep(HEAD_START_CYCLES)
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(reps)]
    for start, stop in pairs:
        if cold is not None:
            cold.sum()
        start.record()
        call()
        stop.record()
    torch.cuda.synchronize()
    return [1e3 * start.elapsed_time(stop) for start, stop in pairs]


def right_calls(case, makers):
    """{name: (call, verdict)} of those that do the point."""
    import torch

    check, calls = check_of(case), {}
    for name, make in makers.items():
        try:
            call = make(case)
            if call is None:
                continue
            error = check(call())
            torch.cuda.synchronize()
        except Exception as error:  # a peer may refuse a point in any way
            if name == "libfa3":
                raise
            print(f"    {name}: {reason(error)}")
            continue
        calls[name] = call, f"{'ok' if error <= tolerance(case) else 'BAD'}:{error:.1e}"
    return calls


def measure(case, makers, options, cold):
    """The point's lines, but for card, driver and date."""
    calls, times = right_calls(case, makers), {}
    for _ in range(options.rounds):
        for name, (call, _) in calls.items():
            times.setdefault(name, []).extend(time_call(call, options.reps, cold if case.is_cold() else None))
    lines = []
    for name, all_times in times.items():
        us = statistics.median(all_times)
        rate = case.work() / us * (1e-3 if case.is_memory_bound() else 1e-6)
        lines.append({"kind": case.kind, "point": case.name, "peer": name, "us": f"{us:.2f}",
                      "tflops_or_gbytes_s": f"{rate:.1f}", "checked": calls[name][1]})  # fmt: skip
        unit = "GB/s" if case.is_memory_bound() else "TFLOP/s"
        print(f"{case.kind} {case.name}: {name} {us:.1f} us, {rate:.0f} {unit}, {calls[name][1]}", flush=True)
    return lines


def main(arguments=None):
    options = parse(arguments)
    libraries, where = start("serving.py", {"libfa3": options.library})
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    makers = {"libfa3": serving_calls.make_library(libraries["libfa3"])}
    makers |= import_each({name: PEERS[name] for name in options.peers})
    before = {options.csv: {}} if options.csv else {}
    if options.record:
        path = options.results / card.folder(where[0]) / "serving.csv"
        try:
            before[path] = serving_csv.read(path) if path.exists() else {}
        except MergeError as error:
            print(f"serving.py: --record: {error}", file=sys.stderr)
            return 2
    cold, points, kept = torch.ones(CACHE_BYTES // 4, device="cuda"), {}, []
    for point in options.points:
        case = Case(point, "cuda")
        lines = [line | dict(zip(WHERE_COLUMNS, where)) for line in measure(case, makers, options, cold)]
        points[case.kind, case.name] = lines
        del case
        torch.cuda.empty_cache()
        for path, table in before.items():
            merged, kept = serving_csv.merged(table, points)
            serving_csv.write(path, merged)
    wrong = [(*point, line["peer"]) for point, lines in points.items() for line in lines if "BAD" in line["checked"]]
    for line in kept + [f"differs: {' '.join(words)}" for words in wrong]:
        print(line)
    return int(any(peer == "libfa3" for *_, peer in wrong))


if __name__ == "__main__":
    sys.exit(main())
