#!/usr/bin/env python3
"""A build with fewer kernels (-Dkernels): the library has the rows that match, and the passes that they need; it takes
those alone, also for smaller head dimensions, and refuses what none of them does. Kernels are copied
from another build (-Dcubins).

usage: kernels_test.py BUILD CUDA -- C_COMPILER
"""
import fnmatch
import json
import os
import pathlib
import re
import sys
import tempfile

from packages import MESON, ROOT, need, run

sys.path.append(str(ROOT / "tools/python"))
from fa3 import _abi  # noqa: E402

BUILD, CUDA = (pathlib.Path(word).resolve() for word in sys.argv[1:3])
CC = sys.argv[4:]
# The kernels of dk and dv at d 256 bring those of dq with them, each its own.
PATTERNS = ["fa3_fwd_bf16_d128_causal_*", "fa3_bwd_bf16_d128_*", "fa3_bwd_keys_bf16_d256_full_*",
            "fa3_bwdplannedsoftcap_keys_bf16_*", "fa3_fwdvtiles_e4m3_d64_full_*"]
WITH_KEYS = ["fa3_bwd_queries_bf16_d256_full_*", "fa3_bwdplannedsoftcap_queries_bf16_*"]
NO_KERNEL = "no kernel of this build"
PAPER = "fa3_alg2_bf16_d128_causal_128x128"
PRELOAD = """#include <fa3.h>
#include <stdio.h>
int cuInit(unsigned), cuDevicePrimaryCtxRetain(void**, int), cuCtxSetCurrent(void*);
int main(void) {
  void* context;
  if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 2;
  puts(fa3_preload() ? fa3_last_error_message() : "loaded");
}
"""


def table(*chosen):
    """The names of all rows, also of the paper's; of those that a file and patterns choose."""
    rows = run(sys.executable, ROOT / "tools/build/rows.py", ROOT / "ptx/paper/rows.def", *chosen).splitlines()
    return [row.split()[1] for row in rows]


def check_passes(file, passes):
    """The backward pass has its own, and fa3_quantize takes the kernels of the largest heads where there is no FP8."""
    backward = {name for name in passes if "_bwd_" in name}
    small = {name for name in passes if re.match("fa3_pass_(quantize|measure).*_d(64|128)$", name)}
    need(len(backward) > 10 and len(small) == 8, f"{backward}, {small}")
    for pattern, left_out in (("fa3_fwd_bf16_d128_full_*", backward | small), ("fa3_fwd_e4m3_*", backward),
                              ("fa3_bwd_bf16_*", small)):
        found = {name for name in table(file, pattern) if name.startswith("fa3_pass_")}
        need(found == passes - left_out, f"{pattern}: passes {found ^ (passes - left_out)}")


def make(folder, *patterns, status=0):
    return run(MESON, "setup", folder / "build", ROOT, f"-Dcuda={CUDA}", f"-Dcubins={BUILD / 'ptx'}",
               "-Doptimization=0", "-Ddebug=false", f"-Dkernels={','.join(patterns)}", status=status)


def forward(dtype="bfloat16", d=128, causal=True, tiles=False, **more):
    q = _abi.make_tensor(1 << 20, dtype, (1, 256, 4, d))
    v = _abi.make_tensor(1 << 20, dtype, (1, 4, 16, d, 16)) if tiles else q
    o = _abi.make_tensor(2 << 20, "float16" if dtype == "float16" else "bfloat16", (1, 256, 4, d))
    if dtype == "float8_e4m3fn":
        scale = _abi.make_tensor(1 << 20, "float32", (1, 1, 1))
        more = {"q_scale": scale, "k_scale": scale, "v_scale": scale}
    return _abi.ForwardParams(q=q, k=q, v=v, o=o, mask=_abi.MASKS["causal_top_left" if causal else "none"], **more)


def backward(d=128, causal=False, softcap=0.0):
    x, dq, dk, dv = (_abi.make_tensor(i << 20, "bfloat16", (1, 256, 4, d)) for i in range(1, 5))
    lse = _abi.make_tensor(1 << 20, "float32", (1, 4, 256))
    return _abi.BackwardParams(q=x, k=x, v=x, o=x, lse=lse, dout=x, dq=dq, dk=dk, dv=dv, softcap=softcap,
                               mask=_abi.MASKS["causal_top_left" if causal else "none"])


