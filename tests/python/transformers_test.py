"""A tiny Llama of transformers (random weights) with attn_implementation="fa3": logits, gradients, generation with a
cache and torch.compile against its own attention, and refusals of what the library cannot do; on the CPU and on a
Hopper GPU. Argument: the library. Skipped without torch and transformers."""

import sys

from support import fa3, need, refused

need("torch", "transformers")
import torch  # noqa: E402
import transformers  # noqa: E402
from transformers.masking_utils import AttentionMaskInterface  # noqa: E402

fa3.load(sys.argv[1])
fa3.register_transformers()
fa3.register_transformers("fa3_again")
CUDA = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
DTYPES = {"cpu": (torch.float32, torch.bfloat16), "cuda": (torch.bfloat16, torch.float16)}
ROUNDOFF = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
VOCABULARY = 97


def build(device, dtype, attention, kind="Llama", **more):
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
             "max_position_embeddings": 128}  # fmt: skip
    config = getattr(transformers, f"{kind}Config")(**{**sizes, "initializer_range": 0.2, **more})
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


def close(found, theirs, dtype, what, exact=None):
    """Both round each layer's activations. In 16 bits ours may be 1.25 times as far from float32 as theirs, plus a
    hundredth of a roundoff; where that is not known, and in float32, they may differ by 64 roundoffs of the largest."""
    assert found.shape == theirs.shape and found.dtype == theirs.dtype, what
    if exact is not None and dtype != torch.float32:
        errors = [rms(x.double() - exact) / rms(exact) for x in (found, theirs)]
        assert errors[0] <= 1.25 * errors[1] + 0.01 * ROUNDOFF[dtype], (what, errors)
    error = (found.double() - theirs.double()).abs().max() / theirs.double().abs().max()
    assert error <= 64 * ROUNDOFF[dtype], (what, error.item())


def prefill(device, dtype):
    theirs, ours = (build(device, dtype, name) for name in ("eager", "fa3"))
    exact = build(device, dtype, "eager").float()  # float32 arithmetic on the weights that the others have
    x = tokens(device)
    with torch.no_grad():
        expected, found, best = (model(input_ids=x, use_cache=False).logits for model in (theirs, ours, exact))
        close(found, expected, dtype, "logits", best)
        # A mask that masks nothing is none.
        assert torch.equal(ours(input_ids=x, attention_mask=torch.ones_like(x), use_cache=False).logits, found)
        ours.set_attn_implementation("fa3_again")
        assert torch.equal(ours(input_ids=x, use_cache=False).logits, found)
        ours.set_attn_implementation("fa3")
    gradients = []
    for model in (theirs, ours, exact):
        model(input_ids=x, labels=x, use_cache=False).loss.backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    close(gradients[1], gradients[0], dtype, "gradients", gradients[2])
    if dtype == DTYPES[device][0]:
        recomputed = build(device, dtype, "fa3").train()
        if hasattr(recomputed, "activation_checkpointing_enable"):
            recomputed.activation_checkpointing_enable()
        else:
            recomputed.gradient_checkpointing_enable()
        recomputed(input_ids=x, labels=x, use_cache=False).loss.backward()
        close(torch.cat([p.grad.flatten() for p in recomputed.parameters()]), gradients[0], dtype, "checkpoints")


