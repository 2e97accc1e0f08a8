//! Who gets in, over real sockets.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, which clippy does not take for tests"
)]

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::routing::{any, post};
use hostler_http::{
    Address, BearerToken, BodyError, ClearText, Door, DoorError, DoorOptions, Peer, PeerCheck, TlsFiles,
    read_body,
};
use hostler_testkit::{TestEnv, as_nobody, is_root, rss_kib};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::oneshot;

const LONG: Duration = Duration::from_secs(60);
const BODY_LIMIT: usize = 1 << 20;

/// An open door with routes that count who came through.
struct House {
    address: Address,
    came: Arc<AtomicUsize>,
    stop: Option<oneshot::Sender<()>>,
    served: tokio::task::JoinHandle<()>,
}

impl House {
    fn open(options: DoorOptions) -> Self {
        let came = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&came);
        let hello = move |request: Request| {
            count.fetch_add(1, Ordering::SeqCst);
            async move {
                match request.extensions().get::<Peer>() {
                    Some(Peer::User(uid)) => format!("user {uid}"),
                    Some(Peer::Address(ip)) => format!("address {ip}"),
                    None => "nobody".to_owned(),
                }
            }
        };
        let read = |body: Body| async {
            match read_body(body, BODY_LIMIT, Duration::from_millis(300)).await {
                Ok(body) => format!("{} bytes", body.len()),
                Err(BodyError::TooLarge { limit }) => format!("more than {limit}"),
                Err(BodyError::TimedOut) => "timed out".to_owned(),
                Err(BodyError::Broken(_)) => "broken".to_owned(),
            }
        };
        let router = Router::new().route("/hello", any(hello)).route("/read", post(read));
        let door = Door::open(options).unwrap();
        let address = door.address().clone();
        let (stop, stopped) = oneshot::channel();
        let served = tokio::spawn(door.serve(router, async {
            let _ = stopped.await;
        }));
        Self { address, came, stop: Some(stop), served }
    }

    fn local() -> Self {
        Self::open(local())
    }

    fn tcp(&self) -> SocketAddr {
        match &self.address {
            Address::Tcp(address) => *address,
            Address::Unix(path) => panic!("a socket at {}", path.display()),
        }
    }

    async fn close(mut self) {
        self.stop.take().unwrap().send(()).unwrap();
        tokio::time::timeout(LONG, self.served).await.expect("an end in time").unwrap();
    }
}

fn local() -> DoorOptions {
    DoorOptions::at("127.0.0.1:0".parse().unwrap())
}

fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

const HELLO: &str = "GET /hello HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

/// Sends this, and reads to the end.
async fn talk(mut stream: impl AsyncReadExt + AsyncWriteExt + Unpin, request: &[u8]) -> String {
    // A door that closes early breaks the pipe; what it said before can be read all the same.
    let _ = stream.write_all(request).await;
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(LONG, stream.read_to_end(&mut answer)).await.expect("an answer in time");
    String::from_utf8(answer).unwrap()
}

async fn ask(address: SocketAddr, request: &str) -> String {
    talk(TcpStream::connect(address).await.unwrap(), request.as_bytes()).await
}

/// Runs a script of bash as another user: `$1` is the port.
async fn as_other_user(script: &str, port: u16) -> Output {
    let script = script.to_owned();
    let run = move || {
        let env = TestEnv::for_nobody();
        let mut command = env.command(Path::new("/bin/bash"));
        command.args(["-c", &script, "bash", &port.to_string()]);
        as_nobody(command).output().unwrap()
    };
    tokio::task::spawn_blocking(run).await.unwrap()
}

#[tokio::test]
async fn the_same_user_comes_in_by_both_kinds_of_addresses() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        if std::net::TcpListener::bind(address).is_err() {
            assert!(address.starts_with('['), "there is no IPv6 everywhere, but this");
            continue;
        }
        let house = House::open(DoorOptions::at(address.parse().unwrap()));
        let answer = ask(house.tcp(), HELLO).await;
        assert!(answer.ends_with(&format!("\r\n\r\nuser {}", uid())), "{answer}");
        house.close().await;
    }
}

