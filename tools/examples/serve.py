#!/usr/bin/env python3
"""A server's loop around libfa3: continuous batching of requests of mixed lengths over a small model with random
weights, and what it reached. Requests come at a rate, or all at once; many begin with the same tokens; some are
cancelled. Keys and values lie in pages, which sequences with the same beginning share.

    tools/examples/serve.py --model gpt-oss --requests 1000 --rate 200 --cascade --check

serve/engine.py is the loop: pages, the plan of a step, CUDA graphs. serve/model.py is the model, and its attention by
libfa3, by torch (--attention torch), or by vLLM's kernel where its package is installed (--attention vllm); --beside
torch serves the same requests by torch's attention afterwards, and shows tokens/s of both in a table. On a Hopper
GPU it is a model of a realistic width in bf16; on the CPU a tiny one in float32 on the library's reference.

--check computes every sequence with the plain model, alone and without a cache, and compares each token. A token of
which the model's score is less than the best one's by no more than rounding explains is a near-tie, and is reported.
Exit status 1 if a token is wrong, or if a request or page was lost."""

import argparse
import collections
import csv
import math
import os
import pathlib
import random
import sys
import time
from typing import List, NamedTuple, Optional

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "serve"), str(HERE.parent / "peers")]
import prepared  # noqa: E402
from prepared import fa3  # noqa: E402

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
NEAR = 32  # near-ties: at most so many units in the last place of 1, times the standard deviation of the scores
BEGINNINGS = 3  # different ones, of those that many requests have


# ---- the load ----


class Arrival(NamedTuple):
    at: float  # seconds after the start
    prompt: List[int]
    new: int
    cancelled_at: Optional[int]  # after so many tokens


def arrivals(options, vocabulary):
    """Prompts of 1 to half of the longest sequence, short ones more often, and from 1 token to the other half."""
    draw = random.Random(options.seed)
    words = lambda number: [draw.randrange(vocabulary) for _ in range(number)]
    quarter = options.longest // 4
    beginnings, at, made = [words(quarter) for _ in range(BEGINNINGS)], 0.0, []
    for _ in range(options.requests):
        shared = draw.random() < options.shared
        own = words(int(math.exp(draw.uniform(0, math.log(quarter if shared else 2 * quarter)))))
        new = draw.randint(1, 2 * quarter)
        cancelled_at = draw.randrange(new) if draw.random() < options.cancel else None
        made.append(Arrival(at, (draw.choice(beginnings) if shared else []) + own, new, cancelled_at))
        at += draw.expovariate(options.rate) if options.rate else 0.0
    return made


def serve(engine, load, show):
    """All requests, when the last one has left, and the seconds that it took."""
    pending, requests, start = collections.deque(enumerate(load)), [], time.monotonic()
    while pending or engine.busy():
        now = time.monotonic() - start
        while pending and pending[0][1].at <= now:
            number, arrival = pending.popleft()
            request = engine.submit(number, arrival.prompt, arrival.new)
            request.came = start + arrival.at
            requests.append(request)
            if arrival.cancelled_at == 0:
                engine.cancel(number)
        if not engine.busy():
            time.sleep(max(pending[0][1].at - now, 0))
        for request in engine.step():
            if len(request.tokens) - request.prompt == load[request.number].cancelled_at:
                engine.cancel(request.number)
        show(len(requests) - len(engine.requests))
    return requests, time.monotonic() - start


def progress(total, what):
    """A function that shows how many of them are done: tqdm's bar, or a line of its own where there is no tqdm."""
    try:
        from tqdm import tqdm
    except ImportError:
        shown = [time.monotonic()]

        def line(done):
            if done == total or time.monotonic() - shown[0] > 0.5:
                shown[0] = time.monotonic()
                print(f"\r{what}: {done} of {total}", end="\n" if done == total else "", file=sys.stderr, flush=True)

        return line
    bar = tqdm(total=total, desc=what)

    def move(done):
        bar.update(done - bar.n)
        if done == total:
            bar.close()

    return move


# ---- what came of it ----


def check(model, requests, options, show):
    """(tokens, those that are not the plain model's, the largest gap of their scores, the limit of a near-tie)"""
    import torch
    from engine import scores

    tokens = different = 0
    gap, limit, device = 0.0, math.inf, model.head.weight.device
    for done, request in enumerate(requests, 1):
        given = torch.tensor(request.generated, device=device)
        if len(given):
            positions = torch.arange(request.prompt, len(request.tokens), device=device)
            logits = model.logits(torch.tensor(request.tokens[:-1].tolist(), device=device))[request.prompt - 1 :]
            ids = torch.full_like(positions, request.number)
            found = scores(logits, ids, positions, options.temperature, options.seed)
            gaps = (found.amax(1) - found.gather(1, given[:, None])[:, 0]).nan_to_num(math.inf)
            tokens, different = tokens + len(given), different + (gaps > 0).sum().item()
            gap = max(gap, gaps.max().item())
            limit = min(limit, NEAR * torch.finfo(model.head.weight.dtype).eps * found.std().item())
        show(done)
    return tokens, different, gap, limit


