//! The little of the CUDA driver that is needed here, found when the program runs.
use crate::fa3::{address, Address};
use std::ffi::{c_void, CStr, CString};
use std::marker::PhantomData;
use std::mem::{size_of_val, transmute_copy};
use std::os::raw::{c_char, c_int, c_uint};
use std::ptr::null_mut;

extern "C" {
    fn dlopen(file: *const c_char, mode: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlerror() -> *const c_char;
}
const RTLD_NOW: c_int = 2;

/// The driver, with the first device's primary context current in this thread.
pub struct Cuda {
    allocate: unsafe extern "C" fn(*mut u64, usize) -> c_int,
    free: unsafe extern "C" fn(u64) -> c_int,
    to_device: unsafe extern "C" fn(u64, *const c_void, usize) -> c_int,
    to_host: unsafe extern "C" fn(*mut c_void, u64, usize) -> c_int,
}

/// A function of the library, by its name. The type must be the function's.
unsafe fn find<Function>(library: *mut c_void, name: &str) -> Result<Function, String> {
    let symbol = CString::new(name).unwrap();
    let function = dlsym(library, symbol.as_ptr());
    if function.is_null() {
        return Err(format!("the driver has no {}", name));
    }
    Ok(transmute_copy(&function))
}

fn check(call: &str, error: c_int) -> Result<(), String> {
    if error == 0 { Ok(()) } else { Err(format!("{}: CUDA error {}", call, error)) }
}

impl Cuda {
    pub fn load() -> Result<Cuda, String> {
        unsafe {
            let file = CString::new("libcuda.so.1").unwrap();
            let library = dlopen(file.as_ptr(), RTLD_NOW);
            if library.is_null() {
                return Err(CStr::from_ptr(dlerror()).to_string_lossy().into_owned());
            }
            let init: unsafe extern "C" fn(c_uint) -> c_int = find(library, "cuInit")?;
            let device_get: unsafe extern "C" fn(*mut c_int, c_int) -> c_int = find(library, "cuDeviceGet")?;
            let primary_context: unsafe extern "C" fn(*mut Address, c_int) -> c_int =
                find(library, "cuDevicePrimaryCtxRetain")?;
            let set_current: unsafe extern "C" fn(Address) -> c_int = find(library, "cuCtxSetCurrent")?;
            let (mut device, mut context) = (0, null_mut());
            check("cuInit", init(0))?;
            check("cuDeviceGet", device_get(&mut device, 0))?;
            check("cuDevicePrimaryCtxRetain", primary_context(&mut context, device))?;
            check("cuCtxSetCurrent", set_current(context))?;
            Ok(Cuda {
                allocate: find(library, "cuMemAlloc_v2")?,
                free: find(library, "cuMemFree_v2")?,
                to_device: find(library, "cuMemcpyHtoD_v2")?,
                to_host: find(library, "cuMemcpyDtoH_v2")?,
            })
        }
    }

    pub fn array<T: Copy + Default>(&self, len: usize) -> Result<DeviceArray<'_, T>, String> {
        let mut at = 0;
        check("cuMemAlloc", unsafe { (self.allocate)(&mut at, len * std::mem::size_of::<T>()) })?;
        Ok(DeviceArray { cuda: self, at, len, of: PhantomData })
    }

    pub fn copy<T: Copy + Default>(&self, from: &[T]) -> Result<DeviceArray<'_, T>, String> {
        let array = self.array(from.len())?;
        check("cuMemcpyHtoD", unsafe { (self.to_device)(array.at, address(from), size_of_val(from)) })?;
        Ok(array)
    }
}

/// Memory of the device, freed when it is dropped.
pub struct DeviceArray<'a, T> {
    cuda: &'a Cuda,
    at: u64,
    len: usize,
    of: PhantomData<T>,
}

impl<T: Copy + Default> DeviceArray<'_, T> {
    pub fn address(&self) -> Address {
        self.at as Address
    }
    /// Waits for what was enqueued on the default stream.
    pub fn to_vec(&self) -> Result<Vec<T>, String> {
        let mut host = vec![T::default(); self.len];
        let bytes = size_of_val(&host[..]);
        check("cuMemcpyDtoH", unsafe { (self.cuda.to_host)(host.as_mut_ptr() as Address, self.at, bytes) })?;
        Ok(host)
    }
}

impl<T> Drop for DeviceArray<'_, T> {
    fn drop(&mut self) {
        unsafe { (self.cuda.free)(self.at) };
    }
}
