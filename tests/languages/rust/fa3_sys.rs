//! fa3.h, declared for Rust: structs, constants and functions as they are in C. `fa3.h` is the manual.
//!
//! Names are the header's. Enumerations are integers, as a newer library may return a number that this file does not
//! know. Structs have no padding; a zeroed one is the header's FA3_..._INIT but for struct_size.
#![allow(non_camel_case_types, dead_code)]

use std::os::raw::{c_char, c_int, c_void};

pub type fa3_status = c_int;
pub const FA3_OK: fa3_status = 0;
/// An argument contradicts the header or another argument.
pub const FA3_ERROR_INVALID_ARGUMENT: fa3_status = 1;
/// Well-formed, but no kernel of this version does it.
pub const FA3_ERROR_UNSUPPORTED: fa3_status = 2;
pub const FA3_ERROR_WORKSPACE_TOO_SMALL: fa3_status = 3;
/// libcuda.so.1 is missing or too old.
pub const FA3_ERROR_NO_DRIVER: fa3_status = 4;
pub const FA3_ERROR_NO_CONTEXT: fa3_status = 5;
/// The current context's device is not of compute capability 9.0.
pub const FA3_ERROR_WRONG_DEVICE: fa3_status = 6;
/// The stream is capturing, and the kernel not loaded: call fa3_preload first.
pub const FA3_ERROR_NOT_LOADED: fa3_status = 7;
pub const FA3_ERROR_CUDA: fa3_status = 8;
/// Host memory.
pub const FA3_ERROR_OUT_OF_MEMORY: fa3_status = 9;

pub type fa3_dtype = i32;
pub const FA3_DTYPE_NONE: fa3_dtype = 0;
pub const FA3_DTYPE_BF16: fa3_dtype = 1;
pub const FA3_DTYPE_FP16: fa3_dtype = 2;
pub const FA3_DTYPE_FP32: fa3_dtype = 3;
pub const FA3_DTYPE_E4M3: fa3_dtype = 4;
pub const FA3_DTYPE_E5M2: fa3_dtype = 5;
/// Of lengths and page numbers.
pub const FA3_DTYPE_INT32: fa3_dtype = 6;
/// The same of slots and positions, which may be of either.
pub const FA3_DTYPE_INT64: fa3_dtype = 7;

pub type fa3_mask = i32;
pub const FA3_MASK_NONE: fa3_mask = 0;
pub const FA3_MASK_CAUSAL_TOP_LEFT: fa3_mask = 1;
pub const FA3_MASK_CAUSAL_BOTTOM_RIGHT: fa3_mask = 2;
pub const FA3_MASK_WINDOW: fa3_mask = 3;
pub const FA3_MASK_CHUNK: fa3_mask = 4;

/// Bits of `fa3_forward_params::flags`, the first also of `fa3_backward_params::flags`.
pub const FA3_FLAG_DETERMINISTIC: u64 = 1;
pub const FA3_FLAG_TWO_LEVEL: u64 = 2;
pub const FA3_FLAG_BATCH_INVARIANT: u64 = 4;
pub const FA3_FLAG_CENTERED_K: u64 = 8;
pub const FA3_FLAG_ACCUMULATE: u64 = 16;
/// Bits of `fa3_quantize_params::flags`.
pub const FA3_QUANTIZE_INCOHERENT: u64 = 1;
pub const FA3_QUANTIZE_ROTARY_INTERLEAVED: u64 = 2;
/// Bits of `fa3_append_params::flags`.
pub const FA3_APPEND_ROTARY_INTERLEAVED: u64 = 1;

pub type fa3_kernel_kind = i32;
pub const FA3_KERNEL_FORWARD: fa3_kernel_kind = 1;
pub const FA3_KERNEL_BACKWARD: fa3_kernel_kind = 2;
pub const FA3_KERNEL_PASS: fa3_kernel_kind = 3;

pub const FA3_MAX_RANK: usize = 5;
pub const FA3_SCALE_ROWS: usize = 64;
pub const FA3_LATENT_SCALE_COLUMNS: usize = 128;
pub const FA3_FORWARD_WORKSPACE_BYTES: usize = 64;

/// A strided view of memory; strides count elements.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fa3_tensor {
    pub data: *mut c_void,
    pub dtype: fa3_dtype,
    pub rank: i32,
    pub dim: [i64; FA3_MAX_RANK],
    pub stride: [i64; FA3_MAX_RANK],
}

/// CUstream, cudaStream_t; null is the legacy default stream.
pub type fa3_stream = *mut c_void;

