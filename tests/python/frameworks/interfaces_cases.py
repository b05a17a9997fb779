"""What the tests of the interfaces share: plain attention in float64, one sequence at a time, with every mask and
transform of scores; rotary embedding; random lengths, pages and caches; comparisons. Cases run on the CPU by the
reference, and on a GPU by the kernels; where there is no Hopper GPU, `run` says so."""

import contextlib
import math

import torch


def plain(q, k, v, *, causal=False, window=(-1, -1), chunk=0, softcap=0.0, slopes=None, sinks=None, scale=None):
    """(o, lse) of one sequence, (rows, heads, head_dim), in float64; lse: (heads, rows). Rows without keys give 0 and
    -inf, with a sink 0 and the sink."""
    q, k, v = (x.double() for x in (q, k, v))
    rows, heads, d = q.shape
    keys, groups = k.shape[0], heads // k.shape[1]
    k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
    s = torch.einsum("ihd,jhd->hij", q, k) * (d**-0.5 if scale is None else scale)
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    at = torch.arange(rows, device=q.device)[:, None] + keys - rows
    j = torch.arange(keys, device=q.device)[None]
    if slopes is not None:
        s = s - slopes.double()[:, None, None] * (at - j).abs()
    left, right = window
    hidden = torch.zeros(rows, keys, dtype=torch.bool, device=q.device)
    if left != -1:  # a bound below that shifts the window
        hidden |= j < at - left
    if causal or right != -1:
        hidden |= j > at + (0 if causal else right)
    if chunk:
        hidden |= torch.div(at, chunk, rounding_mode="floor") != torch.div(j, chunk, rounding_mode="floor")
    s = s.masked_fill(hidden, -math.inf)
    if sinks is not None:
        s = torch.cat((s, sinks.double()[:, None, None].expand(heads, rows, 1)), 2)
    seen = (~hidden).any(1)
    lse = torch.full((heads, rows), -math.inf, dtype=torch.float64, device=q.device)
    if sinks is not None:
        lse = lse.maximum(sinks.double()[:, None])
    o = torch.zeros(rows, heads, v.shape[2], dtype=torch.float64, device=q.device)
    p = s[:, seen].softmax(2)[:, :, :keys]
    o = o.index_put((seen.nonzero()[:, 0],), torch.einsum("hij,jhd->ihd", p, v))
    lse = torch.where(seen[None], s.masked_fill(~seen[:, None], 0.0).logsumexp(2), lse)
    return o, lse


