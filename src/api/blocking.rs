//! Work that may hold up its thread, on threads that are there for it. Knows not what is worked on.

use crate::error::ApiError;

/// Does `work` where it holds up nobody.
///
/// # Errors
/// Those of the work; 500 when it panicked.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => {
            tracing::error!(%error, "work on a request ended");
            Err(ApiError::server("the request could not be worked on: see the server's log"))
        }
    }
}
