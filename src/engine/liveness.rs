//! Whether an engine's thread still runs, as others see it.
//! Two flags that the thread's own end sets, by panic or otherwise. Knows nothing of what the thread does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Between two looks at whether an engine has ended.
const LOOK_AGAIN: Duration = Duration::from_micros(500);

/// The life of an engine. Holding this does not keep the engine running, unlike an [`crate::EngineHandle`].
#[derive(Clone, Debug, Default)]
pub struct EngineLife(Arc<Flags>);

#[derive(Debug, Default)]
struct Flags {
    stopped: AtomicBool,
    freed: AtomicBool,
}

impl EngineLife {
    /// The engine takes no requests any more. Set before the last generations end.
    pub fn has_stopped(&self) -> bool {
        self.0.stopped.load(Ordering::Acquire)
    }

    /// All that the engine's thread owned is freed: state, compute buffers, its hold on the model.
    pub fn is_freed(&self) -> bool {
        self.0.freed.load(Ordering::Acquire)
    }

    /// Waits for that, `patience` at most; true when it came. Whoever waits holds no handle of the engine.
    pub fn wait_until_freed(&self, patience: Duration) -> bool {
        let start = Instant::now();
        while !self.is_freed() && start.elapsed() < patience {
            std::thread::sleep(LOOK_AGAIN);
        }
        self.is_freed()
    }

    /// Says that the engine has stopped when this is dropped.
    pub(crate) fn stops(&self) -> EndFlag {
        EndFlag { life: self.clone(), flag: |flags| &flags.stopped }
    }

    /// Says that the engine is freed when this is dropped.
    pub(crate) fn frees(&self) -> EndFlag {
        EndFlag { life: self.clone(), flag: |flags| &flags.freed }
    }
}

/// Sets a flag when it is dropped: no way out of the thread is forgotten.
pub(crate) struct EndFlag {
    life: EngineLife,
    flag: fn(&Flags) -> &AtomicBool,
}

impl Drop for EndFlag {
    fn drop(&mut self) {
        (self.flag)(&self.life.0).store(true, Ordering::Release);
    }
}
