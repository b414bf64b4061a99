use super::*;
use proptest::prelude::*;

/// A writer of msgpack, in the longest forms on request.
#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn array(&mut self, len: usize) -> &mut Self {
        self.0.push(0xdc);
        self.0.extend((len as u16).to_be_bytes());
        self
    }

    fn map(&mut self, len: usize) -> &mut Self {
        self.0.push(0xde);
        self.0.extend((len as u16).to_be_bytes());
        self
    }

    fn text(&mut self, text: &str) -> &mut Self {
        self.0.extend([0xd9, text.len() as u8]);
        self.0.extend(text.as_bytes());
        self
    }

    fn number(&mut self, number: u64) -> &mut Self {
        self.0.push(0xcf);
        self.0.extend(number.to_be_bytes());
        self
    }

    fn nil(&mut self) -> &mut Self {
        self.0.push(0xc0);
        self
    }

    fn numbers(&mut self, numbers: &[u64]) -> &mut Self {
        self.array(numbers.len());
        numbers.iter().for_each(|number| {
            self.number(*number);
        });
        self
    }
}

#[test]
fn events_by_place_and_by_name_are_the_same() {
    let mut by_place = Writer::default();
    by_place.array(3).number(1).array(3);
    by_place.array(8).text("BlockStored").numbers(&[7, 8]).number(5).numbers(&[1, 2, 3, 4]).number(2).nil();
    by_place.text("GPU").text("sql-lora");
    by_place.array(3).text("BlockRemoved").numbers(&[9]).text("CPU");
    by_place.array(1).text("AllBlocksCleared").number(3);
    let mut by_name = Writer::default();
    by_name.map(4).text("ts").number(1).text("data_parallel_rank").number(3).text("later").array(1).map(0);
    by_name.text("events").array(3);
    by_name.map(7).text("lora_name").text("sql-lora").text("token_ids").numbers(&[1, 2, 3, 4]);
    by_name.text("block_size").number(2).text("type").text("BlockStored").text("parent_block_hash").number(5);
    by_name.text("session_id").text("s").text("block_hashes").numbers(&[7, 8]);
    by_name.map(3).text("type").text("BlockRemoved").text("medium").text("CPU").text("block_hashes").numbers(&[9]);
    by_name.map(1).text("type").text("AllBlocksCleared");
    let batch = decode(&by_place.0).unwrap();
    assert_eq!(batch, decode(&by_name.0).unwrap());
    let stored = Stored {
        hashes: vec![EngineHash(7), EngineHash(8)],
        parent: Some(EngineHash(5)),
        token_ids: vec![1, 2, 3, 4],
        block_tokens: 2,
        lora: Some("sql-lora"),
        ..Stored::default()
    };
    let removed = Removed { hashes: vec![EngineHash(9)], medium: Medium::Elsewhere, group: 0 };
    assert_eq!(batch.events, [Event::Stored(stored), Event::Removed(removed), Event::Cleared]);
    assert_eq!(batch.rank, Some(3));
}

#[test]
fn unknown_events_are_passed_over_whatever_they_hold() {
    let mut writer = Writer::default();
    writer.array(2).nil().array(3);
    writer.array(3).text("BlockMoved").array(2).map(1).text("deep").array(1).array(0).nil().number(4);
    writer.map(2).text("type").text("CacheGrown").text("by").array(1).numbers(&[1, 2]);
    writer.map(1).text("type").text("AllBlocksCleared");
    let batch = decode(&writer.0).unwrap();
    assert_eq!((batch.events, batch.unknown, batch.rank), (vec![Event::Cleared], 2, None));
}

#[test]
fn what_a_hash_covers_besides_tokens_is_told_apart() {
    let beside = |write: &dyn Fn(&mut Writer), lora: Option<&str>| {
        let mut writer = Writer::default();
        write(&mut writer);
        let extra = extra(&mut Reader::new(&writer.0)).unwrap();
        match extra.beside(lora) {
            Beside::Nothing => String::from("nothing"),
            Beside::Text(text) => String::from_utf8(text.to_vec()).unwrap(),
            Beside::Other(_) => String::from("other"),
        }
    };
    assert_eq!(
        beside(
            &|w| {
                w.nil();
            },
            None
        ),
        "nothing"
    );
    assert_eq!(
        beside(
            &|w| {
                w.array(0);
            },
            Some("l")
        ),
        "nothing"
    );
    assert_eq!(
        beside(
            &|w| {
                w.array(1).text("salt");
            },
            None
        ),
        "salt"
    );
    assert_eq!(
        beside(
            &|w| {
                w.array(1).text("l");
            },
            Some("l")
        ),
        "nothing"
    );
    assert_eq!(
        beside(
            &|w| {
                w.array(2).text("l").text("salt");
            },
            Some("l")
        ),
        "salt"
    );
    assert_eq!(
        beside(
            &|w| {
                w.array(2).text("l").array(2).text("image").number(4);
            },
            Some("l")
        ),
        "other"
    );
    assert_eq!(
        beside(
            &|w| {
                w.array(2).array(2).text("image").number(4).text("salt");
            },
            None
        ),
        "other"
    );
}

#[test]
fn tokens_that_do_not_fill_the_blocks_are_none() {
    for (tokens, kept) in [(vec![1, 2, 3, 4], 4), (vec![1, 2, 3, 4, 5], 4), (vec![1, 2, 3], 0), (vec![], 0)] {
        let mut writer = Writer::default();
        writer.array(2).nil().array(1);
        writer.array(5).text("BlockStored").numbers(&[7, 8]).nil().numbers(&tokens).number(2);
        let batch = decode(&writer.0).unwrap();
        let Event::Stored(stored) = &batch.events[0] else { panic!() };
        assert_eq!(stored.token_ids.len(), kept, "{tokens:?}");
    }
}

#[test]
fn a_fault_says_what_is_wrong() {
    let mut missing = Writer::default();
    missing.array(2).nil().array(1).array(1).text("BlockRemoved");
    let mut wrong = Writer::default();
    wrong.array(2).nil().array(1).array(2).text("BlockRemoved").text("h");
    for (bytes, said) in [
        (&b""[..], "it ends within a value"),
        (b"\xc1", "something else where a value is expected"),
        (b"\x90", "something else where a batch of events is expected"),
        (&missing.0, "an event without `block_hashes`"),
        (&wrong.0, "something else where a list of hashes is expected"),
    ] {
        assert_eq!(decode(bytes).unwrap_err().to_string(), said);
    }
    // A list that claims four billion items reserves no memory for them.
    assert_eq!(decode(b"\x92\xc0\x91\x92\xabBlockStored\xdd\xff\xff\xff\xff\x01"), Err(Fault::Truncated));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_read_or_refused(head in 0usize..5, bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let heads: [&[u8]; 5] =
            [b"", b"\x92\xc0", b"\x92\xc0\x91", b"\x92\xc0\x91\x98\xabBlockStored", b"\x92\xc0\x91\x82\xa4type\xacBlockRemoved"];
        let payload = [heads[head], &bytes].concat();
        if let Ok(batch) = decode(&payload) {
            let items: usize = batch.events.iter().map(|event| match event {
                Event::Stored(stored) => stored.hashes.len() + stored.token_ids.len() + stored.extras.len(),
                Event::Removed(removed) => removed.hashes.len(),
                Event::Cleared => 0,
            }).sum();
            prop_assert!(items + batch.events.len() <= payload.len());
        }
    }
}
