#!/usr/bin/env python3
"""Kernels broken on purpose, each compiled, and each to be caught by the rule of its contract that names the fault.

usage: broken.py NVCC FA3_SASS SOURCE_ROOT FOLDER [--no-budgets] [NAME ...]

Every fault is a few edits of a copy of ptx/ in FOLDER. The copy is compiled for one row of the table, as the build does
it, and `fa3-sass check` reads the cubin. Unbroken, each of these rows keeps its contract, of which the test sass-check
makes sure. An edit whose text is not found, or found more than once, fails the test. With names, only these faults.
"""
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../tools/build"))
import rows  # noqa: E402

ALG1 = "fa3_alg1_bf16_d128_causal_128x128"
ALG2 = "fa3_alg2_bf16_d128_causal_128x128"
FWD = "fa3_fwd_bf16_d64_full_256x64"
FWD128 = "fa3_fwd_bf16_d128_full_192x64"
PLANNED = "fa3_fwdplanned_bf16_d64_window_256x64"
SHORT = "fa3_fwdshort_bf16_d128_causal_128x64"
LATENT = "fa3_fwdplannedfp8mla_bf16_d64x512_window_64x128"
LATENT_FEW = "fa3_fwdplannedfp8mla16rows_bf16_d64x512_window_64x128"
LATENT_HALF = "fa3_fwdplannedfp8mla32rows_bf16_d64x512_window_64x128"
BWD = "fa3_bwd_bf16_d64_full_128x128"

RING, WAIT = "tile/ring.cuh", "tile/barriers.cuh"
PRODUCER, SMEM = "forward/producer.cuh", "tile/smem.cuh"
SOFTMAX, EPILOGUE = "tile/scores/softmax.cuh", "tile/epilogue/epilogue.cuh"
GEMM, ELEMENT = "tile/gemm.cuh", "tile/element.cuh"

PV_DONE = """      wgmma_wait_group<0>();
      wgmma_owned(O);
      if (j > 0) ring.release_v(i, false);"""
ONE_LANE = "ptx::mbarrier_arrive_if(ptx::shared_address(&barrier), mirrored_lane == 31);"
SPIN = """  while (!ptx::mbarrier_try_wait_parity(ptx::shared_address(&barrier), parity)) {
  }"""
DS_HANDED_OVER = """    fence_proxy_async_shared();
    __syncwarp();
    if (one_lane) arrive(smem.full_ds[ds_use.index]);
"""
ISSUE_DK = "    wgmma_fence();\n    issue_gradient(dK,"
SCALED = """      scale_rows(O, alpha);
      wgmma_owned(O);
      convert(S, P);"""

QK_DONE = """    wgmma_wait_group<0>();                                    // A2.12
    wgmma_owned(S);
    ring.release_k(n, false);                                 // A2.5
"""

SHARE_TOLD = "    ptx::bar_sync(barrier_all_consumers, 128 * consumers);\n#pragma unroll\n"

