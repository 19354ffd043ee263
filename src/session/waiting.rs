//! Who waits for a request that is prepared. Owns what its preparation asks between steps. Knows no requests.

/// Who waits for a request.
pub trait Waiting: Sync {
    /// Whether anybody still does.
    fn is_wanted(&self) -> bool;

    /// Comes before each picture is looked at, which may take long: others may go first.
    fn before_picture(&self) {}
}

impl<F: Fn() -> bool + Sync> Waiting for F {
    fn is_wanted(&self) -> bool {
        self()
    }
}

/// Whether a request is still wanted.
pub type Wanted<'a> = &'a dyn Waiting;

/// A request that is wanted whatever happens.
pub const ALWAYS: Wanted<'static> = &|| true;
