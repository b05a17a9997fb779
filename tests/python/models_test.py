"""Tiny models of transformers of many kinds, with random weights: with attn_implementation="fa3" they compute what
"eager" does, or are refused with the model's name. Arguments: the library; --all for every class of transformers' auto
mappings that builds with these sizes, of which the others are listed. Skipped without torch and transformers."""

import collections
import copy
import inspect
import sys

from support import fa3, need

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
    **dict.fromkeys("num_experts num_local_experts n_routed_experts".split(), 4),
    **{"vocab_size": VOCABULARY, "head_dim": 16, "d_kv": 16, "rotary_dim": 16, "num_key_value_heads": 2},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3},
    **{"image_size": 32, "patch_size": 8},
}
COMPUTED, REFUSED, OWN = "computed", "refused", "computed by code of its own"
EXPECTED = {
    COMPUTED: """LlamaForCausalLM MistralForCausalLM MixtralForCausalLM Qwen3ForCausalLM GPT2LMHeadModel OPTForCausalLM
        GPTNeoXForCausalLM Phi3ForCausalLM BertModel BertLMHeadModel ModernBertModel RobertaModel BartModel
        BartForCausalLM MarianMTModel M2M100Model BigBirdPegasusForConditionalGeneration NllbMoeForConditionalGeneration
        PegasusXForConditionalGeneration ViTModel CLIPTextModel""",
    REFUSED: """BloomForCausalLM XGLMForCausalLM MvpForCausalLM MvpForConditionalGeneration TrOCRForCausalLM
        MptForCausalLM GPTNeoXJapaneseForCausalLM LEDForConditionalGeneration T5ForConditionalGeneration
        GptOssForCausalLM Gemma2ForCausalLM""",
    OWN: "MPNetModel RoFormerModel",
}


def every_class():
    names = (name for name in dir(modeling_auto) if name.startswith("MODEL_") and name.endswith("_MAPPING_NAMES"))
    found = (name for mapping in names for name in getattr(modeling_auto, mapping).values())
    return sorted({x for name in found for x in ([name] if isinstance(name, str) else name)})


def build(kind, name):
    """A model with the weights that all of its kind have here: large enough that a mask matters."""
    config = kind.config_class(**copy.deepcopy(SIZES))
    config._attn_implementation = name
    if ALL:
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
    """(what is run, a function of a model) for what the model takes."""
    takes = inspect.signature(model.forward).parameters
    generator = torch.Generator().manual_seed(3)
    ids = lambda seqlen: torch.randint(5, VOCABULARY - 9, (2, seqlen), generator=generator)
    more = {"decoder_input_ids": ids(9)} if "decoder_input_ids" in takes else {}
    if "input_ids" not in takes:
        pixels = torch.randn(2, 3, 32, 32, generator=generator)
        return [("pixels", lambda model: model(pixel_values=pixels))]
    given = {"input_ids": ids(13), **more}
    found = [("tokens", lambda model: model(**given))]
    if "attention_mask" in takes:
        ones = torch.ones_like(given["input_ids"])
        found.append(("a mask of ones", lambda model: model(**given, attention_mask=ones)))
    if "past_key_values" in takes and "use_cache" in takes:
        name = "decoder_input_ids" if more else "input_ids"

        def steps(model):
            cache, parts = None, []
            for start, end in ((0, 5), (5, 6), (6, 9)):
                part = {**given, name: given[name][:, start:end]}
                out = model(**part, past_key_values=cache, use_cache=True)
                cache = out.past_key_values
                parts.append(out[0])
            return parts if cache is not None else parts[:1]

        found.append(("a cache", steps))
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


def outcome(name):
    """What becomes of the model. Wrong, or any other exception if it cannot be tried."""
    kind = getattr(transformers, name)
    theirs = build(kind, "eager")
    expected = []
    with torch.no_grad():
        for what, run in runs(theirs):
            try:
                expected.append((what, run, tensors(run(theirs))))
            except Exception:  # not even by itself
                if not expected:
                    raise
    calls.clear()
    ours = build(kind, "fa3")
    names = {config.model_type for config in configs(ours.config)}
    for what, run, of_theirs in expected:
        try:
            with torch.no_grad():
                of_ours = tensors(run(ours))
        except NotImplementedError as error:
            if not any(str(name) in str(error) for name in names):
                raise Wrong(f"{what}: {error} names no {names}") from None
            return REFUSED
        except Exception as error:
            raise Wrong(f"{what}: {error!r}") from None
        for x, y in zip(of_ours, of_theirs, strict=True):
            largest = y.nan_to_num().abs().max()
            if x.shape != y.shape or not torch.allclose(x, y, rtol=0, atol=1e-4 * largest.item(), equal_nan=True):
                raise Wrong(f"{what}: {(x - y).abs().max() / largest} from eager's")
    return COMPUTED if calls else OWN


def configs(config):
    yield config
    for name in config.sub_configs:
        if getattr(config, name, None) is not None:
            yield from configs(getattr(config, name))


def sweep():
    """Every class: what becomes of each, and which fail."""
    results = collections.defaultdict(list)
    for name in every_class():
        try:
            result = outcome(name)
        except Exception as error:
            result = f"{type(error).__name__}: {str(error)[:80]}".splitlines()[0]
        results[result].append(name)
    for result, names in sorted(results.items(), key=lambda item: -len(item[1])):
        print(f"{len(names)} {result}: {' '.join(names)}")
    assert not any(result.startswith("Wrong") for result in results)


for expected, names in EXPECTED.items():
    for name in names.split():
        found = outcome(name)
        assert found == expected, f"{name}: {found}, not {expected}"
print(f"{sum(len(names.split()) for names in EXPECTED.values())} models as expected", flush=True)
if ALL:
    sweep()
