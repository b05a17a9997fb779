"""Every figure of README.md, of tools/docs/pages and of this folder's README.md is what the committed files say; and
check_claims.py, which compares them, finds wrong figures and such without a rule, and measurements that are to be made
again."""

import contextlib
import io
import textwrap
import unittest
import unittest.mock

import check_claims
import claims
from check_claims import agrees, as_written, check, renewed

HOST = """On the host of one H200 the median
was {:.1f} us and the least {:.1f} us, and the launch of an empty kernel took {:.1f} us."""
MOST_AHEAD = """{}: on the grid, {}'s forward pass at {} ({:.2f}) and {}'s backward pass at {} ({:.2f}); beyond the
grid, {}'s backward pass at {} ({:.2f}), {}'s forward pass of 16 to 577 tokens at {} ({:.2f}) and {}'s decoding at {}
({:.2f})."""
LABEL = ("forward, 16 to 577 tokens", "official FlashAttention-3, cuDNN")
HEADER = "| card | call | peer | points | mean | least | slower at |\n|---|---|---|---|---|---|---|\n"
TABLE = HEADER + "| {} | {} | {} | {} | {} | {} | {} |\n"


def changed(files, wanted, cells):
    """claims.rows with these cells in the rows of some files that have the wanted ones."""
    rows = claims.rows

    def other(*file):
        there = lambda row: file in files and wanted.items() <= row.items()
        return [{**row, **cells} if there(row) else row for row in rows(*file)]

    return unittest.mock.patch.object(claims, "rows", other)


