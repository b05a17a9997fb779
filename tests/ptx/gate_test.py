#!/usr/bin/env python3
"""tools/build/cubin.py refuses what ptxas only mentions, and names the row.

usage: gate_test.py NVCC CUBIN.py GATE PTX     (GATE: the folder of sources; PTX: the include folder)
"""
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

nvcc, cubin, sources, include = sys.argv[1:]
specification = importlib.util.spec_from_file_location("cubin", cubin)
gate = importlib.util.module_from_spec(specification)
specification.loader.exec_module(gate)
sys.path.append(str(pathlib.Path(cubin).resolve().parent))
import rows  # noqa: E402

CLEAN = "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"


class Compiled(unittest.TestCase):
    def compile(self, name, *macros):
        with tempfile.TemporaryDirectory() as folder:
            output, depfile = pathlib.Path(folder, "row.cubin"), pathlib.Path(folder, "row.d")
            run = subprocess.run([sys.executable, cubin, nvcc, f"{sources}/{name}.cu", output, depfile, f"row_{name}",
                                  "0", include, *macros], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            content = output.read_bytes() if output.exists() else b""
            dependencies = depfile.read_text() if depfile.exists() else ""
        return run, content, dependencies

    def refused(self, name, pattern):
        run, content, _ = self.compile(name)
        self.assertNotEqual(run.returncode, 0, run.stdout)
        said = [line for line in run.stdout.splitlines() if line.startswith(f"row_{name}: refused: ")]
        self.assertEqual(len(said), 1, run.stdout)
        self.assertRegex(said[0], pattern)
        self.assertEqual(content, b"", "a refused row left its cubin behind")

    def test_clean(self):
        run, content, dependencies = self.compile("clean")
        self.assertEqual((run.returncode, run.stdout), (0, ""))
        self.assertEqual(content[:4], b"\x7fELF")
        self.assertIn(b"row_clean", content)
        self.assertIn("isa/wgmma.cuh", dependencies)

    def test_serialised(self):
        self.refused("serialised", r"\(C7510\).*serialized")

    def test_injected_wait(self):
        self.refused("injected", r"\(C7517\)")

    def test_ignored_setmaxnreg(self):
        self.refused("ignored", r"\(C7508\).*setmaxnreg")

    def test_spills(self):
        self.refused("spills", r"[1-9]\d* bytes spill stores, [1-9]\d* bytes spill loads")

    def test_kernels_for_tests_may_spill(self):
        for macro in ("-DFA3_DELAYS", "-DFA3_RACECHECK"):
            run, content, _ = self.compile("spills", macro)
            self.assertEqual((run.returncode, content[:4]), (0, b"\x7fELF"), run.stdout)

    def test_stack_frame(self):
        self.refused("stack", r"256 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads")

    def test_warning(self):
        self.refused("warning", r"warning #177-D: variable .unused. was declared but never referenced")

    def test_error(self):
        run, content, _ = self.compile("error")
        self.assertNotEqual(run.returncode, 0)
        self.assertIn('identifier "undeclared" is undefined', run.stdout)
        self.assertIn("row_error: refused: cicc failed with status 1", run.stdout)
        self.assertEqual(content, b"")


class OneRow(unittest.TestCase):
    def test_other_rows_are_no_reason_to_compile(self):
        table = pathlib.Path(include, "table/rows.def").read_text()
        row = next(row for row in rows.rows(table) if row.name == "fa3_pass_empty_rows")
        with tempfile.TemporaryDirectory() as folder:
            output, depfile = pathlib.Path(folder, "row.cubin"), pathlib.Path(folder, "row.d")
            subprocess.run([sys.executable, cubin, nvcc, rows.source_of(row.kernel), output, depfile, row.name,
                            row.text, include], check=True)
            dependencies = depfile.read_text()
        self.assertTrue(dependencies.startswith(f"{output}:"), dependencies)
        self.assertIn("table/row.h", dependencies)
        self.assertNotIn("rows.def", dependencies)


# In the compiler's place: names three steps, of which the last one shows how it was started.
STAND_IN = f"""#!/bin/sh
while [ "$1" != -o ]; do shift; done
echo '#$ SHOWN={CLEAN.strip()}'
echo '#$ echo -E step'
echo '#$ cicc'
echo "#$ ptxas $2"
"""
TOOLS = {"cicc": "#!/bin/sh\n", "ptxas": """#!/bin/sh
{ cat /proc/self/personality; ulimit -s; } > "$1"
echo "$SHOWN"
"""}


class Addresses(unittest.TestCase):
    def test_are_the_same_in_every_build(self):
        if subprocess.run(["setarch", "-R", "true"], stderr=subprocess.DEVNULL).returncode:
            self.skipTest("addresses cannot be fixed here")
        with tempfile.TemporaryDirectory() as folder:
            compiler, output = pathlib.Path(folder, "nvcc"), pathlib.Path(folder, "row.cubin")
            for name, text in {"nvcc": STAND_IN, **TOOLS}.items():
                pathlib.Path(folder, name).write_text(text)
                pathlib.Path(folder, name).chmod(0o755)
            command = [sys.executable, cubin, compiler, "row.cu", output, "row.d", "row", "0"]
            environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
            for limit in "1024", "8192", "16384":
                subprocess.run(["sh", "-c", f'ulimit -S -s {limit} && exec "$@"', "sh", *command], check=True,
                               env=environment)
                personality, stack = output.read_text().split()
                self.assertEqual(int(personality, 16) & 0x0040000, 0x0040000)
                self.assertEqual(stack, "8192")


class Messages(unittest.TestCase):
    def test_every_message_about_the_pipeline(self):
        for number in (7507, 7508, 7510, 7511, 7512, 7513, 7514, 7515, 7517, 7518, 7519, 7520):
            line = f"ptxas info    : (C{number}) Potential Performance Loss: something"
            self.assertEqual(gate.complaints(f"{CLEAN}{line}\n"), [line])

    def test_warnings_of_every_tool(self):
        for line in ("ptxas warning : Value of threads per SM", "nvcc warning : Support for offline compilation",
                     "a.cu(3): warning #20012-D: an annotation"):
            self.assertEqual(gate.complaints(f"{CLEAN}{line}\n"), [line])

    def test_figures_that_are_missing(self):
        self.assertEqual(gate.complaints("ptxas info    : 0 bytes gmem\n"),
                         ["ptxas printed no figures for stack and spills"])

    def test_names_are_no_messages(self):
        line = "ptxas info    : Compiling entry function 'no_warning' for 'sm_90a'\n"
        self.assertEqual(gate.complaints(line + CLEAN), [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
