#!/usr/bin/env python3
"""Training with the attention of libfa3.so, forward and backward, in PyTorch.

step: one training step of a Llama-style model from transformers (random weights and tokens, GQA), in bf16 and in fp16.
The losses of the tokens, the gradients of all parameters together, and that of every projection to and from an
attention must be as close to the same step in float32 as with torch's own attention (sdpa, and eager): relative RMS
error at most 1.25 times the smaller of the two, plus a floor of a hundredth of the dtype's unit roundoff, for a single
projection of one unit roundoff.

run: a small GPT (GQA, its attention in bf16, all else in float32) learns a made-up language character by character,
four times from the same weights on the same batches: with torch's sdpa in float32 and in bf16, and with the library in
bf16 and in FP8 (its products forward; gradients of what they are products of). Each loss must end at less than 1 / 2.5
of its first value. Smoothed, the library's losses must be as close to those in float32 as sdpa's in bf16 are: mean
distance at most 1.5 times theirs, plus 0.01.

Exit status 0, 1 if a comparison fails, 77 if there is no GPU or no torch.
"""

import argparse
import math
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tools/peers"))
import llama  # noqa: E402
import prepared  # noqa: E402
from prepared import fa3  # noqa: E402

try:
    import torch
    import transformers
except ImportError as error:
    print(f"SKIPPED: needs torch and transformers: {error}")
    sys.exit(77)

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
# Not the default 1 / sqrt(head_dim), so that a scale that gets lost on its way is noticed.
SCALE_FACTOR = 1.5
# The loss is multiplied by this before the gradients are computed, and they are divided by it: fp16 has no numbers as
# small as some gradients of a mean over thousands of tokens.
LOSS_SCALE = 2.0**14
SMOOTHED_STEPS, LEARNED, WARMUP_STEPS, PRINTED_STEPS = 20, 2.5, 20, 25
# Option: its default on a GPU, and with --cpu. gpt and steps are of run, the others of step.
SIZES = {
    **{"hidden": (2048, 256), "heads": (16, 4), "kv_heads": (4, 2), "head_dim": (128, 64), "layers": (4, 2)},
    **{"vocabulary": (32000, 1000), "batch": (2, 2), "seqlen": (2048, 256)},
    **{"gpt": ([4, 8, 4, 64, 256, 16], [2, 4, 2, 32, 64, 16]), "steps": (400, 200)},
}


class Attention(llama.Attention):
    """The library's causal attention, as transformers calls it; `run` is the same for tensors of (batch, seqlen, heads,
    head_dim). Both passes are counted."""

    def __init__(self):
        self.passes = [0, 0]

    def run(self, q, k, v, scale, call=fa3.attention):
        self.passes[0] += 1
        o = call(q, k, v, causal=True, softmax_scale=scale)
        o.register_hook(self.count_backward)
        return o

    def run_fp8(self, q, k, v, scale):
        return self.run(q, k, v, scale, fa3.attention_fp8)

    def count_backward(self, dout):
        self.passes[1] += 1


# ---- step ----


def training_step(model, tokens, attention):
    """{"loss": the loss of each token, name of a parameter: its gradient}, in float32."""
    model.set_attn_implementation(attention)
    assert model.config._attn_implementation == attention, model.config._attn_implementation
    model.zero_grad(set_to_none=True)
    logits = model(input_ids=tokens, use_cache=False).logits.float()
    # After the last token comes the first one, so that no row of the gradients is zero.
    targets = tokens.roll(-1, dims=1)
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    (losses.mean() * LOSS_SCALE).backward()
    gradients = {name: parameter.grad.float() / LOSS_SCALE for name, parameter in model.named_parameters()}
    return {"loss": losses.detach(), **gradients}


