//! The two forms of a random test: bytes, and JSON lines. Its first part sets it up, the others follow.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The first part's bytes, those that are missing as 0, and those of every whole part after it.
pub(crate) fn split<const FIRST: usize, const EACH: usize>(
    bytes: &[u8],
) -> ([u8; FIRST], &[[u8; EACH]]) {
    let mut first = [0; FIRST];
    let (head, tail) = bytes.split_at(bytes.len().min(FIRST));
    first[..head.len()].copy_from_slice(head);
    (first, tail.as_chunks().0)
}

/// A part a line.
///
/// # Panics
/// For parts that JSON has no form of.
pub(crate) fn to_text(first: &impl Serialize, others: &[impl Serialize]) -> String {
    let first = serde_json::to_string(first).expect("it is JSON");
    let others = others.iter().map(|it| serde_json::to_string(it).expect("it is JSON"));
    std::iter::once(first).chain(others).map(|line| line + "\n").collect()
}

/// Reads what [`to_text`] wrote.
///
/// # Errors
/// The number of the first line that is not understood, and why.
pub(crate) fn parse<F: DeserializeOwned, O: DeserializeOwned>(
    text: &str,
) -> Result<(F, Vec<O>), String> {
    let mut lines = (1..).zip(text.lines());
    let first = read(lines.next().unwrap_or((1, "")))?;
    Ok((first, lines.map(read).collect::<Result<_, _>>()?))
}

fn read<T: DeserializeOwned>((number, text): (usize, &str)) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| format!("line {number}: {error}"))
}
