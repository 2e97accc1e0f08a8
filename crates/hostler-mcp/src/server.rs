//! What clients ask for, by method. All state is the session's: any number of these may serve it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use hostler_shell::{Answer, OutputRequest, ReadRequest, Shell, Started};
use parking_lot::Mutex;
use rmcp::ErrorData;
use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CancelledNotificationParam, Implementation, JsonObject,
    ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
    ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult, RequestId, Resource,
    ResourceContents, ResourceTemplate, ServerCapabilities, ServerConfig, SubscriptionFilter, Tool,
};
use rmcp::service::{NotificationContext, Peer, RequestContext, RoleServer, SubscriptionContext};
use tokio::sync::oneshot;

use crate::arguments::{self, Bash, BashOutput, KillProcess, ProcessInput, Read, Write};
use crate::call::{self, Caller};
use crate::wire::{self, Kind};
use crate::{McpOptions, tools};

/// Between two words about the list of resources.
const LIST_PAUSE: Duration = Duration::from_millis(500);
/// The reason of a cancellation comes beside it.
const REASON_PATIENCE: Duration = Duration::from_secs(1);

/// Serves the shell tools of one session.
#[derive(Clone, Debug)]
pub struct McpServer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    shell: Shell,
    options: McpOptions,
    /// Commands that are waited for, by request: who hears why one is cancelled.
    calls: Mutex<HashMap<RequestId, oneshot::Sender<Option<String>>>>,
}

impl McpServer {
    /// A server for this session.
    pub fn new(shell: Shell, options: McpOptions) -> Self {
        Self(Arc::new(Inner { shell, options, calls: Mutex::default() }))
    }

    /// The session.
    pub fn shell(&self) -> &Shell {
        &self.0.shell
    }

    async fn call(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = request.arguments;
        let name: &str = &request.name;
        let (answer, kind) = match name {
            "bash" => (self.bash(arguments, context).await, Kind::Bash),
            "bash_output" => (self.bash_output(arguments, context).await, Kind::Other),
            "process_input" => {
                (answer(arguments, |a: ProcessInput| self.0.shell.input(a.into())).await, Kind::Other)
            }
            "kill_process" => {
                (answer(arguments, |a: KillProcess| self.0.shell.kill(a.into())).await, Kind::Other)
            }
            "read" => (answer(arguments, |a: Read| self.0.shell.read(a.into())).await, Kind::Other),
            "write" => (answer(arguments, |a: Write| self.0.shell.write(a.into())).await, Kind::Other),
            unknown => {
                let known: Vec<&str> = tools::all().iter().map(|tool| &*tool.name).collect();
                let message = format!("there is no tool {unknown:?}: there are {}", known.join(", "));
                return Err(ErrorData::invalid_params(message, None));
            }
        };
        Ok(wire::result(&answer, kind, &self.0.options).into())
    }

    async fn bash(&self, arguments: Option<JsonObject>, context: RequestContext<RoleServer>) -> Answer {
        let request = match arguments::parse::<Bash>(arguments) {
            Ok(request) => request,
            Err(wrong) => return wrong,
        };
        // Before anything starts: a cancellation may come at once.
        let (told, reason) = oneshot::channel();
        let call = Call::enter(&self.0, context.id.clone(), told);
        let answer = match self.0.shell.bash(request.into()).await {
            Started::Answered(answer) => answer,
            Started::Foreground(command) => {
                let caller = Caller { token: context.meta.get_progress_token(), peer: context.peer };
                let cancelled = async {
                    context.ct.cancelled().await;
                    tokio::time::timeout(REASON_PATIENCE, reason).await.ok().and_then(Result::ok).flatten()
                };
                // Of a call that was cancelled no answer goes out, whatever it is.
                call::foreground(command, caller, cancelled, &self.0.options)
                    .await
                    .unwrap_or_else(|| Answer::error(hostler_shell::ErrorCode::Unsupported, "cancelled"))
            }
        };
        drop(call);
        answer
    }

    async fn bash_output(
        &self,
        arguments: Option<JsonObject>,
        context: RequestContext<RoleServer>,
    ) -> Answer {
        let mut request: OutputRequest = match arguments::parse::<BashOutput>(arguments) {
            Ok(request) => request.into(),
            Err(wrong) => return wrong,
        };
        if context.meta.get_progress_token().is_none() {
            let most =
                i64::try_from(self.0.options.max_wait_without_progress.as_millis()).unwrap_or(i64::MAX);
            // One that is out of bounds is left to be refused.
            request.wait_ms =
                request.wait_ms.map(|wait| if wait > LONGEST_WAIT_MS { wait } else { wait.min(most) });
        }
        tokio::select! {
            answer = self.0.shell.output(request) => answer,
            () = context.ct.cancelled() => Answer::error(hostler_shell::ErrorCode::Unsupported, "cancelled"),
        }
    }
}

