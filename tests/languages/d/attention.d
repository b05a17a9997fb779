/// Attention from D: on the CPU, checked against plain double precision, then on a Hopper GPU.
///
/// D reads the header itself (ImportC), after the C preprocessor:
/// ---
/// cc -E -P -DFA3_API= -x c fa3.h -o fa3.i && ldc2 fa3.i attention.d cuda.d -of=attention -L-lfa3
/// ---
module attention;

import std.algorithm : all, fold, map, max;
import std.exception : enforce;
import std.math : abs, exp, log, sqrt;
import std.range : zip;
import std.stdio : writeln;
import std.string : fromStringz;

import cuda;
import fa3;

enum batch = 2, seqlenQ = 40, seqlenK = 48, heads = 4, headsKV = 2, headDim = 64;
enum qSize = batch * seqlenQ * heads * headDim, kvSize = batch * seqlenK * headsKV * headDim;
enum lseSize = batch * heads * seqlenQ;

/// A refusal of the library, with its words.
class Refused : Exception
{
    const fa3_status status;

    this(fa3_status status)
    {
        this.status = status;
        super(text(fa3_status_string(status)) ~ ": " ~ text(fa3_last_error_message()));
    }
}

string text(const(char)* zeroTerminated)
{
    return zeroTerminated.fromStringz.idup;
}

void check(fa3_status status)
{
    if (status != FA3_OK)
        throw new Refused(status);
}

// ---- numbers -------------------------------------------------------------------------------------------------------

struct Bf16
{
    ushort bits;

