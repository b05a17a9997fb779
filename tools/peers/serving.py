#!/usr/bin/env python3
"""libfa3's served calls beside whatever peers this Python can import, on the same GPU, interleaved point by point in
one process: what servers and training on packed documents ask for, and tests/records keeps as serving.csv.

Points are fa3-bench's: every option that is not listed below goes to it, such as --set serve_decode,documents,
--batches FILE or --direction bwd (`fa3-bench --help`); without --set and --batches they are those of all its sets of
served calls. Inputs are N(0,1) in bf16, of calls with softcap such that scores are N(0,16). Before anything is timed,
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
import datetime
import pathlib
import statistics
import sys
import time

import peers_points
import prepared
import serving_calls
import serving_csv
import serving_cudnn
import serving_flashinfer
import serving_flex
from peers_measure import reason
from serving_case import Case
from serving_check import check_of, tolerance

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/records"))
import card  # noqa: E402

PEERS = serving_calls.PEERS | serving_cudnn.PEERS | serving_flashinfer.PEERS | serving_flex.PEERS
SETS = {"fwd": "serve_decode,serve_prefill,serve_mixed,documents,masks", "bwd": "documents,masks"}
CACHE_BYTES = 192 << 20  # read between cold runs: several times the L2 cache
WARMUPS, HEAD_START_CYCLES = 3, 12_000_000


def peer_names(text):
    names = [] if text == "none" else text.split(",")
    if unknown := [name for name in names if name not in PEERS]:
        raise argparse.ArgumentTypeError(f"unknown peers: {', '.join(map(repr, unknown))}")
    return names


def count(text):
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return int(text)


def parse(arguments):
    """The options; points is fa3-bench's answer to those it does not list."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--library", metavar="PATH", help="a libfa3.so (FA3_LIBRARY, or that of the newest build)")
    parser.add_argument("--peers", type=peer_names, default=list(PEERS), help=f"of {','.join(PEERS)}, or none (all)")
    parser.add_argument("--bench", default=ROOT / "build/tools/fa3-bench/fa3-bench", help="fa3-bench (%(default)s)")
    parser.add_argument("--rounds", type=count, default=2, help="of runs, by turns (%(default)s)")
    parser.add_argument("--reps", type=count, default=12, help="runs of a round (%(default)s)")
    parser.add_argument("--csv", type=pathlib.Path, help="file for the results, written after every point")
    parser.add_argument("--record", action="store_true", help="merge them into serving.csv of this card's folder")
    parser.add_argument("--results", type=pathlib.Path, default=card.RESULTS, help="where that is (%(default)s)")
    options, others = parser.parse_known_args(arguments)
    named = [word.split("=")[0] for word in others]
    if not {"--set", "--batches", "--lengths", "--list"} & set(named):
        direction = "bwd" if "bwd" in " ".join(others).replace("=", " ").split() else "fwd"
        others += ["--set", SETS[direction]]
    try:
        options.points, _, _ = peers_points.ask(options.bench, others)
    except OSError as error:
        parser.error(f"fa3-bench cannot be asked for the points (--bench): {error}")
    for point in options.points:
        if point.problem:
            parser.error(f"{point.label}: {point.problem}")
        if not point.served:
            parser.error(f"{point.label}: calls that are not served are timed by peers.py")
        if point.dtype != "bf16":
            parser.error(f"{point.label}: served calls are timed in bf16")
    return options


def import_peers(names, library):
    """The peers that work here, behind the library; the others are named with the reason."""
    found = {"libfa3": serving_calls.make_library(library)}
    for name in names:
        try:
            found[name] = PEERS[name]()
        except Exception as error:  # a peer may fail to import in any way; none is needed
            print(f"absent: {name}: {reason(error)}")
    return found


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
    try:
        library = prepared.Library(options.library)
    except (OSError, AttributeError) as error:  # no such file, or one that is no libfa3.so
        print(f"serving.py: --library: {error}", file=sys.stderr)
        return 2
    try:
        import torch
    except ImportError as error:
        print(f"serving.py needs torch: {error}")
        return 77
    if not torch.cuda.is_available():
        print("serving.py needs a GPU: torch finds none")
        return 77
    name, (_, driver) = torch.cuda.get_device_name(), card.name_and_driver()
    date = f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%dT%H:%MZ}"
    where = {"card": name, "driver": driver, "date": date}
    print(f"{name}, driver {driver}, torch {torch.__version__}\nlibfa3: {library.path}")
    torch.backends.cuda.matmul.allow_tf32 = False
    makers = import_peers(options.peers, library)
    cold, points, kept = torch.ones(CACHE_BYTES // 4, device="cuda"), {}, []
    files = [(options.csv, False), (options.record and options.results / card.folder(name) / "serving.csv", True)]
    before = {path: serving_csv.read(path) if merge and path.exists() else {} for path, merge in files if path}
    for point in options.points:
        case = Case(point, "cuda")
        lines = [line | where for line in measure(case, makers, options, cold)]
        points[case.kind, case.name] = lines
        del case
        torch.cuda.empty_cache()
        for path, there in before.items():
            table, kept = serving_csv.merged(there, points)
            serving_csv.write(path, table)
    print("\n".join(kept), end="\n" if kept else "")
    wrong = [" ".join(point) for point, lines in points.items() if any("BAD" in line["checked"] for line in lines)]
    print("\n".join(f"differs: {label}" for label in wrong), end="\n" if wrong else "")
    return 1 if any(line["peer"] == "libfa3" and "BAD" in line["checked"] for lines in points.values()
                    for line in lines) else 0  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
