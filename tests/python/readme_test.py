"""The README's Python examples, as they stand, compute attention and its gradients, a call of official
FlashAttention-3, with a model of transformers, a server's calls, gradients of packed documents, and attention of a
process group (of one process), on the CPU. Arguments: the library, README.md. Skipped without torch and
transformers."""

import os
import pathlib
import re
import socket
import sys

from support import attention, fa3, need

need("torch", "transformers")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import torch  # noqa: E402

fa3.load(sys.argv[1])
examples = re.findall(r"^```python\n(.*?)^```", pathlib.Path(sys.argv[2]).read_text(), re.M | re.S)
example, installed, model, serving, training, spread = examples
names = {}
exec(example, names)


def causal_attention_of(names, example):
    """o and the gradients of its sum are those of plain attention."""
    leaves = [names[name] for name in ("q", "k", "v")]
    doubles = [x.detach().double().requires_grad_() for x in leaves]
    o = attention(torch, *doubles, True)[0]
    for x, y in zip((names["o"], *(x.grad for x in leaves)), (o, *torch.autograd.grad(o.sum(), doubles))):
        assert x.dtype == torch.bfloat16 and (x.double() - y).abs().max() < 2.0**-6 * y.abs().max(), example


causal_attention_of(names, example)
exec(installed, names)
for b, length in enumerate((100, 37)):
    for name in ("k", "v"):
        cache = names[f"{name}_cache"]
        assert torch.equal(cache[b, length], names[name][b, 0]) and not cache[b, :length].any(), installed
        assert not cache[b, length + 1 :].any(), installed
    tensors = [names["q"][b : b + 1], *(names[f"{name}_cache"][b : b + 1, : length + 1] for name in ("k", "v"))]
    expected = attention(torch, *(x.double() for x in tensors), True)[0]
    assert (names["o"][b : b + 1] - expected).abs().max() < 2.0**-7 * expected.abs().max(), installed

exec(model, names)
assert names["model"].config._attn_implementation == "fa3" and names["written"].shape == (2, 35), model
logits = []
for implementation in ("fa3", "eager"):
    names["model"].set_attn_implementation(implementation)
    with torch.no_grad():
        logits.append(names["model"].float()(names["written"][:, :30], attention_mask=names["padding"]).logits)
found, expected = (x[names["padding"].bool()] for x in logits)
assert (found - expected).abs().max() < 2.0**-16 * expected.abs().max(), model

exec(serving, names)
for b, (start, end) in enumerate(((0, 100), (100, 137))):
    prompt = [names[name][None, start:end].double() for name in ("q", "k", "v", "o")]
    step = [names[f"{name}_new"][b : b + 1].double() for name in ("q", "k", "v", "o")]
    step[1:3] = (torch.cat(pair, 1) for pair in zip(prompt[1:3], step[1:3]))
    for q, k, v, o in (prompt, step):
        expected = attention(torch, q, k, v, True)[0]
        assert o.shape == expected.shape and (o - expected).abs().max() < 2.0**-7 * expected.abs().max(), serving

exec(training, names)
leaves = [names[name] for name in ("q", "k", "v", "sinks")]
doubles = [x.detach().double().requires_grad_() for x in leaves]
q, k, v, sinks = doubles
k, v = (x.repeat_interleave(4, 1) for x in (k, v))
o = []
for start, end in ((0, 100), (100, 137)):
    s = torch.einsum("ihd,jhd->hij", q[start:end], k[start:end]) / 8
    far = torch.arange(end - start)[:, None] - torch.arange(end - start)
    s = s.masked_fill((far < 0) | (far > 64), -torch.inf)
    s = torch.cat((s, sinks[:, None, None].expand(8, end - start, 1)), 2)
    o.append(torch.einsum("hij,jhd->ihd", s.softmax(2)[:, :, :-1], v[start:end]))
for x, y in zip(leaves, torch.autograd.grad(torch.cat(o).sum(), doubles)):
    assert (x.grad.double() - y).abs().max() < 2.0**-6 * y.abs().max(), training

with socket.create_server(("localhost", 0)) as free:
    port = free.getsockname()[1]
os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port), RANK="0", WORLD_SIZE="1")  # as torchrun has them
exec(spread, names)
causal_attention_of(names, spread)
torch.distributed.destroy_process_group()
print(f"{sum(x.count(chr(10)) for x in examples)} lines, run on {names['device']}")