def check_choice(library):
    for params, kernel in ((forward(), "fa3_fwd_bf16_d128_causal_"), (forward(d=64), "fa3_fwd_bf16_d128_causal_"),
                           (forward("float8_e4m3fn", 64, causal=False, tiles=True), "fa3_fwdvtiles_e4m3_d64_full_"),
                           (backward(), "fa3_bwd_bf16_d128_full_"),
                           (backward(256), "fa3_bwd_keys_bf16_d256_full_"),
                           (backward(256, True, 30.0), "fa3_bwdplannedsoftcap_keys_bf16_"),
                           (backward(32, True), "fa3_bwd_bf16_d128_causal_")):
        library.check(params)
        found = library.kernel_info(params, 132).name
        need(found.startswith(kernel), f"{found} is taken, not {kernel}*")
    for params, why in ((forward(causal=False), f"{NO_KERNEL} has q.dim[3] (head_dim) 128"),
                        (forward(d=136), f"{NO_KERNEL} has q.dim[3] (head_dim) 136"),
                        (forward("float16"), "dtype fp16, causal mask"),
                        (forward("float8_e4m3fn", 64, causal=False), "dtype e4m3 with v row by row"),
                        (forward(d=64, kernel=b"fa3_fwd_bf16_d64_causal_256x64"), NO_KERNEL),
                        (forward(kernel=PAPER.encode()), "the paper's algorithms need one with -Dpaper=true"),
                        (backward(256, True), f"{NO_KERNEL} has q.dim[3] (head_dim) 256")):
        try:
            library.check(params)
        except _abi.Unsupported as error:
            need(why in str(error), f"refused, but for another reason than {why}: {error}")
        else:
            need(False, f"accepted, though {why}")


def main():
    names = table()
    expected = [name for name in names if any(fnmatch.fnmatch(name, p) for p in [*PATTERNS, *WITH_KEYS, "fa3_pass_*"])]
    need(len(expected) - sum(name.startswith("fa3_pass_") for name in names) == 9, f"kernels {expected}")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        check_passes(folder / "rows.def", {row for row in names if row.startswith("fa3_pass_")})
        output = make(folder, "fa3_fwd_bf16_*", "fa3_fwd_bf61_*", status=1)
        need("no kernel has a name that matches 'fa3_fwd_bf61_*'" in output, output)
        need("ptx/paper need -Dpaper=true" in make(folder, PAPER, status=1), f"{PAPER} is in a build without -Dpaper")
        need("no pattern for the names of the kernels" in make(folder, status=1), "no pattern is none")
        output = make(folder, *PATTERNS)
        need(f"kernels: {len(expected)}," in output and "no tests: " in output, output)
        targets = json.loads(run(MESON, "introspect", "--targets", folder / "build"))
        built = [target["name"] for target in targets if target["name"].startswith("fa3_")]
        need(sorted(built) == sorted([*expected, *(f"{name}.fatbin" for name in expected)]), f"kernels {built}")
        need(json.loads(run(MESON, "introspect", "--tests", folder / "build")) == [], "there are tests")
        run(MESON, "compile", "-C", folder / "build", "fa3:shared_library")

        library = _abi.Library(folder / "build/src/libfa3.so")
        found = [kernel.name for kernel in library.kernels()]
        need(found == expected, f"the library's kernels are {found}")
        content, at = pathlib.Path(library.path).read_bytes(), 0
        for name in names:
            place = content.find((BUILD / "ptx" / f"{name}.fatbin").read_bytes())
            need((place > at) == (name in expected) and (place < 0) == (name not in expected),
                 f"{name} is at {place}, the row before at {at}")
            at = max(at, place)
        check_choice(library)

        # On the simulated driver, which computes what the kernel of a name is to compute.
        (folder / "preload.c").write_text(PRELOAD)
        driver = BUILD / "tests/support/simulated/libcuda.so.1"
        environment = {**os.environ, "LD_LIBRARY_PATH": f"{driver.parent}:{folder}/build/src"}
        for source, words, said in ((folder / "preload.c", [driver], "loaded"),
                                    (ROOT / "tests/languages/c/attention.c", [], "gpu: gradients as on the CPU")):
            run(*CC, "-std=c11", f"-I{ROOT / 'include'}", source, "-o", folder / "program", library.path, *words, "-lm",
                "-ldl")
            output = run(folder / "program", env=environment)
            need(said in output, f"{source.name}: {output}")


main()
