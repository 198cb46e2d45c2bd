//! What the SQLite journal costs, as ratios in one run.
//!
//! ```text
//! cargo bench --bench journal                        a short form, below 20 s
//! cargo bench --bench journal -- --check             and fails where a bar is missed
//! cargo bench --bench journal -- --records 1000000   cost in a journal of so many (100,000 else)
//! cargo bench --bench journal -- --seconds 60        measures longer (8 s else)
//! cargo bench --bench journal -- --dir PATH          on another disk than that of `target`
//! ```
//!
//! One record is one operation with a key of its own: two durable writes, the intent with its first
//! attempt and then the answer. It is compared with
//!
//! - the same rows in the same tables by plain `rusqlite`, prepared, with one transaction per write and
//!   no other thread: what a store without group commit would do;
//! - an append and `fdatasync` of the bytes that are recorded, per write: what no store can be without.
//!
//! The sides take turns in short blocks, so that whatever else the machine and the disk do falls on
//! all of them; a ratio is made of two blocks of one turn, and what is printed is the median of the
//! ratios with its quartiles. What a disk's sync costs is bimodal on many machines, and the mode may
//! change between two blocks. So at 1 the journal and the bare append take turns record by record, and
//! the ratio of a turn is that of their medians. The bars are held where the median sync is 50 to
//! 500 µs.

use std::{
    fs::File,
    io::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use mcp_supervisor::{
    journal::{Accepted, Fact, Intent, Kept, Settler, SqliteStore, Store},
    operation::{AttemptId, Fingerprint, IdempotencyKey, OperationId},
};
use rusqlite::{Connection, params};
use serde_json::{Map, json};

/// Where the bars are held.
const ORDINARY_SYNC: std::ops::RangeInclusive<f64> = 50.0..=500.0;
/// Records of a block that syncs for each write.
const ONE_BY_ONE: usize = 40;

#[tokio::main]
async fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().collect();
    let after = |name: &str| {
        let at = words.iter().position(|word| word == name)?;
        words.get(at + 1).cloned()
    };
    let number =
        |name, default| after(name).map_or(default, |text| text.parse().expect("a whole number"));
    let dir = after("--dir").unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").to_owned());
    let dir = tempfile::tempdir_in(dir).expect("a directory to measure in");
    let lasts = Duration::from_secs(number("--seconds", 8));
    let filled = usize::try_from(number("--records", 100_000)).expect("it fits");

    let mut turns = Turns::new(dir.path()).await;
    let started = Instant::now();
    // One to warm up, and as many as an odd median needs.
    turns.take().await;
    turns.clear();
    while turns.sync.len() < 3 || started.elapsed() < lasts {
        turns.take().await;
    }
    let missed = turns.report();
    sizes(dir.path(), filled).await;
    match missed && words.iter().any(|word| word == "--check") {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    }
}

// ------------------------------------------------------------------- one turn of each side

struct Turns {
    store: Arc<SqliteStore>,
    plain: Plain,
    bare: Bare,
    /// The median of the syncs of each turn, in microseconds.
    sync: Vec<f64>,
    one_over_bare: Vec<f64>,
    sixteen_over_plain: Vec<f64>,
    many_over_plain: Vec<f64>,
    rates: [Vec<f64>; 5],
}

impl Turns {
    async fn new(dir: &Path) -> Self {
        Self {
            store: open(dir.join("journal.db")).await,
            plain: Plain::new(dir.join("plain.db")).await,
            bare: Bare::new(dir),
            sync: Vec::new(),
            one_over_bare: Vec::new(),
            sixteen_over_plain: Vec::new(),
            many_over_plain: Vec::new(),
            rates: Default::default(),
        }
    }

    fn clear(&mut self) {
        self.sync.clear();
        self.one_over_bare.clear();
        self.sixteen_over_plain.clear();
        self.many_over_plain.clear();
        self.rates = Default::default();
    }

    async fn take(&mut self) {
        let [bare, one, sync] = self.one_by_one().await;
        let plain = self.plain.block(ONE_BY_ONE);
        let sixteen = block(&self.store, 16, 16 * ONE_BY_ONE).await;
        let many = block(&self.store, 256, 256 * ONE_BY_ONE / 2).await;
        self.sync.push(sync);
        self.one_over_bare.push(one / bare);
        self.sixteen_over_plain.push(sixteen / plain);
        self.many_over_plain.push(many / plain);
        for (rates, rate) in self.rates.iter_mut().zip([bare, plain, one, sixteen, many]) {
            rates.push(rate);
        }
    }

