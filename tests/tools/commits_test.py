"""The rules of commit messages, as the hook and as a test: in a small repository with commits that keep them and that
break them, and in clones without history."""

import pathlib
import shutil
import subprocess
import tempfile
import unittest

HOOK = pathlib.Path(__file__).resolve().parents[2] / ".github/hooks/commit-msg"


class Commits(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name) / "project"
        (self.root / ".github/hooks").mkdir(parents=True)
        (self.root / "ptx/table").mkdir(parents=True)
        self.hook = self.root / ".github/hooks/commit-msg"
        self.git("init", "--quiet", ".")
        self.write("README.md", "1"), self.write("ptx/table/kernels.lock", "1")
        self.commit("what came before the rules, and is longer than any subject that they would let pass through")
        first = self.git("rev-parse", "HEAD").stdout.strip()
        text = HOOK.read_text().split("\n")
        self.hook.write_text("\n".join(f'FIRST = "{first}"' if line.startswith("FIRST = ") else line for line in text))
        self.hook.chmod(0o755)
        self.commit("README: the hook", "-a")

    def git(self, *words, root=None):
        return subprocess.run(["git", "-C", str(root or self.root), "-c", "user.name=a", "-c", "user.email=a@b", *words],
                              capture_output=True, text=True)

    def write(self, name, text):
        (self.root / name).write_text(text)

    def commit(self, message, *words):
        self.git("add", "--all")
        done = self.git("commit", "--quiet", "--allow-empty", "-m", message, *words)
        self.assertEqual(done.returncode, 0, done.stderr)

    def log(self, root=None):
        hook = (root or self.root) / ".github/hooks/commit-msg"
        return subprocess.run([hook, "--log"], capture_output=True, text=True)

    def new(self, message):
        self.write("message", message)
        return subprocess.run([self.hook, self.root / "message"], capture_output=True, text=True)

    def test_subjects(self):
        for subject in ("README: why", "ptx: why", "Kernels: why", "kernels.lock: why", "README, ptx: why",
                        "Merge branch 'a'", "ptx: " + "x" * 67):
            self.assertEqual(self.new(f"{subject}\n\n# a comment of Git's\n").returncode, 0, subject)
        for subject, text in (("ptx: " + "x" * 68, "has 73 characters, of 72 at most"), ("why", "no name"),
                              ("Attic: why", "a room's name and a colon, as \"Tests: ...\": Attic"),
                              ("README, attic: why", ": attic"), ("README:why", "no name"), ("README: ", "no name")):
            done = self.new(subject + "\n")
            self.assertEqual(done.returncode, 1, subject)
            self.assertIn(text, done.stdout)

    def test_a_change_of_the_lock_says_why(self):
        self.write("ptx/table/kernels.lock", "2")
        self.git("add", "--all")
        self.assertIn("kernels.lock changes, so the body must say why", self.new("Kernels: faster\n\nyes\n").stdout)
        self.assertEqual(self.new("Kernels: faster\n\nFewer registers for S: 2% at head dimension 64.\n").returncode, 0)

    def test_the_log(self):
        self.assertEqual((self.log().returncode, self.log().stdout), (0, "1 commits, 0 complaints\n"))
        self.commit("the attic")
        self.write("ptx/table/kernels.lock", "2")
        self.commit("Kernels: faster")
        done = self.log()
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, r"(?s)Kernels: faster: .*the body must say why.*the attic: .*no name.*3 commits, 2")

    def test_without_history(self):
        for words in (["--depth", "1", f"file://{self.root}"], None):
            clone = self.root.parent / ("shallow" if words else "unpacked")
            if words:
                self.git("clone", "--quiet", *words, str(clone))
            else:
                shutil.copytree(self.root, clone, ignore=shutil.ignore_patterns(".git"))
            done = self.log(clone)
            self.assertEqual(done.returncode, 77, done.stderr)
            self.assertIn("SKIPPED: commit messages: this clone has no history back to", done.stdout)

    def test_git_runs_the_hook(self):
        self.git("config", "core.hooksPath", ".github/hooks")
        refused = self.git("commit", "--allow-empty", "-m", "the attic")
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("a room's name and a colon", refused.stdout + refused.stderr)
        self.commit("README: what it is")


if __name__ == "__main__":
    unittest.main()
