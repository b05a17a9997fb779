"""tools/examples/serve.py on the CPU, by the library's reference: its tokens are those of the plain model run alone,
whose attention is that in float64; with too few pages, shared beginnings, cancelled requests, chunks, cascade,
sampling, and decoding that is replayed; nothing is lost or leaked; its check finds faults; bad arguments are refused by
their names. Argument: the library. Skipped without torch."""

import contextlib
import csv
import importlib.util
import io
import math
import pathlib
import random
import re
import sys
import tempfile
import threading
import time
import types

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support import ROOT, fa3, need, refused  # noqa: E402

need("torch")
import torch  # noqa: E402

spec = importlib.util.spec_from_file_location("serve", ROOT / "tools/examples/serve.py")
program = importlib.util.module_from_spec(spec)
spec.loader.exec_module(program)
import engine  # noqa: E402
import model  # noqa: E402

fa3.load(sys.argv[1])
torch.set_num_threads(1)  # the models are small
LONGEST, REQUESTS = 88, 16


@contextlib.contextmanager
def replaced(place, name, value):
    old = getattr(place, name)
    setattr(place, name, value)
    try:
        yield old
    finally:
        setattr(place, name, old)


def made(name, dtype=torch.float32):
    return model.Model(model.ON_CPU[name], LONGEST, 1, dtype, "cpu")


