"""What the tests of fa3.distributed share: processes with their groups of ranks, a call that is spread over ranks and
the same one of one process, and cases of calls. Processes meet by gloo on the CPU; the same with NCCL where there are
two Hopper GPUs; where not, tests say so. With --long there are 8 processes, else 4."""

import datetime
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from support import fa3

import fa3.distributed as parallel

LATEST = datetime.timedelta(seconds=240)  # for which the ranks of the world wait for one that does not come
SIZE = 8 if "--long" in sys.argv else 4


class World:
    """What each process has: its rank, a device, groups of the first ranks."""

    def __init__(self, rank, size, device):
        self.rank, self.size, self.device = rank, size, device
        self.groups = {n: dist.new_group(list(range(n))) for n in range(1, size + 1)}
        self.dtype = torch.float32 if device == "cpu" else torch.bfloat16
        self.close = 4e-6 if device == "cpu" else 2.0**-5
        if size >= 4:  # an even number: two nodes
            half = size // 2
            inside = [dist.new_group(list(range(first, first + half))) for first in (0, half)]
            across = [dist.new_group([first, first + half]) for first in range(half)]
            self.pair = across[rank % half], inside[rank // half]

    def inputs(self, seqlen, heads=4, heads_kv=2, batch=2, d=8, dv=16, packed=False, seed=1):
        """q, k, v and the gradients of o and lse, the same in each process."""
        generator = torch.Generator().manual_seed(seed)
        lead = (seqlen,) if packed else (batch, seqlen)
        dims = (*lead, heads, d), (*lead, heads_kv, d), (*lead, heads_kv, dv), (*lead, heads, dv)
        tensors = [torch.randn(x, generator=generator).to(self.device, self.dtype) for x in dims]
        dlse = torch.randn((*lead[:-1], heads, seqlen), generator=generator).to(self.device)
        return [*tensors, dlse]


def leaves(*tensors):
    return [x.detach().clone().requires_grad_() for x in tensors]


def whole(q, k, v, dout, dlse, cu_seqlens=None, sinks=None, **how):
    """[o, lse, dq, dk, dv] of one process, with sinks their gradient, too."""
    if cu_seqlens is not None:
        sums = torch.as_tensor(cu_seqlens, dtype=torch.int32, device=q.device)
        how = {**how, "cu_seqlens_q": sums, "cu_seqlens_k": sums}
    inputs = leaves(q, k, v, *([] if sinks is None else [sinks]))
    named = {} if sinks is None else {"sinks": inputs[3]}
    o, lse = fa3.attention(*inputs[:3], return_lse=True, **named, **how)
    return [o, lse, *torch.autograd.grad((o, lse), inputs, (dout, dlse))]


def spread(group, layout, q, k, v, dout, dlse, sinks=None, call=None, **how):
    """The same of this rank's tokens, and of sinks summed over ranks."""
    packed = "cu_seqlens" in how
    cut = lambda x, dim=0 if packed else 1: parallel.shard(x, group, layout, dim=dim)
    inputs = leaves(*map(cut, (q, k, v)), *([] if sinks is None else [sinks]))
    named = {} if sinks is None else {"sinks": inputs[3]}
    call = call or parallel.attention
    o, lse = call(*inputs[:3], group, layout=layout, return_lse=True, **named, **how)
    assert o.shape == cut(dout).shape and o.dtype == q.dtype and lse.dtype == torch.float32
    found = [o, lse, *torch.autograd.grad((o, lse), inputs, (cut(dout), cut(dlse, -1)))]
    if sinks is not None and not isinstance(group, tuple):
        dist.all_reduce(found[5], group=group)
    elif sinks is not None:
        dist.all_reduce(found[5])
    return found


def cut_whole(group, layout, results, packed):
    """Of one process's results those of this rank."""
    dims = [0 if packed else 1, -1, *[0 if packed else 1] * 3]
    return [parallel.shard(x, group, layout, dim=dim) for x, dim in zip(results, dims)] + results[5:]


def same(found, expected, close, what):
    for name, x, y in zip(("o", "lse", "dq", "dk", "dv", "dsinks"), found, expected):
        assert x.shape == y.shape and x.dtype == y.dtype, (what, name, x.shape, y.shape)
        worst = (x.double() - y.double()).abs().max().item() if x.numel() else 0
        assert worst <= close * max(1.0, y.abs().max().item() if y.numel() else 0), (what, name, worst)


DOCUMENTS = (0, 3, 3, 17, 18, 29, 37)
# (method, layout, heads, heads_kv, tokens, arguments); "sinks" stands for a tensor of them
CASES = [
    ("all_gather", "zigzag", 4, 2, 24, {"causal": True}),
    ("all_gather", "zigzag", 3, 1, 25, {"causal": True, "window": (5, 0), "sinks": True, "softcap": 2.0}),
    ("all_gather", "contiguous", 4, 4, 11, {"window": (3, 2), "softmax_scale": 0.3}),
    ("all_gather", "zigzag", 4, 2, 37, {"causal": True, "cu_seqlens": DOCUMENTS, "sinks": True}),
    ("ring", "zigzag", 4, 2, 24, {"causal": True, "softcap": 2.0, "deterministic": True}),
    ("ring", "zigzag", 2, 1, 25, {"sinks": True, "deterministic": True}),
    ("ring", "contiguous", 4, 4, 23, {"causal": True, "window": (4, 0), "sinks": True}),
    ("ring", "contiguous", 4, 1, 13, {"window": (2, 9)}),
    ("ring", "zigzag", 4, 2, 37, {"causal": True, "cu_seqlens": DOCUMENTS, "sinks": True}),
    ("ring", "contiguous", 2, 2, 37, {"window": (4, 1), "cu_seqlens": DOCUMENTS}),
    ("all_to_all", "zigzag", 12, 6, 24, {"causal": True, "sinks": True}),
    ("all_to_all", "zigzag", 12, 1, 25, {"causal": True, "window": (6, 0), "softcap": 2.0}),
    ("all_to_all", "contiguous", 6, 6, 37, {"causal": True, "cu_seqlens": DOCUMENTS, "sinks": True}),
    (None, "zigzag", 4, 2, 3, {"causal": True}),
    ("ring", "zigzag", 4, 2, 41, {"causal": True, "window": (5, 0), "sinks": True}),
    ("ring", "zigzag", 2, 2, 40, {"window": (3, 6)}),
    ("all_gather", "zigzag", 2, 1, 2, {"window": (1, 0), "cu_seqlens": (0, 0, 2)}),
    ("ring", "contiguous", 2, 1, 1, {"causal": True}),
    ("all_to_all", "zigzag", 6, 6, 1, {"window": (0, 0)}),
]


def run_case(world, group, case, seed=1):
    method, layout, heads, heads_kv, seqlen, how = case
    how, packed = dict(how), "cu_seqlens" in how
    inputs = world.inputs(seqlen, heads, heads_kv, packed=packed, seed=seed)
    if how.pop("sinks", False):
        how["sinks"] = torch.linspace(-1, 2, heads, device=world.device)
    expected = cut_whole(group, layout, whole(*inputs, **how), packed)
    found = spread(group, layout, *inputs, method=method, seqlen=seqlen, **how)
    same(found, expected, world.close, case)
    if method == "all_gather" and world.device == "cpu":  # rows are computed as in one process, on keys in one order
        assert all(torch.equal(x, y) for x, y in zip(found[:3], expected)), case
    return found


def work(rank, size, device, folder, parts):
    torch.set_num_threads(1)
    fa3.load(sys.argv[1])
    if device == "cuda":
        torch.cuda.set_device(rank)
    store = dist.FileStore(f"{folder}/{device}", size)
    backend = "gloo" if device == "cpu" else "nccl"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=LATEST)
    world = World(rank, size, device)
    for part in parts:
        start = time.monotonic()
        part(world)
        if rank == 0:
            print(f"{device}: {part.__name__} {time.monotonic() - start:.1f} s", flush=True)
    if device == "cuda":
        dist.destroy_process_group()
    else:
        os._exit(0)  # a group that lost a rank cannot be taken down in order


def run(parts, parts_of_four):
    """Calls each part in each process with its World; parts_of_four: those that need at least four ranks."""
    with tempfile.TemporaryDirectory() as folder:
        gpus = min(torch.cuda.device_count() // 2 * 2, SIZE)
        if gpus and torch.cuda.get_device_capability() != (9, 0):
            gpus = 0
        for size, device in [(SIZE, "cpu")] + [(gpus, "cuda")] * (gpus > 0):
            some = [*parts_of_four, *parts] if size >= 4 else parts
            processes.spawn(work, (size, device, folder, some), size)
    if not gpus:
        print("SKIPPED: NCCL: torch finds no two GPUs of compute capability 9.0")
    print(f"torch {torch.__version__} agrees")
