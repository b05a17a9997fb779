//! Attention from Rust: forward and backward on the CPU, checked against plain double precision, then on a Hopper GPU.
//!
//!     ../declarations.py rust ../../../include/fa3.h fa3_sys.rs layout.rs
//!     rustc --edition 2021 -O attention.rs -L FOLDER_OF_LIBFA3
//!
//! `fa3_sys` declares the library, `fa3` makes calls safe, `cuda` finds the driver when the program runs.
mod cuda;
mod fa3;
mod fa3_sys;
mod layout;

use cuda::Cuda;
use fa3::{address, Bf16, Forwarded, Shape};
use fa3_sys::*;
use std::error::Error;
use std::ptr::null_mut;

const SHAPE: Shape = Shape {
    batch: 2,
    seqlen_q: 40,
    seqlen_k: 48,
    heads: 4,
    heads_kv: 2,
    head_dim: 64,
    mask: FA3_MASK_CAUSAL_BOTTOM_RIGHT,
};

/// Lehmer's generator.
struct Generator(i64);

impl Generator {
    /// Between -2 and 2.
    fn numbers(&mut self, n: usize) -> Vec<Bf16> {
        let mut next = || {
            self.0 = self.0 * 16807 % 2147483647;
            Bf16::from((self.0 as f64 / 2147483647.0 * 4.0 - 2.0) as f32)
        };
        (0..n).map(|_| next()).collect()
    }
}

fn checksum(slices: [&[Bf16]; 3]) -> i64 {
    slices.iter().flat_map(|x| x.iter()).fold(0, |sum, x| (sum * 31 + i64::from(x.0)) % 2147483647)
}

fn number(x: Bf16) -> f64 {
    f32::from(x).into()
}

/// O and LSE in double precision. A causal mask that ends in the bottom right corner: query i sees key j if
/// j <= i + seqlen_k - seqlen_q.
fn attention(q: &[Bf16], k: &[Bf16], v: &[Bf16]) -> (Vec<f64>, Vec<f64>) {
    let Shape { batch, seqlen_q, seqlen_k, heads, heads_kv, head_dim, .. } = SHAPE;
    let (mut o, mut lse) = (vec![0.0; SHAPE.q_len()], vec![0.0; SHAPE.lse_len()]);
    for b in 0..batch {
        for h in 0..heads {
            for i in 0..seqlen_q {
                let q_at = ((b * seqlen_q + i) * heads + h) * head_dim;
                let mut sum = 0.0;
                for j in 0..i + seqlen_k - seqlen_q + 1 {
                    let kv_at = ((b * seqlen_k + j) * heads_kv + h / (heads / heads_kv)) * head_dim;
                    let score: f64 = (0..head_dim).map(|c| number(q[q_at + c]) * number(k[kv_at + c])).sum();
                    let p = (score / (head_dim as f64).sqrt()).exp();
                    for c in 0..head_dim {
                        o[q_at + c] += p * number(v[kv_at + c]);
                    }
                    sum += p;
                }
                o[q_at..q_at + head_dim].iter_mut().for_each(|value| *value /= sum);
                lse[(b * heads + h) * seqlen_q + i] = sum.ln();
            }
        }
    }
    (o, lse)
}

fn expect(right: bool, what: &str) -> Result<(), Box<dyn Error>> {
    if right { Ok(()) } else { Err(what.into()) }
}

struct Problem {
    q: Vec<Bf16>,
    k: Vec<Bf16>,
    v: Vec<Bf16>,
    dout: Vec<Bf16>,
    o: Vec<Bf16>,
    lse: Vec<f32>,
    dq: Vec<Bf16>,
    dk: Vec<Bf16>,
    dv: Vec<Bf16>,
}

fn on_cpu(host: &mut Problem) -> Result<(), Box<dyn Error>> {
    println!("inputs: checksum {}", checksum([&host.q, &host.k, &host.v]));
    fa3::reference_forward(&SHAPE, &host.q, &host.k, &host.v, &mut host.o, &mut host.lse)?;
    let (o, lse) = attention(&host.q, &host.k, &host.v);
    // half a unit in the last of bf16's 8 bits is at most 2^-8 of the number
    let o_right = host.o.iter().zip(&o).all(|(&x, y)| (number(x) - y).abs() <= y.abs() / 256.0 + 1e-6);
    expect(o_right, "O is not as in double precision")?;
    let lse_right = host.lse.iter().zip(&lse).all(|(&x, y)| (f64::from(x) - y).abs() <= 1e-6 * y.abs().max(1.0));
    expect(lse_right, "LSE is not as in double precision")?;
    println!("cpu: O and LSE as in double precision");

    let Problem { q, k, v, dout, o, lse, dq, dk, dv } = host;
    fa3::reference_backward(&SHAPE, &Forwarded { q, k, v, o, lse, dout }, dq, dk, dv)?;
    let short = fa3::reference_forward(&SHAPE, &q[1..], k, v, o, lse); // would be read beyond its end
    expect(short.is_err(), "a slice that is too short was accepted")?;

    let mut params = SHAPE.forward(address(q), address(k), address(v), address(o), address(lse));
    params.k.stride[1] += 1;
    match fa3::forward_check(&params) {
        Ok(()) => return Err("a wrong stride was accepted".into()),
        Err(refusal) => println!("refused: {}", refusal),
    }
    params.k.stride[1] -= 1;
    fa3::forward_check(&params)?;
    let bytes = fa3::forward_workspace_size(&params, 132)?;
    println!("workspace: {} bytes on 132 multiprocessors", bytes);
    Ok(())
}

