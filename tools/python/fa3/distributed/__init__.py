"""Attention over sequences that are spread over the ranks of a process group, each having some of the tokens (context
parallelism), by torch.distributed: CUDA tensors over NCCL by the kernels, CPU tensors over gloo by the reference.

    import fa3.distributed as parallel
    q, k, v = (parallel.shard(x, group) for x in (q, k, v))    # or what a model computed from its tokens' shard
    o = parallel.attention(q, k, v, group, causal=True)        # of this rank's tokens; differentiable
    o = parallel.unshard(o, group)                             # if anyone needs all of it

Outputs and gradients are those of one process. group: a process group, None for the default one, or a pair of groups
(across, inside): heads are exchanged inside, in a node for example, and keys go round across; or a DeviceMesh of one
or two dimensions, which stand for the same. Of a pair the rank is that in `across` times the size of `inside` plus that
in `inside`.

Under torch.compile `attention` is a break of the graph, so fullgraph=True is refused. It works under torch.utils.
checkpoint, where the transfers of the forward pass are done again; in layers that FSDP2 shards; and inside torch's
context_parallel, whose buffers are cut as by layout "zigzag" (its F.scaled_dot_product_attention stays torch's own).
What calls of one kind have in common, their plan and the library's parameters, is kept for others.

Ranks agree on a call before they send tensors. Each checks its arguments and asks the library about every call of its
plan, forward and backward, and they tell each other through the group's store, which no GPU waits for. Where one rank
refuses the call, or ranks give different arguments, all raise the same error: with CPU tensors in each call, with CUDA
tensors in the first one of each kind, and in each if TORCH_DISTRIBUTED_DEBUG is DETAIL. A rank with an error of its own
raises that, and waits for nobody.

A rank that dies or does not come is an error on the others: a RuntimeError after the group's timeout while they agree,
then by torch.distributed's own means, of gloo an exception at once or after the timeout, of NCCL what
TORCH_NCCL_ASYNC_ERROR_HANDLING says after it."""

from __future__ import annotations

import collections
import contextlib
from typing import Any, NamedTuple, Optional, Sequence, Tuple, Union

import torch
import torch.distributed as dist

import fa3
from fa3._calls import arguments as _arguments
from fa3._calls import backward as _backward
from fa3._calls import forward as _forward
from fa3._frameworks import torch as _torch

from . import agreement, autograd, cost_model, kernels, layouts, methods, plans

__all__ = ["attention", "costs", "shard", "unshard", "CARDS", "Card", "LAYOUTS", "METHODS"]

LAYOUTS = layouts.NAMES
METHODS = cost_model.METHODS
CARDS, Card = cost_model.CARDS, cost_model.Card
Group = Any


class _Ranks(NamedTuple):
    """`group` as this process sees it. Of one group `inside` is ALONE."""

    across: methods.Team
    inside: methods.Team
    is_pair: bool

    @property
    def size(self):
        return self.across.size * self.inside.size

    @property
    def rank(self):
        return self.across.rank * self.inside.size + self.inside.rank

    def seats(self, rank=None):
        """Those of a rank, or of this one, in across and in inside."""
        places = divmod(self.rank if rank is None else rank, self.inside.size)
        return tuple(plans.Seat(place, team.size) for place, team in zip(places, (self.across, self.inside)))


def _team(name, group):
    if not dist.is_initialized():
        raise ValueError(f"{name} needs a process group, but torch.distributed.init_process_group was not called")
    group = dist.group.WORLD if group is None else group
    if not isinstance(group, dist.ProcessGroup):  # what new_group returns to those that are not in the group, too
        raise ValueError(f"{name} is {group!r}, must be a process group that this rank is in")
    return methods.Team(group, group.rank(), group.size())


def _ranks(group) -> _Ranks:
    if hasattr(group, "get_all_groups"):  # a DeviceMesh
        groups = group.get_all_groups()
        group = groups[0] if len(groups) == 1 else tuple(groups)
    if not isinstance(group, (tuple, list)):
        return _Ranks(_team("group", group), methods.ALONE, False)
    if len(group) != 2:
        raise ValueError(f"group has {len(group)} groups, must be one or a pair: across, inside")
    across, inside = _team("group[0]", group[0]), _team("group[1]", group[1])
    shared = set(dist.get_process_group_ranks(across.group)) & set(dist.get_process_group_ranks(inside.group))
    if len(shared) > 1:
        raise ValueError(f"group has two groups that share {len(shared)} ranks, must share this one alone")
    return _Ranks(across, inside, True)