/// What bash_output takes.
const LONGEST_WAIT_MS: i64 = 600_000;

/// Reads the arguments of a tool, and carries it out.
async fn answer<A, F>(arguments: Option<JsonObject>, carry_out: impl FnOnce(A) -> F) -> Answer
where
    A: serde::de::DeserializeOwned,
    F: Future<Output = Answer>,
{
    match arguments::parse(arguments) {
        Ok(read) => carry_out(read).await,
        Err(wrong) => wrong,
    }
}

/// A command that is waited for, as long as this is held.
struct Call<'s> {
    server: &'s Inner,
    id: RequestId,
}

impl<'s> Call<'s> {
    fn enter(server: &'s Inner, id: RequestId, told: oneshot::Sender<Option<String>>) -> Self {
        server.calls.lock().insert(id.clone(), told);
        Self { server, id }
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.server.calls.lock().remove(&self.id);
    }
}

impl ServerHandler for McpServer {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_resources()
            .enable_resources_list_changed()
            .build();
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new("hostler", env!("CARGO_PKG_VERSION")))
            .with_instructions(tools::INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools::all().to_vec()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        tools::all().iter().find(|tool| tool.name == name).cloned()
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        self.call(request, context).await
    }

    async fn on_cancelled(
        &self,
        cancelled: CancelledNotificationParam,
        _context: NotificationContext<RoleServer>,
    ) {
        let told = cancelled.request_id.and_then(|id| self.0.calls.lock().remove(&id));
        if let Some(told) = told {
            // It may have been answered just before.
            let _ = told.send(cancelled.reason);
        }
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        tokio::spawn(tell_of_changes(self.0.shell.clone(), context.peer));
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        let changes = SubscriptionFilter::builder().resources_list_changed().build();
        Some(requested.intersection(&changes))
    }

    async fn listen(&self, subscription: SubscriptionContext) -> Result<(), ErrorData> {
        let mut changes = self.0.shell.changes();
        loop {
            tokio::select! {
                () = subscription.cancelled() => return Ok(()),
                changed = changes.changed() => if changed.is_err() { return Ok(()) },
            }
            // A client that is gone hears nothing more.
            if subscription.sink().notify_resource_list_changed().await.is_err() {
                return Ok(());
            }
            tokio::time::sleep_until(tokio::time::Instant::now() + LIST_PAUSE).await;
        }
    }

    async fn list_resources(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let resource = |run: hostler_shell::Listed| {
            let title: String = run.command.lines().next().unwrap_or_default().chars().take(80).collect();
            Resource::new(format!("proc://{}", run.process_id), run.process_id)
                .with_title(title)
                .with_mime_type("text/plain")
        };
        Ok(ListResourcesResult::with_all_items(self.0.shell.runs().into_iter().map(resource).collect()))
    }

    async fn list_resource_templates(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let template = |address: &str, name: &str, description: &str| {
            ResourceTemplate::new(address, name).with_description(description).with_mime_type("text/plain")
        };
        Ok(ListResourceTemplatesResult::with_all_items(vec![
            template("proc://{id}", "process", "Newest output of a process; reading it consumes nothing."),
            template("artifact://{id}", "saved output", "Saved output of a command, its first window."),
        ]))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let read = ReadRequest { path: request.uri.clone(), offset: None, limit: None };
        let answer = self.0.shell.read(read).await;
        if answer.details.error.is_some() {
            return Err(ErrorData::resource_not_found(answer.text(), None));
        }
        Ok(ReadResourceResult::new(vec![ResourceContents::text(answer.output, request.uri)]).into())
    }
}

/// Tells a client now and then that the list of resources has changed, until it is gone.
async fn tell_of_changes(shell: Shell, peer: Peer<RoleServer>) {
    let mut changes = shell.changes();
    // The session ends when its last handle goes.
    drop(shell);
    while changes.changed().await.is_ok() {
        if peer.notify_resource_list_changed().await.is_err() {
            return;
        }
        tokio::time::sleep_until(tokio::time::Instant::now() + LIST_PAUSE).await;
    }
}
