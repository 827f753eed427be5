use proptest::prelude::*;

use super::*;

/// The numbers found, and whether the body is whole if it ends here, or does not.
type Found = (Vec<Option<u64>>, bool, bool);

fn read(format: Format, pointers: &[&str], chunks: &[&[u8]]) -> Found {
    let pointers: Vec<Pointer> = pointers
        .iter()
        .map(|p| Pointer::parse(p).unwrap())
        .collect();
    let refs: Vec<&Pointer> = pointers.iter().collect();
    let mut reader = BodyReader::new(format, &refs);
    for chunk in chunks {
        reader.read(&refs, chunk);
    }
    let bytes: usize = chunks.iter().map(|chunk| chunk.len()).sum();
    assert_eq!(reader.bytes(), bytes as u64);
    let found = (0..refs.len()).map(|at| reader.found(at)).collect();
    (found, reader.is_whole(true), reader.is_whole(false))
}

/// The result of reading the chunks whole, and in every split into two, which must not differ.
fn read_split(format: Format, pointers: &[&str], body: &str) -> Found {
    let whole = read(format, pointers, &[body.as_bytes()]);
    for at in 0..=body.len() {
        let (head, tail) = body.as_bytes().split_at(at);
        assert_eq!(
            read(format, pointers, &[head, tail]),
            whole,
            "split at {at}"
        );
    }
    let each: Vec<&[u8]> = body.as_bytes().chunks(1).collect();
    assert_eq!(read(format, pointers, &each), whole);
    whole
}

const OPENAI: [&str; 1] = ["/usage/total_tokens"];
const ANTHROPIC: [&str; 2] = ["/usage/input_tokens", "/usage/output_tokens"];
const GEMINI: [&str; 1] = ["/usageMetadata/totalTokenCount"];

#[test]
fn openai_chat_completions() {
    let whole = r#"{"id":"chatcmpl-1","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"a \"usage\": {"},"finish_reason":"stop"}],"usage":{"prompt_tokens":19,"completion_tokens":10,"total_tokens":29,"prompt_tokens_details":{"cached_tokens":0}}}"#;
    let (found, ended, hung_up) = read_split(Format::Json, &OPENAI, whole);
    assert_eq!((found[0], ended, hung_up), (Some(29), true, false));
    let streamed = "data: {\"id\":\"1\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hi\"}}],\"usage\":null}\n\n\
        data: {\"id\":\"1\",\"choices\":[],\"usage\":{\"prompt_tokens\":19,\"completion_tokens\":10,\"total_tokens\":29}}\n\n\
        data: [DONE]\n\n";
    let (found, ended, hung_up) = read_split(Format::Events, &OPENAI, streamed);
    assert_eq!((found[0], ended, hung_up), (Some(29), true, true));
}

#[test]
fn openai_responses() {
    let streamed = "event: response.created\r\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"r\",\"usage\":null}}\r\n\r\n\
        event: response.output_text.delta\r\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"Hi\"}\r\n\r\n\
        event: response.completed\r\ndata: {\"type\":\"response.completed\",\"response\":{\"output\":[{\"usage\":{\"total_tokens\":1}}],\"usage\":{\"input_tokens\":37,\"output_tokens\":11,\"total_tokens\":48}}}\r\n\r\n";
    let (found, ended, _) = read_split(Format::Events, &OPENAI, streamed);
    assert_eq!((found[0], ended), (Some(48), true));
    let whole = r#"{"id":"r","object":"response","usage":{"input_tokens":37,"total_tokens":48}}"#;
    assert_eq!(read_split(Format::Json, &OPENAI, whole).0, [Some(48)]);
}

