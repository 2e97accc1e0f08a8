//! Whatever a process prints, in whatever chunks and flushes: the events are lines of JSON without raw line ends, and
//! their joined texts are the output.
//!
//! The input is one byte for the forms, then pieces of one length byte, one for the flush, and so many bytes of output.
#![no_main]

use std::time::Duration;

use hostler_a2e::encode::{DataForm, EventEncoder, EventForm, Flush, PushForm, Stream};
use hostler_a2e::wire::{MessageIds, ProcId, ReqId, Terminal, Timestamp};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|data: &[u8]| {
    let Some((&forms, mut rest)) = data.split_first() else { return };
    let form = EventForm {
        data: if forms & 1 == 0 { DataForm::String } else { DataForm::Object },
        push: if forms & 2 == 0 { PushForm::Correlated } else { PushForm::Push },
    };
    let mut encoder =
        EventEncoder::new(&ProcId::new("p\u{85}"), &ReqId::new("r\""), &MessageIds::new(0), form);
    let (mut output, mut taken, mut out, mut cut) = (Vec::new(), 0, Vec::new(), false);
    while let [length, flush, stream @ ..] = rest {
        let (chunk, later) = stream.split_at(stream.len().min(usize::from(*length)));
        output.extend_from_slice(chunk);
        let flush = if flush & 1 == 0 { Flush::None } else { Flush::Piece };
        cut |= flush == Flush::Piece;
        encoder.set_time(Timestamp::from_unix(Duration::from_secs(output.len() as u64)));
        taken += encoder.lines(Stream::Stderr, &output[taken..], flush, &mut out);
        rest = later;
    }
    taken += encoder.lines(Stream::Stderr, &output[taken..], Flush::End, &mut out);
    assert_eq!(taken, output.len());
    encoder.terminal(Terminal::Exit(i32::from(forms)), &mut out);

    let out = String::from_utf8(out).expect("events are UTF-8");
    assert!(!out.contains(['\u{85}', '\u{2028}', '\u{2029}']));
    let mut texts: Vec<String> = Vec::new();
    for line in out.lines() {
        let event: Value = serde_json::from_str(line).expect("an event is JSON");
        assert_eq!(event["proc_id"], "p\u{85}");
        let data = match form.data {
            DataForm::String => {
                serde_json::from_str(event["data"].as_str().expect("a string")).expect("JSON")
            }
            DataForm::Object => event["data"].clone(),
        };
        texts.extend(data["text"].as_str().map(str::to_owned));
    }
    assert_eq!(texts.concat(), String::from_utf8_lossy(&output));
    if !cut {
        assert_eq!(texts.len(), output.split_inclusive(|byte| *byte == b'\n').count());
    }
});
