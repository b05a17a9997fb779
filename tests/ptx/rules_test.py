#!/usr/bin/env python3
"""The repository keeps the rules of rules.py, and each rule finds what breaks it.

usage: rules_test.py ROOT
"""
import sys
import unittest

import rules

TREE = rules.read_tree(sys.argv[1])


class Repository(unittest.TestCase):
    """One test a rule, made below."""


def keeps(rule):
    def test(self):
        found = rule(TREE)
        self.assertEqual(found, [], "\n" + "\n".join(found))
    return test


for rule in rules.RULES:
    setattr(Repository, f"test_{rule.__name__}", keeps(rule))


class RulesCanFail(unittest.TestCase):
    def one(self, rule, tree, pattern):
        found = rule(tree)
        self.assertEqual(len(found), 1, found)
        self.assertRegex(found[0], pattern)

    def includes(self, path, name, *others):
        return rules.includes_point_one_way({path: f'#include "{name}"\n', **{other: "" for other in others}})

    def test_the_tree_was_read(self):
        for path in ("README.md", "include/fa3.h", "ptx/isa/wgmma.cuh", "ptx/forward/fwd.cu", "ptx/table/rows.def",
                     "src/meson.build"):
            self.assertIn(path, TREE)

    def test_asm(self):
        text = '// asm\n/* asm\n */ const char* asm_ = "asm";\nvoid f() { asm volatile("trap;"); }\n'
        self.one(rules.asm_only_in_isa, {"ptx/tile/a.cuh": text}, r"^ptx/tile/a\.cuh:4: asm: make it a wrapper")
        self.one(rules.asm_only_in_isa, {"src/a.cpp": '__asm__("nop");'}, r"^src/a\.cpp:1")
        self.assertEqual(rules.asm_only_in_isa({"ptx/isa/a.cuh": text}), [])

    def test_unused_wrapper(self):
        isa = {"ptx/isa/a.cuh": "FA3_DEVICE void\nf(int x) {}\n\ntemplate <int N>\nFA3_DEVICE int g() {}\n"}
        use = {"ptx/isa/b.cuh": "FA3_DEVICE void h() { f(1); }", "ptx/forward/c.cu": "ptx::g<1>(); h();"}
        self.assertEqual(rules.every_wrapper_is_used({**isa, **use}), [])
        for text in ("g_1(); h();", "h();  // g()", 'h("g()");'):
            self.one(rules.every_wrapper_is_used, {**isa, **use, "ptx/forward/c.cu": text},
                     r"^ptx/isa/a\.cuh:5: g: no kernel uses it")
        probe = {"ptx/forward/c.cu": "h();", "tests/ptx/probe.cu": "g<1>();"}
        self.one(rules.every_wrapper_is_used, {**isa, **use, **probe},
                 r"a\.cuh:5: g")
        macro = {"ptx/isa/a.cuh": "#define F(type) \\\n  FA3_DEVICE void f_##type##_ss() {}\nF(bf16)\n"}
        self.one(rules.every_wrapper_is_used, {**macro, "ptx/tile/a.cuh": "f_ss();"}, r"a\.cuh:2: f_##type##_ss: no")
        self.assertEqual(rules.every_wrapper_is_used({**macro, "ptx/tile/a.cuh": "f_bf16_ss();"}), [])

    def test_template(self):
        text = "// template <int>\n\ntemplate <int N>\nvoid f();"
        self.one(rules.no_templates_in_main_loops, {"ptx/forward/a.cu": text},
                 r"^ptx/forward/a\.cu:3: .*belongs in a \.cuh")
        for path in "ptx/tile/a.cuh", "ptx/passes/a.cu":
            self.assertEqual(rules.no_templates_in_main_loops({path: "template <int N>\nvoid f();"}), [])

    def test_wait(self):
        self.one(rules.waits_stand_in_kernels, {"ptx/tile/a.cuh": "void f() {\n  wgmma_wait_group<0>();\n}\n"},
                 "cuh:2: .*role")
        self.one(rules.waits_stand_in_kernels, {"ptx/tile/a.cuh": "void issue_qk(int a) {\n  wait(a);\n}\n"},
                 "cuh:1: issue_qk waits")
        text = "void issue_qk() {\n}\nvoid f() {\n  wait();\n}\n"
        self.assertEqual(rules.waits_stand_in_kernels({"ptx/tile/a.cuh": text}), [])

    def test_shared_memory(self):
        twice = "__shared__ int a;\n__shared__ int b;\n"
        self.one(rules.shared_memory_is_one_struct, {"ptx/tile/shared.cuh": twice}, r"shared\.cuh:2: .*one struct")
        self.one(rules.shared_memory_is_one_struct, {"ptx/forward/a.cu": "__shared__ int a;"}, r"a\.cu:1")
        self.one(rules.shared_memory_is_one_struct, {"ptx/tile/a.cuh": "__shared__ int a;"}, r"a\.cuh:1")

    def test_table(self):
        row, step = "FA3_FORWARD(a, b, bf16,  64, full, 128, 64, 4, 6, buffer, plain)\n", "FA3_PASS(c, p, 32)\n"
        good = {"ptx/table/rows.def": "// FA3_FORWARD(name, kernel, ...)\n" + row + step,
                "ptx/forward/b.cu": "", "ptx/forward/b.contract": "", "ptx/passes/p.cu": ""}
        self.assertEqual(rules.table_is_sound(good), [])
        twice = good["ptx/table/rows.def"] + row.replace("plain", "pingpong")
        self.one(rules.table_is_sound, {**good, "ptx/table/rows.def": twice},
                 r"def:4: fa3_a_bf16_d64_full_128x64 is already the name of the row in line 2")
        other = good["ptx/table/rows.def"] + row.replace("128", "192")
        self.assertEqual(rules.table_is_sound({**good, "ptx/table/rows.def": other}), [])
        other = good["ptx/table/rows.def"] + row.replace("FORWARD", "FORWARD_DV").replace("64,", "64, 32,", 1) * 2
        self.one(rules.table_is_sound, {**good, "ptx/table/rows.def": other}, "fa3_a_bf16_d64x32_full_128x64 is already")
        both = row.replace("FORWARD", "FORWARD_16").replace(" bf16,", "") + step
        self.assertEqual(rules.table_is_sound({**good, "ptx/table/rows.def": both}), [])
        for dtype in ("bf16", "fp16"):
            self.one(rules.table_is_sound, {**good, "ptx/table/rows.def": row.replace("bf16", dtype) + both},
                     f"def:2: fa3_a_{dtype}_d64_full_128x64 is already the name of the row in line 1")
        other = good["ptx/table/rows.def"] + "FA3_PASS(d, e, 32)\n"
        self.one(rules.table_is_sound, {**good, "ptx/table/rows.def": other}, r"fa3_pass_d: there is no e\.cu")
        self.one(rules.table_is_sound, {**good, "ptx/forward/c.cu": "", "ptx/forward/c.contract": ""}, "no row")
        del good["ptx/forward/b.contract"]
        self.one(rules.table_is_sound, good, "contract")

    def test_second_list(self):
        self.one(rules.one_list_of_rows, {"src/a.cpp": '// fa3_fwd_bf16_d64_full\nf("fa3_fwd_bf16_d64_full");'},
                 r"^src/a\.cpp:2: fa3_fwd_bf16_d64_full: .*only list")

    def test_traits(self):
        for text in ("if (d == 64) f();", "x = config.d != 128;", "if (row.kernel == name) f();"):
            self.one(rules.behaviour_follows_traits, {"ptx/tile/a.cuh": text}, r"a\.cuh:1: .*trait")
            self.assertEqual(rules.behaviour_follows_traits({"tests/a.cpp": text}), [])
        self.assertEqual(rules.behaviour_follows_traits({"src/a.cpp": "if (measured.d == row.d) f();"}), [])

    def test_directions(self):
        for path, name, target in (
                ("ptx/isa/a.cuh", "../tile/b.cuh", "ptx/tile/b.cuh"),
                ("ptx/isa/a.cuh", "table/row.h", "ptx/table/row.h"),
                ("ptx/tile/a.cuh", "../forward/b.cu", "ptx/forward/b.cu"),
                ("ptx/tile/a.cuh", "../planned/b.cuh", "ptx/planned/b.cuh"),
                ("ptx/latent/a.cu", "../forward/b.cuh", "ptx/forward/b.cuh"),
                ("ptx/tile/a.cuh", "scores/b.cuh", "ptx/tile/scores/b.cuh"),
                ("ptx/tile/scores/a.cuh", "../loads/b.cuh", "ptx/tile/loads/b.cuh"),
                ("ptx/backward/a.cu", "passes/b.cuh", "ptx/backward/passes/b.cuh"),
                ("ptx/backward/passes/a.cu", "../b.cuh", "ptx/backward/b.cuh"),
                ("ptx/paper/a.cu", "../backward/b.cuh", "ptx/backward/b.cuh"),
                ("ptx/plan/a.h", "../table/row.h", "ptx/table/row.h"),
                ("ptx/forward/a.cu", "../../src/b.h", "src/b.h"),
                ("ptx/table/row.h", "../params/params.h", "ptx/params/params.h"),
                ("src/a.cpp", "tile/b.cuh", "ptx/tile/b.cuh"),
                ("src/a.cpp", "params/params.h", "ptx/params/params.h"),
                ("include/fa3.h", "params/params.h", "ptx/params/params.h"),
                ("src/a.cpp", "../tools/common/b.h", "tools/common/b.h"),
                ("src/backward/a.cpp", "forward/b.h", "src/forward/b.h"),
                ("src/rules/a.cpp", "forward/b.h", "src/forward/b.h"),
                ("src/device/a.cpp", "rules/b.h", "src/rules/b.h"),
                ("src/cpu/a.cpp", "device/b.h", "src/device/b.h"),
                ("src/quantize/a.cpp", "info.h", "src/info.h"),
                ("src/problem.h", "rules/b.h", "src/rules/b.h"),
                ("tools/fa3-sass/listing/a.cpp", "../kernels/b.h", "tools/fa3-sass/kernels/b.h"),
                ("tools/x/a.cpp", "../../src/b.h", "src/b.h"),
                ("tests/x/a.cpp", "src/b.h", "src/b.h"),
                ("tools/x/a.cpp", "../../tests/support/b.h", "tests/support/b.h")):
            found = self.includes(path, name, target)
            self.assertEqual(len(found), 1, (path, name, found))
            self.assertIn(f"{path}:1: includes {target}: may include ", found[0])
        for path, name, target in (("ptx/isa/a.cuh", "b.cuh", "ptx/isa/b.cuh"),
                                   ("ptx/tile/scores/a.cuh", "../b.cuh", "ptx/tile/b.cuh"),
                                   ("ptx/tile/epilogue/a.cuh", "../scores/b.cuh", "ptx/tile/scores/b.cuh"),
                                   ("ptx/backward/a.cu", "b.cuh", "ptx/backward/b.cuh"),
                                   ("ptx/backward/a.cu", "tile/b.cuh", "ptx/backward/tile/b.cuh"),
                                   ("src/a.cpp", "table/row.h", "ptx/table/row.h"),
                                   ("tests/x/problem.cpp", "problem.h", "src/problem.h"),
                                   ("src/a.cpp", "fa3.h", "include/fa3.h"), ("src/a.cpp", "b.h", "src/b.h"),
                                   ("src/forward/a.cpp", "rules/b.h", "src/rules/b.h"),
                                   ("src/combine/a.cpp", "device/b.h", "src/device/b.h"),
                                   ("src/append/a.cpp", "params/append_params.h", "ptx/params/append_params.h"),
                                   ("ptx/latent/a.cu", "../planned/b.cuh", "ptx/planned/b.cuh"),
                                   ("ptx/paper/a.cu", "../forward/b.cuh", "ptx/forward/b.cuh")):
            self.assertEqual(self.includes(path, name, target), [])

    def test_src_as_include_folder(self):
        for text in ("include_directories('../../src')", "include_directories('x', '../src/y')"):
            self.one(rules.includes_point_one_way, {"tests/x/meson.build": f"# src\nx = {text}\n"},
                     r"meson\.build:2: src is no")
        self.assertEqual(rules.includes_point_one_way({"tests/x/meson.build": "include_directories('../../ptx')"}), [])

    def test_cuda_runtime(self):
        self.one(rules.no_cuda_runtime, {"src/a.cpp": "#include <cuda_runtime.h>\n"},
                 r"a\.cpp:1: includes cuda_runtime\.h")
        self.one(rules.no_cuda_runtime, {"src/a.cpp": "#include <cuda.h>\n"}, "only src/device/driver.h")
        self.one(rules.no_cuda_runtime, {"ptx/tile/a.cuh": "#include <cute/tensor.hpp>\n"}, "cute/tensor")
        self.assertEqual(rules.no_cuda_runtime({"src/device/driver.h": "#include <cuda.h>\n"}), [])

    def test_readme(self):
        self.assertEqual(rules.readme_is_short({"README.md": "a\n" * 130}), [])
        self.one(rules.readme_is_short, {"README.md": "a\n" * 131}, r"^README\.md: 131 lines, .*tools/docs/pages")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
