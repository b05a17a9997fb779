#!/usr/bin/env python3
"""Training on packed documents of uneven lengths with the attention of libfa3.so, forward and backward, in PyTorch:
small Llamas (RMSNorm, rotary embedding, SwiGLU, GQA) with a sliding window in every second layer, layers as those of
gpt-oss (64 heads over 8, learned sinks, a window of 128 in every second one), and as those of Gemma 2 (head dimension
256, capped scores, a window in every second one). Attention is in 16 bits, all else in float32. Beside it stands the
same with torch's FlexAttention, whose O is scaled by its LSE where there are sinks.

step: the gradients of all parameters after one step must be as close to those of the same model in float64 as
FlexAttention's are: relative RMS error at most 1.5 times its, plus a floor, of all parameters together a hundredth of
the dtype's unit roundoff, of each alone a tenth.

run: the model learns a made-up language character by character, from the same weights on the same documents: in
float32, the same from weights that differ from those by bf16's unit roundoff, in bf16 with FlexAttention, and with the
library. Each loss must end at less than 1 / 2.5 of its first value. Smoothed, the library's losses must be as close to
those in float32 as the others' are: mean distance at most 1.5 times the larger of theirs, plus 0.002.

again: under torch.use_deterministic_algorithms two steps have the same bits in all gradients.

Exit status 0, 1 if a comparison fails, 77 if there is no GPU or no torch.
"""

import argparse
import csv
import datetime
import math
import os
import pathlib
import random
import sys
import time
from typing import NamedTuple

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS has no fixed order of sums
ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tools/peers"), str(ROOT / "tests/records")]
import card  # noqa: E402
import prepared  # noqa: E402
from prepared import fa3  # noqa: E402
from train import DTYPES, LEARNED, LOSS_SCALE, PRINTED_STEPS, SMOOTHED_STEPS, fit, made_up_text  # noqa: E402
from train import number_of_steps  # noqa: E402
import torch  # noqa: E402
from torch.nn.attention.flex_attention import create_block_mask, flex_attention  # noqa: E402

SCALE_FACTOR = 1.5  # of the softmax scale, so that one that gets lost on its way is noticed
DISTANCE = 0.002


class Sizes(NamedTuple):
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    window: int  # of every second layer
    sinks: bool
    tokens: int
    longest: int  # document
    softcap: float = 0.0  # of the scores; Gemma's is 50, which these small models would hardly notice


MODELS = {
    "llama d64": Sizes(4, 512, 8, 2, 64, 200, False, 2048, 1000),
    "llama d128": Sizes(4, 512, 8, 4, 128, 200, False, 2048, 1000),
    "gpt-oss": Sizes(2, 512, 64, 8, 64, 128, True, 2048, 1000),
    "gemma d256": Sizes(4, 512, 8, 4, 256, 200, False, 2048, 1000, 3.0),
}
ON_CPU = {
    "llama d64": Sizes(2, 32, 4, 2, 8, 5, False, 64, 30),
    "llama d128": Sizes(2, 32, 2, 1, 16, 5, False, 64, 30),
    "gpt-oss": Sizes(2, 32, 8, 1, 8, 4, True, 64, 30),
    "gemma d256": Sizes(2, 32, 4, 2, 16, 5, False, 64, 30, 3.0),
}


# ---- documents ----


class Batch(NamedTuple):
    """Packed documents: for each token the numbers of its character, of its target (-100: none), of its place in its
    document and of that."""

    tokens: torch.Tensor
    targets: torch.Tensor
    positions: torch.Tensor
    ids: torch.Tensor


def batches(text, sizes, count, seed, device):
    """So many. Documents are parts of the text; many are short, some long, and one has one token."""
    draw = random.Random(seed)
    numbers = {character: i for i, character in enumerate(sorted(set(text)))}
    for _ in range(count):
        lengths = [1]
        while sum(lengths) < sizes.tokens:
            length = round(math.exp(draw.uniform(math.log(4), math.log(sizes.longest))))
            lengths.append(min(length, sizes.tokens - sum(lengths)))
        draw.shuffle(lengths)
        tokens, targets, positions, ids = [], [], [], []
        for number, length in enumerate(lengths):
            start = draw.randrange(len(text) - length)
            document = [numbers[character] for character in text[start : start + length]]
            tokens += document
            targets += [*document[1:], -100]
            positions += range(length)
            ids += [number] * length
        yield Batch(*(torch.tensor(x, device=device) for x in (tokens, targets, positions, ids)))


# ---- attention: functions of q, k and v, (tokens, heads, head_dim), a window or None, and sinks or None ----


