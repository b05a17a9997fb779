#!/usr/bin/env python3
"""Attention over the tokens of several GPUs, by fa3.distributed: each method's time, forward and backward, beside one
GPU's, and torch's context_parallel. Results are held against one GPU's before a time is printed.

    torchrun --nproc-per-node 2 tools/examples/context_parallel.py --seqlens 8192 32768 --csv times.csv

A time is that of the slowest rank, in microseconds: the median of --repeats, each of which begins with all ranks.
Without GPUs it runs on the library's CPU reference, over gloo: for a look at the code, not at times.
"""

import argparse
import csv
import os
import pathlib
import statistics
import sys
import time


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seqlens", type=int, nargs="+", default=[8192, 32768], help="tokens of all ranks")
    parser.add_argument("--documents", type=int, default=1, help="of equal lengths, that the tokens are")
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--heads-kv", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--methods", nargs="+", default=["all_gather", "ring", "all_to_all"])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--csv", metavar="FILE", help="append a row for each method to this file")
    parser.add_argument("--library", help="libfa3.so (default: FA3_LIBRARY, or the newest build)")
    return parser.parse_args()


ARGUMENTS = arguments()  # --help needs no torch

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
import fa3  # noqa: E402
import fa3.distributed as parallel  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32


def slowest(time):
    """The largest of all ranks' numbers."""
    x = torch.tensor(time, device=DEVICE)
    dist.all_reduce(x, dist.ReduceOp.MAX)
    return x.item()


def elapsed(call):
    """Microseconds of one call."""
    if DEVICE == "cpu":
        begin = time.perf_counter()
        call()
        return (time.perf_counter() - begin) * 1e6
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e3


def timed(call, repeats, ranks=True):
    """Median microseconds of a call, of the slowest rank."""
    times = []
    for repeat in range(repeats + 2):
        if ranks:
            dist.barrier()
        taken = elapsed(call)
        times.append(slowest(taken) if ranks else taken)
    return statistics.median(times[2:])


def measured(attention, tensors, dout, repeats, ranks=True):
    """(o, gradients, microseconds forward, backward, bytes at most beyond what was there)"""
    leaves = [x.detach().requires_grad_() for x in tensors]
    before = torch.cuda.memory_allocated() if DEVICE == "cuda" else None
    if DEVICE == "cuda":
        torch.cuda.reset_peak_memory_stats()
    o = attention(*leaves)
    gradients = torch.autograd.grad(o, leaves, dout, retain_graph=True)
    memory = torch.cuda.max_memory_allocated() - before if DEVICE == "cuda" else None
    with torch.no_grad():
        forward = timed(lambda: attention(*tensors), repeats, ranks)
    backward = timed(lambda: torch.autograd.grad(o, leaves, dout, retain_graph=True), repeats, ranks)
    return o.detach(), gradients, forward, backward, memory


def check(found, expected, what):
    """Both are rounded to bf16, and were added up in other orders."""
    error = ((found.float() - expected.float()).norm() / expected.float().norm()).item()
    if not error <= 2**-6:
        raise SystemExit(f"{what}: relative error {error:.1e}")


def torch_context_parallel(q, k, v, dout, repeats):
    """(microseconds forward, backward) of torch's context_parallel, of tensors that all ranks have whole."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel
    from torch.nn.attention import SDPBackend, sdpa_kernel

    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    heads = [x.repeat_interleave(q.shape[2] // x.shape[2], 2).transpose(1, 2).contiguous() for x in (q, k, v, dout)]
    with context_parallel(mesh, buffers=heads, buffer_seq_dims=[2] * 4), sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        leaves, dout = [x.detach().requires_grad_() for x in heads[:3]], heads[3]
        call = lambda: F.scaled_dot_product_attention(*leaves, is_causal=True)  # noqa: E731
        o = call()
        forward = timed(call, repeats)
        return forward, timed(lambda: torch.autograd.grad(o, leaves, dout, retain_graph=True), repeats)


def run(seqlen, args, report):
    torch.manual_seed(seqlen)  # the same on all ranks
    dims = [(args.heads, args.head_dim)] + 2 * [(args.heads_kv, args.head_dim)]
    q, k, v = (torch.randn(1, seqlen, *x, device=DEVICE).to(DTYPE) for x in dims)
    dout = torch.randn_like(q)
    how = {"causal": True}
    packed = args.documents > 1
    if packed:
        how["cu_seqlens"] = [seqlen * i // args.documents for i in range(args.documents + 1)]
    sides = lambda x: x[0] if packed else x  # noqa: E731

    def alone(q, k, v):
        if not packed:
            return fa3.attention(q, k, v, causal=True)
        cu = torch.tensor(how["cu_seqlens"], dtype=torch.int32, device=DEVICE)
        longest = max(b - a for a, b in zip(how["cu_seqlens"], how["cu_seqlens"][1:]))
        return fa3.attention(q, k, v, causal=True, cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=longest,
                             max_seqlen_k=longest)  # fmt: skip

    whole = [sides(x) for x in (q, k, v)]
    o, gradients, *one = measured(alone, whole, sides(dout), args.repeats, ranks=False)
    one[:2] = slowest(one[0]), slowest(one[1])
    report(seqlen, "one GPU", one, one)
    cut = lambda x: parallel.shard(x, dim=0 if packed else 1)  # noqa: E731
    mine, expected = [cut(x) for x in whole], [cut(x) for x in (o, *gradients)]
    dout_mine = cut(sides(dout))
    del o, gradients
    for method in args.methods:
        attention = lambda q, k, v, m=method: parallel.attention(q, k, v, method=m, **how)  # noqa: E731
        o, gradients, *times = measured(attention, mine, dout_mine, args.repeats)
        for name, found, right in zip(("o", "dq", "dk", "dv"), (o, *gradients), expected):
            check(found, right, f"{method}: {name} of {seqlen} tokens")
        report(seqlen, method, times, one)
        del o, gradients
    if not packed and DEVICE == "cuda":
        del expected, mine
        try:
            times = torch_context_parallel(q, k, v, dout, args.repeats)
        except (ImportError, RuntimeError) as error:
            if dist.get_rank() == 0:
                print(f"torch's context_parallel: {str(error).splitlines()[0]}")
        else:
            report(seqlen, "torch", (*times, None), one)


def main():
    args = ARGUMENTS
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo")
    if args.library:
        fa3.load(args.library)
    rows = []

    def report(seqlen, method, times, one):
        forward, backward, memory = times
        card = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
        rows.append([card, dist.get_world_size(), seqlen, args.documents, args.heads, args.heads_kv, args.head_dim,
                     method, round(forward, 1), round(backward, 1), "" if memory is None else memory])  # fmt: skip
        if dist.get_rank() == 0:
            print(f"{seqlen:8} tokens  {method:10}  {forward:10.1f} us ({one[0] / forward:.2f})  "
                  f"{backward:10.1f} us ({one[1] / backward:.2f})  "
                  + ("" if memory is None else f"{memory / 2**20:8.0f} MiB"), flush=True)  # fmt: skip

    for seqlen in args.seqlens:
        run(seqlen, args, report)
    if args.csv and dist.get_rank() == 0:
        names = "card ranks seqlen documents heads heads_kv head_dim method forward_us backward_us memory_bytes"
        new = not pathlib.Path(args.csv).exists()
        with open(args.csv, "a", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([names.split()] * new + rows)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
