#!/usr/bin/env python3
"""The paper's Figures 5, 6 and 7 from the CSV of peers.py or fa3-bench: speed on its grid, as one SVG for each dtype:
figure5-bf16.svg, figure5-fp16.svg, and for e4m3 figure7-fp8.svg; of the backward pass figure6-bf16.svg.

Six panels (head dimension 64, 128, 256; without and with causal mask), bars grouped by sequence length. Taken are the
rows of the paper's grid: 16384 tokens, hidden size 2048, as many keys as queries and key heads as query heads; others
may stand in the same file, among them those of e4m3 with other scales than one for a tensor or with two-level sums,
and planned calls, which plot_serving.py draws. V as tiles has a bar of its own, from rows of fa3-bench or the column
`tiles` of peers.py. Peers without a figure in those rows are left out. The title names the card that the rows name.
The same CSV gives the same bytes.
"""

import argparse
import contextlib
import csv
import pathlib
import sys

HEAD_DIMS, SEQLENS = (64, 128, 256), (512, 1024, 2048, 4096, 8192, 16384)
TOKENS, HIDDEN = 16384, 2048
NAMED = ("direction", "dtype", "head_dim", "causal", "batch", "seqlen", "heads", "kv_heads", "tflops")

# Column, name, colour (Okabe and Ito's, told apart without red and green), in the order of the bars.
SERIES = (
    ("tflops", "libfa3", "#D55E00"),
    ("tiles_tflops", "libfa3, V as tiles", "#882255"),
    ("official_tflops", "FlashAttention-3 (official)", "#0072B2"),
    ("fa4_tflops", "FlashAttention-4", "#56B4E9"),
    ("cudnn_tflops", "cuDNN", "#009E73"),
    ("fa2_tflops", "FlashAttention-2", "#E69F00"),
    ("triton_tflops", "Triton", "#CC79A7"),
    ("standard_tflops", "Standard attention", "#999999"),
)


# Text stays text, and the names of the elements depend on nothing but the drawing.
SETTINGS = {"svg.fonttype": "none", "svg.hashsalt": "libfa3", "font.sans-serif": "DejaVu Sans", "backend": "svg"}

DIRECTIONS = {"fwd": "forward", "bwd": "backward"}


def figure_of(what):
    """Of a direction and a dtype: the file, and what it is called above the panels."""
    direction, dtype = what
    if dtype == "e4m3":
        return "figure7-fp8.svg", f"Attention {DIRECTIONS[direction]}, FP8 (e4m3)"
    return f"figure{5 + (direction == 'bwd')}-{dtype}.svg", f"Attention {DIRECTIONS[direction]}, {dtype}"


class PlotError(Exception):
    pass


def card_of(path, rows):
    """The card that all rows name, "" if none does."""
    cards = {row.get("card") or "" for row in rows}
    if len(cards) > 1:
        raise PlotError(f"{path}: rows of several cards: {', '.join(sorted(name or 'no name' for name in cards))}")
    return cards.pop() if cards else ""


def read(path):
    """{(direction, dtype): {(head_dim, causal, seqlen): {column: TFLOP/s}}} of the rows on the paper's grid, and the
    card, "" if the rows do not name it."""
    try:
        with open(path, newline="") as file:
            reader = csv.DictReader(file)
            rows, columns = list(reader), reader.fieldnames or []
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise PlotError(f"{path}: {error}") from error
    if missing := [name for name in NAMED if name not in columns]:
        raise PlotError(f"{path}: no column {', '.join(missing)}")

    card = card_of(path, rows)
    figures, off_grid, unchecked = {}, 0, 0
    for line, row in enumerate(rows, 2):
        try:
            head_dim, causal, batch, seqlen, heads, kv_heads = (int(row[name]) for name in NAMED[2:8])
            head_dim_v = int(row.get("head_dim_v") or head_dim)
            seqlen_k = int(row.get("seqlen_k") or seqlen)
            values = {column: float(row[column]) for column, _, _ in SERIES if row.get(column)}
        except (TypeError, ValueError) as error:
            raise PlotError(f"{path}: line {line}: {error}") from error
        drawn = row["direction"] in DIRECTIONS and head_dim in HEAD_DIMS and causal in (0, 1) and seqlen in SEQLENS
        like_grid = batch * seqlen == TOKENS and heads * head_dim == HIDDEN
        like_grid = like_grid and (kv_heads, seqlen_k, head_dim_v) == (heads, seqlen, head_dim)
        plain = (row.get("scales") or "tensor", row.get("two_level") or "0") == ("tensor", "0") and not row.get("call")
        if not (drawn and like_grid and plain and values):
            off_grid += 1
            continue
        unchecked += row.get("checked", "1") != "1"
        points = figures.setdefault((row["direction"], row["dtype"]), {})
        if row.get("v") == "tiles" and "tflops" in values:
            values["tiles_tflops"] = values.pop("tflops")
        point = points.setdefault((head_dim, causal, seqlen), {})
        if point.keys() & values.keys():  # by another kernel, say: one bar cannot show both
            raise PlotError(f"{path}: line {line}: a second row of {row['dtype']} d{head_dim} seqlen {seqlen}")
        point.update(values)
    if not figures:
        raise PlotError(
            f"{path}: none of its {len(rows)} rows is a point of the paper's grid ({TOKENS} tokens, hidden size "
            f"{HIDDEN}, head_dim {'/'.join(map(str, HEAD_DIMS))}, seqlen {SEQLENS[0]} to {SEQLENS[-1]})"
        )
    if off_grid:
        print(f"{path}: {off_grid} rows lie off the paper's grid")
    if unchecked:
        print(f"{path}: {unchecked} of the rows drawn have outputs that differ or were not compared")
    return figures, card


