"""From the numbers of documents to the arguments of varlen sequences."""

from __future__ import annotations

import itertools
import sys
from typing import Any

from .. import _arrays
from .arguments import Array, Packed


def documents(ids: Array) -> Packed[Array]:
    """Arguments of `forward`, `attention` and `backward` with which each token sees those of its own document alone: a
    block-diagonal mask, of which nothing outside of the blocks is computed. They are cu_seqlens_q, cu_seqlens_k,
    max_seqlen_q and max_seqlen_k, in a dict:

        how = fa3.documents(ids)                        # once for all layers
        q, k, v = (x.flatten(0, 1) for x in (q, k, v))  # now (batch * seqlen, heads, head_dim)
        o = fa3.attention(q, k, v, causal=True, **how)

    ids: (batch, seqlen) or (seqlen,), an integer for each token, the same for those of one document: what a mask
    function of FlexAttention compares, as in ids[b, q_idx] == ids[b, kv_idx]. Documents end with their row of ids.
    Where the tokens of a document do not stand together ids are a ValueError. Padding is a document, too, if it has a
    number of its own: so every row of o is written. ids is read on the host, which waits for a GPU to have it. As all
    rows are in use, the backward pass need not fill its gradients with zeros first (but in a CUDA graph), as it does
    for other lengths."""
    _arrays.check({"ids": ids})
    kind = _arrays.dtype_name(ids.dtype)
    if not kind.startswith(("int", "uint")):
        raise ValueError(f"ids.dtype is {kind}, must be an integer's")
    if ids.ndim not in (1, 2):
        raise ValueError(f"ids has {ids.ndim} dimensions, must have 2, batch and seqlen, or 1, seqlen")
    sums, longest = [0], 1
    for row, numbers in enumerate(ids.tolist() if ids.ndim == 2 else [ids.tolist()]):
        seen = set()
        for number, tokens in itertools.groupby(numbers):
            length = sum(1 for _ in tokens)
            if number in seen:
                raise ValueError(f"ids has document {number} of row {row} twice, again from token "
                                 f"{sums[-1] - row * len(numbers)} on: its tokens must stand together")  # fmt: skip
            seen.add(number)
            sums.append(sums[-1] + length)
            longest = max(longest, length)
    if _arrays.is_torch(ids):
        torch = sys.modules["torch"]
        cu_seqlens = torch.tensor(sums, dtype=torch.int32, device=ids.device)
        if not cu_seqlens.is_inference():  # those do not count what is written to them
            cu_seqlens.fa3_covered = sums[-1], longest, cu_seqlens._version
    else:
        cu_seqlens = sys.modules["numpy"].array(sums, "int32")
    return {"cu_seqlens_q": cu_seqlens, "cu_seqlens_k": cu_seqlens, "max_seqlen_q": longest, "max_seqlen_k": longest}


def cover(cu_seqlens: Any, x: Any, longest: int) -> bool:
    """Whether all rows of x are known to be in sequences of at most `longest` rows: `documents` knew it of what it
    returned, if nobody has written to that since. A CUDA graph may find other numbers there when it is replayed."""
    covered = getattr(cu_seqlens, "fa3_covered", None)
    if covered is None or covered[2] != cu_seqlens._version:
        return False
    captured = x.is_cuda and sys.modules["torch"].cuda.is_current_stream_capturing()
    return not captured and covered[:1] == tuple(x.shape[:1]) and covered[1] <= longest
