use std::time::Duration;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::id::ProcessId;
use crate::lifecycle::ExitStatus;
use crate::sys::clone::{StartFailure, Step};
use crate::sys::signal::Signal;
use crate::sys::wait::Usage;

fn id() -> impl Strategy<Value = ProcessId> {
    any::<u128>().prop_map(ProcessId::from_u128)
}

fn pids() -> impl Strategy<Value = Pids> {
    vec(any::<i32>(), 0..20).prop_map(|pids| pids.into_iter().collect())
}

fn block() -> impl Strategy<Value = Vec<u8>> {
    vec("[a-zA-Z=é]{0,12}", 1..6)
        .prop_map(|words| words.iter().flat_map(|w| [w.as_bytes(), b"\0"].concat()).collect())
}

fn millis() -> impl Strategy<Value = Duration> {
    any::<u32>().prop_map(|ms| Duration::from_millis(ms.into()))
}

fn signal() -> impl Strategy<Value = Signal> {
    prop_oneof![Just(Signal::Int), Just(Signal::Term), Just(Signal::Kill)]
}

fn status() -> impl Strategy<Value = ExitStatus> {
    prop_oneof![
        any::<i32>().prop_map(ExitStatus::Code),
        (any::<i32>(), any::<bool>())
            .prop_map(|(number, core_dumped)| ExitStatus::Signal { number, core_dumped }),
        Just(ExitStatus::KeeperLost),
    ]
}

fn usage() -> impl Strategy<Value = Usage> {
    (any::<u32>(), any::<u32>(), any::<u64>()).prop_map(|(user, system, max_rss_kib)| Usage {
        user: Duration::from_micros(user.into()),
        system: Duration::from_micros(system.into()),
        max_rss_kib,
    })
}

fn control() -> impl Strategy<Value = Control> {
    let scope = prop_oneof![Just(Scope::Group), Just(Scope::Tree)];
    prop_oneof![
        (any::<u64>(), id(), scope, signal()).prop_map(|(ticket, id, scope, signal)| Control::Signal {
            ticket,
            id,
            scope,
            signal
        }),
        (any::<u64>(), id(), millis()).prop_map(|(ticket, id, limit)| Control::Kill { ticket, id, limit }),
        (any::<u64>(), millis(), millis()).prop_map(|(ticket, grace, limit)| Control::Close {
            ticket,
            grace,
            limit
        }),
    ]
}

fn keeper_event() -> impl Strategy<Value = KeeperEvent> {
    let step = prop_oneof![Just(Step::Clone), Just(Step::Chdir), Just(Step::Stdio), Just(Step::Exec)];
    prop_oneof![
        (id(), any::<i32>()).prop_map(|(id, pid)| KeeperEvent::Spawned { id, pid }),
        (id(), step, any::<i32>()).prop_map(|(id, step, errno)| KeeperEvent::SpawnFailed {
            id,
            failure: StartFailure { step, errno }
        }),
        (id(), status(), usage(), pids()).prop_map(|(id, status, usage, lingerers)| KeeperEvent::Exited {
            id,
            status,
            usage,
            lingerers
        }),
        id().prop_map(|id| KeeperEvent::Gone { id }),
        (any::<u64>(), pids(), pids(), pids(), option::of(1_i32..200)).prop_map(
            |(ticket, signalled, survivors, unattributed, unseen)| KeeperEvent::Done {
                ticket,
                signalled,
                survivors,
                unattributed,
                unseen
            }
        ),
    ]
}

fn nursery_event() -> impl Strategy<Value = NurseryEvent> {
    prop_oneof![
        Just(NurseryEvent::Ready),
        (any::<u64>(), any::<i32>()).prop_map(|(serial, pid)| NurseryEvent::KeeperStarted { serial, pid }),
        (any::<u64>(), any::<i32>()).prop_map(|(serial, errno)| NurseryEvent::KeeperFailed { serial, errno }),
        (any::<i32>(), any::<u32>()).prop_map(|(pid, killed)| NurseryEvent::Swept { pid, killed }),
    ]
}

