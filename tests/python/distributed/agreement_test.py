"""What ranks tell each other before a call of fa3.distributed: refusals, which all ranks raise, calls that are known
already, a rank that does not come and one that dies. Arguments: the library; --long: 8 processes. Skipped without
torch; ranks.py says where it runs."""

import datetime
import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support import fa3, need, refused  # noqa: E402

need("torch")
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from ranks import LATEST, leaves, run, run_case  # noqa: E402

import fa3.distributed as parallel  # noqa: E402
from fa3.distributed import agreement, kernels, methods  # noqa: E402

LATE = datetime.timedelta(seconds=8)  # the same in a group of its own


def outcome(group, call, *arguments, **named):
    """The error that all ranks of the group raise: its type and its text."""
    try:
        call(*arguments, **named)
        mine = "accepted"
    except Exception as error:
        mine = type(error), str(error)
    every = [None] * dist.get_world_size(group)
    dist.all_gather_object(every, mine, group=group)
    assert mine != "accepted" and len(set(every)) == 1, every
    return mine


def refused_alike(world):
    """Where one rank refuses a call, or ranks differ in arguments, all raise the same, and the next call is right."""
    if world.rank >= 4:
        return
    group, case = world.groups[4], ("ring", "contiguous", 4, 2, 40, {"causal": True, "window": (9, 0)})
    calls = world.inputs(40)[:3]
    q, k, v = (parallel.shard(x, group, "contiguous") for x in calls)
    usual = {"method": "ring", "layout": "contiguous", "causal": True}
    # The library refuses to merge these; the first rank has nothing to merge.
    d = 4 if world.device == "cpu" else 520
    odd = [x[..., :1].expand(*x.shape[:-1], d).contiguous() for x in (q, k, v)]
    with torch.no_grad():
        kind, text = outcome(group, parallel.attention, *odd, group, **usual)
    assert issubclass(kind, fa3.Fa3Error) and "head_dim" in text, (kind, text)
    # Ranks whose calls are refused for reasons of their own raise the first one's.
    check, uneven = kernels.Place.check, [parallel.shard(x, group, "contiguous") for x in world.inputs(42)[:3]]
    for call in ("forward", "backward"):

        def check_rows(place, params, call=call):
            if params.call == call:
                raise fa3.Unsupported(f"{call} of {params.q.dim[1]} rows", 2)
            check(place, params)

        kernels.Place.check = check_rows
        try:
            kind, text = outcome(group, parallel.attention, *leaves(*uneven), group, seqlen=42, **usual)
        finally:
            kernels.Place.check = check
        assert (kind, text) == (fa3.Unsupported, f"{call} of 11 rows"), (kind, text)
    one = lambda number, other: number if world.rank == 2 else other  # rank 2's in its place
    short = [x[:, :9] for x in (q, k, v)]
    differing = [
        (one(short, (q, k, v)), {"seqlen": 40}, ValueError, "q has 9 tokens, must have 10: rank 2 of 4"),
        (one(short, (q, k, v)), {}, ValueError, "seqlen is 40 on rank 0, but 36 on rank 2"),
        ((q, one(k[:, :9], k), v), {}, ValueError, "k has 9 tokens"),
        ((q, k, one(None, v)), {}, TypeError, "v is absent"),
        (one([x.half() for x in (q, k, v)], (q, k, v)), {}, ValueError, "dtype is"),
        ((q, one(k.half(), k), v), {}, fa3.InvalidArgument, "k.dtype is fp16"),
        (one([x.long() for x in (q, k, v)], (q, k, v)), {}, fa3.InvalidArgument, "q.dtype is int64"),
        ((one(q.clone().requires_grad_(), q), k, v), {}, ValueError, "requires_grad is False on rank 0, but True"),
        ((q, k, v), {"method": one("all_gather", "ring")}, ValueError, "method is 'ring' on rank 0, but 'all_gather'"),
        ((q, k, v), {"method": one("gather", "ring")}, ValueError, "method is 'gather'"),
        ((q, k, v), {"window": one((9, 0), (5, 0))}, ValueError, "window is (5, 0) on rank 0, but (9, 0) on rank 2"),
        ((q, k, v), {"layout": one("zigzag", "contiguous")}, ValueError, "layout is 'contiguous' on rank 0"),
        ((q, k, v), {"softcap": one(-1.0, None)}, fa3.InvalidArgument, "softcap is -1"),
        ((q, k, v), {"sinks": one(torch.zeros(4, device=world.device), None)}, ValueError, "sinks is False on rank 0"),
        ((q, k, v), {"sinks": torch.zeros(one(3, 4), device=world.device)}, fa3.InvalidArgument, "sinks.dim[0] is 3"),
    ]
    for tensors, how, error, message in differing:
        kind, text = outcome(group, parallel.attention, *tensors, group, **{**usual, **how})
        assert kind is error and message in text, (kind, text, message)
        run_case(world, group, case)
    packed, sums = [x[0] for x in (q, k, v)], (0, 7, 40)
    kind, text = outcome(group, parallel.attention, *packed, group, cu_seqlens=one((0, 8, 40), sums), **usual)
    assert kind is ValueError and "cu_seqlens is (0, 7, 40) on rank 0, but (0, 8, 40)" in text, (kind, text)
    kind, text = outcome(group, parallel.unshard, one(q[:, :9], q), group, "contiguous", seqlen=40)
    assert kind is ValueError and "x has 9 tokens" in text, (kind, text)
    kind, text = outcome(group, parallel.unshard, one(q[..., :4], q), group, "contiguous")
    assert kind is ValueError and "sizes is [2, 4, 8] on rank 0, but [2, 4, 4] on rank 2" in text, (kind, text)


