//! The wire of a host that is reached over HTTP: messages go out by `POST /send`, and come in as frames of `GET /stream`.
//!
//! Written for speed and for this one server: a client that lags behind would be measured in its place.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use anyhow::{Context, Result, bail, ensure};

use super::lines::{BLOCK, Lines};

/// A session over HTTP, with its stream open.
#[derive(Debug)]
pub(crate) struct HttpWire {
    requests: BufReader<TcpStream>,
    host: String,
    session_id: String,
    frames: Lines<Unchunked<BufReader<TcpStream>>>,
}

impl HttpWire {
    /// Opens a session, and its stream, at `HOST:PORT`.
    pub(crate) fn open(host: &str) -> Result<Self> {
        let connect = || -> Result<BufReader<TcpStream>> {
            let stream = TcpStream::connect(host).context("failed to connect to the host")?;
            stream.set_nodelay(true).context("failed to set up a connection")?;
            Ok(BufReader::with_capacity(4 * BLOCK, stream))
        };
        let mut requests = connect()?;
        let request = format!("POST /session HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n");
        let body = answer(&mut requests, request.as_bytes())?;
        let body: serde_json::Value = serde_json::from_slice(&body).context("no JSON of a session")?;
        let session_id = body["session_id"].as_str().context("no session")?.to_owned();
        let mut stream = connect()?;
        let request = format!("GET /stream HTTP/1.1\r\nHost: {host}\r\nX-Session-Id: {session_id}\r\n\r\n");
        stream.get_mut().write_all(request.as_bytes()).context("failed to ask for the stream")?;
        let head = head(&mut stream)?;
        ensure!(head.starts_with("HTTP/1.1 200 "), "no stream but {head}");
        let frames = Lines::new(Unchunked { from: stream, left: 0, begun: false });
        Ok(Self { requests, host: host.to_owned(), session_id, frames })
    }

    /// Sends one message, and waits until the host has taken it.
    pub(crate) fn send(&mut self, message: &[u8]) -> Result<()> {
        let (host, session_id, length) = (&self.host, &self.session_id, message.len());
        let mut request = format!(
            "POST /send HTTP/1.1\r\nHost: {host}\r\nX-Session-Id: {session_id}\r\nContent-Length: {length}\r\n\r\n"
        )
        .into_bytes();
        request.extend_from_slice(message);
        answer(&mut self.requests, &request).map(drop)
    }

    /// The next message; `None` at the end of the stream.
    pub(crate) fn next(&mut self) -> io::Result<Option<&[u8]>> {
        self.frames.next_behind(b"data: ")
    }
}

/// Sends a request and reads its answer, which must be a good one.
fn answer(connection: &mut BufReader<TcpStream>, request: &[u8]) -> Result<Vec<u8>> {
    connection.get_mut().write_all(request).context("failed to send a request")?;
    let head = head(connection)?;
    let field =
        |line: &str| Some(line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().to_owned());
    let length = head.lines().find_map(field).context("an answer without a length")?;
    let mut body = vec![0; length.parse().context("an answer with a bad length")?];
    connection.read_exact(&mut body).context("failed to read an answer")?;
    if !head.starts_with("HTTP/1.1 200 ") {
        bail!("{head}{}", String::from_utf8_lossy(&body));
    }
    Ok(body)
}

/// The head of an answer, with its blank line.
fn head(connection: &mut BufReader<TcpStream>) -> Result<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        let read = connection.read_line(&mut head).context("failed to read an answer")?;
        ensure!(read > 0, "the host closed the connection after {head:?}");
    }
    Ok(head)
}

/// A body that comes in chunks, without their sizes.
#[derive(Debug)]
struct Unchunked<R> {
    from: R,
    /// Bytes of the chunk that are still to come.
    left: usize,
    begun: bool,
}

impl<R: BufRead> Unchunked<R> {
    /// Reads up to the first byte of the next chunk; `left` is 0 behind the last one.
    fn next_chunk(&mut self) -> io::Result<()> {
        let bad = || io::Error::new(io::ErrorKind::InvalidData, "a chunk without its size");
        let mut line = String::new();
        if std::mem::replace(&mut self.begun, true) {
            self.from.read_line(&mut line)?;
            line.clear();
        }
        if self.from.read_line(&mut line)? == 0 {
            return Ok(());
        }
        self.left = usize::from_str_radix(line.trim_end(), 16).map_err(|_| bad())?;
        Ok(())
    }
}

impl<R: BufRead> Read for Unchunked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            self.next_chunk()?;
        }
        let most = self.left.min(buffer.len());
        let read = self.from.read(&mut buffer[..most])?;
        self.left -= read;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_joined_wherever_they_are_cut() {
        let mut text = String::new();
        let chunked = b"3\r\nabc\r\n1\r\nd\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n";
        Unchunked { from: &chunked[..], left: 0, begun: false }.read_to_string(&mut text).expect("chunks");
        assert_eq!(text, "abcd0123456789abcdef");
    }
}
