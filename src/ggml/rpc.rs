//! Devices of other processes, over TCP: workers that lend theirs, and a program that computes on them.
//! Owns the first look at a worker, its connection, and the question whether it is gone. Knows nothing of what is computed.
//!
//! ggml's protocol is neither authenticated nor encrypted, and a worker computes what it is sent: it belongs into a network
//! where everybody is trusted.

use std::ffi::{CString, c_char, c_void};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, SocketAddrV4, TcpListener, TcpStream, ToSocketAddrs};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ggml_sys as sys;

use crate::device::Device;
use crate::error::Error;
use crate::raw::Backend;

/// A worker that was reached. Never removed: ggml's devices stay, and so does the connection.
struct Worker {
    address: SocketAddrV4,
    devices: Vec<Device>,
    /// Keeps ggml's connection open, so that it is never opened anew behind our back.
    connection: Backend,
}

static WORKERS: Mutex<Vec<Worker>> = Mutex::new(Vec::new());

fn workers() -> MutexGuard<'static, Vec<Worker>> {
    WORKERS.lock().unwrap_or_else(PoisonError::into_inner)
}

type AddServer = unsafe extern "C" fn(*const c_char) -> sys::ggml_backend_reg_t;
type StartServer = unsafe extern "C" fn(*const c_char, *const c_char, usize, usize, *mut sys::ggml_backend_dev_t);

/// Adds the devices of the worker at `HOST:PORT` to those of this process and gives them; a second time changes nothing.
///
/// # Errors
/// [`Error::Worker`]: no such host, nobody listens there, no worker, one of another version, one that is busy.
pub fn add_worker(host_and_port: &str) -> Result<Vec<Device>, Error> {
    crate::log::install();
    let address = resolve(host_and_port)?;
    let mut workers = workers();
    if let Some(known) = workers.iter().find(|worker| worker.address == address) {
        return Ok(known.devices.clone());
    }
    greet(address).map_err(|what| refused(address, what))?;

    let add = function("ggml_backend_rpc_add_server").map_err(|what| refused(address, what))?;
    let endpoint = CString::new(address.to_string()).expect("no NUL");
    // SAFETY: of this type in ggml-rpc.h, which was compiled into this program.
    let add: AddServer = unsafe { std::mem::transmute(add) };
    // SAFETY: the text is NUL-terminated and copied.
    let registry = unsafe { add(endpoint.as_ptr()) };
    if registry.is_null() {
        return Err(refused(address, "the worker has no devices".into()));
    }
    // SAFETY: a registry of ggml's, alive for ever.
    let n = unsafe { sys::ggml_backend_reg_dev_count(registry) };
    // SAFETY: `i` is below the count.
    let raw = |i| unsafe { sys::ggml_backend_reg_dev_get(registry, i) };
    // SAFETY: registered below, before anybody else sees them.
    let devices: Vec<Device> = (0..n).map(|i| unsafe { Device::from_raw(raw(i)) }).collect();
    // SAFETY: the device is alive for ever; null asks for the defaults.
    let connection = unsafe { sys::ggml_backend_dev_init(raw(0), std::ptr::null()) };
    // SAFETY: just made, no other owner.
    let connection = unsafe { Backend::own(connection) };
    let connection = connection.ok_or_else(|| refused(address, "the worker's device cannot be opened".into()))?;
    // SAFETY: as above.
    unsafe { sys::ggml_backend_register(registry) };
    tracing::info!(%address, n_devices = n, "worker added");
    workers.push(Worker { address, devices: devices.clone(), connection });
    Ok(devices)
}

