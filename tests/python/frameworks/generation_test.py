"""Tiny models of transformers whose attention has windows, chunks, sinks, softcap or MLA, with
attn_implementation="fa3" against "eager": padded batches with their gradients, packed sequences, and generation with
padding, caches that grow and those of fixed size, beams, prefixes and assistants. Argument: the library. Skipped
without torch and transformers."""

import copy
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support import fa3, need, refused  # noqa: E402

need("torch", "transformers")
import torch  # noqa: E402
import transformers  # noqa: E402
from tiny_models import DTYPES, HOPPER, build, close, tokens, without  # noqa: E402
from transformers import masking_utils  # noqa: E402

fa3.load(sys.argv[1])
fa3.register_transformers()
torch.set_num_threads(1)
torch.use_deterministic_algorithms(True, warn_only=True)  # what is not written is NaN
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 4}  # all, as a choice is one of roundings in 16 bits
MLA = {"q_lora_rank": 32, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 24}
KINDS = {
    "Llama": {},
    "Mistral": {"sliding_window": 6},
    "Gemma2": {"sliding_window": 6, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 16},
    "GptOss": {"sliding_window": 6, **EXPERTS},
    "Llama4": {"attention_chunk_size": 5, "intermediate_size_mlp": 96, "no_rope_layers": [1, 0], **EXPERTS},
    "DeepseekV3": {**MLA, "head_dim": 8, "num_key_value_heads": 4, "n_routed_experts": 4, "n_group": 1, "topk_group": 1,
                   "num_experts_per_tok": 4, "first_k_dense_replace": 1, "moe_intermediate_size": 32},
}  # fmt: skip
# Those that do not give their masks position_ids, as gpt-oss does not either.
TOLD_LATE = {"OPT": {"ffn_dim": 96, "word_embed_proj_dim": 64}, "BioGpt": {},
             "Afmoe": {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"], "num_experts": 4,
                       "num_experts_per_tok": 4, "num_dense_layers": 1, "moe_intermediate_size": 32}}  # fmt: skip
VERSION = tuple(map(int, transformers.__version__.split(".")[:2]))
COMPILED = ("Llama", "GptOss")  # the others would take as long again
WHOLE = ("Llama", "DeepseekV3")  # those whose queries see all keys before them
ALL = {**KINDS, **TOLD_LATE}
both = lambda device, dtype, kind: [build(device, dtype, name, kind, **ALL[kind]) for name in ("eager", "fa3")]


def padded(device, dtype, kind):
    x = tokens(device)
    ones = torch.ones_like(x)
    sides = {"left": slice(0, 4), "right": slice(15, 21)}
    masks = {side: without(ones, columns) for side, columns in sides.items()}
    masks["left and right"] = masks["left"] * masks["right"]
    inside = without(ones, slice(5, 9))
    models = both(device, dtype, kind)
    if kind in WHOLE:
        masks["inside"] = inside
    else:
        refused(NotImplementedError, "attention_mask has padding inside", models[1], x, attention_mask=inside)
    for name, mask in masks.items():
        real, logits, gradients = mask.bool(), [], []
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        for model in models:
            model.zero_grad()
            out = model(x, attention_mask=mask, position_ids=positions, use_cache=False).logits[real]
            out.float().square().mean().backward()
            logits.append(out.detach())
            gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
            with torch.no_grad():  # where nothing is copied
                how = {"attention_mask": mask, "position_ids": positions, "use_cache": False}
                close(model(x, **how).logits[real], out.detach(), dtype, f"{kind}, padding {name}, without gradients")
        close(logits[1], logits[0], dtype, f"{kind}, padding {name}")
        roundoffs = 256 if dtype == torch.float32 else 64  # both are up to 240 from float64, and the CPU changes which
        close(gradients[1], gradients[0], dtype, f"{kind}, gradients of padding {name}", roundoffs=roundoffs)