def summary(engine, requests, seconds):
    """By the names of the CSV file's columns."""
    waits = sorted(request.first - request.came for request in requests if request.first)
    part = lambda share: 1000 * waits[min(int(share * len(waits)), len(waits) - 1)] if waits else math.nan
    states = collections.Counter(request.state for request in requests)
    return {
        "finished": states["finished"], "cancelled": states["cancelled"], "seconds": round(seconds, 3),
        "tokens_per_s": round(sum(len(request.generated) for request in requests) / seconds, 1),
        "computed_per_s": round(engine.computed / seconds, 1), "steps": engine.steps,
        "first_token_ms_median": round(part(0.5), 2), "first_token_ms_p99": round(part(0.99), 2),
        "most_pages": engine.most_pages, "shared_pages": engine.pages.shared, "preempted": engine.preempted,
        "fragmentation_percent": round(100 * engine.lost_rows / max(engine.used_rows, 1), 2),
    }  # fmt: skip


def report(found, options):
    print(f"{found['finished']} requests finished, {found['cancelled']} were cancelled, in {found['seconds']} s and "
          f"{found['steps']} steps")
    print(f"tokens/s: {found['tokens_per_s']} generated, {found['computed_per_s']} computed, with those of prompts")
    print(f"time to first token: median {found['first_token_ms_median']} ms, p99 {found['first_token_ms_p99']} ms")
    print(f"pages: at most {found['most_pages']} of {options.pages} in use, {found['fragmentation_percent']}% of their "
          f"memory lost to fragmentation; {found['shared_pages']} taken from sequences with the same beginning")
    print(f"preempted: {found['preempted']}", flush=True)  # fmt: skip


def compare(*rows):
    """A table of what each attention reached."""
    columns = {"attention": "attention", "tokens_per_s": "tokens/s", "computed_per_s": "with prompts",
               "first_token_ms_median": "first token, ms", "first_token_ms_p99": "p99, ms"}  # fmt: skip
    for row in (columns, *rows):
        print("  ".join(f"{row[name]:>{max(len(title), 8)}}" for name, title in columns.items()))
    times = rows[0]["tokens_per_s"] / rows[1]["tokens_per_s"]
    print(f"{rows[0]['attention']} serves {times:.2f} times the tokens/s of {rows[1]['attention']}")


def append_row(path, row):
    """To a file that may have rows of other runs."""
    row = {name: x for name, x in row.items() if name != "good"}
    with open(path, "a", newline="") as file:
        table = csv.DictWriter(file, row, lineterminator="\n")
        if file.tell() == 0:
            table.writeheader()
        table.writerow(row)


# ---- the command line ----


def number(kind, least, most=math.inf):
    allowed = f"at least {least}" if most == math.inf else f"from {least} to {most}"

    def parse(text):
        try:
            value = kind(text)
        except ValueError:
            kinds = {int: "an integer", float: "a number"}
            raise argparse.ArgumentTypeError(f"is {text!r}, must be {kinds[kind]}") from None
        if not least <= value <= most:  # nor NaN
            raise argparse.ArgumentTypeError(f"is {text}, must be {allowed}")
        return value

    return parse


def parsed(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    whole, part = number(int, 1), number(float, 0, 1)
    parser.add_argument("--model", choices=("llama", "gpt-oss"), default="llama")
    parser.add_argument("--attention", choices=("fa3", "torch", "vllm"), default="fa3")
    parser.add_argument("--beside", choices=("fa3", "torch", "vllm"), help="serve the same requests once more, by this "
                        "attention, and show both in a table")  # fmt: skip
    parser.add_argument("--requests", type=whole, metavar="N", help="(default: 1000, on the CPU 100)")
    parser.add_argument("--rate", type=number(float, 0), default=0.0, metavar="R", help="requests a second, at random; "
                        "0 (default): all at once")  # fmt: skip
    parser.add_argument("--shared", type=part, default=0.5, help="part with a common beginning (%(default)s)")
    parser.add_argument("--cancel", type=part, default=0.05, help="part that is cancelled (%(default)s)")
    parser.add_argument("--longest", type=number(int, 8), help="tokens of a sequence (default: 2048, on the CPU 64)")
    parser.add_argument("--batch", type=whole, help="sequences at the same time (default: 128, on the CPU 16)")
    parser.add_argument("--chunk", type=whole, help="tokens of a step (default: 2048, on the CPU 64)")
    parser.add_argument("--pages", type=whole, help="(default: for half of the sequences at their longest)")
    parser.add_argument("--page-size", type=whole, default=16, help="keys of a page (%(default)s)")
    parser.add_argument("--no-sharing", action="store_true", help="of pages by sequences with the same beginning")
    parser.add_argument("--cascade", action="store_true", help="attend shared pages once for all their sequences")
    parser.add_argument("--no-graphs", action="store_true", help="no CUDA graphs")
    parser.add_argument("--temperature", type=number(float, 0), default=0.0, help="0 (default): the likeliest token")
    parser.add_argument("--seed", type=number(int, 0, 2**31 - 1), default=1, metavar="S")
    parser.add_argument("--check", action="store_true", help="compare each token with the plain model's")
    parser.add_argument("--csv", metavar="FILE", help="append a row to this file")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="(default: cuda, if it is a Hopper GPU)")
    parser.add_argument("--dtype", choices=DTYPES, help="(default: bf16, on the CPU fp32)")
    parser.add_argument("--library", help="libfa3.so (default: FA3_LIBRARY, or the newest build)")
    return parser, parser.parse_args(arguments)


