"""Tiny models of transformers of many kinds, with random weights: with attn_implementation="fa3" they compute what
"eager" does, or are refused with the model's name: with padding, with caches that grow and those of fixed size, in
windows and chunks shorter than the tokens, and in generation. Arguments: the library; --all for every class of
transformers' auto mappings that builds with these sizes, of which the others are listed, or those of them whose name
has the word after it, ForCausalLM for example. Skipped without torch and transformers."""

import collections
import copy
import inspect
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support import fa3, need  # noqa: E402

need("torch", "transformers")
import torch  # noqa: E402
import transformers  # noqa: E402
from transformers.models.auto import modeling_auto  # noqa: E402

fa3.load(sys.argv[1])
fa3.register_transformers()
transformers.logging.set_verbosity(transformers.logging.CRITICAL)
torch.set_num_threads(1)  # more only wait for each other in models as small as these
ALL = "--all" in sys.argv
if not ALL and tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 9):
    print(f"SKIPPED: transformers {transformers.__version__}: other models than here use attn_implementation before 5.9")
    sys.exit(77)
VOCABULARY, LARGEST = 99, 20_000_000
# What configs call the same few sizes; each takes those that it knows.
SIZES = {
    **dict.fromkeys("hidden_size d_model n_embd dim embed_dim emb_dim projection_dim word_embed_proj_dim".split(), 64),
    **dict.fromkeys("num_hidden_layers num_layers n_layer n_layers".split(), 2),
    **dict.fromkeys("encoder_layers decoder_layers num_decoder_layers".split(), 2),
    **dict.fromkeys("num_attention_heads num_heads n_head n_heads attention_heads".split(), 4),
    **dict.fromkeys("encoder_attention_heads decoder_attention_heads".split(), 4),
    **dict.fromkeys("intermediate_size ffn_dim d_ff encoder_ffn_dim decoder_ffn_dim n_inner hidden_dim".split(), 96),
    **dict.fromkeys("max_position_embeddings n_positions n_ctx max_source_positions max_target_positions".split(), 64),
    **dict.fromkeys("num_experts num_local_experts n_routed_experts moe_num_experts".split(), 4),
    **dict.fromkeys("num_experts_per_tok moe_top_k moe_k moe_topk top_k_experts".split(), 2),
    **{"n_group": 1, "topk_group": 1, "n_shared_experts": 1, "moe_intermediate_size": 32},
    **dict.fromkeys("head_dim global_head_dim d_kv rotary_dim".split(), 16),
    **{"vocab_size": VOCABULARY, "num_key_value_heads": 2},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3},
    **{"image_size": 32, "patch_size": 8},
    **{"sliding_window": 6, "use_sliding_window": True, "attention_chunk_size": 5},  # fewer than there are tokens
    **{"q_lora_rank": 32, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 24},
    # Of Bamba, GPT-Neo and X-MOD alone.
    **{"attn_layer_indices": [1], "attention_types": [[["global", "local"], 1]]},
    **{"languages": ["en_XX"], "default_language": "en_XX"},
}
# What is tried next with a config that does not take these: of MLA, of a layer with attention among many without, of
# sizes that follow from others.
VARIANTS = (
    {},
    {"head_dim": 8, "num_key_value_heads": 4},
    {"num_key_value_heads": 4},
    {"num_hidden_layers": 8, "num_key_value_heads": 4},
    {"head_dim": None},
    {"layer_types": ["full_attention", "sliding_attention"]},
    {"layer_types": ["mamba", "attention"]},
    {"layer_types": ["conv", "full_attention"]},
    {"attention_chunk_size": None},
    {"num_experts_per_tok": 1},
    {"num_kv_shared_layers": 0, "layer_types": ["full_attention", "sliding_attention"]},
    {"hidden_size_per_layer_input": 0},
    {"num_hidden_layers": None},
)
COMPUTED, REFUSED, OWN = "computed", "refused", "computed by code of its own"
PADDED = "refused with padding on the left"
NOT_LISTED = "not in the model's own list of implementations"
EXPECTED = {
    COMPUTED: """LlamaForCausalLM MistralForCausalLM MixtralForCausalLM Qwen3ForCausalLM GPT2LMHeadModel OPTForCausalLM
        GPTNeoXForCausalLM Phi3ForCausalLM BertModel BertLMHeadModel ModernBertModel RobertaModel BartModel
        BartForCausalLM MarianMTModel M2M100Model NllbMoeForConditionalGeneration
        PegasusXForConditionalGeneration ViTModel CLIPTextModel GptOssForCausalLM Gemma2ForCausalLM Llama4ForCausalLM
        DeepseekV2ForCausalLM DeepseekV3ForCausalLM MiniCPM3ForCausalLM LongcatFlashForCausalLM""",
    REFUSED: """BloomForCausalLM XGLMForCausalLM MvpForCausalLM MvpForConditionalGeneration TrOCRForCausalLM
        MptForCausalLM GPTNeoXJapaneseForCausalLM LEDForConditionalGeneration T5ForConditionalGeneration
        DeepseekV32ForCausalLM""",
    PADDED: "BigBirdPegasusForConditionalGeneration MPNetModel RoFormerModel",
    OWN: "OpenAIGPTLMHeadModel",
    NOT_LISTED: "FalconForCausalLM GPTJForCausalLM",
}


