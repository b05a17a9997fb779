"""The calls of a plan, forward and backward, and their derivatives for torch's autograd."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from fa3._frameworks import torch as _torch

from . import kernels, layouts, methods


class Run(NamedTuple):
    """One call of attention. prepared: the library's calls, as kernels.Calls keeps them, of others of its kind."""

    plan: Any
    heads: methods.Team
    keys: methods.Team
    how: kernels.How
    prepared: dict


def _strides(*tensors):
    return tuple([None if x is None else x.stride() for x in tensors])


def _outputs(plan, how, q, v):
    """(o, lse, parts, sums): the results, and where the calls write theirs, which are merged if they have slots."""
    o = q.new_empty((*q.shape[:-1], v.shape[-1]))
    lse = q.new_empty((*q.shape[: plan.dim], q.shape[-2], q.shape[plan.dim]), dtype=torch.float32)
    if plan.slots == 1:
        return o, lse, o, lse
    dtype = torch.float32 if kernels.gives_float32(q, v, how) else q.dtype
    return o, lse, o.new_empty((plan.slots, *o.shape), dtype=dtype), lse.new_empty((plan.slots, *lse.shape))


def _forward(run, q, k, v, sinks):
    plan, merges = run.plan, run.plan.slots > 1
    o, lse, parts, sums = _outputs(plan, run.how, q, v)
    if not o.numel():
        for _ in methods.chunks(plan, run.keys, k, v):
            pass
        return o, lse
    in_calls = None if merges else sinks
    if merges and plan.has_gaps:
        sums.fill_(-math.inf)
    calls = kernels.Calls(run.prepared, ("forward", _strides(q, k, v, in_calls)), q.device)
    addresses = {"q": q.data_ptr(), "o": parts.data_ptr(), "lse": sums.data_ptr()}
    if in_calls is not None:
        addresses["sinks"] = sinks.data_ptr()
    merged = {"o_parts": parts.data_ptr(), "lse_parts": sums.data_ptr(), "o": o.data_ptr(), "lse": lse.data_ptr()}
    wholes, folded = {"o_parts": parts, "lse_parts": sums, "o": o, "lse": lse}, None
    for step, keys in methods.chunks(plan, run.keys, k, v):
        if step.jobs:
            addresses["k"], addresses["v"] = keys.addresses()
        for job in step.jobs:
            if job.folds:
                if folded is None:
                    folded = parts.new_empty(o.shape)
                to = {**merged, "o": folded.data_ptr()}
                calls.run(to, kernels.combine, **{**wholes, "o": folded})
                parts[0].copy_(folded)
                sums[0].copy_(lse)
                sums[1:].fill_(-math.inf)
            calls.run(addresses, kernels.forward, job, plan.dim, run.how, merges, q, keys, parts, sums, in_calls)
    if merges:
        calls.run(merged, kernels.combine, **wholes)
        if sinks is not None:  # one more addend of each row's sum, without a value
            both = torch.logaddexp(lse, sinks[:, None])
            o.mul_((lse - both).exp().transpose(-1, -2).unsqueeze(-1))
            lse = both
    calls.end()
    return o, lse


def _adds(plan):
    """Whether dq is a sum in float32: more than one rounding of q's dtype."""
    return plan.most > 2


def _gradients(plan, job, q, k, v, dq):
    """(direct, part, flat, shapes): where a call writes dq, to dq itself if it is direct, and dk and dv of its keys."""
    call, direct = job.call, job.is_first and not _adds(plan)
    shapes = [methods.resized(x.shape, plan.dim, call.k_end - call.k_start) for x in (k, v)]
    part = dq if direct else q.new_empty(methods.resized(q.shape, plan.dim, call.q_end - call.q_start))
    return direct, part, k.new_empty(sum(map(math.prod, shapes))), shapes


def _backward(run, dout, dlse, q, k, v, o, lse):
    """(dq, dk, dv). With o and lse over all keys the backward pass of a part is that part of the whole's."""
    plan, dim, adds = run.plan, run.plan.dim, _adds(run.plan)
    dq = (q.new_zeros if plan.mixes or not plan.most else q.new_empty)(
        q.shape, dtype=torch.float32 if adds else q.dtype
    )
    gradients = methods.Gradients(plan, run.keys, k, v)
    kind = ("backward", _strides(dout, dlse, q, k, v, o, lse), run.how.deterministic)
    calls, inputs = kernels.Calls(run.prepared, kind, q.device), {"dout": dout, "q": q, "o": o, "lse": lse}
    if dlse is not None:
        inputs["dlse"] = dlse
    addresses = {name: x.data_ptr() for name, x in inputs.items()}
    for step, keys in methods.chunks(plan, run.keys, k, v):
        found = []
        if step.jobs and q.numel():
            addresses["k"], addresses["v"] = keys.addresses()
        for job in step.jobs if q.numel() else ():
            call, (direct, part, flat, shapes) = job.call, _gradients(plan, job, q, k, v, dq)
            addresses["dq"], addresses["dk"] = part.data_ptr(), flat.data_ptr()
            addresses["dv"] = addresses["dk"] + math.prod(shapes[0]) * flat.element_size()
            calls.run(addresses, kernels.backward, job, dim, run.how, direct, inputs, keys, part, flat, shapes)
            if not direct:
                rows = dq.narrow(dim, call.q_start, call.q_end - call.q_start)
                rows.copy_(part) if job.is_first else rows.add_(part)
            found.append((call.k_start, flat, shapes))
        gradients.add(step, found)
    calls.end()
    return dq.to(q.dtype), *gradients.total()


