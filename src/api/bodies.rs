//! How much of requests' bodies is in memory at a time.
//! Owns the counting of their bytes. Knows of what they hold only how many values it is.
//!
//! A small body is never held up: there are at most as many as connections. Larger ones count twice. While their bytes
//! come and wait: more than there is memory for are refused. And while something is made of them, which may take many
//! times their bytes: they wait for each other, but not for long, and those of ordinary size not for the largest.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::ApiError;

/// The budgets of all bodies.
#[derive(Debug)]
pub(crate) struct Bodies {
    max_body: usize,
    /// Bytes that may be there.
    received: Arc<Semaphore>,
    /// For bodies that weigh up to [`LARGE`] and are worked on, and for those above it.
    prepared: [Lane; 2],
}

#[derive(Debug)]
struct Lane {
    free: Arc<Semaphore>,
    weight: usize,
}

/// A body's part of the budgets, until it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Held {
    received: Option<OwnedSemaphorePermit>,
    prepared: Option<OwnedSemaphorePermit>,
}

impl Bodies {
    /// `max_body`: bytes of the largest.
    pub(crate) fn new(max_body: usize) -> Self {
        let weight = max_body.clamp(LARGE, PREPARED);
        let lane = || Lane { free: Arc::new(Semaphore::new(weight)), weight };
        let n_received = max_body.max(LARGE).saturating_mul(N_RECEIVED).min(Semaphore::MAX_PERMITS);
        Self { max_body, received: Arc::new(Semaphore::new(n_received)), prepared: [lane(), lane()] }
    }

    /// A whole body, complete within `timeout`.
    ///
    /// # Errors
    /// 413, 408, 503 where there are too many of them, or 400 when the connection breaks.
    pub(crate) async fn receive(&self, body: Body, timeout: Duration) -> Result<(Bytes, Held), ApiError> {
        let mut held = Held::default();
        match tokio::time::timeout(timeout, self.collect(body, &mut held)).await {
            Ok(bytes) => Ok((bytes?, held)),
            Err(_) => {
                let message = format!("the request's body was not complete after {} s", timeout.as_secs());
                Err(ApiError::refused(StatusCode::REQUEST_TIMEOUT, message))
            }
        }
    }

    /// Waits until something may be made of a body of so many bytes and values.
    ///
    /// # Errors
    /// 503 when that took longer than `timeout`.
    pub(crate) async fn prepare(
        &self,
        held: &mut Held,
        n_bytes: usize,
        n_values: usize,
        timeout: Duration,
    ) -> Result<(), ApiError> {
        let weight = n_bytes.max(n_values * VALUE);
        if weight > SMALL {
            let lane = &self.prepared[usize::from(weight > LARGE)];
            let free = Arc::clone(&lane.free).acquire_many_owned(weight.min(lane.weight) as u32);
            let place = tokio::time::timeout(timeout, free).await;
            held.prepared = Some(place.ok().and_then(Result::ok).ok_or_else(ApiError::too_many_bodies)?);
        }
        Ok(())
    }

    async fn collect(&self, body: Body, held: &mut Held) -> Result<Bytes, ApiError> {
        let mut body = Limited::new(body, self.max_body);
        let mut bytes = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| match error.is::<LengthLimitError>() {
                true => ApiError::too_large(self.max_body),
                false => ApiError::invalid(format!("the request's body could not be read: {error}")),
            })?;
            // Trailers say nothing here.
            let Ok(data) = frame.into_data() else { continue };
            bytes.extend_from_slice(&data);
            let n_held = held.received.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
            if bytes.len() > SMALL {
                let more = u32::try_from(bytes.len() - n_held).unwrap_or(u32::MAX);
                let more = Arc::clone(&self.received).try_acquire_many_owned(more);
                let more = more.map_err(|_| ApiError::too_many_bodies())?;
                match &mut held.received {
                    Some(all) => all.merge(more),
                    None => held.received = Some(more),
                }
            }
        }
        Ok(bytes.freeze())
    }
}

/// Bodies up to this weight, in bytes, are not counted. A short conversation.
pub(crate) const SMALL: usize = 16 << 10;

/// Bodies above this weight have a budget of their own. A book.
const LARGE: usize = 1 << 20;

/// What a value weighs at least: as JSON it may be two bytes, in memory it is 72 and is copied.
const VALUE: usize = 8;

/// Bodies of the largest size whose bytes may be there at a time.
const N_RECEIVED: usize = 4;
/// Weight of bodies that are worked on at a time; a heavier one is worked on alone.
const PREPARED: usize = 8 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(20);
    const LATER: Duration = Duration::from_secs(60);

    /// A body that may be worked on.
    async fn ready(bodies: &Bodies, n: usize, n_values: usize, patience: Duration) -> Result<Held, ApiError> {
        let (bytes, mut held) = bodies.receive(Body::from(vec![b' '; n]), LATER).await?;
        bodies.prepare(&mut held, bytes.len(), n_values, patience).await?;
        Ok(held)
    }

    #[tokio::test]
    async fn the_largest_are_worked_on_one_at_a_time_and_hold_up_no_others() {
        let bodies = Bodies::new(8 << 20);
        let first = ready(&bodies, 8 << 20, 1, LATER).await.unwrap();
        for (n_bytes, n_values) in [(8 << 20, 1), (2 << 20, 1 << 20)] {
            let second = ready(&bodies, n_bytes, n_values, SOON).await.expect_err("the first is worked on");
            assert_eq!((second.status.as_u16(), second.code), (503, Some("too_many_bodies")));
        }
        ready(&bodies, LARGE, 1, SOON).await.unwrap();
        ready(&bodies, SMALL, 1, SOON).await.unwrap();
        drop(first);
        ready(&bodies, 8 << 20, 1, SOON).await.unwrap();
    }

    #[tokio::test]
    async fn bodies_that_wait_are_bounded_too() {
        let bodies = Arc::new(Bodies::new(LARGE + 1));
        let first = ready(&bodies, LARGE + 1, 1, LATER).await.unwrap();
        let wait = |bodies: Arc<Bodies>| async move { ready(&bodies, LARGE + 1, 1, LATER).await };
        let waiting: Vec<_> = (1..N_RECEIVED).map(|_| tokio::spawn(wait(Arc::clone(&bodies)))).collect();
        while bodies.received.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let refused = ready(&bodies, LARGE + 1, 1, LATER).await.expect_err("there is no memory for it");
        assert_eq!(refused.status.as_u16(), 503);
        ready(&bodies, SMALL, 1, SOON).await.unwrap();
        drop(first);
        for one in waiting {
            one.await.unwrap().unwrap();
        }
        assert_eq!(bodies.received.available_permits(), N_RECEIVED * (LARGE + 1), "all is given back");
    }

    #[tokio::test]
    async fn a_body_over_its_limit_is_refused() {
        let error = ready(&Bodies::new(100), 101, 1, LATER).await.expect_err("one byte too many");
        assert_eq!(error.status, StatusCode::PAYLOAD_TOO_LARGE);
    }
}
