#!/usr/bin/env python3
"""Every wrapper of ptx/isa emits the instruction that stands above it, and ptxas accepts it.

usage: wrappers_test.py NVCC PROBE.cu PROBE.ptx ISA -- CXX [ARGUMENT ...]
"""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import wrappers

split = sys.argv.index("--")
nvcc, probe, ptx_file, isa = sys.argv[1:split]
cxx = sys.argv[split + 1:]
include = pathlib.Path(isa).parent
HEADERS = {f"ptx/isa/{path.name}": path.read_text() for path in pathlib.Path(isa).glob("*.cuh")}
PREPROCESSED = subprocess.run([*cxx, "-x", "c++", "-std=c++20", "-E", "-P", f"-I{include}", probe], check=True,
                              stdout=subprocess.PIPE, text=True).stdout
PTX = pathlib.Path(ptx_file).read_text()


def replace(text, old, new):
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in the text that this test changes"
    return text.replace(old, new)


class Wrappers(unittest.TestCase):
    def test_each_emits_its_instruction(self):
        self.assertEqual(wrappers.check(HEADERS, PREPROCESSED, PTX), [])

    def test_wgmma_for_every_n(self):
        counts = {}
        for name, kernel in wrappers.kernels_of(PTX).items():
            for n, types in re.findall(r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k\d+\.f32\.(\w+\.\w+) ", kernel):
                counts.setdefault(types, set()).add(int(n))
        every = {8, *range(16, 257, 16)}
        self.assertEqual(counts, {"bf16.bf16": every, "f16.f16": every, "e4m3.e4m3": every})

    def test_ptxas_accepts_all(self):
        with tempfile.TemporaryDirectory() as folder:
            run = subprocess.run([nvcc, "-gencode=arch=compute_90a,code=sm_90a", "-cubin", "-o",
                                  f"{folder}/probe.cubin", ptx_file],
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(run.returncode, 0, run.stdout)
        # A lone wgmma makes ptxas inject fences and waits; nothing else may be reported, least of all an ignored
        # setmaxnreg.
        injected = r"\(C75(17|18|19|20)\) [\w.]+ is injected"
        other = [line for line in run.stdout.splitlines() if not re.search(injected, line)]
        self.assertEqual(other, [])


class CheckCanFail(unittest.TestCase):
    """Each test breaks one thing and expects the one complaint that names it."""

    def expect(self, pattern, header=None, preprocessed=None, ptx=None):
        headers = dict(HEADERS)
        if header:
            name, old, new = header
            path = f"ptx/isa/{name}"
            headers[path] = replace(headers[path], old, new)
        found = wrappers.check(headers, replace(PREPROCESSED, *preprocessed) if preprocessed else PREPROCESSED,
                               replace(PTX, *ptx) if ptx else PTX)
        self.assertTrue(found, "nothing was found")
        for complaint in found:
            self.assertRegex(complaint, pattern)

    def test_wrong_mnemonic(self):
        self.expect(r"barrier\.cuh:\d+: bar_sync .* emits bar\.sync, its comment says bar\.red",
                    header=("barrier.cuh", "// ptx: bar.sync id", "// ptx: bar.red id"))

    def test_wrong_qualifier(self):
        self.expect("matrix.cuh:.* ldmatrix_x4 .*x4.shared.b16, its comment says .*x4.trans.shared.b16",
                    header=("matrix.cuh", "x4.shared.b16 {r0, r1", "x4.trans.shared.b16 {r0, r1"))

    def test_wrong_rank(self):
        self.expect(r"mbarrier_arrive_cluster_if .* maps addresses to the rank .*, its comment says \['addr'\]",
                    header=("cluster.cuh", "@p mapa.shared::cluster.u32 to, addr, rank; @p",
                            "@p mapa.shared::cluster.u32 to, addr, addr; @p"))

    def test_unmapped_address(self):
        self.expect(r"st_async_u32 .* maps addresses to the rank .*, its comment says \[\]",
                    header=("cluster.cuh", "// ptx: mapa.shared::cluster.u32 to, addr, rank;\n//      st.async",
                            "// ptx: st.async"))

    def test_missing_instruction(self):
        self.expect(r"barrier_cluster .* is 2 instructions, its comment says 1",
                    header=("cluster.cuh", "release.aligned; barrier.cluster.wait.acquire.aligned;  (",
                            "release.aligned;  ("))

    def test_wrong_wgmma_shape(self):
        self.expect(r"wgmma_m64k16_f32_\w+_ss .* its comment says wgmma.mma_async.sync.aligned.m32n",
                    header=("wgmma.cuh", "/* ptx: wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{type}.{type} {d}, a, b",
                            "/* ptx: wgmma.mma_async.sync.aligned.m32n{n}k16.f32.{type}.{type} {d}, a, b"))

    def test_swapped_operands(self):
        self.expect(r"mbarrier_init .* %r\d+ is not count",
                    header=("mbarrier.cuh", "b64 [addr], count;  (mbarrier.i", "b64 [count], addr;  (mbarrier.i"))

    def test_swapped_results(self):
        self.expect(r"ldmatrix_x4 .*is not r1",
                    header=("matrix.cuh", "x4.shared.b16 {r0, r1, r2, r3}, [", "x4.shared.b16 {r1, r0, r2, r3}, ["))

    def test_swapped_registers(self):
        kernel = wrappers.kernels_of(PTX)["probe_stmatrix_x4"]
        self.expect(r"stmatrix_x4 .*is not r2",
                    ptx=(kernel, re.sub(r"(%\w+), (%\w+)\};", r"\2, \1};", kernel)))

    def test_swapped_accumulators(self):
        kernel = wrappers.kernels_of(PTX)["probe_wgmma_bf16_rs_16_1"]
        self.expect(r"wgmma_m64k16_f32_bf16_rs \(probe_wgmma_bf16_rs_16_1\) .*is not d1",
                    ptx=(kernel, re.sub(r"\{(%\w+), (%\w+), (%\w+),", r"{\1, \3, \2,", kernel)))

    def test_wrong_immediate(self):
        kernel = wrappers.kernels_of(PTX)["probe_wgmma_f16_ss_64_01"]
        self.expect(r"wgmma_m64k16_f32_f16_ss \(probe_wgmma_f16_ss_64_01\) .*is not TransB",
                    ptx=(kernel, replace(kernel, "p, 1, 1, 0, 1;", "p, 1, 1, 0, 0;")))

    def test_operand_left_out(self):
        kernel = wrappers.kernels_of(PTX)["probe_mbarrier_init"]
        self.expect("mbarrier_init .* emits the operands",
                    ptx=(kernel, re.sub(r"(\[%\w+\]), %\w+;", r"\1;", kernel)))

    def test_two_instructions(self):
        self.expect("wgmma_fence .* is 2 instructions",
                    ptx=("\twgmma.fence.sync.aligned;\n", "\twgmma.fence.sync.aligned;\n\twgmma.fence.sync.aligned;\n"))

    def test_instruction_where_there_is_none(self):
        kernel = wrappers.kernels_of(PTX)["probe_wgmma_owned_float"]
        new = kernel.replace("\t// begin inline asm\n", "\t// begin inline asm\n\tmembar.cta;\n", 1)
        self.expect("wgmma_owned .* has the instruction membar.cta", ptx=(kernel, new))

    def test_missing_comment(self):
        self.expect(r"ptx/isa/math\.cuh:\d+: ex2_approx_ftz: needs one line",
                    header=("math.cuh", "// ptx: ex2.approx.ftz.f32 d, x;  (ex2)\n", "// 2 to the power of x.\n"))

    def test_missing_comment_in_macro(self):
        self.expect(r"wgmma\.cuh:\d+: wgmma_m64k16_f32_##type##_ss: needs one line",
                    header=("wgmma.cuh", "/* ptx: wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{type}.{type} {d}, a, b",
                            "/* wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{type}.{type} {d}, a, b"))

    def test_section_by_number(self):
        self.expect("ex2_approx_ftz: .* must end in", header=("math.cuh", "d, x;  (ex2)", "d, x;  (9.7.3.21)"))

    def test_missing_probe(self):
        self.expect(r"rcp_approx_ftz\(float x\): no probe: call it", preprocessed=(
            'extern "C" __global__ void __launch_bounds__(128, 1) probe_rcp_approx_ftz(float x, float* out) '
            "{ *out = rcp_approx_ftz(x); }", ""))

    def test_missing_probe_of_one_overload(self):
        left = PREPROCESSED
        for name in ("probe_wgmma_f16_rs_120_0", "probe_wgmma_f16_rs_120_1"):
            start = left.index(f'extern "C" __global__ void __launch_bounds__(128, 1) {name}(')
            left = left[:start] + left[left.index("extern", start + 1):]
        self.expect(r"wgmma_m64k16_f32_f16_rs\(float \(&d\)\[120\],.*\): no probe", preprocessed=(PREPROCESSED, left))

    def test_probe_with_other_parameters(self):
        self.expect("probe_bar_sync: must call one wrapper|bar_sync.*no probe",
                    preprocessed=("{ bar_sync(id, threads); }", "{ bar_sync(threads, id); }"))

    def test_new_header_without_probes(self):
        text = ('#pragma once\n// ptx: nanosleep.u32 t;  (nanosleep)\n'
                'FA3_DEVICE void nanosleep(uint32_t t) { asm("nanosleep.u32 %0;" :: "r"(t)); }\n')
        found = wrappers.check({**HEADERS, "ptx/isa/new.cuh": text}, PREPROCESSED, PTX)
        self.assertEqual(found, ["ptx/isa/new.cuh:3: nanosleep: probe.cu does not include its header"])

    def test_asm_outside_of_wrappers(self):
        found = wrappers.check(HEADERS, PREPROCESSED + 'inline void hidden() { asm("trap;"); }', PTX)
        self.assertRegex("\n".join(found), "asm outside of the functions marked FA3_DEVICE")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