def every_class():
    mappings = (name for name in dir(modeling_auto) if name.startswith("MODEL_") and name.endswith("_MAPPING_NAMES"))
    found = (name for mapping in mappings for name in getattr(modeling_auto, mapping).values())
    return sorted({x for name in found for x in ([name] if isinstance(name, str) else name)})


def known(config, sizes):
    """Those sizes that a config knows, and the configs in it."""
    found = {}
    for name, x in sizes.items():
        try:
            getattr(config, name)
        except Exception:  # it does not, or the layers have different ones
            continue
        found[name] = copy.deepcopy(x)
    for name in config.sub_configs:
        if getattr(config, name, None) is not None:
            inner = getattr(config, name)
            found[name] = {"model_type": inner.model_type, **known(inner, sizes)}
    return found


def build(kind, name, variant):
    """A model with the weights that all of its kind have here: large enough that a mask matters."""
    sizes = {name: x for name, x in {**SIZES, **variant}.items() if x is not None}
    config = kind.config_class(**known(kind.config_class(), sizes))
    config._attn_implementation = name
    with torch.device("meta"):
        size = sum(x.numel() for x in kind(copy.deepcopy(config)).parameters())
    assert size <= LARGEST, "too large"
    torch.manual_seed(1)
    model = kind(config).eval().float()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for x in model.parameters():
            if x.dim() >= 2:
                x.copy_(torch.randn(x.shape, generator=generator) * 1.5 / x[0].numel() ** 0.5)
    return model


def runs(model):
    """(what is run, a function of a model, which tokens count or None for all) for what the model takes."""
    takes = inspect.signature(model.forward).parameters
    generator = torch.Generator().manual_seed(3)
    ids = lambda seqlen: torch.randint(5, VOCABULARY - 9, (2, seqlen), generator=generator)
    more = {"decoder_input_ids": ids(9)} if "decoder_input_ids" in takes else {}
    if "input_ids" not in takes:
        pixels = torch.randn(2, 3, 32, 32, generator=generator)
        return [("pixels", lambda model: model(pixel_values=pixels), None)]
    given = {"input_ids": ids(13), **more}
    found = [("tokens", lambda model: model(**given), None)]
    masks = {}
    if "attention_mask" in takes:
        ones = masks["a mask of ones"] = torch.ones_like(given["input_ids"])
        for what, columns in (("padding on the left", slice(0, 4)), ("padding on the right", slice(9, 13))):
            masks[what] = ones.clone()
            masks[what][1, columns] = 0

    def masked(mask):
        filled = lambda padding: {**given, "input_ids": given["input_ids"].where(mask.bool(), padding)}
        return lambda model, padding=4: model(**filled(padding), attention_mask=mask)

    found += [(what, masked(mask), mask.bool()) for what, mask in masks.items()]
    if "past_key_values" in takes and "use_cache" in takes:
        name = "decoder_input_ids" if more else "input_ids"
        end = given[name].shape[1]

        def steps(model, new=lambda config: None):
            cache, parts = new(model.config), []
            for part in (slice(0, 5), slice(5, 6), slice(6, end)):
                out = model(**{**given, name: given[name][:, part]}, past_key_values=cache, use_cache=True)
                cache = out.past_key_values
                parts.append(out[0])
            return parts if cache is not None else parts[:1]

        fixed = lambda config: transformers.StaticCache(config=config, max_cache_len=16)
        found += [("a cache", steps, None), ("a cache of fixed size", lambda model: steps(model, fixed), None)]
        if model.can_generate():
            mask = masks.get("padding on the left")
            how = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
            written = lambda model: model.generate(given["input_ids"], attention_mask=mask, **how).float()
            found.append(("generation", written, None))
    return found