def _check_layout(layout):
    if layout not in LAYOUTS:
        raise ValueError(f"layout is {layout!r}, must be one of {', '.join(LAYOUTS)}")


def shard(x: torch.Tensor, group: Group = None, layout: str = "zigzag", *, dim: int = 1) -> torch.Tensor:
    """This rank's tokens of x, which all ranks have whole; dim is that of the tokens, 0 if they are packed. Nothing is
    sent. layout: "contiguous", the tokens in order, or "zigzag", which gives all ranks as much work under a causal
    mask: of 2 * ranks chunks rank r has r and 2 * ranks - 1 - r. Lengths of ranks differ by one at most."""
    _check_layout(layout)
    ranks = _ranks(group)
    found = layouts.pieces(layout, ranks.size, x.shape[dim], ranks.rank)
    return torch.cat([x.narrow(dim, start, end - start) for start, end in found] or [x.narrow(dim, 0, 0)], dim)


def unshard(x: torch.Tensor, group: Group = None, layout: str = "zigzag", *, dim: int = 1,
            seqlen: Optional[int] = None) -> torch.Tensor:  # fmt: skip
    """All tokens, on every rank, of what `shard` made; x is sent to all. seqlen: how many they are; None if each rank
    has as many. No gradient flows through it. Errors as of `attention`."""
    ranks = _ranks(group)
    with _refusing(ranks):
        _torch.refuse_gradients("fa3.distributed.unshard", {"x": x})
        _check_layout(layout)
        seqlen = _seqlen("x", x.shape[dim], ranks, layout, seqlen)
        sizes = [size for i, size in enumerate(x.shape) if i != dim % x.ndim]
        text = agreement.note(call="unshard", dim=dim % x.ndim, sizes=sizes, dtype=x.dtype, device=x.device.type,
                              layout=layout, seqlen=seqlen)  # fmt: skip
    agreement.reach(ranks, text, _always(x))
    parts, nodes = _parts(*ranks.seats(), layout, seqlen)
    return methods.gather(ranks.across, methods.gather(ranks.inside, [x], parts, dim), nodes, dim)[0]


def _parts(across, inside, layout, seqlen):
    """(the positions of the ranks of this node, those of all nodes). across, inside: this rank's seats."""
    size = across.size * inside.size
    every = [layouts.pieces(layout, size, seqlen, rank) for rank in range(size)]
    nodes = [tuple(every[i : i + inside.size]) for i in range(0, size, inside.size)]
    return nodes[across.rank], tuple(map(layouts.union, nodes))


def _seqlen(name, rows, ranks, layout, seqlen):
    """The tokens of all ranks, of which this one must have so many rows."""
    if seqlen is None:
        if layout == "zigzag" and rows % 2:
            raise ValueError(f"{name} has {rows} tokens, for layout 'zigzag' they must be even: two chunks of the same "
                             "length; or give seqlen, the tokens of all ranks")  # fmt: skip
        return rows * ranks.size
    seqlen = _forward.integer("seqlen", seqlen, 0)
    expected = layouts.rows(layouts.pieces(layout, ranks.size, seqlen, ranks.rank))
    if rows != expected:
        raise ValueError(f"{name} has {rows} tokens, must have {expected}: rank {ranks.rank} of {ranks.size} has so "
                         f"many of seqlen {seqlen} in layout {layout!r}")  # fmt: skip
    return seqlen


def _cu_seqlens(cu_seqlens, seqlen):
    """(as a tuple, seqlen)"""
    if isinstance(cu_seqlens, torch.Tensor):
        cu_seqlens = cu_seqlens.tolist()
    found = tuple(_forward.integer("cu_seqlens", x, 0) for x in cu_seqlens)
    if len(found) < 2 or found[0] != 0 or list(found) != sorted(found):
        raise ValueError("cu_seqlens must begin with 0 and not fall: where each sequence begins, and the end of all")
    if seqlen not in (None, found[-1]):
        raise ValueError(f"seqlen is {seqlen}, but cu_seqlens ends with {found[-1]}")
    return found, found[-1]


@contextlib.contextmanager
def _refusing(ranks):
    """What is raised is told to the other ranks."""
    try:
        yield
    except Exception as error:
        agreement.refuse(ranks, error)
        raise


