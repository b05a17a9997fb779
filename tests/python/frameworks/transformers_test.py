"""A tiny Llama of transformers (random weights) with attn_implementation="fa3": logits, gradients, generation with a
cache and torch.compile against its own attention, and refusals of what the library cannot do; on the CPU and on a
Hopper GPU. Argument: the library. Skipped without torch and transformers."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support import fa3, need, refused  # noqa: E402

need("torch", "transformers")
import torch  # noqa: E402
import transformers  # noqa: E402
from tiny_models import DTYPES, HOPPER, VOCABULARY, build, close, tokens, without  # noqa: E402
from transformers.masking_utils import AttentionMaskInterface  # noqa: E402

fa3.load(sys.argv[1])
fa3.register_transformers()
fa3.register_transformers("fa3_again")
torch.set_num_threads(1)  # what fails in another is the end of the process


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
    next_ones = torch.nn.functional.pad(x[:, 1:], (0, 1), value=-100)
    loss_arguments = {"ignore_index": -100, "reduction": "mean", "shift_labels": next_ones}
    for model in (theirs, ours, exact):
        model(input_ids=x, labels=x, use_cache=False, **loss_arguments).loss.backward()
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
    """In one graph, with a mask of ones, with padding, or with a cache."""
    model, x = build(device, dtype, "fa3"), tokens(device)
    ones = torch.ones_like(x)
    fast = torch.compile(model, fullgraph=True, dynamic=False)
    with torch.no_grad():
        expected = model(input_ids=x, use_cache=False).logits
        close(fast(input_ids=x, use_cache=True).logits, expected, dtype, "compiled")
        close(fast(input_ids=x, attention_mask=ones, use_cache=False).logits, expected, dtype, "compiled")
        for columns in (slice(0, 3), slice(18, 21)):
            padded = without(ones, columns)
            expected, found = (m(input_ids=x, attention_mask=padded, use_cache=False).logits for m in (model, fast))
            close(found[padded.bool()], expected[padded.bool()], dtype, "compiled with padding")
        refused(Exception, "give attention_mask or a cache", fast, input_ids=x, use_cache=False)
    if device == "cpu":  # a GPU's assertion ends its process
        run = lambda columns: fast(input_ids=x, attention_mask=without(ones, columns), use_cache=False)
        with torch.no_grad():
            refused(RuntimeError, "attention_mask has padding inside of a sequence", run, slice(5, 7))
        refused(RuntimeError, "attention_mask has padding on the left", run, slice(0, 3))
        positions = torch.cat([torch.arange(n) for n in (9, 12)])[None]
        with torch.no_grad():
            refused(RuntimeError, "llama: position_ids tell of packed sequences", fast, input_ids=x,
                    attention_mask=ones, position_ids=positions, use_cache=False)  # fmt: skip
    padded = without(ones, slice(18, 21))
    labels, gradients = x.masked_fill(padded == 0, -100), []
    for run in (model, fast):
        model.zero_grad()
        run(input_ids=x, attention_mask=padded, labels=labels, use_cache=False).loss.backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    close(*gradients, dtype, "compiled gradients with padding")


def refusals(device, dtype):
    x = tokens(device)
    model = build(device, dtype, "fa3")
    run = lambda model, **more: model(**{"input_ids": x, "use_cache": False, **more})
    no = NotImplementedError
    four = torch.zeros(2, 1, 21, 21, dtype=dtype, device=device)
    refused(no, "LlamaAttention of llama: attention_mask is given", run, model, attention_mask=four)
    lengths = torch.tensor([0, 10, 21], dtype=torch.int32, device=device)
    refused(no, "cu_seq_lens_q or cu_seq_lens_k is given, but not max_seqlen_q and max_seqlen_k", run, model,
            cu_seq_lens_q=lengths, cu_seq_lens_k=lengths)  # fmt: skip
    refused(no, "is given, which fa3 does not support", run, model, unheard_of=3)
    refused(no, "dropout is 0.5", run, build(device, dtype, "fa3", attention_dropout=0.5).train())
    build(device, dtype, "fa3", attention_dropout=0.5)(input_ids=x)  # not in evaluation
    windowed = build(device, dtype, "fa3", "Mistral", sliding_window=16)
    refused(no, "mistral: attention_mask has padding inside of a sequence", run, windowed,
            attention_mask=without(torch.ones_like(x), slice(5, 7)))  # fmt: skip

    # What reaches the function alone, by other models.
    class Layer(torch.nn.Module):
        is_causal = False

    q, k = (torch.zeros(1, 2, n, 16, dtype=dtype, device=device) for n in (3, 5))
    attend = transformers.AttentionInterface()["fa3"]
    assert attend(Layer(), q, k, k, None, scaling=0.3)[0].shape == (1, 3, 2, 16)
    harmless = {"output_attentions": False, "sliding_window": 5, "use_cache": True, "logits_to_keep": 1}
    assert attend(Layer(), q, k, k, None, **harmless)[1] is None
    for name, value in (("position_bias", q), ("output_attentions", True), ("cache", object())):
        refused(no, name, attend, Layer(), q, k, k, None, **{name: value})
    refused(no, "sliding_window is 4", attend, Layer(), q, k, k, None, sliding_window=4)
    refused(no, "Module of a model: is_causal: it does not say", attend, torch.nn.Module(), q, k, k, None)
    Layer.is_causal, Layer.config = True, transformers.LlamaConfig()
    refused(no, "Layer of llama: is_causal is True, but no causal mask", attend, Layer(), q, k, k, None)
    assert attend(Layer(), q[:, :, :1], k, k, None)[0].shape == (1, 1, 2, 16)  # one query sees all keys in any case


def packed(device, dtype):
    """position_ids are looked at once for a forward pass, and say what they do to flash backends; what is refused."""
    from fa3._frameworks.transformers import masks

    looks, find = [], masks.find
    masks.find = lambda *what: looks.append(1) or find(*what)
    x, no = tokens(device), NotImplementedError
    model = build(device, dtype, "fa3", num_hidden_layers=3)
    positions = torch.cat([torch.arange(n) for n in (9, 12)])[None].to(device)
    run = lambda where=positions, ids=x, **more: model(**{"input_ids": ids, "position_ids": where, **more})
    with torch.no_grad():
        expected = run()
        assert len(looks) == 1
        alone = torch.cat([model(input_ids=part).logits for part in x.split((9, 12), 1)], 1)
        close(expected.logits, alone, dtype, "packed")
        looks.clear()
        run(use_cache=False), run(positions.new_tensor([[*range(21)]]), use_cache=False)
        assert not looks  # transformers has looked
        ordinary = [run(positions.new_tensor([[*range(start, start + 21)]])) for start in (0, 7)]
        assert len(looks) == 2
        close(ordinary[1].logits, ordinary[0].logits, dtype, "from 7 on")
        with torch.inference_mode():
            looks.clear()
            assert torch.equal(run(positions.clone()).logits, expected.logits) and len(looks) == 1
        for step in (1, 5):  # of ordinary positions with a cache, one and several
            before = model(input_ids=x[:, :-step])
            end = model(input_ids=x[:, -step:], past_key_values=before.past_key_values).logits
            close(end, ordinary[0].logits[:, -step:], dtype, "decoding")
        text, padded = "llama: position_ids tell of packed sequences, and", without(torch.ones_like(x), slice(0, 4))
        refused(no, text, run, attention_mask=padded)
        where = (padded.cumsum(1) - 1).clamp(min=0)
        assert torch.equal(run(where, attention_mask=padded).logits[1, 4:], run(
            where.masked_fill(padded == 0, 1), attention_mask=padded).logits[1, 4:])  # fmt: skip
        before = model(input_ids=x[:, :3]).past_key_values
        refused(no, text, run, past_key_values=before)
        refused(no, text, run, past_key_values=transformers.StaticCache(config=model.config, max_cache_len=30))
    begins = lambda *row, seen=None: masks.beginnings(torch.tensor([row]), seen)[0].nonzero()[:, 0].add(1).tolist()
    assert begins(0, 1, 2, 0, 1, 0) == [3, 5] and begins(5, 6, 0, 1, 0, 0) == [2, 4, 5]  # the first from its middle on
    assert begins(3, 4, 5, 6) == begins(0, 1, 4, 5) == begins(0, 1, 1, 2, 1) == begins(0.0, 0.25, 0.5) == []
    seen = torch.tensor([[False, False, True, True, False, True]])
    assert begins(1, 1, 0, 1, 0, 2, seen=seen) == [] and begins(1, 1, 0, 1, 7, 0, seen=seen) == [5]

    # What comes without a mask: one look for the layers that have the same positions.
    class Layer(torch.nn.Module):
        is_causal = False

    q = torch.randn(1, 2, 21, 16, generator=torch.Generator().manual_seed(4)).to(device, dtype)
    attend, looks[:] = transformers.AttentionInterface()["fa3"], []
    for turn in range(3):
        found = attend(Layer(), q, q, q, None, position_ids=positions)[0]
        parts = [attend(Layer(), part, part, part, None)[0] for part in q.split((9, 12), 2)]
        assert torch.equal(found, torch.cat(parts, 1)) and len(looks) == 1
    for sums in ((0, 3, 21), (0, 13, 21)):  # lengths say more than positions, which are the same
        lengths = torch.tensor(sums, dtype=torch.int32, device=device)
        given = {"cu_seq_lens_q": lengths, "cu_seq_lens_k": lengths, "max_length_q": 21, "max_length_k": 21}
        found = attend(Layer(), q, q, q, None, position_ids=positions, **given)[0]
        parts = [attend(Layer(), part, part, part, None)[0] for part in q.split((sums[1], 21 - sums[1]), 2)]
        close(found, torch.cat(parts, 1), dtype, sums)
    positions[0, 9:] += 9
    assert torch.equal(attend(Layer(), q, q, q, None, position_ids=positions)[0], attend(Layer(), q, q, q, None)[0])
    for other in (positions[:, :5], positions[0], positions[None], positions.expand(3, -1)):  # not those of the rows
        assert torch.equal(attend(Layer(), q, q, q, None, position_ids=other * 0)[0], attend(Layer(), q, q, q, None)[0])
    assert attend(Layer(), q[:, :, :5], q, q, None, position_ids=positions[:, :5] * 0)[0].shape == (1, 5, 2, 16)
    masks.find = find


def masks(device, dtype):
    """What the first function gives the second, and that nobody else can use it."""
    from transformers import masking_utils as functions

    mask, no = AttentionMaskInterface()["fa3"], NotImplementedError
    config = transformers.BloomConfig()
    kind = lambda **what: mask(**{"kv_length": 5, "q_length": 3, "q_offset": 2, "config": config, **what})
    causal = kind()
    assert (causal.model, causal.queries, causal.keys, causal.causal) == ("bloom", 3, 5, True)
    all_keys = {"mask_function": functions.bidirectional_mask_function, "allow_is_causal_skip": False}
    assert kind(**all_keys, allow_is_bidirectional_skip=True) is None
    assert not kind(**all_keys, allow_is_bidirectional_skip=False).causal  # asked for by who would join it with another
    refused(no, "bloom: past_key_values: 5 keys from 0 end before query 5", kind, q_offset=3)
    refused(no, "5 keys from 7 end before query 12", kind, q_offset=10, kv_offset=7)
    assert (kind(q_offset=1).last, kind(q_offset=9, kv_offset=7).last) == (4, 5)  # room in a cache
    assert kind(q_offset=torch.tensor(1), batch_size=2).lengths["seqused_k"].tolist() == [4, 4]
    assert kind(q_length=None, q_offset=0, cache_position=torch.arange(2, 5)).queries == 3  # of the first releases
    refused(no, "5 keys from 0", kind, q_length=None, q_offset=0, cache_position=torch.arange(3, 6))
    window = functions.sliding_window_causal_mask_function
    assert (kind(mask_function=window(4)).window, kind(mask_function=window(5)).window) == (3, None)
    chunks = lambda n: functions.chunked_causal_mask_function(n, torch.zeros(1, dtype=torch.int64))
    assert (kind(mask_function=chunks(4)).chunk, kind(mask_function=chunks(5)).chunk) == (4, None)
    assert kind(mask_function=chunks(5), q_offset=9, kv_offset=7).first == 3
    refused(no, "bloom: past_key_values: 2 keys before the first query", kind, mask_function=chunks(2), kv_offset=7,
            q_offset=9)  # fmt: skip
    either = functions.or_masks(functions.causal_mask_function, functions.bidirectional_mask_function)
    refused(no, "bloom: its mask has or_masks", kind, mask_function=either)
    refused(no, "bloom: its mask has masks.<locals>.<lambda>", kind, mask_function=lambda *_: True)
    ids = torch.tensor([[0, 0, 1, 1, 1]])
    alone = functions.packed_sequence_mask_function(ids)
    assert kind(mask_function=functions.and_masks(functions.causal_mask_function, alone)).ids is ids
    refused(no, "bloom: packed sequences", kind, mask_function=functions.and_masks(chunks(2), alone))
    if hasattr(functions, "packed_sequence_compatibility_function"):  # not in the first releases
        documents = lambda *rows: functions.packed_sequence_compatibility_function(chunks(2), torch.tensor([rows]), ids)
        assert kind(mask_function=documents(0, 1, 4, 5, 6)).ids is ids
        refused(no, "bloom: packed sequences", kind, mask_function=documents(0, 1, 3, 4, 5))
    seen = torch.tensor([[False, True, True, True, True, True, False]])
    assert kind(attention_mask=seen, kv_offset=1, q_offset=3).lengths == {}
    room = kind(attention_mask=torch.ones(1, 5, dtype=torch.bool), q_offset=torch.tensor(1))
    assert room.lengths["seqused_k"].tolist() == [4] and room.seen is None  # of a mask as long as its cache
    padded = {offset: kind(attention_mask=seen, kv_offset=offset, q_offset=offset + 2).lengths for offset in (0, 2)}
    assert {name: x.tolist() for name, x in padded[0].items()} == {"leftpad_k": [1]}
    assert {name: x.tolist() for name, x in padded[2].items()} == {"seqused_k": [4], "seqused_q": [2]}

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
    for use in (lambda m: x + m, lambda m: m + x, lambda m: 1.0 - m, lambda m: m[:, :, :, :3], lambda m: m.size(),
                lambda m: x.masked_fill(m, 1.0), lambda m: torch.where(m, 1, 2), lambda m: m == 0, lambda m: ~m,
                lambda m: m.to(x.dtype), lambda m: torch.cat([x, m]), lambda m: [*m], lambda m: m or x):  # fmt: skip
        refused(no, "bloom uses its mask in code of its own", use, causal)
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


for device in ("cpu", "cuda") if HOPPER else ("cpu",):
    for dtype in DTYPES[device]:
        prefill(device, dtype)
        decode(device, dtype)
    for case in (compiled, refusals, packed, masks, bidirectional):
        case(device, DTYPES[device][0])
    print(f"{device}: as transformers' own", flush=True)
if not HOPPER:
    print("SKIPPED: the cases for CUDA tensors: torch finds no GPU of compute capability 9.0")
print(f"transformers {transformers.__version__} agrees")
