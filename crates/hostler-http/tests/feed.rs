//! What a connection has taken of a stream is known to the byte, however it ends.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests, which clippy does not take for tests"
)]

use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use axum::routing::get;
use bytes::Bytes;
use hostler_http::{Delivery, Door, DoorOptions, Feed, Meter, Source};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::{mpsc, oneshot};

const LONG: Duration = Duration::from_secs(60);

/// Gives chunks that the test sends.
struct Chunks {
    chunks: mpsc::UnboundedReceiver<Bytes>,
    gone: Option<oneshot::Sender<()>>,
}

impl Source for Chunks {
    fn spent(&mut self, chunk: Bytes) {
        assert!(chunk.try_into_mut().is_ok(), "nobody has it any more");
    }

    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.chunks.poll_recv(cx)
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        let _ = self.gone.take().unwrap().send(());
    }
}

/// The server's side of the one stream of a test.
struct Stream {
    chunks: mpsc::UnboundedSender<Bytes>,
    delivery: Delivery,
    gone: oneshot::Receiver<()>,
}

/// Opens a stream over a connection with small buffers, or large ones.
async fn open(receive_buffer: Option<u32>) -> (TcpStream, Stream, oneshot::Sender<()>) {
    let (made, mut streams) = mpsc::channel(1);
    let route = move |request: Request| {
        let made = made.clone();
        async move {
            let (feed, delivery) = Feed::new(request.extensions().get::<Meter>().expect("HTTP/1.1"));
            let (sender, chunks) = mpsc::unbounded_channel();
            let (goes, gone) = oneshot::channel();
            let source = Chunks { chunks, gone: Some(goes) };
            made.send(Stream { chunks: sender, delivery, gone }).await.unwrap();
            Response::new(Body::new(feed.of(source)))
        }
    };
    let door = Door::open(DoorOptions::at("127.0.0.1:0".parse().unwrap())).unwrap();
    let address = door.address().to_string().parse().unwrap();
    let (stop, stopped) = oneshot::channel();
    tokio::spawn(door.serve(axum::Router::new().route("/", get(route)), async {
        let _ = stopped.await;
    }));
    let socket = TcpSocket::new_v4().unwrap();
    if let Some(bytes) = receive_buffer {
        socket.set_recv_buffer_size(bytes).unwrap();
    }
    let mut client = socket.connect(address).await.unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let stream = streams.recv().await.unwrap();
    (client, stream, stop)
}

/// The bytes of all chunks in what came over the wire, whole or not.
fn data_bytes(wire: &[u8]) -> usize {
    let Some(head) = wire.windows(4).position(|four| four == b"\r\n\r\n") else { return 0 };
    let (mut rest, mut bytes) = (&wire[head + 4..], 0);
    while let Some(end) = rest.windows(2).position(|two| two == b"\r\n") {
        let length = usize::from_str_radix(std::str::from_utf8(&rest[..end]).unwrap(), 16).unwrap();
        let data = &rest[end + 2..];
        bytes += length.min(data.len());
        rest = data.get(length + 2..).unwrap_or_default();
    }
    bytes
}

async fn read_some(client: &mut TcpStream, wire: &mut Vec<u8>, upto: usize) {
    let mut buffer = vec![0; 64 * 1024];
    while data_bytes(wire) < upto {
        let read = tokio::time::timeout(LONG, client.read(&mut buffer)).await.expect("in time").unwrap();
        assert!(read > 0, "it goes on");
        wire.extend_from_slice(&buffer[..read]);
    }
}

#[test]
fn what_was_taken_when_a_stream_is_cut_is_what_arrives() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let lengths = prop::collection::vec(prop_oneof![1..20_usize, 1..5000_usize, 1..1_000_000_usize], 1..6);
    let strategy = (lengths, any::<prop::sample::Index>(), any::<bool>());
    let mut runner = TestRunner::new(Config { cases: 100, ..Config::default() });
    let run = runner.run(&strategy, |(lengths, read, small)| {
        runtime.block_on(async {
            let (mut client, stream, stop) = open(small.then_some(4096)).await;
            let total: usize = lengths.iter().sum();
            // Each chunk is full of its number, so that a piece of it says which one it is of.
            for (number, length) in lengths.iter().enumerate() {
                stream.chunks.send(vec![number as u8; *length].into()).unwrap();
            }
            let mut wire = Vec::new();
            read_some(&mut client, &mut wire, read.index(total + 1)).await;
            let taken = stream.delivery.cut();
            // A cut connection is closed; what it had taken still comes.
            tokio::time::timeout(LONG, client.read_to_end(&mut wire)).await.expect("an end in time").unwrap();
            let arrived = data_bytes(&wire);
            let before = |number: usize| lengths[..number].iter().sum::<usize>();
            match taken.first() {
                Some(number) => assert_eq!(arrived, before(usize::from(*number)) + taken.len(), "of {total}"),
                // Of the next chunk it had taken nothing yet.
                None => assert!(
                    (0..=lengths.len()).any(|number| before(number) == arrived),
                    "{arrived} of {total}"
                ),
            }
            drop(stop);
        });
        Ok(())
    });
    run.unwrap();
}

#[tokio::test]
async fn one_chunk_is_outstanding_at_a_time_and_all_of_them_arrive() {
    let (mut client, stream, _stop) = open(None).await;
    let (mut wire, mut all) = (Vec::new(), 0);
    for length in [1, 9, 15, 16, 17, 255, 256, 65_535, 65_536, 1 << 20] {
        stream.chunks.send(vec![b'x'; length].into()).unwrap();
        all += length;
        read_some(&mut client, &mut wire, all).await;
        assert_eq!(stream.delivery.taken(), length);
    }
    drop(stream.chunks);
    tokio::time::timeout(LONG, client.read_exact(&mut [0; 5])).await.expect("the end").unwrap();
    assert_eq!(data_bytes(&wire), all);
}

#[tokio::test]
async fn a_client_that_goes_is_noticed_while_nothing_is_said_and_while_it_reads_nothing() {
    for outstanding in [0, 64 << 20] {
        let (client, stream, _stop) = open(Some(4096)).await;
        if outstanding > 0 {
            stream.chunks.send(vec![b'x'; outstanding].into()).unwrap();
        }
        drop(client);
        tokio::time::timeout(LONG, stream.gone).await.expect("noticed").unwrap();
        assert!(stream.delivery.taken() < 64 << 20);
    }
}

#[tokio::test]
async fn a_stop_ends_a_stream_that_does_not_end_by_itself() {
    let (_client, stream, stop) = open(None).await;
    stop.send(()).unwrap();
    tokio::time::timeout(LONG, stream.gone).await.expect("an end").unwrap();
}
