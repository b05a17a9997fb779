"""Plain attention in float64 for the tests of the interfaces: one sequence at a time, with every mask and transform of
scores; rotary embedding; and random lengths, pages and caches."""

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
