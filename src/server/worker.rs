//! `nextn-server --rpc-worker`: lends this machine's devices to programs on other machines. Serves no HTTP, loads no model.

use std::net::{SocketAddr, ToSocketAddrs};

use ggml::Device;

use super::args::ModelFlags;
use program::exit::{Exit, Failure, OrExit, Outcome};

/// Lends the devices that `flags` choose, at `address`. Comes back only with an error.
pub(super) fn run(address: &str, flags: &ModelFlags) -> Outcome<()> {
    let usage = |what: String| Failure::message(Exit::Usage, format!("--rpc-worker {address}: {what}"));
    let found = address.to_socket_addrs().map_err(|error| usage(format!("{error}; HOST:PORT is wanted")))?;
    let v4 = found.into_iter().find_map(|found| match found {
        SocketAddr::V4(v4) => Some(v4),
        SocketAddr::V6(_) => None,
    });
    let v4 = v4.ok_or_else(|| usage("no IPv4 address, and workers have no other".into()))?;
    flags.run.compute.device.load_backends().or_exit(Exit::Usage)?;
    let mut devices = flags.run.compute.device.chosen().or_exit(Exit::Usage)?;
    if devices.is_empty() {
        devices.push(Device::cpu().or_exit(Exit::Runtime)?);
    }
    let n_threads = flags.run.compute.threads.map_or_else(ggml::n_cores, usize::from);
    let names: Vec<String> = devices.iter().map(|device| device.name()).collect();
    let error = ggml::serve_as_worker(v4, &devices, n_threads, |address| {
        if address.ip().is_loopback() {
            tracing::warn!("whoever can connect can use this worker: the protocol knows no keys");
        } else {
            tracing::warn!(
                "whoever reaches {address} can use this worker, and read and write its memory: the protocol knows neither \
                 keys nor encryption. Keep it inside a network that you trust"
            );
        }
        tracing::info!(devices = names.join(", "), "worker listening on {address}");
    });
    Err(Failure::new(Exit::Runtime, error))
}
