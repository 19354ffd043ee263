//! How far a load is, for whoever wants to know: bytes that were locked in memory or copied to a device.
//! What is only mapped is read by the first pass that needs it, so nothing is told of it here.

use std::fmt;
use std::sync::Arc;

/// Takes bytes that are done, and all of them.
type Tell = dyn Fn(u64, u64) + Send + Sync;

/// Where a load tells how far it is; nobody listens by default, and nothing is counted then.
#[derive(Clone, Default)]
pub struct LoadProgress(Option<Arc<Tell>>);

impl LoadProgress {
    /// `tell` gets the bytes that are done and all of them, on the thread that loads: first with 0 done, at the end with all.
    /// Locking and copying are counted one after the other, each from 0; a load that does neither tells nothing.
    pub fn new(tell: impl Fn(u64, u64) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(tell)))
    }

    /// Begins to count.
    pub(crate) fn of(&self, total: usize) -> Counted<'_> {
        let counted = Counted { tell: self.0.as_deref().filter(|_| total > 0), done: 0, total: total as u64 };
        counted.report();
        counted
    }
}

impl fmt::Debug for LoadProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LoadProgress").field(&self.0.is_some()).finish()
    }
}

/// Bytes of one work.
pub(crate) struct Counted<'p> {
    tell: Option<&'p Tell>,
    done: u64,
    total: u64,
}

impl Counted<'_> {
    /// So many more are done.
    pub(crate) fn add(&mut self, n: usize) {
        self.done += n as u64;
        self.report();
    }

    fn report(&self) {
        if let Some(tell) = self.tell {
            tell(self.done, self.total);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::{Device, Dtype, Mapping, WeightsBuilder};

    /// What is told of a load of three tensors of 32 bytes each, of which the CPU has to copy those that do not lie aligned.
    fn told_of(starts: [usize; 3]) -> Vec<(u64, u64)> {
        #[repr(align(32))]
        struct Aligned([u8; 256]);
        static DATA: Aligned = Aligned([0; 256]);
        let told = Arc::new(Mutex::new(Vec::new()));
        let tell = Arc::clone(&told);
        let progress = LoadProgress::new(move |done, total| tell.lock().unwrap().push((done, total)));
        let mut builder = WeightsBuilder::new(vec![Arc::new(Mapping::Static(&DATA.0))]).with_progress(progress);
        for (i, start) in starts.into_iter().enumerate() {
            builder.add(&format!("t{i}"), Dtype::F32, [8, 1, 1, 1], 0, start..start + 32).unwrap();
        }
        builder.build(Device::cpu().unwrap()).unwrap();
        Arc::into_inner(told).expect("the builder is gone").into_inner().unwrap()
    }

    #[test]
    fn copies_are_counted_and_maps_are_not() {
        assert_eq!(told_of([0, 36, 100]), [(0, 64), (32, 64), (64, 64)]);
        assert_eq!(told_of([0, 32, 64]), []);
    }
}
