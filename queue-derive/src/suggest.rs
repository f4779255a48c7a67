/// The known name that is at most two edits away.
pub(crate) fn nearest<'n>(unknown: &str, known: &[&'n str]) -> Option<&'n str> {
    known
        .iter()
        .map(|known| (edits(unknown, known), *known))
        .filter(|(distance, known)| *distance <= 2 && *distance < known.len() / 2)
        .min()
        .map(|(_, known)| known)
}

/// The Levenshtein distance.
fn edits(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[to.len()]
}
