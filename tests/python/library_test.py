"""fa3.Library, with the standard library alone: every field of the structs is read as it was written, by results of the
CPU reference; workspaces, kernels, refusals; two libraries side by side. Argument: the library."""

import ctypes
import importlib.util
import itertools
import math
import os
import pathlib
import pydoc
import random
import re
import shutil
import struct
import sys
import tempfile

from support import fa3

from fa3 import _abi


def from_e4m3(byte):
    exponent, fraction = byte >> 3 & 15, byte & 7
    size = math.ldexp(fraction, -9) if exponent == 0 else math.ldexp(8 + fraction, exponent - 10)
    return -size if byte & 128 else size


def fp8(library):
    """Every field of the FP8 part is read as it was written, and V as tiles is the same V."""
    batch, seqlen_q, seqlen_k, heads, heads_kv, d, blocks = 2, 70, 130, 2, 1, 32, 3
    generator = random.Random(2)
    e4m3 = lambda count: (ctypes.c_uint8 * count)(*(generator.randrange(0x20, 0x48) for _ in range(count)))
    floats = lambda count, low, high: (ctypes.c_float * count)(*(generator.uniform(low, high) for _ in range(count)))
    tensor = lambda array, dtype, *dims: fa3.make_tensor(ctypes.addressof(array), dtype, dims)
    q = e4m3(batch * seqlen_q * heads * d)
    k, v = (e4m3(batch * seqlen_k * heads_kv * d) for _ in range(2))
    groups = fa3.tile_dims(batch, seqlen_k, heads_kv, d)[2]
    tiles = (ctypes.c_uint8 * (batch * heads_kv * groups * d * 16))()
    for b in range(batch):
        for j in range(seqlen_k):
            for c in range(d):
                key, column = j % 16, c % 16
                row = c // 16 * 16 + column % 2 * 8 + column // 2
                byte = key % 8 // 2 * 4 + key // 8 * 2 + key % 2
                tiles[((b * groups + j // 16) * d + row) * 16 + byte] = v[(b * seqlen_k + j) * d + c]
    q_scale, k_scale, v_scale = floats(batch * heads * 2, 0.2, 0.4), floats(batch * blocks, 0.2, 0.4), floats(1, 2, 3)
    o_scale, v_mean = floats(1, 0.01, 0.02), floats(batch * heads_kv * d, -1, 1)
    lse_offset, lse = floats(batch * heads * seqlen_q, -1, 1), floats(batch * heads * seqlen_q, 0, 0)
    o, o_tiles, o_e4m3 = (floats(len(q), 0, 0) for _ in range(3))
    assert fa3.scale_dims("block", batch, heads, seqlen_q) == (batch, heads, 2)
    assert fa3.scale_dims("head", batch, heads, seqlen_q) == (batch, heads, 1)
    named = {
        "q_scale": tensor(q_scale, "float32", *fa3.scale_dims("block", batch, heads, seqlen_q)),
        "k_scale": tensor(k_scale, "float32", *fa3.scale_dims("block", batch, heads_kv, seqlen_k)),
        "v_scale": tensor(v_scale, "float32", *fa3.scale_dims("tensor", batch, heads_kv, seqlen_k)),
        "v_mean": tensor(v_mean, "float32", batch, heads_kv, d),
        "lse_offset": tensor(lse_offset, "float32", batch, heads, seqlen_q),
    }
    keys = lambda array: tensor(array, "float8_e4m3fn", batch, seqlen_k, heads_kv, d)

    def run(v, o, **more):
        queries = tensor(q, "float8_e4m3fn", batch, seqlen_q, heads, d)
        lse_tensor = tensor(lse, "float32", batch, heads, seqlen_q)
        tensors = {"q": queries, "k": keys(k), "v": v, "o": o, "lse": lse_tensor, **named, **more}
        library.reference(fa3.ForwardParams(**tensors, softmax_scale=0.3, flags=fa3.FLAG_TWO_LEVEL), 1)

    out = lambda array, dtype: tensor(array, dtype, batch, seqlen_q, heads, d)
    run(keys(v), out(o, "float32"))
    run(tensor(tiles, "float8_e4m3fn", *fa3.tile_dims(batch, seqlen_k, heads_kv, d)), out(o_tiles, "float32"))
    assert list(o) == list(o_tiles)
    run(keys(v), out(o_e4m3, "float8_e4m3fn"), o_scale=tensor(o_scale, "float32", 1))

    for b in range(batch):
        for i in (0, 63, 64, 69):
            for h in range(heads):
                start = ((b * seqlen_q + i) * heads + h) * d
                row = [from_e4m3(x) * q_scale[(b * heads + h) * 2 + i // 64] for x in q[start : start + d]]
                scores = []
                for j in range(seqlen_k):
                    key = k[(b * seqlen_k + j) * d :][:d]
                    dot = sum(x * from_e4m3(y) for x, y in zip(row, key))
                    scores.append(0.3 * k_scale[b * blocks + j // 64] * dot)
                weights = [math.exp(s) for s in scores]
                total = sum(weights)
                for c in range(d):
                    column = (from_e4m3(v[(b * seqlen_k + j) * d + c]) for j in range(seqlen_k))
                    mean = sum(w * x for w, x in zip(weights, column)) / total
                    expected = mean * v_scale[0] + v_mean[b * d + c]
                    assert abs(o[start + c] - expected) < 1e-5, (o[start + c], expected)
                    byte = ctypes.cast(o_e4m3, ctypes.POINTER(ctypes.c_uint8))[start + c]
                    assert abs(from_e4m3(byte) * o_scale[0] - expected) <= 0.0626 * abs(expected), (byte, expected)
                at = (b * heads + h) * seqlen_q + i
                assert abs(lse[at] - math.log(total) - lse_offset[at]) < 1e-5, (lse[at], math.log(total))


def combined(library):
    """So is every field of the combination."""
    parts, batch, seqlen, heads, d = 3, 2, 4, 3, 8
    generator = random.Random(4)
    floats = lambda n: (ctypes.c_float * n)(*(generator.gauss(0, 1) for _ in range(n)))
    rows = batch * seqlen * heads
    o_parts, lse_parts, o, lse = floats(parts * rows * d), floats(parts * rows), floats(rows * d), floats(rows)
    tensor = lambda array, *dims: fa3.make_tensor(ctypes.addressof(array), "float32", dims)
    params = fa3.CombineParams(
        o_parts=tensor(o_parts, parts, batch, seqlen, heads, d),
        lse_parts=tensor(lse_parts, parts, batch, heads, seqlen),
        o=tensor(o, batch, seqlen, heads, d),
        lse=tensor(lse, batch, heads, seqlen),
    )
    library.reference(params)
    for b, i, h in itertools.product(range(batch), range(seqlen), range(heads)):
        at, lse_at = ((b * seqlen + i) * heads + h) * d, (b * heads + h) * seqlen + i
        weights = [math.exp(lse_parts[n * rows + lse_at]) for n in range(parts)]
        assert abs(lse[lse_at] - math.log(sum(weights))) < 1e-6
        for c in range(d):
            expected = sum(w * o_parts[n * rows * d + at + c] for n, w in enumerate(weights)) / sum(weights)
            assert abs(o[at + c] - expected) < 1e-6, (o[at + c], expected)
    params.lse_parts.dim[0] = 2
    try:
        library.reference(params)
    except fa3.Fa3Error as error:
        assert "lse_parts.dim[0] is 2" in str(error), error
    else:
        raise AssertionError("LSE of fewer parts were accepted")


def quantized(library):
    """So is every field of the quantization: what it makes of x is x again, but for roundings."""
    batch, seqlen, heads, d, rotary = 1, 130, 2, 32, 16
    generator = random.Random(3)
    count = batch * seqlen * heads * d
    bf16 = lambda value: struct.unpack("<I", struct.pack("<f", value))[0] >> 16
    from_bf16 = lambda bits: struct.unpack("<f", struct.pack("<I", bits << 16))[0]
    x = (ctypes.c_uint16 * count)(*(bf16(generator.gauss(1, 1)) for _ in range(count)))
    y, floats = (ctypes.c_uint8 * count)(), lambda n: (ctypes.c_float * n)()
    angles = [generator.uniform(0, 6) for _ in range(seqlen * rotary // 2)]
    cos, sin = ((ctypes.c_float * len(angles))(*map(f, angles)) for f in (math.cos, math.sin))
    scale, mean, k_mean, offset = floats(heads * 3), floats(heads * d), floats(heads * d), floats(heads * seqlen)
    k_mean[:] = [generator.gauss(0, 1) for _ in k_mean]
    tensor = lambda array, dtype, *dims: fa3.make_tensor(ctypes.addressof(array), dtype, dims)
    source, made = tensor(x, "bfloat16", batch, seqlen, heads, d), tensor(y, "float8_e4m3fn", batch, seqlen, heads, d)
    half = lambda array: tensor(array, "float32", seqlen, rotary // 2)
    turn = {"rotary_cos": half(cos), "rotary_sin": half(sin)}
    for optional in (
        {
            "k_mean": tensor(k_mean, "float32", batch, heads, d),
            "lse_offset": tensor(offset, "float32", batch, heads, seqlen),
        },
        {"mean": tensor(mean, "float32", batch, heads, d)},
    ):
        scales = tensor(scale, "float32", *fa3.scale_dims("block", batch, heads, seqlen))
        interleaved = fa3.QUANTIZE_ROTARY_INTERLEAVED
        tensors = {"x": source, "y": made, "scale": scales, **turn, **optional}
        library.reference(fa3.QuantizeParams(flags=interleaved, softmax_scale=0.25, **tensors))
    for h in range(heads):
        rows = []
        for i in range(seqlen):
            row = [from_bf16(bits) for bits in x[(i * heads + h) * d :][:d]]
            for n in range(rotary // 2):
                a, b, c, s = row[2 * n], row[2 * n + 1], cos[i * rotary // 2 + n], sin[i * rotary // 2 + n]
                row[2 * n : 2 * n + 2] = a * c - b * s, a * s + b * c
            rows.append(row)
            expected = 0.25 * sum(a * b for a, b in zip(row, k_mean[h * d :][:d]))
            assert abs(offset[h * seqlen + i] - expected) < 1e-4, (offset[h * seqlen + i], expected)
        means = [sum(column) / seqlen for column in zip(*rows)]
        assert max(abs(a - b) for a, b in zip(means, mean[h * d :][:d])) < 1e-5
        for i, row in enumerate(rows):
            step = scale[h * 3 + i // 64]
            for c, value in enumerate(row):
                back = from_e4m3(y[(i * heads + h) * d + c]) * step + means[c]
                assert abs(back - value) <= 0.0626 * abs(value - means[c]) + step / 512, (back, value)

    # The transform: orthogonal, with the signs of the seed.
    seed, mask = 5, 2**64 - 1

    def sign(i):
        z = seed + i + 0x9E3779B97F4A7C15 & mask
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
        return -1 if (z ^ z >> 31) >> 63 else 1

    one = tensor(scale, "float32", *fa3.scale_dims("tensor", batch, heads, seqlen))
    library.reference(fa3.QuantizeParams(x=source, y=made, scale=one, flags=fa3.QUANTIZE_INCOHERENT, seed=seed))
    row = [sign(c) * from_bf16(x[c]) for c in range(d)]
    for n in range(d):
        value = sum((-1) ** bin(n & c).count("1") * row[c] for c in range(d)) / math.sqrt(d)
        back = from_e4m3(y[n]) * scale[0]
        assert abs(back - value) <= 0.0626 * abs(value) + scale[0] / 512, (n, back, value)


def backward(library):
    """The library reads the parameters of the backward pass as they are written here."""
    q, k = (fa3.make_tensor(0, "bfloat16", (1, seqlen, 2, 64)) for seqlen in (128, 300))
    lse, longer = (fa3.make_tensor(0, "float32", (1, 2, rows)) for rows in (128, 129))
    tensors = {"q": q, "k": k, "v": k, "o": q, "lse": lse, "dout": q, "dq": q, "dk": k, "dv": k}
    params = fa3.BackwardParams(**tensors, mask=fa3.MASKS["causal_bottom_right"], dlse=lse)
    assert library.workspace_size(params) == 2 * 128 * (8 + 4 * 64) + 5 * 4 + 2 * 4, library.workspace_size(params)
    params.dlse = longer
    try:
        library.workspace_size(params)
    except fa3.InvalidArgument as error:
        assert "dlse.dim[2]" in str(error), error
    else:
        raise AssertionError("dlse of more rows than lse was accepted")
    params.dlse = lse

    # A pass before the kernel; without keys passes alone.
    launches = library.launches(params, 132)
    kinds = [info.kind for info in launches]
    assert len(launches) > 1 and kinds.count(_abi.KERNEL_BACKWARD) == 1 and kinds[0] == _abi.KERNEL_PASS, launches
    assert all(info.launches == len(launches) and info.grid > 0 for info in launches), launches
    assert len({info.name for info in launches}) == len(launches)
    info = library.kernel_info(params, 132)
    assert (info.kind, info.dtype, info.head_dim, info.causal, info.multiprocessors) == (2, 1, 64, 1, 132), info
    assert info in launches and info.name.startswith("fa3_bwd"), info
    params.kernel = info.name.encode()
    assert library.kernel_info(params, 7).name == info.name and library.kernel_info(params, 7).multiprocessors == 7
    params.kernel = b"fa3_none"
    assert 'params->kernel is "fa3_none"' in refusal_of(library, params)
    nothing = fa3.make_tensor(0, "bfloat16", (1, 0, 2, 64))
    no_keys = {name: nothing if name in ("k", "v", "dk", "dv") else x for name, x in tensors.items()}
    alone = library.launches(fa3.BackwardParams(**no_keys), 132)
    assert alone and all(info.kind == _abi.KERNEL_PASS for info in alone), alone
    assert library.kernel_info(fa3.BackwardParams(**no_keys), 132) == alone[-1]


def found_by_name():
    """A library is found by an argument, then FA3_LIBRARY, then beside the module, then beside its folder, each with
    the ABI's number first, and else left to the loader."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name).resolve() / "fa3"
        folder.mkdir()
        specification = importlib.util.spec_from_file_location("fa3.moved", shutil.copy(_abi.__file__, folder))
        moved = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(moved)
        files = [place / file for place in (folder, folder.parent) for file in ("libfa3.so.1", "libfa3.so")]
        for file in files:
            file.touch()
        given = os.environ.pop("FA3_LIBRARY", None)
        try:
            for file in files:
                assert moved.find_library() == str(file), (moved.find_library(), file)
                file.unlink()
            (folder / "libfa3.so").mkdir()
            assert moved.find_library() == "libfa3.so.1", moved.find_library()
            os.environ["FA3_LIBRARY"] = "named"
            assert moved.find_library() == "named" and moved.find_library("argument") == "argument"
        finally:
            os.environ.pop("FA3_LIBRARY", None)
            os.environ.update({"FA3_LIBRARY": given} if given else {})


def manual():
    """help(fa3) has the functions soon, and all of them; what it leaves out is there all the same."""
    lines = pydoc.plain(pydoc.render_doc(fa3)).splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("    append("))
    assert first < 40, f"help(fa3) has {first} lines before its first function"
    calls = ("attention", "forward", "forward_schedule", "backward", "quantize", "append", "combine")
    for name in (*calls, "kernel_info", "register_transformers", "load"):
        assert any(line.startswith(f"    {name}(") for line in lines), name
    assert all(hasattr(fa3, name) for name in (*fa3.__all__, "Library", "Fa3Error", "ForwardParams", "Quantized"))


def two_builds(path):
    """Two builds in one process do not share what one of them remembers."""
    with tempfile.TemporaryDirectory() as folder:
        copies = [shutil.copy(path, pathlib.Path(folder, name)) for name in ("old.so", "new.so")]
        one, other = (fa3.Library(copy) for copy in copies)
    try:
        one.workspace_size(fa3.ForwardParams(**{name: fa3.make_tensor(0, "bfloat16", (1, 2, 3)) for name in "qkvo"}))
    except fa3.Fa3Error as error:
        assert "q.rank" in str(error), error
    else:
        raise AssertionError("a tensor of rank 3 was accepted")
    assert one.lib.fa3_last_error_message() and not other.lib.fa3_last_error_message()


def refusal_of(library, params):
    """Why the library has no kernel for them; "" if it has one."""
    try:
        library.kernel_info(params, 132)
    except fa3.Fa3Error as error:
        return str(error)
    return ""


def naming(library, info):
    """(parameters that name this kernel, why they are refused), in every form that its dtype has."""
    name, d, dv, seqlen = info.name, info.head_dim, info.head_dim_v, 128
    dtype = {number: name for name, number in fa3.DTYPES.items()}[info.dtype]
    mask = "causal_top_left" if info.causal else "none"
    tensor = lambda n, dtype, *dims: fa3.make_tensor(n << 30, dtype, dims)
    q, k, v, o = (tensor(n, dtype, 1, seqlen, 2, columns) for n, columns in enumerate((d, d, dv, dv), 1))
    forms = [(v, {}, 0)]
    if dtype == "float8_e4m3fn":
        o = tensor(4, "bfloat16", 1, seqlen, 2, dv)
        tiles = tensor(3, dtype, *fa3.tile_dims(1, seqlen, 2, dv))
        scales = [tensor(5, "float32", *fa3.scale_dims(which, 1, 2, seqlen)) for which in ("tensor", "head", "block")]
        named = [{f"{x}_scale": scale for x in "qkv"} for scale in scales]
        forms = itertools.product((v, tiles), named, (0, fa3.FLAG_TWO_LEVEL))
    for v, scales, flags in forms:
        params = fa3.ForwardParams(
            q=q, k=k, v=v, o=o, mask=fa3.MASKS[mask], flags=flags, kernel=name.encode(), **scales
        )
        yield params, refusal_of(library, params)


def main():
    library = fa3.Library(sys.argv[1])
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
        return fa3.make_tensor(ctypes.addressof(array), "float32", dims)

    scale = 0.3
    params = fa3.ForwardParams(
        q=tensor(q, batch, seqlen_q, heads, d),
        k=tensor(k, batch, seqlen_k, heads_kv, d),
        v=tensor(v, batch, seqlen_k, heads_kv, d),
        o=tensor(o, batch, seqlen_q, heads, d),
        lse=tensor(lse, batch, heads, seqlen_q),
        mask=fa3.MASKS["causal_bottom_right"],
        softmax_scale=scale,
    )
    library.reference(params, 1)

    # Strides are always said: packed ones, or those given.
    strides = lambda tensor: list(tensor.stride)[: tensor.rank]
    assert strides(params.q) == [seqlen_q * heads * d, heads * d, d, 1] and strides(params.lse)[2] == 1
    assert strides(fa3.make_tensor(0, "float32", (2, 0, 3))) == [3, 3, 1]
    assert strides(fa3.make_tensor(0, "float32", (2, 3), (1, 2))) == [1, 2]

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
    fp8(library)
    quantized(library)
    backward(library)
    combined(library)
    found_by_name()
    manual()
    two_builds(library.path)

    # The fields behind the name, too: every kernel's info is what its name says.
    is_planned = lambda info: info.name.startswith("fa3_fwdplanned")  # for lengths, pages, windows, sinks
    passes = [info for info in library.kernels() if info.kind == 3]
    kernels = [info for info in library.kernels() if info.kind == 1]
    assert kernels and all(info.name.startswith("fa3_pass_") for info in passes)
    for info in kernels:
        dtype = {1: "bf16", 2: "fp16", 4: "e4m3"}[info.dtype]
        apart = info.head_dim_v != info.head_dim or info.head_dim > 256
        head_dims = f"{info.head_dim}" + (f"x{info.head_dim_v}" if apart else "")
        mask = "causal" if info.causal else "window" if is_planned(info) else "full"
        cells = f"{dtype}_d{head_dims}_{mask}"
        tile = f"_{info.block_q}x{info.block_kv}"
        assert re.fullmatch(f"fa3_[a-z0-9]+_{cells}({tile})?", info.name), (info.name, cells)
        assert info.threads % 128 == 0 and 0 < info.shared_memory_bytes <= 227 * 1024
        assert (info.tiles, info.pieces, info.grid, info.launches, info.multiprocessors) == (0, 0, 0, 0, 0)
        assert info.kind == 1

    # Any kernel can be named; one that does not fit is refused. Those of planned calls have their own test.
    half = lambda n, *dims: fa3.make_tensor(n << 30, "bfloat16", dims)
    for info in kernels:
        if is_planned(info):
            continue
        forms = list(naming(library, info))
        taken = [named for named, refusal in forms if not refusal]
        assert taken and (len(taken) == len(forms) or info.dtype == fa3.DTYPES["float8_e4m3fn"]), (info.name, forms)
        assert all("params->kernel" in refusal for _, refusal in forms if refusal), forms
        for named in taken:
            assert library.kernel_info(named, 132).name == info.name
            named.mask = fa3.MASKS["none" if info.causal else "causal_top_left"]
            assert "params->kernel" in refusal_of(library, named), "a kernel for another mask was accepted"

    # One sequence with few heads is split along the keys, many short ones are not.
    long, short = (
        fa3.ForwardParams(
            q=half(1, b, 128, 2, 64), k=half(2, b, n, 2, 64), v=half(3, b, n, 2, 64), o=half(4, b, 128, 2, 64)
        )
        for b, n in ((1, 8192), (66, 64))
    )
    assert library.workspace_size(long, 132) > library.workspace_size(short, 132) == 64

    # Refusals arrive as exceptions that name the argument.
    params.k.dim[2] = 3
    try:
        library.reference(params)
    except ValueError as error:
        assert "k.dim[2]" in str(error) and error.status == 1, error
    else:
        raise AssertionError("four query heads over three key heads were accepted")
    print(f"{library.path}: version {library.version()}, {len(kernels)} kernels, largest difference {worst:.1e}")


if __name__ == "__main__":
    main()