def refused_in_pairs(world):
    """The same where two groups make one: nodes tell each other what their ranks told."""
    q, k, v = (parallel.shard(x, world.pair) for x in world.inputs(8 * world.size)[:3])
    for rank in range(world.size):
        one = lambda number, other, rank=rank: number if world.rank == rank else other
        short = [one(x[:, :7], x) for x in (q, k, v)]
        kind, text = outcome(None, parallel.attention, *short, world.pair, causal=True)
        assert kind is ValueError and "q has 7 tokens" in text, (rank, kind, text)
        kind, text = outcome(None, parallel.attention, q, k, v, world.pair, causal=True, window=one((3, 0), (4, 0)))
        assert kind is ValueError and "window is" in text and f"on rank {rank}" in text, (rank, kind, text)
        run_case(world, world.pair, ("two_level", "zigzag", 4, 2, 25, {"causal": True}))


def told_once(world):
    """Where hosts only enqueue, ranks tell each other about each kind of call once, and about each call if asked to."""
    group, told = dist.new_group([0, 1]), []  # made by all ranks, which count groups
    if world.rank >= 2:
        return
    q, k, v = (parallel.shard(x, group) for x in world.inputs(24)[:3])
    always, tell, kept = parallel._always, agreement._tell, agreement.KEPT
    agreement._tell = lambda team, text: told.append(text) or tell(team, text)
    try:
        parallel._always, agreement.KEPT = lambda x: False, 2
        for causal, expected in ((True, 1), (True, 1), (False, 2), (False, 2), (True, 2), ("top_left", 2)):
            parallel.attention(q, k, v, group, causal=causal)
            assert len(told) == expected, (causal, told)
        parallel.attention(q, k, v, group, window=(3, 0))
        parallel.attention(q, k, v, group, causal=True)  # has been forgotten, on all ranks alike
        assert len(told) == 4, told
        parallel._always = lambda x: True
        parallel.attention(q, k, v, group, causal=True)
        assert len(told) == 5, told
    finally:
        parallel._always, agreement._tell, agreement.KEPT = always, tell, kept


