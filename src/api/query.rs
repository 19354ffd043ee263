//! Query parameters, refused in this interface's form of errors.

use axum::extract::{FromRequestParts, Query as AnyQuery};
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

use crate::error::ApiError;

/// The parameters behind the `?` of a request's address.
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match AnyQuery::from_request_parts(parts, state).await {
            Ok(AnyQuery(found)) => Ok(Self(found)),
            Err(refused) => Err(ApiError::invalid(refused.body_text())),
        }
    }
}