def tensors(x):
    """The floating-point tensors of an output, but for caches."""
    if torch.is_tensor(x):
        return [x] if x.is_floating_point() else []
    items = [y for name, y in x.items() if "past" not in name] if hasattr(x, "items") else x
    return [y for item in items for y in tensors(item)] if isinstance(items, (list, tuple)) else []


calls = []
attention = transformers.AttentionInterface()["fa3"]


def counted(*arguments, **named):
    calls.append(1)
    return attention(*arguments, **named)


transformers.AttentionInterface.register("fa3", counted)


class Wrong(Exception):
    """Another result, or a refusal that does not say of what."""


def same(found, expected, mask):
    """None, or how far they are from each other in the tokens that count."""
    for x, y in zip(found, expected, strict=True):
        if mask is not None and x.shape[:2] == mask.shape:
            x, y = x[mask], y[mask]
        elif mask is not None and not mask.all():  # of a token that may be padding
            continue
        largest = y.nan_to_num().abs().max()
        if x.shape != y.shape or not torch.allclose(x, y, rtol=0, atol=1e-4 * largest.item(), equal_nan=True):
            return (x - y).abs().max() / largest
    return None


def results_of_eager(kind):
    """(the first variant of the sizes that it takes, what it can run with what results)"""
    for last, variant in enumerate(VARIANTS, 1 - len(VARIANTS)):
        expected = []
        try:
            model = build(kind, "eager", variant)
            with torch.no_grad():
                for what, run, mask in runs(model):
                    try:
                        results = tensors(run(model))
                        # Some see padding in layers that are not attention: there nothing can be compared.
                        if mask is None or same(tensors(run(model, 5)), results, mask) is None:
                            expected.append((what, run, mask, results))
                    except Exception:  # not even by itself
                        if not expected:
                            raise
        except Exception:
            if not last:
                raise
        else:
            return variant, expected


def outcome(name):
    """What becomes of the model. Wrong, or any other exception if it cannot be tried."""
    kind = getattr(transformers, name)
    variant, expected = results_of_eager(kind)
    calls.clear()
    try:
        ours = build(kind, "fa3", variant)
    except KeyError as error:
        assert error.args == ("fa3",)  # looked up in a list of the model's own
        return NOT_LISTED
    names = {config.model_type for config in configs(ours.config)}
    for what, run, mask, their_outputs in expected:
        try:
            with torch.no_grad():
                our_outputs = tensors(run(ours))
        except NotImplementedError as error:
            if not any(str(name) in str(error) for name in names):
                raise Wrong(f"{what}: {error} names no {names}") from None
            return REFUSED if what == expected[0][0] else f"{REFUSED} with {what}"
        except Exception as error:
            raise Wrong(f"{what}: {error!r}") from None
        difference = same(our_outputs, their_outputs, mask)
        if difference is not None:
            raise Wrong(f"{what}: {difference} from eager's")
    return COMPUTED if calls else OWN


def configs(config):
    yield config
    for name in config.sub_configs:
        if getattr(config, name, None) is not None:
            yield from configs(getattr(config, name))


def sweep(word=""):
    """Every class whose name has the word: what becomes of each, and which fail."""
    results = collections.defaultdict(list)
    for name in (name for name in every_class() if word in name):
        try:
            result = outcome(name)
        except Exception as error:
            result = f"{type(error).__name__}: {str(error)[:80]}".splitlines()[0]
        results[result].append(name)
    for result, names in sorted(results.items(), key=lambda item: -len(item[1])):
        print(f"{len(names)} {result}: {' '.join(names)}")
    assert not any(result.startswith("Wrong") for result in results)


found = {name: outcome(name) for names in EXPECTED.values() for name in names.split()}
other = {name: found[name] for expected, names in EXPECTED.items() for name in names.split() if found[name] != expected}
assert not other, other
print(f"{len(found)} models as expected", flush=True)
if ALL:
    sweep(*sys.argv[3:])
