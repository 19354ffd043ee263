//! State in granules, on the host (pretended) and on every GPU that has some: what shows the memory of others holds what they hold,
//! takes no memory, and gets its own before it is written.
//!
//! `NEXTN_BACKEND_DIR=FOLDER cargo test -p nextn-ggml --test granules` uses the backends of a folder too.

use std::path::Path;

use ggml::{Device, Dtype, Held, Shown, StateBuffer, StateId, StateSpec};

/// Granules of each of three parts.
const N: usize = 4;

struct Parts {
    state: StateBuffer,
    id: StateId,
    granule: usize,
}

impl Parts {
    fn held(&self, part: usize, held: usize, wanted: usize) -> Held {
        let bytes = |n: usize| n * self.granule;
        Held { id: self.id, offset: bytes(part * N), held: bytes(held), wanted: bytes(wanted) }
    }

    fn write(&mut self, granule: usize, byte: u8) -> bool {
        self.state.write(self.id, granule * self.granule, &vec![byte; self.granule]).is_ok()
    }

    /// The first and the last byte of each granule of a part.
    fn found(&self, part: usize) -> Vec<[u8; 2]> {
        let mut bytes = vec![0; N * self.granule];
        self.state.read(self.id, part * N * self.granule, &mut bytes).expect("within the tensor");
        bytes.chunks(self.granule).map(|bytes| [bytes[0], bytes[bytes.len() - 1]]).collect()
    }

    fn n_taken(&self) -> usize {
        self.state.granule_bytes() / self.granule
    }
}

fn check(device: Device, granule: usize) {
    let (name, n_bytes) = (device.name(), 3 * N * granule);
    let spec = StateSpec { name: "state".into(), dtype: Dtype::F32, ne: [n_bytes as i64 / 4, 1, 1, 1], device };
    let (state, ids) = StateBuffer::with_parts(&[spec], &[N * granule]).expect("addresses");
    let mut parts = Parts { state, id: ids[0], granule };
    assert_eq!(parts.state.page_bytes(parts.id), Some(granule), "{name}");
    parts.state.take(&[parts.held(0, 0, N)]).expect("memory");
    for i in 0..N {
        assert!(parts.write(i, 1 + i as u8), "{name}");
    }
    // Three of them, and a fourth of its own.
    let shown = |parts: &Parts, from, to, n| Shown {
        id: parts.id,
        from: from * granule,
        to: to * granule,
        n_bytes: n * granule,
    };
    let [first, second] = [shown(&parts, 0, N, 3), shown(&parts, N, 2 * N, 2)];
    assert!(parts.state.take_shown(&[parts.held(1, 0, N)], &[first]).expect("memory"), "{name}");
    assert_eq!((parts.found(1), parts.n_taken()), (vec![[1; 2], [2; 2], [3; 2], [0; 2]], N + 1), "{name}");
    // What is shown is shown again.
    assert!(parts.state.take_shown(&[parts.held(2, 0, 2)], &[second]).expect("memory"), "{name}");
    assert_eq!((parts.found(2), parts.n_taken()), (vec![[1; 2], [2; 2], [0; 2], [0; 2]], N + 1), "{name}");
    assert!(!parts.state.take_shown(&[], &[second]).expect("nothing is taken"), "{name}: it is there already");
    // Nobody writes to what others show.
    assert!(!parts.write(1, 9) && !parts.write(N, 9) && parts.write(3, 9) && parts.write(2 * N - 1, 8), "{name}");
    parts.state.own(&[(parts.id, (N + 1) * granule + 5, 1)]).expect("memory");
    assert_eq!((parts.found(1), parts.n_taken()), (vec![[1; 2], [2; 2], [3; 2], [8; 2]], N + 2), "{name}");
    assert!(parts.write(N + 1, 7), "{name}");
    assert_eq!(parts.found(0), [[1; 2], [2; 2], [3; 2], [9; 2]], "{name}");
    assert_eq!(parts.found(1), [[1; 2], [7; 2], [3; 2], [8; 2]], "{name}");
    // The first goes, and what others show stays.
    parts.state.give_back(&[parts.held(0, N, 0)]).expect("given back");
    assert_eq!((parts.found(0), parts.n_taken()), (vec![[0; 2]; N], N + 1), "{name}");
    assert_eq!(parts.found(1), [[1; 2], [7; 2], [3; 2], [8; 2]], "{name}");
    assert_eq!(parts.found(2), [[1; 2], [2; 2], [0; 2], [0; 2]], "{name}");
    // Alone it is written without a copy.
    parts.state.own(&[(parts.id, 2 * N * granule, 2 * granule)]).expect("memory");
    assert!(parts.write(2 * N, 6) && parts.write(2 * N + 1, 5), "{name}");
    assert_eq!((parts.found(1)[0], parts.n_taken()), ([1; 2], N + 2), "{name}");
    parts.state.give_back(&[parts.held(1, N, 0), parts.held(2, 2, 0)]).expect("given back");
    assert_eq!(parts.n_taken(), 0, "{name}");
}

#[test]
fn what_shows_the_memory_of_others_holds_what_they_hold_until_it_is_written() {
    if let Some(folder) = std::env::var_os("NEXTN_BACKEND_DIR") {
        ggml::load_plugins(Path::new(&folder)).expect("backends");
    }
    ggml::pretend_granules(4096, 64);
    for device in Device::all() {
        match device.shown_granule() {
            Some(granule) => check(device, granule),
            None => println!("{} has no granules that can be shared", device.name()),
        }
    }
    assert_eq!(ggml::pretended_granules_left(), 64);
}
