#!/usr/bin/env python3
"""A Llama-style model from transformers (random weights, GQA, prefill) with its attention replaced by libfa3.so.

The model's logits with the library's attention must be as close to the same model in float32 as the logits with its
own attention (sdpa, and eager) are: relative RMS error at most 1.25 times the smaller of the two, plus a floor of a
hundredth of the dtype's unit roundoff; and the largest error at most 1.25 times, plus a floor of one unit roundoff of
the largest logit. In bf16 and fp16. Exit status 0, 1 if a comparison fails, 77 if there is no GPU or no transformers.

FP8: the model in bf16, each attention quantized and computed in e4m3 (scales for blocks of 64 rows, incoherent
processing, V without its mean; rotary embedding stays in the model). Beside it stands the official FlashAttention-3
(wheel fa3-fwd), if it can be imported, in e4m3 with one scale for a tensor, and for each head. Ours may be at most 1.1
times as far from float32 as the better of these two.
"""

import argparse
import math
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tools/peers"))
import prepared  # noqa: E402
from prepared import fa3  # noqa: E402

UNIT_ROUNDOFF = {"bf16": 2.0**-9, "fp16": 2.0**-12}


class Attention:
    """transformers' attention function by `run`, which takes and returns (batch, seqlen, heads, head_dim); counted."""

    calls = 0

    def __call__(self, module, query, key, value, attention_mask=None, dropout=0.0, scaling=None, **_):
        assert attention_mask is None and dropout == 0.0 and module.is_causal, "only plain causal attention is replaced"
        # The transposed views are just strides to the library: nothing is copied.
        q, k, v = (tensor.transpose(1, 2) for tensor in (query, key, value))
        self.calls += 1
        return self.run(q, k, v, scaling), None


class Fa3(Attention):
    """As fa3.register_transformers has it."""

    def run(self, q, k, v, scale):
        return fa3.attention(q, k, v, causal=True, softmax_scale=scale)


class Fp8(Attention):
    """Quantized and computed in e4m3."""

    def run(self, q, k, v, scale):
        return prepared.fp8_attention(q, k, v, causal=True, softmax_scale=scale)


class OfficialFp8(Attention):
    """The official kernel in e4m3, a scale for each tensor, or for each head of K and the heads of Q that read it."""

    def __init__(self, per_head):
        from fa3_fwd_interface import flash_attn_func

        self.attend, self.per_head = flash_attn_func, per_head

    def quantized(self, x, kv_heads):
        """(numbers, their scales as (batch, kv_heads))"""
        import torch

        batch, seqlen, heads, head_dim = x.shape
        groups = x.reshape(batch, seqlen, kv_heads, heads // kv_heads, head_dim).float()
        scale = groups.abs().amax((1, 3, 4)) / 448
        if not self.per_head:
            scale = scale.amax().expand(batch, kv_heads).contiguous()
        return (groups / scale[:, None, :, None, None]).to(torch.float8_e4m3fn).view(x.shape), scale

    def run(self, q, k, v, scale):
        (q, q_descale), (k, k_descale), (v, v_descale) = (self.quantized(x, k.shape[2]) for x in (q, k, v))
        descales = {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}
        result = self.attend(q, k, v, softmax_scale=scale, causal=True, **descales)
        return result[0] if isinstance(result, (tuple, list)) else result


class Dump(Attention):
    """Another attention, which keeps q, k and v of the first batch entry in each layer."""

    def __init__(self, attention):
        self.attention, self.layers = attention, []

    def run(self, q, k, v, scale):
        self.layers.append((f"layer {len(self.layers)}", *(x[:1].clone() for x in (q, k, v))))
        return self.attention.run(q, k, v, scale)


def build(options):
    import torch
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=options.vocabulary,
        hidden_size=options.hidden,
        intermediate_size=options.hidden * 11 // 4,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        num_key_value_heads=options.kv_heads,
        head_dim=options.head_dim,
        max_position_embeddings=max(2048, options.seqlen),
        attention_bias=options.bias > 0,
        use_cache=False,
        initializer_range=options.initializer_range,
    )
    torch.manual_seed(options.seed)
    with torch.device(options.device):
        model = transformers.LlamaForCausalLM(config).eval()
        with torch.no_grad():
            for layer in model.model.layers if options.bias > 0 else ():
                for projection in (layer.self_attn.k_proj, layer.self_attn.v_proj):
                    projection.bias.normal_(0, options.bias)
        tokens = torch.randint(0, options.vocabulary, (options.batch, options.seqlen))
    return model, tokens


def logits_of(model, tokens, attention):
    import torch

    model.set_attn_implementation(attention)
    assert model.config._attn_implementation == attention, model.config._attn_implementation
    with torch.no_grad():
        return model(input_ids=tokens, use_cache=False).logits.float()


def errors(logits, reference):
    difference = (logits - reference).double()
    return (
        difference.square().mean().sqrt() / reference.double().square().mean().sqrt()
    ).item(), difference.abs().max().item()


