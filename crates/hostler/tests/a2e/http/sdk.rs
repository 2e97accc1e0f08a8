//! A client that follows the transport rules of the Python SDK, against a host with the SDK's own configuration.

use std::path::Path;
use std::process::Stdio;

use super::routes::end;
use crate::host::Setup;

const CONFIG: &str = "\
host_id: builder
auth_token: open sesame
server:
  host: 127.0.0.1
  port: 0
transport:
  type: http
plugins:
  - name: procs
    type: procs
    cls: a2e.caps.proc.plugin.ProcPlugin
    metadata:
      enabled: true
      ALLOWED_COMMANDS: [python3]
      MAX_PROCS: 8
";

#[test]
fn the_client_of_the_python_sdk_works_with_a_host_of_its_own_configuration() {
    let setup = Setup::new("http_sdk");
    let config = setup.env().root().join("a2e.yaml");
    // The SDK makes the folder.
    let audit = setup.env().root().join("logs/audit.jsonl");
    let text = format!("{CONFIG}audit:\n  enabled: true\n  path: {}\n", audit.display());
    std::fs::write(&config, text).unwrap();
    let (host, url) = setup.sdk_config(&config).start_listening();
    let log = host.log();
    assert!(log.contains("host_id has no effect here") && !log.contains("sesame"), "{log}");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/a2e/http/sdk_client.py");
    let mut command = host.env().command(Path::new("python3"));
    command.arg(script).args([url.as_str(), "open sesame"]).stdin(Stdio::null());
    let output = command.output().unwrap();
    let (said, complained) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}{complained}");
    assert_eq!(said.lines().filter(|line| line.starts_with("ok ")).count(), 15, "{said}");
    assert!(audit.is_file());
    end(host);
}
