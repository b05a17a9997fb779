"""The calls of a plan, forward and backward, and their derivatives for torch's autograd."""

from __future__ import annotations

import functools
from typing import NamedTuple, Optional

import torch

import fa3

from . import methods


class How(NamedTuple):
    """What all calls have in common."""

    softmax_scale: Optional[float]
    softcap: Optional[float]
    deterministic: bool


@functools.lru_cache(maxsize=256)
def _lengths(cu_seqlens, device):
    return torch.tensor(cu_seqlens, dtype=torch.int32, device=device)


class _Part:
    """Rows and keys of one call, in the shapes that fa3 takes. One document of a packed tensor is a batch of one."""

    def __init__(self, call, dim, how, device):
        self.call, self.dim, self.alone = call, dim, dim == 0 and not call.cu_seqlens_q
        self.named = {"window": (call.left, call.right), "softmax_scale": how.softmax_scale, "softcap": how.softcap}
        if call.cu_seqlens_q:
            for name, sums in (("q", call.cu_seqlens_q), ("k", call.cu_seqlens_k)):
                self.named[f"cu_seqlens_{name}"] = _lengths(sums, device)
                self.named[f"max_seqlen_{name}"] = max(b - a for a, b in zip(sums, sums[1:]))

    def rows(self, x):
        part = x.narrow(self.dim, self.call.q_start, self.call.q_end - self.call.q_start)
        return part.unsqueeze(0) if self.alone else part

    def keys(self, x):
        part = x.narrow(self.dim, self.call.k_start, self.call.k_end - self.call.k_start)
        return part.unsqueeze(0) if self.alone else part

    def of_lse(self, x):
        """A view of x, whose rows come last."""
        part = x.narrow(-1, self.call.q_start, self.call.q_end - self.call.q_start)
        return part.unsqueeze(0) if self.alone else part

    def own_lse(self, x):
        """A copy, aligned as tensors must be."""
        return None if x is None else self.of_lse(x).clone(memory_format=torch.contiguous_format)


def _weights(lse):
    """As a factor of o."""
    return lse.exp().transpose(-1, -2).unsqueeze(-1)


def _merge(o, lse, o_part, lse_part):
    """Adds to o and lse, in float32, the result over some more keys. Rows that had none before have an lse of -inf;
    now they have some, as a call has no rows that see none."""
    both = torch.logaddexp(lse, lse_part)
    o.mul_(_weights(lse - both)).add_(_weights(lse_part - both) * o_part)
    lse.copy_(both)


def _forward(plan, how, q, k, v, sinks):
    dims = (*q.shape[:-1], v.shape[-1])
    o = q.new_zeros(dims, dtype=torch.float32 if plan.merges else q.dtype)
    lse = q.new_full((*q.shape[: plan.dim], q.shape[-2], q.shape[plan.dim]), -torch.inf, dtype=torch.float32)
    for calls, keys, values in methods.chunks(plan, k, v):
        for call in calls:
            part = _Part(call, plan.dim, how, q.device)
            inputs = part.rows(q), part.keys(keys), part.keys(values)
            if plan.merges:
                _merge(part.rows(o), part.of_lse(lse), *fa3.forward(*inputs, return_lse=True, **part.named))
            else:
                named = {**part.named, "sinks": sinks, "out": part.rows(o)}
                part.of_lse(lse).copy_(fa3.forward(*inputs, return_lse=True, **named)[1])
    if plan.merges and sinks is not None:  # one more addend of each row's sum, without a value
        both = torch.logaddexp(lse, sinks[:, None])
        o.mul_(_weights(lse - both))
        lse = both
    return o.to(q.dtype), lse


