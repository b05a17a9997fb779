"""Calls that the library has no arguments for, put into the ones that it has: caches in pages with left padding, and
windows inside of chunks. Caches become pages of one row, so that a table tells where each key lies. Tables and lengths
are computed on the device; no key is copied."""

from __future__ import annotations

import torch


def _one_row_pages(name, x):
    try:
        return x.view(-1, 1, *x.shape[2:])
    except RuntimeError:
        raise NotImplementedError(
            f"{name} has gaps between pages or cache entries, or heads before rows, which fa3 does not take with "
            "cache_leftpad in pages, or with attention_chunk and window_size"
        ) from None


def _table(k, page_table, cache_batch_idx):
    """(batch, keys): the row of `_one_row_pages` that each key of each sequence is."""
    pages, size = k.shape[:2]
    if page_table is None:
        first = torch.arange(pages, dtype=torch.int32, device=k.device) if cache_batch_idx is None else cache_batch_idx
        page_table = first[:, None]
    rows = torch.arange(size, dtype=torch.int32, device=k.device)
    return (page_table[..., None] * size + rows).flatten(1)


def without_padding(k, v, page_table=None, cache_batch_idx=None, leftpad_k=None, seqused_k=None, max_seqlen_k=None,
                    **named):  # fmt: skip
    """(k, v, the other arguments): the same keys in pages of one row, without those that are padding."""
    table = _table(k, page_table, cache_batch_idx)
    batch, keys = table.shape
    if seqused_k is None:
        seqused_k = torch.full((batch,), keys, dtype=torch.int32, device=k.device)
    if leftpad_k is not None:
        at = torch.arange(keys, device=k.device) + leftpad_k[:, None]
        table, seqused_k = table.gather(1, at.clamp_(0, keys - 1)), (seqused_k - leftpad_k).clamp_(min=0)
    named = {**named, "page_table": table, "seqused_k": seqused_k}
    return _one_row_pages("k_cache", k), _one_row_pages("v_cache", v), named


def _packed(x, cu_seqlens, used):
    """(rows one behind the other, where each sequence starts, its length, the number of all rows)"""
    if cu_seqlens is not None:
        return x, cu_seqlens[:-1], cu_seqlens.diff() if used is None else used, cu_seqlens[-1:]
    batch, rows = x.shape[:2]
    starts = rows * torch.arange(batch + 1, dtype=torch.int32, device=x.device)
    used = torch.full((batch,), rows, dtype=torch.int32, device=x.device) if used is None else used
    return x.flatten(0, 1), starts[:-1], used, starts[-1:]


def _parts(starts, edges, end):
    """(cu_seqlens, lengths) of the parts of each sequence between these (batch, parts + 1) rows of it."""
    return torch.cat(((starts[:, None] + edges[:, :-1]).flatten(), end)), edges.diff(dim=1).flatten()


def chunks(call, q, k, v, chunk, *, out=None, cu_seqlens_q=None, cu_seqlens_k=None, seqused_q=None, seqused_k=None,
           max_seqlen_q=None, max_seqlen_k=None, page_table=None, cache_batch_idx=None, leftpad_k=None, qv=None,
           **named):  # fmt: skip
    """`call` with a sequence for each chunk, and one before them for the queries that stand before the first key."""
    cached = page_table is not None or cache_batch_idx is not None or leftpad_k is not None
    if cached and cu_seqlens_k is not None:
        raise NotImplementedError("leftpad_k and cu_seqlens_k are given with attention_chunk and window_size, which "
                                  "fa3 does not compute")  # fmt: skip
    rows, starts_q, lengths_q, end_q = _packed(q, cu_seqlens_q, seqused_q)
    if qv is not None:
        named["qv"] = _packed(qv, cu_seqlens_q, seqused_q)[0]
    if cached:
        cache = {"page_table": page_table, "cache_batch_idx": cache_batch_idx, "leftpad_k": leftpad_k}
        k, v, placed = without_padding(k, v, seqused_k=seqused_k, **cache)
        table, lengths_k = placed["page_table"], placed["seqused_k"]
        most = table.shape[1]
    else:
        most = k.shape[1] if cu_seqlens_k is None else k.shape[0] if max_seqlen_k is None else max_seqlen_k
        k, starts_k, lengths_k, end_k = _packed(k, cu_seqlens_k, seqused_k)
        v = v if cu_seqlens_k is not None else v.flatten(0, 1)
    count = -(-most // chunk)
    batch = lengths_q.shape[0]
    edges = chunk * torch.arange(count + 1, dtype=torch.int32, device=q.device)
    before = edges.new_zeros(batch, 1)
    edges_q = edges - (lengths_k - lengths_q)[:, None]
    edges_q = torch.cat((before, edges_q.clamp_(min=0).minimum(lengths_q[:, None])), 1)
    edges_k = torch.cat((before, edges.minimum(lengths_k[:, None])), 1)
    named["cu_seqlens_q"], named["seqused_q"] = _parts(starts_q, edges_q, end_q)
    named["max_seqlen_q"] = max_seqlen_q if cu_seqlens_q is not None else q.shape[1]
    named["max_seqlen_k"] = min(chunk, most)
    if cached:
        table = torch.nn.functional.pad(table, (chunk, count * chunk - most))
        named["page_table"], named["seqused_k"] = table.view(-1, chunk), edges_k.diff(dim=1).flatten()
    else:
        named["cu_seqlens_k"], named["seqused_k"] = _parts(starts_k, edges_k, end_k)
    for name in ("q_scale", "k_scale", "v_scale"):
        if name in named and named[name].shape[0] > 1:
            named[name] = named[name].repeat_interleave(count + 1, 0)
    if cu_seqlens_q is not None:
        return call(rows, k, v, out=out, **named)
    o, lse = call(rows, k, v, out=None if out is None else out.view(-1, *out.shape[2:]), **named)
    return (o.unflatten(0, q.shape[:2]) if out is None else out), lse.unflatten(1, q.shape[:2]).transpose(0, 1)