    this(float x) /// the nearest; of two, the even one
    {
        const wide = *cast(uint*)&x;
        bits = cast(ushort)((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
    }

    double number() const
    {
        const wide = uint(bits) << 16;
        return *cast(float*)&wide;
    }

    alias number this;
}

/// Lehmer's generator.
struct Generator
{
    long state = 1;

    Bf16[] numbers(size_t n) /// between -2 and 2
    {
        auto x = new Bf16[n];
        foreach (ref value; x)
        {
            state = state * 16807 % 2147483647;
            value = Bf16(cast(float)(state / 2147483647.0 * 4 - 2));
        }
        return x;
    }
}

long checksum(const(Bf16)[][] slices...)
{
    long sum;
    foreach (x; slices)
        foreach (value; x)
            sum = (sum * 31 + value.bits) % 2147483647;
    return sum;
}

// ---- attention, plainly --------------------------------------------------------------------------------------------

/// O and LSE in double precision. A causal mask that ends in the bottom right corner: query i sees key j if
/// j <= i + seqlen_k - seqlen_q.
void plainAttention(const Bf16[] q, const Bf16[] k, const Bf16[] v, double[] o, double[] lse)
{
    o[] = 0;
    foreach (b; 0 .. batch)
        foreach (h; 0 .. heads)
            foreach (i; 0 .. seqlenQ)
            {
                const row = ((b * seqlenQ + i) * heads + h) * headDim;
                auto result = o[row .. row + headDim];
                double sum = 0;
                foreach (j; 0 .. i + seqlenK - seqlenQ + 1)
                {
                    const key = ((b * seqlenK + j) * headsKV + h / (heads / headsKV)) * headDim;
                    double score = 0;
                    foreach (c; 0 .. headDim)
                        score += q[row + c].number * k[key + c].number;
                    const p = exp(score / sqrt(double(headDim)));
                    foreach (c; 0 .. headDim)
                        result[c] += p * v[key + c].number;
                    sum += p;
                }
                result[] /= sum;
                lse[(b * heads + h) * seqlenQ + i] = log(sum);
            }
}

// ---- parameters ----------------------------------------------------------------------------------------------------

fa3_tensor packed(void* data, fa3_dtype dtype, long[] dims...) /// without gaps
{
    fa3_tensor tensor = {data: data, dtype: dtype, rank: cast(int) dims.length};
    tensor.dim[0 .. dims.length] = dims[];
    check(fa3_tensor_pack(&tensor));
    return tensor;
}

/// For memory of the host or of the device.
fa3_forward_params forward(void* q, void* k, void* v, void* o, void* lse)
{
    fa3_forward_params params = {struct_size: fa3_forward_params.sizeof};
    params.q = packed(q, FA3_DTYPE_BF16, batch, seqlenQ, heads, headDim);
    params.k = packed(k, FA3_DTYPE_BF16, batch, seqlenK, headsKV, headDim);
    params.v = packed(v, FA3_DTYPE_BF16, batch, seqlenK, headsKV, headDim);
    params.o = packed(o, FA3_DTYPE_BF16, batch, seqlenQ, heads, headDim);
    params.lse = packed(lse, FA3_DTYPE_FP32, batch, heads, seqlenQ);
    params.mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT; // softmax_scale 0: 1/sqrt(head_dim)
    return params;
}

size_t workspaceSize(ref fa3_forward_params params, int multiprocessors)
{
    size_t bytes;
    check(fa3_forward_workspace_size(&params, multiprocessors, &bytes));
    return bytes;
}

struct Problem
{
    Bf16[] q, k, v, o;
    float[] lse;
}

// ---- on the CPU ----------------------------------------------------------------------------------------------------

void onCpu(ref Problem host)
{
    writeln("inputs: checksum ", checksum(host.q, host.k, host.v));
    auto params = forward(host.q.ptr, host.k.ptr, host.v.ptr, host.o.ptr, host.lse.ptr);
    check(fa3_reference_forward(&params, 0));
    auto o = new double[qSize], lse = new double[lseSize];
    plainAttention(host.q, host.k, host.v, o, lse);
    // half a unit in the last of bf16's 8 bits is at most 2^-8 of the number
    enforce(zip(host.o, o).all!(x => abs(x[0].number - x[1]) <= abs(x[1]) / 256 + 1e-6),
            "O is not as in double precision");
    enforce(zip(host.lse, lse).all!(x => abs(x[0] - x[1]) <= 1e-6 * max(1, abs(x[1]))),
            "LSE is not as in double precision");
    writeln("cpu: O and LSE as in double precision");

    auto wrong = params;
    wrong.k.stride[1]++;
    Refused refusal;
    try
        check(fa3_forward_check(&wrong));
    catch (Refused refused)
        refusal = refused;
    enforce(refusal, "a wrong stride was accepted");
    writeln("refused: ", refusal.msg);

    check(fa3_forward_check(&params));
    writeln("workspace: ", workspaceSize(params, 132), " bytes on 132 multiprocessors");
}

// ---- on the GPU ----------------------------------------------------------------------------------------------------

void onGpu(ref Problem host)
{
    auto params = forward(null, null, null, null, null);
    size_t bytes;
    try
    {
        loadCuda();
        bytes = workspaceSize(params, 0);
    }
    catch (Exception why)
    {
        writeln("no Hopper GPU: ", why.msg);
        return;
    }
    // Each is freed when it goes out of scope.
    auto q = DeviceArray!Bf16(host.q), k = DeviceArray!Bf16(host.k), v = DeviceArray!Bf16(host.v);
    auto o = DeviceArray!Bf16(qSize), lse = DeviceArray!float(lseSize), workspace = DeviceArray!ubyte(bytes);
    params = forward(q.address, k.address, v.address, o.address, lse.address);
    check(fa3_forward(&params, workspace.address, bytes, null));

    const largest = host.o.map!(x => abs(x.number)).fold!max(0.0);
    // a few roundings to bf16, which has 8 bits, may lie between them
    enforce(zip(o.toHost, host.o).all!(x => abs(x[0].number - x[1].number) <= largest / 64), "O is not as on the CPU");
    enforce(zip(lse.toHost, host.lse).all!(x => abs(x[0] - x[1]) <= 1e-4), "LSE is not as on the CPU");
    writeln("gpu: O and LSE as on the CPU");
}

int main()
{
    Generator random;
    Problem host = {q: random.numbers(qSize), k: random.numbers(kvSize), v: random.numbers(kvSize)};
    host.o = new Bf16[qSize];
    host.lse = new float[lseSize];
    try
    {
        onCpu(host);
        onGpu(host);
        return 0;
    }
    catch (Exception problem)
    {
        writeln("failed: ", problem.msg);
        return 1;
    }
}