def decode(device, dtype):
    """Prefill, one token after another, and several at once: with a cache as without."""
    model, x = build(device, dtype, "fa3"), tokens(device)
    with torch.no_grad():
        theirs = build(device, dtype, "eager")
        whole = theirs(input_ids=x, use_cache=False).logits
        exact = theirs.float()(input_ids=x, use_cache=False).logits
        cache, parts = None, []
        for start, end in ((0, 10), (10, 11), (11, 12), (12, 18), (18, 21)):
            out = model(input_ids=x[:, start:end], past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            parts.append(out.logits)
        close(torch.cat(parts, 1), whole, dtype, "decoding", exact)
        if dtype == torch.float32:  # where no two tokens are as likely, up to roundings
            how = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
            found, expected = (build(device, dtype, name).generate(x, **how) for name in ("fa3", "eager"))
            assert found.shape == (2, 33) and torch.equal(found, expected), (found, expected)


def compiled(device, dtype):
    """In one graph, with a mask that masks nothing, which the graph checks, or with a cache."""
    model, x = build(device, dtype, "fa3"), tokens(device)
    ones = torch.ones_like(x)
    with torch.no_grad():
        expected = model(input_ids=x, use_cache=False).logits
        fast = torch.compile(model, fullgraph=True, dynamic=False)
        close(fast(input_ids=x, use_cache=True).logits, expected, dtype, "compiled")
        close(fast(input_ids=x, attention_mask=ones, use_cache=False).logits, expected, dtype, "compiled")
        if device == "cpu":  # a GPU's assertion ends its process
            ones[1, :3] = 0
            refused(RuntimeError, "attention_mask has padding", fast, input_ids=x, attention_mask=ones, use_cache=False)
        refused(Exception, "give attention_mask or a cache", fast, input_ids=x, use_cache=False)


def refusals(device, dtype):
    x = tokens(device)
    model = build(device, dtype, "fa3")
    run = lambda model, **more: model(**{"input_ids": x, "use_cache": False, **more})
    no = NotImplementedError
    for columns in (slice(0, 3), slice(18, 21)):  # padding on the left, and on the right
        padded = torch.ones_like(x)
        padded[1, columns] = 0
        refused(no, "llama: attention_mask has padding", run, model, attention_mask=padded)
    four = torch.zeros(2, 1, 21, 21, dtype=dtype, device=device)
    refused(no, "LlamaAttention of llama: attention_mask is given", run, model, attention_mask=four)
    packed = torch.cat([torch.arange(10), torch.arange(11)])[None].to(device)
    refused(no, "packed sequences", run, model, position_ids=packed)
    lengths = torch.tensor([0, 10, 21], dtype=torch.int32, device=device)
    refused(no, "cu_seq_lens_q is given", run, model, cu_seq_lens_q=lengths, cu_seq_lens_k=lengths)
    refused(no, "is given, which fa3 does not support", run, model, unheard_of=3)
    refused(no, "dropout is 0.5", run, build(device, dtype, "fa3", attention_dropout=0.5).train())
    build(device, dtype, "fa3", attention_dropout=0.5)(input_ids=x)  # not in evaluation
    refused(no, "needs a cache that grows", model.generate, x, max_new_tokens=2, cache_implementation="static",
            do_sample=False, pad_token_id=0)  # fmt: skip
    windowed = build(device, dtype, "fa3", "Mistral", sliding_window=16)
    refused(no, "sliding_window", run, windowed)
    short = tokens(device, seqlen=16)
    with torch.no_grad():
        expected = build(device, dtype, "eager", "Mistral", sliding_window=16)(input_ids=short, use_cache=False).logits
        close(run(windowed, input_ids=short).logits, expected, dtype, "a window of all keys")
    refused(no, "sliding_window", windowed.generate, short, max_new_tokens=3, do_sample=False, pad_token_id=0)
    refused(no, "softcap", run, build(device, dtype, "fa3", "Gemma2", attn_logit_softcapping=50.0, sliding_window=64))

    # What reaches the function alone, by other models.
    class Layer(torch.nn.Module):
        is_causal = False

    q, k = (torch.zeros(1, 2, n, 16, dtype=dtype, device=device) for n in (3, 5))
    attend = transformers.AttentionInterface()["fa3"]
    assert attend(Layer(), q, k, k, None, scaling=0.3)[0].shape == (1, 3, 2, 16)
    harmless = {"output_attentions": False, "sliding_window": 5, "use_cache": True, "logits_to_keep": 1}
    assert attend(Layer(), q, k, k, None, **harmless)[1] is None
    for name, value in (("s_aux", q), ("position_bias", q), ("output_attentions", True), ("cache", object())):
        refused(no, name, attend, Layer(), q, k, k, None, **{name: value})
    refused(no, "sliding_window is 4", attend, Layer(), q, k, k, None, sliding_window=4)
    refused(no, "Module of a model: is_causal: it does not say", attend, torch.nn.Module(), q, k, k, None)
    Layer.is_causal, Layer.config = True, transformers.LlamaConfig()
    refused(no, "Layer of llama: is_causal is True, but no causal mask", attend, Layer(), q, k, k, None)
    assert attend(Layer(), q[:, :, :1], k, k, None)[0].shape == (1, 1, 2, 16)  # one query sees all keys in any case


def masks(device, dtype):
    """What the first function gives the second, and that nobody else can use it."""
    mask, no = AttentionMaskInterface()["fa3"], NotImplementedError
    config = transformers.BloomConfig()
    kind = lambda **what: mask(**{"kv_length": 5, "q_length": 3, "q_offset": 2, "config": config, **what})
    causal = kind()
    assert (causal.model, causal.queries, causal.keys) == ("bloom", 3, 5)
    assert kind(allow_is_causal_skip=False, allow_is_bidirectional_skip=True) is None
    for offset in (1, 3, torch.tensor(2)):  # keys beyond the last query, queries beyond the last key, a fixed cache
        refused(no, "bloom: past_key_values: 5 keys from 0 do not end with query", kind, q_offset=offset)
    assert kind(q_offset=9, kv_offset=7).keys == 5
    refused(no, "5 keys from 7", kind, q_offset=8, kv_offset=7)
    assert kind(q_length=None, q_offset=0, cache_position=torch.arange(2, 5)).queries == 3  # of the first releases
    refused(no, "5 keys from 0", kind, q_length=None, q_offset=0, cache_position=torch.arange(3, 6))
    refused(no, "bloom: attention_mask: neither full nor causal", kind, allow_is_causal_skip=False)
    assert kind(local_size=5).keys == kind(kv_offset=1, q_offset=3, local_size=6).keys == 5
    refused(no, "bloom: sliding_window or chunks of 4, fewer than 5 keys", kind, local_size=4)
    refused(no, "chunks of 5, fewer than 6 keys", kind, kv_offset=1, q_offset=3, local_size=5)
    seen = torch.tensor([[False, True, True, True, True, True, False]])
    assert kind(attention_mask=seen, kv_offset=1, q_offset=3).keys == 5
    for offset in (0, 2):
        how = {"attention_mask": seen, "kv_offset": offset, "q_offset": offset + 2}
        refused(no, "bloom: attention_mask has padding", kind, **how)

    # The mask says that attention is causal, whatever else is said.
    attend = transformers.AttentionInterface()["fa3"]
    generator = torch.Generator().manual_seed(4)
    q, k, v = (torch.randn(1, 2, n, 16, generator=generator).to(device, dtype) for n in (3, 5, 5))
    expected = fa3.attention(*(x.transpose(1, 2) for x in (q, k, v)), causal=True)
    module = torch.nn.Module()
    assert torch.equal(attend(module, q, k, v, causal)[0], expected)
    module.is_causal = False
    assert torch.equal(attend(module, q, k, v, causal, is_causal=False)[0], expected)
    assert torch.equal(attend(module, q, k, v, is_causal=True)[0], expected)
    assert not torch.equal(attend(module, q, k, v)[0], expected)
    for queries, keys in ((2, 5), (3, 4)):
        why = f"Module of a model: attention_mask is for 3 queries and 5 keys, but there are {queries} and {keys}"
        refused(no, why, attend, module, q[:, :, :queries], k[:, :, :keys], v[:, :, :keys], causal)
    x = torch.ones(2)
    for use in (lambda m: x + m, lambda m: m + x, lambda m: 1.0 - m, lambda m: m[:, :, :, :3], lambda m: m.shape,
                lambda m: x.masked_fill(m, 1.0), lambda m: torch.where(m, 1, 2), lambda m: m == 0, lambda m: ~m,
                lambda m: m.to(x.dtype), lambda m: torch.cat([x, m]), lambda m: [*m], lambda m: m or x):  # fmt: skip
        refused(no, "bloom uses its causal mask in code of its own", use, causal)
    assert not hasattr(causal, "to")  # by which libraries find out what is to be moved to other devices


def bidirectional(device, dtype):
    """An encoder: full attention."""
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
             "num_attention_heads": 4, "max_position_embeddings": 128}  # fmt: skip
    logits, x = [], tokens(device)
    for name in ("eager", "fa3"):
        torch.manual_seed(1)
        config = transformers.BertConfig(**sizes, initializer_range=0.2)
        config._attn_implementation = name
        model = transformers.BertForMaskedLM(config).eval().to(device, dtype)
        with torch.no_grad():
            logits.append(model(input_ids=x).logits)
    close(logits[1], logits[0], dtype, "encoder")
    # A decoder that is told not to be causal is one, too.
    logits = []
    for name in ("eager", "fa3"):
        decoder = build(device, dtype, name, is_causal=False)
        with torch.no_grad():
            logits.append(decoder(input_ids=x, use_cache=False).logits)
    close(logits[1], logits[0], dtype, "decoder as an encoder")
    padded = torch.ones_like(x)
    padded[1, 18:] = 0
    refused(NotImplementedError, "attention_mask has padding", model, input_ids=x, attention_mask=padded)


for device in ("cpu", "cuda") if CUDA else ("cpu",):
    for dtype in DTYPES[device]:
        prefill(device, dtype)
        decode(device, dtype)
    for case in (compiled, refusals, masks, bidirectional):
        case(device, DTYPES[device][0])
    print(f"{device}: as transformers' own", flush=True)
if not CUDA:
    print("SKIPPED: the cases for CUDA tensors: torch finds no GPU of compute capability 9.0")
print(f"transformers {transformers.__version__} agrees")