def resolved(parser, options):
    """Fills in what depends on the device, and refuses what cannot be."""
    import torch

    hopper = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
    options.device = options.device or ("cuda" if hopper else "cpu")
    on_gpu = options.device == "cuda"
    if on_gpu and not torch.cuda.is_available():
        parser.error("argument --device: cuda: torch finds no GPU")
    kinds = {options.attention, options.beside} - {None}
    if on_gpu and not hopper and kinds != {"torch"}:
        parser.error("argument --device: cuda: the GPU is not of compute capability 9.0")
    if "vllm" in kinds and not on_gpu:
        parser.error("argument --attention: vllm needs a GPU")
    if options.attention != "fa3" and options.cascade:
        parser.error("argument --cascade: only with --attention fa3")
    if options.cascade and options.no_sharing:
        parser.error("argument --cascade: not with --no-sharing")
    if options.dtype == "fp32" and on_gpu and kinds != {"torch"}:
        parser.error("argument --dtype: fp32 is for the CPU")
    sizes = {"requests": (1000, 100), "longest": (2048, 64), "batch": (128, 16), "chunk": (2048, 64)}
    for name, defaults in {**sizes, "dtype": ("bf16", "fp32")}.items():
        if getattr(options, name) is None:
            setattr(options, name, defaults[not on_gpu])
    options.pages = options.pages or max(options.batch // 2, 1) * -(-options.longest // options.page_size)
    if options.pages * options.page_size < options.longest:
        parser.error(f"argument --pages: is {options.pages}, too few for one sequence of --longest {options.longest}")
    if options.csv and os.path.exists(options.csv):
        with open(options.csv) as file:
            if not file.readline().startswith("model,attention,"):
                parser.error(f"argument --csv: {options.csv} is not of this program; it is left as it is")


def measured(parser, model, attention, load, options):
    """A row for the table: what serving the load by this attention reached."""
    import torch
    from engine import Engine
    from model import ATTENTION

    limits = {name: getattr(options, name) for name in ("pages", "page_size", "longest", "batch", "chunk")}
    cascade = options.cascade and attention == "fa3"
    how = {"share": not options.no_sharing, "cascade": cascade, "temperature": options.temperature,
           "seed": options.seed, "graphs": options.device == "cuda" and not options.no_graphs}  # fmt: skip
    try:
        engine = Engine(model, ATTENTION[attention], **limits, **how)
    except ImportError as error:
        parser.error(f"argument --attention: {attention} is not installed: {error}")
    except ValueError as error:
        parser.error(f"argument --{error}")
    device = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    print(f"{options.model}, {attention}, {options.dtype}, {device}, {options.requests} requests")

    requests, seconds = serve(engine, load, progress(options.requests, "served"))
    engine.check_empty()
    found = summary(engine, requests, seconds)
    assert found["finished"] + found["cancelled"] == len(load), "requests were lost"
    report(found, options)
    settings = {name: getattr(options, name) for name in ("model", "dtype", "requests", "rate", "seed")}
    row = {"model": settings.pop("model"), "attention": attention, **settings, "card": device, **limits,
           "cascade": cascade, **found}  # fmt: skip
    row.update(checked="", different="", largest_gap="", good=True)
    if options.check:
        tokens, different, gap, limit = check(model, requests, options, progress(len(requests), "checked"))
        row.update(checked=tokens, different=different, largest_gap=gap, good=gap <= limit)
        ties = f"but for {different}, whose scores are at most {gap:.3g} below" if different else "without exception"
        print(f"check: {tokens} tokens are the plain model's, {ties}; a near-tie is up to {limit:.3g}   "
              f"{'ok' if row['good'] else 'FAILED'}")  # fmt: skip
    return row


def main(arguments=None):
    parser, options = parsed(arguments)
    try:
        import torch
    except ImportError as error:
        print(f"SKIPPED: needs torch: {error}")
        return 77
    resolved(parser, options)
    if options.library or {options.attention, options.beside} - {"torch", None}:
        fa3.load(prepared.newest_build(options.library))
    from model import MODELS, ON_CPU, Model

    sizes = (MODELS if options.device == "cuda" else ON_CPU)[options.model]
    model = Model(sizes, options.longest, options.seed, getattr(torch, DTYPES[options.dtype]), options.device)
    load, rows = arrivals(options, sizes.vocabulary), []
    for attention in (options.attention, options.beside):
        if attention:
            rows.append(measured(parser, model, attention, load, options))
            if options.csv:
                append_row(options.csv, rows[-1])
    if options.beside:
        compare(*rows)
    return 0 if all(row["good"] for row in rows) else 1

if __name__ == "__main__":
    sys.exit(main())
