"""Random calls of fa3.forward on sequences with lengths of their own, and what they give, in plain float64 NumPy."""

import math

import numpy as np

QUERIES, KEYS = ("batched", "packed"), ("batched", "packed", "paged", "cached")


class Case:
    """arrays and how: fa3.forward's arguments; rows_q and rows_k: for each sequence where its rows lie, as an index
    into q, and into k and v."""

    def __init__(self, seed, queries, keys):
        self.random = random = np.random.default_rng(seed)
        self.seed, self.keys, self.how = (seed, queries, keys), keys, {}
        self.batch, self.heads_kv = int(random.integers(1, 5)), int(random.integers(1, 3))
        self.heads = self.heads_kv * int(random.integers(1, 4))
        self.d, self.dv = (8 * int(n) for n in random.integers(1, 4, 2))
        self.lengths_q, self.lengths_k = random.integers(0, 7, self.batch), random.integers(0, 14, self.batch)
        dims_q, self.rows_q = self.place_queries(queries)
        dims_k, self.rows_k = getattr(self, f"place_{keys}_keys")()
        normal = lambda *dims: random.standard_normal(dims, np.float32)
        self.arrays = {"q": normal(*dims_q, self.heads, self.d), "k": normal(*dims_k, self.heads_kv, self.d),
                       "v": normal(*dims_k, self.heads_kv, self.dv)}  # fmt: skip
        self.poison(("q", self.rows_q), ("k", self.rows_k), ("v", self.rows_k))
        if random.integers(2):
            self.how["sinks"] = normal(self.heads)
            self.how["sinks"][0] = -np.inf
        self.choose_mask()
        self.choose_transform()

    def chance(self):
        return bool(self.random.integers(2))

    def ints(self, numbers):
        return np.asarray(numbers, np.int32)

    def poison(self, *arrays):
        """What no sequence has is NaN."""
        for name, rows in arrays:
            used = np.zeros(self.arrays[name].shape[: 1 + (rows[0].shape[1] > 1)], bool)
            for index in rows:
                used[tuple(index.T)] = True
            self.arrays[name][~used] = np.nan

    def place_queries(self, queries):
        """The dims before heads, and each sequence's rows in them."""
        room = self.lengths_q + self.random.integers(0, 3, self.batch)
        if queries == "packed":
            sums = np.cumsum([0, *room])
            self.how["cu_seqlens_q"] = self.ints(sums)
            if self.chance():
                self.how["max_seqlen_q"] = int(room.max()) + 1
        if self.chance() or queries == "batched":
            self.how["seqused_q"] = self.ints(self.lengths_q)
        else:
            self.lengths_q = room
        if queries == "packed":
            return (sums[-1],), [start + np.arange(n)[:, None] for start, n in zip(sums, self.lengths_q)]
        rows = [np.stack((np.full(n, b), np.arange(n)), 1) for b, n in enumerate(self.lengths_q)]
        return (self.batch, room.max() + 1), rows

    def pad_left(self):
        if not self.chance():
            return np.zeros(self.batch, int)
        padding = np.minimum(self.random.integers(0, 4, self.batch), self.lengths_k)
        self.how["leftpad_k"] = self.ints(padding)
        return padding

    def place_packed_keys(self):
        room = self.lengths_k + self.random.integers(0, 3, self.batch)
        sums = np.cumsum([0, *room])
        self.how["cu_seqlens_k"] = self.ints(sums)
        if self.chance():
            self.how["max_seqlen_k"] = int(room.max()) + 2
        if self.chance():
            self.how["seqused_k"] = self.ints(self.lengths_k)
        else:
            self.lengths_k = room
        padding = self.pad_left()
        return (sums[-1],), [np.arange(start + left, start + n)[:, None]
                             for start, left, n in zip(sums, padding, self.lengths_k)]  # fmt: skip

    def place_batched_keys(self, entries=None, count=None):
        self.how["seqused_k"] = self.ints(self.lengths_k)
        padding = self.pad_left()
        if self.chance():
            self.how["max_seqlen_k"] = 14
        rows = [np.stack((np.full(n - left, b if entries is None else entries[b]), np.arange(left, n)), 1)
                for b, (left, n) in enumerate(zip(padding, self.lengths_k))]  # fmt: skip
        return (count or self.batch, 15), rows

    def place_cached_keys(self):
        entries = self.random.integers(0, 6, self.batch)
        self.how["cache_batch_idx"] = self.ints(entries)
        return self.place_batched_keys(entries, 6)

    def place_paged_keys(self):
        size = int(self.random.integers(1, 6))
        most = -(-14 // size)
        pages = self.random.permutation(self.batch * most + 3)[: self.batch * most].reshape(self.batch, most)
        table = self.ints(pages)
        for b, n in enumerate(self.lengths_k):
            table[b, -(-n // size) :] = -12345
        self.how.update(page_table=table, seqused_k=self.ints(self.lengths_k))
        if self.chance():
            self.how["max_seqlen_k"] = 14
        keys = [np.arange(n) for n in self.lengths_k]
        return (self.batch * most + 3, size), [np.stack((pages[b][j // size], j % size), 1) for b, j in enumerate(keys)]

    def choose_mask(self):
        kind = self.random.integers(4)
        causal = [False, True, "top_left"][self.random.integers(3 if kind == 0 else 2)]
        if kind == 1:
            self.how["window"] = tuple(int(n) for n in self.random.integers(-1, 6, 2))
        elif kind == 2:
            self.how["chunk"] = int(self.random.integers(1, 7))
        self.how.update(causal=causal, softmax_scale=0.4)

    def choose_transform(self):
        kind = self.random.integers(4)
        if kind in (0, 2):
            self.how["softcap"] = float(self.random.choice([0.75, 3.0, 20.0]))
        if kind in (1, 2) and "chunk" not in self.how:
            dims = (self.heads,) if self.chance() else (self.batch, self.heads)
            self.how["alibi_slopes"] = np.abs(self.random.standard_normal(dims, np.float32)) / 3

    def transformed(self, scores, b, h, distances, tanh=np.tanh):
        """Of one query of sequence b and head h, for keys at these distances."""
        cap, slopes = self.how.get("softcap"), self.how.get("alibi_slopes")
        if cap:
            scores = cap * tanh(scores / cap)
        if slopes is None:
            return scores
        return scores - float(slopes[h] if slopes.ndim == 1 else slopes[b, h]) * distances

    def distances(self, i, seen, queries, keys):
        return np.abs(i + keys - queries - np.asarray(seen, float))

    def sees(self, i, j, queries, keys):
        causal, window, chunk = (self.how.get(name) for name in ("causal", "window", "chunk"))
        at = i + keys - queries
        if causal and j > (i if causal == "top_left" else at):
            return False
        if window and (0 <= window[0] < at - j or 0 <= window[1] < j - at):
            return False
        return not chunk or math.floor(at / chunk) == math.floor(j / chunk)

    def exact(self):
        """(index of rows of o, their O, their LSE as (rows, heads)) of each sequence, in float64."""
        arrays = {name: x.astype(np.float64) for name, x in self.arrays.items()}
        sinks = self.how.get("sinks", np.full(self.heads, -np.inf)).astype(np.float64)
        for b, (index, key_rows) in enumerate(zip(self.rows_q, self.rows_k)):
            q = arrays["q"][tuple(index.T)]
            k, v = (np.repeat(arrays[name][tuple(key_rows.T)], self.heads // self.heads_kv, 1) for name in "kv")
            o, lse = np.zeros((len(index), self.heads, self.dv)), np.zeros((len(index), self.heads))
            for i in range(len(index)):
                seen = [j for j in range(len(key_rows)) if self.sees(i, j, len(index), len(key_rows))]
                distances = self.distances(i, seen, len(index), len(key_rows))
                for h in range(self.heads):
                    weights = np.exp(self.transformed(float(np.float32(0.4)) * k[seen, h] @ q[i, h], b, h, distances))
                    total = weights.sum() + np.exp(sinks[h])
                    o[i, h] = weights @ v[seen, h] / total if seen else 0
                    lse[i, h] = np.log(total) if total else -np.inf
            yield index, o, lse


def cases(count, keys=KEYS):
    """So many of each way in which queries and keys can lie."""
    return [Case(seed, queries, one) for queries in QUERIES for one in keys for seed in range(count)]


def lse_rows(lse, index):
    """(rows, heads) of a sequence of `exact`, from packed (heads, total_q) or (batch, heads, seqlen_q)."""
    return lse[:, index[:, 0]].T if lse.ndim == 2 else lse[index[:, 0], :, index[:, 1]]
