"""Continuous batching: requests come, are worked on together, step by step, and leave when they are done.

A step takes one token of each sequence that is decoding, and fills up with chunks of prompts, all packed into one call
of the model. Where only decoding is left, steps have one of a few sizes, each of which is a CUDA graph on a GPU. Keys
and values lie in pages. A sequence gets the pages of all its tokens when it begins, then one whenever its last one is
full; full pages of equal beginnings are shared. If no page is free, the youngest sequence gives its own back and waits;
its tokens are kept, and their keys are computed again."""

from __future__ import annotations

import array
import collections
import hashlib
import itertools
import time

import torch

from model import Batch, Prefixes


class Pages:
    """Which pages are free, how many sequences use each, and which tokens the full ones hold, with all before them."""

    def __init__(self, number):
        self.free = dict.fromkeys(range(number))  # in the order in which they became free
        self.users = [0] * number
        self.digests = {}  # of pages, also of free ones until they are taken
        self.holders = {}  # and the page that has a digest
        self.shared = 0

    def take(self):
        """The page that has been free for longest; what it held is gone."""
        page = next(iter(self.free))
        del self.free[page]
        self.users[page] = 1
        if page in self.digests:
            del self.holders[self.digests.pop(page)]
        return page

    def share(self, page):
        self.free.pop(page, None)
        self.users[page] += 1
        self.shared += 1

    def release(self, page):
        self.users[page] -= 1
        if self.users[page] == 0:
            self.free[page] = None

    def name(self, page, digest):
        """The page is full. If another one holds the same, that one is found."""
        if page not in self.digests and digest not in self.holders:
            self.digests[page], self.holders[digest] = digest, page


class Request:
    """tokens: the prompt, then what was generated. state: waiting, running, finished or cancelled."""

    def __init__(self, number, prompt, new):
        self.number, self.prompt, self.new = number, len(prompt), new
        self.tokens, self.state = array.array("q", prompt), "waiting"
        self.done = 0  # so many of the tokens have their keys in the cache
        self.pages, self.slot, self.digests = [], None, []
        self.came, self.first, self.left = time.monotonic(), None, None

    @property
    def missing(self):
        return len(self.tokens) - self.done

    @property
    def generated(self):
        return self.tokens[self.prompt :].tolist()

    def digest(self, page, page_size):
        """Of the tokens of the first page + 1 pages, which must be full."""
        while len(self.digests) <= page:
            start = len(self.digests) * page_size
            before = self.digests[-1] if self.digests else b""
            held = self.tokens[start : start + page_size].tobytes()
            self.digests.append(hashlib.blake2b(before + held, digest_size=16).digest())
        return self.digests[page]


