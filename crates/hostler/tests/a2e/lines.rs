//! How output becomes events: long lines, halves of lines, both streams.

use serde_json::json;

use crate::client::{Data, Innocent, assert_same_lines};
use crate::host::Setup;
use crate::raw::{Raw, RawData, RawReader};

const MIB: usize = 1 << 20;

#[test]
fn a_line_of_100_mib_arrives_whole_in_pieces() {
    const LENGTH: usize = 100 * MIB;
    let (host, mut client) = Setup::new("long line").start_greeted();
    client.evil(&host, &["long-line", &LENGTH.to_string()]);
    let before = host.rss_kib();
    // Any piece is a part of this, from the letter on at which it begins.
    let letters: Vec<u8> = (b'a'..=b'z').cycle().take(2 * MIB).collect();
    let mut reader = RawReader::of(&mut client);
    let (mut seen, mut pieces, mut most) = (0, 0, 0);
    loop {
        let Raw::Event { data, .. } = reader.next() else { panic!("nothing was asked") };
        match data {
            RawData::Text(text) if text.ends_with(b"\\\\n") => {
                let text = &text[..text.len() - 3];
                assert!(text == &letters[seen % 26..][..text.len()], "the end, after {seen} bytes");
                seen += text.len();
                pieces += 1;
            }
            RawData::Text(text) => {
                assert!(text == &letters[seen % 26..][..text.len()], "after {seen} bytes");
                seen += text.len();
                pieces += 1;
                most = most.max(text.len());
            }
            end @ (RawData::Code(_) | RawData::Killed) => {
                assert_eq!(end, RawData::Code("0"));
                break;
            }
        }
    }
    assert_eq!(seen, LENGTH);
    assert!((100..=110).contains(&pieces), "{pieces} pieces: none is longer than 1 MiB, and few are shorter");
    assert!(most <= MIB, "{most}");
    assert!(host.rss_kib() < before + 32 * 1024, "from {before} to {} KiB", host.rss_kib());
    reader.give_back(&mut client);
    host.end(client);
}

#[test]
fn a_line_of_one_mib_is_one_event() {
    let (host, mut client) = Setup::new("one MiB").start_greeted();
    let proc = client.evil(&host, &["long-line", &(MIB - 1).to_string()]);
    let finished = client.finish(&proc);
    assert_eq!(finished.stdout.iter().map(String::len).collect::<Vec<_>>(), [MIB]);
    host.end(client);
}

#[test]
fn a_line_in_two_halves_is_one_event_while_the_other_stream_floods() {
    let (host, mut client) = Setup::new("halves").start_greeted();
    let script = "
import os, sys
os.write(1, b'first half, ')
for i in range(20000): os.write(2, b'line %d\\n' % i)
os.write(2, b'now\\n')
sys.stdin.readline()
os.write(1, b'second half\\nrest')
os.write(2, b'also rest')
sys.exit(5)
";
    let proc = client.spawn(&["python3", "-c", script, host.token().as_str()]);
    let mut stderr = Vec::new();
    loop {
        let event = client.event(&proc);
        assert_eq!(event.stream, "stderr", "half a line waits for the other half: {event:?}");
        let Data::Text(text) = event.data else { panic!("{event:?}") };
        if text == "now\n" {
            break;
        }
        stderr.push(text);
    }
    assert_same_lines(&stderr, &(0..20_000).map(|i| format!("line {i}\n")).collect::<Vec<_>>());
    assert_eq!(client.write_to(&proc, "go\n")["ok"], true);
    let finished = client.finish(&proc);
    assert_eq!(finished.stdout, ["first half, second half\n", "rest"]);
    assert_eq!(finished.stderr, ["also rest"]);
    assert_eq!(finished.end, Data::Code(5));
    host.end(client);
}

#[test]
fn lines_of_both_streams_come_in_the_order_in_which_they_were_read() {
    let (host, mut client) = Setup::new("both streams").start_greeted();
    // Each line waits until the one before it has arrived, so there is only one order.
    let script = "
import os, sys
for i, line in enumerate(sys.stdin): os.write(1 + i % 2, line.encode())
";
    let proc = client.spawn(&["python3", "-uc", script, host.token().as_str()]);
    for i in 0..200 {
        let line = format!("{i}\n");
        assert_eq!(client.write_to(&proc, &line)["ok"], true);
        let event = client.event(&proc);
        assert_eq!((event.stream.as_str(), event.data), (["stdout", "stderr"][i % 2], Data::Text(line)));
    }
    host.end(client);
}

#[test]
fn each_stream_keeps_its_order_when_both_are_written_at_full_speed() {
    let (host, mut client) = Setup::new("both at once").start_greeted();
    let mut innocent = Innocent::start(&host, &mut client);
    let script = "
import os
for i in range(20000): os.write(1 + i % 2, b'%d\\n' % i)
";
    let proc = client.spawn(&["python3", "-c", script, host.token().as_str()]);
    let finished = client.finish(&proc);
    let expected = |first: usize| (first..20_000).step_by(2).map(|i| format!("{i}\n")).collect::<Vec<_>>();
    assert_same_lines(&finished.stdout, &expected(0));
    assert_same_lines(&finished.stderr, &expected(1));
    innocent.answers(&mut client);
    host.end(client);
}

#[test]
fn bytes_that_are_no_text_become_replacement_characters_and_the_stream_goes_on() {
    let (host, mut client) = Setup::new("no text").start_greeted();
    let script = "
import os
os.write(1, b'a\\xff\\xfeb\\n\\xe2\\x82')
os.write(1, b'\\xac\\n\\0\\x1b[0m\\r\\n\\xf0\\x9f')
";
    let proc =
        client.spawn_with(&["python3", "-c", script, host.token().as_str()], json!({"stdin_mode": "null"}));
    let finished = client.finish(&proc);
    assert_eq!(finished.stdout, ["a\u{fffd}\u{fffd}b\n", "\u{20ac}\n", "\0\u{1b}[0m\r\n", "\u{fffd}"]);
    host.end(client);
}
