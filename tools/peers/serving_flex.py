"""FlexAttention's calls of windows, sinks, softcap, ALiBi and packed documents, compiled by torch, in both directions.
See serving_calls.py for what makers return."""

from serving_calls import autograd


def documents_of(case):
    """Of each row of varlen sequences the number of its sequence."""
    import torch

    lengths = torch.tensor(case.lengths, device=case.device)
    return torch.repeat_interleave(torch.arange(len(case.lengths), device=case.device), lengths)


def mask_of(case):
    if case.packed:
        document = documents_of(case)
        return lambda b, h, i, j: (i >= j) & (document[i] == document[j])
    if case.left >= 0:
        return lambda b, h, i, j: (i >= j) & (i - j <= case.left)
    return lambda b, h, i, j: i >= j


def score_of(case):
    import torch

    if case.softcap:
        return lambda s, b, h, i, j: case.softcap * torch.tanh(s / case.softcap)
    if case.slopes is not None:
        return lambda s, b, h, i, j: s + case.slopes[h] * (j - i)
    return None


def make_flex():
    import torch
    from torch.nn.attention import flex_attention as flex

    torch._dynamo.config.cache_size_limit = torch._dynamo.config.recompile_limit = 256
    attention, block_mask = (
        torch.compile(function, dynamic=False) for function in (flex.flex_attention, flex.create_block_mask)
    )

    def prepare(case):
        if case.page or case.latent or (case.packed and case.kind.removesuffix("_bwd") != "doc"):
            return None
        q, k, v = ((x[None] if case.packed else case.batched(x)) for x in (case.q, case.k, case.v))
        rows, grouped = q.shape[1], case.heads != case.kv_heads
        mask = block_mask(mask_of(case), None, None, rows, rows, device=case.device)
        how = {"score_mod": score_of(case), "block_mask": mask, "enable_gqa": grouped}

        def forward(q, k, v):
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            if case.sinks is None:
                return attention(q, k, v, **how).transpose(1, 2)
            out, lse = attention(q, k, v, **how, return_lse=True)
            share = torch.sigmoid(lse - case.sinks.view(1, -1, 1)).unsqueeze(-1)
            return (out * share).to(out.dtype).transpose(1, 2)

        return autograd(forward, (q, k, v), case.dout) if case.backward else lambda: forward(q, k, v)

    return prepare


PEERS = {"flex": make_flex}
