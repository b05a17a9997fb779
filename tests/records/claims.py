"""The figures of README.md, tools/docs/pages and this folder's README.md, computed from what is kept of the cards here.

SENTENCES has a pattern for each sentence with figures, TABLES a function for each row of a table; both say how the
figures are computed. claims_test.py compares, and finds figures that have no rule. dips() finds measurements that are
to be made again before anything is computed from them.
"""

import collections
import csv
import functools
import importlib.machinery
import importlib.util
import json
import math
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tools/peers"))
import peers_merge  # noqa: E402

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
NUMBERS = "head_dim causal batch seqlen seqlen_q seqlen_k heads kv_heads head_dim_v".split()


# --- what is kept of a card -------------------------------------------------------------------------------------------


@functools.cache
def rows(card, name):
    """Of a CSV, with numbers where there are some."""
    with open(HERE / card.lower() / f"{name}.csv", newline="") as file:
        return [{key: int(x) if key in NUMBERS and x else x for key, x in row.items()} for row in csv.DictReader(file)]


def record(card):
    return json.loads((HERE / card.lower() / "gpu.json").read_text())


def on_grid(row):
    """The paper's: 16384 tokens, hidden size 2048."""
    square = (row["seqlen_k"], row["kv_heads"]) == (row["seqlen"], row["heads"]) and row["seqlen"] in LENGTHS
    return square and row["batch"] * row["seqlen"] == 16384 and row["heads"] * row["head_dim"] == 2048


def grid(card, name, **wanted):
    """Its points, of FP8 those with V row by row."""
    wanted["dtype"] = {"fp8": "e4m3"}.get(name, "bf16")
    points = [row for row in rows(card, name) if on_grid(row) and row.get("v", "rows") == "rows"]
    return [row for row in points if all(row[key] == value for key, value in wanted.items())]


def beyond_grid(card, name):
    return [row for row in rows(card, name) if row["dtype"] == "bf16" and not on_grid(row)]


def best(row, *peers):
    """The library's speed over that of the fastest of these peers."""
    return 1 / max(float(row[f"{peer}_ratio"]) for peer in peers if row[f"{peer}_ratio"])


def tiles(row, *peers):
    """The same with V as tiles."""
    return best(row, *peers) * float(row["tiles_ratio"])


def shapes(card, case, **wanted):
    """The same ratio over official and cuDNN for each point of shapes.csv: (ratio, row of the library, the faster)."""
    points = {}
    for row in rows(card, "shapes"):
        if row["case"] == case and all(row[key] in values for key, values in wanted.items()):
            shape = [x for key, x in row.items() if key in NUMBERS or key == "detail"]
            points.setdefault(tuple(shape), {})[row["peer"]] = row
    found = []
    for point in points.values():
        us = {peer: float(row["median_us"]) for peer, row in point.items()}
        ours = us.pop("libfa3")
        fastest = min(us, key=us.get)
        found.append((us[fastest] / ours, point["libfa3"], fastest))
    return found


def serving(card, *kinds):
    """The best peer's time over the library's for each point of serving.csv. Beside pages peers without them do not
    count, nor do those that plan in the call where the others' plans are made before."""
    points = {}
    for row in rows(card, "serving"):
        if row["kind"] in kinds and not row["peer"].endswith((":inline", "-contiguous")):
            points.setdefault((row["kind"], row["point"]), {})[row["peer"]] = float(row["us"])
    return [min(us for peer, us in of.items() if peer != "libfa3") / of["libfa3"] for of in points.values()]


def mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


# --- measurements that stand out --------------------------------------------------------------------------------------

# series: all but batch and keys that points to compare have in common, and who was timed; rate: TFLOP/s, or work over
# time in any unit; processes: whose median the rate is.
Figure = collections.namedtuple("Figure", "series batch keys rate processes words")
PLANNED_LENGTHS = re.compile(r"b(\d+) (?:ctx |n)(\d+)|(\d+) x (\d+)")