def step_errors(found, reference):
    """Relative RMS errors: of "loss", of "all" gradients together, and of each projection's by its name."""
    squares = {}
    for name, exact in reference.items():
        squares[name] = torch.stack([x.double().square().sum() for x in (found[name] - exact, exact)])
    squares["all"] = sum(pair for name, pair in squares.items() if name != "loss")
    chosen = [name for name in squares if name in ("loss", "all") or any(part in name for part in PROJECTIONS)]
    return {name: (squares[name][0] / squares[name][1]).sqrt().item() for name in chosen}


def print_row(start, mean_loss, errors, form, end=""):
    """One number for each column, of a projection that of its worst layer; NaN is the worst of all."""
    columns = [[x for name, x in errors.items() if column in name] for column in ("loss", "all", *PROJECTIONS)]
    worst = [max(column, key=lambda x: math.inf if math.isnan(x) else x) for column in columns]
    print(f"{start:13s} {mean_loss:9s} {' '.join(format(x, form) for x in worst)}{end}", flush=True)


def compare_step(dtype, attention, options):
    """Prints this dtype's lines of the table; True if the rule holds."""
    model, tokens = llama.build(options)
    for layer in model.model.layers:
        layer.self_attn.scaling = SCALE_FACTOR / math.sqrt(options.head_dim)
    model.to(DTYPES[dtype]).to(torch.float32)  # float32 arithmetic on the weights that the 16-bit runs have
    reference = training_step(model, tokens, "eager")
    model.to(DTYPES[dtype])
    errors = {}
    for which in ("sdpa", "eager", "fa3"):
        attention.passes = [0, 0]
        found = training_step(model, tokens, which)
        errors[which] = step_errors(found, reference)
        print_row(f"{dtype:5s} {which}", f"{found['loss'].mean():.5f}", errors[which], "10.3e")
    assert attention.passes == [options.layers] * 2, f"{attention.passes} passes in {options.layers} layers"
    ratios = {}
    for name, error in errors["fa3"].items():
        floor = llama.UNIT_ROUNDOFF[dtype] * (0.01 if name in ("loss", "all") else 1)
        ratios[name] = error / (1.25 * min(errors["sdpa"][name], errors["eager"][name]) + floor)
    good = all(ratio <= 1 for ratio in ratios.values())
    print_row(f"{dtype:5s} of limit", "", ratios, "10.2f", f"   {'ok' if good else 'FAILED'}")
    return good


def check_step(attention, options):
    transformers.AttentionInterface.register("fa3", attention)
    print(
        f"step: Llama-style, {options.layers} layers, hidden {options.hidden}, {options.heads} heads over "
        f"{options.kv_heads}, head_dim {options.head_dim}, batch {options.batch}, {options.seqlen} tokens; "
        f"transformers {transformers.__version__}"
    )
    print("relative RMS errors of the tokens' losses and of gradients; of projections, the worst layer's")
    print(f"{'':13s} {'mean loss':9s} " + " ".join(f"{column:>10s}" for column in ("losses", "all", *PROJECTIONS)))
    return all([compare_step(dtype, attention, options) for dtype in DTYPES])


# ---- run ----


def made_up_text(seed, length):
    """Sentences of made-up words, quotations said twice, brackets that close in order, and sums."""
    draw = random.Random(seed)
    syllables = [consonant + vowel for consonant in "klmnprst" for vowel in "aeio"]
    words = ["".join(draw.choices(syllables, k=draw.randint(2, 3))) for _ in range(36)]
    nouns, verbs = words[:24], words[24:]
    verbs_of = {noun: draw.sample(verbs, 3) for noun in nouns}

    def sentence():
        noun = draw.choice(nouns)
        return f"{noun} {draw.choice(verbs_of[noun])} {draw.choice(nouns)}. "

    def quotation():
        said = "".join(draw.choices("bdfghjvw", k=draw.randint(3, 8)))
        return f'"{said}" "{said}". '

    def brackets():
        opened = draw.choices(["()", "[]", "{}"], k=draw.randint(2, 6))
        return "".join(pair[0] for pair in opened) + "".join(pair[1] for pair in reversed(opened)) + " "

    def addition():
        a, b = draw.randint(0, 49), draw.randint(0, 49)
        return f"{a}+{b}={a + b}. "

    pieces, total = [], 0
    while total < length:
        pieces.append(draw.choices((sentence, quotation, brackets, addition), weights=(5, 2, 1, 2))[0]())
        total += len(pieces[-1])
    return "".join(pieces)


