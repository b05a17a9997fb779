"""What serving.py compares results with: attention and its gradients in float32, of some rows of some sequences."""

import math

ROWS, SEQUENCES, CHUNK = 48, 4, 1024
FORWARD, BACKWARD, E4M3 = 1.2e-2, 2e-2, 4e-2  # relative errors that are right (Frobenius)


def tolerance(case):
    return BACKWARD if case.backward else E4M3 if case.planned["e4m3_cache"] else FORWARD


def scores(case, q, k, positions, head):
    """Of rows at these positions of a sequence, and of one head's keys: what the softmax takes, and its derivative."""
    import torch

    s, slope = (q.float() @ k.float().T) * case.d**-0.5, 1.0
    if case.softcap:
        capped = torch.tanh(s / case.softcap)
        s, slope = case.softcap * capped, 1 - capped * capped
    keys = torch.arange(k.shape[0], device=q.device)[None]
    at = positions[:, None]
    if case.slopes is not None:
        s = s - case.slopes[head] * (at - keys).abs()
    seen = torch.ones_like(s, dtype=torch.bool)
    if case.causal:
        seen &= keys <= at
    if case.left >= 0:
        seen &= keys >= at - case.left
    return s.masked_fill(~seen, -math.inf), slope


def weights(case, s, head):
    """The softmax of rows, to which a sink belongs."""
    import torch

    if case.sinks is not None:
        s = torch.cat([s, case.sinks[head].expand(len(s), 1)], 1)
    w = torch.softmax(s, 1).nan_to_num(0)
    return w[:, :-1] if case.sinks is not None else w


def reference_rows(case, sequence, rows):
    """(rows, heads, dv) in float32 of these queries of a sequence."""
    import torch

    q = case.rows_of(case.q, sequence)[rows]
    k, v = (case.keys_of(x, sequence).float() * case.key_scale for x in (case.k, case.v))
    positions = rows + case.lengths_k[sequence] - case.lengths[sequence]
    out = torch.empty(len(rows), case.heads, case.dv, device=q.device)
    for head in range(case.heads):
        kv = head // (case.heads // case.kv_heads)
        s, _ = scores(case, q[:, head], k[:, kv], positions, head)
        out[:, head] = weights(case, s, head) @ v[:, kv]
    return out


def some_rows(n, device):
    """The first, the last, and some in the middle."""
    import torch

    middle = range(max(0, n // 2 - ROWS // 2), min(n, n // 2 + ROWS // 2))
    return torch.tensor(sorted({*range(min(ROWS, n)), *middle, *range(max(0, n - ROWS), n)}), device=device)


def some_sequences(case):
    """The shortest, the longest, one between, and the last."""
    order = sorted((i for i, n in enumerate(case.lengths) if n), key=lambda i: case.lengths_k[i])
    return sorted({order[0], order[len(order) // 2], order[-1], len(case.lengths) - 1})[:SEQUENCES]


def error(made, right):
    import torch

    made, right = made.float(), right.float()
    if not torch.isfinite(made).all():
        return math.nan
    return ((made - right).norm() / right.norm().clamp_min(1e-20)).item()


def worst(errors):
    """The largest, or NaN if one is."""
    errors = list(errors)
    return math.nan if any(map(math.isnan, errors)) else max(errors)


class ForwardCheck:
    """Made once, and asked for each peer's o."""

    def __init__(self, case):
        self.case, self.right = case, []
        for sequence in some_sequences(case):
            rows = some_rows(case.lengths[sequence], case.device)
            self.right.append((sequence, rows, reference_rows(case, sequence, rows)))

    def __call__(self, out):
        out = out.reshape(-1, self.case.heads, self.case.dv)
        return worst(error(self.case.rows_of(out, sequence)[rows], right) for sequence, rows, right in self.right)


class BackwardCheck:
    """Gradients of the heads that share the last head of K and V, of the sequence nearest to 2048 tokens."""

    def __init__(self, case):
        self.case = case
        self.sequence = min(range(len(case.lengths)), key=lambda i: abs(case.lengths[i] - 2048))
        self.kv = case.kv_heads - 1
        self.heads = range(self.kv * case.heads // case.kv_heads, case.heads)
        self.right = self.gradients()

    def gradients(self):
        """dq of the heads, and dk and dv, by chunks of rows."""
        import torch

        case = self.case
        q, dout = (case.rows_of(x, self.sequence) for x in (case.q, case.dout))
        k, v = (case.keys_of(x, self.sequence)[:, self.kv].float() for x in (case.k, case.v))
        dq = torch.zeros(len(q), len(self.heads), case.d, device=q.device)
        dk, dv = torch.zeros_like(k), torch.zeros_like(v)
        for number, head in enumerate(self.heads):
            for begin in range(0, len(q), CHUNK):
                rows = slice(begin, begin + CHUNK)
                positions = torch.arange(len(q), device=q.device)[rows] + len(k) - len(q)
                s, slope = scores(case, q[rows, head], k, positions, head)
                w, do = weights(case, s, head), dout[rows, head].float()
                ds = w * (do @ v.T - (do * (w @ v)).sum(1, keepdim=True)) * slope * case.d**-0.5
                dv += w.T @ do
                dq[rows, number] = ds @ k
                dk += ds.T @ q[rows, head].float()
        return dq, dk, dv

    def __call__(self, gradients):
        case = self.case
        dq, dk, dv = (x.detach().reshape(-1, *x.shape[-2:]) for x in gradients)
        heads = slice(self.heads.start, self.heads.stop)
        key_gradients = (case.keys_of(x, self.sequence)[:, self.kv] for x in (dk, dv))
        made = case.rows_of(dq, self.sequence)[:, heads], *key_gradients
        return worst(error(x, right) for x, right in zip(made, self.right))


def check_of(case):
    return BackwardCheck(case) if case.backward else ForwardCheck(case)
