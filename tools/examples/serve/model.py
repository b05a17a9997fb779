"""Small models with random weights, as Llama (RMSNorm, rotary embedding, SwiGLU, grouped heads) and with what gpt-oss
has besides: learned sinks, and a sliding window in every second layer. And how their attention is computed: `plain`,
on a whole sequence without a cache, is what the others must agree with; Fa3, Torch and Vllm work on a `Batch` of new
tokens of many sequences, whose keys and values lie in pages."""

from __future__ import annotations

import math
from typing import List, NamedTuple, Optional, Tuple

import fa3
import torch
from torch.nn.functional import scaled_dot_product_attention, silu


class Sizes(NamedTuple):
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int  # a multiple of 16, as all of it is rotated
    vocabulary: int
    window: Optional[int] = None  # how many tokens one sees in every second layer, itself included
    sinks: bool = False


MODELS = {
    "llama": Sizes(16, 2048, 32, 8, 64, 32000),
    "gpt-oss": Sizes(12, 2048, 64, 8, 64, 32000, window=128, sinks=True),
}
ON_CPU = {
    "llama": Sizes(2, 32, 4, 2, 16, 300),
    "gpt-oss": Sizes(2, 32, 8, 1, 16, 300, window=10, sinks=True),
}


class Prefixes(NamedTuple):
    """The prefixes that sequences of a batch share. They are attended by groups of sequences that follow each other; a
    sequence that shares nothing is a group with a prefix of 0 keys. What lies behind them is attended by sequence."""

    cu: torch.Tensor  # (groups + 1,): group g has the rows cu[g] to cu[g + 1] - 1
    keys: torch.Tensor  # (groups,): the prefix's
    table: torch.Tensor  # (groups, pages)
    keys_behind: torch.Tensor  # (sequences,)
    table_behind: torch.Tensor  # (sequences, pages)


class Batch(NamedTuple):
    """One step's new tokens, packed. Sequences with one new token each come first, then those with more. All tensors
    but `tokens` and `ids` are int32. Those of a CUDA graph keep their places in memory and get other numbers, so it
    has some sequences too many: they have no tokens, and rows behind the last sequence belong to nobody."""

    tokens: torch.Tensor  # (rows,)
    ids: torch.Tensor  # (sequences,): who they are
    cu: torch.Tensor  # (sequences + 1,): sequence b has the rows cu[b] to cu[b + 1] - 1
    before: torch.Tensor  # (sequences,): how many of its keys are in the cache before this step
    keys: torch.Tensor  # (sequences,): and how many after it
    table: torch.Tensor  # (sequences, pages)
    prefixes: Optional[Prefixes]
    single: int  # so many sequences are of one token, or of none
    chunks: List[Tuple[int, int, int]]  # (number of the sequence, tokens, keys) of each of the others
    longest_group: int  # at least as many rows as any group of `prefixes` has
    longest: int  # and as many keys as any sequence has

    @property
    def most_rows(self):
        return max((rows for _, rows, _ in self.chunks), default=1)


# ---- the model ----


def rotated(x, cos, sin):
    """x: (rows, heads, head_dim); cos, sin: (rows, head_dim / 2) in float32."""
    a, b = x.float().chunk(2, 2)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((a * cos - b * sin, a * sin + b * cos), 2).to(x.dtype)


class Layer(torch.nn.Module):
    def __init__(self, sizes, number):
        super().__init__()
        width, self.head_dim, self.number = sizes.width, sizes.head_dim, number
        self.window = sizes.window if number % 2 == 0 else None
        self.heads = [sizes.heads, sizes.kv_heads, sizes.kv_heads]
        linear = lambda rows, columns: torch.nn.Linear(rows, columns, bias=False)
        self.norm, self.mlp_norm = torch.nn.RMSNorm(width, eps=1e-5), torch.nn.RMSNorm(width, eps=1e-5)
        self.qkv = linear(width, sum(self.heads) * sizes.head_dim)
        self.out = linear(sizes.heads * sizes.head_dim, width)
        self.gate_up, self.down = linear(width, 6 * width), linear(3 * width, width)
        self.sinks = None

    def forward(self, x, attend):
        q, k, v = self.qkv(self.norm(x)).unflatten(1, (-1, self.head_dim)).split(self.heads, 1)
        x = x + self.out(attend(self, q, k, v).flatten(1))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, 1)
        return x + self.down(silu(gate) * up)