#[test]
fn anthropic_messages() {
    let streamed = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"usage\":{\"input_tokens\":25,\"output_tokens\":1}}}\n\n\
        event: ping\ndata: {\"type\": \"ping\"}\n\n\
        event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Hello\"}}\n\n\
        event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":15}}\n\n\
        event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    let (found, ended, hung_up) = read_split(Format::Events, &ANTHROPIC, streamed);
    assert_eq!(
        (found, ended, hung_up),
        (vec![Some(25), Some(15)], true, true)
    );
    let whole = r#"{"type":"message","content":[{"type":"text","text":"Hi"}],"usage":{"input_tokens":25,"output_tokens":15}}"#;
    assert_eq!(
        read_split(Format::Json, &ANTHROPIC, whole).0,
        [Some(25), Some(15)]
    );
}

#[test]
fn gemini() {
    let chunk = |tokens: u32| {
        format!(
            r#"{{"candidates":[{{"content":{{"parts":[{{"text":"Hi"}}]}}}}],"usageMetadata":{{"promptTokenCount":4,"totalTokenCount":{tokens}}}}}"#
        )
    };
    let (first, last) = (chunk(5), chunk(9));
    let events = format!("data: {first}\r\n\r\ndata: {last}\r\n\r\n");
    assert_eq!(read_split(Format::Events, &GEMINI, &events).0, [Some(9)]);
    // Without `alt=sse`, the response is a growing list.
    let items = format!("[{first}\n,\r\n{last}\n]");
    let (found, ended, _) = read_split(Format::Json, &GEMINI, &items);
    assert_eq!((found[0], ended), (Some(9), true));
    assert_eq!(read_split(Format::Json, &GEMINI, &last).0, [Some(9)]);
}

#[test]
fn event_streams_are_parsed_as_the_sse_specification_says() {
    let pointers = ["/a"];
    for (body, number) in [
        ("data:{\"a\":1}\n\n", Some(1)),
        ("data: {\"a\":\ndata: 2}\n\n", Some(2)),
        ("data: {\"a\":3}\r\rdata: x\r\r", Some(3)),
        (
            ": {\"a\":1}\n\nid: {\"a\":1}\n\ndata\n\ndatax: {\"a\":1}\n\n",
            None,
        ),
        ("data: {\"a\":4}", Some(4)),
        ("data: {\"a\":\n\ndata: 5}\n\ndata: {\"b\":{\n\n", None),
        ("data: {\"a\":\"\n\ndata: {\"a\":6}\n\n", Some(6)),
    ] {
        assert_eq!(
            read_split(Format::Events, &pointers, body).0[0],
            number,
            "{body}"
        );
    }
}

#[test]
fn headers_determine_the_format_of_a_body() {
    let format = |media_type: &str, coding: Option<&str>| {
        Format::from_media_type(Some(media_type.as_bytes()), coding.map(str::as_bytes))
    };
    assert_eq!(
        format("application/json; charset=utf-8", None),
        Format::Json
    );
    assert_eq!(
        format("application/problem+JSON", Some("identity")),
        Format::Json
    );
    assert_eq!(format("application/x-ndjson", None), Format::Json);
    assert_eq!(
        format("Text/Event-Stream;charset=utf-8", None),
        Format::Events
    );
    assert_eq!(format("application/json", Some("gzip")), Format::Other);
    assert_eq!(format("text/html", None), Format::Other);
    assert_eq!(Format::from_media_type(None, None), Format::Other);
}

#[test]
fn the_memory_of_a_body_reader_is_bounded() {
    let own = size_of::<BodyReader>() + 30 * (size_of::<Option<u64>>() * 2 + size_of::<usize>());
    assert!(own <= 1500, "{own}");
}