def compare(name, dtype, model, tokens, attention, reference, options):
    """Prints this dtype's lines of the table; True if the rule holds."""
    import torch

    model.to(dtype)
    own = {which: errors(logits_of(model, tokens, which), reference) for which in ("sdpa", "eager")}
    attention.calls = 0
    logits = logits_of(model, tokens, "fa3")
    assert attention.calls == options.layers, (
        f"the library was called {attention.calls} times in {options.layers} layers"
    )
    rms, largest = errors(logits, reference)
    agreement = (logits.argmax(-1) == reference.argmax(-1)).double().mean().item()
    for which, (own_rms, own_largest) in own.items():
        print(f"{name:5s} {which:6s} {own_rms:12.4e} {own_largest:12.4e}")
    u = UNIT_ROUNDOFF[name]
    rms_limit = 1.25 * min(e[0] for e in own.values()) + 0.01 * u
    largest_limit = 1.25 * min(e[1] for e in own.values()) + u * reference.abs().max().item()
    good = math.isfinite(rms) and rms <= rms_limit and largest <= largest_limit
    print(
        f"{name:5s} {'fa3':6s} {rms:12.4e} {largest:12.4e}   limits {rms_limit:.4e} {largest_limit:.4e}   "
        f"same top token in {100 * agreement:.2f}%   {'ok' if good else 'FAILED'}",
        flush=True,
    )
    return good


def compare_fp8(model, tokens, attentions, reference, options):
    """The same of FP8, for a model in bf16. attentions: {name: its attention}; the first is the library's."""
    found = {"bf16": errors(logits_of(model, tokens, "sdpa"), reference)}
    for name, attention in attentions.items():
        attention.calls = 0
        logits = logits_of(model, tokens, name)
        assert attention.calls == options.layers, f"{name} was called {attention.calls} times"
        found[name] = errors(logits, reference)
    ours, *rivals = attentions
    limit = 1.1 * min((found[name][0] for name in rivals), default=math.inf)
    good = math.isfinite(found[ours][0]) and found[ours][0] <= limit
    for name, (rms, largest) in found.items():
        end = f"   limit {limit:.4e}   {'ok' if good else 'FAILED'}" if name == ours else ""
        print(f"{'fp8':5s} {name:20s} {rms:12.4e} {largest:12.4e}{end}", flush=True)
    return good


def fp8_attentions(options):
    """By the names that the model knows them by."""
    found = {"fa3_fp8": Fp8()}
    try:
        if not options.cpu:
            found.update(official_fp8_tensor=OfficialFp8(False), official_fp8_head=OfficialFp8(True))
    except Exception as error:  # a package may fail to import in any way
        print(f"NO OFFICIAL KERNEL: {type(error).__name__}: {error}")
    return found


def dump(model, tokens, attention, path):
    import torch
    import transformers

    attention = Dump(attention)
    transformers.AttentionInterface.register("fa3_dump", attention)
    logits_of(model, tokens, "fa3_dump")
    torch.save(attention.layers, path)
    print(f"{path}: q, k and v of {len(attention.layers)} layers")


def parts(text):
    words = text.split(",")
    if unknown := [word for word in words if word not in PARTS]:
        raise argparse.ArgumentTypeError(f"unknown parts: {', '.join(map(repr, unknown))}")
    return words


PARTS = ("bf16", "fp16", "fp8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", help="libfa3.so (default: FA3_LIBRARY, or the newest build)")
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--seqlen", type=int, default=2048)
    parser.add_argument(
        "--initializer-range", type=float, default=0.03, help="larger weights make attention less uniform"
    )
    parser.add_argument(
        "--bias", type=float, default=0, help="of K and V: N(0, bias^2) a column (0); real models have such means"
    )
    parser.add_argument("--parts", type=parts, default=list(PARTS), help=f"of {','.join(PARTS)} (default: all)")
    parser.add_argument(
        "--dump", metavar="FILE", help="also write q, k and v of every layer, for tools/accuracy --activations"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--cpu", action="store_true", help="the library's CPU reference instead of its kernels (small sizes!)"
    )
    options = parser.parse_args()
    options.device = "cpu" if options.cpu else "cuda"
    try:
        import torch
        import transformers
    except ImportError as error:
        print(f"SKIPPED: needs torch and transformers: {error}")
        return 77
    if not options.cpu and not torch.cuda.is_available():
        print("SKIPPED: torch finds no GPU (--cpu checks this script with the CPU reference)")
        return 77

    # The reference must be float32 throughout, not TF32.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    fa3.load(prepared.newest_build(options.library))
    attention = Fa3()
    transformers.AttentionInterface.register("fa3", attention)
    fp8 = fp8_attentions(options) if "fp8" in options.parts else {}
    for name, attend in fp8.items():
        transformers.AttentionInterface.register(name, attend)

    print(
        f"Llama-style, {options.layers} layers, hidden {options.hidden}, {options.heads} heads over "
        f"{options.kv_heads}, head_dim {options.head_dim}, batch {options.batch}, {options.seqlen} tokens; "
        f"transformers {transformers.__version__}, "
        f"{'CPU reference' if options.cpu else torch.cuda.get_device_name()}"
    )
    print(f"{'':5s} {'':6s} {'rel. RMS':>12s} {'largest':>12s}   logits against the same model in float32")
    good = True
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        if name not in options.parts and not (name == "bf16" and (fp8 or options.dump)):
            continue
        model, tokens = build(options)
        model.to(dtype).to(torch.float32)  # float32 arithmetic on the weights that the 16-bit runs have
        reference = logits_of(model, tokens, "eager")
        if name in options.parts:
            good &= compare(name, dtype, model, tokens, attention, reference, options)
        model.to(dtype)
        if name == "bf16" and fp8:
            good &= compare_fp8(model, tokens, fp8, reference, options)
        if name == "bf16" and options.dump:
            dump(model, tokens, attention, options.dump)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
