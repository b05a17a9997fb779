"""Each rule of rooms.py finds what breaks it."""
import rooms as rules
from breach import Breach


class Rooms(Breach):
    def includes(self, path, name, *paths):
        return rules.includes_point_one_way({path: f'#include "{name}"\n', **{target: "" for target in paths}})

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

    def test_files_of_a_folder(self):
        tree = {f"src/a/{n}.cpp": "" for n in range(25)}
        self.assertEqual(rules.folders_are_small({**tree, "src/a/b/c.cpp": "", "src/d.cpp": ""}), [])
        self.one(rules.folders_are_small, {**tree, "src/a/picture.svg": ""}, "^src/a: 26 files, of 25 at most")

    def test_users_of_a_tile_file(self):
        tree = {"ptx/tile/a.cuh": "", "ptx/tile/b/c.cuh": '#include "../a.cuh"\n',
                "ptx/forward/d.cu": '#include "../tile/b/c.cuh"\n', "ptx/forward/e.cu": '#include "tile/a.cuh"\n',
                "ptx/latent/f.cu": '// #include "../tile/a.cuh"\n'}
        found = rules.tile_files_have_two_users(tree)
        self.assertEqual([line.split(":")[0] for line in found], ["ptx/tile/a.cuh", "ptx/tile/b/c.cuh"])
        self.assertIn("only forward of ptx uses it", found[0])
        tree["ptx/latent/f.cu"] = '#include "../tile/b/c.cuh"\n'
        self.assertEqual(rules.tile_files_have_two_users(tree), [])
        self.one(rules.tile_files_have_two_users, {**tree, "ptx/tile/g.cuh": ""}, "g.cuh: only no folder of ptx")
