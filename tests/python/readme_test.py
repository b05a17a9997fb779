"""The Python examples of the README and the pages, each as it stands in a namespace of its own, compute attention and
its gradients, a call of official FlashAttention-3, with a model of transformers, a server's calls, gradients of packed
documents, attention of a process group (of one process), and FP8, on the CPU. Argument: the library. Skipped without
torch and transformers."""

import os
import pathlib
import socket
import sys

from support import attention, fa3, need

need("torch", "transformers")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import torch  # noqa: E402

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import examples  # noqa: E402

fa3.load(sys.argv[1])


def within(found, expected, tolerance, example):
    """No element is farther off than this share of the largest one."""
    error = (found.double() - expected).abs().max()
    assert found.shape == expected.shape and error < tolerance * expected.abs().max(), f"{error}: {example}"


def check_gradients(names, example, o="o", leaves=("q", "k", "v"), tolerance=2.0**-6):
    """o and the gradients of its sum are those of plain attention."""
    leaves = [names[name] for name in leaves]
    doubles = [x.detach().double().requires_grad_() for x in leaves]
    expected = attention(torch, *doubles, True)[0]
    for x, y in zip((names[o], *(x.grad for x in leaves)), (expected, *torch.autograd.grad(expected.sum(), doubles))):
        assert x.dtype == torch.bfloat16, example
        within(x, y, tolerance, example)


def check_drop_in(names, example):
    for b, length in enumerate((100, 37)):
        for name in ("k", "v"):
            cache = names[f"{name}_cache"]
            assert torch.equal(cache[b, length], names[name][b, 0]) and not cache[b, :length].any(), example
            assert not cache[b, length + 1 :].any(), example
        tensors = [names["q"][b : b + 1], *(names[f"{name}_cache"][b : b + 1, : length + 1] for name in ("k", "v"))]
        within(names["o"][b : b + 1], attention(torch, *(x.double() for x in tensors), True)[0], 2.0**-7, example)


def check_model(names, example):
    assert names["model"].config._attn_implementation == "fa3" and names["written"].shape == (2, 35), example
    logits = []
    for implementation in ("fa3", "eager"):
        names["model"].set_attn_implementation(implementation)
        with torch.no_grad():
            logits.append(names["model"].float()(names["written"][:, :30], attention_mask=names["padding"]).logits)
    found, expected = (x[names["padding"].bool()] for x in logits)
    within(found, expected.double(), 2.0**-16, example)


def check_serving(names, example):
    for b, (start, end) in enumerate(((0, 100), (100, 137))):
        prompt = [names[name][None, start:end].double() for name in ("q", "k", "v", "o")]
        step = [names[f"{name}_new"][b : b + 1].double() for name in ("q", "k", "v", "o")]
        step[1:3] = (torch.cat(pair, 1) for pair in zip(prompt[1:3], step[1:3]))
        for q, k, v, o in (prompt, step):
            within(o, attention(torch, q, k, v, True)[0], 2.0**-7, example)


def check_documents(names, example):
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
        within(x.grad, y, 2.0**-6, example)


def check_group(names, example):
    check_gradients(names, example)
    torch.distributed.destroy_process_group()


def check_fp8(names, example):
    """As exact as e4m3 is."""
    o, lse = attention(torch, *(names[name].detach().double() for name in "qkv"), True)
    within(names["o"], o, 2.0**-3, example)
    within(names["lse"], lse, 2.0**-5, example)
    check_gradients(names, example, "o_trained", tolerance=2.0**-3)


CHECKS = {
    "README.md": [check_gradients],
    "fp8.md": [check_fp8],
    "python.md": [check_drop_in],
    "serving.md": [check_serving],
    "several_gpus.md": [check_group],
    "training.md": [check_documents, check_model],
}
found = examples.examples("python")
assert {name: len(blocks) for name, blocks in found.items()} == {name: len(checks) for name, checks in CHECKS.items()}
with socket.create_server(("localhost", 0)) as free:
    port = free.getsockname()[1]
os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port), RANK="0", WORLD_SIZE="1")  # as torchrun has them
for name, blocks in found.items():
    for example, check in zip(blocks, CHECKS[name]):
        names = {}
        torch.manual_seed(1)
        exec(example, names)
        check(names, example)
print(f"{sum(x.count(chr(10)) for blocks in found.values() for x in blocks)} lines, run on {names['device']}")