def _always(x):
    """Whether ranks tell each other about each call, not only about those of a new kind: where hosts compute, too."""
    return x.device.type == "cpu" or dist.get_debug_level() == dist.DebugLevel.DETAIL


def _check_tensors(q, k, v, sinks=None):
    fa3._arrays.check({"q": q, "k": k, "v": v}, {"sinks": sinks})
    if not isinstance(q, torch.Tensor):
        raise TypeError(f"q is {type(q).__name__}, must be a torch tensor")


def _prepared(q, k, v, group, layout, causal, window, cu_seqlens, seqlen, **scores):
    """(ranks, problem), with all that can be refused without a look at other ranks or at the calls of a plan."""
    _check_tensors(q, k, v, scores.get("sinks"))
    _check_layout(layout)
    ranks, packed = _ranks(group), cu_seqlens is not None
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != (3 if packed else 4):
            raise ValueError(f"{name} has {x.ndim} dimensions, must have {'3, with' if packed else '4, without'} "
                             "cu_seqlens")  # fmt: skip
        if x.shape[:-2] != q.shape[:-2]:
            raise ValueError(f"{name} has {x.shape[-3]} tokens in a batch of {x.shape[0] if x.ndim == 4 else 1}, must "
                             "have those of q")  # fmt: skip
    if packed:
        cu_seqlens, seqlen = _cu_seqlens(cu_seqlens, seqlen)
    seqlen = _seqlen("q", q.shape[-3], ranks, layout, seqlen)
    _forward.mask(causal, window)
    left, right = layouts.sides(bool(causal), None if window is None else _forward._sides(window), seqlen)
    # The library refuses what it cannot do before it looks for a first row.
    none = [x.narrow(-3, 0, 0).unsqueeze(0) if packed else x.narrow(-3, 0, 0) for x in (q, k, v)]
    with torch.no_grad():
        fa3.forward(*none, **scores)
    return ranks, cost_model.Problem(
        ranks=ranks.size, inside=ranks.inside.size if ranks.is_pair else 0, layout=layout, seqlen=seqlen,
        cu_seqlens=cu_seqlens or (0, seqlen), left=left, right=right,
        batch=1 if packed else q.shape[0], heads=q.shape[-2], heads_kv=k.shape[-2], head_dim=q.shape[-1],
        head_dim_v=v.shape[-1], bytes=q.element_size(), packed=packed,
    )  # fmt: skip


def _card(card):
    if isinstance(card, Card):
        return card
    if card not in CARDS:
        raise ValueError(f"card is {card!r}, must be a Card or one of {', '.join(CARDS)}")
    return CARDS[card]


def costs(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, group: Group = None, *, layout: str = "zigzag",
          causal: Union[bool, str] = False, window: Optional[Tuple[int, int]] = None,
          cu_seqlens: Optional[Sequence[int]] = None, seqlen: Optional[int] = None,
          card: Union[str, Card] = "H100") -> cost_model.Table:  # fmt: skip
    """What `attention` would cost with these arguments, by each method that it can use: bytes that a rank sends, bytes
    that it needs beyond its tensors, and seconds, on the rank that has most. The least time comes first; print() shows
    a table. A model on paper: nothing is sent or computed."""
    return cost_model.table(_prepared(q, k, v, group, layout, causal, window, cu_seqlens, seqlen)[-1], _card(card))


