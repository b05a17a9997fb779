#!/usr/bin/env python3
"""tools/build/embed.py: what it embeds is found byte for byte and in order; so is every row in the library.

usage: embed_test.py EMBED.py LIBRARY CUBIN ... -- CC [ARGUMENT ...]
"""
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

split = sys.argv.index("--")
embed, library, *cubins = sys.argv[1:split]
cc = sys.argv[split + 1:]

PROGRAM = r"""
#include <stdint.h>
#include <stdio.h>
extern const struct { const void *data; uint64_t size; } fa3_cubins[];
int main(void) {
  for (int i = 0; i < COUNT; i++) {
    if ((uintptr_t)fa3_cubins[i].data % 64) return 1;
    if (fwrite(fa3_cubins[i].data, 1, fa3_cubins[i].size, stdout) != fa3_cubins[i].size) return 2;
    fprintf(stderr, "%llu\n", (unsigned long long)fa3_cubins[i].size);
  }
  return 0;
}
"""


class Embed(unittest.TestCase):
    def test_byte_for_byte(self):
        seed = random.randrange(1 << 32)
        generator = random.Random(seed)
        contents = [bytes(range(256)) * 5, b"", b"\0", b'.quad 0\n"\\', generator.randbytes(100003),
                    generator.randbytes(64)]
        with tempfile.TemporaryDirectory(prefix="with space ") as name:
            folder = pathlib.Path(name)
            files = []
            for i, content in enumerate(contents):
                files.append(folder / f"row {i}.cubin")
                files[-1].write_bytes(content)
            subprocess.run([sys.executable, embed, folder / "cubins.S", *files], check=True)
            (folder / "main.c").write_text(PROGRAM)
            program = folder / "main"
            subprocess.run([*cc, f"-DCOUNT={len(files)}", "-o", program, folder / "main.c", folder / "cubins.S"],
                           check=True)
            run = subprocess.run([program], check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual([int(line) for line in run.stderr.split()], [len(content) for content in contents])
        self.assertTrue(run.stdout == b"".join(contents), f"other bytes than embedded, seed {seed}")

    def test_library_holds_every_row(self):
        content, at = pathlib.Path(library).read_bytes(), 0
        for cubin in cubins:
            found = content.find(pathlib.Path(cubin).read_bytes(), at)
            self.assertGreaterEqual(found, at, f"{cubin} is not in {library}, or not in the order of the table")
            at = found + 1


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