/// Lends `devices` to programs that connect to `address`, one program at a time. Comes back only with an error. `listening`
/// is called with the address before the first one can connect; port 0 takes a free one. `n_threads` are for a CPU.
pub fn serve_as_worker(
    address: SocketAddrV4,
    devices: &[Device],
    n_threads: usize,
    listening: impl FnOnce(SocketAddrV4),
) -> Error {
    crate::log::install();
    // ggml only says that it failed; this says why.
    let address = match TcpListener::bind(address).and_then(|listener| listener.local_addr()) {
        Ok(SocketAddr::V4(bound)) => bound,
        Ok(other) => return Error::Worker { address: other.to_string(), what: "is no IPv4 address".into() },
        Err(e) => return refused(address, format!("cannot listen there: {e}")),
    };
    let start = match function("ggml_backend_rpc_start_server") {
        Ok(start) => start,
        Err(what) => return refused(address, what),
    };
    // SAFETY: of this type in ggml-rpc.h, which was compiled into this program.
    let start: StartServer = unsafe { std::mem::transmute(start) };
    let mut raw: Vec<_> = devices.iter().map(|d| d.raw()).collect();
    let endpoint = CString::new(address.to_string()).expect("no NUL");
    listening(address);
    // SAFETY: the text is NUL-terminated, as many devices as are said; null is no folder for a cache.
    unsafe { start(endpoint.as_ptr(), std::ptr::null(), n_threads, raw.len(), raw.as_mut_ptr()) };
    refused(address, "the worker ended: its log says why (-v)".into())
}

/// The error for a device whose worker is gone.
pub(crate) fn lost(device: Device) -> Option<Error> {
    if !device.is_remote() {
        return None;
    }
    let workers = workers();
    let worker = workers.iter().find(|worker| worker.devices.contains(&device))?;
    // SAFETY: the backend is alive.
    let lost = unsafe { sys::nextn_rpc_lost(worker.connection.as_ptr()) };
    lost.then(|| refused(worker.address, "the worker is gone: start it again, then this program".into()))
}

/// The error for a device that gave no memory.
pub(crate) fn no_room(device: Device, bytes: usize, what: &'static str) -> Error {
    let alloc = || Error::Alloc { device: device.name(), bytes, free: device.memory().0, what };
    lost(device).unwrap_or_else(alloc)
}

/// A function of ggml's RPC backend; the error says what the ggml of this program lacks.
fn function(name: &str) -> Result<NonNull<c_void>, String> {
    let lacks = |what: &str| format!("the ggml of this program has no {what}: it was built without its RPC backend");
    // SAFETY: NUL-terminated; the registry is filled on first use, thread-safe.
    let registry = unsafe { sys::ggml_backend_reg_by_name(c"RPC".as_ptr()) };
    if registry.is_null() {
        return Err(lacks("backend for workers"));
    }
    let c_name = CString::new(name).map_err(|_| lacks("function with a NUL in its name"))?;
    // SAFETY: the registry is alive for ever; the name is NUL-terminated.
    let found = unsafe { sys::ggml_backend_reg_get_proc_address(registry, c_name.as_ptr()) };
    NonNull::new(found).ok_or_else(|| lacks(name))
}

/// ggml speaks IPv4 only, and takes the address apart at the first colon.
fn resolve(host_and_port: &str) -> Result<SocketAddrV4, Error> {
    let refused = |what: String| Error::Worker { address: host_and_port.to_owned(), what };
    if !host_and_port.contains(':') {
        return Err(refused("a worker is HOST:PORT, such as 192.168.1.7:50052".into()));
    }
    let found = host_and_port.to_socket_addrs().map_err(|e| refused(e.to_string()))?;
    let v4 = found.into_iter().find_map(|address| match address {
        SocketAddr::V4(address) => Some(address),
        SocketAddr::V6(_) => None,
    });
    v4.ok_or_else(|| refused("has no IPv4 address, and workers have no other".into()))
}