#[tokio::test]
async fn another_user_of_this_machine_is_refused_however_it_comes() {
    if !is_root() {
        eprintln!("skipped: only root can be another user");
        return;
    }
    let house = House::local();
    let request =
        r"printf 'POST /hello HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n'";
    for script in [
        format!(r#"exec 3<>/dev/tcp/127.0.0.1/$1 && {{ {request} >&3; cat <&3; }}"#),
        // A socket of IPv6 that connects to an address of IPv4.
        format!(r#"exec 3<>/dev/tcp/::ffff:127.0.0.1/$1 && {{ {request} >&3; cat <&3; }}"#),
    ] {
        let output = as_other_user(&script, house.tcp().port()).await;
        let said = String::from_utf8_lossy(&output.stdout);
        // A reset may overtake the answer, but nothing else comes.
        assert!(said.is_empty() || said.starts_with("HTTP/1.1 403 "), "{said}");
    }
    // Nor one that has gone before anybody looks.
    let script =
        format!(r#"for i in $(seq 50); do exec 3<>/dev/tcp/127.0.0.1/$1 && {request} >&3; exec 3>&-; done"#);
    as_other_user(&script, house.tcp().port()).await;
    let answer = ask(house.tcp(), HELLO).await;
    assert!(answer.ends_with("user 0"), "the door is open for us: {answer}");
    assert_eq!(house.came.load(Ordering::SeqCst), 1, "and was for nobody else");
    house.close().await;

    let token = DoorOptions { bearer: BearerToken::new("sesame"), ..local() };
    let house = House::open(token);
    let with_token = r#"exec 3<>/dev/tcp/127.0.0.1/$1 && printf 'GET /hello HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer sesame\r\nConnection: close\r\n\r\n' >&3; cat <&3"#;
    let output = as_other_user(with_token, house.tcp().port()).await;
    assert!(
        String::from_utf8_lossy(&output.stdout).ends_with("address 127.0.0.1"),
        "whoever has the token may"
    );
    house.close().await;
}

#[tokio::test]
async fn a_port_that_is_used_again_does_not_answer_for_who_had_it_before() {
    let came = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&came);
    let hello = move |request: Request| {
        count.fetch_add(1, Ordering::SeqCst);
        async move { request.method().to_string() }
    };
    let door = Door::open(local()).unwrap();
    let address: SocketAddr = door.address().to_string().parse().unwrap();
    // Both wait to be accepted: the first has been reset by then, but what it sent can still be read.
    let mut first = connect_from(None, address);
    let port = first.local_addr().unwrap().port();
    first.write_all(HELLO.replace("GET", "POST").as_bytes()).unwrap();
    rustix::net::sockopt::set_socket_linger(&first, Some(Duration::ZERO)).unwrap();
    drop(first);
    let mut second = connect_from(Some(port), address);
    second.write_all(HELLO.as_bytes()).unwrap();
    let (stop, stopped) = oneshot::channel();
    let served = tokio::spawn(door.serve(Router::new().route("/hello", any(hello)), async {
        let _ = stopped.await;
    }));
    second.set_nonblocking(true).unwrap();
    let answer = talk(TcpStream::from_std(second).unwrap(), b"").await;
    assert!(answer.ends_with("GET"), "{answer}");
    // Connections are accepted in their order, so the first was before the second, and what came of it ends with the door.
    stop.send(()).unwrap();
    served.await.unwrap();
    assert_eq!(came.load(Ordering::SeqCst), 1);
}

/// A connection from a port of this machine, or from any.
fn connect_from(port: Option<u16>, to: SocketAddr) -> std::net::TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    if let Some(port) = port {
        bind(&socket, &SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
    }
    connect(&socket, &to).unwrap();
    socket.into()
}

#[tokio::test]
async fn a_unix_socket_is_its_owner_s() {
    let folder = tempfile::Builder::new().permissions(mode(0o755)).tempdir().unwrap();
    let path = folder.path().join("door.sock");
    let house = House::open(DoorOptions::at(Address::Unix(path.clone())));
    let answer = talk(UnixStream::connect(&path).await.unwrap(), HELLO.as_bytes()).await;
    assert!(answer.ends_with(&format!("user {}", uid())), "{answer}");
    if is_root() {
        // The mode keeps others off; this is what does when it does not.
        std::fs::set_permissions(&path, mode(0o666)).unwrap();
        let script = r#"
            use IO::Socket::UNIX;
            my $door = IO::Socket::UNIX->new(Peer => $ARGV[0]) or die "$ARGV[0]: $!";
            print $door "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n";
            $door->flush;
            print <$door>;
        "#;
        let run = {
            let path = path.clone();
            move || {
                let env = TestEnv::for_nobody();
                let mut command = env.command(Path::new("/usr/bin/perl"));
                command.arg("-e").arg(script).arg(path);
                as_nobody(command).output().unwrap()
            }
        };
        let output = tokio::task::spawn_blocking(run).await.unwrap();
        assert!(String::from_utf8_lossy(&output.stdout).contains("403 Forbidden"), "{output:?}");
    }
    assert_eq!(house.came.load(Ordering::SeqCst), 1);
    house.close().await;
    assert!(!path.exists(), "the socket goes with its door");
}

fn mode(mode: u32) -> std::fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(mode)
}

#[tokio::test]
async fn what_other_machines_reach_is_not_served_without_a_token_and_tls() {
    let everywhere = || DoorOptions::at("0.0.0.0:0".parse().unwrap());
    let bearer = || BearerToken::new("sesame");
    let open = |options| Door::open(options).map(drop);
    for peer_check in [PeerCheck::SameUser, PeerCheck::None] {
        let options = DoorOptions { peer_check, ..everywhere() };
        assert!(matches!(open(options.clone()), Err(DoorError::NeedsToken(_))));
        assert!(matches!(open(DoorOptions { bearer: bearer(), ..options }), Err(DoorError::NeedsTls(_))));
    }
    let clear = DoorOptions { clear_text: ClearText::Allowed, ..everywhere() };
    assert!(matches!(open(clear.clone()), Err(DoorError::NeedsToken(_))));
    let folder = tempfile::tempdir().unwrap();
    let tls = Some(certificate(folder.path()).0);
    assert!(matches!(open(DoorOptions { tls, ..everywhere() }), Err(DoorError::NeedsToken(_))));
}

/// A certificate for `localhost` that signs itself, as files and as a client trusts it.
fn certificate(folder: &Path) -> (TlsFiles, rustls_pki_types::CertificateDer<'static>) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let files = TlsFiles { certificate: folder.join("cert.pem"), key: folder.join("key.pem") };
    std::fs::write(&files.certificate, made.cert.pem()).unwrap();
    std::fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
    (files, made.cert.der().clone())
}

#[tokio::test]
async fn tls_is_spoken_to_those_who_trust_the_certificate_and_nothing_else_is() {
    use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};
    let folder = tempfile::tempdir().unwrap();
    let (files, trusted) = certificate(folder.path());
    let house = House::open(DoorOptions { tls: Some(files), bearer: BearerToken::new("sesame"), ..local() });
    let connect = |roots: RootCertStore| {
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let address = house.tcp();
        async move {
            let stream = TcpStream::connect(address).await.unwrap();
            let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
            connector.connect("localhost".try_into().unwrap(), stream).await
        }
    };
    let mut roots = RootCertStore::empty();
    roots.add(trusted).unwrap();
    let request =
        "GET /hello HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer sesame\r\nConnection: close\r\n\r\n";
    let answer = talk(connect(roots).await.unwrap(), request.as_bytes()).await;
    assert!(answer.ends_with("address 127.0.0.1"), "{answer}");
    assert!(connect(RootCertStore::empty()).await.is_err());
    let answer = talk_bytes(TcpStream::connect(house.tcp()).await.unwrap(), request.as_bytes()).await;
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    assert_eq!(house.came.load(Ordering::SeqCst), 1);
    house.close().await;
}