class Model(torch.nn.Module):
    """Weights by `seed`; `positions`: for so many tokens of a sequence there are angles of the rotary embedding."""

    def __init__(self, sizes, positions, seed, dtype, device):
        super().__init__()
        torch.manual_seed(seed)
        self.sizes = sizes
        with torch.device(device):
            self.embedding = torch.nn.Embedding(sizes.vocabulary, sizes.width)
            self.layers = torch.nn.ModuleList(Layer(sizes, number) for number in range(sizes.layers))
            self.norm = torch.nn.RMSNorm(sizes.width, eps=1e-5)
            self.head = torch.nn.Linear(sizes.width, sizes.vocabulary, bias=False)
            angles = torch.arange(positions)[:, None] * 10000 ** -torch.linspace(0, 1, sizes.head_dim // 2)
        for module in self.modules():  # scores of a standard deviation that makes the softmax matter
            if isinstance(module, torch.nn.Linear):
                torch.nn.init.normal_(module.weight, std=1.5 * module.in_features**-0.5)
        self.to(dtype).requires_grad_(False)
        self.cos, self.sin = angles.cos(), angles.sin()
        for layer in self.layers if sizes.sinks else ():
            layer.sinks = torch.randn(sizes.heads, device=device) + 2  # in float32, as fa3 takes them

    def forward(self, tokens, attend, rows=None):
        """Logits in float32 of these rows of the packed tokens, of all if None."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, attend)
        return self.head(self.norm(x if rows is None else x[rows])).float()

    def logits(self, tokens):
        """Those of each token of one sequence, without cache, pages and libfa3."""
        return self(tokens, lambda layer, q, k, v: plain(layer, q, k, v, self.cos, self.sin))


def plain(layer, q, k, v, cos, sin):
    rows = len(q)
    q, k = rotated(q, cos[:rows], sin[:rows]), rotated(k, cos[:rows], sin[:rows])
    k, v = (x.repeat_interleave(layer.heads[0] // layer.heads[1], 1).float() for x in (k, v))
    scores = torch.einsum("ihd,jhd->hij", q.float(), k) / math.sqrt(layer.head_dim)
    behind = torch.arange(rows, device=q.device)[:, None] - torch.arange(rows, device=q.device)
    hidden = behind < 0 if layer.window is None else (behind < 0) | (behind >= layer.window)
    scores = scores.masked_fill(hidden, -math.inf)
    if layer.sinks is not None:
        scores = torch.cat((scores, layer.sinks[:, None, None].expand(-1, rows, 1)), 2)
    return torch.einsum("hij,jhd->ihd", scores.softmax(2)[:, :, :rows], v).to(q.dtype)


# ---- attention in pages ----


class Fa3:
    """One call of fa3.append writes the new keys and values into their pages, with rotary embedding of keys and
    queries; fa3.forward attends. A schedule is planned by the first layer of its kind, and taken by the others."""

    def __init__(self, model, pages, page_size):
        self.model, self.pages, self.page_size = model, pages, page_size
        like, sizes = model.head.weight, model.sizes
        # One page more than there are: what belongs to nobody may be written there, where a write needs a place.
        dims = sizes.layers, 2, pages + 1, page_size, sizes.kv_heads, sizes.head_dim
        self.caches = torch.zeros(dims, dtype=like.dtype, device=like.device)

    def preload(self):
        """Before a CUDA graph is captured."""
        fa3.preload(self.caches.device)

    def logits(self, batch):
        """Those behind the last token of each sequence."""
        self.batch, self.schedules = batch, {}
        return self.model(batch.tokens, self.attend, batch.cu[1:].long() - 1)

    def attend(self, layer, q, k, v):
        batch, (k_cache, v_cache) = self.batch, self.caches[layer.number]
        q = self.append(q, k, v, k_cache, v_cache)
        if batch.prefixes is not None and layer.window is None:
            return self.cascade(layer, q, k_cache, v_cache)
        window = None if layer.window is None else (layer.window - 1, 0)
        how = {"cu_seqlens_q": batch.cu, "max_seqlen_q": batch.most_rows, "seqused_k": batch.keys, "causal": True,
               "max_seqlen_k": batch.longest, "page_table": batch.table, "sinks": layer.sinks, "window": window}
        return self.forward(("all", window), q, k_cache, v_cache, **how)

    def append(self, q, k, v, k_cache, v_cache):
        """q rotated; rotated keys, and values, are in the pages then."""
        batch, cos, sin = self.batch, self.model.cos, self.model.sin
        if q.dtype == torch.float32:  # for tests on the CPU: fa3.append is for 16 bits
            return self.append_by_torch(q, k, v, k_cache, v_cache)
        return fa3.append(k, v, k_cache, v_cache, q=q, cache_seqlens=batch.before, cu_seqlens_new=batch.cu,
                          page_table=batch.table, rotary_cos=cos, rotary_sin=sin)  # fmt: skip

    def append_by_torch(self, q, k, v, k_cache, v_cache):
        batch = self.batch
        rows = torch.arange(len(q), dtype=torch.int32, device=q.device)
        sequence = torch.searchsorted(batch.cu, rows, right=True) - 1
        nobodys = sequence >= len(batch.before)
        sequence = sequence.clamp(max=len(batch.before) - 1)
        positions = (batch.before[sequence] + rows - batch.cu[sequence]).long().masked_fill(nobodys, 0)
        page = batch.table[sequence, positions // self.page_size].long().masked_fill(nobodys, self.pages)
        row = positions % self.page_size
        k_cache[page, row] = rotated(k, self.model.cos[positions], self.model.sin[positions])
        v_cache[page, row] = v
        return rotated(q, self.model.cos[positions], self.model.sin[positions])

    def forward(self, kind, q, k_cache, v_cache, return_lse=False, **how):
        """kind: calls of the same kind have the same arguments but for q, the caches and the sinks' numbers."""
        if kind not in self.schedules:
            self.schedules[kind] = fa3.forward_schedule(q, k_cache, v_cache, **how)
        return fa3.forward(q, k_cache, v_cache, schedule=self.schedules[kind], return_lse=return_lse, **how)

    def cascade(self, layer, q, k_cache, v_cache):
        """The prefix that a group shares is read once for all of its queries, each of which sees all of it."""
        batch, prefixes = self.batch, self.batch.prefixes
        prefix = {"cu_seqlens_q": prefixes.cu, "max_seqlen_q": max(batch.longest_group, batch.most_rows),
                  "seqused_k": prefixes.keys, "page_table": prefixes.table, "max_seqlen_k": batch.longest}
        behind = {"cu_seqlens_q": batch.cu, "max_seqlen_q": batch.most_rows, "seqused_k": prefixes.keys_behind,
                  "page_table": prefixes.table_behind, "max_seqlen_k": batch.longest, "causal": True,
                  "sinks": layer.sinks}  # in one of the parts only: it is one addend of the whole sum
        parts = [self.forward("prefix", q, k_cache, v_cache, return_lse=True, **prefix),
                 self.forward("behind", q, k_cache, v_cache, return_lse=True, **behind)]
        o_parts, lse_parts = (torch.stack(x)[:, None] for x in zip(*parts))  # combine's: a batch of one
        return fa3.combine(o_parts, lse_parts, return_lse=False)[0]


class Vllm(Fa3):
    """The same with the FlashAttention-3 kernel of vLLM, on the same pages."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        try:
            from vllm.vllm_flash_attn import flash_attn_varlen_func
        except ImportError:
            from vllm_flash_attn import flash_attn_varlen_func
        self.call = flash_attn_varlen_func

    def attend(self, layer, q, k, v):
        batch, (k_cache, v_cache) = self.batch, self.caches[layer.number]
        q = self.append(q, k, v, k_cache, v_cache)
        window = None if layer.window is None else [layer.window - 1, 0]
        sinks = None if layer.sinks is None else layer.sinks.to(q.dtype)
        return self.call(q, k_cache, v_cache, max_seqlen_q=batch.most_rows, cu_seqlens_q=batch.cu,
                         max_seqlen_k=batch.longest, seqused_k=batch.keys, causal=True, window_size=window,
                         block_table=batch.table, s_aux=sinks, fa_version=3)  # fmt: skip


class Torch(Fa3):
    """The same by torch alone: each sequence's pages are gathered for scaled_dot_product_attention, in a CUDA graph as
    many as the longest one may have."""

    def preload(self):
        pass

    def append(self, *tensors):
        return self.append_by_torch(*tensors)

    def attend(self, layer, q, k, v):
        batch, caches = self.batch, self.caches[layer.number]
        q = self.append(q, k, v, *caches)
        pages = -(-batch.longest // self.page_size)
        single = batch.single
        parts = [self.attend_gathered(layer, q[:single, None], caches, batch.table[:single, :pages],
                                      batch.keys[:single, None] - 1)[:, 0]]  # fmt: skip
        start = single
        for number, rows, keys in batch.chunks:
            table = batch.table[number, None, : -(-keys // self.page_size)]
            positions = torch.arange(keys - rows, keys, device=q.device)[None]
            parts.append(self.attend_gathered(layer, q[None, start : start + rows], caches, table, positions)[0])
            start += rows
        return torch.cat(parts)

    def attend_gathered(self, layer, q, caches, table, positions):
        """q: (batch, rows, heads, head_dim); table: (batch, pages); positions: (batch, rows) of the queries."""
        k, v = (cache[table].flatten(1, 2) for cache in caches)
        behind = positions[:, :, None] - torch.arange(k.shape[1], device=q.device)
        hidden = behind < 0 if layer.window is None else (behind < 0) | (behind >= layer.window)
        mask = torch.zeros_like(hidden, dtype=q.dtype).masked_fill(hidden, -math.inf)[:, None]
        if layer.sinks is not None:  # one key more, of zeros, whose score is the sink
            k, v = (torch.nn.functional.pad(x, (0, 0, 0, 0, 0, 1)) for x in (k, v))
            sinks = layer.sinks.to(q.dtype)[:, None, None].expand(len(q), -1, q.shape[1], 1)
            mask = torch.cat((mask.expand(-1, len(layer.sinks), -1, -1), sinks), 3)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True).transpose(1, 2)


ATTENTION = {"fa3": Fa3, "torch": Torch, "vllm": Vllm}
