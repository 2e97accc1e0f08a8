// Drives a server with the public TypeScript SDK, whose requests time out by themselves: `typescript_sdk.mjs COMMAND...`.
import { mkdtempSync, readFileSync, readdirSync, realpathSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";

function check(fact, what) {
  if (!fact) throw new Error(what);
}

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

async function until(fact, what) {
  const end = Date.now() + 30000;
  while (!fact()) {
    check(Date.now() < end, `not seen: ${what}`);
    await pause(20);
  }
}

// Processes that sleep for so long.
function sleepers(seconds) {
  return readdirSync("/proc").filter((name) => {
    try {
      const words = readFileSync(`/proc/${name}/cmdline`, "utf8").split("\0");
      return words[0].endsWith("sleep") && words[1] === seconds;
    } catch {
      return false;
    }
  });
}

async function fails(call, what) {
  try {
    await call;
  } catch (error) {
    return error;
  }
  throw new Error(`${what}: it was answered`);
}

const [command, ...args] = process.argv.slice(2);
const workspace = realpathSync(mkdtempSync(join(tmpdir(), "client-")));
const seconds = `600.${process.pid}${Date.now()}`;
const client = new Client({ name: "test", version: "1" });
await client.connect(
  new StdioClientTransport({ command, args: [...args, "--workspace", workspace], env: { ...process.env } }),
);
const bash = (text, options) =>
  client.callTool({ name: "bash", arguments: { command: text } }, undefined, options);

const tools = (await client.listTools()).tools.map((tool) => tool.name);
check(tools.length === 6, `tools: ${tools}`);
const result = await bash("echo out; exit 3");
check(result.structuredContent.output === "out\n" && result.isError, JSON.stringify(result));

// A time limit that no progress puts off: the command goes on.
const timedOut = await fails(bash(`exec sleep ${seconds}`, { timeout: 700 }), "time limit");
check(timedOut.code === -32001, `code ${timedOut.code}`);
await pause(500);
check(sleepers(seconds).length === 1, "a command was stopped whose client has only waited for too long");
const listed = await client.callTool({ name: "read", arguments: { path: "proc://" } });
const [run] = listed.structuredContent.details.processes;
await client.callTool({ name: "kill_process", arguments: { process_id: run.process_id, signal: "kill" } });
await until(() => sleepers(seconds).length === 0, "the end of a killed command");

// One that progress puts off: a command that shows some is waited for to its end.
let shown = 0;
const long = await bash("for i in 1 2 3 4 5 6; do echo $i; sleep .3; done", {
  timeout: 1000,
  resetTimeoutOnProgress: true,
  onprogress: () => (shown += 1),
});
check(long.structuredContent.details.status === "completed" && shown >= 2, `${shown} times, ${JSON.stringify(long)}`);

// A client that gives up on purpose: the command is stopped.
const abort = new AbortController();
const aborted = bash(`exec sleep ${seconds}`, { signal: abort.signal });
await until(() => sleepers(seconds).length === 1, "the command");
abort.abort("the user pressed escape");
await fails(aborted, "abort");
await until(() => sleepers(seconds).length === 0, "the end of an aborted command");

// The end: what runs ends with it, and it is not waited for long.
await client.callTool({ name: "bash", arguments: { command: `exec sleep ${seconds}`, run_in_background: true } });
await until(() => sleepers(seconds).length === 1, "the command");
await client.close();
await until(() => sleepers(seconds).length === 0, "the end of the session's processes");
rmSync(workspace, { recursive: true });
console.log("time limits, progress, abort, close: as they should be");
