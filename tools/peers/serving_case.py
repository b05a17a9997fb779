"""A planned call of fa3-bench's sets as tensors of torch, which serving.py gives to the library and to its peers.

Rows of N(0,1) in bf16: q is (rows, heads, head_dim), k and v likewise, or with pages (pages, page, kv_heads, head_dim)
in any order. Scores of calls with softcap are N(0,16), as only larger ones are capped. The numbers of large caches are
drawn in parts."""

import math

PART = 1 << 26  # numbers


def mixed_pages(counts, generator):
    """The page table of sequences with so many pages each, in any order; entries behind them name page 0."""
    import torch

    order = torch.randperm(sum(counts), generator=generator).int()
    table = torch.zeros(len(counts), max(counts), dtype=torch.int32)
    for row, pages in zip(table, order.split(counts)):
        row[: len(pages)] = pages
    return table


class Case:
    """point: one of fa3-bench's (peers_points.Point) that is planned. lengths and lengths_k: queries and keys of each
    sequence. As tensors of the device: q, k, v; of a backward pass dout; cu_q, and cu_k or used_k with table; sinks
    (numbers that bf16 has, as peers take them) and slopes, or None. left: keys before its own that a query sees, -1:
    all."""

    def __init__(self, point, device, seed=1):
        import torch

        planned = point.planned
        self.point, self.device, self.planned = point, device, planned
        self.kind, self.name = planned["kind"] or "batch", planned["name"] or point.label
        self.backward = point.direction == "bwd"
        self.heads, self.kv_heads, self.d, self.dv = point.heads, point.kv_heads, point.head_dim, point.head_dim_v
        self.packed = bool(planned["lengths"])
        self.lengths = planned["lengths"] or [point.seqlen] * point.batch
        self.lengths_k = planned["lengths_k"] or [point.seqlen_k] * point.batch
        self.max_q, self.max_k = max(self.lengths), max(self.lengths_k)
        self.causal, self.left = point.causal, planned["window"]
        self.page, self.softcap = planned["page"], planned["softcap"]
        self.latent = self.d > 512  # V is the first columns of K
        self.key_dtype = torch.float8_e4m3fn if planned["e4m3_cache"] else torch.bfloat16
        self.key_scale = 0.5 if planned["e4m3_cache"] else 1.0
        self.generator = torch.Generator(device=device).manual_seed(seed)

        ints = lambda numbers: torch.tensor(numbers, dtype=torch.int32, device=device)
        sums = lambda lengths: ints([0, *lengths]).cumsum(0).int()
        self.cu_q, self.used_k, self.cu_k, self.table = sums(self.lengths), ints(self.lengths_k), None, None
        rows_k = sum(self.lengths_k)
        if self.page:
            counts = [-(-n // self.page) for n in self.lengths_k]
            self.table = mixed_pages(counts, torch.Generator().manual_seed(seed)).to(device)
            rows_k = sum(counts) * self.page
        else:
            self.cu_k = sums(self.lengths_k)
        self.q = self.normal(sum(self.lengths), self.heads, self.d)
        self.device = self.q.device
        if self.softcap:
            self.q *= 4
        self.k = self.keys(rows_k, self.d)
        self.v = self.k[..., : self.dv] if self.latent else self.keys(rows_k, self.dv)
        self.dout = self.normal(sum(self.lengths), self.heads, self.dv) if self.backward else None
        bf16 = lambda numbers: torch.tensor(numbers, device=device).bfloat16().float()
        self.sinks = bf16([math.sin(h) for h in range(self.heads)]) if planned["sinks"] else None
        slopes = [2 ** (-8 * (h + 1) / self.heads) for h in range(self.heads)]
        self.slopes = torch.tensor(slopes, device=device) if planned["alibi"] else None

    def normal(self, *shape, dtype=None):
        import torch

        made = torch.empty(shape, dtype=dtype or torch.bfloat16, device=self.device)
        flat = made.view(-1)
        for at in range(0, flat.numel(), PART):
            part = flat[at : at + PART]
            part.copy_(torch.randn(part.numel(), generator=self.generator, device=self.device))
        return made

    def keys(self, rows, columns):
        made = self.normal(rows, self.kv_heads, columns, dtype=self.key_dtype)
        return made.view(-1, self.page, self.kv_heads, columns) if self.page else made

    def window(self):
        """(left, right), as most peers have it; (-1, -1) without."""
        return (self.left, 0) if self.left >= 0 else (-1, -1)

    def batched(self, x):
        """Rows of sequences of one length as (batch, seqlen, heads, columns)."""
        return x.view(len(self.lengths), -1, *x.shape[1:])

    def rows_of(self, x, sequence):
        """Of q, o or their gradients."""
        begin = sum(self.lengths[:sequence])
        return x[begin : begin + self.lengths[sequence]]

    def keys_of(self, x, sequence):
        """Of k or v: the sequence's, (keys, kv_heads, columns)."""
        n = self.lengths_k[sequence]
        if self.table is None:
            begin = sum(self.lengths_k[:sequence])
            return x[begin : begin + n]
        return x[self.table[sequence, : -(-n // self.page)].long()].flatten(0, 1)[:n]

    def is_memory_bound(self):
        """A step of decoding, whose speed is that of reading K and V."""
        return bool(self.page) and self.max_q <= 4 and not self.latent

    def is_cold(self):
        """Does it find nothing in the L2 cache, as other layers ran before?"""
        return bool(self.page)

    def work(self):
        """Bytes of K and V, or operations."""
        return self.planned["kv_bytes"] if self.is_memory_bound() else self.point.flop
