//! The whole, at random: calls with and without keys and contracts, lost answers, hosts and servers that
//! are killed, and restarts. After quiet every operation is settled, or listed as unknown with a reason,
//! and no key has two effects.
//!
//! `WHOLE_SEEDS=N` plays N games instead of a few; `WHOLE_SEED=S` plays the one that was printed.

mod support;

#[path = "whole/game.rs"]
mod game;
#[path = "whole/plan.rs"]
mod plan;
#[path = "whole/verdict.rs"]
mod verdict;

use std::time::Duration;

use futures::StreamExt as _;
use game::Game;

/// Games in a plain `cargo test`: two on each transport, some ten seconds.
const SEEDS: u64 = 4;
/// Games that are played at a time: most of their time is spent waiting.
const AT_A_TIME: usize = 2;
/// The outer deadline of one game.
const HARD: Duration = Duration::from_secs(120);

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is no number")),
    )
}

#[tokio::test]
async fn after_quiet_every_operation_is_settled_or_unknown_with_a_reason_and_no_key_has_two_effects()
 {
    let many = number("WHOLE_SEEDS").unwrap_or(SEEDS);
    let seeds: Vec<u64> = match number("WHOLE_SEED") {
        Some(seed) => vec![seed],
        // One on each transport, in turn.
        None => (0..many)
            .map(|game| rand::random::<u64>() / 2 * 2 + game % 2)
            .collect(),
    };
    let games = futures::stream::iter(seeds).map(|seed| async move {
        println!("WHOLE_SEED={seed}");
        let began = std::time::Instant::now();
        let game = tokio::time::timeout(HARD, Game::play(seed));
        let (found, told) = game.await.expect("a game ran into its outer deadline");
        println!("WHOLE_SEED={seed}: {found}, {:?}", began.elapsed());
        told
    });
    let told: Vec<usize> = games.buffer_unordered(AT_A_TIME).collect().await;
    assert!(told.iter().sum::<usize>() > 0, "nobody was told anything");
}