def figures(card, name):
    """All rates in a CSV, the library's own and those of its other forms among them."""
    for row in rows(card, name):
        processes = int(row.get("processes") or 1)
        if found := PLANNED_LENGTHS.search(row.get("point", "")):
            batch, keys = (int(x) for x in found.groups() if x)
            series, rate = (row["kind"], row["point"].replace(found[0], ""), row["peer"]), row["tflops_or_gbytes_s"]
            yield Figure(series, batch, keys, float(rate), processes, f"{row['peer']}, {row['kind']} {row['point']}")
        elif "forward_us" in row:  # over several cards: one causal sequence, or as many documents
            common = [row[key] for key in ("ranks", "documents", "heads", "heads_kv", "head_dim", "method")]
            for time in ("forward_us", "backward_us"):
                rate, words = row["seqlen"] ** 2 / float(row[time]), f"{row['method']}, {time}, {row['seqlen']} tokens"
                yield Figure((*common, time), 1, row["seqlen"], rate, processes, words)
        elif "tflops" in row:
            point = dict(zip(peers_merge.POINT, peers_merge.point_of(row)))
            batch, queries, keys = (int(point.pop(key)) for key in ("batch", "seqlen", "seqlen_k"))
            for column in row:
                if column.endswith("tflops") and row[column]:
                    who = row.get("peer") or column.removesuffix("tflops").rstrip("_") or "libfa3"
                    series = (*point.values(), queries if queries != keys else "", who)
                    words = f"{who}, {row['dtype']} {named_shape(row)}, {row['heads']} heads"
                    yield Figure(series, batch, keys, float(row[column]), processes, words)


def beside_neighbours(card, name):
    """{a figure's series, batch and keys: itself, and the rates at the nearest shorter and longer length} of a CSV,
    where there are both: with the same batch, or else with about as many keys in all, up to twice or half of them."""
    series, found = {}, {}
    for figure in figures(card, name):
        series.setdefault(figure.series, []).append(figure)
    for figure in (figure for together in series.values() for figure in together):
        total = lambda other: abs(math.log2(other.batch * other.keys / (figure.batch * figure.keys)))
        distance = lambda other: (abs(math.log2(other.keys / figure.keys)), total(other))
        for alike in (lambda other: other.batch == figure.batch, lambda other: total(other) <= 1):
            near = list(filter(alike, series[figure.series]))
            sides = [x for x in near if x.keys < figure.keys], [x for x in near if x.keys > figure.keys]
            if all(sides):
                found[figure[:3]] = figure, *(min(side, key=distance).rate for side in sides)
                break
    return found


def dips():
    """In words: figures more than a fifth below both neighbours in length, as of a measurement that something else
    disturbed. Not those that other processes measured, too: a figure that is the median of three or more, or one with
    which another card's at this point agrees to a tenth."""
    files = {(path.parent.name.upper(), path.stem): path for path in sorted(HERE.glob("*/*.csv"))}
    beside = {file: beside_neighbours(*file) for file in files}
    found = []
    for (card, name), points in beside.items():
        elsewhere = [more for (other, same), more in beside.items() if same == name and other != card]
        for key, (figure, *sides) in points.items():
            again = [more[key][0].rate for more in elsewhere if key in more]
            measured_again = figure.processes >= peers_merge.LEAST_PROCESSES or any(
                abs(figure.rate / rate - 1) <= 0.1 for rate in again
            )
            if figure.rate < 0.8 * min(sides) and not measured_again:
                rates = "{:.1f} between {:.1f} and {:.1f}".format(figure.rate, *sides)
                found.append(f"{files[card, name].relative_to(HERE)}: {figure.words}: {rates}: measure it again")
    return found


# --- cells of tables --------------------------------------------------------------------------------------------------


def named(row):
    return f"d {row['head_dim']} {'causal' if row['causal'] else 'full'} {row['seqlen']}"


def named_beyond(row):
    """A point outside the grid."""
    d, batch, n, heads, kv_heads = (row[key] for key in ("head_dim", "batch", "seqlen", "heads", "kv_heads"))
    grouped = f" over {kv_heads}" if kv_heads != heads else ""
    return f"d {d} {'causal' if row['causal'] else 'full'}, {batch} x {n}, {heads} head{'s'[: heads != 1]}{grouped}"


def named_shape(row):
    return f"d {row['head_dim']} {'causal' if row['causal'] else 'full'}, {row['batch']} x {row['seqlen_k']}"


def listed(pairs):
    """Points where a peer is ahead, the farthest first."""
    return ", ".join(f"{named(row)} ({ratio:.2f})" for ratio, row in sorted(pairs, key=lambda p: p[0]) if ratio < 1)


def summary(ratios):
    """How many points, the mean, the least, and at how many a peer is ahead."""
    return [len(ratios), mean(ratios), min(ratios), sum(ratio < 1 for ratio in ratios)]


def over(name, peers, form=best, **wanted):
    return lambda card: summary([form(row, *peers) for row in grid(card, name, **wanted)])


