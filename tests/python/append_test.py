"""fa3.append on torch tensors against the same in plain torch: pages, slots, packed rows, rotary embedding, FP8,
torch.compile, refusals; on the CPU by the reference, and on a GPU by the kernel. Argument: the library. Skipped without
torch; cases for CUDA say so where there is no Hopper GPU."""

import sys

from support import fa3, need, refused

need("torch")
import torch  # noqa: E402

fa3.load(sys.argv[1])
CUDA = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
HEADS, HEADS_KV, D, PAGE, PAGES = 4, 2, 32, 8, 20


def numbers(device, *values):
    return torch.tensor(values, dtype=torch.int32, device=device)


def normal(device, *dims, seed=1):
    generator = torch.Generator().manual_seed(seed + sum(dims))
    return torch.randn(dims, generator=generator).to(device, torch.bfloat16)


def tables(device, rotary_dim, positions=64):
    angles = torch.arange(positions)[:, None] * torch.logspace(0, -3, rotary_dim // 2)
    return {"rotary_cos": angles.cos().to(device), "rotary_sin": angles.sin().to(device)}


def rotated(x, cos, sin, interleaved):
    """x: (rows, heads, d), a row of the tables for each row."""
    x, n = x.double(), 2 * cos.shape[1]
    cos, sin = cos[:, None].double(), sin[:, None].double()
    a, b = (x[..., :n:2], x[..., 1:n:2]) if interleaved else (x[..., : n // 2], x[..., n // 2 : n])
    a, b = a * cos - b * sin, a * sin + b * cos
    turned = torch.stack((a, b), -1).flatten(-2) if interleaved else torch.cat((a, b), -1)
    return torch.cat((turned, x[..., n:]), -1)


def close(found, expected, what):
    assert ((found.double() - expected).abs() <= 2.0**-8 * expected.abs() + 1e-6).all(), what


def caches(device, *dims, dtype=torch.bfloat16):
    return (torch.zeros(dims, dtype=dtype, device=device) for _ in range(2))


def paged(device):
    """A step of a server: a chunk of a prompt and two steps of decoding, packed, in pages."""
    lengths, before = (11, 1, 1), (5, 0, 29)
    rows = sum(lengths)
    k, v = (normal(device, rows, HEADS_KV, D, seed=seed) for seed in (1, 2))
    q = normal(device, rows, HEADS, D)
    order = torch.randperm(PAGES, generator=torch.Generator().manual_seed(3)).int()
    table = order[:15].reshape(3, 5).to(device)
    where = {"cache_seqlens": numbers(device, *before), "cu_seqlens_new": numbers(device, 0, 11, 12, 13),
             "page_table": table}  # fmt: skip
    positions = torch.cat([torch.arange(start, start + n) for start, n in zip(before, lengths)]).to(device)
    sequences = torch.repeat_interleave(torch.arange(3), torch.tensor(lengths)).to(device)
    slots = table[sequences, positions // PAGE].long() * PAGE + positions % PAGE
    for rotary_dim, interleaved in ((D, False), (16, True)):
        angles = tables(device, rotary_dim)
        how = {**angles, "rotary_interleaved": interleaved}
        turns = [angles[name][positions] for name in ("rotary_cos", "rotary_sin")]
        k_cache, v_cache = caches(device, PAGES, PAGE, HEADS_KV, D)
        found = fa3.append(k, v, k_cache, v_cache, q=q, **where, **how)
        flat = k_cache.view(-1, HEADS_KV, D)
        close(flat[slots], rotated(k, *turns, interleaved), "k")
        close(found, rotated(q, *turns, interleaved), "q")
        assert torch.equal(v_cache.view(-1, HEADS_KV, D)[slots], v) and flat.any((1, 2)).sum() == rows
        # The same by slots, one of which is left out; q in place.
        k_slots, v_slots = caches(device, PAGES, PAGE, HEADS_KV, D)
        inplace, some = q.clone(), slots.clone()
        some[4] = -1
        slotted = {"slot_mapping": some, "rotary_positions": positions}
        out = fa3.append(k, v, k_slots, v_slots, q=inplace, q_out=inplace, **slotted, **how)
        assert out is inplace and torch.equal(inplace, found)
        k_cache.view(-1, HEADS_KV, D)[slots[4]] = 0
        v_cache.view(-1, HEADS_KV, D)[slots[4]] = 0
        assert torch.equal(k_slots, k_cache) and torch.equal(v_slots, v_cache)


def quantized(device):
    """Caches in FP8, with scales for each head, and one for q."""
    k, v, q = (normal(device, 2, 3, HEADS_KV, D, seed=seed) for seed in (4, 5, 6))
    k_cache, v_cache = caches(device, 4, 6, HEADS_KV, D, dtype=torch.float8_e4m3fn)
    scale = torch.tensor([0.5, 0.013], device=device).view(1, 2, 1)
    where = {"cache_seqlens": numbers(device, 3, 1), "cache_batch_idx": numbers(device, 2, 0)}
    scales = {"k_scale": scale, "v_scale": scale, "q_scale": scale[:, 1:]}
    y = fa3.append(k, v, k_cache, v_cache, q=q, seqused_new=numbers(device, 3, 2), **where, **scales)
    eighth = lambda x, by: (x.float() / by).clamp(-448, 448).to(torch.float8_e4m3fn).float()
    for x, cache in ((k, k_cache), (v, v_cache)):
        expected = eighth(x, scale.view(1, 1, 2, 1))
        assert torch.equal(cache[2, 3:6].float(), expected[0]) and torch.equal(cache[0, 1:3].float(), expected[1, :2])
        assert cache.float().abs().sum() == expected[0].abs().sum() + expected[1, :2].abs().sum()
    assert y.dtype == torch.float8_e4m3fn
    assert torch.equal(y.float()[0], eighth(q, 0.013)[0]) and torch.equal(y.float()[1, :2], eighth(q, 0.013)[1, :2])


def compiled(device):
    """fullgraph: caches that the graph's caller has are written to."""
    angles = tables(device, D)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(x, k_cache, v_cache, before):
        k, v = (x * 2).contiguous(), x + 1
        q = fa3.append(k, v, k_cache, v_cache, cache_seqlens=before, q=x, **angles)
        return q.float().sum(), before + 1

    x = normal(device, 2, 1, HEADS_KV, D)
    found, expected = (list(caches(device, 2, 9, HEADS_KV, D)) for _ in range(2))
    before = numbers(device, 0, 4)
    for _ in range(3):
        total, after = step(x, *found, before)
        q = fa3.append(x * 2, x + 1, *expected, cache_seqlens=before, q=x, **angles)
        assert (total - q.float().sum()).abs() < 1e-3 * q.float().abs().sum()
        before = after
    assert all(torch.equal(a, b) and a.any() for a, b in zip(found, expected))


def refusals(device):
    k, one = normal(device, 1, 2, HEADS_KV, D), numbers(device, 3)
    k_cache, v_cache = caches(device, 1, 9, HEADS_KV, D)
    run = lambda **how: fa3.append(**{"k": k, "v": k, "k_cache": k_cache, "v_cache": v_cache, **how})
    refused(ValueError, "cache_seqlens is absent", run)
    refused(ValueError, "cache_seqlens.dtype is int64, must be int32", run, cache_seqlens=one.long())
    refused(ValueError, "v_cache is absent", run, cache_seqlens=one, v_cache=None)
    refused(ValueError, "k_cache may overlap", run, cache_seqlens=one, v_cache=k_cache)
    refused(TypeError, "q is absent", run, k=None, v=None)
    refused(TypeError, "page_table is list", run, cache_seqlens=one, page_table=[1])
    if device == "cuda":
        refused(ValueError, "cache_seqlens.device is cpu", run, cache_seqlens=one.cpu())
    assert not k_cache.any() and not v_cache.any()


for device in ("cpu", "cuda") if CUDA else ("cpu",):
    for case in (paged, quantized, compiled, refusals):
        case(device)
        print(f"{device}: {case.__name__}", flush=True)
if not CUDA:
    print("SKIPPED: the cases for CUDA tensors: torch finds no GPU of compute capability 9.0")
print(f"torch {torch.__version__} agrees")
