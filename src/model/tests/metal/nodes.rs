//! Collects the nodes of the graphs that a thread builds, from the trace of the crate `ggml`; and a device that is no CPU,
//! so that graphs take the form that they have on a GPU.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::{Once, OnceLock, mpsc};

use ggml::Device;
use metal_rules::Node;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};

thread_local! {
    /// What this thread's graphs have, while somebody wants to know.
    static NODES: RefCell<Option<BTreeSet<(String, Node)>>> = const { RefCell::new(None) };
}

/// The nodes of all graphs that `build` has made on this thread, each once, with the kind of its op.
pub fn nodes_of(build: impl FnOnce()) -> BTreeSet<(String, Node)> {
    // One for all threads: those of single threads miss events whose place another thread came by first.
    static COLLECTOR: Once = Once::new();
    COLLECTOR.call_once(|| tracing::subscriber::set_global_default(Collector).expect("no test sets another"));
    NODES.set(Some(BTreeSet::new()));
    build();
    NODES.take().expect("nobody else takes it")
}

struct Collector;

impl Subscriber for Collector {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if metadata.target() == "ggml::nodes" { Interest::sometimes() } else { Interest::never() }
    }

    fn enabled(&self, _: &Metadata<'_>) -> bool {
        NODES.with_borrow(Option::is_some)
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        NODES.with_borrow_mut(|nodes| nodes.as_mut().map(|nodes| nodes.insert((fields.kind, fields.node))));
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Fields {
    kind: String,
    node: Node,
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        let place = match field.name() {
            "op" => &mut self.node.op,
            "kind" => &mut self.kind,
            "params" => &mut self.node.params,
            "result" => &mut self.node.result,
            "operands" => &mut self.node.operands,
            _ => return,
        };
        value.clone_into(place);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

/// A device of a worker that runs in this process and ends with it.
pub fn worker() -> Device {
    static WORKER: OnceLock<Device> = OnceLock::new();
    *WORKER.get_or_init(new_worker)
}

/// A device of another such worker.
pub fn new_worker() -> Device {
    let (told, address) = mpsc::channel();
    std::thread::spawn(move || {
        let free = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
        let cpu = Device::cpu().expect("the CPU is there");
        let ended = ggml::serve_as_worker(free, &[cpu], 1, |at| told.send(at).expect("somebody waits"));
        panic!("{ended}");
    });
    let address = address.recv().expect("a free port");
    ggml::add_worker(&address.to_string()).expect("it listens")[0]
}