def over_shapes(*cases, **wanted):
    return lambda card: summary([ratio for case in cases for ratio, *_ in shapes(card, case, **wanted)])


def in_serving(*kinds):
    def cells(card):
        return summary(serving(card, *kinds))

    cells.kinds = kinds
    return cells


def by_group(name, peers, form=best):
    """Of a head dimension, or of some lengths: mean and least, and where a peer is ahead."""

    def cells(card, label):
        wanted = lambda row: True
        if found := re.fullmatch(r"d (\d+)", label):
            wanted = lambda row: row["head_dim"] == int(found[1])
        elif found := re.fullmatch(r"(\d+) to (\d+)", label):
            wanted = lambda row: int(found[1]) <= row["seqlen"] <= int(found[2])
        elif label != "all":
            raise KeyError(label)
        pairs = [(form(row, *peers), row) for row in grid(card, name) if wanted(row)]
        ratios = [ratio for ratio, _ in pairs]
        return [len(ratios), mean(ratios), min(ratios), listed(pairs)]

    return cells


def headline(card, head_dim):
    d = int(head_dim)
    ratios = lambda name, form, peers, **more: mean([form(r, *peers) for r in grid(card, name, head_dim=d, **more)])
    forward = [ratios("forward", best, OFFICIAL, causal=causal) for causal in (0, 1)]
    backward = [ratios("backward", best, BACKWARD, causal=causal) for causal in (0, 1)]
    return [*forward, ratios("fp8", tiles, OFFICIAL), *backward]


def other_point(name, peers):
    """A point outside the grid, by its label: TFLOP/s, as a share of the grid's point of the nearest length, over the
    best of the peers, and for backward passes over the official kernel, where it was timed, and what is left in a fixed
    order."""

    def cells(card, label):
        (row,) = [row for row in beyond_grid(card, name) if named_beyond(row) == label]
        beside = grid(card, name, head_dim=row["head_dim"], causal=row["causal"])
        beside = min(beside, key=lambda other: abs(math.log(other["seqlen"] / row["seqlen"])))
        tflops = float(row["tflops"])
        cells = [tflops, tflops / float(beside["tflops"]), best(row, *peers)]
        if name == "backward":
            cells += [best(row, *OFFICIAL) if row.get("official_ratio") else "", float(row["deterministic_ratio"])]
        return cells

    return cells


def farthest(points, name):
    """Of points with columns of peers the one where a peer is ahead the most: that peer, the point, and the ratio."""
    timed = [(best(row, peer), row, peer) for row in points for peer in FORWARD if row.get(f"{peer}_ratio")]
    ratio, row, peer = min(timed, key=lambda found: found[0])
    return [PEERS[peer], name(row), ratio]


def farthest_shape(card, case):
    ratio, row, peer = min(shapes(card, case), key=lambda found: found[0])
    return [PEERS[peer], named_shape(row), ratio]


def most_ahead(card):
    return [
        *farthest(grid(card, "forward"), named),
        *farthest(grid(card, "backward"), named),
        *farthest(beyond_grid(card, "backward"), named_beyond),
        *farthest_shape(card, "short"),
        *farthest_shape(card, "decode"),
    ]


def quantized(card, label):
    """Quantization and attention together, over the library in bf16, at each length."""
    d, mask = re.fullmatch(r"d (\d+) (full|causal)", label).groups()
    points = {row["seqlen"]: row for row in grid(card, "fp8", head_dim=int(d), causal=int(mask == "causal"))}
    return [float(points[n]["quantize_ratio"]) / float(points[n]["bf16_ratio"]) for n in LENGTHS]


def in_fixed_order(card, label):
    """FA3_FLAG_DETERMINISTIC's share of the speed, at these lengths of the grid, where it changes anything."""
    least, most = map(int, label.split(" to "))
    some = [row for row in grid(card, "backward") if row["head_dim"] <= 128 and least <= row["seqlen"] <= most]
    ratios = [float(row["deterministic_ratio"]) for row in some]
    return [len(ratios), mean(ratios), min(ratios), max(ratios)]


# --- accuracy ---------------------------------------------------------------------------------------------------------


def errors(method, **wanted):
    values = [
        abs(float(row["value"]))
        for row in rows("H200", "accuracy")
        if row["method"] == method and all(row[key] == value for key, value in wanted.items())
    ]
    if not values:
        raise KeyError((method, wanted))
    return values


def rms(method, head_dim, seqlen):
    """The seeds together."""
    values = errors(method, part="table3", metric="rmse", head_dim=head_dim, seqlen=seqlen)
    return math.sqrt(sum(value**2 for value in values) / len(values))