async fn talk_bytes(mut stream: TcpStream, request: &[u8]) -> Vec<u8> {
    let _ = stream.write_all(request).await;
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(LONG, stream.read_to_end(&mut answer)).await.expect("an end in time");
    answer
}

#[tokio::test]
async fn certificates_that_cannot_be_used_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let (files, _) = certificate(folder.path());
    let other = tempfile::tempdir().unwrap();
    let (others, _) = certificate(other.path());
    let empty = folder.path().join("empty");
    std::fs::write(&empty, "").unwrap();
    let none = folder.path().join("none");
    for (certificate, key, wrong) in [
        (&none, &files.key, "none"),
        (&files.certificate, &none, "none"),
        (&empty, &files.key, "holds no certificate"),
        (&files.certificate, &empty, "holds no private key"),
        (&files.key, &files.key, "holds no certificate"),
        (&files.certificate, &others.key, "cannot be used"),
    ] {
        let tls = Some(TlsFiles { certificate: certificate.clone(), key: key.clone() });
        let error = Door::open(DoorOptions { tls, ..local() }).map(drop).unwrap_err().to_string();
        assert!(error.contains(wrong), "{error}");
    }
}

#[tokio::test]
async fn bodies_are_bounded_in_size_and_time_and_the_answer_can_be_read() {
    let house = House::local();
    let post = |headers: &str, body: &[u8]| {
        let head =
            format!("POST /read HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n\r\n");
        [head.as_bytes(), body].concat()
    };
    let cases: [(Vec<u8>, &str); 6] = [
        (post("Content-Length: 5", b"hello"), "5 bytes"),
        (post("Transfer-Encoding: chunked", b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"), "5 bytes"),
        (post(&format!("Content-Length: {BODY_LIMIT}"), &vec![b'x'; BODY_LIMIT]), "1048576 bytes"),
        (post(&format!("Content-Length: {}", 17 << 20), &vec![b'x'; 17 << 20]), "more than 1048576"),
        (post("Content-Length: 5", b"hel"), "timed out"),
        (post("Transfer-Encoding: chunked", b"nonsense\r\n"), "broken"),
    ];
    for (request, expected) in cases {
        let answer = talk(TcpStream::connect(house.tcp()).await.unwrap(), &request).await;
        assert!(answer.ends_with(&format!("\r\n\r\n{expected}")), "{expected}: {answer}");
    }
    house.close().await;
}

#[tokio::test]
async fn half_a_request_is_not_waited_for_without_end() {
    let house = House::open(DoorOptions { head_timeout: Duration::from_millis(200), ..local() });
    for beginning in ["", "GET /hel", "GET /hello HTTP/1.1\r\nHost: localhost\r\nX-Slow: "] {
        let mut stream = TcpStream::connect(house.tcp()).await.unwrap();
        stream.write_all(beginning.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        tokio::time::timeout(LONG, stream.read_to_end(&mut answer)).await.expect("closed in time").unwrap();
        assert!(!answer.starts_with(b"HTTP/1.1 200"), "{answer:?}");
    }
    assert_eq!(house.came.load(Ordering::SeqCst), 0);
    house.close().await;
}

#[tokio::test]
async fn ten_thousand_half_open_connections_cost_little_and_those_that_are_too_many_are_closed() {
    const ALL: usize = 10_000;
    let house = House::open(DoorOptions { head_timeout: LONG, ..local() });
    raise_open_files();
    let mut held = Vec::new();
    let mut hold = async |count: usize| {
        for _ in 0..count {
            let mut stream = TcpStream::connect(house.tcp()).await.unwrap();
            // One that is closed already cannot be written to.
            let _ = stream.write_all(b"GET /hello HTTP/1.1\r\nHost: loc").await;
            held.push(stream);
        }
    };
    let pid = i32::try_from(std::process::id()).unwrap();
    hold(ALL / 10).await;
    let first = rss_kib(pid).unwrap();
    hold(ALL * 9 / 10).await;
    let last = rss_kib(pid).unwrap();
    // The clients are in this process too: their 9,000 sockets are counted with it.
    assert!(last < first + 32 * 1024, "{first} KiB with a tenth of them, {last} KiB with all");
    let answer = ask(house.tcp(), HELLO).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 503 "), "{answer}");
    drop(held);
    hostler_testkit::wait_until_async("room for one more", LONG, async || {
        let answer = ask(house.tcp(), HELLO).await;
        if answer.contains("200 OK") { Ok(()) } else { Err(answer) }
    })
    .await;
    house.close().await;
}

fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
}

#[tokio::test]
async fn when_a_door_is_closed_what_was_asked_before_is_answered_and_nobody_comes_in_any_more() {
    let house = House::local();
    let address = house.tcp();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = "POST /read HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n1";
    stream.write_all(head.as_bytes()).await.unwrap();
    // It answers another connection: by then it has seen this one.
    assert!(ask(address, HELLO).await.contains("200 OK"));
    let closing = tokio::spawn(house.close());
    hostler_testkit::wait_until_async("a closed door", LONG, async || {
        TcpStream::connect(address).await.map_or(Ok(()), |_| Err("open"))
    })
    .await;
    let answer = talk(stream, b"2").await;
    assert!(answer.ends_with("2 bytes") || answer.ends_with("timed out"), "{answer}");
    closing.await.unwrap();
}

#[tokio::test]
async fn refusals_of_requests_are_answers_that_can_be_read() {
    let house = House::open(DoorOptions { bearer: BearerToken::new("sesame"), ..local() });
    for (request, status) in [
        ("GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n", "401"),
        ("GET /hello HTTP/1.1\r\nHost: attacker.example\r\n\r\n", "421"),
        ("GET /hello HTTP/1.1\r\n\r\n", "400"),
        ("GET /hello HTTP/1.1\r\nHost: localhost\r\nOrigin: http://attacker.example\r\n\r\n", "403"),
        ("OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n", "401"),
        ("CONNECT localhost:22 HTTP/1.1\r\nHost: localhost:22\r\n\r\n", "401"),
        ("CONNECT localhost:22 HTTP/1.1\r\nHost: localhost\r\n\r\n", "400"),
        ("nonsense\r\n\r\n", "400"),
    ] {
        let answer = ask(house.tcp(), request).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
    }
    assert_eq!(house.came.load(Ordering::SeqCst), 0);
    house.close().await;
}

#[tokio::test]
async fn targets_that_are_no_paths_lead_nowhere() {
    let house = House::local();
    for request in ["OPTIONS * HTTP/1.1\r\nHost: localhost", "CONNECT localhost HTTP/1.1\r\nHost: localhost"]
    {
        let answer = ask(house.tcp(), &format!("{request}\r\nConnection: close\r\n\r\n")).await;
        assert!(answer.starts_with("HTTP/1.1 404 "), "{request}: {answer}");
    }
    let absolute = "GET http://localhost/hello HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert!(ask(house.tcp(), absolute).await.starts_with("HTTP/1.1 200 "));
    house.close().await;
}

#[tokio::test]
async fn a_refusal_reaches_a_client_that_is_still_sending() {
    const LENGTH: usize = 8 << 20;
    let house = House::open(DoorOptions { bearer: BearerToken::new("sesame"), ..local() });
    let body = vec![b'x'; LENGTH];
    for (head, status) in [
        (format!("POST /read HTTP/1.1\r\nHost: localhost\r\nContent-Length: {LENGTH}\r\n\r\n"), "401"),
        (
            format!(
                "POST /read HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n{LENGTH:x}\r\n"
            ),
            "401",
        ),
        ("nonsense\r\n\r\n".to_owned(), "400"),
    ] {
        let mut stream = TcpStream::connect(house.tcp()).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(&body).await.expect(&head);
        let answer = talk(stream, b"").await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{head}: {answer}");
    }
    house.close().await;
}

#[tokio::test]
async fn who_asks_first_is_not_told_to_send_what_is_too_much() {
    let house = House::local();
    let head =
        "POST /read HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999\r\nExpect: 100-continue\r\n\r\n";
    let answer = ask(house.tcp(), head).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("more than 1048576"), "{answer}");
    let small = "POST /read HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nExpect: 100-continue\r\nConnection: close\r\n\r\nab";
    let answer = ask(house.tcp(), small).await;
    assert!(answer.starts_with("HTTP/1.1 100 ") && answer.ends_with("2 bytes"), "{answer}");
    house.close().await;
}

#[tokio::test]
async fn connections_that_no_descriptor_is_left_for_wait_until_there_is_one() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let house = House::local();
    assert!(ask(house.tcp(), HELLO).await.contains("200 OK"));
    let limit = getrlimit(Resource::Nofile);
    let next = std::os::fd::AsRawFd::as_raw_fd(&std::fs::File::open("/dev/null").unwrap());
    // The client gets the last one.
    let current = Some(u64::try_from(next).unwrap() + 1);
    setrlimit(Resource::Nofile, Rlimit { current, ..limit }).unwrap();
    let mut client = TcpStream::connect(house.tcp()).await.unwrap();
    client.write_all(HELLO.as_bytes()).await.unwrap();
    let mut answer = String::new();
    let early = tokio::time::timeout(Duration::from_millis(200), client.read_to_string(&mut answer)).await;
    assert!(early.is_err(), "{early:?}: {answer}");
    setrlimit(Resource::Nofile, limit).unwrap();
    tokio::time::timeout(LONG, client.read_to_string(&mut answer)).await.expect("an answer").unwrap();
    assert!(answer.contains("200 OK"), "{answer}");
    house.close().await;
}