def _backward(plan, how, dout, dlse, q, k, v, o, lse):
    """(dq, dk, dv). With o and lse over all keys the backward pass of a part is that part of the whole's."""
    dq = torch.zeros_like(q, dtype=torch.float32 if plan.merges else q.dtype)
    gradients = methods.Gradients(plan, k, v)
    for calls, keys, values in methods.chunks(plan, k, v):
        found = [] if keys is None else [torch.zeros_like(x, dtype=torch.float32) for x in (keys, values)]
        for call in calls:
            part = _Part(call, plan.dim, how, q.device)
            inputs = part.rows(dout), part.rows(q), part.keys(keys), part.keys(values), part.rows(o)
            named = {**part.named, "dlse": part.own_lse(dlse), "deterministic": how.deterministic}
            parts = fa3.backward(*inputs, part.own_lse(lse), **named)
            for total, x in zip((part.rows(dq), *map(part.keys, found)), parts):
                total.add_(x)
        gradients.add(found)
    return dq.to(q.dtype), *(x.to(k.dtype) for x in gradients.total())


def _of_sinks(sinks, dout, dlse, o, lse):
    """The gradient of the sinks by this rank's rows."""
    delta = (dout.float() * o.float()).sum(-1).transpose(-1, -2)
    delta = delta if dlse is None else delta - dlse
    by_row = -(sinks[:, None] - lse).exp() * delta
    return by_row.movedim(-2, 0).flatten(1).sum(1)


class Attention(torch.autograd.Function):
    """(o, lse) of this rank's rows and the keys of the ranks of plan.keys."""

    @staticmethod
    def forward(ctx, plan, how, q, k, v, sinks):
        o, lse = _forward(plan, how, q, k, v, sinks)
        ctx.save_for_backward(q, k, v, sinks, o, lse)
        ctx.plan, ctx.how = plan, how
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dout, dlse):
        q, k, v, sinks, o, lse = ctx.saved_tensors
        dout = torch.zeros_like(o) if dout is None else dout
        gradients = _backward(ctx.plan, ctx.how, dout, dlse, q, k, v, o, lse)
        dsinks = _of_sinks(sinks, dout, dlse, o, lse) if ctx.needs_input_grad[5] else None
        return None, None, *gradients, dsinks


class RowsToHeads(torch.autograd.Function):
    """`methods.rows_to_heads`, whose derivative is the way back."""

    @staticmethod
    def forward(ctx, plan, x):
        ctx.plan, ctx.heads = plan, x.shape[-2]
        return methods.rows_to_heads(plan.heads, x, plan.parts, plan.dim)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        return None, methods.heads_to_rows(ctx.plan.heads, gradient, ctx.plan.parts, ctx.plan.dim, ctx.heads)


class HeadsToRows(torch.autograd.Function):
    """`methods.heads_to_rows` of as many heads as q has, whose derivative is the way there."""

    @staticmethod
    def forward(ctx, plan, x):
        ctx.plan = plan
        return methods.heads_to_rows(plan.heads, x, plan.parts, plan.dim, x.shape[-2] * plan.heads.size)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        return None, methods.rows_to_heads(ctx.plan.heads, gradient, ctx.plan.parts, ctx.plan.dim)


def attention(plan, how, q, k, v, sinks, with_lse):
    """(o, lse) of this rank's rows; without with_lse lse is None."""
    team = plan.heads
    if team.size == 1:
        o, lse = Attention.apply(plan, how, q, k, v, sinks)
        return o, lse if with_lse else None
    if sinks is not None:
        sinks = sinks.narrow(0, *methods.layouts.heads_of(q.shape[-2], team.size, team.rank))
    q, k, v = (RowsToHeads.apply(plan, x) for x in (q, k, v))
    o, lse = Attention.apply(plan, how, q, k, v, sinks)
    o = HeadsToRows.apply(plan, o)
    if with_lse:  # as a tensor of one number for each row and head
        lse = HeadsToRows.apply(plan, lse.transpose(-1, -2).unsqueeze(-1)).squeeze(-1).transpose(-1, -2)
    return o, lse if with_lse else None