class Block(torch.nn.Module):
    """attend: a function of q, k and v, (batch, seqlen, heads, head_dim) in `dtype`, and of the softmax scale."""

    def __init__(self, heads, kv_heads, head_dim, attend, dtype):
        super().__init__()
        width = heads * head_dim
        self.heads = [heads, kv_heads, kv_heads]
        self.attend, self.dtype, self.scale = attend, dtype, SCALE_FACTOR / math.sqrt(head_dim)
        self.norm, self.mlp_norm = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv = torch.nn.Linear(width, sum(self.heads) * head_dim, bias=False)
        self.out = torch.nn.Linear(width, width, bias=False)
        up, down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)
        self.mlp = torch.nn.Sequential(up, torch.nn.GELU(), down)

    def forward(self, x):
        # q, k and v are slices of one tensor, so their rows are not adjacent.
        qkv = self.qkv(self.norm(x)).to(self.dtype).unflatten(-1, (sum(self.heads), -1)).split(self.heads, dim=2)
        x = x + self.out(self.attend(*qkv, self.scale).flatten(2).to(x.dtype))
        return x + self.mlp(self.mlp_norm(x))


class Gpt(torch.nn.Module):
    def __init__(self, vocabulary, context, layers, heads, kv_heads, head_dim, attend, dtype):
        super().__init__()
        width = heads * head_dim
        self.tokens, self.positions = torch.nn.Embedding(vocabulary, width), torch.nn.Embedding(context, width)
        for embedding in (self.tokens, self.positions):
            torch.nn.init.normal_(embedding.weight, std=0.02)
        blocks = (Block(heads, kv_heads, head_dim, attend, dtype) for _ in range(layers))
        self.blocks = torch.nn.Sequential(*blocks, torch.nn.LayerNorm(width))
        self.head = torch.nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        return self.head(self.blocks(self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]))


def sdpa(q, k, v, scale):
    repeats = q.shape[2] // k.shape[2]
    q, k, v = (x.transpose(1, 2) for x in (q, k.repeat_interleave(repeats, 2), v.repeat_interleave(repeats, 2)))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale).transpose(1, 2)


