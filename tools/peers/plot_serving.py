#!/usr/bin/env python3
"""Served calls from a serving.csv, or from fa3-bench's --csv: speed at each point, as one SVG for each kind of call:
serving-decode.svg and so on. Bars are TFLOP/s, of steps of decoding GB/s (K and V counted once). Lines of results that
differ are left out, and so are those with plans in the call. The title names the card that the lines name. The same CSV
gives the same bytes.
"""

import argparse
import csv
import pathlib
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
    """(kind, point, peer, speed, right) of either file's row; None of a call that is not served."""
    if "peer" in row:
        return row["kind"], row["point"], row["peer"], row["tflops_or_gbytes_s"], not row["checked"].startswith("BAD")
    if not row.get("call"):
        return None
    speed = row["gbytes_s" if row["kind"] in DECODING else "tflops"]
    name = row["name"] or f"{row['call']}; {row['heads']}/{row['kv_heads']} d{row['head_dim']}"
    return row["kind"] or row["direction"], name, "libfa3", speed, row["checked"] == "1"


def read(path):
    """{kind: {point: {peer: speed}}} of its served calls, and the card, "" if no line names it."""
    try:
        with open(path, newline="") as file:
            rows = list(csv.DictReader(file))
        lines = [found for found in map(line_of, rows) if found]
        kinds, cards = {}, {row.get("card") or "" for row in rows}
        for kind, point, peer, speed, right in lines:
            if right and speed and peer in [name for name, _, _ in SERIES]:
                kinds.setdefault(kind, {}).setdefault(point, {})[peer] = float(speed)
    except (OSError, UnicodeDecodeError, csv.Error, KeyError, ValueError) as error:
        raise plot.PlotError(f"{path}: {type(error).__name__}: {error}") from error
    if not kinds:
        raise plot.PlotError(f"{path}: none of its {len(rows)} lines is a served call")
    if len(cards) > 1:
        names = ", ".join(sorted(name or "no name" for name in cards))
        raise plot.PlotError(f"{path}: lines of several cards: {names}")
    return kinds, cards.pop()


def draw(kind, points, card, path):
    import matplotlib

    matplotlib.use("svg")
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **plot.SETTINGS}):
        from matplotlib import pyplot

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
        figure.savefig(path, format="svg", facecolor="white", bbox_inches="tight",
                       metadata={"Date": None, "Creator": None})  # fmt: skip
        pyplot.close(figure)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", help="what serving.py --csv or fa3-bench --csv wrote")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."), help="folder (default: this one)")
    options = parser.parse_args(arguments)
    try:
        kinds, card = read(options.csv)
    except plot.PlotError as error:
        parser.error(str(error))
    try:
        import matplotlib
    except ImportError as error:
        print(f"plot_serving.py needs matplotlib: {error}")
        return 77
    print(f"matplotlib {matplotlib.__version__}")
    options.out.mkdir(parents=True, exist_ok=True)
    for kind, points in sorted(kinds.items()):
        path = options.out / f"serving-{kind}.svg"
        draw(kind, points, card, path)
        print(f"{path}: {len(points)} points")
    return 0


if __name__ == "__main__":
    sys.exit(main())