@functools.cache
def paper():
    loader = importlib.machinery.SourceFileLoader("accuracy", str(HERE.parents[1] / "tools/accuracy"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("accuracy", loader))
    loader.exec_module(module)
    return module.PAPER


def table_3(method):
    return lambda: [*(rms(method, 128, n) for n in (1024, 4096, 16384)), paper().get(method, "")]


def range_of(head_dim):
    values = [rms("ours full", head_dim, n) for n in LENGTHS]
    return min(values), max(values)


def bias(method, seqlen, mu=1):
    (value,) = errors(method, part="bias", metric="bias", inputs=f"mu={mu}", seqlen=seqlen)
    return 100 * value


def worst_bias(method, *mus):
    """In percent; where mu is 0, by how much O shrank."""
    metric = lambda mu: "bias" if mu else "gain"
    return 100 * max(x for mu in mus for x in errors(method, part="bias", metric=metric(mu), inputs=f"mu={mu}"))


def on_layers(method):
    return errors(method, part="activations")


def training(card):
    """On documents (tests/gpu/models/train_documents.py): the least and largest error of all gradients over
    FlexAttention's, and the mean distance of losses from those in float32, each of 20 steps together, of the worst
    model: the library's and FlexAttention's."""
    table = rows(card, "training")
    together = [row for row in table if row["kind"] == "gradient" and row["of"] == "all"]
    ratios = [float(row["fa3"]) / float(row["flex"]) for row in together]
    distances = []
    for kind in ("fa3", "flex"):
        by_model = {}
        for row in table:
            if row["kind"] == "loss":
                by_model.setdefault(row["model"], []).append(float(row[kind]) - float(row["float32"]))
        distances.append(max(smoothed_distance(curve) for curve in by_model.values()))
    return min(ratios), max(ratios), *distances


def capped_training(card):
    """The same of models whose errors are as good as equal: the largest difference of errors, in percent."""
    least, most, *distances = training(card)
    return 100 * max(1 - least, most - 1), *distances


def centered_cost(card):
    """What FA3_FLAG_CENTERED_K takes of the backward pass's speed at most, in percent."""
    return [100 * (1 - min(float(row["centered_ratio"]) for row in rows(card, "centered")))]


def smoothed_distance(differences, steps=20):
    sums = [sum(differences[i : i + steps]) for i in range(len(differences) - steps + 1)]
    return sum(map(abs, sums)) / steps / len(sums)


# --- the documents ----------------------------------------------------------------------------------------------------

OFFICIAL, FORWARD = ("official",), ("official", "fa4", "cudnn")
BACKWARD, FP8 = ("fa4", "cudnn"), ("official", "cudnn")
OFFICIAL_AND_CUDNN = "official FlashAttention-3, cuDNN"
VLLM_FA4_CUDNN = "vLLM's FlashAttention-3, FlashAttention-4, cuDNN"
PEERS = {"official": "the official kernel", "fa4": "FlashAttention-4", "cudnn": "cuDNN"}
PEER = f"({'|'.join(PEERS.values())})"
GRID_POINT, SHAPE = r"(d \d+ \w+ \d+)", r"(d \d+ \w+, \d+ x \d+)"
OTHER_POINT = r"(d \d+ \w+, \d+ x \d+, \d+ heads?(?: over \d+)?)"
TO_64, TO_577 = (16, 33, 64), (197, 256, 320, 384, 512, 577)
SEVERAL = (8, 32, 48, 64, 128, 256, 512, 1024)  # sequences in a batch


def host_time(card):
    us = record(card)["host_overhead_us"]
    return us["median"], us["min"], us["launch"]


def on_both(compute):
    return lambda: [*compute("H100"), *compute("H200")]


def share_of_fp16(card):
    bf16 = {(row["causal"], row["seqlen"]): float(row["tflops"]) for row in grid(card, "forward", head_dim=128)}
    fp16 = [row for row in rows(card, "forward") if row["dtype"] == "fp16" and on_grid(row)]
    shares = [float(row["tflops"]) / bf16[row["causal"], row["seqlen"]] for row in fp16]
    return min(shares), max(shares)


def cache_speed(card):
    """TB/s of decoding that reads 500 MB or more."""
    read = [(float(row["gbytes_s"]) / 1e3, float(row["median_us"])) for _, row, _ in shapes(card, "decode")]
    large = [speed for speed, us in read if speed * us >= 500]
    return min(large), max(large)


# Header and first cell of a table's row -> its other cells. With a card: those of tables whose first column is `card`.
CARD_TABLES = {
    "head dimension": headline,
    # By call, and by the peers of which the fastest counts.
    "call": {
        ("forward, bf16", "official FlashAttention-3"): over("forward", OFFICIAL),
        ("forward, bf16", "official FlashAttention-3, FlashAttention-4, cuDNN"): over("forward", FORWARD),
        ("forward, FP8", OFFICIAL_AND_CUDNN): over("fp8", FP8),
        ("forward, FP8, V as tiles", OFFICIAL_AND_CUDNN): over("fp8", FP8, form=tiles),
        ("backward, bf16", "FlashAttention-4, cuDNN"): over("backward", BACKWARD),
        ("backward, bf16, d 128", "official FlashAttention-3"): over("backward", OFFICIAL, head_dim=128),
        ("forward, other head dimensions", OFFICIAL_AND_CUDNN): over_shapes("head_dim"),
        ("forward, K and V of different head dimensions", OFFICIAL_AND_CUDNN): over_shapes("unequal"),
        ("forward, 16 to 577 tokens", OFFICIAL_AND_CUDNN): over_shapes("short"),
        ("decoding, contiguous KV cache", OFFICIAL_AND_CUDNN): over_shapes("decode"),
        ("forward, varlen", "official and vLLM's FlashAttention-3, FlashAttention-4, cuDNN"): in_serving("varlen"),
        ("chunked prefill, paged KV cache", VLLM_FA4_CUDNN): in_serving("chunked"),
        ("decoding and chunked prefill in one call", "vLLM's FlashAttention-3, FlashAttention-4"): in_serving("mixed"),
        ("decoding, paged KV cache", VLLM_FA4_CUDNN): in_serving("decode"),
        ("decoding, paged KV cache, with windows or sinks", VLLM_FA4_CUDNN):
            in_serving("decode_window", "sink_decode"),
        ("MLA decoding", "FlashInfer, vLLM's FlashAttention-3, FlashMLA"): in_serving("mla"),
        ("forward, windows or sinks", "FlashAttention-4, cuDNN, FlexAttention"): in_serving("window", "sink"),
        ("backward, varlen", "FlashAttention-4, cuDNN"): in_serving("varlen_bwd"),
        ("backward, windows or sinks", "FlashAttention-4, cuDNN, FlexAttention"): in_serving("window_bwd", "sink_bwd"),
        ("forward, softcap, scores of N(0,16)", "official FlashAttention-3, FlashAttention-4, FlexAttention"):
            in_serving("softcap"),
        ("backward, softcap, scores of N(0,16)", "FlashAttention-4, FlexAttention"): in_serving("softcap_bwd"),
        ("forward and backward, ALiBi", "cuDNN, FlexAttention"): in_serving("alibi", "alibi_bwd"),
        ("forward and backward, packed documents", "FlexAttention, vLLM's FlashAttention-3, FlashAttention-4"):
            in_serving("doc", "doc_bwd"),
    },
    "forward, over the official FlashAttention-3": by_group("forward", OFFICIAL),
    "forward, over the best of official, FlashAttention-4 and cuDNN": by_group("forward", FORWARD),
    "FP8 with V row by row, over official": by_group("fp8", OFFICIAL),
    "FP8 with V as tiles, over official": by_group("fp8", OFFICIAL, tiles),
    "FP8 with V row by row, over the better of official and cuDNN": by_group("fp8", FP8),
    "backward, over the better of FlashAttention-4 and cuDNN": by_group("backward", BACKWARD),
    "backward, over the official FlashAttention-3 (d 128)": by_group("backward", OFFICIAL),
    "forward point": other_point("forward", FORWARD),
    "backward point": other_point("backward", BACKWARD),
    "quantization and attention over bf16": quantized,
    "backward in a fixed order, lengths": in_fixed_order,
    "shape": {
        "head dimension 32": over_shapes("head_dim", head_dim=(32,)),
        "head dimensions 72, 80": over_shapes("head_dim", head_dim=(72, 80)),
        "head dimensions 96, 112": over_shapes("head_dim", head_dim=(96, 112)),
        "head dimension 160": over_shapes("head_dim", head_dim=(160,)),
        "head dimensions 192, 224": over_shapes("head_dim", head_dim=(192, 224)),
        "of K and V 192/128": over_shapes("unequal", head_dim=(192,)),
        "of K and V 64/128, 64/256": over_shapes("unequal", head_dim=(64,)),
        "of K and V 128/64, 256/128": over_shapes("unequal", head_dim=(128, 256)),
        "d 64, 16 to 64 tokens": over_shapes("short", head_dim=(64,), seqlen_q=TO_64),
        "d 64, 100 and 128 tokens": over_shapes("short", head_dim=(64,), seqlen_q=(100, 128), batch=SEVERAL),
        "d 64, 197 to 577 tokens": over_shapes("short", head_dim=(64,), seqlen_q=TO_577, batch=SEVERAL),
        "d 128, 16 to 64 tokens": over_shapes("short", head_dim=(128,), seqlen_q=TO_64),
        "d 128, 100 and 128 tokens": over_shapes("short", head_dim=(128,), seqlen_q=(100, 128), batch=SEVERAL),
        "d 128, 197 to 577 tokens": over_shapes("short", head_dim=(128,), seqlen_q=TO_577, batch=SEVERAL),
        "one sequence of 128 or 512, d 64 and 128": over_shapes("short", batch=(1,)),
        "16 to 577 tokens, all": over_shapes("short"),
        "decoding, d 128, 8 K/V heads": over_shapes("decode", head_dim=(128,), kv_heads=(8,)),
        "decoding, d 128, one K/V head": over_shapes("decode", head_dim=(128,), kv_heads=(1,)),
        "decoding, d 64": over_shapes("decode", head_dim=(64,)),
        "decoding, d 256": over_shapes("decode", head_dim=(256,)),
        "decoding, all": over_shapes("decode"),
    },
}
TABLES = {
    "standard attention, fp16": table_3("standard fp16"),
    "libfa3, fp16": table_3("ours fp16"),
    "standard attention, FP8, a scale for each tensor": table_3("baseline fp8"),
    "libfa3, FP8 as `fa3_quantize` makes it": table_3("ours full"),
    "without scales of blocks": table_3("tensor scales"),
    "without incoherent processing": table_3("not incoherent"),
    "official FlashAttention-3, FP8": table_3("official"),
}

# A pattern, in which # is a figure and CARD a card's name, and what the figures are.
SENTENCES = {
    r"[Oo]n the host of one CARD the median was # us and the least # us, and the launch of an empty kernel took # us":
        host_time,
    r"On the host of one CARD, a call takes # us at the median and # us at least; launching an empty kernel takes # us":
        host_time,
    r"\*\*fp16\*\* has # to # of bf16's speed at d 128 on the H100, # to # on the H200": on_both(share_of_fp16),
    r"Decoding that reads 500 MB or more reads # to # TB/s on the H100, # to # on the H200": on_both(cache_speed),
    rf"CARD: on the grid, {PEER}'s forward pass at {GRID_POINT} \(#\) and {PEER}'s backward pass at {GRID_POINT} "
    rf"\(#\); beyond the grid, {PEER}'s backward pass at {OTHER_POINT} \(#\), {PEER}'s forward pass of 16 to 577 "
    rf"tokens at {SHAPE} \(#\) and {PEER}'s decoding at {SHAPE} \(#\)": most_ahead,
    r"with V = 1 \+ N\(0,1\) by #% at 512 keys, #% at 16384, #% at 65536 \(official kernel: #%, #%, #%\)": lambda: [
        bias(method, n) for method in ("plain", "official") for n in (512, 16384, 65536)
    ],
    r"O is then off by #%": lambda: [worst_bias("ours full", 1)],
    r"`FA3_FLAG_TWO_LEVEL` leaves V as it is and bounds the loss to #%": lambda: [
        worst_bias("plain, two-level", 0, 1, 2, 4)
    ],
    r"On one CARD, the gradients' error is # to # times FlexAttention's\. The losses of the Llamas differ from those in "
    r"float32 by at most # on average over 200 steps, FlexAttention's by at most #":
        training,
    r"On one CARD, the gradients' error with capped scores is FlexAttention's to within #%\. The losses differ from those "
    r"in float32 by at most # on average over 200 steps, FlexAttention's by at most #":
        capped_training,
    r"On one CARD, `FA3_FLAG_CENTERED_K` takes at most #% of the backward pass's speed": centered_cost,
    r"At d 64 the error of quantized FP8 is # to #, at d 256 # to #": lambda: [*range_of(64), *range_of(256)],
    r"the error is # to # with libfa3, # to # with the official FP8 kernel, and # in bf16": lambda: [
        *(f(on_layers(method)) for method in ("ours full", "official") for f in (min, max)),
        max(on_layers("ours bf16")),
    ],
}
