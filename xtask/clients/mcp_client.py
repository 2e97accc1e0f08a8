"""Drives a server with the public Python client, in the revisions with a handshake and without: `mcp_client.py COMMAND...`."""

import asyncio
import os
import sys
import tempfile
import time

from mcp import Client, StdioServerParameters


def details(result):
    return result.structured_content["details"]


def output(result):
    return result.structured_content["output"]


async def until(fact, what, limit=30.0):
    """Waits for a fact."""
    end = time.monotonic() + limit
    while not fact():
        assert time.monotonic() < end, f"not seen: {what}"
        await asyncio.sleep(0.02)


def running(text):
    """Processes that carry this text in their arguments, but not as the text of a shell."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"sleep") and text.encode() in words:
            found.append(int(name))
    return found


async def tools(client, workspace):
    listed = await client.list_tools()
    names = [tool.name for tool in listed.tools]
    assert names == ["bash", "bash_output", "process_input", "kill_process", "read", "write"], names

    result = await client.call_tool("bash", {"command": "echo out; exit 3"})
    assert result.is_error and output(result) == "out\n" and details(result)["exit_code"] == 3, result
    assert result.content[0].text == "out\n[exit 3]", result

    result = await client.call_tool("bash", {"command": "true", "nonsense": 1})
    assert result.is_error and "nonsense" in result.content[0].text, result

    await client.call_tool("bash", {"command": "mkdir d; cd d; export KEPT=yes"})
    result = await client.call_tool("bash", {"command": "echo $KEPT; pwd"})
    assert output(result) == f"yes\n{workspace}/d\n", result


async def progress(client):
    seen = []

    async def note(progress, total, message):
        seen.append((progress, message))

    command = "for i in 1 2 3 4; do echo step $i; sleep .3; done"
    result = await client.call_tool("bash", {"command": command}, progress_callback=note)
    assert details(result)["status"] == "completed", result
    values = [value for value, _ in seen]
    assert len(seen) >= 2 and values == sorted(set(values)), seen
    assert any(message and message.startswith("step ") for _, message in seen), seen


async def background(client):
    started = details(await client.call_tool("bash", {"command": "cat; exit 5", "run_in_background": True}))
    process = {"process_id": started["process_id"]}
    await client.call_tool("process_input", {**process, "input": "last", "eof": True})
    result = await client.call_tool("bash_output", {**process, "wait_ms": 20000})
    while details(result)["status"] == "running":
        result = await client.call_tool("bash_output", {**process, "wait_ms": 20000})
    assert details(result)["exit_code"] == 5, result

    command = "echo early; until [ -e go ]; do sleep .02; done; echo late"
    detached = await client.call_tool("bash", {"command": command, "timeout": 200, "cwd": ".", "reset": True})
    assert details(detached)["background"] and output(detached) == "early\n", detached
    process = {"process_id": details(detached)["process_id"]}
    resource = await client.read_resource(f"proc://{process['process_id']}")
    assert "early" in resource.contents[0].text, resource
    uris = [str(resource.uri) for resource in (await client.list_resources()).resources]
    assert f"proc://{process['process_id']}" in uris, uris
    await client.call_tool("bash", {"command": "touch go"})
    late = await client.call_tool("bash_output", {**process, "wait_ms": 20000})
    assert output(late) == "late\n", late

    endless = details(await client.call_tool("bash", {"command": "sleep 600", "run_in_background": True}))
    killed = await client.call_tool("kill_process", {"process_id": endless["process_id"], "signal": "kill"})
    assert not killed.is_error, killed


async def giving_up(client, seconds):
    """A call that is cancelled is stopped; one that has only taken too long goes on."""
    call = asyncio.create_task(client.call_tool("bash", {"command": f"exec sleep {seconds}"}))
    await until(lambda: running(seconds), "the command")
    call.cancel()
    try:
        await call
        raise AssertionError("a cancelled call was answered")
    except asyncio.CancelledError:
        pass
    await until(lambda: not running(seconds), "the end of a cancelled command")

    try:
        await client.call_tool("bash", {"command": f"exec sleep {seconds}"}, read_timeout_seconds=0.7)
        raise AssertionError("a call was answered that takes too long")
    except Exception as error:  # noqa: BLE001: its type is the client's business
        assert "timed out" in str(error).lower(), error
    await asyncio.sleep(0.5)
    assert running(seconds), "a command was stopped whose client has only waited for too long"


async def session(command, mode):
    with tempfile.TemporaryDirectory() as workspace:
        workspace = os.path.realpath(workspace)
        arguments = [*command[1:], "--workspace", workspace]
        server = StdioServerParameters(command=command[0], args=arguments, env=dict(os.environ))
        seconds = f"600.{time.time_ns()}"
        async with Client(server, mode=mode) as client:
            version = client.protocol_version
            await tools(client, workspace)
            await progress(client)
            await background(client)
            await giving_up(client, seconds)
        # The client has closed its end.
        await until(lambda: not running(seconds), "the end of the session's processes")
    print(f"{mode}: revision {version}")


async def main():
    for mode in ["legacy", "auto"]:
        await session(sys.argv[1:], mode)


asyncio.run(main())
