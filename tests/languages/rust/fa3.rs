//! Attention on slices: what `fa3_sys` offers, with lengths checked and refusals as `Result`.
use crate::fa3_sys::*;
use std::ffi::{c_void, CStr};
use std::fmt;

/// A refusal of the library.
#[derive(Clone, Debug)]
pub struct Error {
    pub status: fa3_status,
    pub message: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let status = unsafe { CStr::from_ptr(fa3_status_string(self.status)) };
        write!(f, "{}: {}", status.to_string_lossy(), self.message)
    }
}
impl std::error::Error for Error {}

pub fn check(status: fa3_status) -> Result<(), Error> {
    if status == FA3_OK {
        return Ok(());
    }
    let message = unsafe { CStr::from_ptr(fa3_last_error_message()) };
    Err(Error { status, message: message.to_string_lossy().into_owned() })
}

/// A number of 16 bits; fa3_sys knows it as FA3_DTYPE_BF16.
#[derive(Clone, Copy, Default, PartialEq)]
#[repr(transparent)]
pub struct Bf16(pub u16);

impl From<f32> for Bf16 {
    /// The nearest; of two, the even one.
    fn from(x: f32) -> Self {
        let bits = x.to_bits();
        Bf16(((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16)
    }
}
impl From<Bf16> for f32 {
    fn from(x: Bf16) -> Self {
        f32::from_bits(u32::from(x.0) << 16)
    }
}

/// Packed tensors: q, o and dq are (batch, seqlen_q, heads, head_dim), k and v (batch, seqlen_k, heads_kv, head_dim),
/// lse is (batch, heads, seqlen_q).
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub batch: usize,
    pub seqlen_q: usize,
    pub seqlen_k: usize,
    pub heads: usize,
    pub heads_kv: usize,
    pub head_dim: usize,
    pub mask: fa3_mask,
}

impl Shape {
    pub fn q_len(&self) -> usize {
        self.batch * self.seqlen_q * self.heads * self.head_dim
    }
    pub fn kv_len(&self) -> usize {
        self.batch * self.seqlen_k * self.heads_kv * self.head_dim
    }
    pub fn lse_len(&self) -> usize {
        self.batch * self.heads * self.seqlen_q
    }

    /// Parameters of the forward pass for any addresses, of the host or the device.
    pub fn forward(&self, q: Address, k: Address, v: Address, o: Address, lse: Address) -> fa3_forward_params {
        fa3_forward_params {
            q: self.queries(q),
            k: self.keys(k),
            v: self.keys(v),
            o: self.queries(o),
            lse: self.sums(lse),
            mask: self.mask,
            ..Default::default()
        }
    }

    /// The same of the backward pass.
    pub fn backward(&self, inputs: [Address; 6], gradients: [Address; 3]) -> fa3_backward_params {
        let ([q, k, v, o, lse, dout], [dq, dk, dv]) = (inputs, gradients);
        fa3_backward_params {
            q: self.queries(q),
            k: self.keys(k),
            v: self.keys(v),
            o: self.queries(o),
            lse: self.sums(lse),
            dout: self.queries(dout),
            dq: self.queries(dq),
            dk: self.keys(dk),
            dv: self.keys(dv),
            mask: self.mask,
            ..Default::default()
        }
    }

