use super::*;

#[tokio::test]
async fn a_port_in_use_is_named_with_its_flag() {
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let first = Listeners::bind(any, &[any]).unwrap();
    let taken = first.data.local_addr().unwrap();
    let error = Listeners::bind(any, &[taken]).unwrap_err().to_string();
    assert_eq!(
        error,
        format!(
            "cannot listen on {taken}: the port is in use; stop the other program, or choose another with --admin"
        )
    );
}

#[test]
fn the_rejection_states_its_content_length() {
    let text = std::str::from_utf8(REJECTION).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(&format!("content-length: {}\r\n", body.len())));
    serde_json::from_str::<serde_json::Value>(body).unwrap();
}