/// What the forward pass computes. Fields from `q_scale` on are for e4m3 only, those from `window_left` on for windows,
/// sinks, packed lengths and pages.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fa3_forward_params {
    pub struct_size: usize,
    pub flags: u64,
    pub q: fa3_tensor,
    pub k: fa3_tensor,
    pub v: fa3_tensor,
    pub o: fa3_tensor,
    pub lse: fa3_tensor,
    pub mask: fa3_mask,
    pub softmax_scale: f32,
    pub kernel: *const c_char,
    pub q_scale: fa3_tensor,
    pub k_scale: fa3_tensor,
    pub v_scale: fa3_tensor,
    pub o_scale: fa3_tensor,
    pub v_mean: fa3_tensor,
    pub lse_offset: fa3_tensor,
    pub window_left: i32,
    pub window_right: i32,
    pub max_seqlen_q: i32,
    pub max_seqlen_k: i32,
    pub sinks: fa3_tensor,
    pub cu_seqlens_q: fa3_tensor,
    pub cu_seqlens_k: fa3_tensor,
    pub seqused_q: fa3_tensor,
    pub seqused_k: fa3_tensor,
    pub leftpad_k: fa3_tensor,
    pub page_table: fa3_tensor,
    pub cache_batch_idx: fa3_tensor,
    pub schedule: *const c_void,
    pub schedule_bytes: usize,
    pub softcap: f32,
    pub reserved: i32,
    pub alibi_slopes: fa3_tensor,
    pub qv: fa3_tensor,
}

/// Gradients of the forward pass. Fields from `window_left` on are for windows, sinks and lengths.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fa3_backward_params {
    pub struct_size: usize,
    pub flags: u64,
    pub q: fa3_tensor,
    pub k: fa3_tensor,
    pub v: fa3_tensor,
    pub o: fa3_tensor,
    pub lse: fa3_tensor,
    pub dout: fa3_tensor,
    pub dq: fa3_tensor,
    pub dk: fa3_tensor,
    pub dv: fa3_tensor,
    pub mask: fa3_mask,
    pub softmax_scale: f32,
    pub kernel: *const c_char,
    pub dlse: fa3_tensor,
    pub window_left: i32,
    pub window_right: i32,
    pub sinks: fa3_tensor,
    pub dsinks: fa3_tensor,
    pub cu_seqlens_q: fa3_tensor,
    pub cu_seqlens_k: fa3_tensor,
    pub seqused_q: fa3_tensor,
    pub seqused_k: fa3_tensor,
    pub max_seqlen_q: i32,
    pub max_seqlen_k: i32,
    pub softcap: f32,
    pub reserved: i32,
    pub alibi_slopes: fa3_tensor,
    pub q_scale: fa3_tensor,
    pub k_scale: fa3_tensor,
    pub v_scale: fa3_tensor,
    pub v_mean: fa3_tensor,
    pub lse_offset: fa3_tensor,
}

/// Makes e4m3 tensors with their scales from bf16 or fp16.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fa3_quantize_params {
    pub struct_size: usize,
    pub flags: u64,
    pub seed: u64,
    pub x: fa3_tensor,
    pub y: fa3_tensor,
    pub scale: fa3_tensor,
    pub mean: fa3_tensor,
    pub rotary_cos: fa3_tensor,
    pub rotary_sin: fa3_tensor,
    pub k_mean: fa3_tensor,
    pub lse_offset: fa3_tensor,
    pub softmax_scale: f32,
    pub reserved: i32,
}

/// Writes new rows of K and V into a cache.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fa3_append_params {
    pub struct_size: usize,
    pub flags: u64,
    pub k: fa3_tensor,
    pub v: fa3_tensor,
    pub k_cache: fa3_tensor,
    pub v_cache: fa3_tensor,
    pub cache_seqlens: fa3_tensor,
    pub cu_seqlens_new: fa3_tensor,
    pub seqused_new: fa3_tensor,
    pub page_table: fa3_tensor,
    pub cache_batch_idx: fa3_tensor,
    pub slot_mapping: fa3_tensor,
    pub q: fa3_tensor,
    pub q_out: fa3_tensor,
    pub rotary_cos: fa3_tensor,
    pub rotary_sin: fa3_tensor,
    pub rotary_positions: fa3_tensor,
    pub k_scale: fa3_tensor,
    pub v_scale: fa3_tensor,
    pub q_scale: fa3_tensor,
}

/// Merges results over ranges of the keys.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fa3_combine_params {
    pub struct_size: usize,
    pub flags: u64,
    pub o_parts: fa3_tensor,
    pub lse_parts: fa3_tensor,
    pub o: fa3_tensor,
    pub lse: fa3_tensor,
}