    fn queries(&self, data: Address) -> fa3_tensor {
        packed(data, FA3_DTYPE_BF16, &[self.batch, self.seqlen_q, self.heads, self.head_dim])
    }
    fn keys(&self, data: Address) -> fa3_tensor {
        packed(data, FA3_DTYPE_BF16, &[self.batch, self.seqlen_k, self.heads_kv, self.head_dim])
    }
    fn sums(&self, data: Address) -> fa3_tensor {
        packed(data, FA3_DTYPE_FP32, &[self.batch, self.heads, self.seqlen_q])
    }
}

pub type Address = *mut c_void;

pub fn address<T>(slice: &[T]) -> Address {
    slice.as_ptr() as Address // the library writes only to outputs, which are &mut where they are safe
}

fn packed(data: Address, dtype: fa3_dtype, dims: &[usize]) -> fa3_tensor {
    let mut tensor = fa3_tensor { data, dtype, rank: dims.len() as i32, ..Default::default() };
    for (i, &n) in dims.iter().enumerate().rev() {
        tensor.dim[i] = n as i64;
        tensor.stride[i] = if i + 1 < dims.len() { tensor.stride[i + 1] * tensor.dim[i + 1] } else { 1 };
    }
    tensor
}

fn expect_len<T>(name: &str, slice: &[T], len: usize) -> Result<(), Error> {
    if slice.len() == len {
        return Ok(());
    }
    let message = format!("{} has {} elements, must have {}", name, slice.len(), len);
    Err(Error { status: FA3_ERROR_INVALID_ARGUMENT, message })
}

/// O and LSE on the CPU, with all cores.
pub fn reference_forward(
    shape: &Shape,
    q: &[Bf16],
    k: &[Bf16],
    v: &[Bf16],
    o: &mut [Bf16],
    lse: &mut [f32],
) -> Result<(), Error> {
    expect_len("q", q, shape.q_len())?;
    expect_len("k", k, shape.kv_len())?;
    expect_len("v", v, shape.kv_len())?;
    expect_len("o", o, shape.q_len())?;
    expect_len("lse", lse, shape.lse_len())?;
    let (o, lse) = (o.as_mut_ptr() as Address, lse.as_mut_ptr() as Address);
    let params = shape.forward(address(q), address(k), address(v), o, lse);
    check(unsafe { fa3_reference_forward(&params, 0) })
}

/// What the forward pass has read and written, and the gradient of O.
pub struct Forwarded<'a> {
    pub q: &'a [Bf16],
    pub k: &'a [Bf16],
    pub v: &'a [Bf16],
    pub o: &'a [Bf16],
    pub lse: &'a [f32],
    pub dout: &'a [Bf16],
}

/// Gradients on the CPU, with all cores.
pub fn reference_backward(
    shape: &Shape,
    forwarded: &Forwarded,
    dq: &mut [Bf16],
    dk: &mut [Bf16],
    dv: &mut [Bf16],
) -> Result<(), Error> {
    let Forwarded { q, k, v, o, lse, dout } = *forwarded;
    for (name, slice) in [("q", q), ("o", o), ("dout", dout), ("dq", &*dq)] {
        expect_len(name, slice, shape.q_len())?;
    }
    for (name, slice) in [("k", k), ("v", v), ("dk", &*dk), ("dv", &*dv)] {
        expect_len(name, slice, shape.kv_len())?;
    }
    expect_len("lse", lse, shape.lse_len())?;
    let inputs = [address(q), address(k), address(v), address(o), address(lse), address(dout)];
    let gradients = [dq.as_mut_ptr() as Address, dk.as_mut_ptr() as Address, dv.as_mut_ptr() as Address];
    check(unsafe { fa3_reference_backward(&shape.backward(inputs, gradients), 0) })
}

/// Would the forward pass run? Pointers are looked at, but never followed.
pub fn forward_check(params: &fa3_forward_params) -> Result<(), Error> {
    check(unsafe { fa3_forward_check(params) })
}

/// Bytes of workspace for a device of so many multiprocessors; 0: of the current context's device.
pub fn forward_workspace_size(params: &fa3_forward_params, multiprocessors: i32) -> Result<usize, Error> {
    let mut bytes = 0;
    check(unsafe { fa3_forward_workspace_size(params, multiprocessors, &mut bytes) })?;
    Ok(bytes)
}

pub fn backward_workspace_size(params: &fa3_backward_params) -> Result<usize, Error> {
    let mut bytes = 0;
    check(unsafe { fa3_backward_workspace_size(params, &mut bytes) })?;
    Ok(bytes)
}