def present(points):
    return [series for series in SERIES if any(series[0] in values for values in points.values())]


def short(seqlen):
    return f"{seqlen // 1024}k" if seqlen >= 1024 else str(seqlen)


def draw_panel(axes, direction, points, series, head_dim, causal):
    mask = f"{'with' if causal else 'without'} causal mask"
    axes.set_title(f"{DIRECTIONS[direction].capitalize()}, {mask}, head dim {head_dim}", fontsize=11)
    axes.set_xticks(range(len(SEQLENS)), [short(seqlen) for seqlen in SEQLENS])
    axes.set_xlim(-0.55, len(SEQLENS) - 0.45)
    axes.set_axisbelow(True)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.tick_params(length=0)
    axes.spines[["top", "right"]].set_visible(False)
    width = 0.88 / len(series)
    for number, (column, name, colour) in enumerate(series):
        for group, seqlen in enumerate(SEQLENS):
            value = points.get((head_dim, causal, seqlen), {}).get(column)
            if value is None:
                continue
            x = group + (number - (len(series) - 1) / 2) * width
            axes.bar(x, value, width * 0.94, color=colour)
            weight = "bold" if column in ("tflops", "tiles_tflops") else "normal"
            axes.annotate(
                f"{value:.0f}", (x, value), (0, 2), textcoords="offset points",
                ha="center", va="bottom", rotation=90, fontsize=8, fontweight=weight,
            )  # fmt: skip


@contextlib.contextmanager
def own_pyplot():
    """matplotlib's pyplot, whatever this machine's settings are."""
    import matplotlib

    matplotlib.use("svg")
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **SETTINGS}):
        from matplotlib import pyplot

        yield pyplot


def save(pyplot, figure, path, **how):
    figure.savefig(path, format="svg", facecolor="white", metadata={"Date": None, "Creator": None}, **how)
    pyplot.close(figure)


def draw(points, what, title, path):
    """what: direction and dtype. title: what stands above the panels."""
    with own_pyplot() as pyplot:
        from matplotlib.patches import Patch

        series = present(points)
        figure, grid = pyplot.subplots(len(HEAD_DIMS), 2, figsize=(13.5, 11.5), sharey=True, facecolor="white")
        highest = max(value for values in points.values() for value in values.values())
        for head_dim, panels in zip(HEAD_DIMS, grid):
            for causal, axes in enumerate(panels):
                draw_panel(axes, what[0], points, series, head_dim, causal)
            panels[0].set_ylabel("TFLOP/s")
        for axes in grid[-1]:
            axes.set_xlabel("Sequence length")
        grid[0, 0].set_ylim(0, highest * 1.12)
        figure.suptitle(title, y=0.99)
        handles = [Patch(color=colour, label=name) for _, name, colour in series]
        figure.legend(
            handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0.972), ncols=len(series), frameon=False
        )
        figure.tight_layout(rect=(0, 0, 1, 0.96))
        save(pyplot, figure, path)


def new_parser(description):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", help="what peers.py --csv, serving.py --csv or fa3-bench --csv wrote")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."), help="folder (default: this one)")
    return parser


def start(parser, arguments, read):
    """The options, and what read() finds in the CSV. A CSV that read() refuses ends the program with exit status 2, a
    missing matplotlib with 77."""
    options = parser.parse_args(arguments)
    try:
        found = read(options.csv)
    except PlotError as error:
        parser.error(str(error))
    try:
        import matplotlib
    except ImportError as error:
        print(f"{parser.prog} needs matplotlib: {error}")
        sys.exit(77)
    print(f"matplotlib {matplotlib.__version__}")
    options.out.mkdir(parents=True, exist_ok=True)
    return options, found


def main(arguments=None):
    parser = new_parser(__doc__)
    parser.add_argument("--title", help="above the panels (default: direction, dtype, card, tokens and hidden size)")
    options, (figures, card) = start(parser, arguments, read)
    for what, points in sorted(figures.items()):
        path = options.out / figure_of(what)[0]
        title = f"{figure_of(what)[1]}{card and ', '}{card}: {TOKENS // 1024}k tokens, hidden size {HIDDEN}"
        draw(points, what, options.title or title, path)
        names = ", ".join(name for _, name, _ in present(points))
        print(f"{path}: {len(points)} points of {names}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
