"""plot_serving.py: what it reads, what it refuses, and the figures, which need matplotlib; skipped behind the first two
without it."""

import os
import pathlib
import sys
import tempfile

import plot
import plot_serving
from test_helpers import SKIPPED, expect, have, refusal, texts

HEADER = "kind,point,peer,us,tflops_or_gbytes_s,checked,card"
LINES = (
    'decode,"b8, 64",libfa3,1,301,ok:1e-3,NVIDIA H100',
    'decode,"b8, 64",vfa3,1,302,ok:1e-3,NVIDIA H100',
    'decode,"b8, 64",vfa3:inline,1,303,ok:1e-3,NVIDIA H100',
    "decode,b9,libfa3,1,304,ok:1e-3,NVIDIA H100",
    "decode,b9,cudnn,1,305,BAD:1e-1,NVIDIA H100",
    "window_bwd,n8,libfa3,1,306,ok:1e-3,NVIDIA H100",
)
BENCH = "direction,dtype,head_dim,causal,heads,kv_heads,tflops,checked,call,kind,name,gbytes_s"
BENCH_LINES = (
    "fwd,bf16,128,1,32,8,401.5,1,page 64,decode,b8,2402.5",
    'fwd,bf16,128,1,32,8,403,1,"lengths 5,6",,,2404',
    "fwd,bf16,128,1,32,8,405,1,,,,2406",
    "fwd,bf16,128,1,32,8,407,0,page 16,decode,wrong,2408",
)


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)

        def write(name, *lines):
            (folder / name).write_text("\n".join(lines) + "\n")
            return str(folder / name)

        serving, bench = write("serving.csv", HEADER, *LINES), write("bench.csv", BENCH, *BENCH_LINES)
        kinds, card = plot_serving.read(serving)
        assert card == "NVIDIA H100" and kinds == {
            "decode": {"b8, 64": {"libfa3": 301, "vfa3": 302}, "b9": {"libfa3": 304}},
            "window_bwd": {"n8": {"libfa3": 306}},
        }, kinds
        kinds, card = plot_serving.read(bench)
        assert card == "" and kinds == {
            "decode": {"b8": {"libfa3": 2402.5}}, "fwd": {"lengths 5,6; 32/8 d128": {"libfa3": 403}}
        }, kinds  # fmt: skip
        for path, text in (
            (str(folder / "none.csv"), "none.csv"),
            (write("dense.csv", BENCH, BENCH_LINES[2]), "none of its 1 lines is a planned call"),
            (write("cut.csv", HEADER.replace("kind,", ""), LINES[3].replace("decode,", "")), "KeyError: 'kind'"),
            (write("two.csv", HEADER, LINES[0], LINES[3].replace("H100", "H200")), "NVIDIA H100, NVIDIA H200"),
        ):
            expect(refusal(plot_serving.main, [path]), text)
        if not have("matplotlib"):
            return SKIPPED
        for out in ("a", "b"):
            assert plot_serving.main([serving, "--out", str(folder / out)]) == 0
        assert sorted(os.listdir(folder / "a")) == ["serving-decode.svg", "serving-window_bwd.svg"]
        decode = folder / "a/serving-decode.svg"
        assert {"301", "302", "304", "b8, 64", "b9", "GB/s", "libfa3", "decode, NVIDIA H100"} <= {*texts(decode)}
        assert not {"303", "305", "cuDNN"} & {*texts(decode)}
        assert "TFLOP/s" in texts(folder / "a/serving-window_bwd.svg")
        assert decode.read_bytes() == (folder / "b/serving-decode.svg").read_bytes()
        assert plot_serving.main([bench, "--out", str(folder / "c")]) == 0
        assert sorted(os.listdir(folder / "c")) == ["serving-decode.svg", "serving-fwd.svg"]
        try:  # the paper's figures leave planned calls out
            plot.read(write("grid.csv", f"{BENCH},batch,seqlen", "fwd,bf16,128,1,16,16,401.5,1,page 64,decode,b8,2402.5,1,16384"))
        except plot.PlotError as error:
            expect(str(error), "none of its 1 rows is a point of the paper's grid")
        else:
            raise AssertionError("a planned call was taken for one of the paper's")
    return 0


if __name__ == "__main__":
    sys.exit(main())
