//! The requests beyond tools, prompts and resources.

use std::{collections::HashMap, sync::Arc};

use rmcp::model::{
    ArgumentInfo, CancelTaskParams, CancelTaskRequest, ClientRequest, CompleteRequest,
    CompleteRequestParams, CompletionContext, CompletionInfo, GetSkillRequest,
    GetSkillRequestParams, GetSkillResult, GetTaskParams, GetTaskRequest, GetTaskResult,
    ListResourceTemplatesRequest, ListResourceTemplatesResult, ListResourcesResult,
    ListSkillsRequest, ListSkillsResult, ReadResourceDirectoryRequest,
    ReadResourceDirectoryRequestParams, Reference, ServerResult, UpdateTaskParams,
    UpdateTaskRequest,
};

use super::{
    Caller, at_cursor,
    attempt::{AskedBy, Verdict, Without},
    check_uri,
    resolve::{end_of, gone},
    rounds::Rounds,
};
use crate::{
    error::{CallError, InvalidRequest, NotSentReason, UnknownCause},
    operation::{
        Completed, Completion, DirectoryRead, Generation, LogLevel, OperationKind, Page, SkillGet,
        TaskCancel, TaskGet, TaskHandle, TaskUpdate, check_name,
    },
};

impl Caller<'_> {
    pub(crate) async fn list_resource_templates(
        &self,
        page: Page,
    ) -> Result<ListResourceTemplatesResult, CallError> {
        let request = ListResourceTemplatesRequest::with_param(at_cursor(page.cursor));
        let kind = OperationKind::ListResourceTemplates;
        self.read(kind, request.into(), &page.budget, |r| match r {
            ServerResult::ListResourceTemplatesResult(result) => Some(result),
            _ => None,
        })
        .await
    }

    pub(crate) async fn complete(&self, ask: Completion) -> Result<CompletionInfo, CallError> {
        let Completion {
            of,
            argument,
            value,
            known,
            budget,
        } = ask;
        let named = match &of {
            Completed::Prompt(name) => check_name("prompt", name).map_err(InvalidRequest::from),
            Completed::Template(uri) => check_uri(uri),
        };
        let request = named.map(|()| {
            let of = match of {
                Completed::Prompt(name) => Reference::for_prompt(name),
                Completed::Template(uri) => Reference::for_resource(uri),
            };
            let argument = ArgumentInfo::new(argument, value);
            let mut params = CompleteRequestParams::new(of, argument);
            if !known.is_empty() {
                let known: HashMap<_, _> = known.into_iter().collect();
                params = params.with_context(CompletionContext::with_arguments(known));
            }
            CompleteRequest::new(params).into()
        });
        self.checked(OperationKind::Complete, request, &budget, |r| match r {
            ServerResult::CompleteResult(result) => Some(result.completion),
            _ => None,
        })
        .await
    }

    /// Once the server has taken the level, or may have, it is the connection's: each later session
    /// begins with it.
    pub(crate) async fn set_log_level(&self, set: LogLevel) -> Result<(), CallError> {
        let kind = OperationKind::SetLogLevel;
        // A session that began in between may not have it; after that it is known to all.
        for _ in 0..2 {
            let request = Ok(Arc::new(set_level(set.level)));
            let id = set.budget.operation();
            let mut operation = self.operation(id, kind, request, &set.budget)?;
            let done = operation.run().await;
            let keep = || self.line.log_level.set(set.level);
            match done {
                Ok(done) => {
                    keep();
                    if self.line.status().generation == Some(done.generation) {
                        break;
                    }
                }
                Err(CallError::NotSent(e))
                    if matches!(e.reason, NotSentReason::NotInRevision { .. }) =>
                {
                    // In 2026-07-28 each request carries it.
                    keep();
                    break;
                }
                Err(error) => {
                    if matches!(error, CallError::Unknown(_)) {
                        keep();
                    }
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    pub(crate) async fn list_skills(&self, page: Page) -> Result<ListSkillsResult, CallError> {
        let request = ListSkillsRequest::with_param(at_cursor(page.cursor));
        let kind = OperationKind::ListSkills;
        self.read(kind, request.into(), &page.budget, |r| match r {
            ServerResult::ListSkillsResult(result) => Some(result),
            _ => None,
        })
        .await
    }

    pub(crate) async fn get_skill(&self, get: SkillGet) -> Result<GetSkillResult, CallError> {
        let SkillGet { uri, budget } = get;
        let request =
            check_uri(&uri).map(|()| GetSkillRequest::new(GetSkillRequestParams::new(uri)).into());
        self.checked(OperationKind::GetSkill, request, &budget, |r| match r {
            ServerResult::GetSkillResult(result) => Some(result),
            _ => None,
        })
        .await
    }

    pub(crate) async fn read_resource_directory(
        &self,
        read: DirectoryRead,
    ) -> Result<ListResourcesResult, CallError> {
        let DirectoryRead {
            uri,
            cursor,
            budget,
        } = read;
        let request = check_uri(&uri).map(|()| {
            let mut params = ReadResourceDirectoryRequestParams::new(uri);
            params.cursor = cursor;
            ReadResourceDirectoryRequest::new(params).into()
        });
        let kind = OperationKind::ReadResourceDirectory;
        self.checked(kind, request, &budget, |r| match r {
            ServerResult::ListResourcesResult(result) => Some(result),
            _ => None,
        })
        .await
    }

    pub(crate) async fn get_task(&self, get: TaskGet) -> Result<GetTaskResult, CallError> {
        Ok(self.task_state(get).await?.0)
    }

    /// How a task is doing, by which session, and who asks for input, if it does.
    pub(super) async fn task_state(
        &self,
        get: TaskGet,
    ) -> Result<(GetTaskResult, Generation, Option<Box<AskedBy>>), CallError> {
        let kind = OperationKind::GetTask;
        let request = self.about(&get.task).map(|id| {
            let request: ClientRequest = GetTaskRequest::new(GetTaskParams::new(id)).into();
            request
        });
        let caller = Caller {
            rounds: Rounds::Callers,
            ..*self
        };
        let mut operation = caller.operation(
            get.budget.operation(),
            kind,
            request.map(Arc::new),
            &get.budget,
        )?;
        let done = operation.run().await;
        if let Some(journal) = self.journal {
            let fact = match &done {
                Ok(done) => match &*done.result {
                    ServerResult::GetTaskResult(state) => end_of(journal, &state.task.payload),
                    _ => None,
                },
                Err(error) => gone(error),
            };
            if let Some(fact) = fact {
                let left = operation.times.left();
                self.note_task(journal, &get.task, fact, left).await;
            }
        }
        let done = done?;
        match *done.result {
            ServerResult::GetTaskResult(state) => Ok((state, done.generation, done.asked)),
            _ => {
                let cause = UnknownCause::WrongType(kind.method());
                Err(operation.error(Without::new(Verdict::Unknown(cause)), None))
            }
        }
    }

    pub(crate) async fn update_task(&self, update: TaskUpdate) -> Result<(), CallError> {
        let TaskUpdate {
            task,
            responses,
            budget,
        } = update;
        let request = self
            .about(&task)
            .map(|id| UpdateTaskRequest::new(UpdateTaskParams::new(id, responses)).into());
        let kind = OperationKind::UpdateTask;
        self.checked(kind, request, &budget, |_| Some(())).await
    }

    pub(crate) async fn cancel_task(&self, cancel: TaskCancel) -> Result<(), CallError> {
        let request = self
            .about(&cancel.task)
            .map(|id| CancelTaskRequest::new(CancelTaskParams::new(id)).into());
        let kind = OperationKind::CancelTask;
        self.checked(kind, request, &cancel.budget, |_| Some(()))
            .await
    }

    /// The server's name for a task, if the task is one of this connection.
    fn about(&self, task: &TaskHandle) -> Result<String, InvalidRequest> {
        if *task.connection() != self.line.name {
            return Err(InvalidRequest::OtherConnection {
                connection: task.connection().clone(),
            });
        }
        check_name("task", task.id())?;
        Ok(task.id().to_owned())
    }
}

#[expect(deprecated, reason = "it is what the revisions before 2026-07-28 have")]
fn set_level(level: crate::operation::rmcp_level::Level) -> ClientRequest {
    use rmcp::model::{SetLevelRequest, SetLevelRequestParams};
    SetLevelRequest::new(SetLevelRequestParams::new(level)).into()
}