/// Parts of events; most of them form whole lines.
fn part() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "\n",
        "\n",
        "\n\n",
        "\r",
        "\r\n",
        "\r\n\r\n",
        "data: {\"text\":\"some words\"}\n\n",
        "data: {\"usage\":{\"tokens\":1}}\n\n",
        "data: {\"usage\":{\"tokens\":22}}\r\n\r\n",
        "data: {\"usage\":{\"tokens\":3}}\r\r",
        "data: {\"usage\":\ndata: {\"tokens\":4}}\n\n",
        "data: {\"usage\":{",
        "\"tokens\":5}}",
        "data: \\\"tokens\"",
        "data: [DONE]\n\n",
        "event: message_stop\n",
        ": ping\n\n",
        "data: x",
    ])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn skipping_events_by_search_does_not_change_the_numbers_found(
        parts in prop::collection::vec(part(), 0..30),
        sizes in prop::collection::vec(1_usize..120, 1..20),
    ) {
        let text = parts.concat();
        let pointers = ["/usage/tokens", "/a/other_tokens"].map(|text| Pointer::parse(text).unwrap());
        let pointers: Vec<&Pointer> = pointers.iter().collect();
        let found = |search: bool, chunks: &mut dyn Iterator<Item = usize>| {
            let mut reader = BodyReader::new(Format::Events, &pointers);
            assert!(reader.search.is_some());
            reader.search = reader.search.filter(|_| search);
            let mut rest = text.as_bytes();
            while !rest.is_empty() {
                let (chunk, after) = rest.split_at(chunks.next().unwrap().min(rest.len()));
                reader.read(&pointers, chunk);
                rest = after;
            }
            (reader.found(0), reader.found(1), reader.is_whole(false))
        };
        let every = found(false, &mut std::iter::repeat(usize::MAX));
        prop_assert_eq!(found(true, &mut std::iter::repeat(usize::MAX)), every);
        prop_assert_eq!(found(true, &mut sizes.iter().copied().cycle()), every);
    }

    #[test]
    fn arbitrary_bytes_never_panic_and_chunking_does_not_matter(
        bytes in prop::collection::vec(prop_oneof![
            3 => prop::sample::select(b"data: \n\r{}[]\",:\\a1".to_vec()), 1 => any::<u8>()], 0..200),
        at in 0_usize..200,
    ) {
        let (head, tail) = bytes.split_at(at.min(bytes.len()));
        for format in [Format::Json, Format::Events, Format::Other] {
            let whole = read(format, &["/a", "/a/a"], &[&bytes]);
            prop_assert_eq!(read(format, &["/a", "/a/a"], &[head, tail]), whole);
        }
    }
}

#[test]
fn a_byte_order_mark_hides_no_event() {
    let only = "\u{feff}data: {\"usage\":{\"total_tokens\":29}}\n\n";
    let (found, ..) = read_split(Format::Events, &OPENAI, only);
    assert_eq!(found[0], Some(29));
    // Elsewhere it belongs to the name of a field, which is then another.
    let later = "data: {}\n\n\u{feff}data: {\"usage\":{\"total_tokens\":29}}\n\n";
    let (found, ..) = read_split(Format::Events, &OPENAI, later);
    assert_eq!(found[0], None);
    let json = "\u{feff}{\"usage\":{\"total_tokens\":29}}";
    let (found, ended, _) = read_split(Format::Json, &OPENAI, json);
    assert_eq!((found[0], ended), (Some(29), true));
}

#[test]
fn a_body_that_is_encoded_or_in_another_character_set_is_not_read() {
    for (media_type, encoding, format) in [
        ("application/json", None, Format::Json),
        (
            "application/json; charset=utf-8",
            Some("identity"),
            Format::Json,
        ),
        (
            "application/problem+json;charset=\"UTF-8\"",
            Some(""),
            Format::Json,
        ),
        (
            "application/json;charset=ISO-8859-1",
            Some("identity, identity"),
            Format::Json,
        ),
        (
            "text/event-stream; charset=utf-8; x=y",
            None,
            Format::Events,
        ),
        ("application/json; charset=utf-16", None, Format::Other),
        (
            "application/json; q=1;Charset=\"UTF-32LE\"",
            None,
            Format::Other,
        ),
        ("application/json;charset=IBM037", None, Format::Other),
        ("application/json", Some("gzip"), Format::Other),
        ("text/event-stream", Some("identity, br"), Format::Other),
        ("text/csv", None, Format::Other),
    ] {
        let encoding = encoding.map(str::as_bytes);
        let of = Format::from_media_type(Some(media_type.as_bytes()), encoding);
        assert_eq!(of, format, "{media_type} {encoding:?}");
    }
}
