//! Which of a cluster's 16384 slots a key lives in.

/// The slot of a key: CRC-16/XMODEM of its hash tag, or of the whole key if it has none.
pub fn slot(key: &[u8]) -> u16 {
    crc16(tag(key)) % 16384
}

/// The text between the first `{` and the next `}`, unless it is empty.
fn tag(key: &[u8]) -> &[u8] {
    let mut parts = key.splitn(2, |b| *b == b'{');
    let (_, Some(after)) = (parts.next(), parts.next()) else {
        return key;
    };
    match after.iter().position(|b| *b == b'}') {
        None | Some(0) => key,
        Some(end) => after.get(..end).unwrap_or(key),
    }
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 {
                crc << 1
            } else {
                (crc << 1) ^ 0x1021
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_cluster_specification() {
        assert_eq!(slot(b"123456789"), 0x31C3);
        assert_eq!(slot(b"foo"), 12182);
        assert_eq!(slot(b"{user1000}.following"), slot(b"user1000"));
        assert_eq!(slot(b"foo{bar}{zap}"), slot(b"bar"));
        assert_eq!(slot(b"foo{{bar}}zap"), slot(b"{bar"));
        assert_eq!(slot(b"foo{}{bar}"), {
            // An empty tag does not count: the whole key is hashed.
            let whole = slot(b"foo{}{bar}");
            assert_ne!(whole, slot(b"bar"));
            whole
        });
    }
}
