"""The ctypes structs agree with the library: sizes through its own checks, and a result of the CPU reference."""

import ctypes
import math
import random
import re
import struct
import sys

import fa3_ctypes as fa3


def main():
    library = fa3.Library(sys.argv[1] if len(sys.argv) > 1 else None)
    batch, seqlen_q, seqlen_k, heads, heads_kv, d = 2, 5, 7, 4, 2, 16
    generator = random.Random(1)

    def floats(count, fill=None):
        return (ctypes.c_float * count)(*(generator.gauss(0, 1) if fill is None else fill for _ in range(count)))

    q, k, v = (
        floats(batch * seqlen_q * heads * d),
        floats(batch * seqlen_k * heads_kv * d),
        floats(batch * seqlen_k * heads_kv * d),
    )
    o, lse = floats(batch * seqlen_q * heads * d, math.nan), floats(batch * heads * seqlen_q, math.nan)

    def tensor(array, *dims):
        return fa3.make_tensor(ctypes.addressof(array), "fp32", dims)

    scale = 0.3
    params = library.params(
        tensor(q, batch, seqlen_q, heads, d),
        tensor(k, batch, seqlen_k, heads_kv, d),
        tensor(v, batch, seqlen_k, heads_kv, d),
        tensor(o, batch, seqlen_q, heads, d),
        tensor(lse, batch, heads, seqlen_q),
        "causal_bottom_right",
        scale,
    )
    library.reference(params, 1)

    # Strides are always said: packed ones, or those given.
    strides = lambda tensor: list(tensor.stride)[: tensor.rank]
    assert strides(params.q) == [seqlen_q * heads * d, heads * d, d, 1] and strides(params.lse)[2] == 1
    assert strides(fa3.make_tensor(0, "fp32", (2, 0, 3))) == [3, 3, 1]
    assert strides(fa3.make_tensor(0, "fp32", (2, 3), (1, 2))) == [1, 2]

    worst = 0.0
    for b in range(batch):
        for h in range(heads):
            kv = h // (heads // heads_kv)
            for i in range(seqlen_q):
                visible = i + 1 + seqlen_k - seqlen_q
                row = lambda array, n, heads, at: array[((b * n + at[0]) * heads + at[1]) * d :][:d]
                scores = [
                    scale
                    * sum(x * y for x, y in zip(row(q, seqlen_q, heads, (i, h)), row(k, seqlen_k, heads_kv, (j, kv))))
                    for j in range(visible)
                ]
                total = sum(math.exp(s) for s in scores)
                for c in range(d):
                    expected = (
                        sum(math.exp(s) * row(v, seqlen_k, heads_kv, (j, kv))[c] for j, s in enumerate(scores)) / total
                    )
                    worst = max(worst, abs(row(o, seqlen_q, heads, (i, h))[c] - expected))
                worst = max(worst, abs(lse[(b * heads + h) * seqlen_q + i] - math.log(total)))
    assert worst < 1e-6, worst

    # The fields behind the name, too: every kernel's info is what its name says.
    passes = [info for info in library.kernels() if info.kind == 3]
    kernels = [info for info in library.kernels() if info.kind != 3]
    assert kernels and all(info.name.startswith(b"fa3_pass_") for info in passes)
    for info in kernels:
        dtype = {number: name for name, number in fa3.DTYPE.items()}[info.dtype]
        cells = f"{dtype}_d{info.head_dim}_{'causal' if info.causal else 'full'}"
        tile = f"_{info.block_q}x{info.block_kv}"
        assert re.fullmatch(f"fa3_[a-z0-9]+_{cells}({tile})?", info.name.decode()), (info.name, cells)
        assert info.threads % 128 == 0 and 0 < info.shared_memory_bytes <= 227 * 1024
        assert (info.tiles, info.pieces, info.grid, info.launches, info.multiprocessors) == (0, 0, 0, 0, 0)
        assert info.kind == 1 and info.head_dim_v == info.head_dim

    # Any kernel can be named; one that does not fit is refused.
    half = lambda n, *dims: fa3.make_tensor(n << 30, "bf16", dims)
    for info in kernels:
        d = info.head_dim
        named = library.params(*(half(n, 1, 8, 2, d) for n in range(1, 5)), kernel=info.name.decode())
        named.mask = fa3.MASK["causal_top_left" if info.causal else "none"]
        for tensor_ in (named.q, named.k, named.v, named.o):
            tensor_.dtype = info.dtype
        assert library.kernel_info(named, 132).name == info.name
        named.mask = fa3.MASK["none" if info.causal else "causal_top_left"]
        try:
            library.kernel_info(named, 132)
        except fa3.Fa3Error as error:
            assert "params->kernel" in str(error), error
        else:
            raise AssertionError("a kernel for another mask was accepted")

    # One sequence with few heads is split along the keys, many short ones are not.
    long, short = (
        library.params(half(1, b, 128, 2, 64), half(2, b, n, 2, 64), half(3, b, n, 2, 64), half(4, b, 128, 2, 64))
        for b, n in ((1, 8192), (66, 64))
    )
    assert library.workspace_size(long, 132) > library.workspace_size(short, 132) == 64

    # Refusals arrive as exceptions that name the argument.
    params.k.dim[2] = 3
    try:
        library.reference(params)
    except fa3.Fa3Error as error:
        assert "k.dim[2]" in str(error), error
    else:
        raise AssertionError("four query heads over three key heads were accepted")
    print(
        f"ctypes agrees with {library.path}: {len(kernels)} kernels, largest difference {worst:.1e}, "
        f"{ctypes.sizeof(fa3.ForwardParams)}-byte parameters, {struct.calcsize('P') * 8}-bit pointers"
    )


if __name__ == "__main__":
    main()