/// A kernel, and how a call would run it. Set struct_size before asking.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fa3_kernel_info {
    pub struct_size: usize,
    pub name: [c_char; 64],
    pub kind: fa3_kernel_kind,
    pub dtype: fa3_dtype,
    pub head_dim: i32,
    pub head_dim_v: i32,
    pub causal: i32,
    pub block_q: i32,
    pub block_kv: i32,
    pub stages: i32,
    pub threads: i32,
    pub producer_registers: i32,
    pub consumer_registers: i32,
    pub shared_memory_bytes: i32,
    pub chosen: i32,
    pub launches: i32,
    pub grid: i32,
    pub multiprocessors: i32,
    pub tiles: i64,
    pub pieces: i64,
}

/// A struct without its struct_size: all zero, which means "default" or "none" everywhere.
macro_rules! initial {
    ($($params:ty),*) => {$(
        impl Default for $params {
            fn default() -> Self {
                let zeroed: Self = unsafe { std::mem::zeroed() }; // of numbers and pointers only
                Self { struct_size: std::mem::size_of::<Self>(), ..zeroed }
            }
        }
    )*};
}
initial!(fa3_forward_params, fa3_backward_params, fa3_quantize_params, fa3_append_params, fa3_combine_params,
         fa3_kernel_info);

impl Default for fa3_tensor {
    /// An absent tensor.
    fn default() -> Self {
        unsafe { std::mem::zeroed() }
    }
}

#[link(name = "fa3")]
extern "C" {
    pub fn fa3_tensor_pack(tensor: *mut fa3_tensor) -> fa3_status;

    pub fn fa3_forward_check(params: *const fa3_forward_params) -> fa3_status;
    pub fn fa3_forward_workspace_size(
        params: *const fa3_forward_params,
        multiprocessors: i32,
        bytes: *mut usize,
    ) -> fa3_status;
    pub fn fa3_forward(
        params: *const fa3_forward_params,
        workspace: *mut c_void,
        workspace_bytes: usize,
        stream: fa3_stream,
    ) -> fa3_status;
    pub fn fa3_forward_schedule_size(
        params: *const fa3_forward_params,
        multiprocessors: i32,
        bytes: *mut usize,
    ) -> fa3_status;
    pub fn fa3_forward_schedule(
        params: *const fa3_forward_params,
        schedule: *mut c_void,
        schedule_bytes: usize,
        stream: fa3_stream,
    ) -> fa3_status;
    pub fn fa3_reference_forward(params: *const fa3_forward_params, threads: c_int) -> fa3_status;

    pub fn fa3_backward_check(params: *const fa3_backward_params) -> fa3_status;
    pub fn fa3_backward_workspace_size(params: *const fa3_backward_params, bytes: *mut usize) -> fa3_status;
    pub fn fa3_backward(
        params: *const fa3_backward_params,
        workspace: *mut c_void,
        workspace_bytes: usize,
        stream: fa3_stream,
    ) -> fa3_status;
    pub fn fa3_reference_backward(params: *const fa3_backward_params, threads: c_int) -> fa3_status;

    pub fn fa3_quantize_check(params: *const fa3_quantize_params) -> fa3_status;
    pub fn fa3_quantize_workspace_size(params: *const fa3_quantize_params, bytes: *mut usize) -> fa3_status;
    pub fn fa3_quantize(
        params: *const fa3_quantize_params,
        workspace: *mut c_void,
        workspace_bytes: usize,
        stream: fa3_stream,
    ) -> fa3_status;
    pub fn fa3_reference_quantize(params: *const fa3_quantize_params) -> fa3_status;

    pub fn fa3_append_check(params: *const fa3_append_params) -> fa3_status;
    pub fn fa3_append(params: *const fa3_append_params, stream: fa3_stream) -> fa3_status;
    pub fn fa3_reference_append(params: *const fa3_append_params) -> fa3_status;
    pub fn fa3_combine_check(params: *const fa3_combine_params) -> fa3_status;
    pub fn fa3_combine(params: *const fa3_combine_params, stream: fa3_stream) -> fa3_status;
    pub fn fa3_reference_combine(params: *const fa3_combine_params) -> fa3_status;

    pub fn fa3_forward_kernel_info(
        params: *const fa3_forward_params,
        multiprocessors: i32,
        launch: i32,
        info: *mut fa3_kernel_info,
    ) -> fa3_status;
    pub fn fa3_backward_kernel_info(
        params: *const fa3_backward_params,
        multiprocessors: i32,
        launch: i32,
        info: *mut fa3_kernel_info,
    ) -> fa3_status;
    pub fn fa3_kernel_count() -> c_int;
    pub fn fa3_kernel_info_at(index: c_int, info: *mut fa3_kernel_info) -> fa3_status;
    pub fn fa3_preload() -> fa3_status;

    pub fn fa3_version() -> c_int;
    pub fn fa3_abi_version() -> c_int;
    pub fn fa3_status_string(status: fa3_status) -> *const c_char;
    /// Valid until the calling thread's next call.
    pub fn fa3_last_error_message() -> *const c_char;
}