    /// Records per second of the bare append and of the journal at 1, each by its median record, and the
    /// median of the bare syncs in microseconds.
    async fn one_by_one(&mut self) -> [f64; 3] {
        let [mut bare, mut one, mut syncs] = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..ONE_BY_ONE {
            bare.push(self.bare.record(&mut syncs));
            let started = Instant::now();
            record(&self.store).await;
            one.push(per_second(1, started));
        }
        [&mut bare, &mut one, &mut syncs].map(|values| quartiles(values)[1])
    }

    /// Prints the table, and says whether a bar is missed that holds here.
    fn report(&mut self) -> bool {
        let sync = quartiles(&mut self.sync)[1];
        let holds = ORDINARY_SYNC.contains(&sync);
        println!(
            "append + fdatasync: p50 {sync:.0} µs, {} 50 to 500 µs: the bars {}; {} turns\n",
            if holds { "within" } else { "not within" },
            if holds { "hold" } else { "do not hold here" },
            self.sync.len(),
        );
        println!("| side | records/s |\n|---|---|");
        let sides = [
            "append + fdatasync",
            "one transaction per write",
            "journal, 1",
            "journal, 16",
            "journal, 256",
        ];
        for (side, rates) in sides.iter().zip(&mut self.rates) {
            println!("| {side} | {:.0} |", quartiles(rates)[1]);
        }
        println!(
            "\n| concurrent | over | throughput ratio | quartiles | bar | |\n|---|---|---|---|---|---|"
        );
        let rows = [
            (1, "append + fdatasync", 0.65, &mut self.one_over_bare),
            (
                16,
                "one transaction per write",
                4.0,
                &mut self.sixteen_over_plain,
            ),
            (
                256,
                "one transaction per write",
                8.0,
                &mut self.many_over_plain,
            ),
        ];
        let mut missed = false;
        for (concurrent, over, bar, ratios) in rows {
            let [low, middle, high] = quartiles(ratios);
            let reached = middle >= bar;
            missed |= holds && !reached;
            println!(
                "| {concurrent} | {over} | {middle:.2} | {low:.2} to {high:.2} | {bar} | {} |",
                if reached { "reached" } else { "missed" },
            );
        }
        println!();
        missed
    }
}

fn quartiles(values: &mut [f64]) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values[(values.len() - 1) * quarter / 4])
}

// ------------------------------------------------------------------- the journal

async fn open(path: PathBuf) -> Arc<SqliteStore> {
    Arc::new(SqliteStore::open(path).await.expect("a journal of our own"))
}

/// Records per second, with so many at a time.
async fn block(store: &Arc<SqliteStore>, concurrent: usize, records: usize) -> f64 {
    let started = Instant::now();
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..concurrent {
        let store = Arc::clone(store);
        running.spawn(async move {
            for _ in 0..records / concurrent {
                record(&store).await;
            }
        });
    }
    running.join_all().await;
    per_second(records, started)
}

async fn record(store: &SqliteStore) {
    let first = Some(AttemptId::mint());
    let accepted = store.accept(intent(), first).await;
    let Accepted::New(held) = accepted.expect("it is written") else {
        panic!("its key is new")
    };
    store.append(&held, answer()).await.expect("it is written");
}

fn intent() -> Intent {
    let print = Fingerprint::of("charge", &Map::new());
    let connection = "billing".parse().expect("a name");
    let mut intent = Intent::new(OperationId::mint(), connection, "charge", print);
    // Keys are the callers' and random.
    let key = format!("{:032x}", rand::random::<u128>());
    intent.key = Some(key.parse::<IdempotencyKey>().expect("a key"));
    intent
}

fn answer() -> Fact {
    Fact::Answered {
        is_error: false,
        answer: Kept::Whole(json!({"content": [{"type": "text", "text": "charged 19.99"}]})),
        by: Settler::Call {
            generation: None,
            attempts: 1,
        },
    }
}

fn per_second(records: usize, started: Instant) -> f64 {
    f64::from(u32::try_from(records).expect("not so many")) / started.elapsed().as_secs_f64()
}

// ------------------------------------------------------------------- what it is compared with