proptest! {
    #[test]
    fn every_message_is_read_back_as_it_was_written(
        serial: u64, control in control(), keeper in keeper_event(), nursery in nursery_event(),
        id in id(), argv in block(), env in block(), cwd in "[a-z/]{0,20}", session: u64,
    ) {
        prop_assert_eq!(StartKeeper::decode(&StartKeeper { serial }.encode()), Ok(StartKeeper { serial }));
        prop_assert_eq!(Control::decode(&control.encode()), Ok(control));
        prop_assert_eq!(KeeperEvent::decode(&keeper.encode()), Ok(keeper));
        prop_assert_eq!(NurseryEvent::decode(&nursery.encode()), Ok(nursery));
        let spawn = SpawnRequest::Spawn(Spawn { id, argv: &argv, env: &env, cwd: cwd.as_bytes() });
        let packet = spawn.encode();
        prop_assert_eq!(SpawnRequest::decode(&packet), Ok(spawn.clone()));
        let open = SpawnRequest::Open(Open {
            session, nofile: (1, 2), cgroup: b"/c", oom_score_adj: b"200", cwd: cwd.as_bytes(), search_path: b"/bin",
            private_folder: b"/p", env: &env,
        });
        let packet = open.encode();
        prop_assert_eq!(SpawnRequest::decode(&packet), Ok(open.clone()));
        for id in [None, Some(id)] {
            let packet = SpawnRequest::by_file(id, session);
            prop_assert_eq!(SpawnRequest::body(&packet), Ok(Body::File { id, len: session }));
            let cut = &packet[..packet.len() - 1];
            prop_assert_eq!(SpawnRequest::body(cut), Err(ProtocolError::Malformed));
        }
        let packet = spawn.encode();
        prop_assert_eq!(SpawnRequest::body(&packet), Ok(Body::Inline(&packet[..])));
    }

    #[test]
    fn no_bytes_are_misread_or_crash_a_reader(bytes in vec(any::<u8>(), 0..200), kind in 0_u16..80) {
        let packet = [&VERSION.to_le_bytes()[..], &kind.to_le_bytes(), &bytes].concat();
        if let Ok(control) = Control::decode(&packet) {
            prop_assert_eq!(control.encode(), packet.clone());
        }
        let _ = KeeperEvent::decode(&packet);
        let _ = NurseryEvent::decode(&packet);
        let _ = SpawnRequest::decode(&packet);
        let _ = SpawnRequest::body(&packet);
        let _ = StartKeeper::decode(&packet);
    }

    #[test]
    fn a_cut_or_lengthened_packet_is_malformed(control in control(), cut in 0_usize..100, more in 1_usize..9) {
        let packet = control.encode();
        let short = &packet[..packet.len() - 1 - cut % (packet.len() - 4)];
        prop_assert_eq!(Control::decode(short), Err(ProtocolError::Malformed));
        let long = [packet, vec![0; more]].concat();
        prop_assert_eq!(Control::decode(&long), Err(ProtocolError::Malformed));
    }
}

#[test]
fn another_version_is_named() {
    let mut packet = Control::Kill { ticket: 1, id: ProcessId::from_u128(2), limit: Duration::ZERO }.encode();
    packet[..2].copy_from_slice(&(VERSION + 1).to_le_bytes());
    assert_eq!(Control::decode(&packet), Err(ProtocolError::Version { found: VERSION + 1 }));
}

#[test]
fn long_lists_of_pids_are_cut_and_counted() {
    let pids: Pids = (0..10_000).collect();
    assert_eq!((pids.total, pids.pids.len()), (10_000, MAX_PIDS));
    let [signalled, survivors] = [pids.clone(), pids.clone()];
    let event = KeeperEvent::Done { ticket: 1, signalled, survivors, unattributed: pids, unseen: None };
    assert_eq!(KeeperEvent::decode(&event.encode()), Ok(event));
}

#[test]
fn strings_that_are_not_ended_are_refused() {
    let id = ProcessId::from_u128(1);
    for (argv, env) in [(&b""[..], &b""[..]), (b"a", b""), (b"a\0", b"A=1")] {
        let packet = SpawnRequest::Spawn(Spawn { id, argv, env, cwd: b"" }).encode();
        assert_eq!(SpawnRequest::decode(&packet), Err(ProtocolError::Malformed));
    }
}
