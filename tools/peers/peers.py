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
fa3_backward does, the gradients by torch of those peers that have them (cudnn, fa2 and fa4), and what the official call
does (official, at d 128). What a peer compiles at its first call is compiled when its output is compared. Beside them
stand other ways of the first library itself: deterministic and centered (the same with FA3_FLAG_DETERMINISTIC, and with
FA3_FLAG_CENTERED_K).

With several --library, the first is what all others are compared with. A ratio is the speed of the other over that
of the first: above 1 the other is faster.

Peers: cudnn and fa2 (backends of torch's scaled_dot_product_attention), official (FlashAttention-3; forward from the
wheel fa3-fwd, backward from flash_attn3_jax, without JAX), fa4 (flash-attn-4), triton (triton_attention.py beside this
file), standard (matrix products and a softmax of torch, with the scores in memory; refused where they would not fit),
cublas (a matrix product of the point's FLOPs: a ceiling, not attention).

Points of e4m3 have q, k and v of N(0,1) cast to it, and scales of 1; official reads the same and writes bf16, cudnn
(by the package nvidia-cudnn-frontend, as torch does not offer it) writes e4m3. Beside them stand other ways of the
first library itself: tiles (V as tiles), two_level and blocks (the same with FA3_FLAG_TWO_LEVEL, and with scales for
blocks), bf16 (the forward pass on the same numbers in bf16), and quantize, which begins with the N(0,1) numbers in bf16
that the others have cast to e4m3: three calls of fa3_quantize (block scales, incoherent processing, V as tiles without
its mean) and the forward pass, timed together.

With --record the results become a part of what is kept of this card: NAME.csv in its folder in tests/records. Points
that were not measured stay in it as they are, so that a run may have some points only (--set, --filter); a CSV from
another machine is merged by peers_merge.py.

The calls that are timed stand in peers_fwd.py, peers_bwd.py, peers_bwd_official.py and, what is only for points of
e4m3, peers_fp8.py.
"""

import argparse
import functools
import re
import sys

import peers_bwd
import peers_fwd
import peers_points
from peers_csv import RECORDS, Record, write_csv, write_lines
from peers_measure import measure
from peers_merge import MergeError
from peers_report import print_absences, print_means, print_row
from peers_row import TOLERANCE, Row
from peers_start import card, import_each, names_among, new_parser, start

NAME = "libfa3"  # of the library, unless it is said
DIRECTIONS = {"fwd": peers_fwd, "bwd": peers_bwd}  # the calls of each


def known_names():
    """Of the peers and of the other ways of the first library, in both directions."""
    return list(dict.fromkeys(name for calls in DIRECTIONS.values() for name in (*calls.PEERS, *calls.FORMS)))


def library(text):
    name, _, path = text.partition("=")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]*", name) or not path:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=PATH")
    if name in known_names():
        raise argparse.ArgumentTypeError(f"{name!r} is a peer's name")
    return name, path


def csv_file(text):
    if not text.endswith(".csv"):
        raise argparse.ArgumentTypeError(f"{text!r} does not end in .csv")
    return text


def belongs(point, record):
    """Whether that file of a card has such points."""
    kind = "backward" if point.direction == "bwd" else "fp8" if point.is_fp8() else "forward"
    return kind == record or (kind, record) == ("forward", "shapes")


def options_parser():
    parser = new_parser(__doc__)
    parser.add_argument(
        "--library",
        type=library,
        action="append",
        metavar="NAME=PATH",
        help="a libfa3.so and what to call it; may be given several times (default: libfa3, which is the one that "
        "FA3_LIBRARY names, or that of the newest build)",
    )
    parser.add_argument(
        "--peers",
        type=names_among(known_names()),
        help=f"of {','.join(known_names())}, or none (default: all that do some of the points)",
    )
    parser.add_argument(
        "--direction",
        choices=DIRECTIONS,
        default="fwd",
        help="bwd: the backward pass of the points, beside %s (%%(default)s)"
        % ", ".join([*peers_bwd.PEERS, *peers_bwd.FORMS]),
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
    parser.add_argument(
        "--lines", type=csv_file, help="the same with a line for each library and peer at each point, in microseconds"
    )
    parser.add_argument("--record", choices=RECORDS, help="merge the results into what is kept of this card")
    return parser


def parse(arguments):
    """The options. points, protocol and csv_columns among them are fa3-bench's answer to those it does not list."""
    parser = options_parser()
    options, bench_words = parser.parse_known_args(arguments)
    options.library = options.library or [(NAME, None)]
    if len(dict(options.library)) < len(options.library):
        parser.error("--library: a name is given twice")
    if options.record and [name for name, _ in options.library] != [NAME]:
        parser.error(f"--record is for one --library, whose name is {NAME}")
    try:
        options.points, options.protocol, options.csv_columns = peers_points.ask(options.bench, bench_words)
    except OSError as error:
        parser.error(f"fa3-bench cannot be asked for the points (--bench): {error}")
    for point in options.points:
        if point.problem:
            parser.error(f"{point.label}: {point.problem}")
        if point.planned:
            parser.error(f"{point.label}: planned calls are timed by serving.py")
    if options.direction == "bwd":
        for point in options.points:
            if point.is_fp8():
                parser.error(f"{point.label}: e4m3 has no backward pass")
            point.direction, point.flop, point.label = "bwd", peers_bwd.FLOP * point.flop, f"bwd {point.label}"
    calls = DIRECTIONS[options.direction]
    if options.peers is None:
        options.peers = calls.useful_peers(options.points)
    if options.record and not all(belongs(point, options.record) for point in options.points):
        parser.error(f"--record {options.record} is not for all of these points")
    if absent := [name for name in options.peers if name not in calls.PEERS and name not in calls.FORMS]:
        direction = "backward" if options.direction == "bwd" else "forward"
        parser.error(f"no {direction} pass of {', '.join(absent)} is measured")
    return options


def import_peers(names, library, calls):
    """The makers of the peers that work here. library: the first one. calls: a direction's."""

    def load(name):
        if name in calls.PEERS:
            return calls.PEERS[name](*[library] * (name in calls.GIVEN_LIBRARY))
        return calls.FORMS[name](library, calls.make_library(library))

    return import_each({name: functools.partial(load, name) for name in names})


def main(arguments=None):
    options = parse(arguments)
    libraries, options.where = start("peers.py", dict(options.library))
    import torch

    calls = DIRECTIONS[options.direction]
    peers = import_peers(options.peers, next(iter(libraries.values())), calls)
    prepare = {**{name: calls.make_library(loaded) for name, loaded in libraries.items()}, **peers}
    first, *names = prepare
    rows = [Row(point, first) for point in options.points]
    files = [(write_csv, options.csv), (write_lines, options.lines)]
    writers = [functools.partial(write, path) for write, path in files if path]
    try:
        folder = options.results / card.folder(options.where[0])
        record = options.record and Record(options.record, folder, options.points, prepare)
    except MergeError as error:
        print(f"peers.py: --record: {error}", file=sys.stderr)
        return 2
    if record:
        writers.append(record.write)
    with torch.no_grad():
        for number in range(options.protocol.passes):
            if options.protocol.passes > 1:
                print(f"\npass {number + 1} of {options.protocol.passes}")
            for row in rows:
                measure(row, prepare, number, options)
                print_row(row, names, options)
                for write in writers:
                    write([row for row in rows if row.passes[first]], names, options)
    print_means(rows, names, first, [name for name in peers if name not in calls.FORMS])
    print_absences(rows, names)
    if record:
        print("\n".join(["", f"{record.path}: merged", *record.kept]))
    differing = [row.point.label for row in rows if row.checked(options) is False]
    if differing:
        print(f"\n{len(differing)} points differ: {'; '.join(differing)}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