/// The texts of the two writes of one record.
struct Texts {
    intent: String,
    dispatched: String,
    answered: String,
}

impl Texts {
    fn new(intent: &Intent) -> Self {
        let line = |fact| {
            let entry = mcp_supervisor::journal::Entry::now(fact);
            serde_json::to_string(&entry).expect("it is JSON") + "\n"
        };
        let attempt = AttemptId::mint();
        Self {
            intent: serde_json::to_string(intent).expect("it is JSON"),
            dispatched: line(Fact::Dispatching { attempt }),
            answered: line(answer()),
        }
    }
}

/// Plain SQLite, one transaction per write.
struct Plain {
    connection: Connection,
    row: i64,
}

impl Plain {
    /// In the journal's own tables.
    async fn new(path: PathBuf) -> Self {
        let store = open(path.clone()).await;
        store.close().await.expect("it closes");
        let connection = Connection::open(path).expect("it is there");
        connection
            .pragma_update(None, "synchronous", "FULL")
            .expect("it can be set");
        Self { connection, row: 0 }
    }

    fn block(&mut self, records: usize) -> f64 {
        let started = Instant::now();
        for _ in 0..records {
            self.record().expect("it is written");
        }
        per_second(records, started)
    }

    fn record(&mut self) -> rusqlite::Result<()> {
        let intent = intent();
        let texts = Texts::new(&intent);
        self.row += 1;
        let insert = "INSERT INTO operations VALUES (?, 2, NULL, 1, 1, 1, ?, ?, 'billing', ?, ?)";
        let (id, key) = (intent.operation.as_bytes(), [7_u8; 16]);
        let Texts {
            intent,
            dispatched,
            answered,
        } = &texts;
        self.connection
            .prepare_cached(insert)?
            .execute(params![self.row, id, key, intent, dispatched])?;
        let update = "UPDATE operations SET state = 5, settled_at = ?2, history = history || ?3 WHERE row = ?1";
        self.connection
            .prepare_cached(update)?
            .execute(params![self.row, self.row, answered])?;
        Ok(())
    }
}

/// A file that grows, synced after each write.
struct Bare(File);

impl Bare {
    fn new(dir: &Path) -> Self {
        Self(File::create(dir.join("bare")).expect("a file of our own"))
    }

    /// Records per second, by one; what its syncs took in microseconds is noted.
    fn record(&mut self, syncs: &mut Vec<f64>) -> f64 {
        let started = Instant::now();
        let Texts {
            intent,
            dispatched,
            answered,
        } = Texts::new(&intent());
        for bytes in [intent + &dispatched, answered] {
            let began = Instant::now();
            self.0.write_all(bytes.as_bytes()).expect("it is written");
            self.0.sync_data().expect("it is synced");
            syncs.push(began.elapsed().as_secs_f64() * 1e6);
        }
        per_second(1, started)
    }
}

// ------------------------------------------------------------------- how it grows

/// Cost in an empty journal and in a full one, in turns, and what opening the full one takes.
async fn sizes(dir: &Path, records: usize) {
    let (empty, full) = (dir.join("empty.db"), dir.join("full.db"));
    let store = open(full.clone()).await;
    block(&store, 1024, records).await;
    store.close().await.expect("it closes");
    let bytes = std::fs::metadata(&full).expect("it is there").len();
    let began = Instant::now();
    let store = open(full).await;
    println!(
        "a journal of {records} records: {} MB; opening it, which reads and checks all, took {:.0} ms",
        bytes / 1_000_000,
        began.elapsed().as_secs_f64() * 1e3,
    );
    let beside = open(empty).await;
    let [mut one, mut many] = [Vec::new(), Vec::new()];
    for _ in 0..5 {
        let (a, b) = (
            block(&beside, 1, ONE_BY_ONE).await,
            block(&store, 1, ONE_BY_ONE).await,
        );
        one.push(a / b);
        let (a, b) = (
            block(&beside, 256, 2560).await,
            block(&store, 256, 2560).await,
        );
        many.push(a / b);
    }
    for (concurrent, ratios) in [(1, &mut one), (256, &mut many)] {
        let [low, middle, high] = quartiles(ratios);
        println!(
            "cost per record in it over one in an empty journal, at {concurrent}: {middle:.2} ({low:.2} to {high:.2})"
        );
    }
}