class Engine:
    """attention: a class of model.py. pages: of page_size keys each. longest: tokens of a sequence; batch: sequences
    that run at the same time; chunk: tokens of a step. share: whether equal beginnings are; cascade: whether they are
    also attended once for all. temperature 0 takes the likeliest token. graphs: whether decoding is replayed."""

    def __init__(self, model, attention, *, pages, page_size=16, longest=2048, batch=32, chunk=512, share=True,
                 cascade=False, temperature=0.0, seed=0, stop=None, graphs=False):  # fmt: skip
        numbers = {"pages": pages, "page_size": page_size, "longest": longest, "batch": batch, "chunk": chunk}
        for name, number in numbers.items():
            if number < 1:
                raise ValueError(f"{name} is {number}, must be at least 1")
        if chunk < batch:
            raise ValueError(f"chunk is {chunk}, must be at least batch, {batch}: one token of each sequence")
        if longest > len(model.cos):
            raise ValueError(f"longest is {longest}, must be at most {len(model.cos)}, the model's positions")
        if not temperature >= 0:
            raise ValueError(f"temperature is {temperature}, must be at least 0")
        if cascade and not share:
            raise ValueError("cascade is given, but share is not: no sequences have pages in common")
        self.model, self.page_size, self.longest, self.chunk = model, page_size, longest, chunk
        self.share, self.cascade, self.temperature, self.seed, self.stop = share, cascade, temperature, seed, stop
        self.device = model.head.weight.device
        self.attention = attention(model, pages, page_size)
        self.pages = Pages(pages)
        self.arrived = collections.deque()  # requests, and numbers of those to be cancelled; from any thread
        self.waiting, self.running = collections.deque(), []  # both: the oldest first
        self.requests = {}
        self.slots = list(range(batch))  # free rows of the table
        self.table = torch.zeros(batch, -(-longest // page_size), dtype=torch.int32)
        self.sizes = [size for size in (1, 2, 4, 8, 16, *range(32, batch, 32)) if size < batch] + [batch]
        self.steps = self.preempted = self.computed = self.most_pages = self.used_rows = self.lost_rows = 0
        self.graphs, self.graphed = {}, graphs
        self.attention.logits(self.batch([], 1))  # so that nothing is loaded during the first request
        if graphs:
            self.capture()

    # ---- requests ----

    def submit(self, number, prompt, new):
        """A request by this number, for `new` tokens behind those of the prompt."""
        if number in self.requests:
            raise ValueError(f"number is {number}, which another request has")
        if len(prompt) < 1:
            raise ValueError("prompt is empty, must have at least 1 token")
        if not all(0 <= token < self.model.sizes.vocabulary for token in prompt):
            raise ValueError(f"prompt has a token that is not from 0 to {self.model.sizes.vocabulary - 1}")
        if new < 1:
            raise ValueError(f"new is {new}, must be at least 1")
        room = min(self.longest, len(self.pages.users) * self.page_size)
        if len(prompt) + new > room:
            raise ValueError(f"prompt and new are {len(prompt)} + {new} tokens, must be at most {room} together")
        request = self.requests[number] = Request(number, prompt, new)
        self.arrived.append(request)
        return request

    def cancel(self, number):
        """It leaves before the next step, if it has not finished by then."""
        self.arrived.append(number)

    def busy(self):
        return bool(self.arrived or self.waiting or self.running)

    def check_empty(self):
        """That nobody is here, and nobody has left anything here."""
        assert not self.busy() and not self.requests, "requests are left"
        assert len(self.pages.free) == len(self.pages.users), "pages are leaked"
        assert not any(self.pages.users), "pages have users"
        assert sorted(self.slots) == list(range(len(self.table))), "rows of the table are leaked"

    def admit(self):
        while self.arrived:
            request = self.arrived.popleft()
            if isinstance(request, Request):
                self.waiting.append(request)
                continue
            request = self.requests.get(request)
            if request is not None:
                self.leave(request, "cancelled")

    def leave(self, request, state):
        """Its pages, if it has any, become free, the last one first: so beginnings can be found for longest."""
        if request.state == "waiting":
            self.waiting.remove(request)
        else:
            self.running.remove(request)
            for page in reversed(request.pages):
                self.pages.release(page)
            self.slots.append(request.slot)
            request.pages, request.slot = [], None
        request.state = state
        if state == "waiting":
            self.waiting.appendleft(request)
        else:
            request.left = time.monotonic()
            del self.requests[request.number]

    def begin(self, request):
        """The first one that waits gets its pages, if there are as many; also one more for each that is running."""
        size, tokens = self.page_size, request.tokens
        found = []
        for page in range((len(tokens) - 1) // size if self.share else 0):  # its last token is always computed
            holder = self.pages.holders.get(request.digest(page, size))
            if holder is None:
                break
            found.append(holder)
        free = len(self.pages.free) - sum(self.pages.users[page] == 0 for page in found)
        needed = -(-len(tokens) // size) - len(found)
        if not self.slots or needed + len(self.running) > free:
            return False
        for page in found:
            self.pages.share(page)
        request.slot, request.state, request.done = self.slots.pop(), "running", len(found) * size
        self.give(request, found)
        self.give(request, [self.pages.take() for _ in range(needed)])
        self.running.append(request)
        return True

    def give(self, request, pages):
        have = len(request.pages)
        request.pages += pages
        self.table[request.slot, have : have + len(pages)] = torch.tensor(pages, dtype=torch.int32)

    # ---- a step ----

    def step(self):
        """Works on what there is; the requests that got a token, in a list."""
        self.admit()
        planned = self.plan()
        if not planned:
            return []
        decoding = all(rows == 1 for _, rows in planned)
        size = next(size for size in self.sizes if size >= len(planned)) if decoding else len(planned)
        batch = self.batch(planned, size)
        logits = self.replay(batch) if self.graphs and decoding else self.attention.logits(batch)
        tokens = scores(logits, batch.ids, batch.keys, self.temperature, self.seed).argmax(1).tolist()
        self.count(planned)
        changed = []
        for (request, rows), token in zip(planned, tokens):
            request.done += rows
            if request.missing:
                continue  # a chunk of a prompt, and not the last one
            request.tokens.append(token)
            request.first = request.first or time.monotonic()
            changed.append(request)
            if len(request.tokens) == request.prompt + request.new or token == self.stop:
                self.leave(request, "finished")
        return changed

    def plan(self):
        """[(request, how many tokens of it)], those with one token first; of others as many as a step may have."""
        for request in list(self.running):  # the oldest first
            if request.state == "running" and len(request.tokens) > len(request.pages) * self.page_size:
                while not self.pages.free and request.state == "running":
                    self.leave(self.running[-1], "waiting")
                    self.preempted += 1
                if request.state == "running":
                    self.give(request, [self.pages.take()])
        left = self.chunk
        planned = []
        for request in sorted(self.running, key=lambda request: request.missing > 1):
            rows = min(request.missing, left)
            left -= self.schedule(planned, request, rows)
        while self.waiting and left and self.begin(self.waiting[0]):
            request = self.waiting.popleft()
            left -= self.schedule(planned, request, min(request.missing, left))
        return sorted(planned, key=self.order)

    def schedule(self, planned, request, rows):
        """Its full pages can be shared from now on: a step writes all new keys of a layer before any is read."""
        if rows:
            planned.append((request, rows))
        if self.share:
            for page in range(request.done // self.page_size, (request.done + rows) // self.page_size):
                self.pages.name(request.pages[page], request.digest(page, self.page_size))
        return rows

    def order(self, planned):
        """Sequences that share their first page follow each other."""
        request, rows = planned
        return rows > 1, request.pages[0] if self.cascade else 0, request.number

    def count(self, planned):
        self.steps += 1
        self.computed += sum(rows for _, rows in planned)
        used = len(self.pages.users) - len(self.pages.free)
        self.most_pages = max(self.most_pages, used)
        self.used_rows += used * self.page_size
        self.lost_rows += sum(len(x.pages) * self.page_size - len(x.tokens) for x in self.running)

    # ---- what the device gets ----

    def batch(self, planned, size, with_prefixes=False):
        """Of `size` sequences, the last ones without tokens. With prefixes if sequences share any, or if wanted."""
        pad = [0] * (size - len(planned))
        requests, rows = [request for request, _ in planned], [rows for _, rows in planned]
        before = [request.done for request in requests]
        keys = [sum(pair) for pair in zip(before, rows)]
        tokens = [token for request, n in planned for token in request.tokens[request.done : request.done + n]]
        single = sum(n == 1 for n in rows)
        decoding = single == len(rows)
        table = self.table[[request.slot for request in requests] + pad].to(self.device)
        groups = self.groups(requests[:single], rows[single:]) if self.cascade else []
        prefixes = None
        if with_prefixes or any(pages for _, _, pages in groups):
            prefixes = self.prefixes(groups, keys + pad, table)
        replayed = self.graphed and decoding  # then the maxima are those of any step
        return Batch(
            tokens=self.int32(tokens + pad if decoding else tokens).long(),
            ids=torch.tensor([request.number for request in requests] + pad, device=self.device),
            cu=self.int32(sums(rows + pad)),
            before=self.int32(before + pad),
            keys=self.int32(keys + pad),
            table=table,
            prefixes=prefixes,
            single=size if decoding else single,
            chunks=[(single + number, n, keys[single + number]) for number, n in enumerate(rows[single:])],
            longest_group=size if replayed else max((n for _, n, _ in groups), default=1),
            longest=table.shape[1] * self.page_size if replayed else max(keys, default=1),
        )

    def int32(self, numbers):
        return torch.tensor(numbers, dtype=torch.int32, device=self.device)

    def groups(self, singles, chunks):
        """[(sequences, rows, how many pages they have in common)], in the order of the rows. Those with chunks are
        alone. What sequences with one new token have in common ends with that token or before it."""
        groups = []
        for _, members in itertools.groupby(singles, lambda request: request.pages[0]):
            columns = list(zip(*(request.pages for request in members)))
            members = len(columns[0])
            common = list(itertools.takewhile(lambda pages: len(set(pages)) == 1, columns)) if members > 1 else []
            groups.append((members, members, len(common)))
        return groups + [(1, rows, 0) for rows in chunks]

    def prefixes(self, groups, keys, table):
        """`groups` as tensors; there are as many groups as sequences, the last ones without rows."""
        size, width = table.shape
        pad = [0] * (size - len(groups))
        sequences, rows, pages = (list(numbers) + pad for numbers in (zip(*groups) if groups else ((), (), ())))
        shared = [n for count, n in zip(sequences, pages) for _ in range(count)]
        shared += [0] * (size - len(shared))
        columns = torch.arange(width, device=self.device) + self.int32(shared)[:, None]
        first = [min(start, size - 1) for start in sums(sequences)[:size]]  # sequence of each group
        return Prefixes(
            cu=self.int32(sums(rows)),
            keys=self.int32([n * self.page_size for n in pages]),
            table=table[first],
            keys_behind=self.int32([have - n * self.page_size for have, n in zip(keys, shared)]),
            table_behind=table.gather(1, columns.clamp(max=width - 1)),
        )

    # ---- CUDA graphs ----

    def capture(self):
        """One of each size, of sequences without tokens."""
        self.attention.preload()
        pool, side = torch.cuda.graph_pool_handle(), torch.cuda.Stream(self.device)
        for size, with_prefixes in itertools.product(reversed(self.sizes), {False, self.cascade}):
            batch = self.batch([], size, with_prefixes)
            side.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(side):  # once before: what is loaded or set up by a first call is not captured
                self.attention.logits(batch)
            torch.cuda.current_stream(self.device).wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                logits = self.attention.logits(batch)
            self.graphs[size, with_prefixes] = graph, batch, logits

    def replay(self, batch):
        graph, captured, logits = self.graphs[len(batch.ids), batch.prefixes is not None]
        for place, numbers in zip(tensors(captured), tensors(batch)):
            place.copy_(numbers)
        graph.replay()
        return logits


def tensors(batch):
    return [x for x in (*batch, *(batch.prefixes or ())) if isinstance(x, torch.Tensor)]


def sums(numbers):
    return [0, *itertools.accumulate(numbers)]


# ---- sampling ----


def scores(logits, ids, positions, temperature, seed):
    """The largest of a row's scores is its token's. With a temperature they are random, by Gumbel's trick; random
    numbers follow from the seed, the request and the token's position alone: so they are the same in any batch, and
    when a sequence is computed again."""
    if not temperature:
        return logits
    words = torch.arange(logits.shape[1], device=logits.device)
    bits = mixed(mixed(mixed(ids + seed) + positions)[:, None] + words)
    uniform = (bits.double() + 0.5) / 2**32
    return logits / temperature - (-uniform.log()).log()


def mixed(x):
    """A hash of 32 bits, in int64."""
    x = x & 0xFFFFFFFF
    for factor in (0x21F0AAAD, 0x735A2D97):
        x = ((x ^ (x >> 16)) * factor) & 0xFFFFFFFF
    return x ^ (x >> 15)