@torch.compiler.disable
def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, group: Group = None, *, method: Optional[str] = None,
              layout: str = "zigzag", causal: Union[bool, str] = False, window: Optional[Tuple[int, int]] = None,
              sinks: Optional[torch.Tensor] = None, softcap: Optional[float] = None,
              softmax_scale: Optional[float] = None, cu_seqlens: Optional[Sequence[int]] = None,
              seqlen: Optional[int] = None, deterministic: bool = False, return_lse: bool = False,
              card: Union[str, Card] = "H100", explain: bool = False):  # fmt: skip
    """`fa3.attention` of this rank's queries and the keys of all ranks, through o and lse differentiable by torch's
    autograd. All ranks of the group call it with the same arguments but for the tensors' numbers.

    q: (batch, tokens, heads, head_dim), k and v likewise with heads_kv: this rank's tokens, as `shard` cuts them by
    `layout`. seqlen: the tokens of all ranks, needed where ranks have different numbers of them. cu_seqlens: for packed
    documents, then q, k and v are (tokens, heads, head_dim): where documents begin in the whole batch, and its end, as
    fa3.documents has it for the batch's ids; numbers, or a tensor, which is read on the host. The batch is cut as one
    sequence, so ranks have as many tokens, wherever documents end. causal, window, sinks, softcap, softmax_scale,
    deterministic: as in fa3.attention. The gradient of sinks is this rank's share, as those of other parameters: the
    sum over ranks is that of one process.

    method, with n ranks, S tokens in all, and one chunk being the S / n tokens of a rank:
      "all_gather"  k and v are gathered, S tokens on each rank, then each chunk is one call; dk and dv are added up in
                    float32 by reduce_scatter. o, lse and dq have the bits of one process where rows are computed alike.
      "ring"        k and v come chunk by chunk, the next one while the last is computed with. Only keys that a rank
                    sees are sent to it: with a window few, of packed documents none but those that ranks share. Where a
                    row's keys are in several chunks, as many results, up to four, are merged by fa3.combine: in
                    float32, or with softcap or head_dims above 256 in q's dtype. dk and dv of a chunk go back to its
                    rank, in their dtype where they are one call's, else in float32; of more than two numbers the sum
                    is float32.
      "all_to_all"  heads for tokens (Ulysses): each rank computes heads / n heads of S tokens. heads must be a multiple
                    of n, heads_kv a multiple or a divisor of it.
      "two_level"   for a pair of groups: "all_to_all" inside, "ring" across.
    None: the one that `costs` puts first for `card`; explain: rank 0 prints that table.

    Returns o: (batch, tokens, heads, head_dim_v), with return_lse (o, lse), lse: (batch, heads, tokens) in float32.
    Errors come before anything is sent, and all ranks raise them. What one rank refuses, for its tensors' shapes or
    dtypes or because the library refuses a call of its plan, the others raise with the same text, as the same class if
    it is a ValueError, TypeError or NotImplementedError, else as a RuntimeError. Where ranks differ in arguments (but
    for card, explain and deterministic), in dtypes, or in whether a tensor requires a gradient, all raise a ValueError
    that names it: all ranks go backward, or none. A kind of call of CUDA tensors that all agreed on before is not
    compared again: if one rank alone refuses or changes it then, the others wait until the group's timeout. An error
    about group itself is that rank's alone. q, k and v with strides that the kernels do not take are copied."""
    ranks = _ranks(group)
    with _refusing(ranks):
        cu_seqlens = cu_seqlens.tolist() if isinstance(cu_seqlens, torch.Tensor) else cu_seqlens
        cu_seqlens, window = (tuple(x) if isinstance(x, list) else x for x in (cu_seqlens, window))
        if not (type(q) is type(k) is type(v) is torch.Tensor and (sinks is None or isinstance(sinks, torch.Tensor))):
            _check_tensors(q, k, v, sinks)
        q, k, v, flags, _ = _torch.resolved(q, k, v, fa3.FLAG_DETERMINISTIC if deterministic else 0, None)
        how = kernels.How(_arguments.scale(softmax_scale), _arguments.cap(softcap), bool(flags))
        looks = [(x.shape, x.dtype, x.device, x.layout) for x in (q, k, v, sinks) if x is not None]
        gradients = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v, sinks) if x is not None)
        key = (*looks, *ranks.seats(), ranks.is_pair, method, layout, causal, window, cu_seqlens, seqlen, how, card,
               bool(return_lse), gradients)  # fmt: skip
        known = _known(key)
        if known is None:
            scores = {"sinks": sinks, "softcap": softcap, "softmax_scale": softmax_scale}
            problem = _prepared(q, k, v, group, layout, causal, window, cu_seqlens, seqlen, **scores)[-1]
            if gradients and (wide := _backward.too_wide(q, v)):
                raise NotImplementedError(f"attention has no backward pass with {wide}: call it under torch.no_grad()")
            call = _Call(problem, q.dtype, q.device, how, sinks is not None, bool(return_lse), gradients)
            known = _remember(key, _chosen(method, call, ranks, card))
        # Whether the library takes a tensor must not hang on where one rank has it.
        q, k, v = (x if x.is_contiguous() and not x.data_ptr() % 16 else _torch.readable(x) for x in (q, k, v))
    agreement.reach(ranks, known.note, _always(q))
    if explain and ranks.rank == 0:
        print(f"{known.table}\nchosen: {known.method}", flush=True)
    heads, keys = ranks.inside, ranks.across
    if known.method == "all_to_all":
        heads, keys = keys, methods.ALONE
    run = autograd.Run(known.plan, heads, keys, how, known.prepared)
    o, lse = autograd.attention(run, q, k, v, sinks, return_lse)
    return (o, lse) if return_lse else o