class Plain:
    """Plain operations on all pairs of tokens, in the dtype of q."""

    def __init__(self, sizes):
        self.softcap = sizes.softcap

    def prepare(self, batch):
        at = torch.arange(len(batch.ids), device=batch.ids.device)
        self.behind = at[:, None] - at
        self.hidden = (batch.ids[:, None] != batch.ids) | (self.behind < 0)

    def __call__(self, q, k, v, window, sinks):
        groups = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
        s = torch.einsum("ihd,jhd->hij", q, k) * (SCALE_FACTOR / math.sqrt(q.shape[2]))
        if self.softcap:
            s = self.softcap * torch.tanh(s / self.softcap)
        s = s.masked_fill(self.hidden if window is None else self.hidden | (self.behind > window), -math.inf)
        if sinks is not None:
            s = torch.cat((s, sinks.to(s.dtype)[:, None, None].expand(-1, len(q), 1)), 2)
        return torch.einsum("hij,jhd->ihd", s.softmax(2)[:, :, : len(q)], v)


class Flex:
    """torch's FlexAttention, compiled, under a mask of documents and window."""

    def __init__(self, sizes):
        softcap = sizes.softcap
        self.ids = torch.zeros(sizes.tokens, dtype=torch.int64, device="cuda")
        self.run = torch.compile(flex_attention, dynamic=False)
        self.masks = {window: self.mask(window or sizes.tokens) for window in (None, sizes.window)}
        self.score = (lambda s, b, h, i, j: softcap * torch.tanh(s / softcap)) if softcap else None
        self.tokens = sizes.tokens

    def mask(self, window):
        ids, window = self.ids, torch.tensor(window, device="cuda")  # a tensor: one compilation for all windows
        return lambda b, h, i, j: (ids[i] == ids[j]) & (i >= j) & (i - j <= window)

    def prepare(self, batch):
        self.ids.copy_(batch.ids)
        self.blocks = {window: create_block_mask(mask, None, None, self.tokens, self.tokens, device="cuda")
                       for window, mask in self.masks.items()}  # fmt: skip

    def __call__(self, q, k, v, window, sinks):
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        how = {"block_mask": self.blocks[window], "score_mod": self.score, "enable_gqa": True}
        o, lse = self.run(q, k, v, scale=SCALE_FACTOR / math.sqrt(q.shape[3]), return_lse=True, **how)
        if sinks is not None:
            o = (o * torch.sigmoid(lse - sinks[:, None])[..., None]).to(q.dtype)
        return o[0].transpose(0, 1)


class Fa3:
    """The library's."""

    def __init__(self, sizes):
        self.how = {"softcap": sizes.softcap} if sizes.softcap else {}

    def prepare(self, batch):
        self.documents = fa3.documents(batch.ids)

    def __call__(self, q, k, v, window, sinks):
        window = None if window is None else (window, 0)
        how = {"softmax_scale": SCALE_FACTOR / math.sqrt(q.shape[2]), "window": window, "sinks": sinks, **self.how}
        return fa3.attention(q, k, v, causal=True, **how, **self.documents)


# ---- the models ----


class Layer(torch.nn.Module):
    """window: None, or how far back a token sees. attend: one of the above; q, k and v are of `dtype` for it."""

    def __init__(self, sizes, window):
        super().__init__()
        width, self.head_dim, self.window = sizes.width, sizes.head_dim, window
        self.heads = [sizes.heads, sizes.kv_heads, sizes.kv_heads]
        self.norm, self.mlp_norm = torch.nn.RMSNorm(width, eps=1e-5), torch.nn.RMSNorm(width, eps=1e-5)
        linear = lambda rows, columns: torch.nn.Linear(rows, columns, bias=False)
        self.qkv = linear(width, sum(self.heads) * sizes.head_dim)
        self.out = linear(sizes.heads * sizes.head_dim, width)
        self.gate, self.up, self.down = linear(width, 3 * width), linear(width, 3 * width), linear(3 * width, width)
        self.sinks = torch.nn.Parameter(torch.randn(sizes.heads)) if sizes.sinks else None

    def forward(self, x, cos, sin, attend, dtype):
        q, k, v = self.qkv(self.norm(x)).unflatten(1, (-1, self.head_dim)).split(self.heads, 1)
        q, k, v = (y.to(dtype) for y in (rotated(q, cos, sin), rotated(k, cos, sin), v))
        x = x + self.out(attend(q, k, v, self.window, self.sinks).flatten(1).to(x.dtype))
        y = self.mlp_norm(x)
        return x + self.down(torch.nn.functional.silu(self.gate(y)) * self.up(y))


def rotated(x, cos, sin):
    a, b = x.chunk(2, 2)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), 2)