/// Says hello once by itself: ggml's client ends the process over what it does not like.
fn greet(address: SocketAddrV4) -> Result<(), String> {
    let mut stream = connect(address).map_err(|e| match e.kind() {
        ErrorKind::ConnectionRefused => format!("no worker listens there ({e}): `nextn-server --rpc-worker` is one"),
        _ => format!("cannot be reached: {e}"),
    })?;
    let mut hello = vec![HELLO];
    hello.extend((N_CAPABILITIES as u64).to_le_bytes());
    hello.extend([0; N_CAPABILITIES]);
    let answer = (|| {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.write_all(&hello)?;
        let mut n_bytes = [0; 8];
        stream.read_exact(&mut n_bytes)?;
        let mut version = [0; 2];
        stream.read_exact(&mut version)?;
        Ok((u64::from_le_bytes(n_bytes), version))
    })();
    let (n_bytes, version) = answer.map_err(|e: std::io::Error| match e.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            format!("does not answer within {} s: it works for another program, or is no worker", PATIENCE.as_secs())
        }
        _ => format!("hangs up ({e}): a worker of another version, or none"),
    })?;
    // SAFETY: no preconditions.
    let ours = unsafe { sys::nextn_rpc_version() };
    let [major, minor] = version.map(u32::from);
    if n_bytes != (4 + N_CAPABILITIES) as u64 || major != ours >> 8 || minor > ours & 0xff {
        let ours = format!("{}.{}", ours >> 8, ours & 0xff);
        return Err(format!(
            "its protocol is {major}.{minor}, this program's {ours}: use the same version on both sides"
        ));
    }
    Ok(())
}

/// Connects; a worker that is only just starting gets a moment.
fn connect(address: SocketAddrV4) -> std::io::Result<TcpStream> {
    let start = Instant::now();
    loop {
        match TcpStream::connect_timeout(&address.into(), PATIENCE) {
            Err(e) if e.kind() == ErrorKind::ConnectionRefused && start.elapsed() < STARTING => {
                std::thread::sleep(STARTING / 20);
            }
            result => return result,
        }
    }
}

fn refused(address: SocketAddrV4, what: String) -> Error {
    Error::Worker { address: address.to_string(), what }
}

const PATIENCE: Duration = Duration::from_secs(5);
const STARTING: Duration = Duration::from_secs(1);

/// ggml's number of the command that opens a connection.
const HELLO: u8 = 14;
const N_CAPABILITIES: usize = 24;

#[cfg(test)]
mod tests {
    use super::*;

    /// Listens once, reads the greeting, and answers with `answer`.
    fn stranger(answer: Vec<u8>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut greeting = [0; 1 + 8 + N_CAPABILITIES];
            stream.read_exact(&mut greeting).unwrap();
            stream.write_all(&answer).unwrap();
        });
        address
    }

    #[test]
    fn a_worker_of_another_version_is_refused_with_both() {
        let mut answer = 28u64.to_le_bytes().to_vec();
        answer.extend([7, 3, 0, 0]);
        answer.extend([0; N_CAPABILITIES]);
        let error = add_worker(&stranger(answer)).unwrap_err().to_string();
        assert!(error.contains("7.3") && error.contains("8.0") && error.contains("same version"), "{error}");
    }

    #[test]
    fn who_hangs_up_is_no_worker() {
        let error = add_worker(&stranger(Vec::new())).unwrap_err().to_string();
        assert!(error.contains("hangs up"), "{error}");
    }

    #[test]
    fn a_function_that_ggml_lacks_is_an_error() {
        assert!(function("ggml_backend_rpc_add_server").is_ok());
        for lacking in ["ggml_backend_rpc_no_such_function", "nul\0"] {
            let error = function(lacking).unwrap_err();
            assert!(error.contains("built without"), "{error}");
        }
    }

    #[test]
    fn what_is_no_address_is_said() {
        for bad in ["localhost", "127.0.0.1:99999", "[::1]:50052"] {
            let error = add_worker(bad).unwrap_err().to_string();
            assert!(error.starts_with(bad), "{error}");
        }
    }

    #[test]
    fn an_address_that_is_taken_is_said() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let SocketAddr::V4(address) = listener.local_addr().unwrap() else { unreachable!("bound to IPv4") };
        let error = serve_as_worker(address, &[Device::cpu().unwrap()], 1, |_| panic!("nobody can listen there"));
        assert!(error.to_string().contains("cannot listen"), "{error}");
    }
}
