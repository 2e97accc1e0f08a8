//! The body of a request: read whole, within bounds of size and time.

use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http_body::Body as _;
use http_body_util::BodyExt;

/// How long a body may take in all.
const LIMIT: Duration = Duration::from_secs(300);
/// How much of a body that is too large is read and dropped, and for how long: a client that sends all of it before it reads
/// would otherwise find a broken connection in the place of the answer.
const DRAINED_BYTES: usize = 64 << 20;
const DRAIN_LIMIT: Duration = Duration::from_secs(5);

/// Why a body was not read.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// It is too large.
    #[error("the body is longer than {limit} bytes, the most that is taken")]
    TooLarge {
        /// What is taken at most.
        limit: usize,
    },
    /// It, or the next piece of it, did not come.
    #[error("the body did not come in time: send it at once")]
    TimedOut,
    /// It broke off, or is not framed as HTTP has it.
    #[error("the body broke off")]
    Broken(#[source] axum::Error),
}

/// Reads a body of at most `limit` bytes, of which something must come every `patience`.
///
/// # Errors
/// [`BodyError`]
pub async fn read_body(mut body: Body, limit: usize, patience: Duration) -> Result<Bytes, BodyError> {
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if announced > limit {
        return Err(too_large(body, limit).await);
    }
    let read = async {
        let mut all = BytesMut::new();
        loop {
            match tokio::time::timeout(patience, body.frame()).await {
                Err(_) => return Err(BodyError::TimedOut),
                Ok(None) => return Ok(all.freeze()),
                Ok(Some(Err(error))) => return Err(BodyError::Broken(error)),
                Ok(Some(Ok(frame))) => {
                    let data = frame.into_data().unwrap_or_default();
                    if data.len() > limit - all.len() {
                        return Err(too_large(body, limit).await);
                    }
                    all.extend_from_slice(&data);
                }
            }
        }
    };
    tokio::time::timeout(LIMIT, read).await.unwrap_or(Err(BodyError::TimedOut))
}

async fn too_large(mut body: Body, limit: usize) -> BodyError {
    let drain = async {
        let mut left = DRAINED_BYTES;
        while let Some(Ok(frame)) = body.frame().await {
            let length = frame.data_ref().map_or(0, Bytes::len);
            match left.checked_sub(length) {
                Some(rest) => left = rest,
                None => return,
            }
        }
    };
    // Whoever sends more than that is cut off.
    let _ = tokio::time::timeout(DRAIN_LIMIT, drain).await;
    BodyError::TooLarge { limit }
}
