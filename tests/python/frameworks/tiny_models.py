"""Tiny models of transformers with random weights, their inputs, and how close results must be, for several tests."""

import torch
import transformers

VOCABULARY = 97
DTYPES = {"cpu": (torch.float32, torch.bfloat16), "cuda": (torch.bfloat16, torch.float16)}
ROUNDOFF = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


def build(device, dtype, attention, kind="Llama", **more):
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
             "max_position_embeddings": 128}  # fmt: skip
    text = "Text" * (kind == "Llama4")
    config = getattr(transformers, f"{kind}{text}Config")(**{**sizes, "initializer_range": 0.2, **more})
    config._attn_implementation = attention
    torch.manual_seed(1)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval().to(device, dtype)
    assert model.config._attn_implementation == attention
    for module in model.modules():
        if hasattr(module, "scaling"):  # not the default, which would come by itself
            module.scaling *= 1.5
    return model


def tokens(device, batch=2, seqlen=21, seed=2):
    return torch.randint(1, VOCABULARY, (batch, seqlen), generator=torch.Generator().manual_seed(seed)).to(device)


def rms(x):
    return x.double().square().mean().sqrt().item()


def close(found, theirs, dtype, what, exact=None, roundoffs=64):
    """Both round each layer's activations. In 16 bits ours may be 1.25 times as far from float32 as theirs, plus a
    hundredth of a roundoff; where that is not known, and in float32, they may differ by roundoffs of the largest."""
    assert found.shape == theirs.shape and found.dtype == theirs.dtype, what
    if exact is not None and dtype != torch.float32:
        errors = [rms(x.double() - exact) / rms(exact) for x in (found, theirs)]
        assert errors[0] <= 1.25 * errors[1] + 0.01 * ROUNDOFF[dtype], (what, errors)
    error = (found.double() - theirs.double()).abs().max() / theirs.double().abs().max()
    assert error <= roundoffs * ROUNDOFF[dtype], (what, error.item())


def without(mask, columns):
    """The mask, with padding in the second sequence."""
    mask = mask.clone()
    mask[1, columns] = 0
    return mask
