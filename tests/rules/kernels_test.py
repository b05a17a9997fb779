"""Each rule of kernels.py finds what breaks it."""
import kernels as rules
from breach import Breach


class Kernels(Breach):
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
                 r"def:4: fa3_a_bf16_d64_full_128x64 is already the name of the row at ptx/table/rows.def:2")
        other = good["ptx/table/rows.def"] + row.replace("128", "192")
        self.assertEqual(rules.table_is_sound({**good, "ptx/table/rows.def": other}), [])
        other = good["ptx/table/rows.def"] + row.replace("FORWARD", "FORWARD_DV").replace("64,", "64, 32,", 1) * 2
        self.one(rules.table_is_sound, {**good, "ptx/table/rows.def": other},
                 "fa3_a_bf16_d64x32_full_128x64 is already")
        both = row.replace("FORWARD", "FORWARD_16").replace(" bf16,", "") + step
        self.assertEqual(rules.table_is_sound({**good, "ptx/table/rows.def": both}), [])
        self.one(rules.table_is_sound, {**good, "ptx/paper/rows.def": row},
                 r"paper/rows\.def:1: .* at ptx/table/rows\.def:2")
        for dtype in ("bf16", "fp16"):
            self.one(rules.table_is_sound, {**good, "ptx/table/rows.def": row.replace("bf16", dtype) + both},
                     f"def:2: fa3_a_{dtype}_d64_full_128x64 is already the name of the row at ptx/table/rows.def:1")
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

    def test_cuda_runtime(self):
        self.one(rules.no_cuda_runtime, {"src/a.cpp": "#include <cuda_runtime.h>\n"},
                 r"a\.cpp:1: includes cuda_runtime\.h")
        self.one(rules.no_cuda_runtime, {"src/a.cpp": "#include <cuda.h>\n"}, "only src/device/driver.h")
        self.one(rules.no_cuda_runtime, {"ptx/tile/a.cuh": "#include <cute/tensor.hpp>\n"}, "cute/tensor")
        self.assertEqual(rules.no_cuda_runtime({"src/device/driver.h": "#include <cuda.h>\n"}), [])
