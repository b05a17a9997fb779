#!/usr/bin/env python3
"""tools/build/lock.py: rows with other machine code are named, and so are new ones and those that are gone; --check
writes nothing; what is written is what sha256sum checks.

usage: lock_test.py LOCK.py
"""
import pathlib
import subprocess
import sys
import tempfile
import unittest

lock_script = sys.argv.pop(1)


class Lock(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.lock = self.folder / "kernels.lock"
        self.names = ["fa3_b", "fa3_a", "fa3_c"]
        for name in self.names:
            (self.folder / f"{name}.cubin").write_bytes(name.encode())
        self.run_lock()

    def run_lock(self, *options):
        command = [sys.executable, "-B", lock_script, *options, self.lock, self.folder, *self.names]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return done.returncode, done.stdout

    def test_sha256sum_reads_it(self):
        done = subprocess.run(["sha256sum", "--check", "--strict", self.lock], cwd=self.folder, stdout=subprocess.PIPE)
        self.assertEqual((done.returncode, len(done.stdout.splitlines())), (0, 3))

    def test_same_code(self):
        before = self.lock.read_text()
        self.assertEqual(self.run_lock("--check"), (0, ""))
        self.assertEqual(self.run_lock(), (0, ""))
        self.assertEqual(self.lock.read_text(), before)

    def test_other_code(self):
        before = self.lock.read_text()
        (self.folder / "fa3_a.cubin").write_bytes(b"fa3_A")
        (self.folder / "fa3_d.cubin").write_bytes(b"fa3_d")
        self.names = ["fa3_a", "fa3_b", "fa3_d"]
        lines = ["other machine code (1 of 3): fa3_a", "new (1 of 3): fa3_d", "gone (1 of 3): fa3_c"]
        status, said = self.run_lock("--check")
        self.assertEqual((status, said.splitlines()[:3]), (1, lines))
        self.assertIn("kernels-lock", said)
        self.assertEqual(self.lock.read_text(), before)
        self.assertEqual(self.run_lock(), (0, "\n".join(lines) + "\n"))
        self.assertEqual(self.run_lock("--check"), (0, ""))


if __name__ == "__main__":
    unittest.main()