# Name, row, edits (file, text, what stands there instead), rule that must be broken; or ptxas' message for which the
# build refuses the kernel.
FAULTS = [
    ("stage-released-before-pv-is-done", ALG1,
     [("paper/alg1.cu", PV_DONE, """      if (j > 0) ring.release_v(i, false);
      wgmma_wait_group<0>();
      wgmma_owned(O);""")], "hot.releases"),
    ("stage-never-released", ALG1, [("paper/alg1.cu", "if (j > 0) ring.release_v(i, false);", "")], "hot.releases"),
    ("stage-released-by-all-lanes", ALG1,
     [(RING, ONE_LANE, "ptx::mbarrier_arrive(ptx::shared_address(&barrier));")], "hot.arrives_by_many"),
    ("stage-released-by-31-lanes", ALG1, [(RING, ONE_LANE, ONE_LANE.replace("==", "!="))], "hot.arrives_by_many"),
    ("q-never-released", ALG1, [("forward/consumer.cuh", "    ptx::mbarrier_arrive(ptx::shared_address("
                                 "&smem.empty_q[q_buffer()]));\n", "")], "kernel.never_arrived"),
    ("o-not-fenced-for-tma", ALG1, [(EPILOGUE, "  fence_proxy_async_shared();\n", "")], "kernel.unfenced"),
    ("barriers-not-fenced", ALG1, [(SMEM, "  ptx::fence_mbarrier_init();\n", "")], "kernel.unfenced"),
    ("tma-load-by-32-lanes", ALG1, [(PRODUCER, "  if (threadIdx.x % 32 != 0) return;\n", "")], "kernel.tma_by_many"),
    ("tma-store-by-32-lanes", ALG1, [(EPILOGUE, "if (lane == 0 && block.row >= 0)", "if (block.row >= 0)")],
     "kernel.tma_by_many"),
    ("wrong-bytes-expected", ALG1, [(PRODUCER, "shared_address(&smem.full_v[s]), config.v_block_bytes()",
                                     "shared_address(&smem.full_v[s]), config.v_block_bytes() / 2")],
     "kernel.expected_bytes"),
    ("half-of-a-block-loaded", ALG1, [("tile/loads/load.cuh", "slab < slabs; slab++)\n    cp_async_bulk_tensor_4d",
                                       "slab < 1; slab++)\n    cp_async_bulk_tensor_4d")],
     "producer.tma_loads"),
    ("parity-inverted-in-the-consumer", ALG1,
     [(RING, "{ wait(smem.full_k[index(i)], parity(i)); }", "{ wait(smem.full_k[index(i)], parity(i) ^ 1); }")],
     "hot.parities"),
    ("parity-inverted-in-the-producer", ALG1, [(PRODUCER, "parity = KvRing::parity(i) ^ 1;",
                                                "parity = KvRing::parity(i);")], "producer.parities"),
    ("wait-that-does-not-spin", ALG1,
     [(WAIT, SPIN, "  ptx::mbarrier_try_wait_parity(ptx::shared_address(&barrier), parity);")],
     "kernel.waits_without_spin"),
    ("wait-that-spins-four-times", ALG1,
     [(WAIT, SPIN, SPIN.replace("while (!", "for (int n = 0; n < 4 && !").replace("parity)) {", "parity); n++) {"))],
     "kernel.waits_without_spin"),
    ("multiplications-under-a-branch", ALG1,
     [("paper/alg1.cu", SCALED, """      if (state.l[0] >= 0.f)
#pragma unroll
        for (int n = 0; n < 7; n++) scale_rows(O, alpha), wgmma_owned(O);
""" + SCALED)], "hot.most_multiplies"),
    ("multiplications-in-the-masked-loop", ALG1,
     [("paper/alg1.cu", SCALED, """      if constexpr (masked)
#pragma unroll
        for (int n = 0; n < 7; n++) scale_rows(O, alpha), wgmma_owned(O);
""" + SCALED)], "boundary.most_multiplies"),
    ("exponentials-twice-under-a-branch", ALG1,
     [("paper/alg1.cu", SCALED, """      if (state.l[0] >= 0.f) exponentiate(S, state.m, alpha, score);
""" + SCALED)], "hot.most_exps"),
    ("mask-under-a-condition", ALG1,
     [("paper/alg1.cu", "if constexpr (masked) mask(S, visible(p), j, at.warp_row());",
       "if (masked || (j & 7) == 7) mask(S, visible(p), j, at.warp_row());")], "hot.masks_anywhere"),
    ("pv-overwrites-o", ALG1, [("paper/alg1.cu", "issue_pv(O, P, at.v(i), true);",
                                "issue_pv(O, P, at.v(i), false);")], "hot.accumulators"),
    ("qk-adds-to-s", ALG1, [(GEMM, "else wgmma_ss(S, a, b, step > 0);", "else wgmma_ss(S, a, b, true);"),
                            ("paper/alg1.cu", "RowState state;", "RowState state;\n  for (float& x : S) x = 0.f;")],
     "hot.accumulators"),
    ("v-not-transposed", ALG1, [(ELEMENT, "template <int TransB = 1, int n>", "template <int TransB = 0, int n>")],
     "hot.transposed"),
    ("k-transposed", ALG1, [(ELEMENT, "template <int TransB = 0, int TransA = 0, int n>",
                             "template <int TransB = 1, int TransA = 0, int n>")],
     "hot.transposed"),
    ("p-of-the-other-type", ALG1, [(SOFTMAX, "P[i] = pack(S[2 * i], S[2 * i + 1], multiplies_bf16);",
                                    "P[i] = pack(S[2 * i], S[2 * i + 1], !multiplies_bf16);")], "hot.conversion_types"),
    ("o-of-the-other-type", ALG1, [(EPILOGUE, "O[2 * i + 1] * weight[i & 1]);",
                                    "O[2 * i + 1] * weight[i & 1], !is_bf16);")], "epilogue.conversion_types"),
    ("producer-keeps-more-registers", ALG1, [(PRODUCER, "setmaxnreg_dec<config.producer_registers()>",
                                              "setmaxnreg_dec<config.producer_registers() - 8>")],
     "producer.setmaxnreg"),
    ("first-qk-not-awaited", ALG2, [("paper/alg2.cu", """    turns.end();
    wgmma_wait_group<0>();""", """    turns.end();
    wgmma_wait_group<1>();""")], "C7514"),
    ("last-pv-awaited-with-the-next-qk", FWD, [("forward/fwd.cu", """    wgmma_wait_group<1>();
    finish_pv(first, 0);""", """    wgmma_wait_group<0>();
    finish_pv(first, 0);""")], "epilogue.waits"),
    ("rare-path-always-taken", FWD,
     [("tile/scores/speculative.cuh", "if (__any_sync(0xffffffffu, (sum[0] > bound.sum[0]) | (sum[1] > bound.sum[1])))",
       "if (__any_sync(0xffffffffu, (sum[0] > -1.f) | (sum[1] > -1.f)))")], "hot.compares"),
    ("q-not-released-by-the-next-piece", FWD128,
     [("forward/fwd.cu", "    exit.first_softmax_done();\n", "")],
     "prologue.releases"),
    ("last-rows-of-o-in-whole-boxes", PLANNED,
     [(EPILOGUE, "      if (n < 16) return store_few_rows(from, n, p, row, block.head, block.batch);\n", "")],
     "epilogue.tma_stores"),
    ("blocks-at-a-bound-on-the-left-not-masked", PLANNED,
     [("forward/fwd.cu", "while (bounded_left && Walk::has_more(i, last)) step(std::true_type());",
       "while (bounded_left && Walk::has_more(i, last)) step(std::false_type());")], "boundary.masks"),
    ("keys-given-back-before-qk-is-done", SHORT,
     [("forward/short.cu", QK_DONE, "".join(QK_DONE.splitlines(True)[i] for i in (2, 0, 1)))], "hot.releases"),
    ("next-keys-sent-for-too-early", SHORT,
     [("forward/short.cu", "    wait(smem_.empty_k[KvRing::index(n)], KvRing::parity(n));\n", "")], "hot.handovers"),
    ("widened-columns-not-fenced", LATENT,
     [("latent/widen_latent.cuh", "      ptx::fence_proxy_async_shared();\n", "")], "producer.fences"),
    ("widened-into-a-half-that-is-read", LATENT,
     [("latent/widen_latent.cuh", "    wait(smem.empty_k[s], KvRing::parity(i) ^ 1);\n", "")], "producer.handovers"),
    ("p-of-a-scale-not-fenced", LATENT_FEW,
     [("latent/latent_softmax.cuh", "    ptx::fence_proxy_async_shared();  // WGMMA reads it\n", "")], "kernel.unfenced"),
    ("shares-of-scores-added-before-they-are-told", LATENT_HALF,
     [("latent/latent_softmax.cuh", SHARE_TOLD, "#pragma unroll\n")], "kernel.named_barriers"),
    ("bytes-widened-over-those-that-are-multiplied", LATENT_FEW,
     [("latent/mla_few_e4m3.cu", "wgmma_wait_group<pairs_in_turn - 1>();", "wgmma_wait_group<pairs_in_turn>();")],
     "hot[QK+PV].waits"),
    ("ds-handed-over-before-dk-is-issued", BWD,
     [("backward/bwd.cu", DS_HANDED_OVER, ""),
      ("backward/bwd.cu", ISSUE_DK, DS_HANDED_OVER + ISSUE_DK)],
     "hot[S+dP+dV+dK].releases"),
    ("ds-not-fenced", BWD, [("backward/bwd.cu", DS_HANDED_OVER, DS_HANDED_OVER.split("\n", 1)[1])], "kernel.unfenced"),
]


