//! The body of a request: read whole, within bounds of size and time.

use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http_body::Body as _;
use http_body_util::BodyExt;

/// How long a body may take in all.
const LIMIT: Duration = Duration::from_secs(300);

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

/// Reads a body of at most `limit` bytes, of which something must come every `patience`. Of one that says at its beginning that
/// it is longer nothing is read, and a client that asks first (`Expect: 100-continue`) is not told to go on; the door sees to
/// it that the answer can be read all the same.
///
/// # Errors
/// [`BodyError`]
pub async fn read_body(mut body: Body, limit: usize, patience: Duration) -> Result<Bytes, BodyError> {
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if announced > limit {
        return Err(BodyError::TooLarge { limit });
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
                        return Err(BodyError::TooLarge { limit });
                    }
                    all.extend_from_slice(&data);
                }
            }
        }
    };
    tokio::time::timeout(LIMIT, read).await.unwrap_or(Err(BodyError::TimedOut))
}
