//! The tables, and every statement on them. `{s}` stands for the schema.
//!
//! A write is one statement, and so one transaction. It names the host and its fencing number, and
//! carries an identity of its own by which it is known again when its answer was lost: done a second
//! time it does nothing. What may follow what comes from the journal's table: a statement is given the
//! states from which its event is possible and, at the same places, what each of them becomes.

/// The version that the last of [`MIGRATIONS`] leads to.
pub(super) const NEWEST: i64 = MIGRATIONS.len() as i64;

/// The way from each version to the next.
pub(super) const MIGRATIONS: [&str; 1] = ["
CREATE TABLE {s}.hosts (
    host text PRIMARY KEY,
    lease_until timestamptz NOT NULL
);
CREATE TABLE {s}.operations (
    row bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    operation uuid NOT NULL UNIQUE,
    connection text NOT NULL,
    key text,
    -- whether no other operation may have the key; it is never taken back
    holds_key boolean NOT NULL,
    intent text NOT NULL,
    state text NOT NULL,
    host text NOT NULL,
    fence bigint NOT NULL,
    -- whether its host is at work on it
    held boolean NOT NULL,
    entries integer NOT NULL,
    -- which write made it, and which one claimed it last
    accepted uuid NOT NULL,
    claimed uuid,
    settled_at timestamptz
);
CREATE TABLE {s}.entries (
    row bigint NOT NULL,
    token uuid NOT NULL,
    number integer NOT NULL,
    entry text NOT NULL,
    PRIMARY KEY (row, token)
);
CREATE UNIQUE INDEX operations_key ON {s}.operations (connection, key) WHERE holds_key;
CREATE INDEX operations_freed ON {s}.operations (connection, key) WHERE key IS NOT NULL AND NOT holds_key;
CREATE INDEX operations_held ON {s}.operations (host) WHERE held;
CREATE INDEX operations_unsettled ON {s}.operations (operation) WHERE settled_at IS NULL;
CREATE INDEX operations_answers ON {s}.operations (settled_at)
    WHERE settled_at IS NOT NULL AND state NOT IN ('forgotten', 'not_sent', 'rejected');
CREATE INDEX operations_removable ON {s}.operations (settled_at)
    WHERE state IN ('forgotten', 'not_sent', 'rejected');
"];

/// What is read of an operation, with whether its host lives.
const RECORD: &str = "
o.row, o.intent, o.state, o.host, o.fence, o.held, o.entries,
o.accepted::text AS accepted, o.claimed::text AS claimed,
EXISTS (SELECT FROM {s}.hosts h WHERE h.host = o.host AND h.lease_until > clock_timestamp()) AS alive,
ARRAY(SELECT e.entry FROM {s}.entries e WHERE e.row = o.row ORDER BY e.number) AS history";

/// What a move sets, from the lists of `Moves`, which start at the parameter `{n}`.
const MOVED: &str = "
state = ({2})[array_position({1}, o.state)],
entries = o.entries + 1,
holds_key = o.holds_key AND NOT ({3})[array_position({1}, o.state)],
held = o.held AND NOT ({4})[array_position({1}, o.state)],
settled_at = CASE WHEN ({5})[array_position({1}, o.state)] THEN {6} ELSE o.settled_at END";

pub(super) struct Sql {
    pub(super) register: String,
    pub(super) renew: String,
    pub(super) resign: String,
    pub(super) bury: String,
    pub(super) orphaned: String,
    pub(super) abandon: String,
    pub(super) accept: String,
    pub(super) rival: String,
    pub(super) withdraw: String,
    pub(super) append: String,
    pub(super) standing: String,
    pub(super) claim: String,
    pub(super) release: String,
    pub(super) by_operation: String,
    pub(super) by_key: String,
    pub(super) list: String,
    pub(super) list_unsettled: String,
    pub(super) answers: String,
    pub(super) forget: String,
    pub(super) forget_entries: String,
    pub(super) remove: String,
}

/// The expression for a living host, whose name is the parameter `$n`.
fn alive(n: usize) -> String {
    format!(
        "EXISTS (SELECT FROM {{s}}.hosts h WHERE h.host = ${n}::text AND h.lease_until > clock_timestamp())"
    )
}

fn moved(n: usize) -> String {
    let types = [
        "text[]",
        "text[]",
        "boolean[]",
        "boolean[]",
        "boolean[]",
        "timestamptz",
    ];
    let mut text = MOVED.to_owned();
    for (i, of_type) in types.iter().enumerate() {
        text = text.replace(&format!("{{{}}}", i + 1), &format!("${}::{of_type}", n + i));
    }
    text
}

fn possible(n: usize) -> String {
    format!("array_position(${n}::text[], o.state) IS NOT NULL")
}

impl Sql {
    pub(super) fn of(schema: &str) -> Self {
        let quoted = format!("\"{schema}\"");
        let of = |text: String| text.replace("{record}", RECORD).replace("{s}", &quoted);
        let list = |more: &str| {
            of(format!(
                "SELECT {{record}} FROM {{s}}.operations o
                 WHERE ($1::text[] IS NULL OR o.state = ANY($1)) AND ($2::text IS NULL OR o.connection = $2)
                   AND ($3::text IS NULL OR o.operation > $3::text::uuid) {more}
                 ORDER BY o.operation LIMIT $4::bigint"
            ))
        };
        Self {
            register: of("INSERT INTO {s}.hosts (host, lease_until)
                 VALUES ($1::text, clock_timestamp() + make_interval(secs => $2::float8))
                 ON CONFLICT (host) DO NOTHING"
                .to_owned()),
            // A lease that ran out is not renewed: others may have acted on that.
            renew: of("UPDATE {s}.hosts SET lease_until = clock_timestamp() + make_interval(secs => $2::float8)
                 WHERE host = $1::text AND lease_until > clock_timestamp() RETURNING 1"
                .to_owned()),
            resign: of("DELETE FROM {s}.hosts WHERE host = $1::text".to_owned()),
            bury: of("DELETE FROM {s}.hosts WHERE host IN (SELECT host FROM {s}.hosts
                 WHERE lease_until <= clock_timestamp() FOR UPDATE SKIP LOCKED)"
                .to_owned()),
            // By name, since a name never lives again: what is read here stays true while it is used.
            orphaned: of("SELECT DISTINCT o.host FROM {s}.operations o
                 WHERE o.held AND NOT EXISTS (SELECT FROM {s}.hosts h WHERE h.host = o.host)"
                .to_owned()),
            abandon: of(format!(
                "WITH orphans AS MATERIALIZED (
                     SELECT row FROM {{s}}.operations WHERE held AND host = $1::text
                     ORDER BY row LIMIT $2::bigint FOR UPDATE SKIP LOCKED
                 ), moved AS (
                     UPDATE {{s}}.operations o SET fence = o.fence + 1, {}
                     FROM orphans WHERE o.row = orphans.row AND {} RETURNING o.row, o.entries
                 ), noted AS (
                     INSERT INTO {{s}}.entries (row, token, number, entry)
                     SELECT row, gen_random_uuid(), entries, $3::text FROM moved
                 ) SELECT count(*) AS moved FROM moved",
                moved(4),
                possible(4)
            )),
            accept: of(format!(
                "WITH kept AS (
                     INSERT INTO {{s}}.operations
                         (operation, connection, key, holds_key, intent, state, host, fence, held, entries, accepted)
                     SELECT $1::text::uuid, $2::text, $3::text, $3::text IS NOT NULL, $4::text, $5::text,
                         $6::text, 1, true, CASE WHEN $7::text IS NULL THEN 0 ELSE 1 END, $8::text::uuid
                     WHERE {} ON CONFLICT DO NOTHING RETURNING row
                 ), first AS (
                     INSERT INTO {{s}}.entries (row, token, number, entry)
                     SELECT row, $8::text::uuid, 1, $7::text FROM kept WHERE $7::text IS NOT NULL
                 ) SELECT (SELECT row FROM kept) AS row, {} AS alive",
                alive(6),
                alive(6)
            )),
            rival: of("SELECT {record} FROM {s}.operations o
                 WHERE o.operation = $1::text::uuid OR (o.connection = $2::text AND o.key = $3::text AND o.holds_key)
                 ORDER BY o.operation = $1::text::uuid DESC LIMIT 1"
                .to_owned()),
            append: of(format!(
                "WITH moved AS (
                     UPDATE {{s}}.operations o SET {}
                     WHERE o.row = $1::bigint AND o.fence = $2::bigint AND o.host = $3::text
                       AND o.operation = $12::text::uuid AND {} AND {}
                     RETURNING o.row, o.entries, o.state
                 ), noted AS (
                     INSERT INTO {{s}}.entries (row, token, number, entry)
                     SELECT row, $4::text::uuid, entries, $5::text FROM moved
                 ) SELECT state FROM moved",
                moved(6),
                possible(6),
                alive(3)
            )),
            // As far as it is the first attempt and the last that was recorded.
            withdraw: of(format!(
                "WITH moved AS (
                     UPDATE {{s}}.operations o SET {}
                     WHERE o.operation = $1::text::uuid AND o.host = $2::text AND {}
                       AND ((o.entries = 0 AND o.accepted = $3::text::uuid) OR (o.entries = 1 AND EXISTS (
                           SELECT FROM {{s}}.entries e WHERE e.row = o.row AND e.token = $3::text::uuid)))
                     RETURNING o.row, o.entries
                 ) INSERT INTO {{s}}.entries (row, token, number, entry)
                   SELECT row, gen_random_uuid(), entries, $4::text FROM moved RETURNING 1",
                moved(5),
                possible(5)
            )),
            standing: of(format!(
                "SELECT o.state, o.fence, o.held, o.host = $2::text AS ours, {} AS alive, EXISTS (
                     SELECT FROM {{s}}.entries e WHERE e.row = o.row AND e.token = $3::text::uuid) AS written
                 FROM {{s}}.operations o WHERE o.row = $1::bigint AND o.operation = $4::text::uuid",
                alive(2)
            )),
            claim: of(format!(
                "WITH taken AS (
                     UPDATE {{s}}.operations o
                     SET host = $2::text, fence = o.fence + 1, held = true, claimed = $3::text::uuid
                     WHERE o.operation = $1::text::uuid AND o.state = 'outcome_unknown' AND NOT o.held
                       AND o.claimed IS DISTINCT FROM $3::text::uuid AND {}
                     RETURNING o.row
                 ) SELECT EXISTS (SELECT FROM taken) AS taken, {} AS alive",
                alive(2),
                alive(2)
            )),
            // Whoever had it is fenced out; so is the one who gives it up.
            release: of(
                "UPDATE {s}.operations o SET held = false, fence = o.fence + 1
                 WHERE o.row = $1::bigint AND o.operation = $2::text::uuid AND o.fence = $3::bigint
                   AND o.host = $4::text AND o.state = 'outcome_unknown' RETURNING 1"
                    .to_owned(),
            ),
            by_operation: of(
                "SELECT {record} FROM {s}.operations o WHERE o.operation = $1::text::uuid".to_owned(),
            ),
            by_key: of("(SELECT {record} FROM {s}.operations o
                  WHERE o.connection = $1::text AND o.key = $2::text AND o.holds_key)
                 UNION ALL
                 (SELECT {record} FROM {s}.operations o
                  WHERE o.connection = $1::text AND o.key = $2::text AND NOT o.holds_key
                  ORDER BY o.row DESC LIMIT 1)
                 LIMIT 1"
                .to_owned()),
            list: list(""),
            list_unsettled: list("AND o.settled_at IS NULL"),
            answers: of("SELECT {record} FROM {s}.operations o
                 WHERE o.settled_at < $1::timestamptz AND o.state NOT IN ('forgotten', 'not_sent', 'rejected')
                 ORDER BY o.settled_at LIMIT $2::bigint FOR UPDATE OF o SKIP LOCKED"
                .to_owned()),
            forget: of("WITH n AS (
                     SELECT * FROM unnest($1::bigint[], $2::text[], $3::integer[]) AS n(row, intent, entries)
                 ), old AS (
                     DELETE FROM {s}.entries e WHERE e.row = ANY($1)
                 ) UPDATE {s}.operations o SET intent = n.intent, entries = n.entries, state = 'forgotten'
                 FROM n WHERE o.row = n.row"
                .to_owned()),
            forget_entries: of("INSERT INTO {s}.entries (row, token, number, entry)
                 SELECT n.row, gen_random_uuid(), n.number, n.entry
                 FROM unnest($1::bigint[], $2::integer[], $3::text[]) AS n(row, number, entry)"
                .to_owned()),
            remove: of("WITH gone AS (
                     DELETE FROM {s}.operations WHERE row IN (SELECT row FROM {s}.operations
                         WHERE state IN ('forgotten', 'not_sent', 'rejected')
                           AND settled_at < CASE state WHEN 'forgotten' THEN $1::timestamptz ELSE $2::timestamptz END
                         ORDER BY settled_at LIMIT $3::bigint FOR UPDATE SKIP LOCKED) RETURNING row
                 ), with_it AS (DELETE FROM {s}.entries WHERE row IN (SELECT row FROM gone))
                 SELECT count(*) AS gone FROM gone"
                .to_owned()),
        }
    }
}
