"""Calls that were made before (tools/python/fa3/_frameworks/repeated.py): the same results as anew, for tensors elsewhere in
memory, beside calls with other arguments, and with the same errors. Argument: the library. Skipped without torch; runs
on CUDA where there is a Hopper GPU, and on the CPU."""

import sys

from support import fa3, need, refused

need("torch")
import torch  # noqa: E402

fa3.load(sys.argv[1])
DEVICES = ["cpu"] + ["cuda"] * (torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0))


def kept():
    from fa3._frameworks import repeated as _repeated

    return _repeated.calls()


def made(device, seed, rows=3, keys=40, heads=4, dtype=torch.bfloat16):
    torch.manual_seed(seed)
    shape = (2, keys, 2, 64)
    q = torch.randn(2, rows, heads, 64, dtype=dtype)
    return [x.to(device) for x in (q, torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype))]


def anew(*tensors, **named):
    kept().clear()
    return fa3.forward(*tensors, return_lse=True, **named)


def same(a, b):
    assert all(torch.equal(x, y) for x, y in zip(a, b)), (a, b)


def results(device):
    """Of calls in turns, each with other numbers in other memory."""
    used = torch.tensor([5, 40], dtype=torch.int32, device=device)
    ways = [{}, {"causal": True}, {"softmax_scale": 0.3}, {"seqused_k": used, "max_seqlen_k": 40},
            {"window": (4, 0)}, {"softcap": 2.0}, {"batch_invariant": True}]  # fmt: skip
    cases = [(made(device, seed), way) for seed in range(3) for way in ways]
    cases += [(made(device, 9, rows=2), {}), (made(device, 9, heads=2), {}), (made(device, 9, dtype=torch.float16), {})]
    for tensors, way in [*cases]:  # strides of their own
        cases.append(([x.transpose(1, 2).contiguous().transpose(1, 2) for x in tensors], way))
    expected = [anew(*tensors, **way) for tensors, way in cases]
    kept().clear()
    with torch.no_grad():
        for turn in range(3):
            for (tensors, way), result in zip(cases, expected):
                same(fa3.forward(*tensors, return_lse=True, **way), result)
        assert len(kept()) == 2 * (len(ways) + 3), len(kept())
        for (tensors, way), result in zip(cases, expected):
            out = torch.empty_like(tensors[0])
            for turn in range(2):
                version = out._version
                assert fa3.forward(*tensors, out=out, **way) is out and out._version > version
                assert torch.equal(out, result[0])
                out.zero_()


def lengths(device):
    """Numbers in lengths may change from call to call; a schedule is for its own arguments."""
    q, k, v = made(device, 1)
    how = {"max_seqlen_k": 40, "causal": True}
    for n in (1, 17, 40, 17):
        used = torch.tensor([n, 41 - n], dtype=torch.int32, device=device)
        expected = anew(q, k, v, seqused_k=used, **how)
        kept().clear()
        for turn in range(3):
            schedule = fa3.forward_schedule(q, k, v, seqused_k=used, **how)
            same(fa3.forward(q, k, v, seqused_k=used, schedule=schedule, return_lse=True, **how), expected)
            same(fa3.forward(q, k, v, seqused_k=used, schedule=schedule.clone(), return_lse=True, **how), expected)
        fewer, fewer_used = [x[:1] for x in (q, k, v)], used[:1]
        for turn in range(2):
            its_own = fa3.forward_schedule(*fewer, seqused_k=fewer_used, **how)
            fa3.forward(*fewer, seqused_k=fewer_used, schedule=its_own, **how)
            refused(ValueError, "schedule was made for other arguments",
                    fa3.forward, *fewer, seqused_k=fewer_used, schedule=schedule, **how)  # fmt: skip


def derivatives(device):
    """Who wants one gets it, also behind calls without."""
    q, k, v = made(device, 2)
    for turn in range(2):
        fa3.forward(q, k, v)
    q.requires_grad_()
    fa3.attention(q, k, v).sum().backward()
    assert q.grad is not None and q.grad.abs().sum() > 0
    refused(NotImplementedError, "no derivative", fa3.forward, q, k, v, out=torch.empty_like(q))


def errors(device):
    """As before, and after right calls, too."""
    q, k, v = made(device, 3)
    for turn in range(2):
        fa3.forward(q, k, v)
        for named, error, text in (
            ({"softmax_scale": -1.0}, ValueError, "softmax_scale"), ({"window": (1, 2, 3)}, TypeError, "window"),
            ({"max_seqlen_k": torch.tensor(3)}, TypeError, "max_seqlen_k"), ({"kernel": ""}, ValueError, "kernel"),
        ):  # fmt: skip
            refused((error, fa3.Fa3Error), text, fa3.forward, q, k, v, **named)
        refused((ValueError, fa3.Fa3Error), "k.dim", fa3.forward, q, k[:, :, :1].expand(-1, -1, 3, -1), v)
        refused(ValueError, "k.device", fa3.forward, q, k.to("meta"), v)


def appended(device):
    """New rows by fa3.append, whose caches' version counters tell."""
    cache = torch.zeros(2, 2, 8, 2, 64, dtype=torch.bfloat16, device=device)
    for n in range(4):
        k, v = (torch.randn(2, 1, 2, 64, device=device).to(torch.bfloat16) for _ in "kv")
        before, version = torch.tensor([n, 7 - n], dtype=torch.int32, device=device), cache._version
        fa3.append(k, v, *cache, cache_seqlens=before)
        assert cache._version > version
        for b, row in enumerate((n, 7 - n)):
            assert torch.equal(cache[0, b, row], k[b, 0]) and torch.equal(cache[1, b, row], v[b, 0])


def many(device):
    """No more calls are kept than a server's variety needs."""
    from fa3._frameworks import repeated as _repeated

    q, k, v = made(device, 4, rows=1, keys=1)
    for n in range(_repeated.MOST + 10):
        fa3.forward(q, k, v, softmax_scale=1 + n / 1000)
    assert 0 < len(kept()) <= _repeated.MOST


for device in DEVICES:
    for case in (results, lengths, derivatives, errors, appended, many):
        case(device)
print("calls that were made before on", *DEVICES)