def packed(device, dtype, kind):
    """Documents one behind the other are computed as each alone: told by their positions, with a cache and without,
    with a mask of ones, or also by their lengths."""
    x = tokens(device)
    if kind == "Llama4" and not hasattr(masking_utils, "packed_sequence_compatibility_function"):
        return  # the first releases of transformers cut sequences where the row of all of them has its chunks
    theirs, ours = both(device, dtype, kind)
    rows = ((9, 12), (1, 13, 7))
    positions = torch.stack([torch.cat([torch.arange(n) for n in ns]) for ns in rows]).to(device)
    lengths = torch.tensor([0, 9, 21], dtype=torch.int32, device=device)
    given = {"cu_seq_lens_q": lengths, "cu_seq_lens_k": lengths, "max_length_q": 12, "max_length_k": torch.tensor(12)}
    with torch.no_grad():
        alone = lambda row, ns: [theirs(part[None], use_cache=False).logits for part in row.split(ns)]
        expected = torch.cat([torch.cat(alone(row, ns), 1) for row, ns in zip(x, rows)])
        found = ours(x[:1], position_ids=positions[:1], use_cache=False, **given).logits
        close(found, expected[:1], dtype, f"{kind}, packed with lengths")
        ones = torch.ones_like(x)
        for how in ({"use_cache": False}, {"use_cache": True}, {"attention_mask": ones}):
            found = ours(x, position_ids=positions, **how).logits
            close(found, expected, dtype, f"{kind}, packed, {[*how]}")


def generated(kind):
    """The same tokens, in float32, where no two are as likely up to roundings."""
    theirs, ours = both("cpu", torch.float32, kind)

    def same(name, run):  # of theirs, and of ours
        try:
            expected = run(0)
        except (RuntimeError, TypeError) as error:  # of releases before
            if VERSION >= (5, 23):
                raise
            return print(f"SKIPPED: {kind}, {name}: transformers' own attention fails: {error}")
        found = run(1)
        assert torch.equal(found, expected), (kind, name, found, expected)

    x = tokens("cpu", seqlen=11)
    mask = without(torch.ones_like(x), slice(0, 4))
    x[mask == 0] = 0
    how = {"max_new_tokens": 9, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    on_all = transformers.CompileConfig(fullgraph=True, backend="eager")
    on_all._compile_all_devices = True  # as it is on a GPU
    ways = {
        "padding": {"attention_mask": mask},
        "a cache of fixed size": {"attention_mask": mask, "cache_implementation": "static"},
        "a cache of fixed size, compiled": {"attention_mask": mask, "cache_implementation": "static",
                                            "compile_config": on_all},
        "no padding, compiled": {"cache_implementation": "static", "compile_config": on_all},
        "beams": {"attention_mask": mask, "num_beams": 3},
        "chunks of the prompt": {"attention_mask": mask, "prefill_chunk_size": 4},
        "tokens from the prompt": {"prompt_lookup_num_tokens": 2},
    }  # fmt: skip
    if kind in WHOLE:
        ways["padding inside"] = {"attention_mask": without(mask, slice(6, 8))}
        ways["padding inside, a cache of fixed size"] = {**ways["padding inside"], "cache_implementation": "static",
                                                         "prefill_chunk_size": 4}  # fmt: skip
    for name, way in ways.items():
        if "compile_config" in way and kind not in COMPILED:
            continue
        torch.compiler.reset()
        given = x[:1] if name == "tokens from the prompt" else x
        same(name, lambda n: (theirs, ours)[n].generate(given, **how, **way))
    helpers = [build("cpu", torch.float32, name, kind, **KINDS[kind]) for name in ("eager", "fa3")]
    with torch.no_grad():
        for helper in helpers:  # right often, and not always
            for p in helper.parameters():
                p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(5)), alpha=0.05)
    same("an assistant", lambda n: (theirs, ours)[n].generate(x[:1, 4:], **how, assistant_model=helpers[n]))
    results = []
    for model in (theirs, ours):
        with torch.no_grad():
            prefix = model(x[:1, 4:9], past_key_values=transformers.DynamicCache(config=model.config)).past_key_values
        prompts = [torch.cat([x[:1, 4:9], end[None]], 1) for end in x[:, 9:]]
        results.append([model.generate(ids, past_key_values=copy.deepcopy(prefix), **how) for ids in prompts])
    assert all(torch.equal(*pair) for pair in zip(*results)), (kind, "a prefix", results)


for device in ("cpu", "cuda") if HOPPER else ("cpu",):
    for kind in KINDS:
        padded(device, DTYPES[device][0], kind)
        packed(device, DTYPES[device][0], kind)
    for kind in TOLD_LATE:
        if hasattr(transformers, f"{kind}Config"):
            packed(device, DTYPES[device][0], kind)
if VERSION < (5, 9):
    print(f"SKIPPED: generation: transformers {transformers.__version__} has other ways of it before 5.9")
else:
    for kind in KINDS:
        generated(kind)
if not HOPPER:
    print("SKIPPED: the cases for CUDA tensors: torch finds no GPU of compute capability 9.0")
print(f"{', '.join(KINDS)} as transformers' own")
