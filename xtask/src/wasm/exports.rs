//! Renames exports of a WebAssembly module.
//!
//! <https://webassembly.github.io/spec/core/binary/modules.html#export-section>

use anyhow::{Context, Result, ensure};

/// The id of the export section.
const EXPORTS: u8 = 7;
/// The magic number and the version.
const HEADER: usize = 8;

/// Renames each export whose name begins with `prefix` to the rest of its name, and removes the export
/// that had that name.
pub fn rename(module: &[u8], prefix: &str) -> Result<Vec<u8>> {
    let (header, mut rest) = module.split_at_checked(HEADER).context("not a module")?;
    let mut renamed = header.to_vec();
    while let Some((&id, sized)) = rest.split_first() {
        let (section, after) = read_sized(sized)?;
        renamed.push(id);
        if id == EXPORTS {
            write_sized(&mut renamed, &rename_in(section, prefix)?);
        } else {
            write_sized(&mut renamed, section);
        }
        rest = after;
    }
    Ok(renamed)
}

fn rename_in(section: &[u8], prefix: &str) -> Result<Vec<u8>> {
    let (count, mut rest) = read_number(section)?;
    let mut exports: Vec<(&[u8], &[u8])> = Vec::new();
    for _ in 0..count {
        let (name, described) = read_sized(rest)?;
        // A byte for its kind, and its index.
        let (_, after) = read_number(described.get(1..).context("cut short")?)?;
        let (what, after) = described.split_at(described.len() - after.len());
        exports.push((name, what));
        rest = after;
    }
    let new_names: Vec<&[u8]> = exports
        .iter()
        .filter_map(|(name, _)| name.strip_prefix(prefix.as_bytes()))
        .collect();
    exports.retain(|(name, _)| !new_names.contains(name));
    let mut renamed = Vec::new();
    write_number(&mut renamed, exports.len());
    for (name, what) in exports {
        let name = name.strip_prefix(prefix.as_bytes()).unwrap_or(name);
        write_sized(&mut renamed, name);
        renamed.extend(what);
    }
    Ok(renamed)
}

/// Bytes preceded by their number; also returns the remaining input.
fn read_sized(bytes: &[u8]) -> Result<(&[u8], &[u8])> {
    let (size, rest) = read_number(bytes)?;
    rest.split_at_checked(size).context("cut short")
}

fn write_sized(to: &mut Vec<u8>, bytes: &[u8]) {
    write_number(to, bytes.len());
    to.extend(bytes);
}

/// An unsigned number, seven bits in each byte; also returns the remaining input.
fn read_number(bytes: &[u8]) -> Result<(usize, &[u8])> {
    let len = bytes.iter().position(|byte| byte & 0x80 == 0);
    let (digits, rest) = bytes.split_at(len.context("cut short")? + 1);
    ensure!(digits.len() <= 5, "a number of more than 32 bits");
    let digits = digits.iter().rev();
    let number = digits.fold(0, |number, byte| number << 7 | usize::from(byte & 0x7f));
    Ok((number, rest))
}

fn write_number(to: &mut Vec<u8>, mut number: usize) {
    while number > 0x7f {
        to.push(0x80 | (number & 0x7f).to_le_bytes()[0]);
        number >>= 7;
    }
    to.push(number.to_le_bytes()[0]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_export_takes_the_name_of_another() {
        let mut exports = vec![3];
        for (name, index) in [("call", 1), ("my_call", 200), ("other", 2)] {
            write_sized(&mut exports, name.as_bytes());
            exports.push(0);
            write_number(&mut exports, index);
        }
        let mut module = b"\0asm\x01\0\0\0".to_vec();
        for (id, section) in [(1, &[7; 300][..]), (EXPORTS, &exports), (10, &[])] {
            module.push(id);
            write_sized(&mut module, section);
        }
        let renamed = rename(&module, "my_").unwrap();
        let sections = &renamed[HEADER + 1 + 2 + 300..];
        let expected = b"\x07\x11\x02\x04call\0\xc8\x01\x05other\0\x02\x0a\0";
        assert_eq!(sections, expected);
        assert_eq!(rename(&module, "none_").unwrap(), module);
        assert!(rename(&module[..module.len() - 4], "my_").is_err());
    }
}