class Model(torch.nn.Module):
    def __init__(self, sizes, vocabulary):
        super().__init__()
        self.tokens = torch.nn.Embedding(vocabulary, sizes.width)
        windows = [sizes.window if i % 2 == 0 else None for i in range(sizes.layers)]
        self.layers = torch.nn.ModuleList(Layer(sizes, window) for window in windows)
        self.norm = torch.nn.RMSNorm(sizes.width, eps=1e-5)
        self.head = torch.nn.Linear(sizes.width, vocabulary, bias=False)
        for module in self.modules():  # scores of a standard deviation that makes the softmax matter
            if isinstance(module, torch.nn.Linear):
                torch.nn.init.normal_(module.weight, std=module.in_features**-0.5)
        self.register_buffer("rates", 10000 ** -torch.linspace(0, 1, sizes.head_dim // 2), persistent=False)

    def loss(self, batch, attend, dtype):
        x = self.tokens(batch.tokens)
        angles = batch.positions[:, None, None] * self.rates
        cos, sin = angles.cos(), angles.sin()
        for layer in self.layers:
            x = layer(x, cos, sin, attend, dtype)
        return torch.nn.functional.cross_entropy(self.head(self.norm(x)), batch.targets)


def make(sizes, text, options):
    torch.manual_seed(options.seed)
    return Model(sizes, len(set(text))).to(options.device)


# ---- step ----


def gradients(model, batch, attend, dtype):
    """{name of a parameter: its gradient}, and "all" of them as one, in float64."""
    model.zero_grad(set_to_none=True)
    attend.prepare(batch)
    (model.loss(batch, attend, dtype) * LOSS_SCALE).backward()
    found = {name: (torch.zeros_like(x) if x.grad is None else x.grad) for name, x in model.named_parameters()}
    found = {name: gradient.double().flatten() / LOSS_SCALE for name, gradient in found.items()}
    return {"all": torch.cat(list(found.values())), **found}


def check_step(name, sizes, kinds, text, options):
    """Prints the errors of all gradients together and of the worst; True if the rule holds."""
    good = True
    (batch,) = batches(text, sizes, 1, options.seed, options.device)
    model = make(sizes, text, options)
    exact = gradients(model.double(), batch, Plain(sizes), torch.float64)
    model.float()
    for dtype in options.dtypes.split(","):
        error = {}
        for kind, attend in kinds.items():
            found = gradients(model, batch, attend, DTYPES[dtype])
            error[kind] = {x: ((found[x] - y).norm() / y.norm()).item() for x, y in exact.items()}
        peer, roundoff = error["peer"], torch.finfo(DTYPES[dtype]).eps / 2
        limit = {x: 1.5 * peer[x] + roundoff * (0.01 if x == "all" else 0.1) for x in exact}
        options.rows += [("gradient", name, dtype, x, "", peer[x], error["fa3"][x]) for x in exact]
        ratio = {x: error["fa3"][x] / limit[x] if math.isfinite(error["fa3"][x]) else math.inf for x in exact}
        worst = max(ratio, key=ratio.get)
        good = good and ratio[worst] <= 1
        print(f"step {name} {dtype}: relative error of all gradients {error['fa3']['all']:.3e}, with {options.peer} "
              f"{peer['all']:.3e}; nearest to its limit of {len(exact) - 1} is {worst}: {error['fa3'][worst]:.3e}, "
              f"{peer[worst]:.3e}, {ratio[worst]:.2f} of it   {'ok' if ratio[worst] <= 1 else 'FAILED'}",
              flush=True)  # fmt: skip
    return good


# ---- run ----


def train(model, attend, dtype, steps, options):
    def loss_of(batch):
        attend.prepare(batch)
        return model.loss(batch, attend, dtype)

    return fit(model, steps, loss_of, options)


def nudged(model):
    """With each weight multiplied by a random number next to 1."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + torch.empty_like(parameter).uniform_(-(2.0**-9), 2.0**-9))
    return model


def check_run(name, sizes, kinds, text, options):
    plain, dtype = Plain(sizes), torch.bfloat16
    steps = list(batches(text, sizes, options.steps, options.seed, options.device))
    curves = {"float32": train(make(sizes, text, options), plain, torch.float32, steps, options)}
    curves["nudged"] = train(nudged(make(sizes, text, options)), plain, torch.float32, steps, options)
    for kind, attend in kinds.items():
        curves[kind] = train(make(sizes, text, options), attend, dtype, steps, options)
    print(f"run {name}\n{'step':>5s} " + " ".join(f"{curve:>9s}" for curve in curves))
    for step, losses in enumerate(zip(*(curve.tolist() for curve in curves.values()))):
        options.rows.append(("loss", name, "bf16", step, losses[0], *losses[2:]))
        if step % PRINTED_STEPS == 0 or step == options.steps - 1:
            print(f"{step:5d} " + " ".join(f"{loss:9.4f}" for loss in losses))
    smooth = {kind: curve.unfold(0, SMOOTHED_STEPS, 1).mean(1) for kind, curve in curves.items()}
    lowered = {kind: (curves[kind][0] / curve[-1]).item() for kind, curve in smooth.items()}
    distance = {kind: (curve - smooth["float32"]).abs().mean().item() for kind, curve in smooth.items()}
    limit = 1.5 * max(distance["nudged"], distance["peer"]) + DISTANCE
    good = all(ratio >= LEARNED for ratio in lowered.values()) and distance["fa3"] <= limit
    print("first loss / last: " + ", ".join(f"{kind} {x:.2f}" for kind, x in lowered.items()) + f"; least {LEARNED}")
    print("mean distance from float32: " + ", ".join(f"{kind} {x:.5f}" for kind, x in distance.items())
          + f"; at most {limit:.5f}   {'ok' if good else 'FAILED'}", flush=True)  # fmt: skip
    return good


# ---- again ----


def check_again(name, sizes, kinds, text, options):
    (batch,) = batches(text, sizes, 1, options.seed, options.device)
    model = make(sizes, text, options)
    torch.use_deterministic_algorithms(True)
    one, two = (gradients(model, batch, kinds["fa3"], torch.bfloat16) for _ in range(2))
    torch.use_deterministic_algorithms(False)
    different = [x for x in one if not torch.equal(one[x], two[x])]
    print(f"again {name}: {len(different)} of {len(one) - 1} gradients differ   {'FAILED' if different else 'ok'}")
    return not different


CHECKS = {"step": check_step, "run": check_run, "again": check_again}


def write(path, rows):
    name, driver = card.name_and_driver()
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%MZ")
    with open(path, "w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("kind", "model", "dtype", "of", "float32", "flex", "fa3", "card", "driver", "date"))
        for *named, float32, flex, ours in rows:
            numbers = [f"{x:.5g}" if x != "" else "" for x in (float32, flex, ours)]
            table.writerow((*named, *numbers, name, driver, date))


def known(parser, given, names, what):
    if unknown := set(given.split(",")) - set(names):
        parser.error(f"unknown {what}: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    return given.split(",")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", help="libfa3.so (default: FA3_LIBRARY, or the newest build)")
    parser.add_argument("--parts", default=",".join(CHECKS), help="(default: %(default)s)")
    parser.add_argument("--models", default=",".join(MODELS), help="(default: %(default)s)")
    parser.add_argument("--dtypes", default="bf16", help=f"of step, from {','.join(DTYPES)} (default: %(default)s)")
    parser.add_argument("--softcap", type=float, help="of the scores (default: the model's; only Gemma has one)")
    parser.add_argument("--steps", type=number_of_steps, default=200, help=f"of run, at least {SMOOTHED_STEPS}")
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="of run (default: %(default)s)")
    parser.add_argument("--csv", metavar="FILE", help="write errors and losses")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cpu", action="store_true", help="small models on the library's CPU reference, beside plain "
                        "operations in 16 bits, as FlexAttention has no gradients on the CPU")  # fmt: skip
    options = parser.parse_args(arguments)
    parts, models = (known(parser, options.parts, CHECKS, "parts"), known(parser, options.models, MODELS, "models"))
    known(parser, options.dtypes, DTYPES, "dtypes")
    if options.softcap and "softcap" not in fa3._calls.arguments.NAMES["attention"]:
        parser.error("--softcap: this library has none")
    if not options.cpu and not torch.cuda.is_available():
        print("SKIPPED: torch finds no GPU (--cpu checks this script with the CPU reference)")
        return 77

    # What is not attention must be float32 throughout, not TF32.
    torch.backends.cuda.matmul.allow_tf32 = False
    fa3.load(prepared.newest_build(options.library))
    options.device, options.peer = ("cpu", "plain operations") if options.cpu else ("cuda", "FlexAttention")
    print(f"torch {torch.__version__}, {'CPU reference' if options.cpu else torch.cuda.get_device_name()}")
    text, options.rows, good = made_up_text(options.seed, 10_000 if options.cpu else 500_000), [], True
    for name in models:
        sizes, start = (ON_CPU if options.cpu else MODELS)[name], time.monotonic()
        if options.softcap is not None:
            sizes = sizes._replace(softcap=options.softcap)
        kinds = {"peer": (Plain if options.cpu else Flex)(sizes), "fa3": Fa3(sizes)}
        for part in parts:
            good = CHECKS[part](name, sizes, kinds, text, options) and good
            if options.csv:  # now, so that a run cut short keeps what it has
                write(options.csv, options.rows)
        print(f"{name}: {time.monotonic() - start:.0f} s", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
