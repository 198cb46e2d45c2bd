//! The rest of what a client can ask of a server or tell it.

use rmcp::model::{
    CompletionInfo, DetailedTask, GetPromptResponse, GetSkillResult, ListResourceTemplatesResult,
    ListResourcesResult, ListSkillsResult, ReadResourceResponse,
};

use super::Connection;
use crate::{
    call::{HandedOver, ToolAnswer},
    error::{CallError, TaskError},
    operation::{
        Completion, DirectoryRead, LogLevel, Notice, Page, PromptGet, ResourceRead, SkillGet,
        TaskAwait, TaskCancel, TaskGet, TaskUpdate, ToolCall,
    },
};

impl Connection {
    /// Calls a tool and leaves the rounds to the caller: a tool that asks for input is answered by
    /// [`ToolCall::with_input`], as a call of its own.
    ///
    /// # Errors
    ///
    /// [`CallError`] says what is known.
    ///
    /// # Cancel safety
    ///
    /// As for [`call_tool`](Self::call_tool).
    pub async fn call_tool_once(&self, call: ToolCall) -> Result<ToolAnswer, CallError> {
        self.caller().one_round().call_tool(call).await
    }

    /// Gets a prompt, or the server's question, which [`PromptGet::with_input`] answers.
    ///
    /// # Errors
    ///
    /// [`CallError`] says what is known.
    ///
    /// # Cancel safety
    ///
    /// It changes nothing at the server; dropped, the answer is lost.
    pub async fn get_prompt_once(&self, get: PromptGet) -> Result<GetPromptResponse, CallError> {
        self.caller().one_round().get_prompt(get).await
    }

    /// Reads a resource, or gets the server's question, which [`ResourceRead::with_input`] answers.
    ///
    /// # Errors
    ///
    /// [`CallError`] says what is known.
    ///
    /// # Cancel safety
    ///
    /// It changes nothing at the server; dropped, the answer is lost.
    pub async fn read_resource_once(
        &self,
        read: ResourceRead,
    ) -> Result<ReadResourceResponse, CallError> {
        self.caller().one_round().read_resource(read).await
    }

    /// Lists a page of the server's resource templates. Asked once more on a fresh session after a
    /// loss.
    ///
    /// # Errors
    ///
    /// [`CallError`] says what is known.
    ///
    /// # Cancel safety
    ///
    /// It changes nothing at the server; dropped, the answer is lost.
    pub async fn list_resource_templates(
        &self,
        page: Page,
    ) -> Result<ListResourceTemplatesResult, CallError> {
        self.caller().list_resource_templates(page).await
    }

    /// Asks how an argument may go on. Asked once more on a fresh session after a loss.
    ///
    /// # Errors
    ///
    /// [`CallError`] says what is known.
    ///
    /// # Cancel safety
    ///
    /// It changes nothing at the server; dropped, the answer is lost.
    pub async fn complete(&self, ask: Completion) -> Result<CompletionInfo, CallError> {
        self.caller().complete(ask).await
    }

    /// Sets from which level on the server sends messages for the log. They go to the connection's
    /// handler.
    ///
    /// The level is the connection's: each later session begins with it. In 2026-07-28, where there
    /// is no such request, each request carries it.
    ///
    /// # Errors
    ///
    /// [`CallError`] says what is known. Unless that is *unknown*, the level before stays in force.
    ///
    /// # Cancel safety
    ///
    /// Dropped, the level may have been set, and later sessions begin with it.
    pub async fn set_log_level(&self, level: LogLevel) -> Result<(), CallError> {
        self.caller().set_log_level(level).await
    }

    /// Lists a page of the server's skills. Asked once more on a fresh session after a loss; not
    /// sent to a server that does not declare skills.
    ///
    /// # Errors
    ///
    /// [`CallError`] says what is known.
    ///
    /// # Cancel safety
    ///
    /// It changes nothing at the server; dropped, the answer is lost.
    pub async fn list_skills(&self, page: Page) -> Result<ListSkillsResult, CallError> {
        self.caller().list_skills(page).await
    }

    /// Gets a skill's entry. Asked once more on a fresh session after a loss; not sent to a server
    /// that does not declare skills.
    ///
    /// # Errors
    ///
    /// [`CallError`] says what is known.
    ///
    /// # Cancel safety
    ///
    /// It changes nothing at the server; dropped, the answer is lost.
    pub async fn get_skill(&self, get: SkillGet) -> Result<GetSkillResult, CallError> {
        self.caller().get_skill(get).await
    }

    /// Lists the direct children of a directory. Asked once more on a fresh session after a loss;
    /// not sent to a server that does not declare it.
    ///
    /// # Errors
    ///
    /// [`CallError`] says what is known.
    ///
    /// # Cancel safety
    ///
    /// It changes nothing at the server; dropped, the answer is lost.
    pub async fn read_resource_directory(
        &self,
        read: DirectoryRead,
    ) -> Result<ListResourcesResult, CallError> {
        self.caller().read_resource_directory(read).await
    }

    /// Asks how a task is doing. Asked once more on a fresh session after a loss.
    ///
    /// # Errors
    ///
    /// [`CallError`] says what is known.
    ///
    /// # Cancel safety
    ///
    /// It changes nothing at the server; dropped, the answer is lost.
    pub async fn get_task(&self, get: TaskGet) -> Result<DetailedTask, CallError> {
        Ok(self.caller().get_task(get).await?.task)
    }

    /// Gives a task the input that it asked for. It is sent at most once.
    ///
    /// # Errors
    ///
    /// [`CallError`] says what is known.
    ///
    /// # Cancel safety
    ///
    /// Dropped before the answer, the task may have been given it.
    pub async fn update_task(&self, update: TaskUpdate) -> Result<(), CallError> {
        self.caller().update_task(update).await
    }

    /// Asks the server to stop a task. It is sent at most once, and the answer says that the server
    /// knows, not that the task stopped.
    ///
    /// # Errors
    ///
    /// [`CallError`] says what is known.
    ///
    /// # Cancel safety
    ///
    /// Dropped before the answer, the task may be stopped.
    pub async fn cancel_task(&self, cancel: TaskCancel) -> Result<(), CallError> {
        self.caller().cancel_task(cancel).await
    }

    /// Waits for a task's end and returns the answer of its tool.
    ///
    /// It asks by `tasks/get`, at the interval that the server suggests, until the deadline, on
    /// whatever session there is: a server that goes and comes back is waited for. Input that the
    /// task asks for is given by the connection's handler, each piece once.
    ///
    /// # Errors
    ///
    /// [`TaskError`]. The handle is as good as before, unless it says that the task is over.
    ///
    /// # Cancel safety
    ///
    /// The task goes on, and can be waited for again.
    pub async fn await_task(&self, task: TaskAwait) -> Result<ToolAnswer, TaskError> {
        self.caller().await_task(task).await
    }

    /// Tells the server something that it does not answer. It takes its place among the operations,
    /// and is sent at most once, by the session that there is: it starts none.
    ///
    /// # Errors
    ///
    /// [`CallError`] says what is known: not sent, or unknown where the transport has not said that
    /// it took it.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it may have been sent.
    pub async fn notify(&self, notice: Notice) -> Result<HandedOver, CallError> {
        self.caller().notify(notice).await
    }
}