/// A few roundings to bf16, which has 8 bits, may lie between them.
fn expect_close(name: &str, x: &[Bf16], expected: &[Bf16]) -> Result<(), Box<dyn Error>> {
    let largest = expected.iter().fold(0.0, |largest: f64, &y| largest.max(number(y).abs()));
    let right = x.iter().zip(expected).all(|(&x, &y)| (number(x) - number(y)).abs() <= largest / 64.0);
    expect(right, &format!("{} is not as on the CPU", name))
}

fn on_gpu(cuda: &Cuda, host: &Problem) -> Result<(), Box<dyn Error>> {
    let (q, k, v) = (cuda.copy(&host.q)?, cuda.copy(&host.k)?, cuda.copy(&host.v)?);
    let (o, lse, dout) = (cuda.array(host.o.len())?, cuda.array(host.lse.len())?, cuda.copy(&host.dout)?);
    let (dq, dk, dv) = (cuda.array(host.q.len())?, cuda.array(host.k.len())?, cuda.array(host.v.len())?);
    let params = SHAPE.forward(q.address(), k.address(), v.address(), o.address(), lse.address());
    let inputs = [q.address(), k.address(), v.address(), o.address(), lse.address(), dout.address()];
    let gradients = SHAPE.backward(inputs, [dq.address(), dk.address(), dv.address()]);
    let bytes = fa3::forward_workspace_size(&params, 0)?.max(fa3::backward_workspace_size(&gradients)?);
    let workspace = cuda.array::<u8>(bytes)?; // one call after the other: both may use it
    // Safe as long as these arrays live: the copies below wait for both calls.
    unsafe {
        fa3::check(fa3_forward(&params, workspace.address(), bytes, null_mut()))?;
        fa3::check(fa3_backward(&gradients, workspace.address(), bytes, null_mut()))?;
    }

    let lse_right = lse.to_vec()?.iter().zip(&host.lse).all(|(x, y): (&f32, _)| (x - y).abs() <= 1e-4);
    expect(lse_right, "LSE is not as on the CPU")?;
    expect_close("O", &o.to_vec()?, &host.o)?;
    println!("gpu: O and LSE as on the CPU");
    expect_close("dq", &dq.to_vec()?, &host.dq)?;
    expect_close("dk", &dk.to_vec()?, &host.dk)?;
    expect_close("dv", &dv.to_vec()?, &host.dv)?;
    println!("gpu: gradients as on the CPU");
    Ok(())
}

/// The driver, if its device is one that the library can use.
fn find_gpu() -> Result<Cuda, Box<dyn Error>> {
    let cuda = Cuda::load()?;
    let anywhere = SHAPE.forward(null_mut(), null_mut(), null_mut(), null_mut(), null_mut());
    fa3::forward_workspace_size(&anywhere, 0)?;
    Ok(cuda)
}

fn run() -> Result<(), Box<dyn Error>> {
    let mut random = Generator(1);
    let (q, k, v) = (SHAPE.q_len(), SHAPE.kv_len(), SHAPE.kv_len());
    let mut host = Problem {
        q: random.numbers(q),
        k: random.numbers(k),
        v: random.numbers(v),
        dout: random.numbers(q),
        o: vec![Bf16::default(); q],
        lse: vec![0.0; SHAPE.lse_len()],
        dq: vec![Bf16::default(); q],
        dk: vec![Bf16::default(); k],
        dv: vec![Bf16::default(); v],
    };
    on_cpu(&mut host)?;
    match find_gpu() {
        Ok(cuda) => on_gpu(&cuda, &host),
        Err(why) => {
            println!("no Hopper GPU: {}", why);
            Ok(())
        }
    }
}

fn main() {
    if std::env::args().nth(1).as_deref() == Some("--layout") {
        return layout::print();
    }
    if let Err(error) = run() {
        println!("failed: {}", error);
        std::process::exit(1);
    }
}
