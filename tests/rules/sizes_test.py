"""Each rule of sizes.py finds what breaks it."""
from unittest import mock

import exceptions
import sizes as rules
from breach import Breach


class Sizes(Breach):
    def setUp(self):
        for name in ("LINES", "FUNCTION_LINES"):
            patch = mock.patch.dict(getattr(exceptions, name), clear=True)
            patch.start()
            self.addCleanup(patch.stop)

    def functions(self, text, path="src/a.cpp"):
        return list(rules.functions(path, text))

    def test_lines_of_a_file(self):
        self.assertEqual(rules.files_are_short({"src/a.cpp": "\n" * 400, "tests/a.cpp": "\n" * 500,
                                                "tools/a.svg": "\n" * 500, "src/README.md": "\n" * 500}), [])
        for path, text in (("src/a.cpp", ""), ("tools/a", "#!/usr/bin/env bash"), ("tools/a.py", ""),
                           ("ptx/b/a.contract", "")):
            self.one(rules.files_are_short, {path: text + "\n" * 401}, f"^{path}: 401 lines, of 400 at most")
        with mock.patch.dict(exceptions.LINES, {"src/a.cpp": 410}):
            self.assertEqual(rules.files_are_short({"src/a.cpp": "\n" * 410}), [])
            self.one(rules.files_are_short, {"src/a.cpp": "\n" * 411}, "411 lines, of 410 at most")
            self.one(rules.files_are_short, {"src/a.cpp": "\n" * 400}, "LINES: src/a.cpp has 400, which needs no")

    def test_functions_are_found(self):
        text = """#include "a.h"
#define F(x) \\
  void f_##x() {
namespace a {
// void comment() {
struct B : C<int> {
  int x{0}, y[2] = {1, 2};
  explicit B(int n)
      : x{n}, c_(n) {
    if (n) {
      x = 1;
    }
  }
 private:
  bool operator==(const B& b) const { return x == b.x; }
};

template <int n, class T = int>
  requires(n > 0)
constexpr auto f(T x = T{}, const char* s = "{") -> int {
  return n;
}

enum class E { a, b };
const int table[] = {1,
  2};
extern "C" __global__ void __launch_bounds__(128) kernel(int p) {
  for (int i = 0; i < p; ++i) {
  }
}
struct B make(int n) {
  return B(n);
}
}
"""
        self.assertEqual([(name, lines) for name, _, lines in self.functions(text)],
                         [("B", 6), ("operator==", 1), ("f", 5), ("kernel", 4), ("make", 3)])
        self.assertEqual(self.functions("\n\nint g() {\n}\n"), [("g", 3, 2)])
        self.assertIn("cannot follow", self.functions("namespace a {\n#if X\n}\n#endif\n}\n")[-1][0])
        python = "class A:\n    def f(self):\n        def g():\n            pass\n        return g\n\nx = 1\n"
        for path, start in (("tools/a.py", ""), ("tools/a", "#!/usr/bin/env python3\n")):
            self.assertEqual({name: lines for name, _, lines in self.functions(start + python, path)}, {"f": 4, "g": 2})

    def test_lines_of_a_function(self):
        def c(body):
            return {"src/a.cpp": "namespace a {\nint f() {\n" + "  x();\n" * body + "}\n}\n"}
        self.assertEqual(rules.functions_are_short(c(78)), [])
        self.one(rules.functions_are_short, c(79), "^src/a.cpp:2: f: 81 lines, of 80 at most")
        python = {"tools/a.py": "def f():\n" + "    x()\n" * 80}
        self.one(rules.functions_are_short, python, "^tools/a.py:1: f: 81 lines")
        with mock.patch.dict(exceptions.FUNCTION_LINES, {"src/a.cpp: f": 90}):
            self.assertEqual(rules.functions_are_short(c(88)), [])
            self.one(rules.functions_are_short, c(89), "91 lines, of 90 at most")
            self.one(rules.functions_are_short, c(78), "FUNCTION_LINES: src/a.cpp: f has 80, which needs no exception")

    def test_readme(self):
        self.assertEqual(rules.readme_is_short({"README.md": "a\n" * 130}), [])
        self.one(rules.readme_is_short, {"README.md": "a\n" * 131}, r"^README\.md: 131 lines, .*tools/docs/pages")


    def test_glossary(self):
        def words(count):
            return {rules.GLOSSARY: "# Words\n| word | meaning |\n|---|---|\n"
                    + "".join(f"| word {n} | is |\n" for n in range(count))}
        self.assertEqual(rules.one_short_glossary(words(22)), [])
        self.one(rules.one_short_glossary, words(23), "23 words, of 22 at most")
        self.one(rules.one_short_glossary, words(0), "no words found")
        twice = {rules.GLOSSARY: words(3)[rules.GLOSSARY].replace("word 2", "word 1")}
        self.one(rules.one_short_glossary, twice, "word 1 stands there twice")
        for text in ("# A\n## Words\n", "| word | meaning |\n"):
            self.one(rules.one_short_glossary, {**words(3), "src/README.md": text}, "^src/README.md: a glossary")