class Suite:
    def __init__(self, nvcc, tool, source, folder, options):
        self.nvcc, self.tool, self.source, self.folder, self.options = nvcc, tool, source, folder, options
        self.rows = {row.name: row for row in rows.rows(rows.text_of(pathlib.Path(source, "ptx/paper/rows.def")))}

    def copy(self, name):
        place = os.path.join(self.folder, name)
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(os.path.join(self.source, "ptx"), os.path.join(place, "ptx"))
        return place

    def compile(self, place, row):
        """The cubin's path, or what the build says against it."""
        line = self.rows[row]
        cubin = os.path.join(place, row + ".cubin")
        source = os.path.join(place, os.path.relpath(rows.source_of(line.kernel), self.source))
        run = subprocess.run(
            [sys.executable, os.path.join(self.source, "tools/build/cubin.py"), self.nvcc, source, cubin,
             os.path.join(place, row + ".d"), row, line.text, os.path.join(place, "ptx")],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return (cubin, "") if run.returncode == 0 else (None, run.stdout)

    def broken_rules(self, cubin, row):
        run = subprocess.run([self.tool, "check", cubin, row, "--json", *self.options], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
        if run.returncode not in (0, 1):
            return [run.stderr.strip()]
        return [finding["rule"] for finding in json.loads(run.stdout)["findings"] if finding["state"] == "broken"]

    def fault(self, name, row, edits, rule):
        place = self.copy(name)
        for file, old, new in edits:
            path = os.path.join(place, "ptx", file)
            with open(path, encoding="utf-8") as source:
                text = source.read()
            if text.count(old) != 1:
                return f"{name}: ptx/{file} has {text.count(old)} times, not once:\n{old}"
            with open(path, "w", encoding="utf-8") as target:
                target.write(text.replace(old, new))
        cubin, message = self.compile(place, row)
        if re.fullmatch(r"C\d+", rule):
            print(f"{name}: refused by the build, {rule}", flush=True)
            return None if f"({rule})" in message else f"{name}: the build should refuse it for {rule}: {message}"
        if not cubin:
            return f"{name}: does not compile: {message}"
        rules = self.broken_rules(cubin, row)
        if not any(broken.startswith(rule + " ") for broken in rules):
            return f"{name}: {rule} should be broken; broken are {rules}"
        print(f"{name}: {', '.join(rules)}", flush=True)
        return None


def main():
    nvcc, tool, source, folder, *rest = sys.argv[1:]
    options = [word for word in rest if word.startswith("--")]
    wanted = [word for word in rest if not word.startswith("--")]
    faults = [fault for fault in FAULTS if not wanted or fault[0] in wanted]
    if not faults:
        sys.exit("broken.py: no fault has one of these names: " + " ".join(wanted))
    suite = Suite(nvcc, tool, source, folder, options)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [pool.submit(suite.fault, *fault) for fault in faults]
        failures = [job.result() for job in jobs if job.result()]
    for failure in failures:
        print("FAILED", failure)
    print(f"{len(faults)} faults, {len(failures)} failures")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
