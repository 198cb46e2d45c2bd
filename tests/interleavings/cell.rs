//! Recall against write.

use std::sync::Arc;

use loom::{
    sync::atomic::{AtomicU8, Ordering},
    thread,
};

use crate::{
    evidence::{DispatchCell, WireReport},
    in_every_order,
};

fn with_status(status: u16) -> WireReport {
    WireReport {
        status: Some(status),
        ..WireReport::default()
    }
}

#[test]
fn never_both_recalled_and_begun_in_any_order() {
    in_every_order("one writer, one recaller", || {
        let cell = Arc::new(DispatchCell::new());
        let writers = Arc::clone(&cell);
        let writer = thread::spawn(move || {
            let begun = writers.begin_write();
            if begun {
                writers.finish_write();
            }
            begun
        });
        let recalled = cell.recall();
        let begun = writer.join().unwrap();
        assert!(begun ^ recalled, "begun: {begun}, recalled: {recalled}");
        assert_eq!(cell.was_begun(), begun);
        assert_eq!(cell.was_written(), begun);
        assert_eq!(cell.was_recalled(), recalled);
    });
}

#[test]
fn of_several_recallers_and_the_writer_one_side_wins_for_all() {
    in_every_order("one writer, two recallers", || {
        let cell = Arc::new(DispatchCell::new());
        let writer = {
            let cell = Arc::clone(&cell);
            thread::spawn(move || cell.begin_write())
        };
        let recaller = {
            let cell = Arc::clone(&cell);
            thread::spawn(move || cell.recall())
        };
        let mine = cell.recall();
        let theirs = recaller.join().unwrap();
        let begun = writer.join().unwrap();
        assert_eq!(mine, theirs, "a won recall is one for everybody");
        assert!(begun ^ mine);
    });
}

#[test]
fn of_two_writers_at_most_one_begins_in_any_order() {
    in_every_order("two writers, one recaller", || {
        let cell = Arc::new(DispatchCell::new());
        let writers = [0; 2].map(|_| {
            let cell = Arc::clone(&cell);
            thread::spawn(move || cell.begin_write())
        });
        let recalled = cell.recall();
        let begun = writers.map(|writer| u8::from(writer.join().unwrap()));
        assert_eq!(begun[0] + begun[1] + u8::from(recalled), 1);
    });
}

#[test]
fn what_was_recalled_is_never_written_later() {
    in_every_order("a writer that asks twice", || {
        let cell = Arc::new(DispatchCell::new());
        let writer = {
            let cell = Arc::clone(&cell);
            thread::spawn(move || {
                let recalled = cell.was_recalled();
                let begun = cell.begin_write();
                cell.finish_write();
                assert!(!(recalled && begun), "written after it was recalled");
                begun
            })
        };
        let was_begun = cell.was_begun();
        let recalled = cell.recall();
        assert!(!(was_begun && recalled), "recalled after it was begun");
        let begun = writer.join().unwrap();
        assert!(begun ^ recalled);
        assert!(!(recalled && cell.begin_write()));
        assert_eq!(cell.recall(), recalled, "who won stays the winner");
    });
}

#[test]
fn who_loses_sees_what_the_winner_did_before() {
    in_every_order("each leaves a note before it tries", || {
        let cell = Arc::new(DispatchCell::new());
        let notes = Arc::new([AtomicU8::new(0), AtomicU8::new(0)]);
        let writer = {
            let (cell, notes) = (Arc::clone(&cell), Arc::clone(&notes));
            thread::spawn(move || {
                notes[0].store(1, Ordering::Relaxed);
                if !cell.begin_write() {
                    assert_eq!(notes[1].load(Ordering::Relaxed), 1);
                }
            })
        };
        notes[1].store(1, Ordering::Relaxed);
        if !cell.recall() {
            assert_eq!(notes[0].load(Ordering::Relaxed), 1);
        }
        writer.join().unwrap();
    });
    in_every_order("a bystander reads the state", || {
        let cell = Arc::new(DispatchCell::new());
        let note = Arc::new(AtomicU8::new(0));
        let writer = {
            let (cell, note) = (Arc::clone(&cell), Arc::clone(&note));
            thread::spawn(move || {
                note.store(1, Ordering::Relaxed);
                let begun = cell.begin_write();
                if begun {
                    note.store(2, Ordering::Relaxed);
                    cell.finish_write();
                }
            })
        };
        if cell.was_begun() {
            assert!(note.load(Ordering::Relaxed) >= 1);
        }
        writer.join().unwrap();
    });
}

#[test]
fn what_the_writer_reports_is_whole_and_stays() {
    in_every_order("a report beside a lost recall", || {
        let cell = Arc::new(DispatchCell::new());
        let note = Arc::new(AtomicU8::new(0));
        let writer = {
            let (cell, note) = (Arc::clone(&cell), Arc::clone(&note));
            thread::spawn(move || {
                let begun = cell.begin_write();
                if begun {
                    note.store(1, Ordering::Relaxed);
                    cell.report(with_status(503));
                    cell.finish_write();
                    cell.report(with_status(200));
                }
                begun
            })
        };
        let recalled = cell.recall();
        let early = cell.reported().cloned();
        if let Some(report) = &early {
            assert!(!recalled);
            assert_eq!(*report, with_status(503), "the first report stays");
            assert_eq!(note.load(Ordering::Relaxed), 1);
        }
        let begun = writer.join().unwrap();
        assert_eq!(
            cell.reported().map(|report| report.status),
            begun.then_some(Some(503)),
            "who lost the recall finds the report, and who won finds none"
        );
    });
}
