//! Hosts two programs: one is written to and read, the other is stopped with what it has started.
#![expect(clippy::print_stdout, reason = "an example shows what it gets")]

use std::time::Duration;

use hostler_core::{
    CursorRead, HelperProgram, Host, HostOptions, Nursery, SessionOptions, SpawnSpec, StopCause, Stream, Then,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // First thing in main: nursery and keepers are this same binary, and never get beyond this line.
    hostler_core::run_if_helper();
    // Before there are threads.
    let nursery = Nursery::start(HelperProgram::CurrentExe)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(use_it(nursery))
}

async fn use_it(nursery: Nursery) -> Result<(), Box<dyn std::error::Error>> {
    let host = Host::start(nursery, HostOptions::default())?;
    let session = host.open_session(SessionOptions::record());

    // Write to a program and read what it says.
    let cat = session.spawn(SpawnSpec::new(["cat"])).await?;
    cat.write(b"hello\n", Then::Close).done().await?;
    let mut output = cat.cursor(Stream::Stdout).ok_or("standard output is always there")?;
    let mut buffer = [0; 64];
    while let CursorRead::Chunk(n) = output.next(&mut buffer).await? {
        print!("cat says {}", String::from_utf8_lossy(&buffer[..n]));
    }
    println!("cat has ended: {:?}", cat.finished().await);

    // Stop a tree: the shell, and what it has started and no longer waits for.
    let tree = session.spawn(SpawnSpec::new(["sh", "-c", "sleep 600 & sleep 600"])).await?;
    let receipt = tree.stop(StopCause::Request, Duration::from_secs(1)).await;
    println!("{} survivors of the stop: {:?}", receipt.survivors.total, tree.finished().await);

    // Nothing outlives its session.
    let receipt = session.close(Duration::from_secs(1)).await;
    assert_eq!(receipt.survivors.total, 0);
    drop((cat, tree, session));
    host.shutdown().await;
    Ok(())
}