def rehearse(plan, how, place, asked, q, k, v, sinks, differentiated):
    """Raises what the library would of a call of the plan, backward only if it is differentiated. Nothing is computed:
    q, k, v and sinks are on the device meta, as a rank has them where it makes its calls. asked: a set of the sizes of
    calls that are not asked about again, with all else in common; those of this plan are added."""
    o, lse, parts, sums = _outputs(plan, how, q, v)
    if not o.numel():
        return
    merges, dim, dq = plan.slots > 1, plan.dim, q
    inputs = {"dout": o, "q": q, "o": o, "lse": lse, "dlse": lse}
    for step in plan.steps:
        for job in step.jobs:
            call = job.call
            rows, count = call.q_end - call.q_start, call.k_end - call.k_start
            size = call._replace(q_start=0, q_end=rows, k_start=0, k_end=count), merges, job.is_first
            if size in asked:
                continue
            asked.add(size)
            keys = methods.Keys(*(x.new_empty(methods.resized(x.shape, dim, step.end - step.first)) for x in (k, v)))
            sinks_of_call = None if merges else sinks
            kernels.forward(place, job, dim, how, merges, q, keys, parts, sums, sinks_of_call).check(place)
            if differentiated:
                direct, *gradients = _gradients(plan, job, q, k, v, dq)
                kernels.backward(place, job, dim, how, direct, inputs, keys, *gradients).check(place)
    for to in (o, parts[0]) if merges else ():  # parts are folded to one that is as they are
        if (to.shape, to.dtype, plan.slots) not in asked:
            kernels.combine(place, o_parts=parts, lse_parts=sums, o=to, lse=lse).check(place)
            asked.add((to.shape, to.dtype, plan.slots))


def _of_sinks(sinks, dout, dlse, o, lse):
    """The gradient of the sinks by this rank's rows."""
    delta = (dout.float() * o.float()).sum(-1).transpose(-1, -2)
    delta = delta if dlse is None else delta - dlse
    by_row = -(sinks[:, None] - lse).exp() * delta
    return by_row.movedim(-2, 0).flatten(1).sum(1)


class Attention(torch.autograd.Function):
    """(o, lse) of this rank's rows and the keys of all ranks of run.keys."""

    @staticmethod
    def forward(ctx, run, q, k, v, sinks):
        with kernels.current(q.device):
            o, lse = _forward(run, q, k, v, sinks)
        ctx.save_for_backward(q, k, v, sinks, o, lse)
        ctx.run = run
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dout, dlse):
        q, k, v, sinks, o, lse = ctx.saved_tensors
        dout = torch.zeros_like(o) if dout is None else _torch.readable(dout)
        dlse = dlse if dlse is None else dlse.contiguous()
        with kernels.current(q.device):
            gradients = _backward(ctx.run, dout, dlse, q, k, v, o, lse)
        dsinks = _of_sinks(sinks, dout, dlse, o, lse) if ctx.needs_input_grad[4] else None
        return None, *gradients, dsinks


class RowsToHeads(torch.autograd.Function):
    """`methods.rows_to_heads`, whose derivative is the way back."""

    @staticmethod
    def forward(ctx, run, *tensors):
        ctx.run, ctx.heads = run, [x.shape[-2] for x in tensors]
        plan = run.plan
        return tuple(methods.rows_to_heads(run.heads, tensors, plan.parts, plan.dim))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *gradients):
        plan = ctx.run.plan
        return None, *methods.heads_to_rows(ctx.run.heads, gradients, plan.parts, plan.dim, ctx.heads)


class HeadsToRows(torch.autograd.Function):
    """`methods.heads_to_rows` of as many heads as q has, whose derivative is the way there."""

    @staticmethod
    def forward(ctx, run, x):
        ctx.run, plan = run, run.plan
        (found,) = methods.heads_to_rows(run.heads, [x], plan.parts, plan.dim, [x.shape[-2] * run.heads.size])
        return found

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        plan = ctx.run.plan
        return None, *methods.rows_to_heads(ctx.run.heads, [gradient], plan.parts, plan.dim)


def attention(run, q, k, v, sinks, with_lse):
    """(o, lse) of this rank's rows; without with_lse lse is None."""
    team = run.heads
    if team.size == 1:
        o, lse = Attention.apply(run, q, k, v, sinks)
        return o, lse if with_lse else None
    if sinks is not None:
        sinks = sinks.narrow(0, *layouts.heads_of(q.shape[-2], team.size, team.rank))
    q, k, v = RowsToHeads.apply(run, q, k, v)
    o, lse = Attention.apply(run, q, k, v, sinks)
    o = HeadsToRows.apply(run, o)
    if with_lse:  # as a tensor of one number for each row and head
        lse = HeadsToRows.apply(run, lse.transpose(-1, -2).unsqueeze(-1)).squeeze(-1).transpose(-1, -2)
    return o, lse if with_lse else None
