//! One game: some lives of a host against two servers, and one last life in which what is unknown is
//! resolved.

use mcp_supervisor::Era;
use serde_json::{Value, json};

use super::{
    plan::{Dice, Kill, Life, Planned, contracts},
    verdict::Verdict,
};
use crate::support::{
    host::{HostProcess, journal_of, options},
    initialize, kill_if_of, rig,
    shop::Shop,
    world::{Wire, World},
};

const LIVES: usize = 3;

pub(super) struct Game {
    world: World,
    shop: Shop,
    planned: Vec<Planned>,
    /// What hosts told, as they told it.
    told: Vec<Value>,
}

impl Game {
    /// Plays it and judges it. Gives back what was found, in a line, and how many callers were told
    /// something.
    pub(super) async fn play(seed: u64) -> (String, usize) {
        let mut dice = Dice::new(seed);
        let (wire, shop) = match seed % 2 {
            0 => (Wire::Stdio, rig::Wire::Stdio),
            _ => (Wire::Http, rig::Wire::Http),
        };
        let era = match seed / 2 % 2 {
            0 => Era::Discover,
            _ => initialize(),
        };
        let tools = ["pay_plain", "pay_keyed", "pay_status"];
        let tools = tools.map(|name| json!({"name": name, "like": "charge"}));
        let script = json!({"log_messages": true, "tools": tools, "rules": dice.rules()});
        let mut game = Self {
            shop: Shop::open(shop, &era, &[]).await,
            world: World::new(wire, era, script).await,
            planned: Vec::new(),
            told: Vec::new(),
        };
        for _ in 0..LIVES {
            let life = dice.life(&game.planned);
            game.live(life).await;
            game.serve_again().await;
        }
        game.quiet();
        let verdict = Verdict::of(&game.world, &game.shop, &game.planned, &game.told).await;
        (verdict.to_string(), verdict.told)
    }

    fn options(&self) -> Value {
        let mut options = options(&self.world, &mcp_supervisor::ToolContract::AtMostOnce);
        options["contracts"] = json!(contracts());
        options["max_attempts"] = json!(2);
        options["more"] = json!({"shop": self.shop.place()});
        options
    }

    async fn live(&mut self, life: Life) {
        if let Some(lever) = life.lever {
            self.shop.pull(lever);
        }
        let mut host = HostProcess::start(&self.options());
        for call in &life.calls {
            host.order(&call.order());
        }
        self.planned.extend(life.calls.iter().cloned());
        let (mut begun, mut told) = (0, 0);
        let (mut server, mut shop) = (life.server, life.shop);
        while told < life.calls.len() {
            if server.is_now(begun, told) {
                server = Kill::Never;
                self.kill_server();
            }
            if shop.is_now(begun, told) {
                shop = Kill::Never;
                self.shop.crash();
            }
            if life.host.is_now(begun, told) {
                return host.kill();
            }
            let line = host.next().expect("the host lives until it is killed");
            assert_ne!(line["did"], "fail", "{line}");
            told += usize::from(line["did"] == "call");
            begun += usize::from(is_call(&line));
            self.told.push(line);
        }
        host.close();
    }

    fn kill_server(&mut self) {
        match &mut self.world.http {
            Some(http) => http.kill(),
            None => {
                for pid in self.world.bed.running() {
                    kill_if_of(pid, self.world.bed.path());
                }
            }
        }
    }

    /// Servers for the next host. Over stdio it starts them itself.
    async fn serve_again(&mut self) {
        if let Some(mut http) = self.world.http.take() {
            http.kill();
            self.world.http = Some(self.world.bed.http().await);
        }
        for lever in ["die-before", "die-after", "stall-after"] {
            let _ = std::fs::remove_file(self.shop.path().join(lever));
        }
        self.shop.serve_again().await;
    }

    /// The last host is asked for what is unknown, and to find it out where it may.
    fn quiet(&mut self) {
        let mut host = HostProcess::start(&self.options());
        for record in host.listed() {
            let id = &record["intent"]["operation"];
            host.order(&json!({"do": "resolve", "operation": id, "deadline_ms": 2_000}));
            let done = host.until(|line| line["did"] == "resolve");
            assert!(done["error"].is_null() || done["by"].is_null(), "{done}");
        }
        host.close();
        assert!(journal_of(&self.world).exists());
    }
}

/// Whether an attempt of a call is told.
pub(super) fn is_call(line: &Value) -> bool {
    line["event"] == "attempt_started" && line["method"] == "tools/call"
}