def plain_is_attention(name):
    """The plain model's attention, row by row in float64."""
    generator = torch.Generator().manual_seed(1)
    for layer in made(name).layers:
        heads, d = layer.heads[0], layer.head_dim
        q, k, v = (torch.randn(30, n, d, generator=generator) for n in layer.heads)
        angles = torch.rand(40, d // 2, generator=generator)
        o = model.plain(layer, q, k, v, angles.cos(), angles.sin())
        turn = torch.polar(torch.ones(30, 1, d // 2).double(), angles[:30, None].double())
        q, k = (torch.view_as_real(torch.complex(*x.double().chunk(2, 2)) * turn) for x in (q, k))
        for h in range(heads):
            for i in range(30):
                seen = slice(0 if layer.window is None else max(i + 1 - layer.window, 0), i + 1)
                s = (q[i, h] * k[seen, h // (heads // layer.heads[1])]).sum((1, 2)) / math.sqrt(d)
                p = s.exp()
                p /= p.sum() + (0 if layer.sinks is None else layer.sinks[h].double().exp())
                expected = p @ v[seen, h // (heads // layer.heads[1])].double()
                assert (o[i, h] - expected).abs().max() < 1e-5, (name, h, i)
    windows = [layer.window for layer in made(name).layers]
    assert (windows, layer.sinks is None) == (([10, None], False) if name == "gpt-oss" else ([None, None], True))


def alone(of, request, temperature=0.0, seed=0):
    """The tokens that the plain model generates behind the prompt, one by one."""
    tokens = request.tokens[: request.prompt].tolist()
    number = torch.tensor([request.number])
    for position in range(len(tokens), request.prompt + request.new):
        logits = of.logits(torch.tensor(tokens))[-1:]
        tokens.append(engine.scores(logits, number, torch.tensor([position]), temperature, seed).argmax().item())
    return tokens


def served(of, attention="fa3", pages=48, **how):
    """Requests that come in the course of the steps, two thirds of them with a common beginning. Some are cancelled:
    before they arrive, as they wait, as they run, and when they have finished. (engine, requests, what the model got,
    in how many steps some waited)"""
    served = engine.Engine(of, model.ATTENTION[attention], pages=pages, page_size=8, longest=LONGEST, batch=6, chunk=16,
                           seed=5, **how)  # fmt: skip
    draw, requests = random.Random(3), []
    words = lambda number: [draw.randrange(of.sizes.vocabulary) for _ in range(number)]
    common, seen, logits = (words(20), [], words(20)), [], served.attention.logits
    served.attention.logits = lambda batch: (seen.append(batch), logits(batch))[1]
    waited = steps = 0
    while len(requests) < REQUESTS or served.busy():
        for number in range(len(requests), min(len(requests) + 3, REQUESTS) if steps % 4 == 0 else len(requests)):
            prompt = common[number // 2 % 3] + words(draw.randint(1, 30))
            requests.append(served.submit(number, prompt, draw.randint(4, 36)))
            if number == 3:
                served.cancel(number)
        for number, tokens in ((5, 2), (8, 1)):
            if len(requests) > number and len(requests[number].generated) == tokens:
                served.cancel(number)
        if len(requests) == REQUESTS and requests[-1].state == "waiting":
            served.cancel(REQUESTS - 1)
        if requests[0].state == "finished":
            served.cancel(0)
        served.step()
        steps += 1
        assert steps < 1000 and len(seen[-1].tokens) <= 16, "it goes on for ever, or a step has too many tokens"
        waited += bool(served.waiting and served.running)
        numbers = [request.number for request in (*served.running, *served.waiting)]
        assert numbers == sorted(numbers), "the oldest run, the youngest wait"
        owners = [page for request in served.running for page in request.pages]
        assert all(owners.count(page) == users for page, users in enumerate(served.pages.users)), "users of pages"
        assert not set(owners) & set(served.pages.free), "a page in use is free"
    served.check_empty()
    return served, requests, seen, waited


def agree_all(of, requests, temperature=0.0):
    """Each has the tokens that the plain model generates alone: all of them, or, if it was cancelled, the first."""
    for request in requests:
        expected = alone(of, request, temperature, 5)
        assert request.state in ("finished", "cancelled"), request.state
        assert request.tokens.tolist() == expected[: len(request.tokens)], (request.number, request.state)
        assert (len(request.tokens) == len(expected)) == (request.state == "finished"), request.number


def agree(of, requests, temperature=0.0):
    """The same of what `served` returned, of which the right ones were cancelled."""
    agree_all(of, requests, temperature)
    states = [request.state for request in requests]
    assert states[0] == "finished" and {states[i] for i in (3, 5, 8, -1)} == {"cancelled"}, states
    assert [len(requests[i].generated) for i in (3, 5, 8, -1)] == [0, 2, 1, 0], "cancelled when it was asked for"


def serving(name):
    """Everything at once, in float32, where tokens are the same."""
    of = made(name)
    found, requests, seen, waited = served(of)
    agree(of, requests)
    assert found.preempted == 0 and found.pages.shared > 0 and waited, (found.preempted, found.pages.shared, waited)
    mixed = [batch for batch in seen if batch.chunks and batch.single]
    assert mixed and any(len(batch.chunks) > 1 for batch in seen), "decoding and chunks in one step"
    assert any(rows < keys for batch in seen for _, rows, keys in batch.chunks), "a chunk behind others"
    assert any((batch.cu.diff() == 0).any() for batch in seen[1:]), "padded batches"
    assert all(batch.prefixes is None for batch in seen)
    few, requests, *_ = served(of, pages=12)
    agree(of, requests)
    assert few.preempted > 1 and few.most_pages == 12, (few.preempted, few.most_pages)
    none, requests, *_ = served(of, share=False)
    agree(of, requests)
    assert none.pages.shared == 0 and none.steps > found.steps and none.computed > found.computed
    for attention in ("torch", "vllm"):
        agree(of, served(of, attention, pages=12)[1])


def beginnings(name):
    """A page is found by all tokens up to its end, not by its own alone. A prompt's last token is always computed."""
    found = engine.Engine(made(name), model.Fa3, pages=20, page_size=8, longest=40, batch=4, chunk=16)
    first, other, middle = [1] * 8, [2] * 8, [3] * 8
    prompts = (first + middle + [5], other + [4] * 8, other + middle + [5], first + middle + [6], first + middle)
    requests = [found.submit(number, prompt, 4) for number, prompt in enumerate(prompts)]
    for _ in range(40):
        found.step()
    found.check_empty()
    agree_all(found.model, requests)
    assert found.pages.shared == 1 + 2 + 1, found.pages.shared


def cascade(name):
    """Shared pages are attended once for their group. With sinks, and beside windows."""
    of, calls = made(name), []
    with replaced(model.Fa3, "cascade", lambda *inputs: (calls.append(inputs), whole(*inputs))[1]) as whole:
        found, requests, seen, _ = served(of, cascade=True)
    agree(of, requests)
    groups = [batch.prefixes.keys.max().item() for batch in seen if batch.prefixes is not None]
    layers = sum(layer.window is None for layer in of.layers)
    assert len(calls) == layers * len(groups) and max(groups) == 16, (len(calls), groups)
    assert any(batch.chunks and batch.prefixes is not None for batch in seen), "beside chunks"
    assert any(batch.prefixes is not None and (batch.prefixes.keys > 0).sum() > 1 for batch in seen), "several groups"
    few, requests, *_ = served(of, pages=12, cascade=True)
    agree(of, requests)
    assert few.preempted > 1


def sampled(name):
    """With a seed: the same tokens with few pages, and other ones than the likeliest."""
    of = made(name)
    requests = [served(of, pages=pages, temperature=0.8)[1] for pages in (48, 12)]
    agree(of, requests[0], 0.8)
    agree(of, requests[1], 0.8)
    greedy = alone(of, requests[0][0])
    assert greedy != requests[0][0].tokens.tolist(), "no sampling"
    flat = torch.zeros(4000, 8)
    flat[:, 3] = math.log(9)
    ids, positions = torch.arange(4000) % 63, torch.arange(4000) // 63
    drawn = engine.scores(flat, ids, positions, 1.0, 7).argmax(1)
    counts = torch.bincount(drawn, minlength=8) / 4000
    expected = flat[0].softmax(0)
    assert ((counts - expected).abs() < 4 * (expected / 4000).sqrt()).all(), counts
    assert not torch.equal(drawn, engine.scores(flat, ids, positions, 1.0, 8).argmax(1)), "the seed"


def in_16_bits(name):
    """fa3.append instead of its stand-in for float32; a token that differs is a near-tie."""
    of, calls = made(name, torch.bfloat16), []
    options = types.SimpleNamespace(temperature=0.0, seed=5)
    with replaced(fa3, "append", lambda *inputs, **how: (calls.append(inputs), append(*inputs, **how))[1]) as append:
        for how in ({"pages": 12}, {"cascade": True}):
            found, requests, seen, _ = served(of, **how)
            tokens, different, gap, limit = program.check(of, requests, options, lambda done: None)
            assert tokens > 100 and gap <= limit / 2 and different <= tokens / 20, (tokens, different, gap, limit)
            assert len(calls) == len(of.layers) * (len(seen) + 1), "one call of append for each layer of a step"
            calls.clear()


def threads(name):
    """Requests come and are cancelled by several threads as steps are done."""
    of, requests = made(name), {}
    found = engine.Engine(of, model.Fa3, pages=12, page_size=8, longest=LONGEST, batch=6, chunk=16, seed=5)

    def come(first):
        for number in range(first, first + 12):
            requests[number] = found.submit(number, list(range(number % 50 + 1)), 6)
            if number % 4 == 3:
                found.cancel(number - 1)
            time.sleep(0.002)

    workers = [threading.Thread(target=come, args=(first,)) for first in (0, 100, 200)]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers) or found.busy():
        found.step()
    found.check_empty()
    assert len(requests) == 36 and {request.state for request in requests.values()} == {"finished", "cancelled"}
    for number, request in requests.items():
        expected = alone(of, request)[: len(request.tokens)]
        assert request.tokens.tolist() == expected and (request.state == "finished" or number % 4 == 2), number


class Replay:
    """What stands in for a CUDA graph: what was captured is computed again, into the same memory."""

    captured = None

    def replay(self):
        attention, batch, logits = self.captured
        logits.copy_(attention(batch))


@contextlib.contextmanager
def simulated_graphs():
    capturing, loaded = [], []

    @contextlib.contextmanager
    def capture(graph, pool):
        assert pool == "pool"
        loaded.append("captured")
        capturing.append(graph)
        yield
        capturing.pop()

    def logits(attention, batch):
        found = batch_logits(attention, batch)
        if capturing:
            capturing[-1].captured = (lambda batch: batch_logits(attention, batch)), batch, found
        return found

    stream = lambda *device: types.SimpleNamespace(wait_stream=lambda other: None)
    with contextlib.ExitStack() as stack:
        for name, value in (("CUDAGraph", Replay), ("graph", capture), ("Stream", stream), ("current_stream", stream),
                            ("graph_pool_handle", lambda: "pool"), ("stream", lambda _: contextlib.nullcontext())):
            stack.enter_context(replaced(torch.cuda, name, value))
        stack.enter_context(replaced(fa3, "preload", loaded.append))
        batch_logits = stack.enter_context(replaced(model.Fa3, "logits", logits))
        yield loaded


def graphs(name):
    """Decoding replays what was captured without tokens, also with prefixes: in the same memory, by the same maxima."""
    of, replays = made(name), []
    noted = lambda graph: (replays.append(graph), replay(graph))
    with simulated_graphs() as loaded, replaced(Replay, "replay", noted) as replay:
        for attention, how in (("fa3", {"cascade": True}), ("torch", {"pages": 12})):
            replays.clear()
            found, requests, seen, _ = served(of, attention, graphs=True, **how)
            agree(of, requests)
            assert (loaded[0] != "captured") == (attention == "fa3"), "kernels are loaded before they are captured"
            loaded.clear()
            assert len(found.graphs) == (8 if "cascade" in how else 4) and len(seen) + len(replays) == found.steps
            assert all(batch.chunks for batch in seen) and len(replays) > 5
            prefixes = [graph.captured[1].prefixes is not None for graph in replays]
            assert any(prefixes) == ("cascade" in how) and not all(prefixes)


def refusals(name):
    of = made(name)
    make = lambda **how: engine.Engine(of, model.Fa3, **{"pages": 4, "page_size": 8, "longest": 40, "batch": 2,
                                                         "chunk": 4, **how})  # fmt: skip
    for argument in ("pages", "page_size", "longest", "batch", "chunk"):
        refused(ValueError, f"{argument} is 0, must be at least 1", make, **{argument: 0})
    refused(ValueError, "chunk is 1, must be at least batch, 2", make, chunk=1)
    refused(ValueError, "longest is 89, must be at most 88", make, longest=89)
    refused(ValueError, "temperature is -1", make, temperature=-1)
    refused(ValueError, "cascade is given, but share is not", make, cascade=True, share=False)
    found = make()
    found.submit(1, [5], 1)
    refused(ValueError, "number is 1, which another request has", found.submit, 1, [5], 1)
    refused(ValueError, "prompt is empty", found.submit, 2, [], 1)
    refused(ValueError, "prompt has a token that is not from 0 to 299", found.submit, 2, [1, 300], 1)
    refused(ValueError, "new is 0, must be at least 1", found.submit, 2, [1], 0)
    refused(ValueError, "prompt and new are 30 + 3 tokens, must be at most 32 together", found.submit, 2, [1] * 30, 3)
    refused(AssertionError, "requests are left", found.check_empty)
    found.cancel(9)  # nobody's
    found.step()
    found.check_empty()
    found.pages.take()
    refused(AssertionError, "pages are leaked", found.check_empty)


# ---- the program ----


def run(*words):
    """Exit status, output and errors."""
    printed, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
        try:
            status = program.main(["--library", sys.argv[1], "--device", "cpu", *words])
        except SystemExit as stopped:
            status = stopped.code
    return status, printed.getvalue(), errors.getvalue()


@contextlib.contextmanager
def without_tqdm():
    sys.modules["tqdm"] = None
    yield
    del sys.modules["tqdm"]


def command_line(name):
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "served.csv")
        words = ["--model", name, "--requests", "60", "--check", "--csv", str(file)]
        for more in (["--cascade", "--pages", "8"], ["--attention", "torch", "--rate", "400"]):
            with without_tqdm() if "--cascade" in more else contextlib.nullcontext():
                status, printed, errors = run(*words, *more)
            assert status == 0 and "FAILED" not in printed and "without exception" in printed, (printed, errors)
            for what in ("served", "checked"):
                assert re.search(f"{what}: (60 of 60|100%.* 60/60)", errors), errors
        with open(file, newline="") as table:
            rows = list(csv.DictReader(table))
        assert [row["attention"] for row in rows] == ["fa3", "torch"] and rows[0]["cascade"] == "True"
        for row in rows:
            assert int(row["finished"]) + int(row["cancelled"]) == 60 and int(row["cancelled"]), row
            assert int(row["checked"]) > 500 and row["different"] == "0", row
            assert 0 < float(row["first_token_ms_median"]) <= float(row["first_token_ms_p99"])
            assert 0 < float(row["fragmentation_percent"]) < 100 and int(row["most_pages"]) <= int(row["pages"]), row
        file.write_text("something else\n")
        status, _, errors = run(*words)
        assert status == 2 and "--csv" in errors and file.read_text() == "something else\n", errors
    status, printed, errors = run("--model", name, "--requests", "8", "--beside", "torch", "--cascade")
    *_, titles, one, other, times = printed.splitlines()
    assert status == 0 and titles.split()[:2] == ["attention", "tokens/s"], (printed, errors)
    assert [row.split()[0] for row in (one, other)] == ["fa3", "torch"], printed
    one, other = (float(row.split()[1]) for row in (one, other))
    found = re.findall("tokens/s: (.*) generated", printed)
    assert [one, other] == [float(x) for x in found] and f"serves {one / other:.2f} times" in times, printed
    forgetful = lambda *inputs: None
    with replaced(engine.Pages, "release", forgetful):
        refused(AssertionError, "pages are leaked", run, "--model", name, "--requests", "4", "--pages", "64")
    with replaced(model.Fa3, "append_by_torch", lambda self, q, *rest: (append(self, q, *rest), q)[1]) as append:
        status, printed, _ = run("--model", name, "--requests", "8", "--check")
        assert status == 1 and "FAILED" in printed, printed


def bad_words(name):
    for words, text in (("--requests 0", "--requests: is 0, must be at least 1"),
                        ("--rate x", "--rate: is 'x', must be a number"), ("--rate -1", "--rate"),
                        ("--seed 1.5", "--seed: is '1.5', must be an integer"),
                        ("--cancel nan", "--cancel: is nan, must be from 0 to 1"),
                        ("--chunk 3", "--chunk is 3, must be at least batch"),
                        ("--pages 1", "--pages: is 1, too few for one sequence of --longest 64"),
                        ("--attention fa4", "--attention"), ("--attention vllm", "--attention: vllm needs a GPU"),
                        ("--beside vllm", "--attention: vllm needs a GPU"),
                        ("--attention torch --cascade", "--cascade: only with --attention fa3"),
                        ("--cascade --no-sharing", "--cascade: not with --no-sharing"), ("--model gpt", "--model")):
        status, printed, errors = run(*words.split())
        assert status == 2 and text in errors and not printed, (words, status, errors)


def vllm_stand_in(q, k, v, max_seqlen_q, cu_seqlens_q, max_seqlen_k, seqused_k, causal, window_size, block_table, s_aux,
                  fa_version):  # fmt: skip
    """vLLM's call, in its argument's names and dtypes."""
    assert fa_version == 3 and (s_aux is None or s_aux.dtype == q.dtype)
    how = {"cu_seqlens_q": cu_seqlens_q, "max_seqlen_q": max_seqlen_q, "max_seqlen_k": max_seqlen_k, "causal": causal}
    sinks = None if s_aux is None else s_aux.float()
    return fa3.forward(q, k, v, seqused_k=seqused_k, window=window_size, page_table=block_table, sinks=sinks, **how)


sys.modules["vllm_flash_attn"] = types.SimpleNamespace(flash_attn_varlen_func=vllm_stand_in)
both = (plain_is_attention, serving, beginnings, cascade, sampled, in_16_bits, threads, graphs, command_line)
for case in (*both, refusals, bad_words):
    for name in model.ON_CPU if case in both else ("llama",):
        case(name)
    print(case.__name__, flush=True)
