//! Every reader, with its corpus and random changes of it.

use fuzz::{READERS, mutate, of};

/// Changed copies of each input.
const CHANGES: u64 = 200;

#[test]
fn readers_end_on_their_corpora_and_on_changed_copies() {
    for reader in READERS {
        let corpus = of(reader).unwrap_or_else(|error| unreachable!("{error}"));
        assert!(!corpus.is_empty(), "{} has no corpus", reader.name);
        for (at, input) in (0..).zip(&corpus) {
            (reader.read)(input);
            for change in 0..CHANGES {
                let changed = mutate(input, at * CHANGES + change);
                let shown = changed.escape_ascii();
                let read = std::panic::catch_unwind(|| (reader.read)(&changed));
                assert!(read.is_ok(), "{} on {shown}", reader.name);
            }
        }
    }
}