def rotated(x, cos, sin, positions, interleaved):
    """x: (rows, heads, d) in float64; positions: (rows,)."""
    x, n = x.double(), 2 * cos.shape[1]
    cos, sin = cos.double()[positions][:, None], sin.double()[positions][:, None]
    a, b = (x[..., :n:2], x[..., 1:n:2]) if interleaved else (x[..., : n // 2], x[..., n // 2 : n])
    a, b = a * cos - b * sin, a * sin + b * cos
    turned = torch.stack((a, b), -1).flatten(-2) if interleaved else torch.cat((a, b), -1)
    return torch.cat((turned, x[..., n:]), -1)


class Cache:
    """A random cache of some sequences, and new rows for it: arguments of flash_attn_with_kvcache, by official
    FlashAttention-3's names, and what they mean."""

    def __init__(self, draw, device, dtype, *, pages, batch_idx, leftpad, packed, new, rotary):
        self.draw, self.device, self.dtype, self.how = draw, device, dtype, {}
        self.batch, self.heads, self.heads_kv, self.d, self.dv = 3, 4, 2, 32, 16
        self.room = 24  # keys of a sequence
        self.before = [draw.randint(1, 12) for _ in range(self.batch)]
        self.queries = [draw.randint(1, 5) if packed else 3 for _ in range(self.batch)]
        self.added = [0] * self.batch
        self.padding = [draw.randint(0, n - 1) if leftpad else 0 for n in self.before]
        self.how["cache_seqlens"] = self.ints(*self.before)
        if leftpad:
            self.how["cache_leftpad"] = self.ints(*self.padding)
        self.place(pages, batch_idx)
        self.make_queries(packed)
        if new:
            self.make_new(packed, new == "as queries")
        self.rotary = rotary
        if rotary:
            angles = torch.arange(40)[:, None] * torch.logspace(0, -2, rotary // 2)
            names = ("rotary_cos", "rotary_sin")
            self.how.update({name: x.to(device) for name, x in zip(names, (angles.cos(), angles.sin()))})
            self.how["rotary_interleaved"] = draw.random() < 0.5
            if draw.random() < 0.5:
                self.how["rotary_seqlens"] = self.ints(*(n // 2 for n in self.before))

    def ints(self, *numbers):
        return torch.tensor(numbers, dtype=torch.int32, device=self.device)

    def normal(self, *dims):
        return torch.randn(dims).to(self.device, self.dtype)

    def sums(self, lengths):
        return self.ints(*(sum(lengths[:i]) for i in range(len(lengths) + 1)))

    def place(self, page_size, batch_idx):
        caches = 5 if batch_idx else self.batch
        entries = self.draw.sample(range(caches), self.batch)
        if batch_idx:
            self.how["cache_batch_idx"] = self.ints(*entries)
        else:
            entries = range(self.batch)
        size = page_size or self.room
        each = self.room // size
        count = caches * each + 2 * bool(page_size)
        table = torch.tensor(self.draw.sample(range(count), caches * each)).view(caches, each)
        if page_size:
            self.how["page_table"] = table.int().to(self.device)
        else:
            table = torch.arange(caches)[:, None]
        self.table = table[list(entries)]
        self.size = size
        self.k, self.v = (self.normal(count, size, self.heads_kv, d) for d in (self.d, self.dv))

    def make_queries(self, packed):
        if packed:
            self.q = self.normal(sum(self.queries), self.heads, self.d)
            self.how.update(cu_seqlens_q=self.sums(self.queries), max_seqlen_q=max(self.queries))
        else:
            self.q = self.normal(self.batch, self.queries[0], self.heads, self.d)

    def make_new(self, packed, as_queries):
        if packed:
            self.added = self.queries if as_queries else [self.draw.randint(0, 5) for _ in range(self.batch)]
            dims = (sum(self.added),)
            self.how["cu_seqlens_k_new"] = self.how["cu_seqlens_q"] if as_queries else self.sums(self.added)
        else:
            self.added = [self.queries[0] if as_queries else 2] * self.batch
            dims = (self.batch, self.added[0])
        self.how.update(k=self.normal(*dims, self.heads_kv, self.d), v=self.normal(*dims, self.heads_kv, self.dv))

    def rows(self, x, b, lengths, packed):
        """Those of sequence b."""
        return x[sum(lengths[:b]) :][: lengths[b]] if packed else x[b, : lengths[b]]

    def keys(self, x, b, start, end):
        """Of a cache: those of sequence b at these positions."""
        at = torch.arange(start, end)
        return x[self.table[b][at // self.size], at % self.size]

    def exact(self, k_cache, v_cache, **mask):
        """For each sequence (expected new keys, those in k_cache, expected new values, those in v_cache; its rows' o
        and lse over the caches as they are now)."""
        packed = "cu_seqlens_q" in self.how
        moving = mask.get("causal") or mask.get("window", (-1, -1)) != (-1, -1) or mask.get("chunk")
        for b in range(self.batch):
            start, end = self.before[b], self.before[b] + self.added[b]
            q = self.rows(self.q, b, self.queries, packed)
            new = [q[:0]] * 2
            if "k" in self.how:
                new = [self.rows(self.how[name], b, self.added, "cu_seqlens_k_new" in self.how) for name in "kv"]
            if self.rotary:
                first = self.how["rotary_seqlens"][b].item() if "rotary_seqlens" in self.how else start
                turn = lambda x, step: rotated(x, self.how["rotary_cos"], self.how["rotary_sin"],
                                               first + step * torch.arange(len(x), device=x.device),
                                               self.how["rotary_interleaved"])  # fmt: skip
                new[0], q = turn(new[0], 1), turn(q, int(bool(moving))).to(self.dtype)
            keys, values = (self.keys(x, b, self.padding[b], end) for x in (k_cache, v_cache))
            written = [self.keys(x, b, start, end) for x in (k_cache, v_cache)]
            yield new[0], written[0], new[1], written[1], *plain(q, keys, values, **mask)


# ---- comparisons ----


def normal(device, *dims, dtype=None):
    return torch.randn(dims).to(device, dtype or (torch.float32 if device == "cpu" else torch.bfloat16))


def ints(device, *numbers):
    return torch.tensor(numbers, dtype=torch.int32, device=device)


def close(found, expected, what):
    """Up to the rounding of found's dtype; kernels also round P, and gradients come from products that were rounded."""
    assert found.shape == expected.shape, (what, found.shape, expected.shape)
    finite = expected.isfinite()
    assert torch.equal(found.isfinite(), finite) and torch.equal(found[~finite].double(), expected[~finite]), what
    roundoff = {torch.float32: 1e-3 if found.is_cuda else 1e-5, torch.bfloat16: 2.0**-6}[found.dtype]
    error = (found.double() - expected)[finite].abs().max().item() if finite.any() else 0
    assert error <= roundoff * max(1.0, expected[finite].abs().max().item() if finite.any() else 1), (what, error)


@contextlib.contextmanager
def no_wait(device):
    """Whoever makes the host wait for the GPU fails."""
    if device == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("default")


def differentiated(call, exact, tensors, what, rows=None):
    """o and lse of `call` and their gradients are those of `exact` in float64. rows: those of o that are in use."""
    leaves = [x.detach().clone().requires_grad_() for x in tensors]
    doubles = [x.detach().double().requires_grad_() for x in tensors]
    with no_wait(tensors[0].device.type):
        o, lse = call(*leaves)
    exact_o, exact_lse = exact(*doubles)
    some = slice(None) if rows is None else rows
    close(o[some], exact_o[some], (what, "o"))
    close(lse[..., some] if rows is not None else lse, exact_lse[..., some] if rows is not None else exact_lse, what)
    dout = torch.randn(exact_o.shape).to(o.device, o.dtype)
    dout = dout if rows is None else dout * torch.zeros_like(dout).index_fill_(0, rows, 1)
    found = torch.autograd.grad(o, leaves, dout)
    for name, x, y in zip("qkv", found, torch.autograd.grad(exact_o, doubles, dout.double())):
        close(x, y, (what, f"d{name}"))


MASKS = (  # by official's names, and as plain attention has them
    ({}, {}),
    ({"causal": True}, {"causal": True}),
    ({"window_size": (3, -1), "causal": True}, {"window": (3, -1), "causal": True}),
    ({"window_size": torch.tensor([2, 1])}, {"window": (2, 1)}),
    ({"window_size": (-1, 4), "softcap": 2.0}, {"window": (-1, 4), "softcap": 2.0}),
)
CHUNKS = (
    ({"attention_chunk": 4}, {"chunk": 4}),
    ({"attention_chunk": 4, "causal": True}, {"chunk": 4, "causal": True}),
    ({"attention_chunk": 4, "window_size": (9, 3)}, {"chunk": 4}),
    ({"attention_chunk": 5, "window_size": (2, -1), "causal": True}, {"chunk": 5, "window": (2, 0)}),
    ({"attention_chunk": 5, "window_size": (1, 2)}, {"chunk": 5, "window": (1, 2)}),
)


def by_batch(mask, slopes=None, sinks=None):
    def exact(q, k, v):
        each = [plain(*x, **mask, slopes=None if slopes is None else slopes[b] if slopes.ndim == 2 else slopes,
                      sinks=sinks) for b, x in enumerate(zip(q, k, v))]  # fmt: skip
        return tuple(torch.stack(x) for x in zip(*each))

    return exact


def run(*cases):
    torch.manual_seed(1)
    found = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
    for device in ("cpu", "cuda") if found else ("cpu",):
        for case in cases:
            case(device)
            print(f"{device}: {case.__name__}", flush=True)
    if not found:
        print("SKIPPED: the cases for CUDA tensors: torch finds no GPU of compute capability 9.0")
    print(f"torch {torch.__version__} agrees")
