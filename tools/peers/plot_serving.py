#!/usr/bin/env python3
"""Planned calls from a serving.csv, or from fa3-bench's --csv: speed at each point, as one SVG for each kind of call:
serving-decode.svg and so on. Bars are TFLOP/s, of steps of decoding GB/s (K and V counted once). Lines of results that
differ are left out, and so are those with plans in the call. The title names the card that the lines name. The same CSV
gives the same bytes.
"""

import csv
import sys

import plot

# Peer, name and colour, as plot.py has them where both know one, in the order of the bars.
SERIES = (
    ("libfa3", "libfa3", "#D55E00"),
    ("fa3fwd", "FlashAttention-3 (official)", "#0072B2"),
    ("vfa3", "FlashAttention-3 (vLLM)", "#882255"),
    ("fa4", "FlashAttention-4", "#56B4E9"),
    ("vfa4", "FlashAttention-4 (vLLM)", "#332288"),
    ("cudnn", "cuDNN", "#009E73"),
    ("flex", "FlexAttention", "#F0E442"),
    ("flashmla", "FlashMLA", "#CC79A7"),
    ("fi-fa3", "FlashInfer, FlashAttention-3", "#E69F00"),
    ("fi-fa2", "FlashInfer, FlashAttention-2", "#999999"),
)
DECODING = ("decode", "decode_window", "sink_decode", "fp8kv")  # in GB/s


def line_of(row):
    """(kind, point, peer, speed, right) of either file's row; None of a call that is not planned."""
    if "peer" in row:
        return row["kind"], row["point"], row["peer"], row["tflops_or_gbytes_s"], not row["checked"].startswith("BAD")
    if not row.get("call"):
        return None
    speed = row["gbytes_s" if row["kind"] in DECODING else "tflops"]
    name = row["name"] or f"{row['call']}; {row['heads']}/{row['kv_heads']} d{row['head_dim']}"
    return row["kind"] or row["direction"], name, "libfa3", speed, row["checked"] == "1"


def read(path):
    """{kind: {point: {peer: speed}}} of its planned calls, and the card, "" if no line names it."""
    try:
        with open(path, newline="") as file:
            rows = list(csv.DictReader(file))
        lines = [found for found in map(line_of, rows) if found]
        kinds = {}
        for kind, point, peer, speed, right in lines:
            if right and speed and peer in [name for name, _, _ in SERIES]:
                kinds.setdefault(kind, {}).setdefault(point, {})[peer] = float(speed)
    except (OSError, UnicodeDecodeError, csv.Error, KeyError, ValueError) as error:
        raise plot.PlotError(f"{path}: {type(error).__name__}: {error}") from error
    if not kinds:
        raise plot.PlotError(f"{path}: none of its {len(rows)} lines is a planned call")
    return kinds, plot.card_of(path, rows)


def draw(kind, points, card, path):
    with plot.own_pyplot() as pyplot:
        series = [one for one in SERIES if any(one[0] in speeds for speeds in points.values())]
        rows = len(points) * (len(series) + 1)
        figure, axes = pyplot.subplots(figsize=(11, 1.6 + 0.17 * rows), facecolor="white")
        for number, (peer, name, colour) in enumerate(series):
            there = [(group, speeds[peer]) for group, speeds in enumerate(points.values()) if peer in speeds]
            places = [group * (len(series) + 1) + number for group, _ in there]
            bars = axes.barh(places, [speed for _, speed in there], 0.92, color=colour, label=name)
            weight = "bold" if peer == "libfa3" else "normal"
            axes.bar_label(bars, fmt="%.0f", padding=2, fontsize=7, fontweight=weight)
        middle = (len(series) - 1) / 2
        axes.set_yticks([group * (len(series) + 1) + middle for group in range(len(points))], list(points), fontsize=8)
        axes.set_ylim(rows - 0.5, -1)
        axes.margins(x=0.08)
        axes.set_xlabel("GB/s" if kind in DECODING else "TFLOP/s")
        axes.tick_params(length=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(f"{kind}{card and ', '}{card}", fontsize=11)
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=8)
        plot.save(pyplot, figure, path, bbox_inches="tight")


def main(arguments=None):
    options, (kinds, card) = plot.start(plot.new_parser(__doc__), arguments, read)
    for kind, points in sorted(kinds.items()):
        path = options.out / f"serving-{kind}.svg"
        draw(kind, points, card, path)
        print(f"{path}: {len(points)} points")
    return 0


if __name__ == "__main__":
    sys.exit(main())