class _Call(NamedTuple):
    """What plans and the library are asked about, the same on all ranks."""

    problem: cost_model.Problem
    dtype: torch.dtype
    device: torch.device
    how: kernels.How
    has_sinks: bool
    return_lse: bool
    gradients: bool

    def note(self, method):
        problem = self.problem
        sizes = {name: getattr(problem, name) for name in ("batch", "heads", "heads_kv", "head_dim", "head_dim_v")}
        return agreement.note(
            call="attention", method=method, layout=problem.layout, seqlen=problem.seqlen,
            cu_seqlens=problem.cu_seqlens if problem.packed else None, window=(problem.left, problem.right), **sizes,
            dtype=self.dtype, device=self.device.type, softmax_scale=self.how.softmax_scale, softcap=self.how.softcap,
            sinks=self.has_sinks, requires_grad=self.gradients,
            # lse is sent where heads are exchanged.
            return_lse=self.return_lse if method in ("all_to_all", "two_level") else None,
        )  # fmt: skip

    def rehearsed(self, method, across, inside, place, asked):
        """The plan of the rank with these seats. Raises what the library would of one of its calls."""
        problem = self.problem
        keys, heads, (parts, nodes) = across, inside, _parts(across, inside, problem.layout, problem.seqlen)
        if method == "all_to_all":
            heads, keys, parts, nodes = keys, plans.ALONE, nodes, (layouts.union(nodes),)
        kind = "all_gather" if method == "all_gather" else "ring"
        plan = plans.Plan(plans.Spread(heads, keys, kind, parts, nodes, problem.cu_seqlens, problem.left,
                                       problem.right, 0 if problem.packed else 1))  # fmt: skip
        lead = (plan.rows,) if problem.packed else (problem.batch, plan.rows)
        mine, mine_kv = (layouts.heads_of(x, heads.size, heads.rank)[1] for x in (problem.heads, problem.heads_kv))
        sizes = (mine, problem.head_dim), (mine_kv, problem.head_dim), (mine_kv, problem.head_dim_v)
        q, k, v = (torch.empty((*lead, *size), dtype=self.dtype, device="meta") for size in sizes)
        sinks = torch.empty(mine, device="meta", dtype=torch.float32) if self.has_sinks else None
        autograd.rehearse(plan, self.how, place, asked, q, k, v, sinks, self.gradients)
        return plan


class _Known(NamedTuple):
    """What calls of one kind have in common: nothing of it depends on the tensors' numbers, nor on the group itself."""

    method: str
    table: cost_model.Table
    plan: plans.Plan
    prepared: dict
    note: str


_kinds: "collections.OrderedDict[tuple, _Known]" = collections.OrderedDict()
KINDS = 256  # that are remembered


def _known(key):
    try:
        return _kinds.get(key)
    except TypeError:  # something has no hash: an argument that will be refused
        return None


def _remember(key, known):
    _kinds[key] = known
    while len(_kinds) > KINDS:
        _kinds.popitem(last=False)
    return known


def _chosen(method, call, ranks, card):
    problem = call.problem
    if method is not None and method not in METHODS:
        raise ValueError(f"method is {method!r}, must be None or one of {', '.join(METHODS)}")
    table = cost_model.table(problem, _card(card))
    if method is None and not table:
        raise ValueError(cost_model.refusal("two_level", problem))
    method = table[0].method if method is None else method
    if cost_model.refusal(method, problem):
        raise ValueError(cost_model.refusal(method, problem))
    place = kernels.Place(call.device)
    rehearsed = lambda rank: call.rehearsed(method, *ranks.seats(rank), place, set())
    try:
        plan = rehearsed(ranks.rank)
    except Exception:
        for rank in range(ranks.size):  # all ranks raise what the first one does whose calls are refused
            rehearsed(rank)
        raise
    return _Known(method, table, plan, {}, call.note(method))
