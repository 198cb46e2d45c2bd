//! The supervisor's actor: the parent of the connections' actors.

use std::sync::Arc;

use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::sync::oneshot;

use super::branch::Branch;
use crate::{
    connection::{ConnectionActor, Line},
    event::What,
    spec::Start,
};

pub(super) enum Message {
    Add(Arc<Line>, oneshot::Sender<()>),
}

pub(super) struct SupervisorActor;

pub(super) struct Tree {
    branch: Arc<Branch>,
    lines: Vec<(ActorCell, Arc<Line>)>,
}

impl Drop for Tree {
    /// However the actor ended, with its parent, by a kill or because it was stopped.
    fn drop(&mut self) {
        self.branch.end();
    }
}

impl Actor for SupervisorActor {
    type Msg = Message;
    type State = Tree;
    type Arguments = Arc<Branch>;

    async fn pre_start(
        &self,
        _: ActorRef<Message>,
        branch: Arc<Branch>,
    ) -> Result<Tree, ActorProcessingErr> {
        Ok(Tree {
            branch,
            lines: Vec::new(),
        })
    }

    async fn post_stop(
        &self,
        _: ActorRef<Message>,
        tree: &mut Tree,
    ) -> Result<(), ActorProcessingErr> {
        // Not only when it is dropped: the state goes to the parent actor, which may keep it.
        tree.branch.end();
        Ok(())
    }

    async fn handle(
        &self,
        myself: ActorRef<Message>,
        message: Message,
        tree: &mut Tree,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Message::Add(line, reply) => {
                let arguments = Arc::clone(&line);
                let (child, _) =
                    Actor::spawn_linked(None, ConnectionActor, arguments, myself.get_cell())
                        .await?;
                if line.settings.start == Start::Eager {
                    line.warm_up();
                }
                tree.lines.push((child.get_cell(), line));
                // Whoever opened it may have stopped waiting; it is found by its name.
                let _ = reply.send(());
            }
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<Message>,
        event: SupervisionEvent,
        tree: &mut Tree,
    ) -> Result<(), ActorProcessingErr> {
        let who = match &event {
            SupervisionEvent::ActorTerminated(who, ..) | SupervisionEvent::ActorFailed(who, _) => {
                who
            }
            _ => return Ok(()),
        };
        let Some(at) = tree
            .lines
            .iter()
            .position(|(actor, _)| actor.get_id() == who.get_id())
        else {
            return Ok(());
        };
        let line = Arc::clone(&tree.lines[at].1);
        if line.closing.is_cancelled() {
            // It may have failed before it was told to close. Nobody else says so then.
            line.abandon();
            tree.branch.forget(&line);
            tree.lines.remove(at);
            return Ok(());
        }
        line.count_failure();
        line.tell(What::ActorRestarted);
        let (child, _) =
            Actor::spawn_linked(None, ConnectionActor, line, myself.get_cell()).await?;
        tree.lines[at].0 = child.get_cell();
        Ok(())
    }
}