class Claims(unittest.TestCase):
    def setUp(self):
        self.median, self.least, self.launch = claims.host_time("H200")
        self.points, *ratios, self.ahead = claims.CARD_TABLES["call"][LABEL]("H200")
        self.mean, self.smallest = (f"{ratio:.2f}" for ratio in ratios)
        self.row = [self.points, self.mean, self.smallest, self.ahead]

    def test_documents(self):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            status = check_claims.main([])
        self.assertEqual(status, 0, "\n" + printed.getvalue())

    def test_precision(self):
        for text, value, right in (
            ("1.17", 1.1749, True), ("1.17", 1.1751, False), ("1.17", 1.165, True), ("1.17", 1.1649, False),
            ("3", 3, True), ("3", 4, False), ("1.2e-4", 1.249e-4, True), ("1.2e-4", 1.251e-4, False),
            ("0.98", 0.99, False), ("16", 16.48, True), ("16", 16.52, False),
        ):  # fmt: skip
            self.assertEqual(agrees(text, value), right, (text, value))
        for text, value, written in (
            ("1.2e-4", 1.6e-3, "1.6e-3"), ("0.98", 1, "1.00"), ("?", 1.234, "1.23"), ("?", 12, "12"),
            ("?", 623.4, "623"), ("16", 17.6, "18"), ("a", "b", "b"),
        ):  # fmt: skip
            self.assertEqual(as_written(text, value), written)

    def test_wrong_figures(self):
        """Each of them, in sentences and tables, and those without a rule."""
        host, row = HOST.format(self.median, self.least, self.launch), TABLE.format("H200", *LABEL, *self.row)
        no_figures = "`--bias 1.5`, [that](a/1.5), 16384 tokens\n```\n1.5 us\n```"
        self.assertEqual(check(f"{host}\n\n{row}\n{no_figures}", set(), None), [])
        for text, *words in (
            (HOST.format(self.median + 0.1, self.least, self.launch), f"is {self.median:.1f}"),
            (HOST.format(self.median, self.least, self.launch + 0.1), f"is {self.launch:.1f}"),
            (host.replace("H200", "H900"), "no such file", "h900/gpu.json"),
            (TABLE.format("H200", *LABEL, self.points + 1, *self.row[1:]), f"{self.points + 1} is {self.points}"),
            (TABLE.format("H200", *LABEL, self.points, "0.01", *self.row[2:]), f"0.01 is {self.mean}"),
            (TABLE.format("H200", *LABEL, *self.row[:3], ""), f"nothing is {self.ahead}"),
            (row.replace(" |\n", " | 1 |\n"), "5 figures, where there are 4"),
            (TABLE.format("H200", "another", LABEL[1], *self.row), "no rule for the row H200 | another"),
            (TABLE.format("H200", LABEL[0], "another", *self.row), f"no rule for the row H200 | {LABEL[0]} | another"),
            (TABLE.format("H900", *LABEL, *self.row), "cannot be computed: FileNotFoundError"),
            ("| a |\n|---|\n| anything | 1.5 |\n", "no rule for the row anything | 1.5"),
            ("It has 12 TFLOP/s.", "no rule for 12"),
            ("It is 3 times as fast.", "no rule for 3"),
            ("It has 1.07 of the speed.", "no rule for 1.07"),
            ("Its error is 2e-3.", "no rule for 2e-3"),
        ):
            found = "\n".join(problem.text for problem in check(text, set(), None)).lower()
            for word in words:
                self.assertIn(word.lower(), found, text)

    def test_headings(self):
        """In README.md, numbers are figures under some headings, and everywhere if they have a unit."""
        text = "CUDA 12.0\n# Speed\nIt has 1.07 of the speed.\n# Tests\nMeson 1.12\n"
        found = [problem.text for problem in check(text, set(), ("Speed",))]
        self.assertEqual(len(found), 1, found)
        self.assertIn("no rule for 1.07", found[0])
        self.assertEqual(len(check("It takes 1.5 us.", set(), ())), 1)

    def test_words(self):
        """A peer and a point in a sentence are figures, too, also over lines."""
        cells = claims.most_ahead("H100")
        for width in (20, 60, 120):
            self.assertEqual(check(textwrap.fill(MOST_AHEAD.format("H100", *cells), width), set(), None), [])
        for i, other in ((0, "FlashAttention-4"), (1, "d 64 full 512"), (7, "d 64 full, 1 x 8, 1 head"), (14, 0.01)):
            self.assertNotEqual(cells[i], other)
            wrong = MOST_AHEAD.format("H100", *cells[:i], other, *cells[i + 1 :])
            (problem,) = check(wrong, set(), None)
            self.assertEqual(renewed(wrong, [problem]), MOST_AHEAD.format("H100", *cells))

    def test_most_ahead(self):
        row = {"head_dim": 64, "causal": 1, "batch": 2, "seqlen": 512, "heads": 8, "kv_heads": 8, "fa4_ratio": "0.9"}
        rows = [row, {**row, "seqlen": 1024, "official_ratio": "0.5", "cudnn_ratio": "1.25"}]
        self.assertEqual(claims.farthest(rows, claims.named), ["cuDNN", "d 64 causal 1024", 0.8])
        rows = [{**row, "heads": 1, "kv_heads": 1}, {**row, "heads": 8, "kv_heads": 1, "official_ratio": "2"}]
        self.assertEqual(claims.farthest(rows[:1], claims.named_beyond)[1], "d 64 causal, 2 x 512, 1 head")
        label = "d 64 causal, 2 x 512, 8 heads over 1"
        self.assertEqual(claims.farthest(rows, claims.named_beyond), ["the official kernel", label, 0.5])

    def test_named_peers(self):
        """Of calls in serving.csv those are named that were timed."""
        names = {"fa3fwd": "official FlashAttention-3", "vfa3": "vLLM's FlashAttention-3", "fa4": "FlashAttention-4",
                 "vfa4": "FlashAttention-4", "cudnn": "cuDNN", "flex": "FlexAttention", "fi-fa3": "FlashInfer",
                 "fi-fa2": "FlashInfer", "flashmla": "FlashMLA"}  # fmt: skip
        calls = {key: rule.kinds for key, rule in claims.CARD_TABLES["call"].items() if hasattr(rule, "kinds")}
        self.assertGreater(len(calls), 10)
        for (call, peers), kinds in calls.items():
            timed = {row["peer"] for row in claims.rows("H100", "serving") if row["kind"] in kinds} - {"libfa3"}
            timed = {names[peer] for peer in timed if not peer.endswith((":inline", "-contiguous"))}
            named = peers.replace("official and vLLM's", "official FlashAttention-3, vLLM's").split(", ")
            self.assertEqual(timed, set(named), call)

    def test_official_backward(self):
        """Stands beside the better of the others where it was timed, and nowhere else."""
        cells = claims.CARD_TABLES["backward point"]
        for card, label, timed in (
            ("H100", "d 128 causal, 2 x 8192, 8 heads over 1", True),
            ("H100", "d 64 causal, 1 x 16384, 3 heads", False),
            ("H200", "d 128 causal, 2 x 8192, 8 heads over 1", False),
        ):
            official = cells(card, label)[3]
            self.assertEqual(isinstance(official, float), timed, (card, label, official))

    def test_renewed(self):
        """What is wrong is replaced, and no more."""
        right = HOST.format(self.median, self.least, self.launch) + "\n\n" + TABLE.format("H200", *LABEL, *self.row)
        wrong = HOST.format(1, self.least, 2) + "\n\n" + TABLE.format("H200", *LABEL, "?", "10.00", self.row[2], "")
        self.assertEqual(renewed(wrong, check(wrong, set(), None)), right)
        self.assertEqual(renewed("It has 12 TFLOP/s.", check("It has 12 TFLOP/s.", set(), None)), "It has 12 TFLOP/s.")

    def test_dips(self):
        """A peer's figure of a fifth of what it was, in each file that has peers, until it is measured again."""
        known = claims.dips()
        new = lambda: [dip for dip in claims.dips() if dip not in known]
        for card, name, column, wanted in (
            ("H200", "fp8", "official_tflops", {"head_dim": 64, "causal": 1, "seqlen": 2048}),
            ("H100", "forward", "cudnn_tflops", {"head_dim": 128, "causal": 0, "seqlen": 4096, "dtype": "bf16"}),
            ("H100", "backward", "fa4_tflops", {"head_dim": 256, "causal": 1, "seqlen": 1024}),
            ("H200", "shapes", "tflops", {"peer": "cudnn", "head_dim": 96, "causal": 1, "seqlen_k": 2048}),
            ("H100", "shapes", "tflops", {"peer": "official", "head_dim": 128, "causal": 1, "seqlen_k": 384}),
            ("H100", "serving", "tflops_or_gbytes_s", {"peer": "vfa3", "point": "b32 ctx 8192 page 64 32/8 d128"}),
            ("H200", "context_parallel", "backward_us", {"method": "torch", "seqlen": 32768}),
        ):
            was = [float(row[column]) for row in claims.rows(card, name) if wanted.items() <= row.items()]
            low = {column: str(5 * was[0] if column.endswith("_us") else was[0] / 5)}
            who = wanted.get("peer") or wanted.get("method") or column.removesuffix("_tflops")
            with self.subTest(name=name, **wanted):
                self.assertEqual(len(was), 1)
                with changed([(card, name)], wanted, low):
                    (found,) = new()
                    self.assertIn(f"{card.lower()}/{name}.csv: {who}, ", found)
                    with contextlib.redirect_stdout(io.StringIO()) as printed:
                        self.assertEqual(check_claims.main([]), 1)
                    self.assertIn(found, printed.getvalue())
                for processes, expected in (("2", [found]), ("3", [])):
                    with changed([(card, name)], wanted, {**low, "processes": processes}):
                        self.assertEqual(new(), expected)
                if name in ("fp8", "forward", "backward", "shapes"):  # another card agrees
                    with changed([("H100", name), ("H200", name)], wanted, low):
                        self.assertEqual(new(), [])

    def test_neighbours(self):
        """With the same batch, or else as many keys in all, and on both sides; whoever is timed by himself."""
        row = dict.fromkeys(("dtype", "head_dim", "heads", "kv_heads"), 128) | {"causal": 0, "peer": "a"}
        point = lambda batch, keys, rate, **more: {
            **row, "batch": batch, "seqlen_q": keys, "seqlen_k": keys, "tflops": str(rate), **more
        }  # fmt: skip
        for points, expected in (
            ([point(4, 512, 9), point(2, 1024, 5), point(1, 2048, 8)], (9, 8)),
            ([point(8, 512, 9), point(2, 1024, 5), point(1, 2048, 8)], (9, 8)),  # twice as many
            ([point(9, 512, 9), point(2, 1024, 5), point(1, 2048, 8)], None),
            ([point(4, 512, 9), point(2, 1024, 5)], None),
            ([point(2, 512, 4), point(4, 512, 9), point(2, 1024, 5), point(2, 4096, 6), point(1, 2048, 8)], (4, 6)),
            ([point(4, 512, 9), point(4, 512, 7, peer="b"), point(2, 1024, 5), point(1, 2048, 8, peer="b")], None),
            ([point(4, 512, 9), point(2, 1024, 5), point(1, 2048, 8, causal=1)], None),
            ([point(4, 512, 9), point(2, 1024, 5, seqlen_q=1), point(1, 2048, 8)], None),
        ):
            with unittest.mock.patch.object(claims, "rows", lambda *file: points):
                found = {key[1:]: beside for key, (_, *beside) in claims.beside_neighbours("H100", "shapes").items()}
            self.assertEqual(found.get((2, 1024)), list(expected) if expected else None, points)

    def test_points(self):
        """Which points a row of a table is about, and what is made of them."""
        self.assertEqual(len(claims.grid("H200", "forward")), 36)
        self.assertEqual(len(claims.grid("H200", "forward", head_dim=64, causal=1)), 6)
        self.assertEqual(len(claims.shapes("H200", "short", batch=(1,))), 8)
        row = {"official_ratio": "0.5", "fa4_ratio": "0.8", "cudnn_ratio": "", "tiles_ratio": "1.1"}
        self.assertAlmostEqual(claims.best(row, "official", "fa4", "cudnn"), 1.25)
        self.assertAlmostEqual(claims.tiles(row, "official"), 2.2)
        self.assertAlmostEqual(claims.mean([1, 4]), 2)
        self.assertAlmostEqual(claims.smoothed_distance([2, -1, -3], steps=2), 1.25)
        self.assertEqual(claims.summary([0.5, 2, 4]), [3, claims.mean([0.5, 2, 4]), 0.5, 1])
        points = [{"head_dim": d, "causal": 0, "seqlen": 512} for d in (64, 128, 256)]
        self.assertEqual(claims.listed(zip((0.996, 0.9, 1), points)), "d 128 full 512 (0.90), d 64 full 512 (1.00)")


if __name__ == "__main__":
    unittest.main()
