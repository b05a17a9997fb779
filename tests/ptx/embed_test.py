#!/usr/bin/env python3
"""tools/build/embed.py: what it embeds is found byte for byte and in order; so is every row in the library, compressed
unless most processes load it first, and cuobjdump takes out of it what ptxas has made.

usage: embed_test.py EMBED.py LIBRARY CUOBJDUMP CUBIN ... -- FATBINARY ... -- COMPRESS ... -- CC ...

A cubin's fat binary lies beside it. FATBINARY and CC are commands with their arguments, but for files; COMPRESS are the
arguments with which FATBINARY compresses.
"""
import itertools
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile
import unittest

paths, fatbinary, compress, cc = (list(words) for is_dashes, words in itertools.groupby(sys.argv[1:], "--".__eq__)
                                  if not is_dashes)
embed, library, cuobjdump, *cubins = map(pathlib.Path, paths)
fatbins = [cubin.with_suffix(".fatbin") for cubin in cubins]
# What most processes load first, which is stored as it is.
first = [bool(re.match("fa3_fwd_(bf16|fp16)_d(64|128|256)_", cubin.name)) for cubin in cubins]
# Where the first entry of a fat binary has its flags, and those for compressions: LZ4, zstd.
FLAGS_AT, LZ4, ZSTD = 56, 0x2000, 0x8000

PROGRAM = r"""
#include <stdint.h>
#include <stdio.h>
extern const struct { const void *data; uint64_t size; } fa3_cubins[];
int main(void) {
  for (int i = 0; i < COUNT; i++) {
    if ((uintptr_t)fa3_cubins[i].data % 8) return 1;
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
                files.append(folder / f"row {i}.fatbin")
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
        content, at = library.read_bytes(), 0
        for fatbin in fatbins:
            found = content.find(fatbin.read_bytes(), at)
            self.assertGreaterEqual(found, at, f"{fatbin} is not in {library}, or not in the order of the table")
            at = found + 1

    def test_compressed_but_for_the_first(self):
        self.assertIn(True, first)
        for cubin, fatbin, is_first in zip(cubins, fatbins, first):
            content = fatbin.read_bytes()
            compression = struct.unpack_from("<Q", content, FLAGS_AT)[0] & (LZ4 | ZSTD)
            self.assertEqual(compression, 0 if is_first else LZ4, f"the compression of {fatbin}")
            self.assertEqual(cubin.read_bytes() in content, is_first, f"{fatbin} holds its cubin as it is")

    def test_every_image_unpacks_to_its_cubin(self):
        with tempfile.TemporaryDirectory() as folder:
            run = subprocess.run([cuobjdump, "-xelf", "all", library.absolute()], cwd=folder, check=True,
                                 stdout=subprocess.PIPE, text=True)
            names = [line.split()[-1] for line in run.stdout.splitlines() if line.startswith("Extracting ELF file")]
            self.assertEqual(len(names), len(cubins))
            for name, cubin in zip(names, cubins):
                self.assertTrue(pathlib.Path(folder, name).read_bytes() == cubin.read_bytes(),
                                f"{name} of {library} is not {cubin}")

    def test_same_bytes_again(self):
        """Wherever the cubin lies and however it is called."""
        with tempfile.TemporaryDirectory() as folder:
            copy, made = pathlib.Path(folder, "copy"), pathlib.Path(folder, "made")
            rows = list(zip(cubins, fatbins, first))
            for cubin, fatbin, is_first in (random.sample([row for row in rows if row[2]], 4)
                                            + random.sample([row for row in rows if not row[2]], 8)):
                copy.write_bytes(cubin.read_bytes())
                subprocess.run([*fatbinary, *([] if is_first else compress), f"--create={made}",
                                f"--image3=kind=elf,sm=90a,file={copy}"], check=True)
                self.assertTrue(made.read_bytes() == fatbin.read_bytes(), f"{fatbin} is made with other bytes")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