def refusals(world):
    group, outside = world.groups[min(3, world.size)], world.groups[1]
    if world.rank == 1:
        refused(ValueError, "must be a process group that this rank is in", parallel.shard, torch.ones(2, 2), outside)
    if world.size >= 4:
        some = [x[:, :4] for x in world.inputs(18, 6, 3)[:3]]
        text = "method is 'ring', but group is a pair"
        refused(ValueError, text, parallel.attention, *some, world.pair, method="ring")
    if world.rank >= 3 or world.size < 3:
        return
    q, k, v = (x[:, :6] for x in world.inputs(18, 6, 3)[:3])
    call = parallel.attention
    refused(ValueError, "q has 5 tokens, for layout 'zigzag'", call, q[:, :5], k[:, :5], v[:, :5], group)
    refused(ValueError, "q has 6 tokens, must have 7: rank 0 of 3", call, q, k, v, group, seqlen=19)
    refused(ValueError, "k has 4 tokens", call, q, k[:, :4], v[:, :4], group)
    refused(ValueError, "layout is 'zig'", call, q, k, v, group, layout="zig")
    refused(ValueError, "layout is None", parallel.shard, q, group, None)
    refused(ValueError, "method is 'gather'", call, q, k, v, group, method="gather")
    refused(ValueError, "method is 'two_level', but group", call, q, k, v, group, method="two_level")
    refused(ValueError, "group has two groups that share 3 ranks", call, q, k, v, (group, group))
    refused(ValueError, "group has 3 groups", call, q, k, v, (group,) * 3)
    refused(ValueError, "group is 'nccl'", call, q, k, v, "nccl")
    refused(ValueError, "q has 4 heads, for method 'all_to_all'", call, q[:, :, :4], k[:, :, :2], v[:, :, :2], group,
            method="all_to_all")  # fmt: skip
    four = [torch.cat([x, x[:, :, :heads]], 2) for x, heads in ((q, 6), (k, 1), (v, 1))]
    refused(ValueError, "k has 4 heads, for method 'all_to_all'", call, *four, group, method="all_to_all")
    refused(ValueError, "k.dim[3]", call, q, k[..., :4], v, group)
    refused(ValueError, "softcap", call, q, k, v, group, softcap=-1.0)
    refused(ValueError, "causal is 'left'", call, q, k, v, group, causal="left")
    refused(TypeError, "window is 3", call, q, k, v, group, window=3)
    refused(ValueError, "q has 4 dimensions, must have 3", call, q, k, v, group, cu_seqlens=(0, 18))
    packed = [x[0] for x in (q, k, v)]
    refused(ValueError, "cu_seqlens must begin with 0", call, *packed, group, cu_seqlens=(0, 19, 18))
    other = {"seqlen": 18, "cu_seqlens": (0, 17)}
    refused(ValueError, "seqlen is 18, but cu_seqlens ends with 17", call, *packed, group, **other)
    refused(ValueError, "card is 'T4'", call, q, k, v, group, card="T4")
    refused(NotImplementedError, "unshard has no derivative", parallel.unshard, *leaves(q), group)


def missing(world):
    """A rank that does not come, then one that dies: errors, and soon. Only gloo raises them in the process itself."""
    if world.device != "cpu":
        return
    last = world.size - 1
    q, k, v = leaves(*(parallel.shard(x) for x in world.inputs(48)[:3]))
    groups = {}
    for method in ("ring", "all_gather"):
        dist.barrier()  # by the world's timeout: a group is made by all of its ranks within its own
        groups[method] = dist.new_group(timeout=LATE)
    for method, group in groups.items():
        dist.barrier()
        start = time.monotonic()
        if world.rank == last and method == "all_gather":
            methods.gather = lambda *arguments: os._exit(0)  # when ranks have agreed on the call
        if world.rank == last and method == "ring":
            time.sleep(1.5 * LATE.total_seconds())
        else:
            text = "of the group did not come to the call within" if method == "ring" else ""
            refused(RuntimeError, text, parallel.attention, q, k, v, group, method=method, causal=True)
        # By the group's timeout, not the world's: how soon after it depends on what else runs here.
        assert time.monotonic() - start < LATEST.total_seconds(), (method, time.monotonic() - start)


if __name__ == "__main__":
    run([told_once, refusals, missing], [refused_alike, refused_in_pairs])