def fit(model, batches, loss_of, options):
    """The loss of each step; loss_of: of a batch."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate, betas=(0.9, 0.95))
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / WARMUP_STEPS))
    losses = []
    for batch in batches:
        loss = loss_of(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        warmup.step()
        losses.append(loss.detach())
    return torch.stack(losses).double().cpu()


def train(batches, vocabulary, attend, dtype, options):
    layers, heads, kv_heads, head_dim, context, _ = options.gpt
    torch.manual_seed(options.seed)
    model = Gpt(vocabulary, context, layers, heads, kv_heads, head_dim, attend, dtype).to(options.device)

    def loss_of(batch):
        logits = model(batch[:, :-1])
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())

    return fit(model, batches, loss_of, options)


def check_run(attention, options):
    layers, heads, kv_heads, head_dim, context, batch = options.gpt
    text = made_up_text(options.seed, 500_000)
    characters = sorted(set(text))
    numbers = torch.tensor([characters.index(character) for character in text])
    torch.manual_seed(options.seed)
    starts = torch.randint(0, len(text) - context, (options.steps, batch, 1))
    batches = numbers[starts + torch.arange(context + 1)].to(options.device)
    print(
        f"run: GPT, {layers} layers, {heads} heads over {kv_heads}, head_dim {head_dim}, context {context}, batch "
        f"{batch}, {len(characters)} characters, {options.steps} steps, as in: {text[:60]}"
    )
    attention.passes = [0, 0]
    kinds = {
        **{"float32": (sdpa, torch.float32), "sdpa": (sdpa, torch.bfloat16)},
        **{"fa3": (attention.run, torch.bfloat16), "fp8": (attention.run_fp8, torch.bfloat16)},
    }
    curves = {name: train(batches, len(characters), *kind, options) for name, kind in kinds.items()}
    assert attention.passes == [2 * layers * options.steps] * 2, f"{attention.passes} passes"
    rows = list(enumerate(zip(*(curve.tolist() for curve in curves.values()))))
    if options.csv:
        lines = [f"{step},{','.join(map(repr, row))}\n" for step, row in rows]
        pathlib.Path(options.csv).write_text(f"step,{','.join(curves)}\n" + "".join(lines))
    print(f"{'step':>5s} " + " ".join(f"{name:>9s}" for name in curves))
    for step, row in rows:
        if step % PRINTED_STEPS == 0 or step == options.steps - 1:
            print(f"{step:5d} " + " ".join(f"{loss:9.4f}" for loss in row))
    smooth = {name: curve.unfold(0, SMOOTHED_STEPS, 1).mean(1) for name, curve in curves.items()}
    lowered = {name: (curves[name][0] / curve[-1]).item() for name, curve in smooth.items()}
    distance = {name: (smooth[name] - smooth["float32"]).abs().mean().item() for name in ("sdpa", "fa3", "fp8")}
    limit = 1.5 * distance["sdpa"] + 0.01
    good = all(ratio >= LEARNED for ratio in lowered.values()) and all(x <= limit for x in distance.values())
    ratios = ", ".join(f"{name} {ratio:.2f}" for name, ratio in lowered.items())
    distances = ", ".join(f"{name} {x:.5f}" for name, x in distance.items())
    print(f"first loss / last: {ratios}; at least {LEARNED}")
    print(f"mean distance from float32: {distances}; at most {limit:.5f}   {'ok' if good else 'FAILED'}", flush=True)
    return good


CHECKS = {"step": check_step, "run": check_run}


def number_of_steps(text):
    if int(text) < SMOOTHED_STEPS:
        raise argparse.ArgumentTypeError(f"{text} are fewer than the {SMOOTHED_STEPS} over which losses are smoothed")
    return int(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", help="libfa3.so (default: FA3_LIBRARY, or the newest build)")
    parser.add_argument("--parts", default=",".join(CHECKS), help="(default: %(default)s)")
    parser.add_argument("--gpt", type=int, nargs=6, help="layers, heads, K/V heads, head_dim, context and batch of run")
    parser.add_argument("--steps", type=number_of_steps, help=f"of run, at least {SMOOTHED_STEPS}")
    for name in [name for name in SIZES if name not in ("gpt", "steps")]:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int)
    parser.add_argument("--initializer-range", type=float, default=0.03, help="of step: larger is less uniform")
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="of run")
    parser.add_argument("--csv", metavar="FILE", help="write the losses of run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cpu", action="store_true", help="the library's CPU reference; small sizes by default")
    on_cpu = parser.parse_args().cpu
    parser.set_defaults(**{name: defaults[on_cpu] for name, defaults in SIZES.items()})
    options = parser.parse_args()
    if unknown := set(options.parts.split(",")) - CHECKS.keys():
        parser.error(f"unknown parts: {', '.join(sorted(unknown))}")
    options.device, options.bias = "cpu" if options.cpu else "cuda", 0
    if not options.cpu and not torch.cuda.is_available():
        print("SKIPPED: torch finds no GPU (--cpu checks this script with the CPU reference)")
        return 77

    # The reference must be float32 throughout, not TF32.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    fa3.load(prepared.newest_build(options.library))
    attention = Attention()
    print(f"torch {torch.__version__}, {'CPU reference' if options.cpu else torch.cuda.get_device_name()}")
    return 0 if all([CHECKS[part](attention, options) for part in options.parts.split(",")]) else 1


if __name__ == "__main__":
    sys.exit(main())
